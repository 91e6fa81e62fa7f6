"""How a config changes `model.generate` of one of Hugging Face's causal models: its cache, and its two kinds of calls.

`generate` calls the model once with the prompt (prefill), then once for each further token (decode), and hands a cache
of keys and values from call to call. All of these are plain calls of the model, which is why what is tuned stands
there and not in `generate`: sampling, beams, streamers and stop criteria are Hugging Face's own, whatever the config.
A call goes to the code of its phase by what it is given: one token and a cache that holds some are a decode step, an
empty cache is a prefill. All other calls (training, gradients, no cache, outputs of attention, arguments that are not
known here) are the model's own.

Each form of a call (its sizes, types and modes) has a program of its own: a function with a code object that nothing
else has, as for shapes that are kept apart. So how much is compiled is decided here, and not by guards that fail. Past
the most programs a call is made untuned, which is said once.

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
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch.nn.attention import sdpa_kernel

from autotune.backends.torch import regions
from autotune.backends.torch.apply import prepare
from autotune.backends.torch.knobs import Settings, settings_of
from autotune.backends.torch.precision import order_of
from autotune.backends.torch.shapes import function_of_its_own
from autotune.backends.torch.static_cache import CacheForm, StaticCaches
from autotune.backends.torch.tensors import device_of
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import InvalidConfigError, UnsuitableCallError

_log = logging.getLogger("autotune")

CACHE, CACHE_LENGTH, PREFILL = "cache", "cache_length", "prefill"
"""Knobs that only `generate` has."""
MOST_PROGRAMS = 8
"""Forms of calls that are compiled for each phase: as many as dynamo compiles of one function."""

Phase = Literal["prefill", "decode"]

_KNOWN = frozenset(
    {"input_ids", "attention_mask", "position_ids", "past_key_values", "use_cache", "return_dict", "logits_to_keep"}
    | {"token_type_ids", "cache_position"}
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

    `model` is a causal model of Hugging Face, without an encoder. `longest` is the most tokens, prompt and new ones,
    of any call of the stream that the config is measured with. Raises InvalidConfigError, before anything is changed.

    What is read of the config:

    * `cache`: `dynamic` (None too) or `static`.
    * `cache_length`, of a static cache: `exact` (None too): the longest text that a call may come to; a number: that,
      rounded up to a multiple of the number; `most`: `longest` for all calls, and a longer one is untuned.
    * `prefill`: `eager` (None too), `compile`: code for each length of a prompt, `compile_dynamic`: with open sizes.
      It takes all other knobs of the compiler from the decode step. For `execution: compile` only.
    * `precision` and `sdpa`: both phases, so that there is one type of numbers in a cache.
    * all others are of the decode step: `execution`, `backend`, `mode`, `dynamic`, `fullgraph`, `freezing`, `region`,
      options of the compiler. Settings of the process (`threads`, `allocator`, `matmul_precision`) are set now.
    """
    Generation(model, config, changes, longest=longest, most_programs=most_programs).put_into(changes)


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
        is_static = config.get(CACHE) == "static"
        length: Any = config.get(CACHE_LENGTH)
        if length is not None and not is_static:
            raise InvalidConfigError(f"knob {CACHE_LENGTH}: is for {CACHE}=static only")
        if length == "most" and longest is None:
            raise InvalidConfigError(f"knob {CACHE_LENGTH}: the longest call is not known")
        bucket = {None: 1, "exact": 1, "most": None}.get(length, length)
        if bucket is not None and (isinstance(bucket, bool) or not isinstance(bucket, int) or bucket < 1):
            raise InvalidConfigError(f"knob {CACHE_LENGTH}: {length!r} is none of exact, most, or a number of tokens")
        return cls(is_static, bucket, str(config.get(PREFILL) or "eager"), longest)

    def length_for(self, num_tokens: int) -> int | None:
        """The length of a static cache for a call; None: the call is longer than what is compiled."""
        if self.bucket is not None:
            return -(-num_tokens // self.bucket) * self.bucket
        assert self.longest is not None
        return self.longest if num_tokens <= self.longest else None


class Generation:
    """One model's calls under one config: what stands in front of them, and of `generate`."""

    def __init__(
        self,
        model: Any,
        config: Config,
        changes: UndoLog,
        *,
        longest: int | None = None,
        most_programs: int = MOST_PROGRAMS,
        say: Callable[[str], object] | None = None,
    ) -> None:
        """See `tune_generation`. `say` is told why a call is made untuned, each reason once."""
        problem = problem_of(model)
        if problem is not None:
            raise InvalidConfigError(f"generation cannot be tuned: {problem}")
        self.is_over = False
        """All calls are the model's own."""
        self.num_calls: dict[str, int] = {"prefill": 0, "decode": 0, "untuned": 0}
        """Calls of the model by where they went; an eager prefill is a `prefill`."""
        self._model = model
        self._knobs = GenerationKnobs.of(config, longest)
        settings = settings_of(config)
        self._decode = Programs(model, settings, changes, most_programs)
        self._prefill = Programs(model, _of_prefill(settings, self._knobs.prefill), UndoLog(), most_programs)
        self._has_open_prefill = self._knobs.prefill == "compile_dynamic"
        self._dtype = model.dtype if settings.autocast is None else getattr(torch, settings.autocast)
        self._autocasts = settings.autocast is not None
        self._most_programs = most_programs
        self._caches = StaticCaches(model)
        self._forms: set[CacheForm] = set()
        """Static caches that were in use."""
        self._lock = threading.Lock()
        self._local = threading.local()
        self._said: set[str] = set()
        self._say = say or (lambda why: _log.warning("autotune: %s", why))

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

    def leave(self) -> None:
        """From now on all calls are the model's own."""
        self.is_over = True
        self._caches.clear()
        for programs in (self._decode, self._prefill):
            programs.clear()

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """A call of the model."""
        if self.is_over:
            return self.untuned(*args, **kwargs)
        why = next(self._obstacles(args, kwargs), None)
        if why is not None:
            return self._untuned(why, args, kwargs)
        cache = kwargs["past_key_values"]
        phase: Phase = "prefill" if self._is_empty(cache) else "decode"
        is_own = self._caches.owns(cache)
        if is_own:
            cache.num_calls += 1
        programs = self._decode if phase == "decode" else self._prefill
        program = programs.eager if is_own and not cache.is_initialized else programs.of(self._form(phase, kwargs))
        if program is None:
            return self._untuned(f"a {phase} of yet another size or kind would be compiled", args, kwargs)
        try:
            result = program(**kwargs)
        except UnsuitableCallError as error:
            return self._untuned(str(error), args, kwargs)
        self.num_calls[phase] += 1
        return result

    def untuned(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own call, with its hooks."""
        return self._model._call_impl(*args, **kwargs)

    def generate(self, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What stands in place of `own`, the model's method: it has caches to itself for as long as it lasts."""
        with self._lease() as lease:
            try:
                return own(*args, **kwargs)
            finally:
                if lease.cache is not None and lease.is_returned:
                    lease.cache.owner = None  # It is the caller's.
                elif lease.cache is not None:
                    self._caches.give_back(lease.cache)

    def prepare_cache(self, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What stands in place of `own`, the model's method that makes a call of `generate` its cache."""
        given = inspect.signature(own).bind(*args, **kwargs).arguments
        lease: _Lease | None = getattr(self._local, "lease", None)
        if not self.is_over and lease is not None:
            config = given["generation_config"]
            if config.compile_config is not None:
                self._tell("Hugging Face's own compiling in generate() (compile_config) is switched off")
            config.disable_compile = True
            cache = self._cache_for(lease, given)
            if cache is not None:
                lease.cache, lease.is_returned = cache, bool(config.return_dict_in_generate)
                given["model_kwargs"]["past_key_values"] = cache
                return None
        return own(*args, **kwargs)

    def _cache_for(self, lease: _Lease, given: dict[str, Any]) -> Any:
        """An empty static cache; None where the call gets the cache that it would have untuned."""
        config = given["generation_config"]
        mode = getattr(given["generation_mode"], "value", None)
        if mode not in _MODES or config.prefill_chunk_size is not None or config.is_assistant:
            lease.why_untuned = f"generation_mode={mode}, by an assistant or in chunks is not tuned"
            return None
        if not self._knobs.is_static or config.use_cache is False:
            return None
        if given["model_kwargs"].get("past_key_values") is not None or config.cache_implementation is not None:
            return None  # The job's own word about its cache.
        form = self._form_of_cache(given)
        return None if form is None else self._caches.take(form)

    def _form_of_cache(self, given: dict[str, Any]) -> CacheForm | None:
        config, model = given["generation_config"], self._model
        num_tokens: int = given["max_cache_length"]
        length = self._knobs.length_for(num_tokens)
        if length is None:
            self._tell(f"a text of {num_tokens} tokens is longer than any that was measured")
            return None
        form = CacheForm(
            max(config.num_beams, config.num_return_sequences) * given["batch_size"],
            length,
            self._dtype if self._autocasts else model.dtype,
            device_of(model),
            torch.is_inference_mode_enabled(),
        )
        with self._lock:
            if form not in self._forms and len(self._forms) >= self._most_programs:
                longer = [known for known in self._forms if replace(known, length=length) == form]
                longer = [known for known in longer if known.length >= num_tokens]
                if not longer:
                    self._tell("a decode step of yet another size would be compiled")
                    return None
                form = min(longer, key=lambda known: known.length)
            self._forms.add(form)
        return form

    def _obstacles(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[str]:
        """Why a call is not tuned; an empty text where that was said before, or is the job's own wish."""
        model, cache, ids = self._model, kwargs.get("past_key_values"), kwargs.get("input_ids")
        lease: _Lease | None = getattr(self._local, "lease", None)
        if model.training or torch.is_grad_enabled():
            yield "a call in training mode, or that records gradients, is none of generate()"
        if args or cache is None or not isinstance(ids, torch.Tensor) or ids.dim() != 2:
            yield "a call without a cache, or without token ids, is no step of generate()"
        if lease is not None and lease.why_untuned is not None:
            yield lease.why_untuned
        unknown = [name for name, value in kwargs.items() if name not in _KNOWN and value not in (None, False)]
        if unknown:
            yield f"a call with {', '.join(sorted(unknown))} was not measured"
        if self._knobs.is_static and not self._caches.owns(cache):
            yield ""
        if not self._knobs.is_static and type(cache).__name__ != "DynamicCache":
            yield f"a {type(cache).__name__} is not the cache that was measured"
        if ids is not None and ids.shape[1] > 1 and not self._is_empty(cache):
            yield "several tokens after others are no step of decode"

    def _is_empty(self, cache: Any) -> bool:
        """Whether it holds no token. The device is not asked where the cache is one of these here."""
        return bool(cache.num_calls == 0 if self._caches.owns(cache) else cache.get_seq_length() == 0)

    def _form(self, phase: Phase, kwargs: dict[str, Any]) -> Hashable:
        """What a program is for: its guards ask for no more."""
        cache = kwargs["past_key_values"]
        is_own = self._caches.owns(cache)
        is_open = self._has_open_prefill if phase == "prefill" else not is_own
        return (
            None if is_open or not is_own else cache.form,
            tuple((name, _seen(value, is_open)) for name, value in kwargs.items() if name != "past_key_values"),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled(device_of(self._model).type),
        )

    @contextmanager
    def _lease(self) -> Iterator[_Lease]:
        before = getattr(self._local, "lease", None)
        self._local.lease = _Lease()
        try:
            yield self._local.lease
        finally:
            self._local.lease = before

    def _untuned(self, why: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if why:
            self._tell(why)
        self.num_calls["untuned"] += 1
        return self.untuned(*args, **kwargs)

    def _tell(self, why: str) -> None:
        if why not in self._said:
            self._said.add(why)
            self._say(f"{why}: such calls are made untuned")


class _Lease:
    """One call of `generate`."""

    def __init__(self) -> None:
        self.cache: Any = None
        self.is_returned = False
        """The caller gets the cache with the tokens."""
        self.why_untuned: str | None = None


class Programs:
    """The code of one phase: a program for each form of a call."""

    def __init__(self, model: Any, settings: Settings, changes: UndoLog, most: int) -> None:
        regions.chosen(model, settings.region)
        self._most = most
        self._lock = threading.Lock()
        self._made: dict[Hashable, Callable[..., Any]] = {}
        self._around: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda step: step
        self.eager = _in_precision(model, settings, model._call_impl)
        target, self._step = model, self.eager
        if not settings.region.is_whole:
            copy = regions.copy_modules(model)
            target, self._around = copy.model, copy.around
            self._step = _in_precision(target, settings, target._call_impl)
        setup = prepare(target, settings, changes)
        self._compile, self._wrap = setup.compile, setup.wrap
        if self._compile is None:
            return
        if settings.region.compiled:
            regions.compile_region(target, target, settings.region, self._compile)
            self._compile = lambda target: target
        elif settings.region.left:
            regions.compile_region(target, target, settings.region, lambda target: target)

    def of(self, form: Hashable) -> Callable[..., Any] | None:
        """Compiled at its first call; None where there are as many as there may be."""
        if self._compile is None:
            return self.eager
        program = self._made.get(form)
        if program is None:
            with self._lock:
                program = self._made.get(form)
                if program is None and len(self._made) < self._most:
                    program = self._around(self._wrap(self._compile(function_of_its_own(self._step))))
                    self._made[form] = program
        return program

    def clear(self) -> None:
        """Let go of all."""
        self._made.clear()


def problem_of(model: Any) -> str | None:
    """Why `generate` of this model cannot be tuned; None: it can."""
    missing = [
        name for name in ("generate", "_prepare_cache_for_generation") if not callable(getattr(model, name, None))
    ]
    if missing:
        return f"a {type(model).__name__} has no method {missing[0]}"
    if getattr(model.config, "is_encoder_decoder", False):
        return "a model with an encoder is not known here"
    asked = inspect.signature(model._prepare_cache_for_generation).parameters
    unknown = {"generation_config", "model_kwargs", "generation_mode", "batch_size", "max_cache_length"} - asked.keys()
    return f"this release of transformers makes caches without {', '.join(sorted(unknown))}" if unknown else None


def _of_prefill(settings: Settings, prefill: str) -> Settings:
    """The decode step's, but for what is set in the process already."""
    settings = replace(settings, num_threads=None, keeps_memory=False, matmul_precision=None, cudnn_benchmark=False)
    if prefill == "eager":
        return Settings(compiled=False, autocast=settings.autocast, attention=settings.attention)
    return replace(settings, dynamic=prefill == "compile_dynamic")


def _in_precision(model: Any, settings: Settings, call: Callable[..., Any]) -> Callable[..., Any]:
    """A call of the model in its config's precision, with its attention kernel. `generate` widens the logits itself."""
    if settings.attention is not None:
        call = _with_kernel(order_of(settings.attention), call)
    if settings.autocast is not None:
        call = _under_autocast(device_of(model).type, getattr(torch, settings.autocast), call)
    return call


def _with_kernel(order: list[Any], call: Callable[..., Any]) -> Callable[..., Any]:
    def with_kernel(*args: Any, **kwargs: Any) -> Any:
        with sdpa_kernel(order, set_priority=True):
            return call(*args, **kwargs)

    return with_kernel


def _under_autocast(device: str, dtype: torch.dtype, call: Callable[..., Any]) -> Callable[..., Any]:
    def under_autocast(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device, dtype=dtype):
            return call(*args, **kwargs)

    return under_autocast


def _seen(value: Any, is_open: bool) -> Hashable:
    """What dynamo's guards ask of an argument; with open sizes, whether there is more than one."""
    if isinstance(value, torch.Tensor):
        sizes = tuple(size > 1 for size in value.shape) if is_open else value.shape
        return (sizes, value.dtype, value.device)
    if isinstance(value, dict):
        return tuple((name, _seen(entry, is_open)) for name, entry in value.items())
    return value if isinstance(value, (bool, int, type(None))) else type(value).__name__
