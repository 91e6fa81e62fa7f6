"""Priors: what is taken from other studies and files, how it is said in this space, and what it saved."""

from __future__ import annotations

from functools import partial

import pytest

from autotune.answer.result import StudyResult
from autotune.answer.sections import news
from autotune.answer.sections.priors import PriorsSection
from autotune.config import Config
from autotune.errors import InputError, worded
from autotune.measure.measurement import Failure, Reason, Stage
from autotune.measure.objective import Objective
from autotune.measure.statistics import Verdict
from autotune.render.json import document
from autotune.space.portfolio import Entry, PortfolioTable
from autotune.space.space import Knob, Recipe, SearchSpace
from autotune.study.budget import Budget
from autotune.study.folder import FolderStudies
from autotune.study.records import Confirmation
from autotune.tuned.tuned_config import load_tuned
from autotune.tuning import priors
from autotune.tuning.events import PriorsGiven, PriorsOffered
from autotune.tuning.priors import MOST_CONFIGS, near_best_after, priors_of, read_prior, related_studies
from tests.asking import ask
from tests.conftest import REPOSITORY, fake_space, with_latency
from tests.tuning.test_failure_rules import SPACE, knob

pytestmark = pytest.mark.usefixtures("in_memory")


@pytest.fixture
def space():
    return fake_space(SPACE)


@pytest.fixture
def studies_dir(tmp_path):
    return tmp_path / "studies"


def latency_s(config):
    """A landscape with a known best: fusion 2, freezing, mode max with fancy gemm."""
    if config["execution"] == "eager":
        return 1.0
    gain = {2: 0.3, 1: 0.1}.get(config["fusion"], 0) + 0.2 * config["freezing"]
    return 1.05 - gain - 0.1 * (config.get("mode") == "max") - 0.1 * (config.get("gemm") == "fancy")


@pytest.fixture
def search(measurement):
    """Tell a study the outcomes of its next trials, by the landscape."""

    def run(study, num_trials, outcome_of=None):
        while study.num_recorded() < num_trials:
            asked = ask(study)
            if asked is None:
                break
            measured = with_latency(measurement, latency_s(asked.config))
            study.tell(asked, measured if outcome_of is None else outcome_of(asked.config, measured))
        return study

    return run


@pytest.fixture
def earlier(make_study, space, search, studies_dir):
    """A study of the same model."""
    search(make_study("earlier", space=space), 24).close()
    return FolderStudies(studies_dir).open("earlier")


def worth(answer):
    return [text for _, text in PriorsSection(answer).facts()]


def give(study, *sources):
    events = []
    priors.enqueue_priors(study, sources, events.append)
    return events


def by_speed(study):
    measured = [each for each in study.records() if each.state == "measured"]
    return sorted(measured, key=lambda each: each.measurement.latency.p50)


class TestFromAStudy:
    """`--prior STUDY`."""

    def test_its_best_are_tried_right_after_the_default(self, make_study, space, search, earlier, studies_dir):
        """Trials 2 to 5 are the fastest of the other study, and the fastest without one of its settings or another."""
        study = make_study(space=space)
        (event,) = give(study, read_prior("earlier", FolderStudies(studies_dir)))
        assert event == PriorsGiven({"earlier": MOST_CONFIGS})
        search(study, 8)
        configs = [each.config for each in study.records()]
        assert configs[:2] == [space.untuned(), space.default()]
        best, *others = [each.config for each in by_speed(earlier)]
        without = {next((o for o in others if knob in o.differing(best)), None) for knob in best.knobs()}
        assert latency_s(configs[2]) == pytest.approx(latency_s(best))
        assert set(configs[3:6]) <= without
        assert latency_s(configs[3]) <= latency_s(configs[4]) <= latency_s(configs[5])
        assert len(set(configs)) == 8

    def test_they_complement_each_other(self, make_study, studies_dir, measurement):
        """The four fastest are one config with settings that change nothing; those without what mattered come first."""
        knobs = [Knob(name=n, doc="", values=(False, True), when={}, default=False, untuned=False) for n in "abcdef"]
        space = SearchSpace(framework="fake", knobs=tuple(knobs), forbid=())
        study = make_study("earlier", space=space)
        told = {"": 1.0, "a": 0.7, "ab": 0.5, "abc": 0.501, "abd": 0.502, "abe": 0.503, "abf": 0.504, "b": 0.8}
        for names, seconds in told.items():
            asked = study.ask(Config({name: name in names for name in "abcdef"}), longest_s=60)
            study.tell(asked, with_latency(measurement, seconds))
        study.close()
        (source,) = [read_prior("earlier", FolderStudies(studies_dir))]
        assert ["".join(name for name, is_on in config.root.items() if is_on) for config in source.configs] == [
            "ab", "a", "b",
        ]  # fmt: skip

    def test_the_confirmed_winner_comes_first(self, make_study, space, earlier, studies_dir):
        """The verdict rests on more than a trial."""
        second = by_speed(earlier)[1]
        earlier.confirmation = Confirmation(
            verdict=Verdict.FASTER, candidate=second.number, contestants=(0, second.number), num_trials=24,
            blocks=((1.0, 0.5),), speedups=({"median": 2.0, "low": 1.9, "high": 2.1},),
        )  # fmt: skip
        assert read_prior("earlier", FolderStudies(studies_dir)).configs[0] == second.config

    def test_one_of_each_program(self, make_study, space, search, studies_dir):
        """Configs that gave the same code are one suggestion, by the fastest of its names."""
        study = search(
            make_study("earlier", space=space), 24,
            lambda config, measured: measured.model_copy(update={"program": str(config.get("fusion"))}),
        )  # fmt: skip
        configs = read_prior("earlier", FolderStudies(studies_dir)).configs
        assert [each["fusion"] for each in configs] == [2, 1, 0][: len(configs)]
        assert configs[0] == by_speed(study)[0].config

    def test_what_failed_was_infeasible_or_slower_than_untuned_is_no_suggestion(
        self, make_study, space, search, studies_dir
    ):
        """Failures, broken constraints, and what is slower than leaving the model as it is."""

        def outcome(config, measured):
            return Failure(reason="crash", stage="run", error="x") if config.get("freezing") else measured

        study = search(make_study("earlier", space=space, constraints=("latency <= 0.95s",)), 24, outcome)
        (source,) = [read_prior("earlier", FolderStudies(studies_dir))]
        assert source.configs
        assert all(not each["freezing"] and latency_s(each) <= 0.95 for each in source.configs)
        assert any(each.state == "infeasible" for each in study.records())

    def test_nothing_faster_nothing_suggested(self, make_study, space, search, studies_dir):
        """A study in which nothing beats the untuned model gives no config, which is no mistake."""
        search(make_study("earlier", space=space), 10, lambda config, m: with_latency(m, 1 + (len(config.root) > 1)))
        study = make_study(space=space)
        assert give(study, read_prior("earlier", FolderStudies(studies_dir))) == [PriorsGiven({"earlier": 0})]
        assert "no config that is new here" in worth(StudyResult(search(study, 4)))[0]


class TestProjection:
    """A config of another space, said in this one."""

    @pytest.mark.parametrize(
        ("there", "here"),
        [
            ({"freezing": True}, {"freezing": True}),
            ({"freezing": True, "unheard_of": 7}, {"freezing": True}),
            ({"fusion": 9}, {}),
            ({"fusion": True}, {}),
            ({"mode": "reduce-overhead", "dynamic": False}, {"dynamic": False}),
            ({"backend": "other", "mode": "max"}, {"backend": "other"}),
            ({"mode": "max", "gemm": "fancy"}, {"mode": "max", "gemm": "fancy"}),
            ({"execution": "eager"}, {"execution": "eager"}),
        ],
        ids=str,
    )
    def test_rules(self, space, there, here):
        """Knobs that are not there are dropped, values not on offer fall back, what is missing has its default."""
        default = {knob.name: knob.default for knob in space.knobs}
        expected = space.walk(lambda name, _: {**default, **here}[name])
        assert space.projected(Config(there)) == expected
        assert space.projected(space.projected(Config(there))) == expected

    def test_what_is_known_double_or_forbidden_here_is_dropped(self, make_study, space, earlier, studies_dir):
        """The default, two that fall together, and a forbidden one leave their places to the next best."""
        forbid = "forbid:\n  - {if: {fusion: 2, freezing: true}, because: x}\n"
        narrow = fake_space(SPACE.replace("[plain, fancy]", "[plain]") + forbid)
        study = make_study(space=narrow)
        give(study, read_prior("earlier", FolderStudies(studies_dir)))
        (prior,) = priors_of(study)
        assert len(set(prior.configs)) == len(prior.configs) == MOST_CONFIGS
        assert all(narrow.forbidden(each) is None and each in set(narrow.configs()) for each in prior.configs)
        assert not {narrow.default(), narrow.untuned()} & set(prior.configs)


class TestSeveral:
    """More than one prior."""

    @pytest.mark.slow
    def test_they_take_turns(self, make_study, space, search, earlier, studies_dir):
        """The best of each first, four in all."""
        other = search(make_study("other", space=space), 24, lambda c, m: with_latency(m, 1.5 - latency_s(c) / 2))
        study = make_study(space=space)
        give(study, read_prior("earlier", FolderStudies(studies_dir)), read_prior("other", FolderStudies(studies_dir)))
        first, second = priors_of(study)
        assert first.configs[0] == read_prior("earlier", FolderStudies(studies_dir)).configs[0]
        assert len(first.configs) + len(second.configs) <= MOST_CONFIGS
        assert not set(first.configs) & set(second.configs)
        search(study, 4)
        turns = [each.config for each in study.records()[2:4]]
        assert turns[0] == first.configs[0]
        assert other.records()

    def test_given_again_it_is_not_taken_again(self, make_study, space, search, earlier, studies_dir):
        """The command is repeated to go on: the same prior changes nothing, and says nothing."""
        study = make_study(space=space)
        source = read_prior("earlier", FolderStudies(studies_dir))
        give(study, source)
        search(study, 3)
        assert give(study, source) == []
        assert len(priors_of(study)) == 1

    def test_given_later_it_comes_next(self, make_study, space, search, earlier, studies_dir):
        """A prior that is added to a running study is tried from then on, without what is known already."""
        study = search(make_study(space=space), 10)
        known = {each.config for each in study.records()}
        give(study, read_prior("earlier", FolderStudies(studies_dir)))
        (prior,) = priors_of(study)
        assert prior.given_at == 10
        assert not known & set(prior.configs)
        search(study, 10 + len(prior.configs))
        assert [each.config for each in study.records()[10:]] == list(prior.configs)


class TestFromAFile:
    """`--prior best.yaml`."""

    def test_its_config(self, make_study, tmp_path):
        """The exported winner is one config; a verdict that keeps the untuned model gives none."""
        path = tmp_path / "best.yaml"
        tuned = load_tuned(REPOSITORY / "tests" / "best.yaml")
        tuned.model_copy(update={"verdict": Verdict.FASTER}).write(path)
        assert read_prior(str(path), FolderStudies(tmp_path)).configs == (tuned.config,)
        tuned.model_copy(update={"verdict": Verdict.TIE}).write(path)
        assert read_prior(str(path), FolderStudies(tmp_path)).configs == ()

    @pytest.mark.parametrize("content", ["", "schema: 1", "a: [", "schema: 99"])
    def test_a_broken_one_is_a_sentence(self, tmp_path, content):
        """The file is named."""
        path = tmp_path / "best.yaml"
        path.write_text(content)
        with pytest.raises(InputError, match=r"best\.yaml"):
            read_prior(str(path), FolderStudies(tmp_path))


def test_an_unknown_study_is_a_sentence(earlier, studies_dir):
    """It names the flag and what there is."""
    for text in ("nobody", "no/such/file.yaml"):
        with pytest.raises(InputError) as caught:
            read_prior(text, FolderStudies(studies_dir))
        assert text in str(caught.value)
    with pytest.raises(InputError, match="prior='nobody'") as caught:
        read_prior("nobody", FolderStudies(studies_dir))
    assert "earlier" in caught.value.tip


@pytest.mark.parametrize("is_same_framework", [True, False])
def test_another_frameworks_knobs_are_a_sentence(make_study, space, workload, search, studies_dir, is_same_framework):
    """Nothing can be carried over: said before any trial, and the study's queue stays empty."""
    way = "  way: {doc: 'https://e.org', values: [slow, quick], untuned: slow, default: quick}\n"
    alien = fake_space(way + knob("x", when="way: quick"))
    if not is_same_framework:
        alien = space.model_copy(update={"framework": "another"})
    study = make_study(space=alien, workload=workload.model_copy(update={"framework": alien.framework}))
    search(make_study("earlier", space=space), 24)
    with pytest.raises(InputError, match=r"prior='earlier': its configs .* say nothing about the knobs"):
        give(study, read_prior("earlier", FolderStudies(studies_dir)))
    assert priors_of(study) == []
    assert study.read_attribute("queue") is None


class TestOffered:
    """Studies of the same model are named at the start, once, and that is all."""

    def test_in_one_line(self, make_study, space, earlier):
        """The line says what to add."""
        (event,) = give(make_study(space=space))
        assert event == PriorsOffered(["earlier"])
        assert list(map(worded, news(event))) == ["study earlier tuned the same model: add prior='earlier'"]

    def test_not_to_a_study_that_goes_on_or_has_a_prior(self, make_study, space, search, earlier, studies_dir):
        """Whoever began without knows what they do."""
        assert give(search(make_study(space=space), 1)) == []
        with_prior = make_study("another", space=space)
        give(with_prior, read_prior("earlier", FolderStudies(studies_dir)))
        assert give(with_prior) == []

    @pytest.mark.parametrize(
        "change", [{"reference": "another:model"}, {"framework": "another"}, {"arguments": {"name": "t5"}}], ids=str
    )
    def test_no_study_of_another_model_or_framework(self, make_study, space, workload, earlier, studies_dir, change):
        """Those must be asked for by name."""
        other = workload.model_copy(update=change)
        study = make_study(space=space.model_copy(update={"framework": other.framework}), workload=other)
        assert related_studies(FolderStudies(studies_dir), study.manifest) == []

    def test_no_study_without_anything_to_suggest_or_that_is_broken(self, make_study, space, studies_dir, earlier):
        """An empty study, a manifest or a database that cannot be read: no offer, and no error."""
        make_study("empty", space=space)
        for name, file in (("bad-manifest", "manifest.json"), ("bad-database", "study.db")):
            make_study(name, space=space).close()
            (studies_dir / name / file).write_bytes(b"rubbish, and long enough to be a file of its own" * 20)
        assert related_studies(FolderStudies(studies_dir), make_study(space=space).manifest) == ["earlier"]


class TestWhatItSaved:
    """Told in trial numbers, from the records alone."""

    def test_when_the_search_had_arrived(self, make_study, space, search):
        """The number of trials after which the best was within 2 % of what it is in the end."""
        seconds = iter([1.0, 0.9, 0.505, 0.7, 0.50, 0.8])
        study = search(make_study(space=space), 6, lambda _, m: with_latency(m, next(seconds)))
        assert near_best_after(study.manifest, study.records()) == 3
        assert near_best_after(study.manifest, study.records()[:2]) == 2
        assert near_best_after(study.manifest, []) is None

    def test_another_name_of_the_best_program_is_the_best(self, make_study, space, search):
        """That a second process of it was 5 % faster is noise."""
        seconds = iter([1.0, 0.525, 0.7, 0.50])
        programs = iter("upqp")
        study = search(make_study(space=space), 4, lambda _, m: with_latency(m, next(seconds), program=next(programs)))
        assert near_best_after(study.manifest, study.records()) == 2

    @pytest.mark.slow
    def test_a_prior_that_was_no_use_is_told_as_such(self, make_study, space, search, earlier, studies_dir):
        """Here other settings are fast: the best did not come from the prior."""
        study = make_study(space=space)
        give(study, read_prior("earlier", FolderStudies(studies_dir)))
        answer = StudyResult(search(study, 30, lambda c, m: with_latency(m, 2 - latency_s(c))))
        assert "the best is none of them" in worth(answer)[0]
        assert document(answer)["priors"][0]["gave_best"] is False

    @pytest.mark.slow
    def test_a_config_that_was_tried_before_is_not_its_merit(self, make_study, space, search, earlier, studies_dir):
        """Given to a study that goes on, it takes no credit for earlier trials."""
        study = search(make_study(space=space), 24)
        give(study, read_prior("earlier", FolderStudies(studies_dir)))
        assert priors.prior_uses(study, study.records())[0].trials == ()


def test_a_prior_is_no_part_of_the_question(make_study, make_manifest, space, search, earlier, studies_dir):
    """The same study goes on with or without it: its trials are as comparable as before."""
    study = make_study(space=space)
    give(study, read_prior("earlier", FolderStudies(studies_dir)))
    assert study.manifest.differences(make_manifest(space=space)) == []


def known_table(space):
    """Two configs of the landscape, and the default, as if they had been recorded."""
    entry = partial(Entry, best_on=())
    return PortfolioTable(
        framework="fake", release="0", device="cpu", task="infer", processor="x", num_cores=1, space=space.fingerprint,
        models=("one", "other"), kinds=("one", "other"), process=(),
        entries=(
            entry(config=Config({"execution": "compile"}), seconds=5.0, gains=(1.0, 1.1)),
            entry(config=Config({"execution": "compile", "freezing": True}), seconds=9.0, gains=(1.6, 1.0)),
            entry(config=Config({"execution": "compile", "fusion": 2}), seconds=2.0, gains=(1.3, 1.4)),
        ),
    )  # fmt: skip


class TestPortfolio:
    """What a study begins with."""

    @pytest.fixture(autouse=True)
    def _known(self, monkeypatch, space):
        monkeypatch.setattr("autotune.space.portfolio.recorded", lambda: (known_table(space),))

    def test_it_comes_right_after_the_untuned_model(self, make_study, space, search):
        """What gains most in the least time first, the default at its place."""
        study = make_study(space=space)
        assert give(study) == []
        configs = [each.config for each in search(study, 5).records()]
        told = [Config({"execution": "compile", **more}) for more in ({"fusion": 2}, {"freezing": True}, {})]
        assert configs[:4] == [space.untuned(), *map(space.projected, told)]
        assert study.portfolio.num_models == 2
        assert worth(StudyResult(study)) == ["from configs that were best on 2 models"]

    @pytest.mark.slow
    def test_it_changes_the_order_of_trials_and_nothing_else(self, make_study, space, search):
        """The same configs are tried in the end, each once, and the same question is asked."""
        small = fake_space(SPACE.replace("[0, 1, 2]", "[0, 2]"))
        with_it, without = make_study("with", space=small), make_study("without", space=small)
        give(with_it)
        for study in (with_it, without):
            search(study, 10_000)
        tried = [[each.config for each in study.records()] for study in (with_it, without)]
        assert tried[0] != tried[1]
        assert sorted(map(str, tried[0])) == sorted(map(str, tried[1]))
        assert with_it.manifest.differences(without.manifest) == []

    def test_what_the_user_gives_comes_before_it(self, make_study, space, search, earlier, studies_dir):
        study = make_study(space=space)
        give(study, read_prior("earlier", FolderStudies(studies_dir)))
        configs = [each.config for each in search(study, 8).records()]
        given = priors_of(study)[0].configs
        assert configs[: 1 + len(given)] == [space.untuned(), *given]

    def test_recipes_are_among_it_and_said_to_be_reports(self, make_study, space, search):
        """After what gained most, and before the rest; `show` and JSON name their sources."""
        settings = Config({"execution": "compile", "mode": "max"})
        reported = Recipe(load="step", settings=settings, source="https://e.org/")
        study = make_study(space=space.model_copy(update={"recipes": (reported,)}))
        give(study)
        configs = [each.config for each in search(study, 3).records()]
        assert [config.get("mode") for config in configs] == [None, "default", "max"]
        (told,) = worth(StudyResult(study))
        assert told.endswith("best on 2 models and from public reports that nobody has measured here (https://e.org/)")
        recipe = {"load": "step", "settings": settings.root, "source": "https://e.org/"}
        assert document(StudyResult(study))["portfolio"] == {"num_models": 2, "num_configs": 5, "recipes": [recipe]}

    def test_not_where_it_is_not_wanted(self, make_study, space):
        study = make_study(space=space)
        study.budget = Budget(portfolio=False)
        give(study)
        assert study.portfolio is None

    def test_a_study_that_began_without_it_goes_on_without(self, make_study, space, search):
        study = search(make_study(space=space), 3)
        give(study)
        assert study.portfolio is None

    def test_not_where_what_was_recorded_is_not_what_is_asked(self, make_study, space):
        """It was recorded for calls of one shape, and how long they take."""
        study = make_study(space=space, objectives=(Objective(quantity="memory"),))
        give(study)
        assert study.portfolio is None


@pytest.mark.parametrize("device", ["gpu", "ascend", "cpu"])
def test_what_is_refused_for_its_rounding_is_tried_without_it(make_study, search, workload, device):
    """Right after it, and before all else that is planned; once, and on a CPU not for that reason."""
    half = "    values: [full, {value: half, error: 1.0e-4, because: it rounds}]\n    default: full\n"
    space = fake_space(f"{SPACE}  precision:\n    doc: https://e.org\n    when: {{execution: compile}}\n{half}")
    study = make_study(space=space, workload=workload.model_copy(update={"device": device}))
    compiled = space.projected(Config({"execution": "compile", "fusion": 1}))
    study.enqueue([Config({**compiled.root, "precision": "half"}), space.projected(Config({"fusion": 2}))])
    wrong = Failure(reason=Reason.WRONG_RESULT, stage=Stage.CHECK, error="off by 0.1", evidence="")

    def outcome_of(config, measured):
        return wrong if config.get("precision") == "half" else measured

    configs = [each.config for each in search(study, 5, outcome_of).records()]
    assert configs[2]["precision"] == "half"
    assert (configs[3] == compiled) is (device != "cpu")
