"""`tune --dry-run`, and what is said before the first trial."""

from __future__ import annotations

import json

import pytest

from autotune.answer.expected_cost import ExpectedCost, cost_lines
from autotune.study.study import Study


def test_a_dry_run_says_what_is_known_and_leaves_nothing(tune_fake, tmp_path):
    """Without an earlier study only limits are known; no study is made."""
    result = tune_fake("--dry-run", "--trials", "6")
    assert result.returncode == 0, result.stderr
    lines = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
    assert lines["study"] == "s"
    assert lines["configs"] == "15; trials: 6 at most"
    assert lines["expected"].startswith("not known")
    assert lines["at"].startswith("most")
    assert lines["machine"] == "quiet"
    assert not (tmp_path / "studies").exists()


@pytest.mark.slow
def test_an_earlier_study_of_the_model_tells_what_a_trial_takes(tune_fake, cli):
    """Its own trials are not counted twice, and its settings must be the same."""
    said = tune_fake("--trials", "3").stderr
    assert "at most" in said.split("trial   0")[0]
    document = json.loads(tune_fake("--dry-run", "--json", "--trials", "6").stdout)
    assert document["based_on"] == "s"
    assert document["num_trials"] == 6 - document["num_done"] < 6
    assert document["expected_s"] == document["num_trials"] * document["trial_s"] + document["blocks_s"]
    other = json.loads(tune_fake("--dry-run", "--json", "--study", "t").stdout)
    assert (other["based_on"], other["num_done"]) == ("s", 0)
    refusal = tune_fake("--dry-run", "--tolerance", "0.5")
    assert (refusal.returncode, "different settings" in refusal.stderr) == (2, True)


def test_a_busy_machine_is_said(tune_fake, monkeypatch):
    """Before anything is started."""
    monkeypatch.setattr("autotune.tuning.attempts.taken_cores", lambda _: 1.5)
    assert "busy: 1.5 of " in tune_fake("--dry-run").stdout


@pytest.mark.parametrize(("wall_s", "expected_s"), [(None, 130), (60, 60)])
def test_no_more_is_expected_than_there_is_time_for(wall_s, expected_s):
    """A budget holds the confirmation."""
    cost = ExpectedCost(100, 0, 10, 900, wall_s, "s", trial_s=10, blocks_s=30)
    assert (cost.expected_s, cost.trials_at_most_s) == (expected_s, 9000)


@pytest.mark.parametrize(
    ("wall_s", "words"),
    [(None, "after about 70 s, where a config gains 1.5x; then the search goes on"), (60, "would be needed")],
)
def test_a_first_answer_is_expected_by_then(wall_s, words):
    """And a run that is too short for it names the time that is not."""
    cost = ExpectedCost(100, 0, 10, 900, wall_s, "s", trial_s=10, blocks_s=30, answer_s=69)
    assert [line.endswith(words) for line in cost_lines(cost) if line.startswith("answer ")] == [True]


def test_a_study_that_goes_on_is_opened_once(tune_fake, monkeypatch):
    """For what it costs and for the run."""
    tune_fake("--trials", "2")
    opened = []
    init = Study.__init__

    def note(self, studies, folder, *more):
        opened.append(folder.name)
        init(self, studies, folder, *more)

    monkeypatch.setattr(Study, "__init__", note)
    said = tune_fake("--trials", "2").stderr
    assert "(by study s)" in said
    assert opened == ["s"]
    tune_fake("--trials", "2", "--dry-run")
    assert opened == ["s", "s"]
