"""`TuneResult`: the result of a study, as a Python program or a notebook uses it."""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import closing, suppress
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.answer.export import export, export_cache, tuned_config
from autotune.answer.result import StudyResult
from autotune.answer.sections.trials import trial_row
from autotune.answer.sections.verdict import headline
from autotune.errors import InputError, StoreError, shown_at_the_call
from autotune.job.load import Loaded
from autotune.measure.statistics import COMPILED, Speedup, Verdict
from autotune.own_folders import absolute
from autotune.render import notebook
from autotune.render.console import PlainConsole
from autotune.render.json import document
from autotune.render.terminal import summary
from autotune.study.records import StopReason, TrialRecord
from autotune.study.study import Study
from autotune.tuned.tuned_config import TunedConfig

if TYPE_CHECKING:
    import pandas


class TuneResult:
    """The result of a study at one moment: its verdict, the best config, all trials.

    It holds no open file and may be used from any thread. What is written or compiled later (`export`, `apply`) reads
    the study again.
    """

    def __init__(self, study: Study) -> None:
        """Reads an open study, which is not needed any more afterwards."""
        self._answer = StudyResult(study)
        self._studies = study.studies.absolute()
        self._name = study.database.name
        self.folder = absolute(study.folder) if study.folder.exists() else study.folder
        """The study's folder: its database, trials and logs. `HOST:FOLDER` for a shared study of another machine."""

    @property
    def study(self) -> str:
        """The study's name, for `load_study` and `resume`."""
        return self._answer.study

    @property
    def answer(self) -> StudyResult:
        """All that is derived from the study's records: confirmation, noise floor and search."""
        return self._answer

    @property
    def verdict(self) -> Verdict | None:
        """`"faster"`, `"feasible"`, `"tie"`, `"keep_untuned"`, `"undecided"` or `"infeasible"`, as a `StrEnum`; None:
        nothing was proven yet."""
        return self._answer.verdict

    @property
    def speedup(self) -> Speedup | None:
        """The untuned model's value of the objective over the candidate's: `median`, and `low` to `high`, its 98 %
        interval. Above 1: the candidate is better. None where nothing was compared."""
        return self._answer.speedup

    @property
    def best(self) -> TrialRecord | None:
        """The trial to use: `number`, `config` (a dict as `config.root`) and `measurement`. The untuned model where
        nothing is better, the leader of the search as long as nothing is proven; None where no config can be used."""
        return self._answer.best

    @property
    def untuned(self) -> TrialRecord | None:
        """The trial of the untuned model."""
        return self._answer.untuned

    @property
    def break_even_calls(self) -> int | None:
        """Calls after which the compile time is paid for; None: never, or nothing is compiled."""
        return self._answer.break_even_calls

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the search ended: `"exhausted"`, `"trials"`, `"unpromising"` or `"time"`; None: it has not."""
        return self._answer.stop_reason

    def trials(self) -> list[dict[str, Any]]:
        """A record for each trial, by number: `number`, `state` (`"measured"`, `"infeasible"`, `"failed"`, ...),
        `objective` (what is minimised), `latency_s` (the median of a call), `p90_s`, `p99_s`, `throughput` (items a
        second), `peak_memory_bytes`, `compile_s`, `first_call_s`, `relative_error`, `graph_breaks`, `recompiles`,
        `missed_constraints`, `disturbed`, `reason`, `stage` and `error` of a failure, `started`, `ended`, and `config`
        (knob -> value). Times are in seconds; what is unknown is None.
        """
        return [trial_row(record, self._answer.objective) for record in self._answer.records]

    def trials_frame(self) -> pandas.DataFrame:
        """`trials()` as a pandas DataFrame with the trial's number as index and a column `config.KNOB` for each knob.

        Raises InputError where pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise InputError(
                "a data frame needs the package pandas", tip="run: pip install pandas; or use trials(), plain records"
            ) from None
        rows = []
        for row in self.trials():
            config = row.pop("config")
            rows.append({**row, **{f"config.{knob}": value for knob, value in config.items()}})
        frame = pandas.DataFrame(rows)
        return frame.set_index("number") if rows else frame

    def document(self) -> dict[str, Any]:
        """The document that `show --json` prints (docs/json.md), as plain data."""
        return document(self._answer)

    def summary(self, *, why: bool = False) -> str:
        """The verdict with its figures, as `show` prints it, or with `why` as `show --why` does."""
        out = io.StringIO()
        screen = PlainConsole(file=out, width=120, soft_wrap=True, force_terminal=False, color_system=None)
        screen.print(summary(self._answer, with_next=False, why=why))
        return out.getvalue()

    @shown_at_the_call
    def export(
        self,
        path: str | PathLike[str] = "best.yaml",
        *,
        trial: int | None = None,
        with_cache: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> TunedConfig:
        """Write the YAML file that `autotune.load` reads in a job, and return what is in it.

        `trial`: another trial that was compared in blocks, or any as long as there is no verdict. `with_cache`: write
        the compile cache beside the file, `best.cache`, which takes three compilations; there is none of the untuned
        model. `env`: variables of its processes that a study of another account has, given again. Raises InputError
        where there is neither a verdict nor a trial named, where there is no usable config,
        where a file of somebody else's would be replaced, and where no
        cache is worth having; in this last case the YAML file is written, without one.
        """
        file = Path(fspath(path))
        with self._opened() as study:
            study.accept(env or {})
            tuned = export(study, file, trial, with_cache=with_cache)
            if not with_cache or tuned.is_untuned:
                return tuned
            return tuned.model_copy(update={"artifact": export_cache(study, tuned, file)})

    @shown_at_the_call
    def report(self, path: str | PathLike[str] = "report.html") -> Path:
        """Write the study with figures as one HTML file, without scripts and without anything from elsewhere, and
        return its path. Raises InputError where the extra `report` (matplotlib, Jinja) is not installed."""
        from autotune.render.html.page import write_report

        with self._opened() as study:
            return write_report(study, Path(fspath(path)))

    def apply(self, model: Any, **policy: Any) -> Any:
        """The model under the best config, as `autotune.load("best.yaml").apply(model)` gives it in a job.

        `policy`: the arguments of `Loaded.apply`, such as `check=True` or `process_settings=True`. The model comes back
        untouched where nothing was faster. Raises InputError as long as there is no verdict, and where no config keeps
        the constraints.
        """
        with self._opened() as study:
            tuned = tuned_config(study)
        return Loaded(str(self.folder), tuned).apply(model, **policy)

    def _opened(self) -> closing[Study]:
        return closing(self._studies.open(self._name))

    def __repr__(self) -> str:
        return f"<TuneResult {self.study}: {headline(self._answer)}>"

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return notebook.result_html(self._answer)


def answer_so_far(study: Study) -> str | None:
    """The answer that an interrupted run leaves, as a sentence; None as long as nothing was proven."""
    with suppress(StoreError):
        answer = StudyResult(study)
        if answer.verdict in COMPILED and answer.best is not None:
            return f"trial {answer.best.number}, {headline(answer)}"
    return None
