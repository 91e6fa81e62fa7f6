"""What a framework may offer beyond `Backend`: small protocols, each an attribute of the backend.

A backend that lacks one leaves the attribute at its default. The knobs that need it are then not searched, and a config
that sets one of them is invalid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from numpy.typing import NDArray

from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import InvalidConfigError, UnsuitableCallError
from autotune.measure.diagnosis import BreakKind, Compilations
from autotune.measure.sampling import Clock
from autotune.workload.arguments import Arguments
from autotune.workload.workload import Device

Capability = TypeVar("Capability")
Built = TypeVar("Built")


USUAL_LEARNING_RATE = 5e-5
"""Learning rate of `Training.usual_optimizer`: what Hugging Face's Trainer takes."""


def require(capability: Capability | None, what: str) -> Capability:
    """The capability. Raises InvalidConfigError for a backend without it; `what` is what it was needed for."""
    if capability is None:
        raise InvalidConfigError(f"{what}: this framework's backend does not offer it")
    return capability


class Updates:
    """When a training step updates the weights: at each call, or after `accumulate` calls by the mean of their
    gradients. A tuned step and the untuned one share it, since one may take over from the other within a group."""

    def __init__(self, accumulate: int = 1, clip_grad_norm: float | None = None) -> None:
        """`clip_grad_norm`: the norm of all gradients together that an update has at most; None: whatever it is."""
        self.accumulate = accumulate
        self.clip_grad_norm = clip_grad_norm
        self.num_made = 0
        """Calls of the group that is not complete yet: their gradients are there."""
        self.has_updated = False
        """The latest call, or `flush`, updated the weights."""
        self.held: Any = None
        """The sum of the gradients so far, where a backend has no place of its own for it."""
        self.update: Callable[[], object] = lambda: None
        """Updates the weights by the gradients that are there. Set by the step."""

    @property
    def are_plain(self) -> bool:
        """The optimizer steps at each call, by the gradients as they are."""
        return self.accumulate == 1 and self.clip_grad_norm is None

    def note_call(self) -> bool:
        """The gradients of one more call are there. Whether they complete the group, and the weights are updated."""
        self.num_made += 1
        self.has_updated = self.num_made == self.accumulate
        return self.has_updated

    def flush(self) -> None:
        """Update the weights by the mean gradients of an incomplete group, if one was begun."""
        self.has_updated = self.num_made > 0
        if self.has_updated:
            self.update()


class Training(Protocol):
    """Training steps: task `train`."""

    def check_optimizer(self, optimizer: Any) -> str | None:
        """Why no config can be applied to a step by `optimizer`, as for one that is none of this framework's, else
        None. An untuned step takes what it can: a job's optimizers are wrapped in many ways."""

    def usual_optimizer(self, model: Any) -> Any:
        """What a step takes where its author names no optimizer: AdamW, for all weights that are not frozen."""

    def set_training(self, model: Any) -> None:
        """Put a model that is in evaluation mode as a whole into training mode; one that is not is left as it is."""

    def training_step(
        self,
        model: Any,
        loss: Callable[..., Any],
        optimizer: Any,
        config: Config,
        changes: UndoLog,
        *,
        updates: Updates | None = None,
    ) -> Callable[..., Any]:
        """A function that takes one training step under `config` and returns the loss, a scalar tensor.

        It is called with what `loss` takes after the model: it computes `loss(model, ...)` and its gradients, and lets
        the optimizer change the weights; with `updates` when and how these say, which it keeps count of. What a config
        sets is noted as in `Backend.compile`, which raises the same.
        A job makes no step twice: an exception that the tuned code caused carries how the step comes to its end untuned
        (`errors.finish_by`). Without that the job gets it, and its later steps are untuned.
        """

    def of_calls(self, config: Config) -> Config:
        """What of a step's config is for the model's calls: all but what surrounds model and loss together."""

    def calls_as_compiled(self, config: Config) -> bool:
        """Whether a training step under `config` calls the very model that `Backend.compile` gives for `of_calls` of
        it, so that the gradients which a trial compared are those of that model's calls."""

    def unlike_the_step(self, model: Any, config: Config) -> Callable[[], UnsuitableCallError | None]:
        """Asked before a call of the model: why it is not surrounded as in a step under `config`; None where it is."""

    def draws_as_uncompiled(self, config: Config) -> bool:
        """Whether the config has compiled code draw what uncompiled code draws from the same seed."""

    @property
    def draw_as_uncompiled(self) -> Callable[[], None] | None:
        """Has the compiler draw them so in all of this process, whatever the config. None: it cannot be told to."""

    @property
    def silence(self) -> Callable[[Any], Callable[[], None]] | None:
        """Has the dropout layers of a model pass on what they are given; returns what puts them back. None: steps are
        compared as `draw_as_uncompiled` has them."""

    def trained(self, optimizer: Any) -> Sequence[Any]:
        """What the optimizer trains: the tensors themselves."""

    def begun_with(self, model: Any, optimizer: Any) -> Sequence[Any]:
        """What is put back before a step is taken again: weights, buffers, and moments where these tell gradients."""

    def held(self, model: Any, optimizer: Any) -> Sequence[Any]:
        """What a step changes: the weights, the model's buffers and what the optimizer holds by now."""

    def copies(self, tensors: Iterable[Any]) -> list[Any]:
        """Copies of tensors, where they lie: for `write` and `rms`."""

    def write(self, tensors: Iterable[Any], values: Iterable[Any]) -> None:
        """Give values to tensors of a model or its optimizer, in place: arrays, copies, or other tensors."""

    def rms(self, tensor: Any, copy: Any = None) -> float:
        """Root mean square of what a tensor differs by from a copy, or of its elements: computed where it lies."""

    def gradients(self, optimizer: Any) -> Sequence[Any]:
        """The gradients of the last step, which the next one may write to; where a framework does not keep them, what
        the optimizer made of them, such as its moments. Their number and order are those of the optimizer, whatever the
        config. None for a weight without a gradient, which the optimizer passes by: zeros are something else."""


Phase = Literal["prefill", "decode"]
"""A call of a generating model: with a whole prompt, or with one token and what is known of those before."""


class GenerationGuard(Protocol):
    """Whoever answers for the calls of a model that generates under a config."""

    def refused(self, error: UnsuitableCallError, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call that is not tuned. Nothing of it was run."""

    def first(self, phase: Phase, tuned: Callable[[], Any], kwargs: dict[str, Any]) -> tuple[Any, bool]:
        """The result of a program's first call, which is made with `kwargs`, whose cache it changes; and whether what
        is known of the program now is enough, or the next call is looked at, too."""

    def after(self, error: Exception, phase: Phase, kwargs: dict[str, Any]) -> Any:
        """The result of a call that failed; its cache is as it was before."""


class Generating(Protocol):
    """A model that generates under a config."""

    num_calls: dict[str, int]
    """Calls of the model by where they went: `prefill`, `decode`, `untuned`."""

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """A call of the model."""

    def stand_in(self, call: Callable[..., Any], changes: UndoLog) -> Any:
        """What a job holds in place of its model; calls of it go to `call`: `Generating.call`, or what leads to it."""

    def leave(self) -> None:
        """From now on all calls are the model's own."""


class Generates(Protocol):
    """Has a job's model generate under a config."""

    def __call__(
        self,
        model: Any,
        config: Config,
        changes: UndoLog,
        *,
        longest: int | None = None,
        guard: GenerationGuard | None = None,
    ) -> Generating:
        """`longest`: tokens of the longest text that the config was measured with. Raises InvalidConfigError."""


@dataclass(frozen=True)
class Continuation:
    """What a model made of a prompt."""

    tokens: NDArray[Any]
    """(batch, new tokens)."""
    first_s: float
    """Seconds until the first of these tokens was there."""
    last_s: float
    """Seconds until the last of these tokens was there."""
    logits: NDArray[Any] | None = None
    """(new tokens, batch, vocabulary): what each was chosen by, as float32; None: not asked for."""


class Generation(Protocol):
    """Text generation: task `generate`."""

    def check_generating(self, model: Any) -> str | None:
        """A sentence if `model` is none that generates text, else None."""

    def offers(self, model: Any) -> tuple[str, ...]:
        """What can be tuned in the steps of a model, as needs of a search space (`space.schema.Need`); empty where they
        cannot be, whatever the model's library may do by itself."""

    def tune_generation(self, model: Any, config: Config, changes: UndoLog, *, longest: int) -> None:
        """Have the model generate under `config`, in place: from now on prefill, decode and cache are what it says.
        `longest`: tokens of the longest text, its prompt included. Raises InvalidConfigError, as `Backend.compile`."""

    def prompt(self, model: Any, tokens: int | Sequence[int], batch: int, seed: int) -> Any:
        """So many seeded random tokens, or these, as what the model is given."""

    def draw(self, model: Any, shape: tuple[int, ...], seed: int) -> NDArray[Any]:
        """Seeded random tokens, none of which ends or begins a text."""

    def generate(
        self,
        model: Any,
        tokens: Any,
        new_tokens: int,
        *,
        forced: NDArray[Any] | None = None,
        with_logits: bool = False,
    ) -> Continuation:
        """Continue a prompt greedily by so many tokens, whatever they are; by `forced`, (batch, new tokens), if any."""

    def buckets(self, config: Config) -> tuple[int, ...]:
        """The multiples to which a config rounds lengths up; none where it leaves them as they are."""


class Ranks(Protocol):
    """The ranks (processes) of a distributed job of which this process is one, and notes that all of them can read.

    No communicator of the job has a part in it, and nothing here waits for another rank.
    """

    rank: int
    """This process's."""
    num_ranks: int
    timeout_s: float | None
    """Seconds after which the job's own collectives fail; None: not known."""
    kept: dict[Any, Any]
    """What is kept of these ranks in this process for as long as they are together: as long as there is one object."""

    @property
    def first_of_host(self) -> int | None:
        """The lowest rank on this host; None: not known, or this is the only one here."""

    def write(self, name: str, text: str) -> None:
        """Leave a note under a name that no other rank uses, in place of an earlier one."""

    def are_written(self, names: Sequence[str]) -> bool:
        """Whether there are notes under all of these names."""

    def read(self, name: str) -> str:
        """A note that is there."""

    def settle(self, name: str, text: str) -> None:
        """Leave a note, unless another rank was first."""


class Rehearse(Protocol):
    """A first forward and backward pass of what a job is about to call."""

    def __call__(
        self,
        model: Any,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        turn: AbstractContextManager[None],
    ) -> None:
        """Make one call, and where it records gradients the backward pass of it. Then weights, gradients, buffers,
        attributes, arguments and generators of random numbers are as before, and an optimizer has taken no step.

        `call` is what the job has of `compile` or `training_step`, or a wrapper of distributed training around it, none
        of whose ranks are synchronised by it. Within `turn` the ranks of a host come one after the other: it is entered
        unless the model is known to wait for other ranks in its calls.
        """


@dataclass(frozen=True)
class VaryingAxis:
    """An axis of an argument whose size differs from call to call. None: any size."""

    leaf: int
    """Place in `Arguments.leaves`."""
    axis: int
    smallest: int | None = None
    largest: int | None = None


class ShapeStrategies(Protocol):
    """Calls of many shapes: knob `shapes`."""

    def marker(
        self, model: Any, changes: UndoLog
    ) -> Callable[[Arguments, Sequence[VaryingAxis]], AbstractContextManager[None]]:
        """A context for each call of what `compile` gave for `model`: from the first one on the compiler takes the
        sizes of these axes as open. A size that it cannot take so, such as a 1, it may still take as fixed. The job's
        tensors are as they were when it is left."""

    def uncompiled(self) -> AbstractContextManager[Any]:
        """Within: what `compile` gave runs as it is written, in its precision and formats, and nothing is compiled."""

    def pad(self, tensor: Any, axis: int, size: int, fill: float) -> Any:
        """A tensor that is longer along an axis, with `fill` appended, in the same type and on the same device."""

    def cut(self, tensor: Any, axis: int, start: int, stop: int) -> Any:
        """The part from `start` to `stop` along an axis."""

    def compilations(self, model: Any, config: Config) -> Compilations | None:
        """How often the compiler was at work so far, cheaply; asked after `compile` and after each call of a stream of
        shapes. None: it does not tell."""


class ModelCopy(Protocol):
    """Copies of a model's modules, for what has to rewrite modules: the job's own stay as they are."""

    @property
    def model(self) -> Any:
        """The copy. It has the weights of the original: the same tensors, not equal ones."""

    def around(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """`step`, which calls the rewritten copy. What a call sets in the copy's attributes is brought back to the
        original's. Raises UnsuitableCallError for a call in which the copy is not what the original has become."""


class Regions(Protocol):
    """The modules of a model, compiled or replaced one by one: knobs `region` and `variant.*`."""

    rewrites: bool
    """`compile` rewrites modules for a config with a region: it has to be given a copy of them."""

    def modules(self, model: Any) -> Mapping[str, Any]:
        """Every module of a model by its dotted path, in the framework's order; the model itself by the empty one."""

    def check_region(self, model: Any, region: str) -> None:
        """Raises InvalidConfigError for a region (see `workload.regions`) that cannot be compiled in this model."""

    def copy_modules(self, model: Any) -> ModelCopy:
        """What variants, and `compile` where `rewrites` is set, may rewrite in place of `model`."""


class CompileCache(Protocol):
    """Compile caches that can be shipped with a tuned config."""

    def use(self, folder: Path, key: str) -> AbstractContextManager[Any]:
        """Within: what is compiled is taken from the caches in `folder`, or else added to them; then all is as before.

        `key` is a text for all that the compiled code depends on. The folder must stay for as long as the code is used.
        """

    def build_tools(self) -> dict[str, str]:
        """Compilers and packages besides the framework that decide what the compiled code is -> their versions."""


class SharedKernels(Protocol):
    """What a compiler lets a C++ compiler make of its code, found by name in what earlier trials left."""

    def __call__(
        self, folder: Path, num_threads: int, clock: Clock, spare: Callable[[float], object]
    ) -> AbstractContextManager[Any]:
        """Within: what the folder has is not made again, and what is made is added, with its seconds by `clock`.

        `spare` is told the seconds that something found had taken. So many threads (or processes) compile at a time. A
        release whose compiler cannot be followed compiles as before.
        """


class AnsweredProbes(Protocol):
    """What a compiler asks of the machine in each process, answered by the toolchain's program."""

    def __call__(self, toolchain: Path, spare: Callable[[float], object]) -> AbstractContextManager[Any]:
        """Within: the answers in the toolchain's folder are taken. `spare` is told the seconds that each would take;
        what has no answer there is asked as before."""


class CompilersAhead(Protocol):
    """Processes in which a compiler makes the code of an accelerator."""

    def __call__(self, config: Config, clock: Clock) -> Callable[[], float] | None:
        """Begin those that compiling this config will use, before anything opens the device's driver, and do not wait
        for them. What tells the seconds, at most, that a compile which begins now is spared by that; None: it will use
        none."""


class ImportedAhead(Protocol):
    """A compiler that a fork server has imported, which a first call would import otherwise; and modules of the model,
    which building it would."""

    seconds: float
    """Processor time that the import took."""
    resident_bytes: int
    """By which the process grew with the compiler."""
    model_bytes: int
    """By which it grew with what the model imports."""

    def adopt(self, cache: str) -> None:
        """In a fork: what the import kept of folders (for temporary files, caches, the working folder) are those of
        now. `cache` is the folder of `Backend.cache_variables`."""


class BuiltOnce(Protocol):
    """A model that is built in a process which is forked afterwards."""

    def __call__(self, device: Device, build: Callable[[], Built]) -> tuple[Built, Callable[[], None]]:
        """What `build` gives on the host, and what a fork calls before it uses that, after `Runtime.prepare` for this
        device: random numbers go on where the build has left them, and the process has its threads again. Raises
        MissingDeviceError before it builds, SetupError where a fork would lack something, such as a driver that the
        build has begun, and whatever `build` raises."""


class Profiler(Protocol):
    """The framework's profiler, for what graph breaks cost."""

    def __call__(self, call: Callable[[], None], num_calls: int) -> dict[str, float]:
        """Place of a graph break -> seconds of a call outside of compiled code for its sake, over `num_calls` calls;
        `EVERYWHERE` stands for all places where the framework does not tell them apart. Only what could be told is
        there. Called last: a profiler may leave the process slower than it was.
        """


class Fingerprint(Protocol):
    """A digest of the compiled program: configs that come to the same program are measured once."""

    def __call__(self, model: Any, config: Config) -> str | None:
        """A digest of the emitted code, and of the settings under which it runs as read back in the process.

        Called after the first calls, in the folder of `cache_variables`. Equal digests must mean equal speed, so what
        cannot be read back goes in as it was asked for; None where the emitted code cannot be had.
        """


class BreakCapture(Protocol):
    """Settings that take graph breaks out: fixes of the doctor."""

    def __call__(self, kind: BreakKind, changes: UndoLog) -> None:
        """Before `compile`: let the compiler capture code of this kind, which it breaks at by default. Nothing happens
        where the framework has no safe way (`Reports.CAPTURABLE` lists the kinds that have one)."""


class ModelProxies(Protocol):
    """What a job holds in place of its model."""

    def proxy(
        self, model: Any, step: Any, call: Callable[..., Any], changes: UndoLog, method: str | None = None
    ) -> Any:
        """A model of the same class, with the same parameters under the same names, whose calls go to `call`; a
        function for the model of a function. `step` is what `compile` gave for the model, or the model. With a `method`
        calls of that go to `call`, and those of the model stay."""

    def original(self, model: Any) -> Any:
        """The model behind its proxy; the very same object for any other."""

    def direct(self, step: Any) -> Callable[..., Any]:
        """Calls what `compile` gave, or the model, also once a job's calls of it go to a proxy."""


class CallsFile(Protocol):
    """Real calls of a model in a file."""

    def read(self, path: Path) -> list[Arguments]:
        """The calls, whose tensors are on the CPU. Runs no code of the file. Raises InputError."""


class ComponentWatch(Protocol):
    """The modules that the call of a pipeline calls."""

    def __call__(
        self, model: Any, begun: Callable[[str, Any, Arguments], None], ended: Callable[[str], None]
    ) -> Callable[[], None]:
        """Tell of each call of a module that is called by none of the others: its path from what holds it, the module
        and the arguments, and when the call ended. Returns what ends the telling."""


class SketchOnDevice(Protocol):
    """What is kept of a large tensor to compare it by, made where the tensor lies."""

    def __call__(self, value: Any) -> Mapping[str, NDArray[Any]] | None:
        """See `measure.sketch.sketch_of`. None for what is kept whole, and for what is no tensor."""


class PlainCalls:
    """See `ModelProxies`. For a framework whose models are plain callables: the job holds the function itself."""

    def proxy(
        self, model: Any, step: Any, call: Callable[..., Any], changes: UndoLog, method: str | None = None
    ) -> Any:
        return call

    def original(self, model: Any) -> Any:
        return model

    def direct(self, step: Any) -> Callable[..., Any]:
        called: Callable[..., Any] = step
        return called


class Offers(Protocol):
    """Each capability, and None, or what does nothing, where a framework has none."""

    training: Training | None = None
    generates: Generates | None = None
    generation: Generation | None = None
    shapes: ShapeStrategies | None = None
    regions: Regions | None = None
    compile_cache: CompileCache | None = None
    shared_kernels: SharedKernels | None = None
    answered_probes: AnsweredProbes | None = None
    begin_compilers: CompilersAhead | None = None
    built_once: BuiltOnce | None = None
    sketch: SketchOnDevice | None = None
    profile: Profiler | None = None
    program: Fingerprint | None = None
    capture_despite: BreakCapture | None = None
    proxies: ModelProxies = PlainCalls()
    calls_file: CallsFile | None = None
    watch_components: ComponentWatch | None = None
    rehearse: Rehearse | None = None
    may_record: Callable[[], bool] = staticmethod(lambda: True)
    """Quick: no call that is made now records gradients, whatever it is given, where this is False."""
    watching_recompiles: Callable[[bool], AbstractContextManager[Any]] = nullcontext
    """Within: what is made ready to compile, for a job, refuses calls once it was compiled for too many values of one
    thing, or the framework gives up compiling it: not for its shapes, if many of them were measured."""
