"""Whatever a job applies, whatever is wrong on one rank: nobody waits for long, all decide alike, one rank says why,
and what is applied afterwards finds its partners."""

from __future__ import annotations

import pytest

import autotune

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


from autotune.errors import InputError  # noqa: E402
from tests.stand_ins.applied import APPLY, applied, files, net, state  # noqa: E402
from tests.stand_ins.simulated_ranks import SimulatedRanks  # noqa: E402

LIMIT_S = 60.0
LATE_S, TOO_LATE_S = 20.0, 200.0
REASONS = {
    "file missing": "rank {}: cannot read ",
    "unreadable": "broken.yaml",
    "other file": "has another file than rank",
    "part missing": "rank {}: ",
    "other structure": "rank {}: ",
    "no such compiler": "none_such",
    "raises": "rank {}: cannot read ",
    "interrupted": "rank {}: KeyboardInterrupt",
    "only the others apply": "rank {}: no answer within 50 s",
    "too late": "rank {}: no answer within 50 s",
}
"""Fault -> what the warning says of the rank that has it."""
FAULTS = ["none", "late", *REASONS]
WAITED_FOR = ("late", "too late", "only the others apply")
ROWS = [(form, fault) for form in ("file", "step", "pipeline") for fault in FAULTS]
ROWS = [(form, fault) for form, fault in ROWS if fault != "part missing" or form == "pipeline"]
ROWS += [("generation", fault) for fault in ("none", "file missing", "other file", "too late")]
ROWS += [("trainer", fault) for fault in ("none", "file missing", "late")]


def row(rank, time, form, fault, faulty, paths):
    """One rank's part in a row of the table: (state, seconds in `apply`, those of a later one, its state)."""
    own = fault if rank == faulty else "none"
    time.sleep({"late": LATE_S, "too late": TOO_LATE_S}.get(own, 0.0))
    begun, stands = time.monotonic(), None
    try:
        if own == "interrupted":
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("autotune.job.apply.differences", interrupt)
                applied(form, own, paths)
        elif own != "only the others apply":
            stands = state(applied(form, own, paths))
    except (InputError, KeyboardInterrupt):
        stands = "raised"
    waited = time.monotonic() - begun
    if fault in WAITED_FOR:
        time.sleep(300 - time.monotonic())  # As in a barrier of the job's.
    begun = time.monotonic()
    later = autotune.load(paths["later"]).apply(net(4))
    return stands, waited, time.monotonic() - begun, state(later)


def interrupt(*_):
    raise KeyboardInterrupt


def said(outcomes):
    """(rank, line) of each warning; and the ranks that say for whom they wait."""
    lines = [(rank, line) for rank, outcome in enumerate(outcomes) for line in outcome.warnings]
    waiting = [(rank, line) for rank, line in lines if ": waits for rank " in line]
    return [line for line in lines if line not in waiting], waiting


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Form -> fault -> path."""
    return {form: files(tmp_path_factory.mktemp(form), form) for form in APPLY}


@pytest.mark.fast_cases("file", "raises", "none", "part missing")
@pytest.mark.parametrize(("form", "fault"), ROWS)
def test_a_fault_of_one_rank(paths, form, fault):
    """All tuned or none, within the limit, with one warning of one rank; a later model is tuned."""
    is_tuned = fault in ("none", "late") and form != "generation"
    for faulty in (0, 1):
        outcomes = SimulatedRanks(2).run(row, form, fault, faulty, paths[form])
        assert [outcome.error for outcome in outcomes] == [None, None]
        (sound, *waits, later), (odd, *waits_of_odd, later_of_odd) = [
            outcomes[rank].value for rank in (1 - faulty, faulty)
        ]
        assert sound == ("settling" if is_tuned else "untuned")
        assert odd == {"only the others apply": None, "raises": "raised", "interrupted": "raised"}.get(fault, sound)
        assert max(waits[0], waits_of_odd[0]) <= (LIMIT_S if fault in WAITED_FOR else 1.0)
        assert max(waits[1], waits_of_odd[1]) <= 1.0
        assert [later, later_of_odd] == ["settling", "settling"]
        warnings, waiting = said(outcomes)
        assert [rank for rank, _ in waiting] == ([1 - faulty] if fault in WAITED_FOR else [])
        assert all(f"waits for rank {faulty}, at most 50 s in all" in line for _, line in waiting)
        if is_tuned:
            assert warnings == []
            continue
        [(rank, line)] = warnings
        assert rank == (1 - faulty if fault in WAITED_FOR or odd == "raised" else 0)
        assert REASONS.get(fault, "").format(faulty) in line or form == "generation"
        assert "untuned on all of the 2 ranks" in line


def on_another_model(_rank, _time, path):
    return state(autotune.load(path).apply(net(9)))


def test_what_is_wrong_on_all_ranks(paths):
    """It is said once, and no rank is named: nobody differs from anybody."""
    outcomes = SimulatedRanks(2).run(on_another_model, paths["file"][""])
    assert [outcome.value for outcome in outcomes] == ["untuned"] * 2
    [(rank, line)], _ = said(outcomes)
    assert rank == 0
    assert "other parameters" in line
    assert "rank 1" not in line


def by_its_own_word(rank, time, path, ranks):
    stands = state(autotune.load(path).apply(net(), ranks=ranks)) if rank == 0 else None
    return stands, time.monotonic()


@pytest.mark.parametrize(("ranks", "stands"), [([0], "settling"), ([1], "untuned"), ([0, 7], "untuned")])
def test_a_rank_that_decides_alone(paths, ranks, stands):
    """It says so, and waits for nobody; one that names other ranks than there are stays untuned, with a warning."""
    outcomes = SimulatedRanks(2).run(by_its_own_word, paths["file"][""], ranks)
    assert outcomes[0].value == (stands, 0.0)
    assert [f"ranks={ranks} was given on rank 0 of 2" in line for _, line in said(outcomes)[0]] == (
        [] if stands == "settling" else [True]
    )
