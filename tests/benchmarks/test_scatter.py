"""Studies of processes that differ: what a record says of a study, and how studies are put together. Nothing is tuned
here."""

from __future__ import annotations

from dataclasses import replace

from benchmarks import scatter
from benchmarks.processes import Ratio
from benchmarks.scatter import MODELS, Case, Record, Row, Scattered

RECORD = Record("vit", "120s", "0123", 90.0, "faster", None, Ratio(2.0, 1.8, 2.16), Scattered(1.5, "page_faults", 0.9))


def document(**told) -> dict:
    """What `tune --json` prints, as far as it is read."""
    state = {"latency_s": 2.0, "page_faults": 7.0}
    return {
        "verdict": "faster",
        "baseline": {"trial": 0},
        "speedup": {"median": 2.0, "low": 1.8, "high": 2.16},
        "scatter": {"low_s": 2.0, "high_s": 3.0, "cause": "page_faults", "share": 0.9},
        "trials": [
            {"number": 0, "state": "measured", "latency_s": {"p50": 2.0}},
            {"number": 1, "state": "failed", "latency_s": None},
        ],
        "blocks": [{"values": {"0": 2.0, "3": 1.0}, "control": None, "states": {"0": state}}],
        **told,
    }


def test_a_record_holds_what_the_study_says():
    """The interval, the scatter, and rows on which other statistics can be tried."""
    case = Case(MODELS[0], 3, "120s")
    assert case.name == "elementwise 120s 3"
    record = scatter.record_of(case, 90.0, document())
    assert (record.verdict, record.refusal, record.speedup) == ("faster", None, Ratio(2.0, 1.8, 2.16))
    assert record.scatter == Scattered(1.5, "page_faults", 0.9)
    assert (record.trials_s, record.rows) == ({"0": 2.0}, [Row({"0": 2.0, "3": 1.0}, None, {"0": 7.0})])
    bare = scatter.record_of(case, 9.0, document(verdict=None, baseline=None, speedup=None, scatter=None))
    assert (bare.width, bare.scatter, bare.is_decided) == (None, None, False)
    assert bare.refusal == "the untuned model was not measured"


def test_a_cause_that_two_processes_show_explains_half():
    assert scatter.share_of("page_faults", {"share": None}) == 0.5
    assert scatter.share_of(None, {"share": None}) == 0.0


def test_studies_go_round_the_models():
    """Whoever stops the run after the first round has a study of each."""
    cases = scatter.cases(scatter.BENCHMARK.parser().parse_args(["--studies", "2"]))
    assert [case.of for case in cases] == [*MODELS, *MODELS]
    assert len({case.name for case in cases}) == 2 * len(MODELS) == 20


def test_a_row_has_shares_and_middles():
    """What is not explained counts in the share, and what does not differ does not."""
    unexplained = replace(RECORD, verdict="undecided", speedup=Ratio(1.5, 0.5, 2.0), scatter=Scattered(1.3, None, 0.0))
    calm = replace(RECORD, verdict="tie", speedup=None, scatter=None)
    text = scatter.section([RECORD, unexplained, calm])
    row = next(line for line in text.splitlines() if line.startswith("| all |"))
    assert row.split(" | ")[1:] == [
        "3", "2 of 3", "1 faster, 1 tie, 1 undecided", "2.60", "4.00", "2 of 3 (1.40x)", "1 page faults, 1 unexplained",
        "45 %", "90 s |",
    ]  # fmt: skip
