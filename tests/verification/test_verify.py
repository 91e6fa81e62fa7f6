"""Does an exported answer still hold, and how do two compare: by scripted processes, and through the real command."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path

import pytest
import yaml

from autotune.config import Config
from autotune.errors import InputError, SetupError
from autotune.measure.measurement import Failure, Reason, Signature, TensorSpec
from autotune.measure.statistics import Verdict
from autotune.render.json import comparison_document, verification_document
from autotune.render.terminal import comparison_lines, verification_lines
from autotune.study.budget import Budget
from autotune.tuned.tuned_config import load_tuned
from autotune.verification.comparison import measure
from autotune.verification.verify import paired_run_of_configs, paired_run_with_untuned, verify
from tests.asking import ask
from tests.conftest import QUICK_BUDGET, REPOSITORY, ScriptedTrials, cli_command, cli_environment, with_latency

pytestmark = pytest.mark.usefixtures("in_memory")

SLOW, FAST = {"execution": "eager", "latency_ms": 8}, {"execution": "compile", "behaviour": "right", "latency_ms": 2}


@pytest.fixture
def export(tmp_path, model_file):
    """An exported file of the tiny model, tuned from 8 ms to 2 ms a call, with changes; its path."""

    def write(change=lambda content: None, name="best.yaml"):
        content = yaml.safe_load((REPOSITORY / "tests" / "best.yaml").read_text())
        content["workload"]["model"] = f"{model_file}:tiny"
        content.update(config=dict(FAST), untuned=dict(SLOW))
        change(content)
        path = tmp_path / name
        path.write_text(yaml.safe_dump(content))
        return path

    return write


@pytest.fixture
def scripted(measurement, export):
    """Processes of the exported model that take so many ms a call: `untuned` (the run before), `first`, `second`."""
    signature = load_tuned(export()).workload.signature

    def make(first, second, untuned=8, **overrides):
        def outcome_of(name, block, config):
            said = {"untuned": untuned, "first": first, "second": second}[name]
            said = said(block) if callable(said) else said
            if isinstance(said, Failure):
                return said
            return with_latency(measurement, said / 1e3, **{"signature": signature, **overrides})

        return ScriptedTrials(outcome_of)

    return make


def failure(reason="wrong_result", **more):
    return Failure(**{"reason": reason, "stage": "check", "error": "relative error 3", **more})


WILD = [3, 14, 5, 22] * 4
EQUAL = [7.7, 8.3, 7.75, 8.25] * 4
"""As fast as 8 ms, in processes that scatter by 4 %."""
SLOWER = [7.9, 9.1] * 8
"""A loss that the noise hides: one that is no faster need not be as fast."""
JUDGEMENTS = [
    (8, 2, "holds", 0, "faster"),
    (8, 8, "regressed", 1, "worse than it was"),
    (8, 3, "regressed", 1, "worse than it was"),
    (8, 10, "regressed", 1, "slower"),
    (5.6, 2, "regressed", 1, "the untuned model takes 0.69 times what it took then, this config 0.96 times"),
]
SCATTERED = [7.9, 7.4, 8.1, 7.3, 8.0, 7.5, 7.7, 7.6] * 2
"""A gain of some 4 % beside 8 ms, in processes that scatter by 4 %."""


def promising(median, low, high):
    """A change of an export: this speed-up was promised."""
    return lambda content: content["evidence"].update(speedup={"median": median, "low": low, "high": high})


class TestVerify:
    """What is judged, by figures alone."""

    def verify(self, tmp_path, path, trials, told=lambda *_: None, **more):
        tuned = load_tuned(path)
        return verify(tuned, paired_run_with_untuned(tuned, tmp_path / "pair"), trials, Budget(), told, **more)

    @pytest.mark.parametrize(("first", "second", "outcome", "code", "words"), JUDGEMENTS)
    def test_judgement(self, tmp_path, export, scripted, first, second, outcome, code, words):
        """As fast as promised holds; surely slower than promised, or than the untuned model, is a regression; noise is
        neither. Each has its exit status."""
        blocks = []
        found = self.verify(tmp_path, export(), scripted(first, second), lambda *ms: blocks.append(ms))
        assert (found.outcome, found.exit_code) == (outcome, code)
        assert words in found.why
        assert found.promised.median == pytest.approx(3.9, abs=0.01)
        assert len(blocks) == len(found.result.comparison.blocks.values)
        document = json.loads(json.dumps(verification_document(found)))
        assert set(document) == {"outcome", "why", "promised", "today"}
        assert (document["today"]["first"], document["today"]["second"]) == ("untuned", "tuned")
        assert document["today"]["speedup"]["low"] <= document["today"]["speedup"]["high"]
        lines = verification_lines(found)
        assert lines[0].startswith(f"{outcome}: ")
        assert [line.split()[0] for line in lines[1:]] == ["promised", "today", "untuned"]
        assert re.search(r"tuned [\d.]+ ms a call \(then [\d.]+ ms and [\d.]+ ms\)$", lines[3])

    @pytest.mark.parametrize(
        ("objective", "num_cores", "end"),
        [
            ("latency", None, ": the machine may be in another state"),
            ("latency", 1024, " (usable cores: 1024 then, {} now)"),
            ("memory", None, ""),
        ],
    )
    def test_a_regression_says_why_the_untuned_model_may_have_moved(
        self, tmp_path, export, measurement, objective, num_cores, end
    ):
        """Where the machine is another one that is said; what a call takes of memory does not depend on its state."""
        machine = measurement.environment

        def change(content):
            content["workload"]["objective"] = objective
            known = {"processor": machine.processor, "num_cores": num_cores or machine.num_cores}
            content["environment"].update(known, inherited=machine.inherited)
            if objective == "memory":
                content["evidence"]["process_pairs"] = [[8e6, 2e6]] * 4

        def outcome_of(name, block, config):
            ms = 2 if name == "second" else 4
            return with_latency(measurement, ms / 1e3, signature=signature, peak_memory_bytes=ms * 10**6)

        path = export(change)
        signature = load_tuned(path).workload.signature
        found = self.verify(tmp_path, path, ScriptedTrials(outcome_of))
        assert found.outcome == "regressed"
        assert re.search(r"the untuned model takes 0.[45]\d times .* this config [01].\d\d times", found.why)
        assert found.why.endswith(f" times{end.format(machine.num_cores)}")

    @pytest.mark.parametrize(
        ("second", "outcome", "words"),
        [
            (10, "regressed", "slower than the untuned model, and was never compared with it"),
            (2, "holds", "it is faster than the untuned model here"),
            (lambda block: WILD[block - 1], "unclear", "nor to be slower, and was never compared with it"),
        ],
    )
    def test_a_trial_that_was_chosen_and_never_compared_has_to_show_a_gain(
        self, tmp_path, export, scripted, second, outcome, words
    ):
        """Nothing was promised that it could keep."""

        def change(content):
            content["verdict"] = "chosen"
            content["evidence"].update(speedup=None, process_pairs=[])

        found = self.verify(tmp_path, export(change), scripted(8, second))
        assert found.outcome == outcome
        assert words in found.why

    @pytest.mark.parametrize("blocks", [SCATTERED, WILD], ids=["some noise", "too much"])
    def test_an_unchanged_gain_that_noise_hides_is_no_regression(self, tmp_path, export, scripted, blocks):
        """Neither the promise nor its loss is shown: a CI job does not turn red for lack of power."""
        path = export(promising(1.05, 1.02, 1.08))
        found = self.verify(tmp_path, path, scripted(8, lambda block: blocks[block - 1]))
        assert found.result.verdict is not Verdict.FASTER
        assert (found.outcome, found.exit_code) == ("unclear", 3)

    @pytest.mark.parametrize(
        ("second", "max_loss", "outcome"),
        [(2.2, 0.0, "regressed"), (2.2, 0.05, "regressed"), (2.2, 0.1, "holds"), (8.1, 0.9, "regressed")],
    )
    def test_a_loss_may_be_allowed(self, tmp_path, export, scripted, second, max_loss, outcome):
        """`--max-loss`: regressed only beyond that share of what was promised; slower than untuned is never allowed."""
        path = export(promising(4.0, 3.9, 4.1))
        found = self.verify(tmp_path, path, scripted(8, second), max_loss=max_loss)
        assert found.outcome == outcome
        if outcome == "regressed" and max_loss == 0.05:
            assert "by more than 5%" in found.why

    @pytest.mark.parametrize("failing_block", [1, 3])
    def test_an_answer_that_fails_is_wrong(self, tmp_path, export, scripted, failing_block):
        """It computes something else here, or does not compile, in one process: exit status 1, with its own error."""
        found = self.verify(tmp_path, export(), scripted(8, lambda block: failure() if block == failing_block else 2))
        assert (found.outcome, found.exit_code) == ("wrong", 1)
        assert "wrong_result at check" in found.why
        assert "relative error 3" in found.why
        document = json.loads(json.dumps(verification_document(found)))
        assert document["today"]["failed"] == "second"
        assert document["today"]["failure"]["reason"] == "wrong_result"
        assert document["today"]["speedup"] is None
        assert verification_lines(found)[0].startswith("wrong: ")

    @pytest.mark.parametrize(
        "failing",
        [{"untuned": failure("run_error")}, {"first": failure("crash")}, {"second": failure("setup", stage="build")}],
        ids=["untuned", "in a block", "the setup"],
    )
    def test_what_cannot_be_measured_blames_nobody(self, tmp_path, export, scripted, failing):
        """The untuned model fails, or the machine does: an error with exit status 2, no judgement of the answer."""
        with pytest.raises(SetupError, match="relative error 3") as caught:
            self.verify(tmp_path, export(), scripted(**{"first": 8, "second": 2, **failing}))
        assert caught.value.exit_code == 2

    @pytest.mark.parametrize("name", ["untuned", "first"])
    def test_an_untuned_model_that_fails_by_chance_is_run_again(self, tmp_path, export, scripted, name):
        """Three processes that crash, before the blocks or in one of them, change nothing of the judgement."""
        failures = [failure("crash")] * 3
        trials = scripted(**{"first": 8, "second": 2, name: lambda _block: failures.pop() if failures else 8})
        assert self.verify(tmp_path, export(), trials).outcome == "holds"
        assert not failures

    @pytest.mark.parametrize("second", [2, failure()], ids=["measured", "failed"])
    def test_another_model_is_not_judged(self, tmp_path, export, scripted, second):
        """Another shape, class or number of parameters is another model: it was never tuned."""
        other = Signature(
            model_class="builtins.function", num_parameters=0, structure_sha256="0" * 64,
            inputs=(TensorSpec(shape=(4, 9), dtype="float64"),), items_per_call=4,
        )  # fmt: skip
        with pytest.raises(SetupError, match="is not the model that was tuned"):
            self.verify(tmp_path, export(), scripted(8, second, signature=other))

    @pytest.mark.parametrize("verdict", ["tie", "keep_untuned", "undecided"])
    def test_the_untuned_model_holds_without_measuring(self, tmp_path, export, verdict):
        """`apply` changes nothing: nothing could be wrong, nothing is promised, and no process is started."""
        tuned = load_tuned(export(lambda content: content.update(verdict=verdict)))
        assert paired_run_with_untuned(tuned, tmp_path) is None
        found = verify(tuned, None, ScriptedTrials(lambda *_: pytest.fail("started")), Budget(), lambda *_: None)
        assert (found.outcome, found.exit_code, found.result, found.promised) == ("holds", 0, None, None)
        assert verification_document(found)["today"] is None

    def test_constraints_are_read_before_anything_is_measured(self, tmp_path, export):
        """A misspelt one in a file that somebody edited costs no block."""
        tuned = load_tuned(export(lambda content: content["workload"].update(constraints=["latncy <= 3ms"])))
        pair = paired_run_with_untuned(tuned, tmp_path)
        with pytest.raises(InputError, match="unknown quantity 'latncy'"):
            verify(tuned, pair, ScriptedTrials(lambda *_: pytest.fail("started")), Budget(), lambda *_: None)

    def test_the_duel_is_that_of_the_file(self, tmp_path, export):
        """Configs, tolerance, objective, seed, arguments and variables are the exported ones."""

        def change(content):
            content["workload"].update(objective="p99", tolerance=0.25, seed=7, arguments={"rows": 6})
            content["environment"]["variables"] = {"A": "1"}

        tuned = load_tuned(export(change))
        pair = paired_run_with_untuned(tuned, tmp_path)
        assert [each.config for each in (pair.first, pair.second)] == [Config(SLOW), Config(FAST)]
        assert pair.untuned == pair.first
        assert {each.signature for each in (pair.first, pair.second)} == {tuned.workload.signature}
        assert (pair.tolerance, pair.objective.quantity, pair.variables) == (0.25, "p99", {"A": "1"})
        assert (pair.second.workload.seed, pair.second.workload.arguments) == (7, {"rows": 6})


class TestCompare:
    """Two configs of one model, whichever they are."""

    @pytest.mark.parametrize(
        ("first", "second", "verdict", "word", "num_blocks"),
        [
            (8, 2, Verdict.FASTER, "faster", 4),
            (2, 8, Verdict.KEEP_UNTUNED, "slower", 4),
            (8, 8, Verdict.TIE, "tie", 4),
            (8, lambda block: WILD[block - 1], Verdict.UNDECIDED, "undecided", 16),
            (8, lambda block: SLOWER[block - 1], Verdict.UNDECIDED, "undecided", 16),
            (8, lambda block: EQUAL[block - 1], Verdict.TIE, "tie", 8),
        ],
    )
    def test_the_verdict_is_about_the_second(
        self, tmp_path, export, scripted, first, second, verdict, word, num_blocks
    ):
        """Neither need be the untuned model; it ends as soon as either is proven faster, or that they are equal."""
        tuned = load_tuned(export())
        result = measure(paired_run_with_untuned(tuned, tmp_path), scripted(first, second), Budget())
        assert result.verdict is verdict
        assert len(result.comparison.blocks.values) == num_blocks
        lines = comparison_lines(result, ("a", "long name"))
        assert lines[0].startswith(f"long name against a: {word}, ")
        assert len(lines) == 3
        document = json.loads(json.dumps(comparison_document(result, ("a", "b"))))
        assert (document["verdict"], document["failed"], document["failure"]) == (word, None, None)
        assert len(document["blocks"]) == num_blocks

    @pytest.mark.parametrize(
        ("failing", "who"), [({"first": failure("run_error")}, "one"), ({"second": failure("run_error")}, "two"),
                             ({"untuned": failure("run_error")}, "the untuned model")],
    )  # fmt: skip
    def test_a_failure_is_told_with_its_owner(self, tmp_path, export, scripted, failing, who):
        """Which of the two failed, or the untuned model whose outputs both are compared with; and why."""
        tuned = load_tuned(export())
        trials = scripted(**{"first": 8, "second": 2, **failing})
        result = measure(paired_run_with_untuned(tuned, tmp_path), trials, Budget())
        assert result.comparison is result.verdict is None
        assert comparison_lines(result, ("one", "two")) == [f"{who} fails (run_error at check): relative error 3"]
        assert comparison_document(result, ("one", "two"))["failed"] == next(iter(failing))

    def test_a_model_that_has_changed_since_its_study_is_no_failure_of_it(self, tmp_path, export, scripted):
        """The outputs that a study keeps are those of another model then, and say nothing of either config."""
        pair = paired_run_with_untuned(load_tuned(export()), tmp_path)
        with pytest.raises(SetupError, match="does not give what it gave when the study began: relative error 3"):
            measure(pair, scripted(8, 2, untuned=failure()), Budget())

    CHANGES = [
        (lambda c: c["workload"].update(model="other.py:f"), "model"),
        (lambda c: c["workload"].update(arguments={"rows": 2}), "arguments"),
        (lambda c: c["workload"].update(objective="p99"), "objective"),
        (lambda c: c["workload"].update(device="gpu"), "device"),
        (lambda c: c["environment"].update(variables={"A": "1"}), "env variables"),
    ]

    @pytest.mark.parametrize(("change", "words"), CHANGES, ids=[words for _, words in CHANGES])
    def test_files_of_two_workloads_are_not_comparable(self, tmp_path, export, change, words):
        """Another model, shape, device, objective or environment: refused with what differs."""
        one, other = load_tuned(export()), load_tuned(export(change, name="other.yaml"))
        with pytest.raises(InputError, match=words):
            paired_run_of_configs(one, other, tmp_path)

    def test_answers_for_two_seeds_are_compared_on_the_first_ones(self, tmp_path, export):
        """A seed fills weights and inputs: with one each, the second config would be blamed for a wrong result."""
        one = load_tuned(export())
        other = load_tuned(export(lambda c: c["workload"].update(seed=one.workload.seed + 1), name="other.yaml"))
        pair = paired_run_of_configs(one, other, tmp_path)
        assert pair.untuned.workload.seed == pair.first.workload.seed == pair.second.workload.seed == one.workload.seed


class TestOnTheCommandLine:
    """The real thing: real processes, exit statuses, documents."""

    @pytest.fixture
    def scratch(self, tmp_path):
        folder = tmp_path / "scratch"
        folder.mkdir()
        return folder

    @pytest.fixture
    def command(self, cli, tmp_path, scratch, budget_file, monkeypatch):
        """Run the command line with a temporary folder of its own and a quick budget; with variables in a child."""

        def run(*arguments, **variables):
            arguments = (*map(str, arguments), "--budget", str(budget_file))
            if not variables:
                with monkeypatch.context() as patch:
                    patch.setattr(tempfile, "tempdir", str(scratch))
                    return cli(*arguments)
            return subprocess.run(
                cli_command(*arguments), cwd=tmp_path, capture_output=True, text=True, check=False,
                timeout=240, env={**cli_environment(), "TMPDIR": str(scratch), **variables},
            )  # fmt: skip

        return run

    def refused(self, result, *words):
        assert result.returncode == 2, result.stdout + result.stderr
        for word in words:
            assert word in result.stderr
        assert "Traceback" not in result.stderr
        assert result.stdout == ""

    def test_tune_export_verify(self, tune_fake, cli, command, scratch):
        """The whole way: what a study exported holds on the machine where it was made."""
        assert tune_fake("--trials", "4").returncode == 0
        assert cli("export", "s", "-o", "best.yaml").returncode == 0
        result = command("verify", "best.yaml", "--json")
        assert result.returncode == 0, result.stdout + result.stderr
        document = json.loads(result.stdout)
        assert document["outcome"] == "holds"
        assert document["promised"]["low"] > 1.01
        assert document["today"]["speedup"]["low"] > 1.01
        assert len(result.stderr.splitlines()) == len(document["today"]["blocks"])
        assert list(scratch.iterdir()) == [], "nothing is left of the measuring"

    def test_an_answer_that_has_become_slower(self, export, command, scratch):
        """The exported config takes 20 ms instead of 2: regressed, with the figures of then and of today; exit 1."""
        result = command("verify", export(lambda content: content["config"].update(latency_ms=20)))
        assert result.returncode == 1, result.stdout + result.stderr
        first, promised, today, untuned = result.stdout.splitlines()
        assert first == "regressed: it is slower than the untuned model"
        assert "3.90x" in promised
        assert "today" in today
        assert "untuned" in untuned
        assert list(scratch.iterdir()) == []

    @pytest.mark.parametrize(("behaviour", "words"), [("wrong", "wrong_result at check"), ("crash", "SIGSEGV")])
    def test_an_answer_that_is_wrong_here(self, export, command, behaviour, words):
        """It gives another output or crashes: wrong, with the child's own error; exit 1."""
        result = command("verify", export(lambda content: content["config"].update(behaviour=behaviour)))
        assert "Traceback" not in result.stderr
        assert result.returncode == 1, result.stdout + result.stderr
        assert result.stdout.startswith("wrong: it fails (")
        assert words in result.stdout

    def test_a_model_that_raises(self, export, command, model_file):
        """The child's own error, and where the whole story lies, which can be read afterwards; exit 2."""
        path = export()
        model_file.write_text("def tiny():\n    raise RuntimeError('no weights')\n")
        result = command("verify", path)
        self.refused(result, "RuntimeError: no weights", "stderr.txt")
        assert "RuntimeError: no weights" in Path(result.stderr.rpartition("full log: ")[2].strip()).read_text()

    def test_a_model_that_is_another_or_gone(self, export, command, model_file):
        """What was not tuned is not judged, and a file that is gone is named; exit 2."""
        path = export()
        model_file.write_text(model_file.read_text().replace("rows=4", "rows=5"))
        self.refused(command("verify", path), "is not the model that was tuned", "tune it again")
        model_file.unlink()
        self.refused(command("verify", path), "tiny_model.py", "No such file")

    def test_a_framework_that_is_missing(self, export, command, tmp_path):
        """Tuned on a machine with another framework: what is missing and how to install it; exit 2."""
        site = tmp_path / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(
            "from importlib import metadata\nthere = metadata.distribution\n"
            "def distribution(name):\n    if name == 'torch':\n        raise metadata.PackageNotFoundError(name)\n"
            "    return there(name)\nmetadata.distribution = distribution\n"
        )
        path = export(lambda content: content.update(framework="torch"))
        self.refused(command("verify", path, PYTHONPATH=str(site)), "torch is not installed", "pip install")

    def test_a_device_that_is_missing(self, export, command):
        """Tuned on a GPU, verified without one; exit 2."""
        self.refused(command("verify", export(lambda c: c["workload"].update(device="gpu"))), "gpu")

    def test_a_file_that_is_no_answer(self, command, tmp_path):
        """A missing file, and broken YAML: the file; exit 2."""
        self.refused(command("verify", "best.yaml"), "best.yaml")
        (tmp_path / "best.yaml").write_text("a: [")
        self.refused(command("verify", "best.yaml"), "best.yaml")

    @pytest.fixture
    def study(self, make_study, measurement):
        """Trial 0 takes 8 ms a call, trial 1 (the default) 6 ms, others 2 to 8 ms or fail."""
        study = make_study()
        for _ in range(8):
            asked = ask(study)
            broken = {"wrong": Reason.WRONG_RESULT, "compile_error": Reason.COMPILE_ERROR}.get(
                asked.config.get("behaviour")
            )
            measured = with_latency(measurement, asked.config["latency_ms"] / 1e3)
            study.tell(asked, Failure(reason=broken, stage="check", error="no", evidence="") if broken else measured)
        records = study.records()
        study.close()
        return records

    def test_compare_two_trials(self, study, command, scratch):
        """Any two trials of a study, the second slower than the first; the study stays as it was."""
        right = [each for each in study if each.state == "measured"]
        fast = next(each.number for each in right if each.config["latency_ms"] == 2)
        slow = next(each.number for each in right if each.config["latency_ms"] != 2 and each.number > 0)
        before = command("show", "s", "--json").stdout
        result = command("compare", "s", fast, slow)
        assert result.returncode == 0, result.stdout + result.stderr
        headline, first, second = result.stdout.splitlines()
        assert headline.startswith(f"trial {slow} against trial {fast}: slower, 0.")
        assert first.split()[:2] == ["trial", str(fast)]
        assert second.split()[:2] == ["trial", str(slow)]
        assert command("show", "s", "--json").stdout == before
        assert list(scratch.iterdir()) == []

    def test_compare_two_files(self, export, command):
        """Two exports of one model, side by side; the document says which is which."""
        one, other = export(name="a.yaml"), export(lambda c: c["config"].update(latency_ms=20), name="b.yaml")
        result = command("compare", other, one, "--json")
        assert result.returncode == 0, result.stderr
        document = json.loads(result.stdout)
        assert (document["first"], document["second"]) == (str(other), str(one))
        assert document["verdict"] == "faster"
        assert document["speedup"]["low"] > 2
        assert document["values"][0] > 0.02 > document["values"][1]
        assert len(document["blocks"]) == QUICK_BUDGET.confirmation.first_look

    def test_mistakes_in_what_to_compare(self, study, export, command, scratch):
        """One sentence and exit status 2: what was not understood, is not there, or cannot be compared. Nothing ran, so
        nothing is left."""
        export(name="a.yaml")
        export(lambda content: content["workload"].update(arguments={"rows": 5}), name="b.yaml")
        self.refused(command("compare"), "missing argument")
        self.refused(command("compare", "s"), "compare s: not understood", "compare STUDY 3 7")
        for no_trial in ("x", "\u00b2", "1" * 5000):
            self.refused(command("compare", "s", "0", no_trial), "not understood")
        self.refused(command("compare", "s", "0", "1", "2"), "not understood")
        self.refused(command("compare", "s", "0", "99"), "no trial 99")
        self.refused(command("compare", "other", "0", "1"), "no study 'other'")
        self.refused(command("compare", "s", "0"), "s")
        self.refused(command("compare", "a.yaml", "nope.yaml"), "nope.yaml")
        self.refused(command("compare", "a.yaml", "b.yaml"), "not comparable", "arguments")
        shapes = {"traffic": {"loads": [{"sizes": {"rows": 2}, "share": 1.0}]}, "inputs": [], "outputs": []}
        export(lambda content: content.update(shapes=shapes), name="c.yaml")
        self.refused(command("compare", "a.yaml", "c.yaml"), "not comparable", "one shape and the second for rows=2")
        assert list(scratch.iterdir()) == []
