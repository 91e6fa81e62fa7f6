"""A study that was interrupted and goes on asks what it would have asked without that, wherever it was interrupted."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import optuna
import pytest

from autotune.measure.measurement import Failure, Reason, Stage
from autotune.study.folder import FolderStudies
from autotune.study.sampler.sampler import Sampler
from autotune.study.stored_trials import RESULT, Lease
from autotune.study.study import Study
from tests.conftest import with_latency
from tests.study.synthetic_tables import make_table, small_space

NUM_TRIALS = 10


@dataclass
class Runner:
    """Runs trials of a study, each in a process of its own as far as the study can tell, some of which die."""

    studies: Path
    name: str
    table: object
    measurement: object
    patch: pytest.MonkeyPatch

    def straight(self) -> list[object]:
        """The configs that one process asks for."""
        study = self._open()
        sampler = Sampler(study)
        for _ in range(NUM_TRIALS):
            self._tell(study, study.ask(sampler.suggest(), 60))
        study.close()
        return [trial.config for trial in study.tried()]

    def broken(self) -> list[object]:
        """The configs where each trial's process dies in another way, and the next one goes on."""
        ways = itertools.cycle([self._as_it_asks, self._before_the_result, self._with_the_result, self._interrupted])
        while (study := self._open()).num_recorded() < NUM_TRIALS:
            with study.writing():
                next(ways)(study)
                study.close()
        with study.writing():
            return [trial.config for trial in study.tried()]

    def _open(self) -> Study:
        return FolderStudies(self.studies).open(self.name)

    def _tell(self, study: Study, asked) -> None:
        study.tell(asked, self._outcome(asked.config))

    def _outcome(self, config):
        response = self.table.responses[config]
        if response.latency_s is None:
            return Failure(reason=Reason.COMPILE_ERROR, stage=Stage.COMPILE, error="no")
        stage_s = {Stage.COMPILE: response.compile_s}
        return with_latency(self.measurement, response.latency_s, stage_s=stage_s)

    def _as_it_asks(self, study: Study) -> None:
        """Killed when the config was enqueued, and before Optuna had taken it."""
        config = Sampler(study).suggest()
        with self.patch.context() as patch:
            patch.setattr(optuna.Study, "ask", _killed)
            patch.setattr(Study, "_end_unfinished", lambda *_: None)
            with pytest.raises(KeyboardInterrupt):
                study.ask(config, 60)

    def _before_the_result(self, study: Study) -> None:
        """Killed as the trial ran, after another was told."""
        sampler = Sampler(study)
        self._tell(study, study.ask(sampler.suggest(), 60))
        study.ask(sampler.suggest(), 60)

    def _with_the_result(self, study: Study) -> None:
        """Killed when the result was stored and the trial was not ended."""
        asked = study.ask(Sampler(study).suggest(), 60)
        with self.patch.context() as patch:
            patch.setattr(optuna.Study, "tell", _killed)
            with pytest.raises(KeyboardInterrupt):
                self._tell(study, asked)
        assert RESULT in asked.handle.user_attrs

    def _interrupted(self, study: Study) -> None:
        """Ctrl+C as the trial ran."""
        study.abandon(study.ask(Sampler(study).suggest(), 60))


def _killed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.fast_cases("0")
@pytest.mark.parametrize("seed", range(3))
def test_what_is_asked_does_not_depend_on_interruptions(
    make_study, make_manifest, measurement, tmp_path, monkeypatch, seed
):
    """No config is asked for out of its turn, none is left out, and a result that was stored is not lost."""
    monkeypatch.setattr(Lease, "is_dead", lambda *_, **__: True)
    workload = make_manifest().workload.model_copy(update={"seed": seed})
    table = make_table(small_space(), seed)
    runs = []
    for name in ("straight", "broken"):
        make_study(name, space=table.space.model_copy(update={"framework": "fake"}), workload=workload).close()
        runs.append(Runner(tmp_path / "studies", name, table, measurement, monkeypatch))
    straight, broken = runs
    assert broken.broken()[:NUM_TRIALS] == straight.straight()
