"""`SearchSpace`: the configs of a study, by its knobs and forbidden combinations.

A knob is active when its `when` holds for the knobs before it; a config holds active knobs only, so two configs that
mean the same are equal. The file's order is the order of enumeration.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Annotated, Any, ClassVar

from pydantic import Field

from autotune.config import Config, Scalar, fits
from autotune.schema import Record, SparseRecord
from autotune.space.schema import Pattern

MOST_LISTED = 5000
"""Up to this many configs are listed; a larger space can only be drawn from."""
Choose = Callable[[str, tuple[Scalar, ...]], Scalar]


class Knob(SparseRecord):
    """A knob under the circumstances of a study: `values` are those offered, in order."""

    ABSENT: ClassVar[frozenset[str]] = frozenset({"rounding"})

    name: str
    doc: str
    values: Annotated[tuple[Scalar, ...], Field(min_length=1)]
    when: Pattern
    default: Scalar
    untuned: Scalar
    runtime: bool = False
    rounding: tuple[Scalar, ...] = ()
    """Values that are known to round otherwise than the untuned model (`error` in the file)."""


class Recipe(Record):
    """Settings that pay together by a public report. Nobody has measured them here."""

    load: str
    """The kind of load that they are for."""
    settings: Config
    source: str
    """Where it was reported."""
    slow: bool = False
    """Compiling it takes minutes."""


class SearchSpace(SparseRecord):
    """Ordered knobs and forbidden combinations under the circumstances of a study.

    What a search asks for at every config, its anchors and its fingerprint, is made once.
    """

    ABSENT: ClassVar[frozenset[str]] = frozenset({"recipes"})

    framework: str
    knobs: tuple[Knob, ...]
    forbid: tuple[tuple[Pattern, str], ...]
    forbid_in_parts: tuple[tuple[Pattern, str], ...] = ()
    """Rules for configs that compile parts of the model, each on its own: they join `forbid` with a knob `region`."""
    recipes: tuple[Recipe, ...] = ()
    """Those that a study may begin with."""

    @cached_property
    def fingerprint(self) -> str:
        """Changes with any knob, value, order, condition or rule, but not with links or the wording of reasons."""
        left_out: Any = dict.fromkeys(("forbid", "forbid_in_parts", "recipes"), True)
        content = self.model_dump(mode="json", exclude={**left_out, "knobs": {"__all__": {"doc", "rounding"}}})
        content["forbid"] = [pattern for pattern, _ in self.forbid]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    def untuned(self) -> Config:
        """The config of the untuned model."""
        return self._untuned

    @cached_property
    def _untuned(self) -> Config:
        values = {knob.name: knob.untuned for knob in self.knobs}
        return self.walk(lambda name, _: values[name])

    def default(self) -> Config:
        """The config of the framework's default compile."""
        return self._default

    @cached_property
    def _default(self) -> Config:
        values = {knob.name: knob.default for knob in self.knobs}
        return self.walk(lambda name, _: values[name])

    def anchors(self) -> tuple[Config, ...]:
        """The configs that are tried first, in order: untuned and default."""
        return tuple(dict.fromkeys((self.untuned(), self.default())))

    def walk(self, choose: Choose) -> Config:
        """One config: `choose(knob, values)` is called for each active knob, in order."""
        settings: dict[str, Scalar] = {}
        for knob in self.knobs:
            if fits(settings, knob.when):
                settings[knob.name] = choose(knob.name, knob.values)
        return Config(settings)

    def configs(self) -> Iterator[Config]:
        """Every allowed config once, lazily: the anchors first, then in the file's order."""
        first = dict.fromkeys(config for config in self.anchors() if not self.forbidden(config))
        yield from first
        yield from (config for config in self._expand({}, self.knobs) if config not in first)

    @cached_property
    def listed(self) -> tuple[Config, ...] | None:
        """Every allowed config, as `configs` gives them; None if there are too many."""
        found = tuple(itertools.islice(self.configs(), MOST_LISTED + 1))
        return found if len(found) <= MOST_LISTED else None

    @property
    def num_configs(self) -> int | None:
        """Number of allowed configs; None if there are too many to list."""
        return None if self.listed is None else len(self.listed)

    def size(self, limit: int) -> int:
        """Number of allowed configs, counted up to `limit`."""
        return sum(1 for _ in itertools.islice(self.configs(), limit))

    def forbidden(self, config: Config) -> str | None:
        """Why this combination is not tried, or None."""
        return next((because for pattern, because in self.forbid if config.matches(pattern)), None)

    def holds(self, config: Config) -> bool:
        """Whether it is a config of this space: the active knobs, each with an offered value, and not forbidden."""

        def choose(name: str, values: tuple[Scalar, ...]) -> Scalar:
            return config[name] if name in config.root and is_among(config[name], values) else values[0]

        return self.walk(choose) == config and self.forbidden(config) is None

    def projected(self, config: Config) -> Config:
        """A config of another space as far as it can be said in this one: what is not on offer, or not set, has its
        default."""
        defaults = {knob.name: knob.default for knob in self.knobs}

        def choose(name: str, values: tuple[Scalar, ...]) -> Scalar:
            return config[name] if config.matches({name: list(values)}) else defaults[name]

        return self.walk(choose)

    def compiled_part(self, config: Config) -> Config:
        """The config without the knobs that only change how compiled code runs."""
        runtime = {knob.name for knob in self.knobs if knob.runtime}
        return Config({name: value for name, value in config.root.items() if name not in runtime})

    def rounding(self, config: Config) -> Config:
        """The settings of a config that are known to round."""
        given = ((knob.name, knob.rounding) for knob in self.knobs if knob.name in config.root)
        return Config({name: config[name] for name, rounding in given if is_among(config[name], rounding)})

    def without_rounding(self, config: Config) -> Config:
        """The config with the defaults of those settings in their place."""
        rounding = self.rounding(config).root
        return self.projected(Config({name: value for name, value in config.root.items() if name not in rounding}))

    def simplicity(self, config: Config) -> tuple[int, bool]:
        """Smaller is simpler: how many knobs differ from the untuned model or from the framework's default compile,
        whichever is nearer, and whether that is the compile. So settings that gain something by themselves are simpler
        without it."""
        from_untuned, from_default = (len(config.differing(start)) for start in (self.untuned(), self.default()))
        return min(from_untuned, from_default), from_default < from_untuned

    def _expand(self, settings: dict[str, Scalar], remaining: tuple[Knob, ...]) -> Iterator[Config]:
        if not remaining:
            config = Config(settings)
            if self.forbidden(config) is None:
                yield config
            return
        knob, *later = remaining
        if not fits(settings, knob.when):
            yield from self._expand(settings, tuple(later))
            return
        for value in knob.values:
            yield from self._expand({**settings, knob.name: value}, tuple(later))


def is_among(value: Scalar, values: tuple[Scalar, ...]) -> bool:
    """Membership that distinguishes 1 from True."""
    return any(value == offered and type(value) is type(offered) for offered in values)
