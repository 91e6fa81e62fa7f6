"""What a question says of the shapes of calls: the traffic, and what follows from it for the rest of the study."""

from __future__ import annotations

from collections.abc import Iterable

from autotune.measure.objective import LATENCY, Objective
from autotune.question.allows import asks_for_many_shapes
from autotune.question.question import Question
from autotune.space.schema import Need
from autotune.workload.traffic import Traffic, parse_shapes, read_traffic
from autotune.workload.workload import STREAM_CALLS, Workload

UNDER_TRAFFIC = "total:1000"
"""What is wanted of a model that sees many shapes, unless said otherwise: each new one may have to be compiled."""


def shapes_asked(question: Question) -> Traffic | None:
    """None: the model is called with one shape. Raises InputError."""
    if not asks_for_many_shapes(question):
        return None
    return parse_shapes(question.shapes) if question.traffic is None else read_traffic(question.traffic)


def objective_asked(question: Question, shapes: Traffic | None) -> Objective:
    """Under traffic the total of a job, unless the question says another. Raises InputError."""
    return Objective.parse(question.objective or (LATENCY.name if shapes is None else UNDER_TRAFFIC))


def with_shapes(workload: Workload, shapes: Traffic | None, objective: Objective) -> Workload:
    """The workload called with these shapes: its function makes each dimension's largest size, and a trial replays at
    most as many calls as a `total:CALLS` objective has."""
    if shapes is None:
        return workload
    arguments = {**workload.arguments, **shapes.largest}
    stream_calls = min(STREAM_CALLS, objective.num_calls or STREAM_CALLS)
    return workload.model_copy(update={"arguments": arguments, "traffic": shapes, "stream_calls": stream_calls})


def known_shapes(workload: Workload, padded: Iterable[str]) -> frozenset[Need]:
    """What decides which strategies a search space offers. `padded` are the dimensions that may be padded, as the model
    declares them."""
    traffic = workload.traffic
    if traffic is None:
        return frozenset({"one shape"})
    varying = [name for name in traffic.dimensions if len(traffic.sizes_of(name)) > 1]
    known: set[Need] = {"traffic"}
    if set(padded).intersection(varying):
        known.add("padding")
    return frozenset(known)
