"""`Loaded`: what `autotune.load` gives a job: a tuned config, or why there is none, and its use on a model.

A job must not die of its speed-up: unless it asks for exceptions, it goes on with the untuned model, and one line in
the log of `autotune` says why. `apply` goes through the same backend method that the trials used: what was measured is
what is deployed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from os import PathLike, fspath
from typing import Any

from autotune.backends.capabilities import Updates
from autotune.errors import InputError
from autotune.job.apply import Application
from autotune.job.components import ComponentsApplication
from autotune.job.policy import MARGIN, LoadedFile, OnMismatch, Policy
from autotune.job.stats import recorder_of, register
from autotune.job.uses.step import UseOfStep
from autotune.measure.parts import Compare
from autotune.tuned.tuned_config import load_tuned
from autotune.workload.build import Variants
from autotune.workload.kinds.train import Train, own_loss


class TrainingStep:
    """A function that takes one training step of a job: see `Loaded.training_step`."""

    def __init__(self, call: Callable[..., Any], updates: Updates) -> None:
        self._call = call
        self._updates = updates

    def __call__(self, *batch: Any, **named: Any) -> Any:
        """The loss of the batch, detached. It is that of the batch alone, whatever group it belongs to."""
        self._updates.has_updated = False
        value = self._call(*batch, **named)
        self._updates.has_updated |= self._updates.are_plain
        return value

    @property
    def has_updated(self) -> bool:
        """The latest call, or `flush`, changed the weights: a scheduler may step."""
        return self._updates.has_updated

    def flush(self) -> None:
        """Let the optimizer step by the mean gradients of a group that is not complete. Without one nothing is done.

        A group that is not flushed goes on with the next call, be it of another epoch.
        """
        self._updates.flush()


@dataclass(frozen=True)
class Loaded(LoadedFile):
    """The answer in a file, and its use."""

    def apply(
        self,
        model: Any,
        *,
        on_mismatch: OnMismatch = "retune-hint",
        check: bool | float | Compare = False,
        margin: float | None = MARGIN,
        monitor: bool = False,
        variants: Variants | None = None,
        process_settings: bool = False,
        compiler_options: bool = False,
        ranks: Sequence[int] | None = None,
    ) -> Any:
        """The model compiled as it was measured; the very same model if nothing was faster than leaving it.

        `model` is a `torch.nn.Module`, a plain function for PyTorch, or a `mindspore.nn.Cell`, on its device and in the
        mode (eval or train) in which it will be called. What comes back is of its class and has its parameters, or is
        called like the function; compilation happens at the first call. Its weights stay the job's: calls that the
        tuned code would answer wrongly, because the weights changed, are made untuned. So are calls that record
        gradients, unless the config was tuned with `--task train` and compiles the model alone.

        `on_mismatch`: what to do where release, device, driver, model or the first call's inputs are not those of the
        measurement, or the file cannot be read. `retune-hint`: stay untuned, with a warning that says how to tune here;
        `untuned`: the same without the advice; `apply`: compile anyway, with a warning; `raise`: MismatchError,
        or the error itself, here or at a call. `check`: compare the first outputs with the untuned model's, which is
        called for it, as in the study, and those of a later call now and then: that takes at most 1 % of the time of
        all calls, or the share that is given, such as 0.05; a function or tolerances by output's name say how (see
        `compare` in docs/models.md). `margin`: if the first calls take longer than so many times the recorded latency,
        and longer than the untuned model, the untuned model stays; None: do not look. `monitor`: count and time the
        calls, for `autotune.stats(model)`. `variants`: functions of the variants that the config asks for, as the
        model's author declared them, {NAME: {VALUE: FUNCTION}}: a file's word is not enough to call one.
        `process_settings`: what the config sets for the whole process (threads, allocator, matmul precision) may be
        set, and is set now; `applied` takes it back. `compiler_options`: so may options of the compiler for which no
        bundled search space has a knob; they hold for this model alone. A config that needs either is not applied
        without. `ranks`: in a distributed job, the ranks that call this for the same file, and decide together
        (docs/many-ranks.md); None: all of them.

        A file of a pipeline takes the pipeline, or a dict of its components: the same object comes back, with tuned
        components in the places of those that the config names.

        Never raises, except with `on_mismatch="raise"`. A config that does not compile, or fails at a call that the
        untuned model takes, is given up: one warning, and the untuned model from then on.
        """
        policy = Policy(on_mismatch, check, margin, monitor, variants or {}, process_settings, compiler_options, ranks)
        given, _ = self.application(model, policy).applied()
        return given

    def training_step(
        self,
        model: Any,
        loss: Callable[..., Any] | None = None,
        optimizer: Any = None,
        *,
        accumulate: int = 1,
        clip_grad_norm: float | None = None,
        on_mismatch: OnMismatch = "retune-hint",
        margin: float | None = MARGIN,
        monitor: bool = False,
        process_settings: bool = False,
        compiler_options: bool = False,
        ranks: Sequence[int] | None = None,
    ) -> TrainingStep:
        """A function that takes one training step as it was measured: `step(*inputs, *targets)` gives the loss.

        It computes `loss(model, *inputs, *targets)` and its gradients, and lets the optimizer change the weights.
        Without `loss` it is what the model returns, given labels among the inputs: `loss` of an output or a dict, or
        the first of several outputs. Where nothing was faster, or something is wrong, it is the untuned step; policies
        are those of `apply`. There is no `check`: a step changes the weights. An optimizer that is wrapped, or that no
        config can be applied to, costs one warning and the untuned step. Raises InputError where there is no model or
        no optimizer at all: what was given cannot be called, or has no `step`.

        `accumulate`: the optimizer steps at every so many calls, by the mean of their gradients; `step.has_updated`
        says whether the latest call did, and `step.flush()` makes it step with those of an incomplete group, as at the
        end of an epoch. `clip_grad_norm`: the norm of all gradients together is at most this when it does.
        """
        if optimizer is None:
            raise InputError(
                "training_step() was given no optimizer", tip="call it as training_step(model, loss, optimizer)"
            )
        if not isinstance(accumulate, int) or isinstance(accumulate, bool) or accumulate < 1:
            raise InputError(f"accumulate={accumulate!r}: is no number of calls", tip="give 1 or more")
        if clip_grad_norm is not None and not (isinstance(clip_grad_norm, (int, float)) and clip_grad_norm > 0):
            raise InputError(f"clip_grad_norm={clip_grad_norm!r}: is no norm", tip="give a number above 0")
        policy = Policy(
            on_mismatch,
            margin=margin,
            monitor=monitor,
            process_settings=process_settings,
            compiler_options=compiler_options,
            ranks=ranks,
        )
        updates, recipe = Updates(accumulate, clip_grad_norm), Train(loss or own_loss, optimizer)
        use = partial(UseOfStep, recipe=recipe, updates=updates)
        call, _ = Application(self, model, policy, use).applied()
        step, recorder = TrainingStep(call, updates), recorder_of(call)
        if recorder is not None:
            register(step, recorder)
        return step

    def application(self, model: Any, policy: Policy) -> Application | ComponentsApplication:
        """What applies it to a model or a pipeline."""
        if self.answer is not None and self.answer.components:
            return ComponentsApplication(self, model, policy)
        return Application(self, model, policy)

    @contextmanager
    def applied(self, model: Any, **policy: Any) -> Iterator[Any]:
        """`apply` for as long as the `with` block lasts; then the process and the model are as they were before.

        Takes what `apply` takes. What MindSpore or the system take only once in a process stays.
        """
        given, release = self.application(model, Policy(**policy)).applied()
        try:
            yield given
        finally:
            release()


def load(path: str | PathLike[str]) -> Loaded:
    """The tuned config in a YAML file. Never raises: what is wrong with the file is for `apply` to deal with."""
    try:
        return Loaded(fspath(path), load_tuned(path))
    except InputError as problem:
        return Loaded(fspath(path), None, problem)
