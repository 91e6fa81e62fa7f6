"""What goes together in a question, and what does not, as two tables: each combination that is refused, and why.

A combination is refused as soon as it is known: that of two fields when the question is made, what depends on the
device, the framework or the objectives when these are chosen. `require_allowed` words all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from autotune.errors import InputError, marked

Work = Literal["infer", "train", "generate"]


class Asked(Protocol):
    """A `Question`. Its other fields are read by their names."""

    @property
    def task(self) -> Work: ...
    @property
    def framework(self) -> str | None: ...
    @property
    def shapes(self) -> tuple[str, ...]: ...
    @property
    def traffic(self) -> Path | None: ...
    @property
    def instances(self) -> str | None: ...
    @property
    def arguments(self) -> Mapping[str, object]: ...


@dataclass(frozen=True)
class Target:
    """Where trials run, and what of it decides."""

    framework: str
    device: str
    generates: bool
    """The framework's text generation can be tuned."""
    sets_cores: bool
    """A process can be given cores of its own."""


@dataclass(frozen=True)
class Facts:
    """A question with what is known of it by now."""

    question: Asked
    target: Target | None = None
    """None: not chosen yet."""
    quantities: Mapping[str, str] | None = None
    """Quantity of an objective or a constraint -> how it was asked for. None: they are not read yet."""
    dimensions: tuple[str, ...] = ()
    """The dimensions of the traffic."""


class Why(NamedTuple):
    """The reason of a refusal, and what to do."""

    reason: str
    tip: str = "leave one of the two out"


Side = Callable[[Facts], str | None]
"""How the user gave something; the empty text for something that is missing; None where it does not apply."""


_FIRST_TOKEN = Why(
    "only generated text has a first token and further ones",
    f"tune text generation: {marked('task', 'generate')}",
)
_STEPS_ALONE = Why("training steps alone have a loss and an optimizer", f"leave out {marked('whole_step')}")
_LENGTHS = Why(
    "generated text has its lengths as prompts",
    f"give them as {marked('arguments')}, e.g. prompts=16,64,200, or in the model's function",
)
_ONE_SHAPE = Why(
    "a training step is tuned for one shape, because where its steps lead is compared",
    "tune it for the most frequent shape",
)
_INSTANCES = Why("instances are tried with calls of a model", f"leave out {marked('instances')}")

BY_WORK: dict[str, dict[Work, Why | None]] = {
    "shapes": {"infer": None, "train": _ONE_SHAPE, "generate": _LENGTHS},
    "traffic": {"infer": None, "train": _ONE_SHAPE, "generate": _LENGTHS},
    "inputs": {
        "infer": None,
        "train": None,
        "generate": Why(
            "a model that generates is given prompts",
            "let the model's function return them: {'model': ..., 'generate': {'prompts': [...]}}",
        ),
    },
    "whole_step": {"infer": _STEPS_ALONE, "train": None, "generate": _STEPS_ALONE},
    "instances": {"infer": None, "train": _INSTANCES, "generate": _INSTANCES},
    "ttft": {"infer": _FIRST_TOKEN, "train": _FIRST_TOKEN, "generate": None},
    "tpot": {"infer": _FIRST_TOKEN, "train": _FIRST_TOKEN, "generate": None},
    "target": {
        "infer": None,
        "train": None,
        "generate": Why(
            "text generation is tuned in PyTorch only",
            f"use {marked('framework', 'torch')}, or tune the step for one token with {marked('task', 'infer')}, of a "
            "model that keeps keys and values itself and has a reset (examples/models/decode_step.py)",
        ),
    },
}
"""Field, quantity, or a target that generates no text -> what there is against it, for each kind of
work; None: it goes together."""


def _given(name: str) -> Side:
    return lambda facts: marked(name) if getattr(facts.question, name) else None


def _with_value(name: str) -> Side:
    return lambda facts: marked(name, getattr(facts.question, name)) if getattr(facts.question, name) else None


def _quantity(name: str) -> Side:
    return lambda facts: None if facts.quantities is None else facts.quantities.get(name)


def _without(name: str) -> Side:
    return lambda facts: None if facts.quantities is None or name in facts.quantities else ""


def asks_for_many_shapes(question: Asked) -> bool:
    """Whether calls have several shapes, by whichever of the two fields says it."""
    return bool(question.shapes) or question.traffic is not None


def _many_shapes(facts: Facts) -> str | None:
    return "" if asks_for_many_shapes(facts.question) else None


def _one_shape(facts: Facts) -> str | None:
    return None if asks_for_many_shapes(facts.question) else ""


def _any_number(facts: Facts) -> str | None:
    return marked("instances", "auto") if facts.question.instances == "auto" else None


def _argument_of_traffic(facts: Facts) -> str | None:
    twice = next((name for name in facts.dimensions if name in facts.question.arguments), None)
    return None if twice is None else f"{marked('arguments')} {twice}"


def _targets(is_wrong: Callable[[Target], bool]) -> Side:
    def given(facts: Facts) -> str | None:
        target = facts.target
        if target is None or not is_wrong(target):
            return None
        return f"{marked('framework', target.framework)}, {marked('device', target.device)}"

    return given


_ON_A_CPU = Why("instances are processes on cores of a CPU of their own, on Linux", f"leave out {marked('instances')}")
_HOW_MANY = f"say how many processes your service has, e.g. {marked('instances', '2')}"
_COUNTED = Why(
    "it is counted over many shapes",
    f"give them with {marked('shapes')} or {marked('traffic')}; for one shape there is `recompiles`",
)
_NO_THROUGHPUT = Why("calls of many shapes hold different numbers of items", "use latency, p99 or total:CALLS")
_TRAFFICS_INPUTS = Why("results are compared on shapes of the traffic")

APART: tuple[tuple[Side, Side, Why], ...] = (
    (_given("shapes"), _given("traffic"), Why("give one of them", "a file has the shapes in it")),
    (_given("instances"), _given("on"), Why("instances share one machine")),
    *((_given("inputs"), _given(name), _TRAFFICS_INPUTS) for name in ("shapes", "traffic")),
    (_argument_of_traffic, _many_shapes, Why("the traffic says its sizes")),
    (
        _any_number,
        _many_shapes,
        Why(
            "which number is best is a question of throughput, which many shapes do not have",
            f"{_HOW_MANY}, and ask for its tail with {marked('objective', 'p99')}",
        ),
    ),
    *((_quantity("throughput"), _given(name), _NO_THROUGHPUT) for name in ("shapes", "traffic")),
    *((_quantity(name), _one_shape, _COUNTED) for name in ("compilations", "fallbacks")),
    (_any_number, _without("throughput"), Why("which number is best is a question of throughput", _HOW_MANY)),
    (_with_value("instances"), _targets(lambda target: target.device != "cpu" or not target.sets_cores), _ON_A_CPU),
)
"""Two things that do not go together, and why."""


def require_allowed(facts: Facts) -> None:
    """Raises InputError for the first combination that is refused."""
    for name, reasons in BY_WORK.items():
        why, given = reasons[facts.question.task], _side_of(name)(facts)
        if why is not None and given is not None:
            raise _refusal(given, marked("task", facts.question.task), why)
    for one, other, why in APART:
        first, second = one(facts), other(facts)
        if first is not None and second is not None:
            raise _refusal(first, second, why)


def _side_of(name: str) -> Side:
    return _SIDES.get(name, _given(name))


_SIDES: dict[str, Side] = {
    "ttft": _quantity("ttft"),
    "tpot": _quantity("tpot"),
    "target": _targets(lambda target: not target.generates),
}


def _refusal(first: str, second: str, why: Why) -> InputError:
    given = f"{first} and {second}" if second else first
    return InputError(f"{given}: {why.reason}", tip=why.tip)
