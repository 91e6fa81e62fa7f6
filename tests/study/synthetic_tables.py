"""Response tables that are made up, in the shape of real ones: what a search on a compile space has to cope with.

The logarithm of the latency is a sum of effects of single knobs (some inert), of sparse interactions of pairs, and of a
residual. Some configs fail, most of them because two values do not go together; memory and compile time have effects of
their own. The spaces have conditional knobs like the bundled ones. A table is the same for the same seed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from autotune.config import Config, Scalar
from autotune.space.space import Knob, SearchSpace

PAIRS_SHARE, PAIR_SD = 0.4, 0.04
"""So many of the interactions of two values are not zero, and how large these are (natural logarithm)."""
INERT_SHARE = 0.3
"""Of the minor knobs change nothing by themselves."""
MAJOR_SD, MINOR_SD, RESIDUAL_SD = 0.25, 0.08, 0.01
MAJOR = frozenset({"execution", "backend", "mode", "precision", "threads"})
NUM_FORBIDDING_PAIRS, RANDOM_FAILURES_SHARE, FAILURES_SHARE = 6, 0.03, 0.10
UNTUNED_S = 0.010

_COMPILED: dict[str, Scalar | list[Scalar]] = {"execution": "compile"}


@dataclass(frozen=True)
class Response:
    """What one config does; None for all of it where it fails."""

    latency_s: float | None
    compile_s: float | None
    peak_memory_bytes: int | None


@dataclass(frozen=True)
class SyntheticTable:
    """A space with the response of each of its configs."""

    space: SearchSpace
    responses: Mapping[Config, Response]


def small_space() -> SearchSpace:
    """49 configs of 5 knobs."""
    return _space(
        _knob("execution", "eager", "compile", untuned="eager", default="compile"),
        _knob("backend", "inductor", "aot_eager", when=_COMPILED),
        _knob("mode", "default", "reduce", "lite", "max", when={"backend": "inductor"}),
        _knob("dynamic", None, True, False, when=_COMPILED),
        _knob("fullgraph", False, True, when=_COMPILED),
        _knob("gemm", "ATEN", "CPP", "TRITON", "ALL", when={"mode": "max"}),
    )


def medium_space() -> SearchSpace:
    """400 configs of 10 knobs."""
    return _space(
        _knob("execution", "eager", "compile", untuned="eager", default="compile"),
        _knob("backend", "inductor", "aot_eager", when=_COMPILED),
        _knob("mode", "default", "reduce", "max", when={"backend": "inductor"}),
        _knob("dynamic", None, True, False, when=_COMPILED),
        _knob("precision", "float32", "bfloat16"),
        _knob("layout", "contiguous", "channels_last"),
        _knob("freezing", False, True, when={"backend": "inductor"}),
        _knob("epilogue", False, True, when={"backend": "inductor"}),
        _knob("gemm", "ATEN", "CPP", "ALL", when={"mode": "max"}),
        _knob("descent", False, True, when={"mode": "max"}),
    )


def large_space() -> SearchSpace:
    """2064 configs of 11 knobs, one of them a number."""
    return _space(
        _knob("execution", "eager", "compile", untuned="eager", default="compile"),
        _knob("mode", "default", "reduce", "max", when=_COMPILED),
        _knob("dynamic", None, True, when=_COMPILED),
        _knob("precision", "float32", "bfloat16"),
        _knob("layout", "contiguous", "channels_last"),
        _knob("threads", 1, 2, 4, 8),
        _knob("freezing", False, True, when=_COMPILED),
        _knob("epilogue", False, True, when=_COMPILED),
        _knob("padding", False, True, when=_COMPILED),
        _knob("gemm", "ATEN", "CPP", "ALL", when={"mode": "max"}),
        _knob("descent", False, True, when={"mode": "max"}),
    )


def make_table(space: SearchSpace, seed: int) -> SyntheticTable:
    """The responses of all configs of the space, drawn with this seed."""
    generator = np.random.default_rng(seed)
    listed = list(space.configs())
    latency = _Response(space, generator, MAJOR_SD, MINOR_SD)
    compile_ = _Response(space, generator, 0.3, 0.1)
    memory = _Response(space, generator, 0.25, 0.08)
    fails = _failing(space, listed, generator)
    responses = {}
    for config in listed:
        figures = (latency.of(config), compile_.of(config), memory.of(config))
        residual = generator.normal(0, RESIDUAL_SD, 3)
        drawn = [math.exp(log + extra) for log, extra in zip(figures, residual, strict=True)]
        responses[config] = (
            Response(None, None, None)
            if config in fails
            else Response(UNTUNED_S * drawn[0], 20.0 * drawn[1], round(2**29 * drawn[2]))
        )
    return SyntheticTable(space, responses)


class _Response:
    """A sum of effects of single settings and of pairs of them."""

    def __init__(self, space: SearchSpace, generator: np.random.Generator, major_sd: float, minor_sd: float) -> None:
        self._singles: dict[tuple[str, Scalar], float] = {}
        for knob in space.knobs:
            inert = knob.name not in MAJOR and generator.random() < INERT_SHARE
            sd = major_sd if knob.name in MAJOR else minor_sd
            for value in knob.values:
                self._singles[knob.name, value] = 0.0 if inert else generator.normal(0, sd)
        self._pairs = {
            pair: generator.normal(0, PAIR_SD) if generator.random() < PAIRS_SHARE else 0.0
            for pair in _pairs_of_settings(space)
        }

    def of(self, config: Config) -> float:
        """Natural logarithm of the quantity over its unit."""
        settings = list(config.root.items())
        singles = sum(self._singles[each] for each in settings)
        return singles + sum(self._pairs[pair] for pair in itertools.combinations(settings, 2))


def _pairs_of_settings(space: SearchSpace) -> Iterator[tuple[tuple[str, Scalar], tuple[str, Scalar]]]:
    for first, second in itertools.combinations(space.knobs, 2):
        for a, b in itertools.product(first.values, second.values):
            yield (first.name, a), (second.name, b)


def _failing(space: SearchSpace, configs: list[Config], generator: np.random.Generator) -> set[Config]:
    """About a tenth: pairs of values that do not go together, and single configs. Never the untuned and the default."""
    spared = {space.untuned(), space.default()}
    failing: set[Config] = set()
    pairs = list(_pairs_of_settings(space))
    for number in generator.permutation(len(pairs)):
        (a, x), (b, y) = pairs[number]
        hit = {each for each in configs if a in each.root and b in each.root and each[a] == x and each[b] == y}
        structured = FAILURES_SHARE - RANDOM_FAILURES_SHARE
        if hit and not hit & spared and len(failing | hit) <= structured * len(configs):
            failing |= hit
    single = {each for each in configs if generator.random() < RANDOM_FAILURES_SHARE}
    return (failing | single) - spared


def _knob(name: str, *values: Scalar, when: dict[str, Scalar | list[Scalar]] | None = None, **given: Scalar) -> Knob:
    default = given.get("default", values[0])
    return Knob(
        name=name, doc="", values=values, when=when or {}, default=default, untuned=given.get("untuned", default)
    )


def _space(*knobs: Knob) -> SearchSpace:
    return SearchSpace(framework="fake", knobs=knobs, forbid=())
