"""`tune --dry-run`."""

from __future__ import annotations

import json


def test_a_dry_run_says_what_is_known_and_leaves_nothing(tune_fake, tmp_path):
    """Without an earlier study only limits are known; no study is made."""
    result = tune_fake("--dry-run", "--trials", "6")
    assert result.returncode == 0, result.stderr
    lines = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
    assert lines["study"] == "s"
    assert lines["configs"] == "15; trials: 6 at most"
    assert lines["at"].startswith("most")
    assert lines["machine"] == "quiet"
    assert not (tmp_path / "studies").exists()


def test_the_trials_of_the_study_are_not_counted_twice(tune_fake):
    """And its settings must be the same."""
    tune_fake("--trials", "2")
    document = json.loads(tune_fake("--dry-run", "--json", "--trials", "6").stdout)
    assert (document["num_done"], document["num_trials"]) == (2, 4)
    assert document["trials_at_most_s"] == 4 * 900
    assert json.loads(tune_fake("--dry-run", "--json", "--study", "t").stdout)["num_done"] == 0
    refusal = tune_fake("--dry-run", "--tolerance", "0.5")
    assert (refusal.returncode, "different settings" in refusal.stderr) == (2, True)


def test_a_busy_machine_is_said(tune_fake, monkeypatch):
    """Before anything is started."""
    monkeypatch.setattr("autotune.tuning.attempts.taken_cores", lambda _: 1.5)
    assert "busy: 1.5 of " in tune_fake("--dry-run").stdout
