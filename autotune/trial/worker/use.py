"""A longer use of the model than that of a trial: what a config that wins has to bear, as a job will use it.

A trial compares what a few calls give for inputs that nobody changes. A job makes calls without end: it keeps outputs
while it makes further ones, writes over its input buffer, makes views of outputs, and brings values that the example
does not show (`measure.hurting_inputs`). All of this is asked of finalists alone, once each, in the process of their
first block, after everything was timed (`Finalist`).

The untuned model is asked first (`Leader`), in its own process of that block: what it gives, and whether it takes such
inputs at all; what it does not take is no input, and is named. Its answers lie in a folder beside the reference, a file
for each kind of input, so that no process holds more than one of them. Its outcome is on disk by then, and each kind of
input is noted before it is tried: one that ends the process is not tried again.

docs/decisions/0101-used-as-a-job-uses-it.md has what is refused, what is only named, and the figures.
"""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from autotune.backends.outputs import Observed, observed
from autotune.backends.protocol import Backend
from autotune.errors import UnsuitableCallError, quoted
from autotune.files import write_whole
from autotune.measure import accuracy
from autotune.measure.agreement import Array, is_discrete, spread_of
from autotune.measure.hurting_inputs import Hurting, hurting_inputs
from autotune.measure.parts import Part
from autotune.measure.sketch import SUMS
from autotune.schema import Record
from autotune.trial.request import TrialRequest
from autotune.trial.worker.accuracy_check import OutputGate, Seen, WrongResultError, is_outside, unlike
from autotune.workload.arguments import Arguments

LONGEST_S, WAITS = 4.0, 3
"""The untuned model is asked for no further kind of input after so many seconds of its own CPU time, or `WAITS` times
as many where other programs take the processors; and so for its nudged calls. It makes four calls for each that a
finalist makes, so that a finalist's take about a second."""
MOST_ELEMENTS = 1 << 19
"""A larger output is compared by a sample for inputs that are not the author's: some slices along its longest axis."""
NUM_NUDGES = 2
_INDEX = "index.json"


def use_folder(request: TrialRequest) -> Path:
    """Where the untuned model's answers lie: beside the reference."""
    return Path(request.reference).with_name("use")


class InputAnswer(StrEnum):
    """What became of a kind of input with the untuned model."""

    TAKEN = "taken"
    REFUSED = "the untuned model does not take that, or gives another result each time"
    ENDS = "it ended the untuned model's process"
    LATE = "there was no time"


class TriedInput(Record):
    """A kind of input, and what became of it."""

    way: str
    changed: tuple[int, ...]
    """Places of the leaves that are others than the example's."""
    answer: InputAnswer


class Index(Record):
    """What is known of the untuned model's longer use."""

    tried: tuple[TriedInput, ...] = ()
    scattered: tuple[str, ...] = ()
    """Outputs that are not contiguous."""
    shared: tuple[str, ...] = ()
    """Outputs that lie in the same memory in each call."""
    overwritten: tuple[str, ...] = ()
    """Outputs that later calls change."""

    def with_one(self, way: Hurting, answer: InputAnswer) -> Index:
        """One kind of input more."""
        return self.model_copy(
            update={"tried": (*self.tried, TriedInput(way=way.way, changed=way.changed, answer=answer))}
        )

    def taken(self) -> list[tuple[int, TriedInput]]:
        """With their places, by which their files are named."""
        return [(number, tried) for number, tried in enumerate(self.tried) if tried.answer is InputAnswer.TAKEN]


@dataclass(frozen=True)
class InUse:
    """What is used, and how: `call` calls a step with some of the subject's inputs, which are the example, others, and
    the example again."""

    backend: Backend
    gate: OutputGate
    framework: str
    inputs: Sequence[Arguments]
    call: Callable[[Any, Arguments], Any]
    folder: Path
    tolerance: float
    has_layouts: bool = True
    """Outputs lie in memory as the model's code lays them out."""
    takes_others: bool = True
    """Inputs that nobody meant may be given."""

    @property
    def example(self) -> Arguments:
        return self.inputs[0]

    @property
    def file(self) -> Path:
        """The index's."""
        return self.folder / _INDEX

    def observed(self, step: Any, inputs: Arguments) -> Observed:
        whole = self.gate.authors is not None
        return observed(self.backend, self.call(step, inputs), inputs=inputs, reads=True, holds=True, whole=whole)

    def hurting(self, only: TriedInput | None = None) -> Iterator[Hurting]:
        """The kinds of inputs, or one that was tried, made once more."""
        values = [self._value(leaf) for leaf in self.example.leaves()]
        for one in hurting_inputs(values, None if only is None else only.way) if self.takes_others else ():
            if only is None:
                yield one
            else:
                yield from (each for each in (one, *one.alone(values)) if each.changed == only.changed)

    def parted(self, hurting: Hurting) -> Iterator[Hurting]:
        """With one of its changes each."""
        return hurting.alone([self._value(leaf) for leaf in self.example.leaves()])

    def copied(self, inputs: Arguments, values: Sequence[Any] | None = None) -> Arguments:
        """With tensors of their own, and perhaps other values. One tensor that is there twice stays one."""
        made: dict[int, Any] = {}
        leaves = inputs.leaves()
        others = [self._value(leaf) for leaf in leaves] if values is None else values
        kept = []
        for leaf, value in zip(leaves, others, strict=True):
            if isinstance(value, np.ndarray):
                if id(leaf) not in made:
                    made[id(leaf)] = self.backend.place(self.backend.like(value, leaf))
                kept.append(made[id(leaf)])
            else:
                kept.append(leaf if value is None else value)
        return inputs.with_leaves(kept)

    def name(self, what: TriedInput | Hurting) -> str:
        """With the inputs that it changes: `a mask with holes (attention_mask)`."""
        return f"{what.way} ({', '.join(sorted(self.names_of(what)))})"

    def names_of(self, what: TriedInput | Hurting) -> set[str]:
        names = [name for name, _ in self.example.named_leaves()]
        return {names[place] for place in what.changed}

    def sampled(self, seen: Observed) -> Observed:
        """With no more of each part than is compared, and a sentence for each of which that is a sample. An author's
        word is about whole outputs."""
        if self.gate.authors is not None:
            return Observed(seen.parts)
        large = [part.name for part in seen.parts if part.array.size > MOST_ELEMENTS]
        said = [f"of {name} a sample was compared for inputs that are not the author's" for name in large]
        return Observed([_sampled(part) for part in seen.parts], said)

    def answer_file(self, number: int) -> Path:
        return self.folder / f"{number}.npz"

    def read(self, number: int) -> Seen:
        """What the untuned model gave for one kind of input."""
        return self.gate.unpacked(accuracy.load_reference(self.answer_file(number)))

    def save(self, number: int, seen: Seen) -> None:
        accuracy.save_reference(self.answer_file(number), self.gate.packed(seen))

    def _value(self, leaf: Any) -> Any:
        """As `hurting_inputs` takes it."""
        if isinstance(leaf, (bool, int, float)):
            return leaf
        return self.backend.to_array(leaf) if self.backend.opened(leaf) is None else None


class _Held:
    """What a call gave, kept as a job keeps it."""

    def __init__(self, backend: Backend, seen: Observed) -> None:
        self._backend = backend
        self.tensors = seen.tensors
        self._digests = self._now()

    def changed(self) -> list[str]:
        """What is other than it was."""
        now = self._now()
        return [name for name, digest in self._digests.items() if now[name] != digest]

    def scattered(self) -> list[str]:
        return [name for name, tensor in self.tensors.items() if not self._backend.is_contiguous(tensor)]

    def shared_with(self, other: _Held) -> list[str]:
        """What lies where the other call's lies."""
        places = {name: self._backend.address(tensor) for name, tensor in other.tensors.items()}
        here = ((name, self._backend.address(tensor)) for name, tensor in self.tensors.items())
        return [name for name, place in here if place is not None and places.get(name) == place]

    def _now(self) -> dict[str, object]:
        return {name: self._backend.content(tensor) for name, tensor in self.tensors.items()}


Call = Callable[[Any, Arguments, str], Observed]
"""Makes one call, in a way that a message can name."""


class _Lived:
    """A later call, one with the same values in other memory, and one with other values there: what shows of outputs
    that are kept meanwhile."""

    def __init__(self, usage: InUse, call: Call, step: Any, compare: Callable[[Observed, int, str], None]) -> None:
        buffers = usage.copied(usage.example)
        way = "in a later call"
        self.first = call(step, usage.example, way)
        compare(self.first, 0, way)
        self._held = [_Held(usage.backend, self.first)]
        way = "with the same values in other memory"
        seen = call(step, buffers, way)
        compare(seen, 0, way)
        self._held.append(_Held(usage.backend, seen))
        number, way = _refilled(usage, buffers), "with an input that was filled again"
        self.is_refilled = number is not None
        if number is not None:
            compare(call(step, buffers, way), number, way)

    @property
    def scattered(self) -> tuple[str, ...]:
        return tuple(self._held[0].scattered())

    @property
    def shared(self) -> tuple[str, ...]:
        return tuple(self._held[1].shared_with(self._held[0]))

    def overwritten(self) -> tuple[str, ...]:
        """By the calls until now."""
        return tuple(dict.fromkeys(name for held in self._held for name in held.changed()))


def _refilled(usage: InUse, buffers: Arguments) -> int | None:
    """Write other inputs of the same shapes into the buffers: their place among the subject's; None for none."""
    backend, leaves = usage.backend, buffers.leaves()
    for number, other in enumerate(usage.inputs[:-1]):
        pairs = list(zip(leaves, other.leaves(), strict=False))
        is_alike = len(other.leaves()) == len(leaves) and all(_may_replace(backend, *pair) for pair in pairs)
        if other is usage.example or not is_alike:
            continue
        arrays = ((leaf, backend.to_array(given)) for leaf, given in pairs if backend.spec(leaf) is not None)
        if all(array is not None and backend.refill(leaf, array) for leaf, array in arrays):
            return number
    return None


def _may_replace(backend: Backend, leaf: Any, given: Any) -> bool:
    spec = backend.spec(leaf)
    return spec == backend.spec(given) and (spec is not None or leaf is given or leaf == given)


class Leader:
    """The untuned model, whose answers are written."""

    def __init__(self, usage: InUse) -> None:
        self._usage = usage

    def lead(self, step: Any, nudge: Callable[[float], object]) -> None:
        """Write what it gives, unless that is there. `nudge` changes the model's weights, at the end."""
        usage = self._usage
        if usage.file.exists():
            return
        usage.folder.mkdir(parents=True, exist_ok=True)
        lived = _Lived(usage, lambda step, inputs, _: usage.observed(step, inputs), step, lambda *_: None)
        index = Index(scattered=lived.scattered, shared=lived.shared, overwritten=lived.overwritten())
        spent, left = _Spent(), deque(usage.hurting())
        while left:
            hurting = left.popleft()
            if spent.is_all:
                index = index.with_one(hurting, InputAnswer.LATE)
                continue
            write_whole(usage.file, index.with_one(hurting, InputAnswer.ENDS).model_dump_json())
            seen = self._asked(step, hurting, lived.first)
            if seen is None and len(hurting.changed) > 1:
                left.extendleft(usage.parted(hurting))
                continue
            if seen is not None:
                usage.save(len(index.tried), seen)
            index = index.with_one(hurting, InputAnswer.REFUSED if seen is None else InputAnswer.TAKEN)
        write_whole(usage.file, index.model_dump_json())
        self._complete(index, step, nudge)

    def _asked(self, step: Any, hurting: Hurting, example: Observed) -> Seen | None:
        """What it gives; None for what is no input of it."""
        usage = self._usage
        try:
            seen, again = (usage.observed(step, usage.copied(usage.example, hurting.values)) for _ in range(2))
            both = Seen([seen, again], [], framework=usage.framework)
            if usage.gate.why_unlike(both, usage.tolerance) is not None:
                return None
        except Exception:  # Whatever the author's code raises for inputs that nobody meant.
            traceback.print_exc()
            return None
        if not hurting.spoils and is_outside(seen.parts, example.parts):
            return None
        return replace(both, calls=[usage.sampled(seen)], ignored=unlike(both))

    def _complete(self, index: Index, step: Any, nudge: Callable[[float], object]) -> None:
        """Add how far nudged weights and inputs move each answer. Discrete outputs that they move are not compared:
        which of two alike is taken is chance then."""
        usage, share = self._usage, accuracy.NUDGE * self._usage.tolerance
        moved: dict[int, list[Observed]] = {number: [] for number, _ in index.taken()}
        spent = _Spent()
        for _ in range(NUM_NUDGES):
            nudge(share)
            for number, tried in index.taken():
                if not spent.is_all:
                    (hurting,) = usage.hurting(tried)
                    inputs = usage.copied(usage.example, hurting.values)
                    if not hurting.ties:
                        inputs = inputs.with_leaves([usage.backend.nudge(leaf, share) for leaf in inputs.leaves()])
                    moved[number].append(usage.sampled(usage.observed(step, inputs)))
        for number, calls in moved.items():
            usage.save(number, _completed(usage.read(number), calls))


class _Spent:
    """The time that the untuned model has had."""

    def __init__(self) -> None:
        self._begun = time.process_time(), time.monotonic()

    @property
    def is_all(self) -> bool:
        cpu_s, begun_s = self._begun
        return time.process_time() - cpu_s > LONGEST_S or time.monotonic() - begun_s > WAITS * LONGEST_S


def _completed(seen: Seen, nudged: Sequence[Observed]) -> Seen:
    """With the spreads that nudged calls show."""
    others = [{part.name: part.array for part in call.parts} for call in nudged]
    spreads, jumping = [], set()
    for part in seen.calls[0].parts:
        arrays = [each[part.name] for each in others if part.name in each]
        spreads.append(spread_of(part.array, arrays, part.step))
        if any(is_discrete(part.array, array) and not np.array_equal(part.array, array) for array in arrays):
            jumping.add(part.name)
    return replace(seen, spreads=[spreads], ignored=seen.ignored | jumping)


class Finalist:
    """A config that may win. Raises WrongResultError where it is not what the untuned model is."""

    def __init__(self, usage: InUse, reference: Seen, *, keeps_nan: bool) -> None:
        self._usage = usage
        self._reference = reference
        self._keeps_nan = keeps_nan
        self._said: dict[str, None] = {}
        self.varied: set[str] = set()
        """Names of inputs that were given other values."""

    @property
    def said(self) -> tuple[str, ...]:
        """What was not looked at, or only in part, each as a sentence."""
        return tuple(self._said)

    def require(self, step: Any) -> None:
        usage = self._usage
        lived = _Lived(usage, self._seen, step, self._require_authors)
        if not lived.is_refilled:
            self._say("no input buffer was filled again: there are no further inputs of the example's shape")
        if not usage.file.exists():
            self._say("the untuned model was not asked about inputs that are chosen to hurt")
            return
        index = Index.model_validate_json(usage.file.read_bytes())
        self._require_ways(index, lived)
        for number, tried in index.taken():
            try:
                self._require_taken(usage.read(number), step, tried)
            except UnsuitableCallError:
                self._say(f"calls with {usage.name(tried)} are made untuned in a job")
        self._require_kept(index, lived)
        for answer in (InputAnswer.REFUSED, InputAnswer.ENDS, InputAnswer.LATE):
            names = [usage.name(tried) for tried in index.tried if tried.answer is answer]
            if names:
                self._say(f"not tried: {', '.join(names)}: {answer.value}")

    def _require_taken(self, reference: Seen, step: Any, tried: TriedInput) -> None:
        usage, expected = self._usage, reference.calls[0]
        (hurting,), way = usage.hurting(tried), f"with {usage.name(tried)}"
        seen = usage.sampled(self._seen(step, usage.copied(usage.example, hurting.values), way))
        for name in seen.not_compared:
            self._say(name)
        if _has_sums(seen) and not _has_sums(expected):
            self._say(f"not tried: {way}: an earlier release wrote what the untuned model gives")
            return
        if hurting.spoils and not self._keeps_nan:
            seen, is_lost = _with_nan_of(expected, seen)
            if is_lost:
                self._say(f"{way} this config gives numbers where the untuned model gives NaN")
        if hurting.ties and not _are_equal(expected, seen):
            reference = replace(reference, ignored=reference.ignored | _discrete(expected))
        self._require_same(reference, seen, way)
        if not hurting.spoils:
            self.varied |= usage.names_of(tried)

    def _require_authors(self, seen: Observed, number: int, way: str) -> None:
        """As the reference has it for one of the author's inputs."""
        reference = self._reference
        spreads = reference.spreads[number : number + 1]
        self._require_same(replace(reference, calls=[reference.calls[number]], left=[], spreads=spreads), seen, way)

    def _require_same(self, expected: Seen, seen: Observed, way: str) -> None:
        got = Seen([seen], [], framework=self._usage.framework)
        self._usage.gate.errors(expected, got, self._usage.tolerance, f"in a longer use, {way}")

    def _require_ways(self, index: Index, lived: _Lived) -> None:
        self._require_kept(index, lived)
        faults = (
            (lived.shared, index.shared, "lies in the same memory in each call: what a job does to it is done to all"),
            (lived.scattered, index.scattered, "is not contiguous: `view`, which a job may call on it, raises"),
        )
        for found, expected, what in faults if self._usage.has_layouts else ():
            self._refuse(set(found) - set(expected), what)

    def _require_kept(self, index: Index, lived: _Lived) -> None:
        self._refuse(set(lived.overwritten()) - set(index.overwritten), "was held, and is changed by later calls")

    def _refuse(self, names: set[str], what: str) -> None:
        """Raises WrongResultError for the first output that the author has compared."""
        for name in sorted(names):
            if not self._usage.gate.leaves_out(name):
                raise WrongResultError(
                    f"in a longer use, {name} {what}, and the untuned model's is not like that (`compare` may leave "
                    "it out)",
                    float("inf"),
                )

    def _seen(self, step: Any, inputs: Arguments, way: str) -> Observed:
        """What a call gives. Raises WrongResultError where it raises, and UnsuitableCallError where a job makes such
        calls untuned."""
        try:
            return self._usage.observed(step, inputs)
        except (UnsuitableCallError, MemoryError):
            raise
        except Exception as error:
            raise WrongResultError(
                f"in a longer use, {way}, the call raises {quoted(error)}, and the untuned model's does not",
                float("inf"),
            ) from error

    def _say(self, sentence: str) -> None:
        self._said[sentence] = None


def _sampled(part: Part) -> Part:
    if part.array.size <= MOST_ELEMENTS:
        return part
    axis = int(np.argmax(part.array.shape))
    every = -(-part.array.size // MOST_ELEMENTS)
    return replace(part, array=part.array.take(range(0, part.array.shape[axis], every), axis))


def _has_sums(seen: Observed) -> bool:
    return any(part.name.endswith(SUMS) for part in seen.parts)


def _with_nan_of(expected: Observed, seen: Observed) -> tuple[Observed, bool]:
    """With NaN where the untuned model gives it, and whether a number was there."""
    others = {part.name: part.array for part in expected.parts}
    lost = {part.name: _lost(others.get(part.name), part.array) for part in seen.parts}
    parts = [
        part if (places := lost[part.name]) is None else replace(part, array=np.where(places, np.nan, part.array))
        for part in seen.parts
    ]
    return replace(seen, parts=parts), any(places is not None for places in lost.values())


def _lost(expected: Array | None, array: Array) -> Array | None:
    """Where there is a number in place of NaN; None for nowhere."""
    if expected is None or expected.shape != array.shape or expected.dtype.kind != "f" or array.dtype.kind != "f":
        return None
    places = np.isnan(expected) & ~np.isnan(array)
    return places if places.any() else None


def _are_equal(expected: Observed, seen: Observed) -> bool:
    """All floats are the same to the last bit: no rounding decides between equal values then."""
    others = {part.name: part.array for part in seen.parts}
    floats = [part for part in expected.parts if part.array.dtype.kind in "fc"]
    return all(np.array_equal(part.array, others.get(part.name, ()), equal_nan=True) for part in floats)


def _discrete(seen: Observed) -> frozenset[str]:
    return frozenset(part.name for part in seen.parts if part.is_tensor and part.array.dtype.kind not in "fc")
