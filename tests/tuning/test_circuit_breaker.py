"""The circuit breaker: one error over and over is the environment's, unless a config that worked before still works."""

from __future__ import annotations

import json

import pytest

from autotune.config import Config
from autotune.errors import SetupError
from autotune.measure.measurement import Failure, Measurement
from autotune.tuning.checks import ERRORS_WITHOUT_SUCCESS, last_that_worked, same_error_at_the_end
from autotune.tuning.events import ConfigProbed, TrialEnded
from autotune.tuning.failure_rules import signature_of
from tests.asking import ask
from tests.conftest import fake_space, trial_record
from tests.tuning.test_loop import tune

pytestmark = pytest.mark.usefixtures("in_memory")

SPACE = """
schema: 1
framework: fake
knobs:
  execution: {doc: 'https://e.org', values: [eager, compile], untuned: eager, default: compile}
"""
ALL_FAIL = SPACE + (
    "  behaviour: {doc: 'https://e.org', when: {execution: compile}, values: [compile_error], default: compile_error}\n"
    "  idle: {doc: 'https://e.org', when: {execution: compile}, values: [1, 2, 3, 4, 5, 6, 7, 8], default: 1}\n"
)
EACH_VALUE_FAILS = SPACE + (
    "  idle: {doc: 'https://e.org', when: {execution: compile}, values: [1, 2, 3, 4, 5, 6], default: 1}\n"
)
FAILING_MODEL = """
import json, pathlib, numpy as np
def tiny():
    idle = json.loads(pathlib.Path('../request.json').read_text())['config'].get('idle', 0)
    def model(x):
        if {failing}:
            raise {error}
        return x + 1
    return model, np.ones((2, 2))
"""
ALL_WORK = SPACE + (
    "  idle: {doc: 'https://e.org', when: {execution: compile}, values: [1, 2, 3, 4, 5, 6, 7, 8], default: 1}\n"
)


def failure(error="RuntimeError: no", reason="compile_error", stage="compile", **more):
    return Failure(reason=reason, stage=stage, error=error, **more)


SAME_STORY = [
    ("RuntimeError: code 700 at line 12", "RuntimeError: code 7 at line 1234"),
    ("segfault at 0x7f3a00bc in f", "segfault at 0xDEADBEEF in f"),
    ("/tmp/x/trials/0003/cache/c7.py:12: no symbol", "/home/a.b/study/trials/0011/cache/ab-c_d.so:9: no symbol"),
    ("CalledProcessError: g++ /tmp/a/b.cpp -o /tmp/a/b.so failed", "CalledProcessError: g++ /x/y.cpp -o /z.so failed"),
    ("relative error 0.512, tolerance 0.001", "relative error 0.07, tolerance 0.001"),
    ("relative error 0.512, tolerance 0.001", "relative error 2, tolerance 0.001"),
    ("relative error 0.512, tolerance 0.001", "relative error 1.2e+03, tolerance 0.001"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), SAME_STORY)
def test_numbers_addresses_and_paths_do_not_matter(one, other):
    """Two reports of one error have one signature: what differs by chance is left out."""
    assert signature_of(failure(one)) == signature_of(failure(other, evidence="/x/7/stderr.txt", relative_error=0.3))


@pytest.mark.parametrize(
    "other",
    [
        failure("RuntimeError: never"),
        failure("ValueError: no"),
        failure(reason="crash"),
        failure(stage="check"),
        failure("RuntimeError: no kernel"),
    ],
    ids=["words", "type", "reason", "stage", "more words"],
)
def test_another_error_has_another_signature(other):
    """Reason, stage, type and words tell one error from another."""
    assert signature_of(failure()) != signature_of(other)


def test_a_streak_is_the_trials_at_the_end_that_failed_alike(measurement):
    """It ends at a success, at another error and at a trial without outcome; the same error before that is another."""
    alike = [trial_record(failure(f"RuntimeError: no {n}"), n) for n in range(3)]
    assert same_error_at_the_end(alike) == alike
    for between in (measurement, failure("ValueError: else"), None):
        assert same_error_at_the_end([*alike, trial_record(between), *alike[1:]]) == alike[1:]
    assert same_error_at_the_end([*alike, trial_record(measurement)]) == []
    assert same_error_at_the_end([*alike, trial_record(None)]) == []
    assert same_error_at_the_end([]) == []


def test_the_last_compiled_config_that_worked(measurement):
    """The untuned model needs no compiler, so that it works proves nothing."""
    untuned, first, second = (trial_record(measurement, n, Config({"n": n})) for n in range(3))
    failed = trial_record(failure(), 3)
    assert last_that_worked([untuned, first, second, failed], untuned.config) is second
    assert last_that_worked([untuned, first, failed], untuned.config) is first
    assert last_that_worked([untuned, failed], untuned.config) is None


class TestInAStudy:
    """Through the loop, on real processes."""

    @pytest.fixture
    def study(self, make_study):
        return lambda content: make_study(space=fake_space(content))

    def tune(self, study, notify=lambda _: None):
        events = []

        def hear(event):
            events.append(event)
            notify(event)

        try:
            return tune(study, notify=hear), events
        except SetupError as error:
            return error, events

    def test_where_nothing_ever_worked_five_alike_stop_it(self, study):
        """No compiler at all: the child's own error first, what it means, and no verdict on the configs."""
        opened = study(ALL_FAIL)
        error, events = self.tune(opened)
        assert isinstance(error, SetupError)
        assert str(error).startswith("RuntimeError: the fake compiler does not know this operator")
        assert f"{ERRORS_WITHOUT_SUCCESS} trials in a row" in str(error)
        assert "stderr.txt" in error.tip
        assert opened.num_recorded() == 1 + ERRORS_WITHOUT_SUCCESS
        assert not any(isinstance(each, ConfigProbed) for each in events), "there is no config to run again"
        assert opened.confirmation is None

    @pytest.mark.slow
    def test_where_nothing_was_mended_one_trial_shows_it(self, study):
        """The streak is on record: run again, the study stops at the next trial that ends in the same error."""
        opened = study(ALL_FAIL)
        self.tune(opened)
        assert isinstance(self.tune(opened)[0], SetupError)
        assert opened.num_recorded() == 1 + ERRORS_WITHOUT_SUCCESS + 1

    def test_an_interrupted_first_trial_hides_nothing(self, study):
        """Stopped by Ctrl-C in trial 0 and resumed, trial 1 is the untuned model: it proves no compiler either."""
        opened = study(ALL_FAIL)
        opened.abandon(ask(opened))
        error, _ = self.tune(opened)
        assert isinstance(error, SetupError)

    def test_a_knob_that_breaks_is_no_environment(self, study, model_file):
        """Three alike raise the suspicion; a config that worked is run again, works, and the study has its verdict."""
        model_file.write_text(FAILING_MODEL.format(failing="1 < idle", error="RuntimeError('no such idleness')"))
        opened = study(EACH_VALUE_FAILS)
        confirmation, events = self.tune(opened)
        assert opened.confirmation == confirmation
        assert opened.num_recorded() == 7
        (probed,) = (each for each in events if isinstance(each, ConfigProbed))
        assert probed.record.config == opened.manifest.space.default()
        ended = [each for each in events if isinstance(each, (ConfigProbed, TrialEnded))]
        assert ended.index(probed) == 5, "after the third failure; the later ones are not probed again"
        assert (opened.folder / "again" / "probe" / "outcome.json").exists()
        assert sum(isinstance(each.outcome, Failure) for each in opened.records()) == 5

    @pytest.mark.slow
    def test_each_error_is_excused_by_itself(self, study, model_file):
        """A knob that gives two kinds of errors is probed once for each at the most."""
        error = "[ValueError, KeyError][idle % 2]('no such idleness')"
        model_file.write_text(FAILING_MODEL.format(failing="1 < idle", error=error))
        opened = study(EACH_VALUE_FAILS.replace("5, 6]", "5, 6, 7, 8, 9, 10, 11]"))
        confirmation, events = self.tune(opened)
        assert opened.confirmation == confirmation
        assert opened.num_recorded() == 12
        assert sum(isinstance(each, ConfigProbed) for each in events) <= 2

    def test_an_environment_that_breaks_in_the_middle(self, study, model_file, tmp_path):
        """Compiled configs fail from some moment on, the untuned model does not: three trials and a probe, and out."""
        broken = tmp_path / "broken"
        model_file.write_text(
            "import json, os, pathlib, numpy as np\ndef tiny():\n"
            "    untuned = json.loads(pathlib.Path('../request.json').read_text())['untuned']\n"
            "    def model(x):\n"
            f"        if os.path.exists({str(broken)!r}) and not untuned:\n"
            "            raise OSError(f'no space for {os.getcwd()} of process {os.getpid()}')\n"
            "        return x + 1\n    return model, np.ones((2, 2))\n"
        )
        opened = study(ALL_WORK)

        def break_it(event):
            if isinstance(event, TrialEnded) and event.record.number == 2:
                broken.touch()

        error, events = self.tune(opened, break_it)
        assert isinstance(error, SetupError)
        assert str(error).startswith("OSError: no space for /")
        assert "3 trials in a row" in str(error)
        outcomes = [each.outcome for each in opened.records()]
        assert [isinstance(each, Measurement) for each in outcomes] == [True] * 3 + [False] * 3
        assert len({each.error for each in outcomes[3:]}) == 3, "no two told it in the same words"
        (probed,) = (each for each in events if isinstance(each, ConfigProbed))
        assert probed.record.number == 2
        assert opened.confirmation is None
        broken.unlink()
        confirmation, _ = self.tune(opened)
        assert confirmation.num_trials == opened.num_recorded() == 9, "mended, it goes on to a verdict"


def test_the_command_line_says_it_and_exits_2(tune_fake, cli, space_file):
    """The child's error, the sentence and the tip on stderr; a script still gets the document."""
    space_file.write_text(ALL_FAIL)
    result = tune_fake("--json")
    assert result.returncode == 2
    assert "error: RuntimeError: the fake compiler does not know this operator" in result.stderr
    assert "that is the environment, not the configs" in result.stderr
    assert "tip: fix it" in result.stderr
    assert "Traceback" not in result.stderr
    assert json.loads(result.stdout)["failures"] == {"compile_error": ERRORS_WITHOUT_SUCCESS}
