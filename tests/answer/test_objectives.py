"""What a study is after: whole studies on scripted processes, for each objective and for constraints."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import jsonschema
import pytest
from rich.console import Console

from autotune.answer.export import export, tuned_config
from autotune.answer.result import StudyResult
from autotune.answer.sections.verdict import headline
from autotune.config import Config
from autotune.errors import InputError, SetupError
from autotune.measure.measurement import Failure, Samples
from autotune.measure.objective import Objective
from autotune.measure.statistics import Speedup, Verdict
from autotune.render.json import comparison_document, document
from autotune.render.live import LiveDisplay
from autotune.render.terminal import comparison_lines, summary, tables, verification_lines
from autotune.space.portfolio import Entry, PortfolioTable
from autotune.study.budget import Budget
from autotune.study.folder import FolderStudies
from autotune.tuned.tuned_config import load_tuned
from autotune.tuning.loop import Tuner
from autotune.verification.comparison import measure, paired_run_of_trials
from autotune.verification.verify import paired_run_with_untuned, verify
from tests.conftest import REPOSITORY, ScriptedTrials, fake_space

pytestmark = pytest.mark.usefixtures("in_memory")

SPACE = """
schema: 1
framework: fake
knobs:
  execution: {doc: "https://e.org", values: [eager, compile], untuned: eager, default: compile}
  mode: {doc: "https://e.org", when: {execution: compile}, values: [a, b, c, d], default: a}
"""
UNTUNED = Config({"execution": "eager"})
A, B, C, D = (Config({"execution": "compile", "mode": mode}) for mode in "abcd")
GIB, MIB = 2**30, 2**20


@dataclass(frozen=True)
class Runs:
    """How a config runs: ms a call, MiB at the peak, seconds until the first result; every tenth call may be slow."""

    ms: float
    mib: float | None = 100.0
    first_s: float = 0.1
    slowest_ms: float | None = None

    def measured(self, measurement):
        calls_s = [self.ms / 1e3] * 20
        calls_s[::10] = [(self.slowest_ms or self.ms) / 1e3] * 2
        peak_bytes = None if self.mib is None else int(self.mib * MIB)
        return measurement.model_copy(
            update={
                "samples": Samples(latency_s=tuple(calls_s), steady=True, ended_by="turns", turns=(20,)),
                "first_call_s": self.first_s,
                "compile_s": max(self.first_s - self.ms / 1e3, 0.0),
                "peak_memory_bytes": peak_bytes,
                "signature": measurement.signature.model_copy(update={"items_per_call": 4}),
            }
        )


@dataclass
class Noted(ScriptedTrials):
    """Scripted trials that keep the requests they were given."""

    requests: list = field(default_factory=list)

    def run(self, folder, request, **more):
        self.requests.append((folder.path.name, request))
        return super().run(folder, request, **more)

    def hold(self, folder, request, **more):
        self.requests.append((f"{folder.path.parent.name}/{folder.path.name}", request))
        return super().hold(folder, request, **more)


@pytest.fixture
def space():
    return fake_space(SPACE)


@pytest.fixture
def tuned(make_study, space, measurement):
    """A finished study in which each config runs as it is said; what is not said runs as the last said does."""

    def tune(runs, objective="latency", *, constraints=(), trials=99, notify=lambda _: None):
        study = make_study(space=space, objectives=(Objective.parse(objective),), constraints=constraints)
        rest = list(runs.values())[-1]

        def outcome_of(name, block, config):
            said = runs.get(config, rest)
            return said if isinstance(said, Failure) else said.measured(measurement)

        tune.trials = Noted(outcome_of)
        Tuner(study, Budget(num_trials=trials), tune.trials, notify).run()
        return study

    return tune


def said(what):
    console = Console(width=240)
    with console.capture() as captured:
        console.print(what)
    return captured.get()


def summary_of(study):
    return said(summary(StudyResult(study), why=True))


def config_of(study):
    return StudyResult(study).best.config


WINS = [
    # objective, runs of the untuned model and of the winner (the others run as the third), headline, line of the tuned
    ("latency", Runs(10), Runs(5), Runs(9), "faster: 2.00x (98 %", "tuned       5 ms a call, memory 100 MiB"),
    ("p90", Runs(10), Runs(5), Runs(9), "faster: 2.00x in the 90th percentile (98 %", "tuned       5 ms a call (p90),"),
    (
        "p99", Runs(5, slowest_ms=40), Runs(10), Runs(5, slowest_ms=30),
        "faster: 4.00x in the 99th percentile (98 %", "tuned       10 ms a call (p99),",
    ),
    ("throughput", Runs(10), Runs(5), Runs(9), "faster: 2.00x the throughput (98 %", "tuned       800 items a second"),
    (
        "memory", Runs(10, 300), Runs(20, 100), Runs(5, 299),
        "better: 3.00x less peak memory (98 %", "tuned       peak memory 100 MiB, 20 ms a call",
    ),
    (
        "compile", Runs(10, first_s=3), Runs(20, first_s=2), Runs(5, first_s=60),
        "better: 1.50x sooner with the first result (98 %", "tuned       first result after 2 s, 20 ms a call",
    ),
    (
        "total:10000", Runs(10, first_s=0.01), Runs(5, first_s=20.005), Runs(4, first_s=99.004),
        "better: 1.43x less time for the whole job of 10,000 calls (98 %", "tuned       70 s for 10,000 calls, 5 ms",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("objective", "untuned", "winner", "others", "headline", "line"), WINS)
def test_the_best_in_what_was_asked_for_wins(tuned, tmp_path, objective, untuned, winner, others, headline, line):
    """Whatever else it is worse in; the verdict says in which respect, and the export keeps its objective."""
    study = tuned({UNTUNED: untuned, B: winner, A: others}, objective)
    assert (StudyResult(study).verdict, config_of(study)) == (Verdict.FASTER, B)
    text = summary_of(study)
    assert text.startswith(headline)
    assert line in text
    exported = export(study, tmp_path / "best.yaml")
    assert exported.workload.objective == objective
    read = load_tuned(tmp_path / "best.yaml")
    assert read == exported
    untuned_value, tuned_value = read.evidence.process_pairs[0]
    assert untuned_value / tuned_value == pytest.approx(read.evidence.speedup.median)
    schema = json.loads((REPOSITORY / "docs" / "best.schema.json").read_text())
    jsonschema.validate(json.loads(read.model_dump_json(by_alias=True)), schema)


KEPT = [
    ("latency", Runs(10), Runs(15), "keep untuned: nothing else that was tried (4 configs) is faster than leaving the"),
    ("p99", Runs(10), Runs(15), "tried (4 configs) is shown to be faster in the 99th percentile than leaving"),
    ("throughput", Runs(10), Runs(15), "tried (4 configs) is shown to have more throughput than leaving"),
    ("memory", Runs(10, 100), Runs(5, 200), "tried (4 configs) is shown to need less peak memory than leaving"),
    ("compile", Runs(10, first_s=0.01), Runs(5, first_s=20), "tried (4 configs) is shown to give its first result"),
    (
        "total:100", Runs(10, first_s=0.01), Runs(5, first_s=20),
        "tried (4 configs) is shown to need less time for the whole job of 100 calls than",
    ),
    ("memory", Runs(10, 100), Runs(5, 100), "tried (4 configs) is shown to need more than 1.0% less peak"),
    ("total:9", Runs(10, first_s=1), Runs(5, first_s=1.04), "tried (4 configs) is shown to need more than 1.0% less"),
    ("latency", Runs(10), Runs(10), "tried (4 configs) is shown to be more than 1.0% faster than the untuned model"),
]  # fmt: skip


@pytest.mark.parametrize(("objective", "untuned", "others", "words"), KEPT)
def test_the_untuned_model_is_kept_where_it_is_no_worse_in_that(tuned, objective, untuned, others, words):
    """A faster config is no answer to who asked for less memory; the sentence is about what was asked for."""
    study = tuned({UNTUNED: untuned, A: others}, objective)
    assert words in summary_of(study)
    assert tuned_config(study).is_untuned


@pytest.mark.parametrize(
    ("objective", "is_cold", "num_turns"),
    [("latency", False, 4), ("throughput", False, 4), ("memory", True, 1), ("compile", True, 1), ("total:9", True, 4)],
)
def test_what_is_compared_is_what_was_asked_for(tuned, objective, is_cold, num_turns):
    """Where compiling counts, each process of each block compiles with empty caches of its own; where calls do not
    count, none is timed for long.
    """
    tuned({UNTUNED: Runs(10, 300, 30), A: Runs(5, 100, 10)}, objective)
    blocks = [(name, request) for name, request in tuned.trials.requests if name.startswith("block-")]
    assert {request.cold for name, request in blocks} == {is_cold}
    assert {live.num_turns for name, _, live in tuned.trials.held if name.startswith("trial-")} == {num_turns}
    caches = {}
    for name, request in blocks:
        caches.setdefault(request.cache, set()).add(name.partition("/")[2])
    assert all(len(names) == 1 for names in caches.values()), "no two configs share a cache"


def test_what_cannot_be_measured_cannot_be_asked_for(tuned):
    """A framework that does not tell its memory: said after the first trial, nothing is tried in vain."""
    with pytest.raises(SetupError, match="objective='memory': it cannot be measured here"):
        tuned({UNTUNED: Runs(10, None)}, "memory")
    assert len(tuned.trials.requests) == 1


def test_break_even_is_about_calls_whatever_the_objective(tuned):
    """With memory as the goal, the calls that earn the compile time back are those of the search's medians."""
    study = tuned({UNTUNED: Runs(10, 300), A: Runs(5, 100, first_s=20.005)}, "memory")
    assert StudyResult(study).break_even_calls == 4000


def test_what_saves_no_time_earns_nothing_back(tuned):
    """It needs less memory, and a call takes longer."""
    study = tuned({UNTUNED: Runs(10, 300), A: Runs(15, 100, first_s=20.0)}, "memory")
    assert StudyResult(study).break_even_calls is None


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_break_even_of_a_latency_is_the_confirmed_one(tuned, objective):
    """A throughput is seconds an item; what earns the compile time back is calls."""
    study = tuned({UNTUNED: Runs(10), A: Runs(5, first_s=20.005)}, objective)
    assert StudyResult(study).break_even_calls == 4000


class TestConstraints:
    """What must be kept, and how far it is missed."""

    BOUND = ("peak_memory <= 2GiB",)

    def test_the_closest_miss_of_an_infeasible_study(self, tuned):
        """By the share of the bound: 15 % over the memory is closer than 40 % over the latency, though 2 ms are less
        than 300 MiB in their units.
        """
        study = tuned(
            {UNTUNED: Runs(7, 2 * 1024), A: Runs(5, 1.15 * 2048), B: Runs(9, 3 * 1024)},
            constraints=("peak_memory <= 2GiB", "latency <= 5ms"),
        )
        answer = StudyResult(study)
        assert answer.verdict is Verdict.INFEASIBLE
        assert answer.best is None
        text = summary_of(study)
        assert text.startswith(
            "infeasible: none of the 5 configs that were tried keeps every constraint; closest is trial 1"
        )
        assert "closest is trial 1: peak_memory 2.3 GiB, 15 % over 2GiB" in text
        assert "excluded    4 of the trials by peak_memory <= 2GiB" in text
        assert "excluded    4 of the trials by latency <= 5ms" in text
        told = document(answer)
        (miss,) = told["closest_miss"]["misses"]
        assert told["closest_miss"]["trial"] == 1
        assert miss["constraint"] == "peak_memory <= 2GiB"
        assert miss["value"] == pytest.approx(2.3 * GIB, rel=1e-6)
        assert (miss["amount"], miss["share"]) == (pytest.approx(0.3 * GIB, rel=1e-6), pytest.approx(0.15))
        assert told["excluded_by"] == {"peak_memory <= 2GiB": 4, "latency <= 5ms": 4}
        assert told["trials"][1]["violations"] == {"peak_memory <= 2GiB": pytest.approx(0.3 * GIB, rel=1e-6)}
        json.dumps(told, allow_nan=False)
        with pytest.raises(InputError, match="no config keeps every constraint"):
            tuned_config(study)

    def test_where_nothing_works_the_failures_are_told(self, tuned):
        """No measured config that keeps all, none that misses by little: what went wrong, counted."""
        study = tuned(
            {UNTUNED: Runs(7, None), A: Failure(reason="crash", stage="compile", error="gone")}, constraints=self.BOUND
        )
        text = summary_of(study)
        assert "closest is trial 0: peak_memory unknown here, peak_memory <= 2GiB was asked for" in text
        assert "failed      4 x crash" in text

    def test_a_config_that_keeps_what_the_untuned_model_breaks_is_the_answer(self, tuned, tmp_path):
        """Though it is slower, even by far more than what is worth comparing otherwise."""
        study = tuned(
            {UNTUNED: Runs(10, 2.5 * 1024), B: Runs(14, 1024), A: Runs(20, 1024)}, constraints=self.BOUND
        )  # fmt: skip
        answer = StudyResult(study)
        assert (answer.verdict, answer.best.config) == (Verdict.FEASIBLE, B)
        text = summary_of(study)
        assert text.startswith("feasible: trial ")
        assert "keeps every constraint, the untuned model does not; 0.71x (98 % interval" in text
        assert "untuned     breaks a constraint: peak_memory 2.5 GiB, 25 % over 2GiB" in text
        assert "untuned     10 ms a call" in text
        assert "python -m autotune export" in text
        exported = export(study, tmp_path / "best.yaml")
        assert (exported.verdict, exported.config, exported.is_untuned) == (Verdict.FEASIBLE, B, False)
        assert exported.workload.constraints == ("peak_memory <= 2GiB",)
        assert exported.evidence.break_even_calls is None
        assert document(answer)["verdict"] == "feasible"

    def test_among_equals_that_keep_all_the_simplest(self, tuned):
        """The framework's default, where it is as fast as the search's best."""
        runs = {UNTUNED: Runs(10, 2.5 * 1024), B: Runs(14, 1024), A: Runs(14, 1024), C: Runs(18, 1024)}
        study = tuned(runs, constraints=self.BOUND)
        assert config_of(study) == A

    def test_faster_as_well_is_faster(self, tuned):
        """The verdict says more than `feasible` where there is more to say."""
        study = tuned({UNTUNED: Runs(10, 2.5 * 1024), A: Runs(5, 1024)}, constraints=self.BOUND)
        assert StudyResult(study).verdict is Verdict.FASTER
        assert "untuned     breaks a constraint: peak_memory 2.5 GiB, 25 % over 2GiB" in summary_of(study)

    def test_compile_among_those_that_keep_a_latency(self, tuned):
        """The cheapest to compile of those that are fast enough, which the untuned model is not."""
        study = tuned(
            {UNTUNED: Runs(30, first_s=0.04), B: Runs(10, first_s=8), C: Runs(25, first_s=1), A: Runs(5, first_s=40)},
            "compile",
            constraints=("latency <= 20ms",),
        )
        assert (StudyResult(study).verdict, config_of(study)) == (Verdict.FEASIBLE, B)
        assert "200.00x later with the first result" in summary_of(study)

    def test_a_better_one_that_is_out_of_bounds_is_shown(self, tuned):
        """What the constraint costs: the best infeasible trial, where it beats the answer, and how far it missed."""
        study = tuned(
            {UNTUNED: Runs(10, 100), B: Runs(2, 2.1 * 1024), C: Runs(9.9, 4096), A: Runs(5, 100)},
            constraints=self.BOUND,
        )
        assert config_of(study) in (A, D)
        text = summary_of(study)
        number = next(each.number for each in study.records() if each.config == B)
        assert f"infeasible  trial {number} has 2 ms, but peak_memory 2.1 GiB, 5.0 % over 2GiB" in text
        assert "excluded    2 of the trials by peak_memory <= 2GiB" in text
        assert "(peak_memory 2.1 GiB, 5.0 % over 2GiB)" in said(tables(StudyResult(study))[0])

    def test_a_worse_one_that_is_out_of_bounds_is_not(self, tuned):
        """Nobody misses it."""
        study = tuned({UNTUNED: Runs(10, 100), B: Runs(8, 2.1 * 1024), A: Runs(5, 100)}, constraints=self.BOUND)
        assert "infeasible  trial" not in summary_of(study)

    def test_a_rate_from_below(self, tuned):
        """`throughput >= 500` at 4 items a call needs 8 ms."""
        study = tuned({UNTUNED: Runs(10), A: Runs(10)}, constraints=("throughput >= 500",))
        assert "closest is trial 0: throughput 400/s, 20 % under 500" in summary_of(study)

    def test_live_lines_say_how_far(self, tuned):
        """As soon as the trial has ended."""
        console = Console(width=240, force_terminal=True)
        with console.capture() as captured, LiveDisplay(console) as display:
            tuned(
                {UNTUNED: Runs(10, 100), A: Runs(5, 2.1 * 1024)}, "throughput", constraints=self.BOUND, notify=display
            )
        text = captured.get()
        assert "throughput 800/s (infeasible: peak_memory 2.1 GiB, 5.0 % over 2GiB)" in text
        assert "the search ends: every config was tried" in text


def test_every_key_of_the_document_is_documented(tuned):
    """docs/json.md names what a script may read."""
    study = tuned({UNTUNED: Runs(10, 3000), A: Runs(5, 3000)}, constraints=("peak_memory <= 2GiB",))
    told = document(StudyResult(study))
    page = (REPOSITORY / "docs" / "json.md").read_text()
    keys = {*told, *told["confirmation"], *told["closest_miss"], *told["closest_miss"]["misses"][0], *told["trials"][0]}
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []


class TestAnotherTrial:
    """What `export --trial` gives beside the answer."""

    RUNS = {UNTUNED: Runs(10), B: Runs(2), A: Runs(5), C: Runs(6), D: Runs(7)}

    @pytest.fixture
    def study(self, tuned):
        """B is the answer; A, the framework's default, was compared before it."""
        return tuned(self.RUNS)

    def number(self, study, config):
        return next(each.number for each in study.records() if each.config == config)

    def test_an_export_says_what_its_study_says(self, study, tmp_path):
        """`faster` where the study does, and the interval clears the config's own bar."""
        number, wide = self.number(study, A), Speedup(median=2.2, low=2.1, high=2.3)
        confirmation = study.confirmation
        others = {each: wide if each == number else found for each, found in confirmation.compared.items()}
        for said, bar, expected in (
            (Verdict.FASTER, 0.01, Verdict.FASTER),
            (Verdict.FASTER, 1.5, Verdict.CHOSEN),
            (Verdict.UNDECIDED, 0.01, Verdict.CHOSEN),
            (Verdict.TIE, 0.01, Verdict.CHOSEN),
        ):
            bars = tuple(bar if each == number else 0.01 for each in confirmation.contestants[1:])
            changed = {"verdict": said, "speedups": tuple(others.values()), "margins": bars}
            study.confirmation = confirmation.model_copy(update=changed)
            assert export(study, tmp_path / "small.yaml", number).verdict is expected, (said, bar)

    def test_the_answer_by_its_number_is_the_answer(self, study):
        """`--trial` of the winner changes nothing."""
        assert tuned_config(study, self.number(study, B)) == tuned_config(study)

    def test_one_that_was_not_compared_is_not_proven(self, study, tmp_path):
        """Who names a trial gets it, whatever the study says of another."""
        path = tmp_path / "small.yaml"
        exported = export(study, path, self.number(study, C))
        assert (exported.verdict, exported.config, exported.evidence.speedup) == (Verdict.CHOSEN, C, None)
        assert "not proven: one process of the search measured it" in path.read_text()
        with pytest.raises(InputError, match="no trial 99"):
            tuned_config(study, 99)

    def test_a_faster_one_that_did_not_win_is_exported_as_faster(self, study):
        """Its own proof stands."""
        exported = tuned_config(study, self.number(study, A))
        assert (exported.verdict, exported.config) == (Verdict.FASTER, A)
        assert exported.evidence.speedup.median == pytest.approx(2)


def test_a_study_that_is_stopped_anywhere_goes_on_the_same(make_study, space, measurement):
    """Opened anew before every trial it asks the same configs, and comes to the same answer."""
    runs = {UNTUNED: Runs(10), A: Runs(9), B: Runs(4, mib=200), C: Runs(6, mib=120), D: Runs(8, mib=90)}
    trials = ScriptedTrials(lambda _name, _block, config: runs[config].measured(measurement))
    asked = {"space": space, "constraints": ("peak_memory <= 150MiB",)}
    straight = make_study("straight", **asked)
    studies_dir = straight.folder.parent
    Tuner(straight, Budget(num_trials=5), trials, lambda _: None).run()
    make_study("broken", **asked).close()
    for number in range(1, 6):
        study = FolderStudies(studies_dir).open("broken")
        Tuner(study, Budget(num_trials=number), trials, lambda _: None).run()
        study.close()
    broken = FolderStudies(studies_dir).open("broken")
    assert [each.config for each in broken.records()] == [each.config for each in straight.records()]
    found, expected = StudyResult(broken), StudyResult(straight)
    assert (found.verdict, found.best.config) == (expected.verdict, expected.best.config)
    assert found.best.config == C


class TestLater:
    """`verify` and `compare` measure what the study was after."""

    def scripted(self, measurement, first, second):
        runs = {"untuned": first, "first": first, "second": second}
        return Noted(lambda name, block, config: runs[name].measured(measurement))

    def verified(self, study, measurement, tmp_path, first, second):
        exported = tuned_config(study)
        duel = paired_run_with_untuned(exported, tmp_path / "duel")
        trials = self.scripted(measurement, first, second)
        found = verify(exported, duel, trials, Budget(), lambda *_: None)
        return found, trials

    def test_memory_is_verified_as_memory(self, tuned, measurement, tmp_path):
        """Less memory still, though slower; and each process compiles cold."""
        study = tuned({UNTUNED: Runs(10, 300), A: Runs(20, 100)}, "memory")
        found, trials = self.verified(study, measurement, tmp_path, Runs(10, 300), Runs(20, 100))
        assert (found.outcome, found.exit_code) == ("holds", 0)
        assert found.why == "it is better than the untuned model here too"
        assert {request.cold for name, request in trials.requests if name.startswith("block-")} == {True}
        lines = verification_lines(found)
        assert "3.00x less peak memory" in lines[1]
        assert lines[3] == "  untuned   300 MiB, tuned 100 MiB (then 300 MiB and 100 MiB)"

    def test_memory_that_has_grown_is_a_regression(self, tuned, measurement, tmp_path):
        """Though it is faster."""
        study = tuned({UNTUNED: Runs(10, 300), A: Runs(5, 100)}, "memory")
        found, _ = self.verified(study, measurement, tmp_path, Runs(10, 300), Runs(5, 400))
        assert (found.outcome, found.why) == ("regressed", "it is worse than the untuned model")

    FEASIBLE = {UNTUNED: Runs(10, 3000), A: Runs(12, 100)}
    NOW = [
        (Runs(12, 100), "holds", "keeps what was asked of it"),
        (Runs(9, 100), "holds", "keeps what was asked of it"),
        (Runs(30, 100), "regressed", "worse than it was"),
        (Runs(5, 3000), "regressed", "does not keep peak_memory <= 2GiB any more"),
    ]

    def test_a_feasible_answer_holds_while_it_keeps_its_constraints(self, tuned, measurement, tmp_path):
        """It was never promised to be faster; but it must not have become slower than it was."""
        study = tuned(self.FEASIBLE, constraints=("peak_memory <= 2GiB",))
        for number, (now, outcome, words) in enumerate(self.NOW):
            found, _ = self.verified(study, measurement, tmp_path / str(number), Runs(10, 3000), now)
            assert found.outcome == outcome, now
            assert words in found.why

    def test_trials_are_compared_by_the_study_s_objective(self, tuned, measurement, tmp_path):
        """The whole job, in its own unit; the word is `better`, since nothing need be faster."""
        study = tuned({UNTUNED: Runs(10, first_s=0.01), A: Runs(5, first_s=20.005)}, "total:10000")
        trials = self.scripted(measurement, Runs(10, first_s=0.01), Runs(5, first_s=20.005))
        result = measure(paired_run_of_trials(study, 0, 1, tmp_path), trials, Budget())
        lines = comparison_lines(result, ("trial 0", "trial 1"))
        assert lines[0].startswith("trial 1 against trial 0: better, 1.43x less time for the whole job of 10,000 calls")
        assert lines[1:] == ["  trial 0  100 s", "  trial 1  70 s"]
        told = comparison_document(result, ("a", "b"))
        assert (told["objective"], told["values"]) == ("total:10000", [pytest.approx(100), pytest.approx(70)])


def test_an_undecided_study_says_how_sure_it_is(tuned):
    """Unless that sounds like a proof, is not known, or noise is beyond all gains: then the interval says it."""
    study, interval = tuned({UNTUNED: Runs(10), A: Runs(5)}), "(98 % interval 0.90x to 2.50x)"
    gain = Speedup(median=1.5, low=0.9, high=2.5)
    undecided = {"verdict": Verdict.UNDECIDED, "speedups": (gain,), "contestants": (0, 1), "candidate": 1}
    for confidence, margin, words in (
        (None, 0.01, f"looks 1.50x {interval}"),
        (0.947, 0.01, "looks 1.50x, 94 % sure to gain more than 1.0 %"),
        (0.16, 2.139, f"looks 1.50x {interval}"),
        (0.994, 0.01, f"looks 1.50x {interval}"),
    ):
        changed = {**undecided, "confidence": confidence, "margin": margin}
        with study.writing():
            study.confirmation = study.confirmation.model_copy(update=changed)
        assert headline(StudyResult(study)).startswith(f"undecided: trial 1 {words}; this machine is too noisy to tell")


def test_settings_of_the_process_that_helped_other_models_are_told_to_every_reader(tuned, monkeypatch):
    """Also where the study began with none of what was recorded, which was no more than the default."""
    untried = Entry(config=Config({"execution": "compile", "isa": "old"}), seconds=1.0, gains=(9.0, 9.0), best_on=())
    table = PortfolioTable(
        framework="fake", release="0", device="cpu", task="infer", processor="a processor", num_cores=1, space="none",
        models=("net", "other"), kinds=("net", "other"), process=("isa",), entries=(untried,),
    )  # fmt: skip
    monkeypatch.setattr("autotune.space.portfolio.recorded", lambda: (table,))
    answer = StudyResult(tuned({UNTUNED: Runs(10), A: Runs(5)}))
    assert answer.manifest.space.holds(A), "and no knob of it is `isa`"
    assert "beyond      isa=old made 2 other models 9.0x as fast as what was tried here" in said(summary(answer))
