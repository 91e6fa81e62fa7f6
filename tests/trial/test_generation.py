"""What generated text is compared by finds what is wrong in it, and lets pass what rounding does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune.backends.registry import load_backend
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import InputError
from autotune.planning.manifest import make_manifest
from autotune.question.question import Question
from autotune.trial.folder import TrialFolder
from autotune.trial.worker.accuracy_check import WrongResultError
from autotune.trial.worker.calls.continuations import Continuations
from autotune.trial.worker.calls.text_gate import TextGate, Texts, Tops
from autotune.trial.worker.measure import Supervision, measure
from autotune.trial.worker.stages import StageReporter
from autotune.trial.worker.subjects import build_subject
from autotune.workload.workload import Workload
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.torch

TOLERANCE = 1e-3
UNTUNED = Config({"execution": "eager"})
BUCKETED = Config({"execution": "compile", "cache": "static", "cache_length": 64})
ROUNDED = {"execution": "compile", "backend": "eager", "cache": "static", "cache_length": "most"}
SIZES = {"prompts": "10,70", "new_tokens": 6}


def workload(name: str = "llama") -> Workload:
    """Two prompts, of which neither reaches a multiple of 64 while it is continued."""
    return Workload(
        model=f"hf:{name}",
        reference="autotune.plugins.hubs.torch.hugging_face_generation:build",
        arguments={"name": name, **SIZES},
        framework="torch",
        device="cpu",
        task="generate",
        search_path=str(REPOSITORY),
    )


Tune = Callable[[Any], None]


class Run:
    """The calls of one trial in this process, up to and with the check of its edges."""

    def __init__(self, config: Config, tune: Tune | None = None, name: str = "llama") -> None:
        self.backend = load_backend("torch")
        self.backend.prepare("cpu", 0)
        subject = build_subject(workload(name), self.backend)
        self.calls = Continuations(workload(name), subject, self.backend)
        if tune is not None:
            tune(subject.model)
            self.calls._generation = Planted(self.calls._generation)
        self.config = config

    def texts(self, reference_tolerance: float | None = None) -> Texts:
        with self.calls.recording():
            self.step = self.calls.compile(self.config, UndoLog())
            self.calls.first(self.step, self.config, self.backend.clock, self.backend.clock())
            return self.calls.observe(self.step, reference_tolerance=reference_tolerance)

    def reference(self) -> Texts:
        seen = self.texts(TOLERANCE)
        self.calls.gate.refuse_unusable(seen, TOLERANCE)
        with self.calls.recording():
            stored = self.calls.gate.unpacked(self.calls.gate.packed(seen))
            completed = self.calls.completed(stored, self.step, TOLERANCE)
        return self.calls.gate.unpacked(self.calls.gate.packed(completed))

    def judge(self, reference: Texts) -> tuple[float, ...]:
        """Raises WrongResultError."""
        errors = self.calls.gate.errors(reference, self.texts(), TOLERANCE)
        with self.calls.recording():
            self.calls.one_pass(self.step)[0]()
            self.calls.require_sound(self.step)
        return errors


class Planted:
    """A capability whose tuning is the fault that is in the model already."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def tune_generation(self, *_: Any, **__: Any) -> None:
        """Nothing is left to do."""


def around_forward(change: Callable[[dict[str, Any]], None], after: Callable[..., None] = lambda *_: None) -> Tune:
    """Calls of the model with other arguments, or what is done to the cache after them."""

    def tune(model: Any) -> None:
        forward = model.forward

        def wrong(*args: Any, **kwargs: Any) -> Any:
            change(kwargs)
            returned = forward(*args, **kwargs)
            after(kwargs, returned)
            return returned

        model.forward = wrong

    return tune


def wrong_position(kwargs: dict[str, Any]) -> None:
    ids, cache = kwargs["input_ids"], kwargs["past_key_values"]
    if ids.shape[1] == 1:
        kwargs["position_ids"] = ids.new_tensor([[cache.get_seq_length() + 1]])


def overwritten_row(kwargs: dict[str, Any], returned: Any) -> None:
    if kwargs["input_ids"].shape[1] > 1:
        for layer in returned.past_key_values.layers:
            layer.keys[:, :, 3] = layer.keys[:, :, 4]
            layer.values[:, :, 3] = layer.values[:, :, 4]


def mask_off_by_one(kwargs: dict[str, Any]) -> None:
    """Where the text is as long as a bucket, its first token is hidden."""
    mask = kwargs.get("attention_mask")
    if mask is not None and mask.shape[1] % 64 == 0:
        mask = mask.clone()
        mask[:, 0] = 0
        kwargs["attention_mask"] = mask


def nothing(kwargs: dict[str, Any]) -> None:
    """The model as it is."""


@pytest.fixture(scope="module")
def reference() -> Texts:
    return Run(UNTUNED).reference()


@pytest.mark.parametrize(
    ("fault", "where"),
    [
        (around_forward(wrong_position), "logits after 10 tokens"),
        (around_forward(nothing, overwritten_row), "logits after 10 tokens"),
        (around_forward(mask_off_by_one), "at the edge of a bucket"),
    ],
)
def test_a_planted_fault_is_found(reference: Texts, fault: Tune, where: str) -> None:
    """A position that is one too large, a row of the cache that is another one's, a mask that is wrong at one length:
    each is found where it first shows."""
    with pytest.raises(WrongResultError, match=where):
        Run(BUCKETED, fault).judge(reference)


def test_the_untuned_model_is_right(reference: Texts) -> None:
    """In another process's place it gives the same, at the edges of buckets too."""
    assert max(Run(BUCKETED, around_forward(nothing)).judge(reference)) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_prefill_is_right(reference: Texts, backend: str) -> None:
    """With open sizes, at the edges of buckets."""
    config = Config(ROUNDED | {"backend": backend, "prefill": "compile_dynamic", "cache_length": 64})
    assert max(Run(config).judge(reference)) < 1e-5


@pytest.mark.parametrize("name", ["gpt2", "qwen3", "t5"])
def test_a_static_cache_in_buckets_is_right(name: str) -> None:
    """Positions that are learnt, rotary ones, and relative ones behind an encoder: at the edges of buckets as well."""
    config = Config({"execution": "eager", "cache": "static", "cache_length": 64})
    run = Run(config, name=name)
    assert max(run.judge(Run(UNTUNED, name=name).reference())) < 1e-5
    assert run.calls.generated is not None
    assert run.calls.generated.num_recompiles == 0


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"task": "generate", "framework": "mindspore"}, "text generation is tuned in PyTorch only"),
        (
            {"task": "generate", "framework": "torch", "shapes": "batch=1,2"},
            "has its lengths as prompts",
        ),
        (
            {"task": "infer", "framework": "torch", "objective": "ttft"},
            "only generated text has a first",
        ),
        ({"framework": "torch", "constraints": "tpot <= 1s"}, "only generated text has a first"),
    ],
)
def test_what_does_not_go_together_is_refused(asked: dict[str, Any], message: str) -> None:
    """In one sentence, before anything is built."""
    with pytest.raises(InputError, match=message):
        make_manifest(Question.of({"build": "hf:llama", "device": "cpu", **asked}))


def test_steady_passes_are_told_by_token() -> None:
    """For each prompt when its first token was there and when its last, and what was compiled until then."""
    run = Run(UNTUNED)
    run.texts()
    call = run.calls.one_pass(run.step)[0]
    with run.calls.recording():
        call()
    first, last, first_of_second, last_of_second = call.parts_s()  # type: ignore[attr-defined]
    assert 0 < first < last
    assert 0 < first_of_second < last_of_second
    made = run.calls.generated
    assert made is not None
    assert (made.lengths, made.num_tokens, len(made.cold_s)) == ((10, 70), 12, 2)


def gate_with(logits: list[float], chosen: int, error: float) -> tuple[TextGate, Texts, Texts]:
    """A reference of one greedy step with these logits, and a run that chose another token."""
    run = Run(UNTUNED)
    seen = run.texts()
    tops = [Tops.of(np.array([[logits]], dtype=np.float32))]
    reference = replace(seen, chosen=[np.array([[int(np.argmax(logits))]])], tops=tops)
    call = seen.forced.calls[0]
    part = replace(call.parts[0], array=call.parts[0].array * np.float32(1 + error))
    calls = [replace(call, parts=[part]), *seen.forced.calls[1:-1], replace(call, parts=[part])]
    return (
        TextGate("m", lambda _: None),
        reference,
        replace(seen, chosen=[np.array([[chosen]])], forced=replace(seen.forced, calls=calls)),
    )


@pytest.mark.parametrize(("behind", "is_tie"), [(1e-5, True), (1e-1, False)])
def test_a_tie_is_no_mistake_and_anything_else_is(behind: float, is_tie: bool) -> None:
    """The run's logits are off by 1e-4 of the largest: so near a token may be chosen in place of another."""
    gate, reference, seen = gate_with([0.0, 1.0, 1.0 - behind], 2, 1e-4)
    if is_tie:
        gate.errors(reference, seen, TOLERANCE)
    else:
        with pytest.raises(WrongResultError, match="greedy token 1 is 2 instead of 1"):
            gate.errors(reference, seen, TOLERANCE)


class Waits:
    """In place of a supervisor: one turn, and a note of who has the machine to itself."""

    is_alone = False

    def __init__(self) -> None:
        self.num_turns = 0

    @contextmanager
    def alone(self) -> Iterator[None]:
        self.is_alone = True
        yield
        self.is_alone = False

    def wait(self) -> bool:
        self.num_turns += 1
        return self.num_turns == 1

    def tell(self, reading: object) -> None:
        """Nobody listens."""


@pytest.mark.parametrize(("settings", "first"), [(UNTUNED, True), (ROUNDED, False)])
def test_passes_have_the_machine_to_themselves(monkeypatch, tmp_path, make_request, settings, first) -> None:
    """Until the first turn, which is quiet as it is; but for the pass that compiles, which shares the machine."""
    config = Config.model_validate(settings)
    waits, seen = Waits(), []
    monkeypatch.setattr(Continuations, "_continued", noting(Continuations._continued, waits, seen))
    untuned = make_request(workload=workload(), config=UNTUNED, untuned=True)
    request = untuned.model_copy(update={"config": config, "untuned": config == UNTUNED})
    for each, supervision in ((untuned, Supervision(None, None, None)), (request, Supervision(waits, None, None))):
        seen.clear()
        progress = StageReporter(TrialFolder(tmp_path / "trial"))
        progress.folder.path.mkdir(exist_ok=True)
        measure(each, progress, supervision, load_backend("torch"))
    compiling = [is_alone for turn, is_alone in seen if not turn][:2]
    rest = [is_alone for turn, is_alone in seen if not turn][2:]
    assert compiling == [first] * 2
    assert len(rest) > 4
    assert all(rest)
    assert not any(is_alone for turn, is_alone in seen if turn)


def noting(call: Callable[..., Any], waits: Waits, seen: list[tuple[int, bool]]) -> Callable[..., Any]:
    """The same call, which notes the turn and who is alone."""

    def noted(*args: Any, **kwargs: Any) -> Any:
        seen.append((waits.num_turns, waits.is_alone))
        return call(*args, **kwargs)

    return noted
