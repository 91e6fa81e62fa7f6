"""`explain`, the command."""

from __future__ import annotations

from pathlib import Path

from autotune.answer.result import StudyResult
from autotune.api.studies import studies_at
from autotune.cli.app import print_json
from autotune.errors import NoUsableTrialError
from autotune.plugins.explain.explanation import explain
from autotune.plugins.explain.lines import explanation, explanation_document
from autotune.render.console import console


def main(study: str, studies_dir: Path, storage: str | None, *, as_json: bool) -> int:
    """Explain which knobs mattered, and why other configs lost."""
    opened = studies_at(studies_dir, storage).open(study)
    told = explain(StudyResult(opened))
    if told is None:
        raise NoUsableTrialError(
            f"study {study!r} has no trial that keeps every constraint: there is nothing to explain yet",
            tip=f"resume it with: {opened.command('resume')}",
        )
    if as_json:
        print_json(explanation_document(told))
    else:
        console(200).print(explanation(told))
    return 0
