"""`repeat_command`: how a trial is run again by hand."""

from __future__ import annotations

import shlex

from autotune.backends.registry import entry_of
from autotune.trial.command import module_command, package_path
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest


def repeat_command(folder: TrialFolder, request: TrialRequest) -> str:
    """A shell command that runs a trial again, without a runner."""
    variables = {
        **entry_of(request.workload.framework).process_variables,
        **request.variables,
        "PYTHONPATH": package_path(request.variables.get("PYTHONPATH")),
    }
    settings = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    return " ".join([*settings, shlex.join(module_command("trial.worker.main", str(folder.path)))])
