"""Two frameworks: what the user asked for, which budget each study has, and which of the two answers is to be used."""

from __future__ import annotations

import pytest

from autotune.errors import InputError, NoUsableTrialError, SetupError
from autotune.measure.measurement import Failure, Reason, Stage
from autotune.planning.models import model_of
from autotune.planning.spaces import bundled_space, space_file_of
from autotune.plugins.both import both
from autotune.plugins.both.both import Terms, models_of, open_both, requests_of, spaces_of, tune_both
from autotune.question.question import Question
from autotune.study.folder import FolderStudies
from autotune.trial.deadline import Deadline
from autotune.tuning.loop import Tuner
from autotune.tuning.priors import PriorSource
from tests.conftest import QUICK_BUDGET, ScriptedLive, ScriptedTrials, with_latency

pytestmark = pytest.mark.usefixtures("in_memory")

SPACE = """
schema: 1
framework: {framework}
knobs:
  execution: {{doc: "https://example.org/x", values: [eager, compile], untuned: eager, default: compile}}
"""


@pytest.fixture
def files(tmp_path):
    """A space of each framework, and a model of each."""
    for name in ("fake", "sham"):
        (tmp_path / f"{name}.yaml").write_text(SPACE.format(framework=name))
        (tmp_path / f"{name}_model.py").write_text("def tiny():\n    raise AssertionError('nothing runs')\n")
    return tmp_path / "fake.yaml", tmp_path / "sham.yaml"


class TestWish:
    """What the user typed, for one framework or several."""

    BOTH = ("torch", "mindspore")

    @pytest.mark.parametrize(
        ("texts", "frameworks", "expected"),
        [
            (("vit",), BOTH, {"torch": "vit", "mindspore": "vit"}),
            (("torch=a.py:f", "mindspore=b.py:g"), BOTH, {"torch": "a.py:f", "mindspore": "b.py:g"}),
        ],
        ids=str,
    )
    def test_models(self, texts, frameworks, expected):
        """One bundled name for all, one function for one framework, or one for each by name."""
        assert models_of(texts, frameworks) == expected

    @pytest.mark.parametrize(
        ("texts", "frameworks", "words"),
        [
            (("a.py:f",), BOTH, "one function gives one framework's model"),
            (("torch=a.py:f",), BOTH, "one model for each framework is needed: torch and mindspore"),
            (("torch=a.py:f", "torch=b.py:f"), BOTH, "one model for each"),
            (("vit", "mindspore=b.py:g"), BOTH, "one model for each"),
            (("vit", "resnet18"), BOTH, "one model for each"),
        ],
        ids=str,
    )
    def test_models_that_do_not_fit(self, texts, frameworks, words):
        """Too few, too many, or a function for both: one sentence, and the tip shows what to write."""
        with pytest.raises(InputError, match=words) as caught:
            models_of(texts, frameworks)
        assert f"build={{{frameworks[0]!r}: 'FILE.py:FUNCTION'" in caught.value.tip

    @pytest.mark.parametrize("texts", [("a.py:f",), ("torch=a.py:f",), ("torch=a.py:f", "mindspore=b.py:g")], ids=str)
    def test_the_model_of_one_framework(self, texts):
        """The one that names it, or the only one; a path may hold an equals sign."""
        assert model_of(texts, "torch") == "a.py:f"
        assert model_of(("run=3/a.py:f",), "torch") == "run=3/a.py:f"

    @pytest.mark.parametrize("texts", [("vit", "resnet18"), ("mindspore=b.py:g",)], ids=str)
    def test_none_for_the_framework(self, texts):
        """A sentence, and what to write."""
        with pytest.raises(InputError, match="one model for torch is needed") as caught:
            model_of(texts, "torch")
        assert "FILE.py:FUNCTION" in caught.value.tip

    def test_a_space_file_says_whose_it_is(self, files):
        """Any order; frameworks without a file of the user's are left to the bundled one."""
        one, other = files
        assert spaces_of((other, one), ("fake", "sham")) == {"fake": one, "sham": other}
        assert spaces_of((other,), ("fake", "sham")) == {"sham": other}

    def test_the_space_file_of_one_framework(self, files):
        """One at most; whether it is the framework's own is seen when it is read."""
        assert space_file_of((), "torch") == bundled_space("torch")
        assert space_file_of(files[:1], "fake") == files[0]
        with pytest.raises(InputError, match="one for fake is there already"):
            space_file_of(files, "fake")

    def test_space_files_that_do_not_fit(self, files):
        """A file of a framework that is not tuned, or two of one: refused with the path."""
        one, other = files
        with pytest.raises(InputError, match=r"sham\.yaml: key framework: is 'sham', but the study uses fake"):
            spaces_of((other,), ("fake",))
        with pytest.raises(InputError, match=r"fake\.yaml is for fake too"):
            spaces_of((one, one), ("fake", "sham"))


@pytest.mark.usefixtures("sham_backend")
class TestRequests:
    """One request becomes two, each of an ordinary study."""

    def test_each_has_its_own_name_space_and_framework(self, files):
        """`A+B` puts the one first that was written first; a name is that of both."""
        wish = Question(build=("vit",), framework="sham+fake", device="cpu", study="s", space=files[:1])
        sham, fake = requests_of(wish).values()
        assert (sham.framework, sham.study, sham.space, sham.device) == ("sham", "s-sham", (), "cpu")
        assert (fake.framework, fake.study, fake.space, fake.device) == ("fake", "s-fake", files[:1], "cpu")

    def test_without_a_name_they_are_the_ordinary_studies(self):
        """What was tuned in one framework before is not tuned again."""
        wish = Question(build=("vit",), framework="fake+sham", device="cpu")
        assert [own.study for own in requests_of(wish).values()] == [None, None]

    @pytest.mark.parametrize(
        ("more", "words"),
        [
            ({"task": "train"}, "one framework at a time"),
            ({"framework": "fake+fake"}, "two different frameworks"),
            ({"framework": "fake+sham+torch"}, "two different frameworks"),
            ({"framework": "fake+jax"}, "jax': unknown"),
            ({"framework": "fake+jax", "device": "cpu"}, "jax': unknown"),
        ],
        ids=str,
    )
    def test_what_cannot_be_asked(self, more, words):
        """Each is a sentence, before anything is made."""
        with pytest.raises(InputError, match=words):
            requests_of(Question(**{"build": ("vit",), "framework": "fake+sham", **more}))

    def test_a_function_is_one_frameworks(self, tmp_path):
        """From Python a function for each is given in a dict."""
        wish = Question(build=(), framework="fake+sham", device="cpu")
        for build in (len, {"fake": len}):
            with (
                pytest.raises(InputError, match="one function or model is one framework's"),
                open_both(wish, build, both.Limits, FolderStudies(tmp_path)),
            ):
                pass


@pytest.mark.parametrize(("device", "first"), [("cpu", "torch"), ("ascend", "mindspore")])
def test_both_begins_with_the_framework_that_is_preferred(monkeypatch, device, first):
    """Its answer is the one to use where neither is proven better."""
    pytest.importorskip("torch")
    pytest.importorskip("mindspore")
    for module in ("targets", "manifest"):
        monkeypatch.setattr(f"autotune.planning.{module}.require_device", lambda *_: None)
    assert next(iter(requests_of(Question(build=("vit",), framework="both", device=device)))) == first


SECONDS = {"fake": (0.06, 0.05), "sham": (0.04, 0.01)}
"""Framework -> what a call takes, untuned and compiled."""


class PlainTrials(ScriptedTrials):
    """Scripted processes that see the framework as well: `outcome_of(framework, name, config)`."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def run(self, folder, request, **_):
        return self.outcome_of(request.workload.framework, folder.path.name, request.config)

    def hold(self, folder, request, **_):
        return ScriptedLive(self.run(folder, request))


@pytest.mark.usefixtures("sham_backend")
class TestRun:
    """Scripted processes: what each call takes, by framework, untuned and compiled."""

    @pytest.fixture
    def run(self, make_study, workload, space, measurement, monkeypatch):
        """Both studies and what `tune_both` makes of them. `seconds`: framework -> (untuned, compiled)."""

        def go(seconds, outcome_of=None, budget=QUICK_BUDGET, search=None, sources=()):
            def scripted(framework, name, config):
                if outcome_of is not None and (outcome := outcome_of(framework, name)) is not None:
                    return outcome
                untuned_s, compiled_s = seconds[framework]
                return with_latency(measurement, untuned_s if config["execution"] == "eager" else compiled_s)

            def usual(study, terms):
                Tuner(study, terms.budget, PlainTrials(scripted), deadline=terms.time).run(terms.sources)

            monkeypatch.setattr(both, "bench_in", lambda *_: PlainTrials(scripted))
            studies = {}
            for name in seconds:
                there = workload.model_copy(update={"framework": name})
                own_space = space.model_copy(update={"framework": name})
                studies[name] = make_study(f"s-{name}", workload=there, space=own_space)
            terms = Terms(budget, Deadline.after(budget.wall_s), sources)
            pairs = []
            try:
                return tune_both(studies, terms, search or usual, pairs.append), pairs
            finally:
                for study in studies.values():
                    study.close()

        return go

    @pytest.mark.parametrize(
        ("sham", "used", "verdict"),
        [
            ((0.04, 0.015), "s-sham", "faster"),
            ((0.09, 0.08), "s-fake", "keep_untuned"),
            ((0.06, 0.05), "s-fake", "tie"),
        ],
    )
    def test_the_second_is_used_where_it_is_proven_better(self, run, sham, used, verdict):
        """A tie leaves the preferred framework; every block is told."""
        found, pairs = run({"fake": (0.06, 0.05), "sham": sham})
        assert (found.study, found.comparison.verdict) == (used, verdict)
        assert found.comparison.names == ("s-fake", "s-sham")
        assert list(found.results) == ["fake", "sham"]
        assert (pairs[0].first, pairs[0].second) == (0.05, min(sham))
        assert not found.left_out

    def test_another_function_stops_it_before_anything_is_searched(self, run):
        """No config is blamed for other weights."""

        def wrong(framework, name):
            assert name in ("untuned", "second")
            failed = Failure(reason=Reason.WRONG_RESULT, stage=Stage.CHECK, error="relative error 3", evidence="")
            return failed if framework == "sham" else None

        with pytest.raises(SetupError, match="in sham does not give what it gives in fake: relative error 3"):
            run(SECONDS, wrong)

    @pytest.mark.parametrize(("broken", "used"), [("sham", "s-fake"), ("fake", "s-sham")])
    def test_a_framework_that_fails_in_another_way_is_left_out(self, run, broken, used):
        """The other one is the answer."""
        crash = Failure(reason=Reason.CRASH, stage=Stage.COMPILE, error="died by SIGSEGV", evidence="")
        found, _ = run(SECONDS, lambda framework, _: crash if framework == broken else None)
        assert (found.study, found.comparison) == (used, None)
        assert "died by SIGSEGV" in found.left_out[broken]

    def test_without_any_answer(self, run):
        """One sentence with both reasons."""

        def search(study, *_):
            raise SetupError(f"{study.name} does not run")

        with pytest.raises(NoUsableTrialError, match="fake: s-fake does not run; sham: s-sham does not run"):
            run(SECONDS, search=search)

    @pytest.mark.parametrize("failed", ["first", "second", "untuned"])
    def test_an_answer_that_fails_in_the_comparison(self, run, failed):
        """The other one is used; where the untuned model fails, the studies' own figures decide."""
        crash = Failure(reason=Reason.CRASH, stage=Stage.RUN, error="died", evidence="")
        begun = []

        def outcome_of(framework, name):
            if name in ("first", "second") and begun:
                return crash if name == failed else None
            if name == "untuned" and framework == "fake":
                begun.append(name)  # The second time it is that of the comparison.
                return crash if failed == "untuned" and len(begun) > 1 else None
            return None

        found, _ = run(SECONDS, outcome_of)
        assert found.study == {"first": "s-sham", "second": "s-fake", "untuned": "s-sham"}[failed]

    def test_time_and_trials_are_shared(self, run):
        """Half of the trials each; a fifth of the time is kept for the comparison, and what is left over goes on. A
        prior is for the study of its framework."""
        told = []

        def search(study, own):
            told.append((own.budget.num_trials, own.budget.wall_s, [source.name for source in own.sources]))
            raise SetupError("no")

        sources = [PriorSource(name, name, "", (), None) for name in ("fake", "sham")]
        budget = QUICK_BUDGET.model_copy(update={"num_trials": 7, "wall_s": 100.0})
        with pytest.raises(NoUsableTrialError):
            run(SECONDS, budget=budget, search=search, sources=sources)
        assert [(num_trials, names) for num_trials, _, names in told] == [(4, ["fake"]), (4, ["sham"])]
        assert told[0][1] == pytest.approx(40, abs=5)
        assert told[1][1] == pytest.approx(80, abs=10)

    def test_no_time_for_the_comparison(self, run, monkeypatch):
        """The studies' own figures decide then."""

        def too_late(*_):
            raise SetupError("the time does not hold a comparison")

        monkeypatch.setattr(both, "measure", too_late)
        found, _ = run(SECONDS)
        assert (found.study, found.comparison) == ("s-sham", None)
