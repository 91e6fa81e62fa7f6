"""`portfolio_for`: configs that complement each other, with which a study of a new model begins.

What the package knows is a table for each framework, device and task: how much faster than untuned each of a dozen or
two of configs made models of many kinds (`portfolio.json`, recorded and rebuilt by `benchmarks/portfolio.py`). From it
a few are chosen for the space of a study, one after the other: the next is the one that makes the most models faster
than those before did. So a config that is good where another is good as well takes no place, and a space without
some settings gets what is best without them. What users write by hand is among them whatever it gained there: a search
that leaves it for later can be beaten by one line. It changes the order of trials and nothing else.

Beside these come the recipes of the space, settings that pay together by public reports: nothing is known of them here.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from autotune.config import Config, Scalar
from autotune.schema import Record, SparseRecord
from autotune.space.space import Recipe, SearchSpace
from autotune.workload.workload import Device, Task

FILE = Path(__file__).with_name("portfolio.json")
MOST_CHOSEN = 4
"""Configs beside the untuned and the default one, and those that users write by hand."""
NOISE = 0.1
"""What a config adds on a model counts beyond this, as a logarithm: processes that were recorded differ by as much."""
WORTH_A_PLACE = 0.004
"""Mean over the kinds of models of what a config adds, as a logarithm; with less it is not taken."""
COST_POWER = 0.25
"""What a config adds is divided by the seconds of its trial to this power."""


WORTH_TELLING = 1.3
"""Mean gain over what a space offers, from which settings that it leaves out are named."""


class Entry(Record):
    """A config, by the settings in which it is not the default, and what it did for each model of the table."""

    config: Config
    seconds: PositiveFloat
    """CPU seconds of a trial, the median over the models: the cheapest come first."""
    gains: tuple[PositiveFloat | None, ...]
    """How many times as fast as untuned each model was; None: it failed, was wrong, or was not tried."""
    best_on: tuple[str, ...]
    """Models on which no other config of the table was notably faster."""
    instead: Config | None = None
    """An entry of the same code that sets less in the process: where a space has it, this one is not tried."""


class PortfolioTable(Record):
    """What was recorded for a framework, a device and a task."""

    framework: str
    release: str
    device: Device
    task: Task
    processor: str
    num_cores: PositiveInt
    space: str
    """Fingerprint of the space for which the configs were written."""
    models: tuple[str, ...]
    kinds: tuple[str, ...]
    """The kind of each model: kinds count alike, however many models they have."""
    process: tuple[str, ...]
    """Knobs of settings of the whole process, which a study has only where it is asked to."""
    by_hand: tuple[Config, ...] = ()
    """Entries, beside the default, that users write by hand: they need no gain to be tried."""
    entries: tuple[Entry, ...]


class PortfolioFile(Record):
    """All tables."""

    schema_: Literal[1] = Field(1, alias="schema")
    tables: tuple[PortfolioTable, ...]


class Portfolio(SparseRecord):
    """The configs that a study begins with, in order, as they are stored with it."""

    ABSENT: ClassVar[frozenset[str]] = frozenset({"recipes"})

    configs: Annotated[tuple[Config, ...], Field(min_length=1)]
    """The untuned one, then what is expected to gain most in the least time, the default and recipes among them."""
    num_models: PositiveInt | None = None
    """So many models they were chosen on, but for the recipes; None: nothing was recorded."""
    recipes: tuple[Recipe, ...] = ()
    """Those that are among the configs."""


class Beyond(Record):
    """Settings that a space leaves out, and what they added on the models that were recorded."""

    settings: dict[str, Scalar]
    ratio: float
    """Mean over the kinds of models, over the best that the space offers."""
    num_models: PositiveInt
    processor: str


@cache
def recorded() -> tuple[PortfolioTable, ...]:
    """What the package knows."""
    return PortfolioFile.model_validate_json(FILE.read_bytes()).tables


def portfolio_for(
    space: SearchSpace, device: str, task: str, tables: Sequence[PortfolioTable] | None = None
) -> Portfolio | None:
    """What to begin with in this space; None where nothing is known but the untuned and the default config.

    Recipes follow the first of the recorded configs, and those that take minutes come last.
    """
    table = _table_for(space, device, task, tables)
    best = () if table is None else _recorded_for(space, table)
    known = best or space.anchors()
    recipes = {config: recipe for recipe, config in _sayable(space) if config not in known}
    if not (best or recipes):
        return None
    quick = [config for config, recipe in recipes.items() if not recipe.slow]
    slow = [config for config, recipe in recipes.items() if recipe.slow]
    num_before = 2 if best else 1
    return Portfolio(
        configs=(*known[:num_before], *quick, *known[num_before:], *slow),
        num_models=len(table.models) if table is not None and best else None,
        recipes=tuple(recipes.values()),
    )


def _sayable(space: SearchSpace) -> Iterator[tuple[Recipe, Config]]:
    """The recipes with their whole configs; without those that cannot be said, or are forbidden, in the space."""
    for recipe in space.recipes:
        config = _in_space(recipe.settings, space)
        if config is not None:
            yield recipe, config


def _recorded_for(space: SearchSpace, table: PortfolioTable) -> tuple[Config, ...]:
    """What is known of the table's models, the untuned config first; empty where that is no more than the default."""
    offered = _offered(table, space)
    untuned, default = space.untuned(), space.default()
    taken = {config: entry for config, entry in offered.items() if config == default or entry.config in table.by_hand}
    free = [entry for config, entry in offered.items() if config not in (untuned, *taken)]
    chosen = choose(table, list(taken.values()), free)
    if not chosen and taken.keys() <= {default}:
        return ()
    configs = {id(entry): config for config, entry in offered.items()}
    order = by_worth(table, [*taken.values(), *chosen])
    unknown = [] if default in taken else [default]
    return (untuned, *unknown, *(configs[id(entry)] for entry in order))


def beyond(space: SearchSpace, device: str, task: str, tables: Sequence[PortfolioTable] | None = None) -> Beyond | None:
    """The settings of the process that would have added most; None where none added much, or the space has them."""
    table = _table_for(space, device, task, tables)
    if table is None:
        return None
    missing = set(table.process) - {knob.name for knob in space.knobs}
    offered = _best([entry for entry in table.entries if _in_space(entry.config, space) is not None], table)
    found: list[tuple[float, int, dict[str, Scalar]]] = []
    for entry in table.entries:
        more = {name: value for name, value in entry.config.root.items() if name in missing}
        rest = {name: value for name, value in entry.config.root.items() if name not in missing}
        if more and _in_space(Config(rest), space) is not None:
            own = [None if gain is None else math.log(gain) for gain in entry.gains]
            of_kinds: dict[str, list[float]] = {}
            for kind, gain, best in zip(table.kinds, own, offered, strict=True):
                if gain is not None:
                    of_kinds.setdefault(kind, []).append(gain - best)
            if len(of_kinds) * 2 > len(set(table.kinds)):
                mean = statistics.fmean(map(statistics.fmean, of_kinds.values()))
                found.append((mean, sum(gain is not None for gain in own), more))
    mean, num_models, more = max(found, key=lambda each: each[0], default=(0.0, 0, {}))
    if mean < math.log(WORTH_TELLING):
        return None
    return Beyond(settings=more, ratio=math.exp(mean), num_models=num_models, processor=table.processor)


def choose(table: PortfolioTable, taken: Sequence[Entry], free: Sequence[Entry]) -> list[Entry]:
    """At most `MOST_CHOSEN` of the free entries, each the one that adds most to those before it for its cost. One that
    later ones have made superfluous loses its place."""
    left, chosen = list(free), list[Entry]()
    while left and len(chosen) < MOST_CHOSEN:
        added = {number: adds(table, entry, [*taken, *chosen], NOISE) for number, entry in enumerate(left)}
        best = max(added, key=lambda number: added[number] / left[number].seconds ** COST_POWER)
        if added[best] < WORTH_A_PLACE:
            break
        chosen.append(left.pop(best))
        for entry in chosen[:-1]:
            others = [other for other in chosen if other is not entry]
            if adds(table, entry, [*taken, *others], NOISE) < WORTH_A_PLACE:
                chosen = others
    return chosen


def by_worth(table: PortfolioTable, entries: Sequence[Entry]) -> list[Entry]:
    """In the order in which they are tried: the next adds most to those before it for a second of its trial."""
    left, order = list(entries), list[Entry]()
    while left:
        worth = [adds(table, entry, order) / entry.seconds for entry in left]
        order.append(left.pop(worth.index(max(worth))))
    return order


def adds(table: PortfolioTable, entry: Entry, others: Sequence[Entry], beyond: float = 0.0) -> float:
    """The mean over the kinds of models of what the entry gains beyond the best of the others, as a logarithm."""
    weights = [1 / table.kinds.count(kind) / len(set(table.kinds)) for kind in table.kinds]
    gained = (own - most - beyond for own, most in zip(_best([entry], table), _best(others, table), strict=True))
    return sum(weight * max(gain, 0.0) for weight, gain in zip(weights, gained, strict=True))


def _table_for(
    space: SearchSpace, device: str, task: str, tables: Sequence[PortfolioTable] | None
) -> PortfolioTable | None:
    wanted = (space.framework, device, task)
    known = recorded() if tables is None else tables
    return next((table for table in known if (table.framework, table.device, table.task) == wanted), None)


def _best(entries: Sequence[Entry], table: PortfolioTable) -> list[float]:
    """The best logarithm of a gain on each model; what is slower than untuned, or unknown, gains nothing."""
    return [
        max([0.0, *(math.log(entry.gains[number] or 1.0) for entry in entries)]) for number in range(len(table.models))
    ]


def _offered(table: PortfolioTable, space: SearchSpace) -> dict[Config, Entry]:
    """The entries that the space has, by their whole configs there."""
    found = {config: entry for entry in table.entries if (config := _in_space(entry.config, space)) is not None}
    written = {entry.config for entry in found.values()}
    return {config: entry for config, entry in found.items() if entry.instead not in written}


def _in_space(settings: Config, space: SearchSpace) -> Config | None:
    """The config with these settings; None where one of them is not on offer or the whole is forbidden."""
    config = space.projected(settings)
    return config if config.matches(settings.root) and space.forbidden(config) is None else None
