"""What a job gets that generates text under a tuned config: each test is a row of the section in docs/in-the-job.md.

The config compiles with dynamo alone (`backend: eager`), so that programs, guards and caches are real and quick.
"""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import autotune
from autotune.job.fallback import Fallback
from autotune.job.load import Loaded
from autotune.job.stats import GenerationStats
from tests.generating import NEW, continued, gpt2, llama, prompt, stream
from tests.stand_ins.exports import export

transformers = pytest.importorskip("transformers")

STATIC = {"execution": "compile", "backend": "eager", "cache": "static", "cache_length": 32}
TEXTS = {"lengths": [5, 9], "new_tokens": NEW, "batch": 1}
IDS = prompt(1, 5)


def loaded(folder: Path, config: dict[str, Any], model: Any) -> Loaded:
    return autotune.load(export(folder / "best.yaml", "torch", config, model, [IDS], task="generate", texts=TEXTS))


class Job:
    """A job's model, and what it holds of it."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.model = llama()
        self.tuned = loaded(folder, config, self.model).apply(self.model)

    @property
    def untuned_calls(self) -> int:
        return self.stats().num_untuned

    def stats(self) -> Any:
        return autotune.stats(self.tuned).generation

    def messages(self) -> list[str]:
        return [event.message for event in autotune.stats(self.tuned).events]


@pytest.fixture(scope="module", params=[{}, {"prefill": "compile_dynamic"}], ids=["decode", "both"])
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job with a static cache, whose tests leave the weights as they are."""
    torch._dynamo.reset()
    return Job(tmp_path_factory.mktemp("job"), {**STATIC, **request.param})


@pytest.fixture(scope="module")
def plain() -> Any:
    """The untuned model."""
    return llama()


@pytest.fixture
def own(tmp_path: Path) -> Job:
    """A job of this test's own, without a compiler."""
    return Job(tmp_path, {"execution": "eager", "cache": "static", "cache_length": 32})


def num_graphs() -> int:
    return int(counters["stats"]["unique_graphs"])


class Kept:
    """A streamer."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.has_ended = False

    def put(self, tokens: torch.Tensor) -> None:
        self.tokens += tokens.flatten().tolist()

    def end(self) -> None:
        self.has_ended = True


@pytest.mark.fast_cases("decode")
class TestTunedCalls:
    """Rows in which all calls are tuned."""

    @pytest.fixture(autouse=True)
    def no_call_is_untuned(self, job: Job) -> Iterator[None]:
        before = job.untuned_calls
        yield
        assert job.untuned_calls == before, job.messages()

    @pytest.mark.fast_cases("decode", "both")
    def test_greedy(self, job: Job, plain: Any) -> None:
        """In steady state nothing compiles."""
        assert stream(job.tuned) == stream(plain)
        before = num_graphs()
        assert stream(job.tuned) == stream(plain)
        assert num_graphs() == before
        assert autotune.stats(job.tuned).state == "tuned"

    def test_sampling(self, job: Job, plain: Any) -> None:
        drawn = []
        for model in (job.tuned, plain):
            torch.manual_seed(3)
            drawn.append(continued(model, IDS, do_sample=True, top_k=20, temperature=1.3, num_return_sequences=2))
        assert drawn[0] == drawn[1]
        assert drawn[0][0] != drawn[0][1]

    def test_beams(self, job: Job, plain: Any) -> None:
        assert continued(job.tuned, IDS, num_beams=3) == continued(plain, IDS, num_beams=3)

    def test_a_streamer(self, job: Job, plain: Any) -> None:
        kept = Kept()
        expected = continued(plain, IDS)
        assert continued(job.tuned, IDS, streamer=kept) == expected
        assert (kept.tokens, kept.has_ended) == (expected[0], True)

    def test_a_stop_criterion(self, job: Job, plain: Any) -> None:
        stop = [lambda ids, scores: torch.full((ids.shape[0],), ids.shape[1] >= 8)]
        expected = continued(plain, IDS, stopping_criteria=stop)
        assert continued(job.tuned, IDS, stopping_criteria=stop) == expected
        assert len(expected[0]) == 8
        assert continued(job.tuned, IDS) == continued(plain, IDS), "a call that ended early leaves nothing behind"

    def test_left_padding(self, job: Job, plain: Any) -> None:
        mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [1] * 7])
        ids = prompt(2, 7) * mask
        expected = continued(plain, ids, attention_mask=mask)
        assert continued(job.tuned, ids, attention_mask=mask) == expected
        assert continued(job.tuned, ids[:, 3:])[:1] == [row[3:] for row in expected[:1]]

    def test_a_pipeline(self, job: Job, plain: Any) -> None:
        tokenizers = pytest.importorskip("tokenizers")
        words = tokenizers.Tokenizer(
            tokenizers.models.WordLevel({f"w{number}": number for number in range(128)}, unk_token="w1")
        )
        words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0")
        made = []
        for model in (job.tuned, plain):
            writer = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer)
            made.append(writer(["w5 w6 w7", "w9 w8"], max_new_tokens=NEW, do_sample=False))
        assert made[0] == made[1]

    def test_two_threads(self, job: Job, plain: Any) -> None:
        """Neither reads what the other has in its cache."""
        prompts = [prompt(1, 5), prompt(1, 9)] * 2
        expected = [continued(plain, each) for each in prompts]
        found: dict[int, Any] = {}
        barrier = threading.Barrier(len(prompts))

        def generate(number: int) -> None:
            barrier.wait()
            found[number] = [continued(job.tuned, prompts[number]) for _ in range(3)]

        threads = [threading.Thread(target=generate, args=[number]) for number in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [found.get(number) for number in range(len(prompts))] == [[each] * 3 for each in expected]

    def test_a_cache_that_comes_with_the_tokens_is_the_jobs(self, job: Job, plain: Any) -> None:
        """Later calls of `generate` leave it alone."""
        given = job.tuned.generate(IDS, max_new_tokens=NEW, do_sample=False, return_dict_in_generate=True)
        assert given.sequences.tolist() == continued(plain, IDS)
        before = given.past_key_values.layers[0].keys.clone()
        continued(job.tuned, prompt(1, 9))
        assert torch.equal(given.past_key_values.layers[0].keys, before)
        assert len(pickle.dumps(given.past_key_values)) > 0

    def test_a_longer_prompt_than_any(self, job: Job, plain: Any) -> None:
        ids = prompt(1, 40)
        assert continued(job.tuned, ids) == continued(plain, ids)

    def test_inference_mode(self, job: Job, plain: Any) -> None:
        with torch.inference_mode():
            assert continued(job.tuned, IDS) == continued(plain, IDS)
        assert continued(job.tuned, IDS) == continued(plain, IDS)


class TestUntunedCalls:
    """Rows in which calls are the model's own, and it is said why."""

    @pytest.mark.parametrize(
        ("how", "said"),
        [
            ({"output_attentions": True, "return_dict_in_generate": True}, "output_attentions"),
            ({"past_key_values": None, "cache_implementation": "static"}, "of the job's own"),
            ({"use_cache": False}, "without a cache"),
            ({"prompt_lookup_num_tokens": 2}, "assisted_generation"),
            ({"prefill_chunk_size": 4}, "prefill_chunk_size"),
        ],
        ids=["attentions", "a cache of its own", "no cache", "lookup", "chunks"],
    )
    def test_generate(self, own: Job, how: dict[str, Any], said: str) -> None:
        found = own.tuned.generate(prompt(1, 9), max_new_tokens=NEW, do_sample=False, **how)
        tokens = getattr(found, "sequences", found)
        assert tokens.tolist() == continued(llama(), prompt(1, 9))
        assert own.untuned_calls > 0
        assert [said in message for message in own.messages()] == [True]

    def test_hugging_faces_own_way_is_applied_with_a_cache_that_is_used_again(self, tmp_path: Path, plain: Any) -> None:
        job = Job(tmp_path, {"execution": "compile", "backend": "eager", "cache": "transformers"})
        assert [continued(job.tuned, IDS) for _ in range(2)] == [continued(plain, IDS)] * 2
        assert job.untuned_calls == 0

    def test_a_prompt_of_embeddings(self, own: Job, plain: Any) -> None:
        """Its prefill is untuned; decode steps have tokens."""
        made = []
        for model in (own.tuned, plain):
            embeddings = model.get_input_embeddings()(IDS)
            made.append(model.generate(inputs_embeds=embeddings, max_new_tokens=NEW, do_sample=False).tolist())
        assert made[0] == made[1]
        assert (own.untuned_calls, own.stats().num_decodes) == (1, NEW - 1)

    def test_an_assistant(self, own: Job) -> None:
        helper = llama(1)
        assert continued(own.tuned, IDS, assistant_model=helper) == continued(llama(), IDS)
        assert own.stats().num_decodes == 0

    def test_training_mode(self, own: Job, plain: Any) -> None:
        own.tuned.train()
        loss = own.tuned(input_ids=IDS, labels=IDS).loss
        loss.backward()
        assert all(weight.grad is not None for weight in own.model.parameters())
        assert "training mode" in own.messages()[0]
        own.tuned.eval()
        assert continued(own.tuned, IDS) == continued(plain, IDS)
        assert own.stats().num_decodes == NEW - 1

    def test_too_long_for_a_cache_of_the_streams_length(self, tmp_path: Path, plain: Any) -> None:
        job = Job(tmp_path, {"execution": "eager", "cache": "static", "cache_length": "most"})
        assert continued(job.tuned, prompt(1, 9)) == continued(plain, prompt(1, 9))
        assert job.untuned_calls == 0
        for _ in range(2):
            assert continued(job.tuned, prompt(1, 11)) == continued(plain, prompt(1, 11))
        assert job.untuned_calls == 2 * NEW
        assert len(job.messages()) == 1


class TestTheModel:
    def test_is_left_as_it_is(self, own: Job) -> None:
        before = dict(vars(llama()))
        assert stream(own.tuned) == stream(own.model)
        assert vars(own.model).keys() == before.keys()
        assert own.tuned.state_dict().keys() == llama().state_dict().keys()
        assert isinstance(own.tuned, transformers.LlamaForCausalLM)

    def test_copies_are_untuned(self, own: Job) -> None:
        for other in (copy.deepcopy(own.tuned), pickle.loads(pickle.dumps(own.tuned))):
            assert continued(other, IDS) == continued(llama(), IDS)
        assert own.stats() == autotune.stats(own.tuned).generation
        assert own.stats().num_decodes == 0

    def test_weights_that_change(self, own: Job) -> None:
        other = llama()
        stream(own.tuned)
        for model in (own.model, other):
            with torch.no_grad():
                model.lm_head.weight.copy_(torch.randn(128, 64, generator=torch.Generator().manual_seed(5)))
        assert stream(own.tuned) == stream(other)

    def test_another_type(self, own: Job) -> None:
        stream(own.tuned)
        own.tuned.to(torch.float64)
        assert stream(own.tuned) == stream(llama().double())
        assert own.untuned_calls == 0

    def test_a_stale_row_is_never_read(self, own: Job, plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """NaN in a cache that is used again would show wherever it is read, also behind a mask."""
        seen = []
        take = "autotune.backends.torch.static_cache.StaticCaches.give_back"
        monkeypatch.setattr(take, lambda caches, cache: seen.append((caches, cache)))
        continued(own.tuned, prompt(1, 12))
        [(caches, cache)] = seen
        monkeypatch.undo()
        for layer in cache.layers:
            layer.keys.fill_(torch.nan)
            layer.values.fill_(torch.nan)
        caches.give_back(cache)
        assert continued(own.tuned, IDS) == continued(plain, IDS)
        assert not cache.layers[0].keys.isnan().any()
        assert cache.layers[0].keys.abs().sum() > 0, "the cache was used again"

    def test_goes_with_the_job(self, tmp_path: Path) -> None:
        """Programs and caches hold nothing that outlives it."""
        job = Job(tmp_path, STATIC)
        continued(job.tuned, IDS)
        gone = weakref.ref(job.model)
        del job
        gc.collect()
        assert gone() is None

    def test_for_as_long_as_a_block_lasts(self, tmp_path: Path, plain: Any) -> None:
        model = llama()
        config = {"execution": "eager", "cache": "static"}
        with loaded(tmp_path, config, model).applied(model, monitor=True) as tuned:
            assert continued(tuned, IDS) == continued(plain, IDS)
            assert autotune.stats(tuned).num_calls == NEW
        continued(tuned, IDS)
        assert autotune.stats(tuned).generation == GenerationStats(num_prefills=1, num_decodes=NEW - 1, num_untuned=0)

    @pytest.mark.slow
    def test_with_learned_positions(self, tmp_path: Path) -> None:
        torch._dynamo.reset()
        model = gpt2()
        tuned = loaded(tmp_path, {**STATIC, "prefill": "compile_dynamic"}, model).apply(model)
        for _ in range(2):
            before = num_graphs()
            assert stream(tuned) == stream(gpt2())
        assert num_graphs() == before
        assert autotune.stats(tuned).generation.num_untuned == 0


class TestWhatGoesWrong:
    @pytest.mark.parametrize("knobs", [{"prefill": "padded_64"}, {"attention": "eager"}], ids=str)
    def test_a_file_names_a_setting_that_is_gone(
        self, tmp_path: Path, plain: Any, knobs: dict[str, str], caplog: pytest.LogCaptureFixture
    ) -> None:
        """Earlier releases had it: one sentence, and the untuned model."""
        job = Job(tmp_path, {**STATIC, **knobs})
        assert stream(job.tuned) == stream(plain)
        assert [record.message.count(f"knob {next(iter(knobs))}: ") for record in caplog.records] == [1]
        assert autotune.stats(job.tuned).state == "untuned"

    """The job's tokens are the untuned model's, and one warning says why the config is given up."""

    def expect_untuned(self, job: Job, why: str) -> None:
        assert stream(job.tuned) == stream(llama())
        stats = autotune.stats(job.tuned)
        assert (stats.state, stats.num_fallbacks) == ("untuned", 1)
        assert why in job.messages()[0]
        assert stream(job.tuned) == stream(llama())

    def test_it_does_not_compile(self, tmp_path: Path, compiler: Any) -> None:
        def failing(graph: Any, inputs: Any) -> Any:
            raise ValueError("no such kernel")

        self.expect_untuned(Job(tmp_path, {**STATIC, **compiler(failing)}), "the tuned decode failed")

    def test_it_computes_something_else(self, tmp_path: Path, compiler: Any) -> None:
        def wrong(graph: Any, inputs: Any) -> Any:
            return lambda *args: [
                each * 1.5 if isinstance(each, torch.Tensor) and each.shape[-1] == 128 else each
                for each in graph(*args)
            ]

        self.expect_untuned(Job(tmp_path, {**STATIC, **compiler(wrong)}), "does not agree")

    @pytest.mark.parametrize("num_swaps", [1, 100])
    def test_weights_that_change_between_two_calls_that_are_compared(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_swaps: int
    ) -> None:
        """Nobody is accused: the untuned call's tokens go on, and the next call is compared. Where that never ends the
        config is given up for what it is. Writes through `.data` are not counted, and are seen, too."""
        swaps, untuned = iter(range(num_swaps)), Fallback.__init__

        def swapping(self: Fallback, call: Any, *given: Any, **named: Any) -> None:
            def swapped(*args: Any, **kwargs: Any) -> Any:
                if next(swaps, None) is not None:
                    own.model.lm_head.weight.data.mul_(-1.5)
                return call(*args, **kwargs)

            untuned(self, swapped, *given, **named)

        monkeypatch.setattr(Fallback, "__init__", swapping)
        own = Job(tmp_path, STATIC)
        for _ in range(12):
            own.tuned.generate(IDS, max_new_tokens=NEW, do_sample=False)
        stats = autotune.stats(own.tuned)
        assert stats.state == ("tuned" if num_swaps == 1 else "untuned")
        assert [each for each in own.messages() if "does not agree" in each] == []
        assert len([each for each in own.messages() if "the weights were changed during" in each]) == (num_swaps > 1)

    @pytest.mark.parametrize("cache", [{"cache": "static", "cache_length": 32}, {"cache": "dynamic"}], ids=str)
    def test_it_fails_as_it_runs(self, tmp_path: Path, compiler: Any, cache: dict[str, Any]) -> None:
        """In the middle of a text, after it has written to the cache."""
        calls = SimpleNamespace(left=9)

        def breaking(graph: Any, inputs: Any) -> Any:
            def call(*args: Any) -> Any:
                found = graph(*args)
                calls.left -= 1
                if calls.left < 0:
                    raise RuntimeError("out of luck")
                return found

            return call

        self.expect_untuned(Job(tmp_path, {**compiler(breaking), **cache}), "out of luck")
