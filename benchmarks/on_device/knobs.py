"""The knobs of a device's space, one by one: does a setting arrive, and does it change anything?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autotune.backends.registry import framework_version
from autotune.config import Config, Scalar, fits
from autotune.environment import num_usable_cores
from autotune.planning.spaces import bundled_space
from autotune.space.load import Circumstances, load_space
from autotune.space.space import Knob, SearchSpace
from autotune.workload.workload import Device, Task
from benchmarks.on_device.records import KnobSeen
from benchmarks.on_device.session import Session, Subject

LEFT_OUT = frozenset({"execution"})
"""What it changes is in every other figure."""


@dataclass(frozen=True)
class KnobPairs:
    """A knob, a config in which it has its default, and that config with each of its other values."""

    knob: str
    base: Config
    others: tuple[Config, ...]

    def run(self, session: Session, subject: Subject) -> KnobSeen:
        """Try all of them."""
        base = session.try_(subject, self.base.root)
        others = {shown(config[self.knob]): session.try_(subject, config.root) for config in self.others}
        return KnobSeen(self.knob, shown(self.base[self.knob]), base, others)


def space_on(device: Device, task: Task = "infer") -> SearchSpace:
    """All that this release offers on this device, whatever it does to numerics or to the process."""
    circumstances = Circumstances(
        version=framework_version("torch"),
        device=device,
        task=task,
        preset="exhaustive",
        num_cores=num_usable_cores(),
        process_settings=True,
    )
    return load_space(bundled_space("torch"), framework="torch", circumstances=circumstances)


def pairs_in(space: SearchSpace) -> list[KnobPairs]:
    """Each knob that has a choice, with as little else changed as its conditions and the space's rules ask for."""
    pairs = (_pairs_of(space, knob) for knob in space.knobs if knob.name not in LEFT_OUT and len(knob.values) > 1)
    return [each for each in pairs if each is not None]


def _pairs_of(space: SearchSpace, knob: Knob) -> KnobPairs | None:
    """With the first base under which the most values are allowed; None where there is none at all."""
    needed = {**_needed(space, knob.name), knob.name: knob.default}
    found: list[KnobPairs] = []
    for wanted in (needed, *_with_one_more(space, needed)):
        base = _nearest(space, wanted)
        if base is None:
            continue
        others = (_changed(space, base, knob.name, value) for value in knob.values if value is not knob.default)
        found.append(KnobPairs(knob.name, base, tuple(each for each in others if each is not None and each != base)))
        if len(found[-1].others) == len(knob.values) - 1:
            break
    best = max(found, key=lambda each: len(each.others), default=None)
    return best if best is not None and best.others else None


def _with_one_more(space: SearchSpace, needed: Mapping[str, Scalar]) -> Iterator[dict[str, Scalar]]:
    """The same with one other knob off its default: the space's rules forbid some pairs."""
    for knob in space.knobs:
        if knob.name not in needed:
            for value in knob.values:
                yield {**needed, **_needed(space, knob.name), knob.name: value}


def _changed(space: SearchSpace, base: Config, knob: str, value: Scalar) -> Config | None:
    """The base with another value; None where the space's rules forbid it."""
    config = space.walk(lambda name, _: value if name == knob else _own(base, space, name))
    return None if space.forbidden(config) else config


def _own(base: Config, space: SearchSpace, name: str) -> Scalar:
    return base[name] if name in base.root else next(each.default for each in space.knobs if each.name == name)


def _needed(space: SearchSpace, knob: str) -> dict[str, Scalar]:
    """What must be set for a knob to be there, and for what must be set."""
    conditions = next(each.when for each in space.knobs if each.name == knob)
    needed: dict[str, Scalar] = {}
    for name, wanted in conditions.items():
        offered = next((each for each in space.knobs if each.name == name), None)
        if offered is None:
            continue
        fitting = [value for value in offered.values if fits({name: value}, {name: wanted})]
        if fitting:
            needed |= {**_needed(space, name), name: offered.default if offered.default in fitting else fitting[0]}
    return needed


def _nearest(space: SearchSpace, wanted: Mapping[str, Scalar]) -> Config | None:
    """The default compile with these settings; None where they do not come to be, or are forbidden together."""
    defaults = {each.name: each.default for each in space.knobs}
    config = space.walk(lambda name, _: wanted.get(name, defaults[name]))
    arrived = all(name in config.root and config.matches({name: value}) for name, value in wanted.items())
    return config if arrived and space.forbidden(config) is None else None


def shown(value: Scalar) -> str:
    """A value as it stands in a space file."""
    return value if isinstance(value, str) else json.dumps(value)
