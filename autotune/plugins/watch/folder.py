"""What a folder holds that `watch` wrote: the documents of all processes, and of each model what they say together."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, ValidationError

from autotune import own_folders
from autotune.config import Scalar
from autotune.errors import InputError
from autotune.files import read_file
from autotune.plugins.watch.document import PROCESSES, UNWRITTEN, is_unwritten
from autotune.plugins.watch.recorder import SCHEMA
from autotune.schema import Record
from autotune.workload.workload import Device


class Layout(Record):
    """Calls of one shape, made in one state."""

    count: int
    signature: str
    sizes: tuple[tuple[int, ...], ...]
    grad: bool
    training: bool
    autocast: tuple[str, str] | None


class Kept(Record):
    """One call whose arguments were kept, in the order of the file."""

    signature: str
    sizes: tuple[tuple[int, ...], ...]


class Prompt(Record):
    """One text that was written."""

    ids: tuple[int, ...]
    batch: int
    new_tokens: int


class Optimizer(Record):
    """What steps."""

    kind: str
    """Its class, with the module's name."""
    settings: dict[str, Scalar | tuple[Scalar, ...]]
    """Arguments of the class, those of its largest group of weights."""
    num_groups: int
    has_all: bool
    """All weights that are trained are its own."""


class WatchedSteps(Record):
    """Training steps of one model."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    seen: int
    accumulated: int
    """Backward passes of a step."""
    calls: int
    """Calls of the model in a step."""
    own_loss: bool
    """The model returns it."""
    clip: tuple[Literal["norm", "value"], float] | None
    optimizer: Optimizer | None


class Model(Record):
    """One model in one process."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: Annotated[str, Field(pattern=r"^\w+$")]
    structure: str
    is_text: bool
    calls: int
    seconds: float
    first_s: float
    p50_s: float
    p99_s: float
    backward: int
    steps: WatchedSteps | None = None
    shapes: tuple[Layout, ...]
    kept: tuple[Kept, ...] = ()
    prompts: tuple[Prompt, ...] = ()
    files: dict[str, str]
    notes: tuple[str, ...]
    around: tuple[str, ...] = ()
    ranks: int = 1
    """Processes of the distributed job."""


class Process(Record):
    """What one process wrote."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_: int
    host: str
    pid: int
    seconds: float
    first_at: float
    """When its first call began, in seconds since 1970; `last_at`: when its last one ended."""
    last_at: float
    cores: tuple[int, ...]
    variables: dict[str, str]
    framework: Literal["torch", "mindspore"]
    release: str
    threads: int
    device: Device
    unrecorded: str | None = None
    """What to do so that calls record no gradients."""
    notes: tuple[str, ...]
    models: tuple[Model, ...]

    @property
    def place(self) -> tuple[str, int]:
        """What tells it from the others."""
        return self.host, self.pid


@dataclass(frozen=True)
class Watched:
    """One model in all processes that called it, the one with the most calls first."""

    folder: Path
    processes: tuple[Process, ...]
    models: tuple[Model, ...]
    share: float
    """Part of the time of all calls of all models."""

    @property
    def name(self) -> str:
        return self.models[0].name

    @property
    def one(self) -> str:
        """Its name, and what tells it from others of the name."""
        return f"{self.name}-{self.models[0].structure}"

    @property
    def calls(self) -> int:
        return sum(each.calls for each in self.models)

    @property
    def busy(self) -> float:
        """The share of the processes' time, from the first call to the last, that they spent in calls of models."""
        processes = {process.place: process for process in self.processes}.values()
        spent = sum(model.seconds for process in processes for model in process.models)
        return spent / max(sum(process.seconds for process in processes), 1e-9)

    @property
    def workers(self) -> tuple[Process, ...]:
        """The processes that made their part of the calls."""
        most = self.models[0].calls
        pairs = zip(self.processes, self.models, strict=True)
        return tuple({process.place: process for process, model in pairs if model.calls > most / 10}.values())

    @property
    def num_side_by_side(self) -> int:
        """The most workers of one machine that made their calls in the same time: not those of two runs, nor one that
        took the place of another."""
        own = [each for each in self.workers if each.host == self.processes[0].host]
        return max(sum(one.first_at <= each.first_at <= one.last_at for one in own) for each in own)

    def shapes(self) -> Counter[Layout]:
        """All layouts of calls, each with its number of calls."""
        found: Counter[Layout] = Counter()
        for model in self.models:
            for each in model.shapes:
                found[each.model_copy(update={"count": 0})] += each.count
        return found

    def notes(self) -> list[str]:
        """What could not be seen or kept, each once."""
        said = [note for model in self.models for note in model.notes]
        return list(dict.fromkeys([*said, *(note for process in self.processes for note in process.notes)]))

    def steps(self) -> WatchedSteps | None:
        """Those of the process that made the most of them."""
        return max((model.steps for model in self.models if model.steps), key=lambda each: each.seen, default=None)

    def saved(self) -> Model | None:
        """The model in the process whose files are taken, one with calls if there is one; None where none has a
        model's."""
        kept = [model for model in self.models if "model" in model.files]
        return next((model for model in kept if "calls" in model.files), kept[0] if kept else None)


def read(folder: Path) -> list[Watched]:
    """The models of a watched job, by their share of the time. Raises InputError where there are none."""
    names = own_folders.names_in(folder / PROCESSES)
    processes = [_process(folder / PROCESSES / name) for name in sorted(names) if name.endswith(".json")]
    found: dict[tuple[str, str, bool], list[tuple[Process, Model]]] = defaultdict(list)
    for process in processes:
        for model in process.models:
            found[model.name, model.structure, model.is_text].append((process, model))
    everything = sum(model.seconds for pairs in found.values() for _, model in pairs)
    watched = [_watched(folder, pairs, everything) for pairs in found.values()]
    if not watched and is_unwritten(folder):
        raise InputError(f"{folder}: {UNWRITTEN}", tip="watch the job again")
    if not watched:
        notes = "; ".join(dict.fromkeys(note for process in processes for note in process.notes))
        raise InputError(
            f"{folder}: no call of a model was seen" + (f": {notes}" if notes else ""),
            tip="a Python that is started with -I, -E or -S is not watched; calls of `model.forward`, and of "
            "what a compiler made of a model, are not seen: let the job call the model itself",
        )
    return sorted(watched, key=lambda one: -one.share)


def _watched(folder: Path, pairs: Sequence[tuple[Process, Model]], everything: float) -> Watched:
    ordered = sorted(pairs, key=lambda pair: -pair[1].calls)
    share = sum(model.seconds for _, model in pairs) / max(everything, 1e-9)
    return Watched(folder, tuple(each for each, _ in ordered), tuple(each for _, each in ordered), share)


def _process(path: Path) -> Process:
    try:
        content = json.loads(read_file(path))
        process = Process.model_validate({**content, "schema_": content.get("schema")})
    except (ValueError, ValidationError, AttributeError) as problem:
        raise InputError(f"{path} is no document of `watch`: {str(problem).splitlines()[0]}", tip="remove it") from None
    if process.schema_ != SCHEMA:
        raise InputError(f"{path} was written by another release", tip="watch the job again")
    return process
