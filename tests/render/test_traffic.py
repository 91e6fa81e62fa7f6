"""What a report says of a study under traffic, from recorded trials; no process runs."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from autotune.answer.result import StudyResult
from autotune.answer.sections.traffic import NUM_SHOWN, TrafficSection, pass_line
from autotune.measure.diagnosis import Compilations
from autotune.measure.measurement import Replay, Samples
from autotune.measure.objective import Objective
from autotune.render.terminal import drawn
from autotune.workload.traffic import parse_shapes
from tests.asking import ask


def replayed(measurement, num_shapes, call_s, *, cold_s, compilations):
    replay = Replay(
        sizes=tuple({"seq": size} for size in range(1, num_shapes + 1)), stream=tuple(range(num_shapes)),
        cold_s=(cold_s, *[call_s] * (num_shapes - 1)), compilations=compilations,
    )  # fmt: skip
    samples = Samples(latency_s=(call_s,) * (2 * num_shapes), steady=True, ended_by="time")
    return measurement.model_copy(update={"replay": replay, "samples": samples, "first_call_s": cold_s})


def compiled(num_graphs, num_given_up, num_calls):
    """All graphs in the first call."""
    return (Compilations(num_graphs=num_graphs, num_given_up=num_given_up),) * num_calls


@pytest.fixture
def study_of(make_study, workload, measurement):
    """A study of sizes 1 to N: untuned 40 ms a call, and the default compile 10 ms after 2 s."""

    def make(num_shapes):
        traffic = parse_shapes([f"seq=1..{num_shapes}"])
        study = make_study(
            workload=workload.model_copy(update={"traffic": traffic}), objectives=(Objective.parse("total:1000"),)
        )
        for call_s, cold_s, (num_graphs, num_given_up) in ((0.04, 0.04, (0, 0)), (0.01, 2.0, (8, 1))):
            asked = ask(study)
            said = compiled(num_graphs, num_given_up, num_shapes)
            study.tell(asked, replayed(measurement, num_shapes, call_s, cold_s=cold_s, compilations=said))
        return study

    return make


def shown(answer):
    console = Console(file=io.StringIO(), width=200)
    console.print(*map(drawn, TrafficSection(answer).tables()))
    return console.file.getvalue()


def test_a_long_list_is_thinned_out(study_of):
    """The first and the last are shown, and so many in all; the document has every one."""
    answer = StudyResult(study_of(40))
    text = shown(answer)
    assert f"{NUM_SHOWN} of 40 shapes shown" in text
    assert sum(line.startswith("seq=") for line in text.splitlines()) == NUM_SHOWN
    assert {"seq=1 ", "seq=40"} <= {line[:6] for line in text.splitlines()}
    document = TrafficSection(answer).document()["traffic"]
    assert len(document["shapes"]) == document["num_calls"] == 40
    assert document["passes"]["tuned"] == {
        "cold_s": pytest.approx(2.39), "steady_s": pytest.approx(0.4), "compilations": 8, "fallbacks": 1,
    }  # fmt: skip


def test_what_is_unknown_is_not_counted(measurement):
    """A framework that does not tell what it compiled leaves that part out."""
    silent = replayed(measurement, 2, 0.01, cold_s=1.0, compilations=None)
    assert pass_line(silent) == "first pass 1.01 s, then 20 ms"
