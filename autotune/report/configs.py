"""A config in a table or a summary: what differs from the untuned model, or all of it."""

from __future__ import annotations

from autotune.config import FRAMEWORK, Config
from autotune.space.space import SearchSpace

UNTUNED = "untuned"


def config_text(config: Config, space: SearchSpace, *, full: bool = False) -> str:
    """The settings that differ from the untuned model, `untuned` if none does; all settings if `full`.

    A knob that the untuned model does not have, such as the mode of a compiler, is left out at its default. The
    framework is always named in a study of several.
    """
    if full:
        return str(config)
    framework = config.get(FRAMEWORK)
    unchanged = {knob.name: knob.default for knob in space.knobs}
    unchanged |= space.untuned(None if framework is None else str(framework)).root
    unchanged.pop(FRAMEWORK, None)
    start = Config({name: value for name, value in unchanged.items() if name in config.root})
    changed = config.differing(start)
    return str(Config({name: value for name, value in config.root.items() if name in changed})) or UNTUNED
