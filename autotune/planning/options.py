"""Knobs of a user's own space that no bundled one has: options of the compiler (`inductor.NAME`) and environment
variables (`env.NAME`), checked before a study is made."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.backends.registry import entry_of
from autotune.bench import probe
from autotune.errors import InputError, did_you_mean
from autotune.space.space import Knob, SearchSpace
from autotune.trial.deadline import LimitsNow
from autotune.trial.request import Limits
from autotune.workload.process_variables import PREFIX, require_variable


def require_open_knobs(space: SearchSpace, path: str, variables: Mapping[str, str], limits: LimitsNow = Limits) -> None:
    """Raises InputError, with file and knob, for one that no config may set, that the installed release does not have,
    or whose values it does not take. `variables` are those of the study."""
    groups = entry_of(space.framework).options
    options = {knob.name: knob for knob in space.knobs if knob.name.partition(".")[0] in groups and "." in knob.name}
    try:
        for knob in space.knobs:
            if knob.name.startswith(PREFIX):
                for value in knob.values:
                    require_variable(knob.name, value)
            elif "." in knob.name and knob.name not in options:
                raise _unknown_group(knob.name, (*groups, PREFIX.rstrip(".")))
        _require_compiled(space, options)
        if options:
            offered = {name: knob.values for name, knob in options.items()}
            probe.require_options(space.framework, offered, variables, limits)
    except InputError as error:
        raise InputError(f"{path}: {error}", tip=error.tip) from None


def _unknown_group(name: str, groups: tuple[str, ...]) -> InputError:
    group, _, option = name.partition(".")
    return InputError(
        f"knob {name}: there are no options of {group!r}",
        tip=did_you_mean(name, [f"{each}.{option}" for each in groups])
        + f"options begin with {' or '.join(f'{each}.' for each in groups)}",
    )


def _require_compiled(space: SearchSpace, options: Mapping[str, Knob]) -> None:
    for name in space.untuned().knobs():
        if name in options:
            raise InputError(
                f"knob {name}: the untuned model has no compiler whose option it could be",
                tip="give it a condition: when: {execution: compile, backend: inductor}",
            )
