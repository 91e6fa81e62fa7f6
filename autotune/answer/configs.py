"""A config in a table or a summary: what differs from the untuned model.

In short: `compile +freezing +cpp_wrapper matmul_precision=high`. How the model is executed stands alone, a switch has a
`+` or a `-`, and every other knob its name and value.
"""

from __future__ import annotations

from autotune.apply.config_parts import ConfigParts
from autotune.backends.protocol import PlainCode
from autotune.backends.registry import plain_code
from autotune.config import Config, Scalar
from autotune.errors import InvalidConfigError
from autotune.space.space import SearchSpace
from autotune.study.manifest import Manifest
from autotune.workload.kinds import kind_of

UNTUNED = "untuned"
_EXECUTION = "execution"
"""The knob of every framework that says whether, and by what, a model is compiled."""


def config_text(config: Config, space: SearchSpace) -> str:
    """The settings that differ from the untuned model, `untuned` if none does.

    A knob that the untuned model does not have, such as the mode of a compiler, is left out at its default.
    """
    unchanged = {knob.name: knob.default for knob in space.knobs} | space.untuned().root
    start = Config({name: value for name, value in unchanged.items() if name in config.root})
    changed = config.differing(start)
    return " ".join(_short(name, config[name]) for name in config.root if name in changed) or UNTUNED


def as_plain_code(config: Config, manifest: Manifest) -> PlainCode | None:
    """What a config of a study is in the framework's own code; None where no line of code is the same."""
    parts, workload = ConfigParts.of(config), manifest.workload
    if parts.variants or parts.strategy_numbers or not kind_of(workload).has_plain_code:
        return None
    try:
        found = plain_code(
            workload.framework, parts.settings, manifest.framework_version, workload.device, workload.task
        )
    except InvalidConfigError:
        return None
    if found is None or not parts.start:
        return found
    started = (f"start the process with {text}" for text in parts.start.texts())
    return PlainCode(found.line, (*found.beside, *started))


def _short(name: str, value: Scalar) -> str:
    if isinstance(value, bool):
        return f"{'+' if value else '-'}{name}"
    if name == _EXECUTION:
        return str(value)
    return str(Config({name: value}))
