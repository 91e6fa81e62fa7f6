"""The search spaces of several frameworks as one: its first knob chooses the framework.

The other knobs keep their order and get their framework's name in front (`torch.mode`), so that two frameworks may name
a knob alike. A config of a joined space holds the knobs of its own framework only.
"""

from __future__ import annotations

from collections.abc import Sequence

from autotune.config import FRAMEWORK, Config
from autotune.space.schema import Pattern
from autotune.space.space import Knob, SearchSpace

DOC = "docs/search-spaces.md"


def join(spaces: Sequence[SearchSpace]) -> SearchSpace:
    """One space out of one for each framework; the first is the one whose untuned model is the base of the study."""
    names = tuple(space.framework for space in spaces)
    choice = Knob(name=FRAMEWORK, doc=DOC, values=names, when={}, default=names[0], untuned=names[0])
    return SearchSpace(
        framework="+".join(names),
        knobs=(choice, *(_of_framework(knob, space.framework) for space in spaces for knob in space.knobs)),
        forbid=tuple(
            (_prefixed(pattern, space.framework), because) for space in spaces for pattern, because in space.forbid
        ),
    )


def plain(config: Config) -> Config:
    """The config as its own framework knows it; a config of a single framework's space is that already."""
    if FRAMEWORK not in config.root:
        return config
    prefix = f"{config[FRAMEWORK]}."
    return Config({name.removeprefix(prefix): value for name, value in config.root.items() if name != FRAMEWORK})


def _of_framework(knob: Knob, framework: str) -> Knob:
    active = {FRAMEWORK: framework, **_prefixed(knob.when, framework)}
    return knob.model_copy(update={"name": f"{framework}.{knob.name}", "when": active})


def _prefixed(pattern: Pattern, framework: str) -> Pattern:
    return {f"{framework}.{name}": wanted for name, wanted in pattern.items()}
