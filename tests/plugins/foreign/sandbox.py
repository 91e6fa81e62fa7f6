"""A bench of somebody else: `autotune tune MODEL --on sandbox`. The worked example of docs/architecture.md."""

from autotune.bench.elsewhere import Elsewhere, MachineFinding
from autotune.bench.local import LocalBench
from autotune.errors import InputError


class Sandbox(Elsewhere):
    """This machine under another name; a real one would start its trials in another place."""

    def require(self, on):
        if on != "sandbox":
            raise InputError(f"{on}: there is one sandbox alone", tip="give sandbox")

    def bench(self, on, study, budget, notify):
        return LocalBench(study.variables, log=study.folder / "sandbox.log")

    def examine(self, on):
        return [MachineFinding(what=on, ok=True, found="empty")]


ENTRY = Sandbox()
