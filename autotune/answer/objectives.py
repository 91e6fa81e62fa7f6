"""What a study is after, in words: values of its objective, and what a verdict about it says."""

from __future__ import annotations

from autotune.answer.format import amount, count, interval, num_bytes, percent, seconds, times
from autotune.measure.objective import Objective
from autotune.measure.statistics import ERROR, Speedup, inverse
from autotune.study.records import Confirmation, StopReason, TrialRecord

NO_MARGIN = 0.5
"""Share by which processes of the untuned model differ from which on nobody asks for a gain beyond it."""
_RATIOS = {
    "latency": "",
    "p90": " in the 90th percentile",
    "p99": " in the 99th percentile",
    "throughput": " the throughput",
    "ttft": " to the first token",
    "tpot": " for each further token",
}
_GAINS = {
    "memory": (" less peak memory", " more peak memory"),
    "compile": (" sooner with the first result", " later with the first result"),
    "total": (" less time for the whole job of {calls} calls", " more time for the whole job of {calls} calls"),
}
"""A gain, and a loss: nobody says 0.33 times less."""
_BETTER = {
    "p90": "be {more}faster in the 90th percentile than",
    "p99": "be {more}faster in the 99th percentile than",
    "throughput": "have {more}more throughput than",
    "ttft": "be {more}faster to the first token than",
    "tpot": "be {more}faster for each further token than",
    "memory": "need {more}less peak memory than",
    "compile": "give its first result {more}sooner than",
    "total": "need {more}less time for the whole job of {calls} calls than",
}
_STOPS = {
    StopReason.EXHAUSTED: "every config was tried",
    StopReason.TRIALS: "trial limit reached",
    StopReason.UNPROMISING: "no remaining config is likely to improve the result",
    StopReason.TIME: "time limit reached",
}

WIDEST = 4.0
"""Factor between the ends of an interval beyond which its middle is not said."""


def shown(objective: Objective, value: float) -> str:
    """A value of the objective with its unit, e.g. `23.7 ms`, `104 MiB` or, of a throughput, `1,234/s`."""
    if objective.quantity == "throughput":
        return amount(1 / value, "/s")
    return amount(value, "B" if objective.quantity == "memory" else "s")


def faster(objective: Objective, speedup: Speedup) -> str:
    """The headline of a gain, e.g. `faster: 1.46x (98 % interval 1.40x to 1.52x)`. Where blocks scatter so widely that
    their middle is a matter of chance, as beside other programs, the lower end is said: `faster: at least 3.29x`."""
    least = Speedup(median=speedup.low, low=speedup.low, high=speedup.low)
    is_by_chance = speedup.high > WIDEST * speedup.low
    said = f"at least {ratio(objective, least)} {_ends(speedup)}" if is_by_chance else gain(objective, speedup)
    return f"{'faster' if objective.is_latency else 'better'}: {said}"


def gain(objective: Objective, speedup: Speedup) -> str:
    """A speed-up with what it is one of, e.g. `1.30x less peak memory (98 % interval 1.28x to 1.31x)`."""
    is_turned = objective.quantity in _GAINS and speedup.median < 1
    return f"{ratio(objective, speedup)} {_ends(inverse(speedup) if is_turned else speedup)}"


def _ends(speedup: Speedup) -> str:
    """Its interval alone, in brackets."""
    return interval(speedup).partition(" ")[2]


def ratio(objective: Objective, speedup: Speedup) -> str:
    """A speed-up without its interval, e.g. `1.30x less peak memory`."""
    if objective.quantity not in _GAINS:
        return times(speedup.median) + _RATIOS.get(objective.quantity, "")
    is_loss = speedup.median < 1
    what = _GAINS[objective.quantity][is_loss].format(calls=count(objective.num_calls))
    return times(1 / speedup.median if is_loss else speedup.median) + what


def how_sure(confirmation: Confirmation) -> str:
    """How probable it is that the candidate gains enough, e.g. `94 % sure to gain more than 1.0 %`; empty if nothing is
    known of it, if the untuned model's own processes differ by more than gains do, or if it sounds like a proof: few
    blocks that scatter do not prove what they make probable."""
    if confirmation.confidence is None or confirmation.confidence >= 1 - ERROR or confirmation.margin > NO_MARGIN:
        return ""
    return f"{int(100 * confirmation.confidence)} % sure to gain more than {percent(confirmation.margin)}"


def to_be_better(objective: Objective, margin: str = "") -> str:
    """What a config had to do, up to the word `than`: `be more than 1.0% faster than`."""
    more = f"more than {margin} " if margin else ""
    pattern = _BETTER.get(objective.quantity, "be {more}faster than")
    return pattern.format(more=more, calls=count(objective.num_calls))


def described(objective: Objective, value: float, record: TrialRecord) -> str:
    """The confirmed value of the objective, and beside it what its trial measured of the rest."""
    latency_s, memory = record.measurement.latency.p50, num_bytes(record.measurement.peak_memory_bytes)
    value_text, name = shown(objective, value), objective.name
    if objective.quantity == "throughput":
        p99 = seconds(record.measurement.latency.p99)
        return f"{amount(1 / value, '')} items a second, 99th percentile {p99} a call, memory {memory}"
    beside = {
        "memory": f"peak memory {value_text}, {seconds(latency_s)} a call",
        "compile": f"first result after {value_text}, {seconds(latency_s)} a call, memory {memory}",
        "total": f"{value_text} for {count(objective.num_calls)} calls, {seconds(latency_s)} a call, memory {memory}",
        "latency": f"{value_text} a call, memory {memory}",
        "ttft": f"first token after {value_text}, memory {memory}",
        "tpot": f"{value_text} for each further token, memory {memory}",
    }
    return beside.get(objective.quantity, f"{value_text} a call ({name}), memory {memory}")


def as_good_as(objective: Objective) -> str:
    """What a ratio is one of, for after `1.5x` or `times`."""
    what = {
        "memory": "as little peak memory as",
        "compile": "as soon with the first result as",
        "total": "as short a job as",
    }
    return what.get(objective.quantity, "as fast as")


def ratio_footnote(objective: Objective) -> str:
    """What the table's ratio is one of."""
    return f"* times {as_good_as(objective)} trial 0"


def stopped(reason: StopReason) -> str:
    """Why the search ended, e.g. `time limit reached`."""
    return _STOPS.get(reason, reason.value)
