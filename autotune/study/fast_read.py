"""Optuna's trials, read straight from the tables of its SQLite file.

Optuna builds an object for each of a trial's some twenty rows, and parses all its attributes: ten thousand trials took
7 s of CPU. Here a table is one query, and what is long, a trial's own attributes with all its samples, stays text until
somebody asks for it: 0.4 s. The trials are of Optuna's own class; a test holds them against what Optuna itself reads.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from optuna.distributions import BaseDistribution, json_to_distribution
from optuna.trial import FrozenTrial, TrialState

Rows = Iterator[tuple[Any, ...]]

_VALUES = {"INF_POS": math.inf, "INF_NEG": -math.inf}
_MAX_NAMED = 900
"""SQLite takes some thousand parameters in a statement, older releases 999."""


class JsonTexts(Mapping[str, Any]):
    """Attributes by name; each is parsed when it is asked for, every time anew."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def __getitem__(self, name: str) -> Any:
        return json.loads(self.texts[name])

    def __contains__(self, name: object) -> bool:
        return name in self.texts

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)

    def __len__(self) -> int:
        return len(self.texts)

    def __repr__(self) -> str:
        return repr(dict(self))


def read_trials(connection: sqlite3.Connection, study_id: int, after: int, also: Collection[int]) -> list[FrozenTrial]:
    """The study's trials whose id is above `after` or in `also` (and maybe others), in the order of their ids."""
    wanted = _Wanted(after, sorted(also)) if len(also) <= _MAX_NAMED else _Wanted(min(after, min(also) - 1), [])
    head = "SELECT trial_id, number, state, datetime_start, datetime_complete FROM trials WHERE study_id = ? AND "
    trials = connection.execute(f"{head}{wanted.clause} ORDER BY trial_id", (study_id, *wanted.values)).fetchall()
    params, distributions = _params(_rows(connection, "param_name, param_value, distribution_json", "params", wanted))
    values = _values(_rows(connection, "objective, value, value_type", "values", wanted))
    user_attrs: dict[int, JsonTexts] = defaultdict(JsonTexts)
    for trial_id, name, text in _rows(connection, "key, value_json", "user_attributes", wanted):
        user_attrs[trial_id].texts[name] = text
    system_attrs: dict[int, dict[str, Any]] = defaultdict(dict)
    for trial_id, name, text in _rows(connection, "key, value_json", "system_attributes", wanted):
        system_attrs[trial_id][name] = json.loads(text)
    steps: dict[int, dict[int, float]] = defaultdict(dict)
    step_columns = "step, intermediate_value, intermediate_value_type"
    for trial_id, step, value, kind in _rows(connection, step_columns, "intermediate_values", wanted):
        steps[trial_id][step] = _number(value, kind)
    return [
        FrozenTrial(
            number=number,
            state=TrialState[state],
            value=None,
            values=values.get(trial_id),
            datetime_start=_local(start),
            datetime_complete=_local(complete),
            params=params[trial_id],
            distributions=distributions[trial_id],
            user_attrs=user_attrs[trial_id],  # type: ignore[arg-type]
            system_attrs=system_attrs[trial_id],
            intermediate_values=steps[trial_id],
            trial_id=trial_id,
        )
        for trial_id, number, state, start, complete in trials
    ]


class _Wanted:
    """Which trials, as a clause of SQL and its values."""

    def __init__(self, after: int, also: list[int]) -> None:
        named = f" OR trial_id IN ({', '.join('?' * len(also))})" if also else ""
        self.clause = f"(trial_id > ?{named})"
        self.values = (after, *also)


def _rows(connection: sqlite3.Connection, columns: str, table: str, wanted: _Wanted) -> Rows:
    """In the order in which they were written."""
    statement = f"SELECT trial_id, {columns} FROM trial_{table} WHERE {wanted.clause} ORDER BY rowid"
    return iter(connection.execute(statement, wanted.values))


def _params(rows: Rows) -> tuple[dict[int, dict[str, Any]], dict[int, dict[str, BaseDistribution]]]:
    """Values and distributions by trial. Trials share their distributions, which are never changed."""
    known: dict[str, BaseDistribution] = {}
    params: dict[int, dict[str, Any]] = defaultdict(dict)
    distributions: dict[int, dict[str, BaseDistribution]] = defaultdict(dict)
    for trial_id, name, value, text in rows:
        distribution = known.get(text)
        if distribution is None:
            distribution = known[text] = json_to_distribution(text)
        params[trial_id][name] = distribution.to_external_repr(value)
        distributions[trial_id][name] = distribution
    return params, distributions


def _values(rows: Rows) -> dict[int, list[float]]:
    by_objective: dict[int, dict[int, float]] = defaultdict(dict)
    for trial_id, objective, value, kind in rows:
        by_objective[trial_id][objective] = _number(value, kind)
    return {trial_id: [values[n] for n in sorted(values)] for trial_id, values in by_objective.items()}


def _number(value: float | None, kind: str) -> float:
    """Infinities are stored by name, and a NaN, among intermediate values only, as nothing."""
    return _VALUES.get(kind, math.nan) if value is None else value


def _local(text: str | None) -> datetime | None:
    """Times are stored in UTC without saying so, and are local in Optuna's trials."""
    return None if text is None else datetime.fromisoformat(text).replace(tzinfo=UTC).astimezone().replace(tzinfo=None)
