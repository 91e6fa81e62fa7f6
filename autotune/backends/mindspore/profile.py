"""Where the time of a call goes, by mindspore.profiler. Its files are of its own form; those of 2.10 on a CPU are read.

https://www.mindspore.cn/docs/en/r2.10.0/api_python/mindspore/mindspore.profiler.profile.html
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import mindspore as ms

from autotune.measure.profile import EVERYWHERE, Profile

_TIMES = "FRAMEWORK/cpu_op_type_info_*.csv"
_INTERPRETED = "PyExecute"
_TRACE = "ASCEND_PROFILER_OUTPUT/trace_view.json"


def profile(call: Callable[[], None], num_calls: int, trace: Path, device: str) -> Profile:
    """Times by type of operator, in PyNative and in compiled graphs. None are given for devices other than a CPU."""
    if device != "cpu":
        return Profile.of({}, num_calls, f"MindSpore's profile of {device} is in a form that is not read here")
    if not hasattr(ms.profiler, "profile"):
        return Profile.of({}, num_calls, f"MindSpore {ms.__version__} has no mindspore.profiler.profile")
    with TemporaryDirectory(prefix="profile-") as folder:
        written = ms.profiler.tensorboard_trace_handler(folder)
        with ms.profiler.profile(activities=[ms.profiler.ProfilerActivity.CPU], on_trace_ready=written):
            for _ in range(num_calls):
                call()
        tables = sorted(Path(folder).glob(f"*/{_TIMES}"))
        for each in Path(folder).glob(f"*/{_TRACE}"):
            shutil.copyfile(each, trace)
        if not tables:
            return Profile.of({}, num_calls, f"MindSpore {ms.__version__} left no times of operators")
        times = times_in(tables[0].read_text(encoding="utf-8"))
        # What capture `ast` left to the Python interpreter; from which line it is, is not told.
        left = {EVERYWHERE: times[_INTERPRETED][0]} if _INTERPRETED in times else {}
        return Profile.of(times, num_calls, at_breaks=left)


def times_in(table: str) -> dict[str, tuple[float, int]]:
    """Type of operator -> seconds and number of its calls. The table has milliseconds."""
    return {
        row["op_type"]: (float(row["total_compute_time"]) * 1e-3, int(row["type_occurrences"]))
        for row in csv.DictReader(table.splitlines())
    }
