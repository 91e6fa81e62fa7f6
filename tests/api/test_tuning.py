"""`autotune.tune` and what it gives back, on the fake framework."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading

import pytest
import yaml

import autotune
from autotune import events
from autotune.answer.result import StudyResult
from autotune.errors import NoUsableTrialError, StoreError
from autotune.measure.measurement import Failure, Reason, Stage
from autotune.render.json import document
from autotune.study.folder import FolderStudies
from autotune.trial.processes import package_path
from tests.conftest import QUICK_BUDGET

pytestmark = pytest.mark.usefixtures("in_memory")


def failure(error):
    return Failure(reason=Reason.COMPILE_ERROR, stage=Stage.COMPILE, error=error, evidence="e")


def test_from_a_call_to_a_file_for_a_job(tune, scripted, tmp_path, cli):
    """Tune, read, export and load again; the command line reads the same study and writes the same file."""
    heard = []
    result = tune(study="s", trials=8, callbacks=heard.append)
    assert (result.verdict, result.study, result.best.config["latency_ms"]) == ("faster", "s", 2)
    assert 1.01 < result.speedup.low <= result.speedup.median <= result.speedup.high
    assert (result.untuned.number, result.stop_reason) == (0, "trials")
    assert {events.SearchStarted, events.TrialEnded, events.BlockMeasured} <= set(map(type, heard))

    assert json.loads(json.dumps(result.document())) == json.loads(cli("show", "s", "--json").stdout)
    assert cli("export", "s", "-o", "cli.yaml").returncode == 0
    tuned = result.export("best.yaml")
    assert (tmp_path / "best.yaml").read_text() == (tmp_path / "cli.yaml").read_text()
    assert yaml.safe_load((tmp_path / "best.yaml").read_text())["config"] == tuned.config.root

    again = autotune.load_study("s")
    assert (again.verdict, again.best.number, again.trials()) == ("faster", result.best.number, result.trials())
    assert str(result).startswith("faster: ")


def test_an_exported_config_is_measured_again(tune, scripted, scripted_pairs):
    """`verify` says whether it holds, `compare` which of two trials is faster; callbacks hear of each block."""
    result = tune(study="s", trials=8)
    result.export("best.yaml")
    blocks = []
    found = autotune.verify("best.yaml", budget=QUICK_BUDGET, callbacks=blocks.append)
    assert (found.outcome, found.result.speedup.median) == ("holds", pytest.approx(4))
    assert blocks == [events.PairMeasured(found.objective, 0.008, 0.002)] * len(found.result.comparison.blocks.values)
    best = result.best.number
    compared = autotune.compare(best, 0, study="s", budget=QUICK_BUDGET)
    assert compared.values == (0.002, 0.008)
    assert compared.speedup.high < 1
    assert autotune.compare("best.yaml", "best.yaml", budget=QUICK_BUDGET).speedup.median == pytest.approx(1)


@pytest.mark.slow
def test_with_real_processes(tune):
    """The same, measured: a search, a confirmation, a file, and `verify` of it. What they say is the machine's."""
    result = tune(trials=6)
    compared = result.answer.confirmation.compared
    assert result.verdict is not None
    result.export("best.yaml", trial=next(iter(compared)))
    found = autotune.verify("best.yaml", budget=QUICK_BUDGET)
    assert found.result.speedup is not None


def test_trials_are_plain_records(tune, scripted):
    """Seconds, bytes and names in JSON's types; the error of a failed trial; no pandas needed."""
    scripted(lambda config: failure("no such operator") if config.get("behaviour") == "breaks" else None)
    rows = tune(trials=8).trials()
    assert [row["number"] for row in rows] == list(range(len(rows)))
    assert len({tuple(row) for row in rows}) == 1, "all have the same keys"
    first = rows[0]
    assert (first["state"], first["latency_s"], first["objective"]) == ("measured", 0.008, 0.008)
    assert first["config"] == {"execution": "eager", "latency_ms": 8}
    (failed,) = [row for row in rows if row["config"].get("behaviour") == "breaks"][:1]
    assert (failed["state"], failed["reason"], failed["stage"]) == ("failed", "compile_error", "compile")
    assert (failed["error"], failed["latency_s"]) == ("no such operator", None)
    json.dumps([{key: value for key, value in row.items() if key not in ("started", "ended")} for row in rows])


def test_a_data_frame_needs_pandas(tune, scripted, monkeypatch):
    """With pandas a row a trial and a column a knob; without it a sentence."""
    result = tune(trials=2)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(autotune.InputError, match="needs the package pandas") as refused:
        result.trials_frame()
    assert "trials()" in refused.value.tip
    monkeypatch.setitem(sys.modules, "pandas", FakePandas)
    frame = result.trials_frame()
    assert frame.index == "number"
    assert frame.rows[1]["config.execution"] == "compile"
    assert "config" not in frame.rows[1]


class FakePandas:
    class DataFrame:
        def __init__(self, rows):
            self.rows, self.index = rows, None

        def set_index(self, name):
            self.index = name
            return self


def test_what_a_notebook_shows_is_escaped(tune, scripted):
    """Errors of other people's compilers stay text; the table is short."""
    hostile = "<script>alert(1)</script> & \x1b[31mred"
    scripted(lambda config: failure(hostile) if config.get("execution") == "compile" else None)
    shown = tune(trials=3)._repr_html_()
    assert "&lt;script&gt;alert(1)" in shown
    assert "<script" not in shown
    assert "\x1b" not in shown
    assert "the model is kept untuned" in shown
    assert len(shown) < 5000


def test_a_callback_that_fails_stops_the_run_and_loses_nothing(tune, scripted):
    """The error has the callback's name, its cause is the exception; the same call without it goes on."""

    def nosy(event):
        if isinstance(event, events.TrialEnded) and event.record.number == 2:
            raise ValueError("I have seen enough")

    with pytest.raises(autotune.CallbackError, match="nosy failed at TrialEnded: ValueError: I have seen") as stopped:
        tune(study="s", trials=5, callbacks=[lambda event: None, nosy])
    assert isinstance(stopped.value.__cause__, ValueError)
    states = [row["state"] for row in autotune.load_study("s").trials()]
    assert states[:3] == ["measured"] * 3
    assert set(states[3:]) <= {"lost"}, "what was compiling ahead"
    assert len(tune(study="s", trials=5).trials()) >= 5

    class Tracker:
        def __call__(self, event):
            raise KeyError("x")

    with pytest.raises(autotune.CallbackError, match="Tracker failed at SearchStarted"):
        tune(study="t", trials=2, callbacks=Tracker())
    with pytest.raises(autotune.InputError, match="cannot be called"):
        tune(study="u", callbacks=["print"])


def test_ctrl_c_keeps_the_study(tune, request):
    """KeyboardInterrupt reaches the caller and says how to go on; the trial that was running is tried again."""

    def interrupt(event):
        if isinstance(event, events.StageEntered) and event.stage is Stage.RUN:
            # What Python makes of the signal. A real one could end this process, if another test has left a handler of
            # MindSpore's; those are sent to processes of their own (tests of the command line and of the notebook).
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"keeps what is recorded: autotune.resume\('s'\)"):
        tune(study="s", trials=2, callbacks=interrupt)
    kept = autotune.load_study("s")
    assert (kept.verdict, kept.best) == (None, None)
    with pytest.raises(autotune.InputError, match="no verdict yet"):
        kept.export("best.yaml")
    with pytest.raises(autotune.InputError, match="no verdict yet"):
        kept.apply(object())
    request.getfixturevalue("scripted")
    assert autotune.resume("s", trials=1, budget=QUICK_BUDGET).untuned.state == "measured"


def test_a_trial_is_exported_before_there_is_a_verdict(tune, scripted, cli, tmp_path):
    """One that is named, was measured and is not the untuned model. The file promises nothing and says so, and the
    study's own sentence names the leader."""

    def interrupt(event):
        if isinstance(event, events.TrialEnded) and event.record.number == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(study="s", trials=8, callbacks=interrupt)
    kept = autotune.load_study("s")
    leader = kept.best
    assert (kept.verdict, leader.number) == (None, 1)
    with pytest.raises(autotune.InputError) as caught:
        kept.export()
    assert f"export s --trial {leader.number}" in caught.value.tip
    tuned = kept.export(trial=leader.number)
    assert (tuned.verdict, tuned.config, tuned.is_untuned) == ("chosen", leader.config, False)
    evidence = tuned.evidence
    assert (evidence.speedup, evidence.process_pairs, evidence.num_trials) == (None, (), kept.answer.num_tried)
    assert "# not proven: " in (tmp_path / "best.yaml").read_text()
    assert "not proven: " in cli("export", "s", "--trial", str(leader.number)).stdout
    for number, why in ((kept.untuned.number, "is the untuned model"), (99, "has no trial 99")):
        with pytest.raises(autotune.InputError, match=why):
            kept.export(trial=number)


def test_ctrl_c_keeps_the_answer_that_is_proven(tune, scripted, tmp_path):
    """It is exported as it is, the same call goes on from there, and the verdict is as if nobody had stopped it."""

    def interrupt(event):
        if isinstance(event, events.AnswerProven):
            raise KeyboardInterrupt

    found = r"; its answer so far is that of autotune.load_study\('s'\): trial \d+, faster: "
    with pytest.raises(KeyboardInterrupt, match=found):
        tune(study="s", trials=6, callbacks=interrupt)
    kept = autotune.load_study("s")
    assert (kept.verdict, kept.stop_reason) == ("faster", None)
    assert kept.export(tmp_path / "now.yaml").config == kept.best.config
    assert "configs so far; `resume` goes on" in kept.summary(why=True)
    step = kept.answer.answers[-1]
    assert (step.trial, len(kept.answer.blocks)) == (kept.best.number, step.num_blocks)
    told = []
    resumed = autotune.resume("s", callbacks=told.append)
    assert told[0].answer == step
    whole = tune(study="t", trials=6)
    assert (resumed.verdict, resumed.best.config) == (whole.verdict, whole.best.config)
    assert resumed.answer.answers[0] == step


def test_in_a_running_loop_and_outside_of_the_main_thread(tune):
    """As in a notebook: called where an event loop runs, in a thread in which no signal handler can be set. The result
    is used from another thread."""
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    results = []

    async def main():
        results.append(tune(study="s", trials=1))

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    thread.join()
    (result,) = results
    assert [row["state"] for row in result.trials()] == ["measured"]
    assert result.export("best.yaml").is_untuned
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == handlers


def test_apply_leaves_the_model_where_nothing_is_faster(tune, scripted):
    """As a job would: the very same object."""
    scripted(lambda config: failure("no") if config.get("execution") == "compile" else None)
    result = tune(trials=3)
    model = object()
    assert result.verdict == "undecided"
    assert result.apply(model) is model


def test_the_same_name_with_other_settings_is_refused(tune, scripted):
    """What was recorded would not be comparable."""
    tune(study="s", trials=1)
    with pytest.raises(StoreError, match="different settings") as refused:
        tune(study="s", trials=1, constraints="compile <= 60s")
    assert "study='s-2'" in refused.value.__notes__[0]
    assert "--" not in refused.value.tip, "a tip names arguments and not flags"


def test_a_model_that_fails_untuned(tune, scripted):
    """The error of the loop, with its tip among the notes that a notebook shows."""
    scripted(lambda config: failure("no") if config.get("execution") == "eager" else None)
    with pytest.raises(NoUsableTrialError) as failed:
        tune(trials=2)
    assert any(note.startswith("tip: ") for note in failed.value.__notes__)
    assert len(failed.traceback) <= 4, "a notebook shows the call and the sentence, not this package's frames"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"trials": 0}, "trials=0"),
        ({"effort": "deep"}, "effort='deep'"),
        ({"budget": "soon"}, "^budget='soon': neither a time nor a file"),
        ({"objective": "beauty"}, "beauty"),
        ({"constraints": ["compile=60"]}, "compile=60"),
        ({"prior": "nobody"}, "nobody"),
        ({"study": "a/b"}, "^study 'a/b': not usable as a folder's name"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_wrong_argument_is_one_sentence_and_leaves_no_study(tune, scripted, tmp_path, wrong, words):
    """InputError that names it, before anything is made."""
    with pytest.raises(autotune.InputError, match=words):
        tune(**wrong)
    assert not list((tmp_path / "studies").glob("*"))


def test_wrong_arguments_of_the_other_calls(tmp_path, monkeypatch):
    """The same for `verify`, `compare`, `load_study` and `resume`."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(autotune.InputError, match="max_loss=10"):
        autotune.verify("best.yaml", max_loss=10)
    with pytest.raises(autotune.InputError, match=r"best\.yaml"):
        autotune.verify("best.yaml")
    for arguments in ((0, 1), ("a.yaml", 1)):
        with pytest.raises(autotune.InputError, match="not understood"):
            autotune.compare(*arguments)
    for call in (autotune.load_study, autotune.resume):
        with pytest.raises(autotune.InputError, match="no study 'nobody'"):
            call("nobody")


def test_the_result_is_that_of_the_study(tune, scripted, tmp_path):
    """Nothing is computed twice in different ways: the document is the one of the command line."""
    result = tune(study="s", trials=4)
    study = FolderStudies(tmp_path / "studies").open("s")
    assert result.document() == document(StudyResult(study))
    study.close()
    assert repr(result) == f"<TuneResult s: {str(result).splitlines()[0]}>"


@pytest.mark.slow
def test_a_script_needs_no_main_guard(tmp_path, space_file):
    """A function of a script is written out, so that trials do not run the script again."""
    script = tmp_path / "script.py"
    script.write_text(f"""
import sys
import numpy as np
import autotune
from tests.conftest import QUICK_BUDGET
ROWS = 3

class Net:
    def __call__(self, x):
        return x + 1

def build():
    return Net(), np.ones(ROWS)

print("started")
result = autotune.tune(build, framework="fake", space={str(space_file)!r}, trials=1, budget=QUICK_BUDGET)
print(result.study, len(result.trials()))
""")
    ran = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": package_path()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["started", "build-fake-cpu 1"], "a trial that ran the script would print"
    (written,) = (tmp_path / "studies" / "build-fake-cpu").glob("build_*.py")
    assert "ROWS = 3" in written.read_text()
