"""`Admission`: which of a job's calls its tuned code takes.

Asked at each call by whatever stands between a job and tuned code. All others are the untuned model's, whose result or
error is the job's:

* calls of shapes, types or structures that no trial has compared. What a compiler makes of a second shape is other code
  than what it made of the first;
* calls with whole numbers that the untuned model is not known to take (`whole_numbers`), on a CPU.

What is found out of a call is kept by its form: the shapes and types of its tensors, and how these are nested. A call
of the form of the one before costs a comparison of these.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from autotune.backends.protocol import Backend
from autotune.errors import quoted
from autotune.job.fallback import raise_interruption
from autotune.job.whole_numbers import SeenNumbers, WholeNumbers, limits_of
from autotune.measure.limits import InputLimits
from autotune.measure.measurement import Axis
from autotune.nesting import leaves, parts_of
from autotune.workload.arguments import Arguments, named, parameter_names

MOST_FORMS = 4096
"""Forms that are kept."""
SOME_LEARNED, MANY_LEARNED = 10, 100
"""Calls with new numbers in one input after which the job is told, and is warned."""

_Args = tuple[Any, ...]
_Kwargs = Mapping[str, Any]
Mark = tuple[Any, Any, Any, Any]
"""Class of a value in a call; shape and type of a tensor; of a container the keys, and the marks of what it holds."""


@dataclass(frozen=True)
class Looked:
    """A leaf of a call whose numbers are looked at."""

    leaf: int
    """Place in `Arguments.leaves`."""
    direct: int | str | None
    """Its place or name among the arguments; None: it is in a container."""
    numbers: WholeNumbers
    open_axes: frozenset[int]

    def value(self, args: _Args, kwargs: _Kwargs) -> Any:
        if isinstance(self.direct, int):
            return args[self.direct]
        return kwargs[self.direct] if self.direct is not None else Arguments(args, kwargs).leaves()[self.leaf]


@dataclass(frozen=True, eq=False)
class Form:
    """What calls have in common."""

    positional: tuple[Mark, ...]
    keyword: Mapping[str, Mark]
    misfit: str | None
    """Why the config is not for such calls."""
    looked: tuple[Looked, ...] = ()
    has_sizes: bool = True
    """False: at a tensor without a size compiled code may end the process (PyTorch 2.13, a nested one)."""

    def fits(self, args: _Args, kwargs: _Kwargs) -> bool:
        """Whether a call is of this form, its keywords in this order: leaves are known by their places. Quick: it is
        asked at each call."""
        values, marks = args, self.positional
        if len(values) != len(marks):
            return False
        if kwargs or self.keyword:
            if [*kwargs] != [*self.keyword]:
                return False
            values, marks = (*values, *kwargs.values()), (*marks, *self.keyword.values())
        try:
            for place, (kind, shape, dtype, parts) in enumerate(marks):
                value = values[place]
                if type(value) is not kind or (shape is not None and (value.shape != shape or value.dtype != dtype)):
                    return False
                if parts is not None and _mark(value)[3] != parts:
                    return False
        except Exception as error:  # A tensor without a size.
            raise_interruption(error)
            return False
        return True


@dataclass(frozen=True)
class Refusal:
    """A call that is the untuned model's."""

    misfit: str | None
    """Why the config is not for such calls; None: there are numbers in it that the model is not known to take."""
    learn: Callable[[], None] = lambda: None
    """The untuned model has answered."""

    def answered_by(self, untuned: Callable[..., Any], args: _Args, kwargs: _Kwargs) -> Any:
        """What the untuned model gives."""
        result = untuned(*args, **kwargs)
        self.learn()
        return result


class Numbered:
    """How whole numbers in the inputs of one model are looked at."""

    def __init__(
        self,
        backend: Backend,
        function: Callable[..., Any],
        limits: Iterable[InputLimits],
        open_axes: Callable[[Arguments], Iterable[Axis]] = lambda _: (),
        *,
        num_own: int = 0,
        takes_single: bool = False,
    ) -> None:
        """`function` has the parameters of a call, after `num_own` that are no inputs; `limits` are those of the file.
        `open_axes`: those of a call whose sizes differ from call to call. `takes_single`: a single
        number is not looked at."""
        self.backend = backend
        self.known: dict[str, WholeNumbers] = {}
        """By the input's name."""
        self._names = parameter_names(function)[num_own:]
        self._limits = limits_of(limits, self._names)
        self._open_axes = open_axes
        self._takes_single = takes_single

    def looked(self, args: _Args, kwargs: _Kwargs) -> tuple[Looked, ...]:
        """The leaves of a call that are looked at."""
        axes = self._open_axes(Arguments(args, kwargs))
        found = (
            Looked(
                number,
                direct,
                self._numbers(named(name, self._names)),
                frozenset(axis.axis for axis in axes if axis.leaf == number),
            )
            for number, (direct, name, leaf) in enumerate(_leaves(args, kwargs))
            if not (self._takes_single and math.prod(getattr(leaf, "shape", ())) == 1)
            and self.backend.extremes(leaf) is not None
        )
        return tuple(each for each in found if not each.numbers.has_no_limits)

    def _numbers(self, name: str) -> WholeNumbers:
        return self.known.setdefault(name, WholeNumbers(self.backend, name, self._limits.get(name)))


class Admission:
    """One for each applied config. Threads may share it."""

    def __init__(
        self,
        misfit: Callable[[Arguments], str | None],
        numbered: Numbered | None = None,
        *,
        takes_misfits: bool = False,
        keeps_misfits: bool = True,
        tell: Callable[[WholeNumbers], object] = lambda _: None,
    ) -> None:
        """`misfit`: why the config is not for a call. `takes_misfits`: it is applied all the same; `keeps_misfits`
        False: a call of the same form may fit later. `numbered` None: whole numbers are not looked at. `tell` is told
        of an input whose numbers keep calls untuned."""
        self._misfit = misfit
        self._numbered = numbered
        self._takes_misfits = takes_misfits
        self._keeps_misfits = keeps_misfits
        self._tell = tell
        self._lock = threading.Lock()
        self._latest = Form((_NO_VALUE,), {}, None)
        self._forms: dict[Any, Form] = {}

    def refusal(self, args: _Args, kwargs: _Kwargs) -> Refusal | None:
        """Why a call is not for tuned code; None: it is."""
        form = self._latest
        if not form.fits(args, kwargs):
            form = self._form(args, kwargs)
        if form.misfit is not None and not (self._takes_misfits and form.has_sizes):
            return Refusal(form.misfit)
        return self._refusal_of_numbers(form, args, kwargs) if form.looked else None

    def misfit(self, args: _Args, kwargs: _Kwargs) -> str | None:
        """Why the config is not for a call, whether it is made tuned or not."""
        return self._form(args, kwargs).misfit

    def _refusal_of_numbers(self, form: Form, args: _Args, kwargs: _Kwargs) -> Refusal | None:
        if all(each.numbers.are_taken(each.value(args, kwargs), each.open_axes) for each in form.looked):
            return None
        # Before the call, which may change them.
        seen = [(each.numbers, each.numbers.seen(each.value(args, kwargs), each.open_axes)) for each in form.looked]
        return Refusal(None, lambda: self._learn(seen))

    def _learn(self, seen: list[tuple[WholeNumbers, SeenNumbers | None]]) -> None:
        assert self._numbered is not None
        self._numbered.backend.synchronise()  # What a model refuses, a framework may say only now.
        with self._lock:
            for numbers, each in seen:
                if each is not None and numbers.learn(each) and numbers.num_learned in (SOME_LEARNED, MANY_LEARNED):
                    self._tell(numbers)

    def _form(self, args: _Args, kwargs: _Kwargs) -> Form:
        """That of a call, and the latest from now on."""
        has_sizes = False
        try:
            positional, keyword = tuple(map(_mark, args)), {name: _mark(value) for name, value in kwargs.items()}
            key, has_sizes = (positional, tuple(keyword.items())), True
            form = self._forms.get(key)
        except Exception as error:  # A tensor without a size, or of a size that differs within it.
            raise_interruption(error)
            return replace(self._described((), {}, args, kwargs), has_sizes=has_sizes)
        if form is None:
            form = self._described(positional, keyword, args, kwargs)
            if form.misfit is not None and not self._keeps_misfits:
                return form
            if len(self._forms) < MOST_FORMS:
                self._forms[key] = form
        self._latest = form
        return form

    def _described(
        self, positional: tuple[Mark, ...], keyword: Mapping[str, Mark], args: _Args, kwargs: _Kwargs
    ) -> Form:
        try:
            misfit = self._misfit(Arguments(args, kwargs))
            looked = () if self._numbered is None else self._numbered.looked(args, kwargs)
        except Exception as error:  # A nested tensor has no sizes.
            raise_interruption(error)
            return Form(positional, keyword, f"inputs that cannot be described ({quoted(error)})")
        return Form(positional, keyword, misfit, looked)


class _NoValue:
    """What is in no call."""


_NO_VALUE: Mark = (_NoValue, None, None, None)


def _mark(value: Any) -> Mark:
    kind = type(value)
    if kind is dict:
        return kind, None, None, (tuple(value), tuple(map(_mark, value.values())))
    if kind is tuple or kind is list:
        return kind, None, None, tuple(map(_mark, value))
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None:
        return kind, shape, dtype, None
    parts = parts_of(value)
    return kind, None, None, None if parts is None else tuple((end, _mark(part)) for end, part in parts)


def _leaves(args: _Args, kwargs: _Kwargs) -> Iterator[tuple[int | str | None, str, Any]]:
    """As `Arguments.named_leaves`, each with its place or name if it is an argument itself."""
    whole: list[tuple[int | str, str, Any]] = [
        (place, f"argument {place + 1}", each) for place, each in enumerate(args)
    ]
    whole += [(name, name, each) for name, each in kwargs.items()]
    for direct, name, argument in whole:
        for path, leaf in leaves(argument):
            yield None if path else direct, name + path, leaf
