"""How a config changes `model.generate` of one of Hugging Face's models: its cache, and its two kinds of calls.

`generate` calls the model once with the prompt (prefill), then once for each further token (decode), and hands a cache
of keys and values from call to call. All of these are plain calls of the model, which is why what is tuned stands
there and not in `generate`: sampling, beams, streamers and stop criteria are Hugging Face's own, whatever the config.
A call goes to the code of its phase by what it is given: one token and a cache that holds some are a decode step, an
empty cache is a prefill. All other calls (training, gradients, no cache, outputs of attention, arguments that are not
known here) are the model's own.

Each form of a call (its sizes, types and modes) has a program of its own: a function with a code object that nothing
else has, as for shapes that are kept apart. So how much is compiled is decided here, and not by guards that fail. Past
the most programs a call is made untuned, which is said once.

The first decode step of a text is looked at from all sides, as any call. One that is like the step before it in the
same text goes to the same program: what it cannot have changed is not asked again.

A dynamic cache grows with each token, so that its sizes are open: dynamo has them open from the second call on, or
from the first under `dynamic: true`. A static cache is made here, with room for the call's longest possible text,
rounded up as the config says: its sizes, and those of a decode step, are one form for all calls up to that length.
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from autotune.backends.capabilities import GenerationGuard, Phase
from autotune.backends.torch.knobs import require_for_generation, settings_of
from autotune.backends.torch.programs import Program, Programs, Step, form_of, of_prefill
from autotune.backends.torch.proxy import proxy
from autotune.backends.torch.static_cache import CacheForm, StaticCaches, is_dynamic, is_made, set_back, unmark
from autotune.backends.torch.tensors import device_of, extremes_of
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import InvalidConfigError, UnsuitableCallError

_log = logging.getLogger("autotune")

CACHE, CACHE_LENGTH, PREFILL = "cache", "cache_length", "prefill"
"""Knobs that only `generate` has."""
MOST_PROGRAMS = 8
"""Forms of calls that are compiled for each phase: as many as dynamo compiles of one function."""

_KNOWN = frozenset(
    {"input_ids", "attention_mask", "position_ids", "past_key_values", "use_cache", "return_dict", "logits_to_keep"}
    | {"token_type_ids", "cache_position"}
    | {"decoder_input_ids", "decoder_attention_mask", "decoder_position_ids", "encoder_outputs"}
)
"""Arguments of a call that is tuned; others have to be None or False."""
_MODES = frozenset({"greedy_search", "sample", "beam_search", "beam_sample"})
"""Ways of generating that call the model with one token at a time."""


def tune_generation(
    model: torch.nn.Module,
    config: Config,
    changes: UndoLog,
    *,
    longest: int | None = None,
    most_programs: int = MOST_PROGRAMS,
) -> None:
    """Make `model.generate(...)` run the config's code, by attributes of the model that `changes` takes away again.

    `model` is a model of Hugging Face that generates text; an encoder stays as it is. `longest` is the most tokens,
    prompt and new ones, of any call of the stream that the config is measured with. Raises InvalidConfigError, before
    anything is changed.

    What is read of the config:

    * `cache`: `dynamic` (None too) or `static`. `transformers` is `static` here: Hugging Face's code, with a cache that
      is used again. What it does by itself is measured by `generating`.
    * `cache_length`, of a static cache: `exact` (None too): the longest text that a call may come to; a number: that,
      rounded up to a multiple of the number; `most`: `longest` for all calls, and a longer one is untuned.
    * `prefill`: `eager` (None too), `compile`: code for each length of a prompt, `compile_dynamic`: with open sizes. It
      takes all other knobs of the compiler from the decode step. For `execution: compile` only.
    * `precision` and `sdpa`: both phases, so that there is one type of numbers in a cache.
    * all others are of the decode step: `execution`, `backend`, `mode`, `dynamic`, `fullgraph`, `freezing`, `region`,
      options of the compiler. Settings of the process (`threads`, `allocator`, `matmul_precision`) are set now.
    """
    TorchGeneration(model, config, changes, longest=longest, most_programs=most_programs).put_into(changes)


@dataclass(frozen=True)
class GenerationKnobs:
    """The knobs that only `generate` has, as one config has them."""

    is_static: bool
    bucket: int | None
    """A static cache's length is a multiple of this; None: it is the same for all calls."""
    prefill: str
    longest: int | None

    @classmethod
    def of(cls, config: Config, longest: int | None) -> GenerationKnobs:
        """Raises InvalidConfigError."""
        is_static = config.get(CACHE) in ("static", "transformers")
        length: Any = config.get(CACHE_LENGTH)
        if length is not None and not is_static:
            raise InvalidConfigError(f"knob {CACHE_LENGTH}: is for {CACHE}=static only")
        if length == "most" and longest is None:
            raise InvalidConfigError(f"knob {CACHE_LENGTH}: the longest call is not known")
        bucket = {None: 1, "exact": 1, "most": None}.get(length, length)
        if bucket is not None and (isinstance(bucket, bool) or not isinstance(bucket, int) or bucket < 1):
            raise InvalidConfigError(f"knob {CACHE_LENGTH}: {length!r} is none of exact, most, or a number of tokens")
        return cls(is_static, bucket, str(config.get(PREFILL) or "eager"), longest)

    def require_for(self, model: Any) -> None:
        """Raises InvalidConfigError for a prefill that the model cannot have."""
        if self.prefill != "eager" and model.config.is_encoder_decoder:
            raise InvalidConfigError(f"knob {PREFILL}: a model with an encoder begins its text with one token")

    def length_for(self, num_tokens: int) -> int | None:
        """The length of a static cache for a call; None: the call is longer than what is compiled."""
        if self.bucket is not None:
            return -(-num_tokens // self.bucket) * self.bucket
        return self.longest if self.longest is not None and num_tokens <= self.longest else None


class TrialsGuard:
    """In a trial: what fails is the config's failure, and what is not tuned is said once."""

    def __init__(self, untuned: Callable[..., Any]) -> None:
        self._untuned = untuned
        self._said: set[str] = set()

    def refused(self, error: UnsuitableCallError, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if str(error) not in self._said:
            self._said.add(str(error))
            _log.warning("autotune: %s: such calls are made untuned", error)
        return self._untuned(*args, **kwargs)

    def first(self, phase: Phase, tuned: Callable[[], Any], kwargs: dict[str, Any]) -> tuple[Any, bool]:
        return tuned(), True

    def after(self, error: Exception, phase: Phase, kwargs: dict[str, Any]) -> Any:
        raise error


class TorchGeneration:
    """One model's calls under one config: what stands in front of them, and of `generate`. Threads may share it."""

    def __init__(
        self,
        model: Any,
        config: Config,
        changes: UndoLog,
        *,
        longest: int | None = None,
        most_programs: int = MOST_PROGRAMS,
        guard: GenerationGuard | None = None,
    ) -> None:
        """See `tune_generation`."""
        problem = problem_of(model)
        if problem is not None:
            raise InvalidConfigError(f"generation cannot be tuned: {problem}")
        self.is_over = False
        """All calls are the model's own."""
        self.num_calls: dict[str, int] = {"prefill": 0, "decode": 0, "untuned": 0}
        """Calls of the model by where they went; a prefill that is not compiled is a `prefill`."""
        self._model = model
        self._ids_name = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
        self._guard: GenerationGuard = guard or TrialsGuard(self.untuned)
        self._knobs = GenerationKnobs.of(config, longest)
        self._knobs.require_for(model)
        settings = settings_of(config)
        require_for_generation(settings)
        self._decode = Programs(model, settings, changes, most_programs)
        self._prefill = Programs(model, of_prefill(settings, self._knobs.prefill), UndoLog(), most_programs)
        self._has_open_decode = settings.dynamic is True
        self._has_open_prefill = self._knobs.prefill == "compile_dynamic"
        self._autocast: torch.dtype | None = getattr(torch, settings.autocast) if settings.autocast else None
        self._most_programs = most_programs
        self._tables = Tables.of(model)
        self._caches = StaticCaches(model)
        self._forms: set[CacheForm] = set()
        """Static caches that were in use."""
        self._looked_at: set[tuple[Program, Hashable]] = set()
        """Programs whose first call of this form was made."""
        self._has_told = False
        self._lock = threading.Lock()
        self._local = threading.local()

    def put_into(self, changes: UndoLog) -> None:
        """In front of the model's own calls. Copies and pickles of the model are as they would be without."""
        model = self._model

        def own(name: str) -> Callable[..., Any]:
            method: Callable[..., Any] = getattr(model, name)
            return method

        generate, prepare_cache = own("generate"), own("_prepare_cache_for_generation")

        def put() -> None:
            model._compiled_call_impl = self.call
            model.generate = functools.wraps(generate)(functools.partial(self.generate, generate))
            model._prepare_cache_for_generation = functools.partial(self.prepare_cache, prepare_cache)

        def take_away() -> None:
            self.leave()
            for name in ("_compiled_call_impl", "generate", "_prepare_cache_for_generation"):
                vars(model).pop(name, None)

        changes.make(put, take_away)

    def stand_in(self, call: Callable[..., Any], changes: UndoLog) -> Any:
        """See `Generating`."""
        around = {"generate": self.generate, "_prepare_cache_for_generation": self.prepare_cache}
        return proxy(self._model, self._model, call, changes, around=around)

    def leave(self) -> None:
        """From now on all calls are the model's own."""
        self.is_over = True
        self._caches.clear()
        self._looked_at.clear()
        for programs in (self._decode, self._prefill):
            programs.clear()

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """A call of the model."""
        if self.is_over:
            return self.untuned(*args, **kwargs)
        lease = self._lease
        step = None if lease is None or args else lease.step
        if step is not None and not step.is_next(kwargs):
            step = None
        try:
            self._tables.require(self._ids(kwargs), kwargs.get("past_key_values"), self._num_tokens)
            if step is None:
                result = self._looked_at_call(lease, args, kwargs)
            else:
                result = self._trusted("decode", step.call, step.num_tokens, kwargs)
        except UnsuitableCallError as error:
            self.num_calls["untuned"] += 1
            result = self._guard.refused(error, args, kwargs)
        if step is not None:
            step.num_tokens += 1
        cache: Any = kwargs.get("past_key_values")
        if self._caches.owns(cache):
            if cache.num_tokens == 0:
                unmark(cache)  # The call may have made its tensors.
            cache.num_tokens += 1 if step is not None else _num_new(kwargs)
        return result

    def _looked_at_call(self, lease: _Lease | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Raises UnsuitableCallError before anything runs."""
        if lease is not None:
            lease.step = None
        why = next(self._obstacles(args, kwargs), None)
        if why is not None:
            raise UnsuitableCallError(why)
        return self._tuned(lease, kwargs)

    def _tuned(self, lease: _Lease | None, kwargs: dict[str, Any]) -> Any:
        """The call by the program of its phase and form. Raises UnsuitableCallError before anything runs."""
        cache = kwargs["past_key_values"]
        is_own, num_tokens = self._caches.owns(cache), self._num_tokens(cache)
        phase: Phase = "decode" if num_tokens else "prefill"
        programs = self._decode if phase == "decode" else self._prefill
        is_fresh = is_own and not is_made(cache)
        is_open = self._has_open_prefill if phase == "prefill" else self._has_open_decode or not is_own
        device = self._ids(kwargs).device.type
        form = None if is_fresh else form_of(kwargs, getattr(cache, "form", None), device, is_open=is_open)
        program = programs.eager if is_fresh else programs.of(form)
        if program is None:
            raise UnsuitableCallError(f"a {phase} of yet another size would be compiled")
        call = program.call
        if (program, form) not in self._looked_at and not program.is_untuned:
            result, is_known = self._guard.first(phase, functools.partial(call, **kwargs), kwargs)
            if is_known and not self.is_over:
                self._looked_at.add((program, form))
            self.num_calls[phase] += 1
            return result
        result = self._trusted(phase, call, num_tokens, kwargs)
        if lease is not None and phase == "decode" and not is_fresh:
            lease.step = Step(program, self._model, kwargs, is_open=is_open, device=device, num_tokens=num_tokens + 1)
        return result

    def _trusted(self, phase: Phase, call: Callable[..., Any], num_tokens: int, kwargs: dict[str, Any]) -> Any:
        """A call of a program whose first one was right."""
        try:
            result = call(**kwargs)
        except UnsuitableCallError:
            raise
        except Exception as error:
            if not set_back(kwargs["past_key_values"], num_tokens, _num_new(kwargs)):
                raise
            return self._guard.after(error, phase, kwargs)
        self.num_calls[phase] += 1
        return result

    def untuned(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own call, with its hooks."""
        return self._model._call_impl(*args, **kwargs)

    def generate(self, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What stands in place of `own`, the model's method: it has a cache to itself for as long as it lasts."""
        before, lease = self._lease, _Lease()
        self._local.lease = lease
        try:
            return own(*args, **kwargs)
        finally:
            self._local.lease = before
            if lease.cache is not None and lease.is_returned:
                self._caches.give_away(lease.cache)
            elif lease.cache is not None and not self.is_over:
                self._caches.give_back(lease.cache)

    def prepare_cache(self, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What stands in place of `own`, the model's method that makes a call of `generate` its cache."""
        lease = self._lease
        if self.is_over or lease is None:
            return own(*args, **kwargs)
        given = inspect.signature(own).bind(*args, **kwargs).arguments
        config = given["generation_config"]
        if config.compile_config is not None and not self._has_told:
            self._has_told = True
            _log.warning(
                "autotune: compile_config: what generate() compiles by itself is switched off in a tuned model"
            )
        config.disable_compile = True
        lease.why_untuned = self._why_untuned(given)
        if lease.why_untuned is None and self._knobs.is_static:
            try:
                lease.cache = self._caches.take(self._form_of_cache(given))
            except UnsuitableCallError as error:
                lease.why_untuned = str(error)
        if lease.cache is None:
            return own(*args, **kwargs)
        lease.is_returned = bool(config.return_dict_in_generate)
        given["model_kwargs"]["past_key_values"] = lease.cache
        return None

    def _why_untuned(self, given: dict[str, Any]) -> str | None:
        """Why a whole call of `generate` is not tuned; None: its calls are looked at one by one."""
        config, is_static = given["generation_config"], self._knobs.is_static
        mode = getattr(given["generation_mode"], "value", given["generation_mode"])
        is_own = given["model_kwargs"].get("past_key_values") is not None or config.cache_implementation is not None
        attention = str(getattr(self._model.config, "_attn_implementation", ""))
        reasons = {
            f"generate() in the mode {mode} was not measured": mode not in _MODES,
            "generate() of an assistant was not measured": config.is_assistant,
            "generate() with prefill_chunk_size was not measured": config.prefill_chunk_size is not None,
            "generate() without a cache was not measured": config.use_cache is False,
            "generate() with a cache of the job's own choice was not measured": is_static and is_own,
            "flash attention with a static cache is not known here": is_static and "flash" in attention,
        }
        return next((why for why, holds in reasons.items() if holds), None)

    def _form_of_cache(self, given: dict[str, Any]) -> CacheForm:
        """Raises UnsuitableCallError where one more size would be compiled."""
        config, model = given["generation_config"], self._model
        num_tokens: int = given["max_cache_length"]
        length = self._knobs.length_for(num_tokens)
        if length is None:
            raise UnsuitableCallError(
                f"a text of more than {self._knobs.longest} tokens is longer than any measured one"
            )
        form = CacheForm(
            max(config.num_beams, config.num_return_sequences) * given["batch_size"],
            length,
            self._autocast or model.dtype,
            device_of(model),
            torch.is_inference_mode_enabled(),
        )
        with self._lock:
            if form not in self._forms and len(self._forms) >= self._most_programs:
                longer = [known for known in self._forms if replace(known, length=length) == form]
                longer = [known for known in longer if known.length >= num_tokens]
                if not longer:
                    raise UnsuitableCallError("a decode of yet another size would be compiled")
                form = min(longer, key=lambda known: known.length)
            self._forms.add(form)
        return form

    @property
    def _lease(self) -> _Lease | None:
        """This thread's call of `generate`."""
        return getattr(self._local, "lease", None)

    def _obstacles(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[str]:
        """Why a call is not tuned."""
        model, cache, ids, lease = self._model, kwargs.get("past_key_values"), self._ids(kwargs), self._lease
        if lease is not None and lease.why_untuned is not None:
            yield lease.why_untuned
        if model.training or torch.is_grad_enabled():
            yield "a call in training mode, or that records gradients, is no step of generate()"
        if args or cache is None or not isinstance(ids, torch.Tensor) or ids.dim() != 2:
            yield "a call without a cache, or without token ids, is no step of generate()"
        unknown = [name for name, value in kwargs.items() if name not in _KNOWN and not _is_off(value)]
        if unknown:
            yield f"a call with {', '.join(sorted(unknown))} was not measured"
        if not (self._caches.owns(cache) if self._knobs.is_static else is_dynamic(cache)):
            yield f"a {type(cache).__name__} of the job's own was not measured"
        if ids is not None and ids.shape[1] > 1 and self._num_tokens(cache):
            yield "a call with several tokens after others was not measured"

    def _ids(self, kwargs: dict[str, Any]) -> Any:
        return kwargs.get(self._ids_name)

    def _num_tokens(self, cache: Any) -> int:
        """What a cache holds. The device is not asked where it is one of these here."""
        return int(cache.num_tokens if self._caches.owns(cache) else cache.get_seq_length())


@dataclass(frozen=True)
class Tables:
    """What a model looks up by token and by position. Compiled for a CPU, a look beyond its end ends the process."""

    num_tokens: int | None
    """Rows of the table of tokens; None: not known."""
    num_positions: int | None
    """Positions that have rows; None: they are computed."""

    @classmethod
    def of(cls, model: Any) -> Tables:
        own = model.get_decoder() if model.config.is_encoder_decoder else model
        tokens = own.get_input_embeddings()
        most = getattr(model.config, "max_position_embeddings", None)
        tables = [module for module in own.modules() if isinstance(module, torch.nn.Embedding) and module is not tokens]
        # Some leave rows at the beginning for padding.
        has_rows = most is not None and any(most <= table.num_embeddings <= most + 8 for table in tables)
        return cls(getattr(tokens, "num_embeddings", None), most if has_rows else None)

    def require(self, ids: Any, cache: Any, held: Callable[[Any], int]) -> None:
        """Raises UnsuitableCallError for a call with tokens that are not in the table, or at such positions. `held`:
        tokens in a cache."""
        extremes = extremes_of(ids, None)
        if extremes is None or isinstance(ids, int):
            return
        smallest, largest = extremes[0]
        if self.num_tokens is not None and not 0 <= smallest <= largest < self.num_tokens:
            raise UnsuitableCallError("a call with tokens that the model has no row for")
        if self.num_positions is None or not hasattr(cache, "get_seq_length"):
            return
        if held(cache) + ids.shape[-1] > self.num_positions:
            raise UnsuitableCallError("a call at positions that the model has no row for")


class _Lease:
    """One call of `generate`."""

    def __init__(self) -> None:
        self.cache: Any = None
        self.is_returned = False
        """The caller gets the cache with the tokens."""
        self.why_untuned: str | None = None
        self.step: Step | None = None
        """The last decode step, if it was tuned."""


def problem_of(model: Any) -> str | None:
    """Why `generate` of this model cannot be tuned; None: it can."""
    missing = [
        name for name in ("generate", "_prepare_cache_for_generation") if not callable(getattr(model, name, None))
    ]
    if missing:
        return f"a {type(model).__name__} has no method {missing[0]}"
    asked = inspect.signature(model._prepare_cache_for_generation).parameters
    unknown = {"generation_config", "model_kwargs", "generation_mode", "batch_size", "max_cache_length"} - asked.keys()
    return f"this release of transformers makes caches without {', '.join(sorted(unknown))}" if unknown else None


def _num_new(kwargs: dict[str, Any]) -> int:
    """Tokens that a call is given."""
    named = ("decoder_input_ids", "input_ids", "decoder_inputs_embeds", "inputs_embeds")
    given = next((kwargs[name] for name in named if kwargs.get(name) is not None), None)
    return 0 if given is None else int(given.shape[1])


def _is_off(value: Any) -> bool:
    return value is None or value is False
