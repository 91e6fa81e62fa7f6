"""Search spaces of several frameworks combined into one, whose first knob chooses the framework.

The other knobs keep their order and are prefixed with their framework's name (`torch.mode`), so that two frameworks may
have knobs of the same name. A config of a combined space holds the knobs of its own framework only.
"""

from __future__ import annotations

from collections.abc import Sequence

from autotune.config import FRAMEWORK, Config
from autotune.space.schema import Pattern
from autotune.space.space import Knob, SearchSpace

DOC = "docs/search-spaces.md"


def join_spaces(spaces: Sequence[SearchSpace]) -> SearchSpace:
    """Combine one space for each framework; the untuned model of the first is the base of the study."""
    names = tuple(space.framework for space in spaces)
    choice = Knob(name=FRAMEWORK, doc=DOC, values=names, when={}, default=names[0], untuned=names[0])
    return SearchSpace(
        framework="+".join(names),
        knobs=(choice, *(_of_framework(knob, space.framework) for space in spaces for knob in space.knobs)),
        forbid=tuple(
            (_prefixed(pattern, space.framework), because) for space in spaces for pattern, because in space.forbid
        ),
    )


def without_framework(config: Config) -> Config:
    """The config without prefixes, as its own framework knows it; unchanged if it is of a single framework's space."""
    if FRAMEWORK not in config.root:
        return config
    prefix = f"{config[FRAMEWORK]}."
    return Config({name.removeprefix(prefix): value for name, value in config.root.items() if name != FRAMEWORK})


def _of_framework(knob: Knob, framework: str) -> Knob:
    active = {FRAMEWORK: framework, **_prefixed(knob.when, framework)}
    return knob.model_copy(update={"name": f"{framework}.{knob.name}", "when": active})


def _prefixed(pattern: Pattern, framework: str) -> Pattern:
    return {f"{framework}.{name}": wanted for name, wanted in pattern.items()}
