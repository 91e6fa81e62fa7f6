"""What dynamo and inductor did, from their own counters and logs, and from the code that was emitted.

`torch._dynamo.utils.counters`, `graph_break_reasons`, `get_compilation_metrics()` and `torch._inductor.metrics` are
private and differ between releases, so each is looked up on its own and a missing one makes that quantity None.
"""

from __future__ import annotations

import math
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from autotune.backends.torch.break_kinds import break_kind_of, guard_of, hint_of, recompile_kind_of
from autotune.measure.diagnosis import BreakKind, Compilations, Diagnosis, GraphBreak, Recompile

_STACK_LINE = re.compile(r'^\s*File "(.+?)", line (\d+), in ', re.MULTILINE)
_RESUMED = re.compile(r"torch_dynamo_resume_in_.+_at_(\d+)")
_PYTHON = sysconfig.get_paths()["stdlib"]
_OWN = f"{Path(__file__).parents[1]}{os.sep}"
_LIMIT = re.compile(r"(recompile|cache_size)_limit")
_MOST_METRICS = 10_000


def dynamo_counter(name: str) -> Any:
    """A counter or log of dynamo, None where this release has no such name or dynamo was never imported."""
    import torch._dynamo.utils

    return getattr(torch._dynamo.utils, name, None)


def diagnosis() -> Diagnosis:
    """What was compiled in this process since `clear`, by all counters and logs."""
    counters = dynamo_counter("counters")
    num_graphs = None if counters is None else int(counters["stats"]["unique_graphs"])
    metrics = _compilation_metrics()
    num_kernels, num_fused = _kernels(counters)
    return Diagnosis(
        compiled=num_graphs != 0,
        num_graphs=num_graphs,
        graph_breaks=_graph_breaks(metrics or []),
        recompiles=None if metrics is None else _recompiles(metrics),
        cache_hits=None
        if counters is None
        else int(counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]),
        num_kernels=num_kernels,
        num_fused=num_fused,
        note=_note(num_graphs, metrics),
    )


def compilations() -> Compilations | None:
    """What was compiled in this process since `clear`, and where dynamo gave up. Dynamo keeps its records of 64
    compilations, fewer than a stream of shapes may cause: from the first call on it keeps more."""
    keep_more = dynamo_counter("set_compilation_metrics_limit")
    if keep_more is not None:
        keep_more(_MOST_METRICS)
    counters, metrics = dynamo_counter("counters"), _compilation_metrics()
    if counters is None:
        return None
    # Dynamo tried to compile a function once more than it may; from then on it leaves what it has no code for alone,
    # without another record of it.
    reasons = [str(getattr(metric, "fail_reason", None) or "") for metric in metrics or ()]
    given_up = None if metrics is None else sum(bool(_LIMIT.search(reason)) for reason in reasons)
    return Compilations(num_graphs=int(counters["stats"]["unique_graphs"]), num_given_up=given_up)


def num_uncaptured() -> int:
    """Graphs that were to be replayed as CUDA graphs and are not: inductor leaves them as they are, with a warning in
    its log. On a CPU it counts them too."""
    counters = dynamo_counter("counters")
    return 0 if counters is None else int(counters["inductor"]["cudagraph_skips"])


def uncaptured_note() -> str | None:
    """A sentence on these graphs, with the reason of the first."""
    number = num_uncaptured()
    if not number:
        return None
    reasons = [getattr(metric, "cudagraph_skip_reason", None) for metric in _compilation_metrics() or ()]
    why = next((f": {_first_line(reason)}" for reason in reasons if reason), "")
    return f"{number} {'graph' if number == 1 else 'graphs'} not replayed as CUDA graphs{why}"


def clear() -> None:
    """A forked or repeated use of the process must not count what was compiled before."""
    if "torch._dynamo" not in sys.modules:
        return
    sys.modules["torch._dynamo"].reset()
    for name in ("counters", "graph_break_reasons"):
        pages = dynamo_counter(name)
        if pages is not None:
            pages.clear()
    forget_metrics = dynamo_counter("clear_compilation_metrics")
    if forget_metrics is not None:
        forget_metrics()
    if "torch._inductor.metrics" in sys.modules:
        sys.modules["torch._inductor.metrics"].reset()
    if "torch._inductor.codecache" in sys.modules:
        sys.modules["torch._inductor.codecache"].PyCodeCache.cache_clear()


def _kernels(counters: Any) -> tuple[int | None, int | None]:
    """Kernels launched by a call, generated ones and those of libraries; and nodes that were fused into another one's.

    The generated ones are counted in the code: inductor's own `generated_kernel_count` counts loops before they are
    grouped on a CPU (5 for 3 kernels; 2.13). Both None where nothing was generated or it cannot be told.
    """
    code = emitted_code() if "torch._inductor.codecache" in sys.modules else None
    if not code or counters is None or any(map(calls_device_from_cpp, code)):
        return None, None
    num_kernels = sum(map(num_launches, code)) + int(counters["inductor"]["extern_calls"])
    nodes = getattr(sys.modules.get("torch._inductor.metrics"), "ir_nodes_pre_fusion", None)
    return num_kernels, None if nodes is None else max(int(nodes) - num_kernels, 0)


def resumed_locations() -> dict[str, str]:
    """Compilation "N/k" -> place of the graph break after which the code goes on that it compiled.

    The name of such code has the line of the break in the function that was being compiled; the break itself may be
    in one that is called there. The names are dynamo's (`torch/_dynamo/resume_execution.py`).
    """
    stacks = [graph_break.user_stack for graph_break in dynamo_counter("graph_break_reasons") or ()]
    places = {_outermost(stack): _user_line(stack) for stack in stacks}
    resumed: dict[str, str] = {}
    for metric in _compilation_metrics() or ():
        named = _RESUMED.fullmatch(str(metric.co_name))
        if named is not None:
            line = f"{metric.co_filename}:{named[1]}"
            resumed[str(metric.compile_id)] = places.get(line) or line
    return resumed


def given_up_locations() -> list[str]:
    """Places at which dynamo gave up the whole function around them, so that it runs eagerly from there on."""
    graph_breaks = _graph_breaks(_compilation_metrics() or []) or ()
    return [found.location for found in graph_breaks if found.gives_up and found.location]


def _outermost(stack: Any) -> str | None:
    frames = list(stack or ())
    return f"{frames[0].filename}:{frames[0].lineno}" if frames else None


def _compilation_metrics() -> list[Any] | None:
    read = dynamo_counter("get_compilation_metrics")
    return None if read is None else list(read())


def _graph_breaks(metrics: list[Any]) -> tuple[GraphBreak, ...] | None:
    """Each place once for each kind of break, with the number of times that dynamo broke there."""
    reasons = dynamo_counter("graph_break_reasons")
    if reasons is None:
        return None
    seen: dict[tuple[str | None, BreakKind], GraphBreak] = {}
    for graph_break in reasons:
        if getattr(graph_break, "graph_break", True):
            _note_break(seen, str(graph_break.reason), _user_line(graph_break.user_stack), num_times=1)
    for metric in metrics:
        # What dynamo tried to go on after, and could not: it is in no list of breaks unless it was one before.
        if getattr(metric, "fail_type", None) == "Unsupported" and getattr(metric, "fail_user_frame_filename", None):
            location = f"{metric.fail_user_frame_filename}:{metric.fail_user_frame_lineno}"
            _note_break(seen, str(metric.fail_reason), location, num_times=0)
    return tuple(seen.values())


def _note_break(
    seen: dict[tuple[str | None, BreakKind], GraphBreak], reason: str, location: str | None, num_times: int
) -> None:
    """`num_times` 0: it made dynamo give the function up, after it had been counted as a break if it was one."""
    break_kind = break_kind_of(reason)
    known = seen.get((location, break_kind))
    first = known or GraphBreak(
        reason=_first_line(reason), location=location, count=0, ailment=break_kind, hint=hint_of(reason)
    )
    seen[location, break_kind] = first.model_copy(
        update={
            "count": first.count + num_times if known or num_times else 1,
            "gives_up": first.gives_up or num_times == 0,
        }
    )


def _user_line(stack: Any) -> str | None:
    """`file:line` of the innermost frame (dynamo lists the innermost last) that is neither torch's nor Python's own."""
    frames = list(stack or ())
    inner = next((frame for frame in reversed(frames) if not _is_machinery(frame.filename)), None)
    frame = inner or (frames[-1] if frames else None)
    return f"{frame.filename}:{frame.lineno}" if frame is not None else None


def _is_machinery(filename: str) -> bool:
    """It is torch's or Python's own, as dynamo's stand-ins for builtins are; other packages are a user's code."""
    import torch

    is_pythons = filename.startswith(_PYTHON) and "-packages" not in filename
    return is_pythons or filename.startswith(f"{Path(torch.__file__).parent}/")


def _recompiles(metrics: list[Any]) -> tuple[Recompile, ...]:
    """A compilation whose id is N/k with k > 0 compiled the code of frame N again; its reason is the failed guard."""
    return tuple(
        Recompile(
            reason=_first_line(guard_of(metric.recompile_reason)),
            location=_guarded_line(metric),
            ailment=recompile_kind_of(guard_of(metric.recompile_reason)),
            compile_s=None if getattr(metric, "duration_us", None) is None else metric.duration_us / 1e6,
        )
        for metric in metrics
        if getattr(metric, "recompile_reason", None)
    )


def _guarded_line(metric: Any) -> str | None:
    """Where the guarded value is used, by the stack in the reason; else where the function begins. None where that is
    a function of a backend, which stands around the model."""
    used = _STACK_LINE.findall(str(metric.recompile_reason))
    if used:
        return f"{used[-1][0]}:{used[-1][1]}"
    is_model = metric.co_filename and not metric.co_filename.startswith(_OWN)
    return f"{metric.co_filename}:{metric.co_firstlineno}" if is_model else None


def _note(num_graphs: int | None, metrics: list[Any] | None) -> str | None:
    """What silently did not happen: nothing captured, or a frame given up and run eagerly."""
    if num_graphs == 0:
        return "torch.compile captured nothing: the model ran eagerly"
    failed = [metric.fail_reason for metric in metrics or () if getattr(metric, "fail_reason", None)]
    return f"ran eagerly in part: {_first_line(failed[0])}" if failed else None


def _first_line(text: str, max_chars: int = 300) -> str:
    return str(text).strip().splitlines()[0].strip()[:max_chars] if str(text).strip() else ""


# The code that inductor emitted in this process: read back, made comparable, and its kernels counted.

_COMMENT = re.compile(
    r"^[ \t]*(?:#(?!include|pragma|define|if|ifdef|ifndef|endif|else|undef)|//).*$"
    r"|(?<=\S)[ \t]+# .*$",
    re.MULTILINE,
)
"""Comments hold paths, addresses and numbers of graphs. In a kernel, a line with `#` is the preprocessor's."""

_HASHED_NAME = re.compile(r"\b[cs]?[a-z2-7]{50,52}\b")
"""A cache key of inductor's: base32 of a SHA-256, behind a letter."""


_ADDRESS = re.compile(r"\bat 0x[0-9a-f]+")
"""Names of functions in asserts' messages have theirs."""

_DEFINED = re.compile(r'^(\w+) = async_compile\.|^extern "C"\s+void\s+(\w+)\(', re.MULTILINE)
"""Kernels by name: in a Python wrapper, or in a C++ one. (Inside a Python one, C++ kernels are all called `kernel`.)"""


def emitted_code() -> list[str] | None:
    """Source of every graph that inductor compiled or loaded in this process, in order, without what has no meaning.

    The source of a graph holds those of its kernels, C++ or Triton. None where this release keeps no list of them, or
    a file of the list is gone.
    """
    from torch._inductor.codecache import PyCodeCache

    modules = getattr(PyCodeCache, "modules", None)
    if modules is None:
        return None
    try:
        # The others are single kernels (their text is in the graph's too) and candidates that autotuning tried.
        return [normalised(Path(module.__file__).read_text()) for module in modules if hasattr(module, "call")]
    except OSError:
        return None


def normalised(source: str) -> str:
    """Emitted code without comments, cache keys, addresses and the folder that it lies in."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    source = _ADDRESS.sub("at ADDRESS", _HASHED_NAME.sub("KEY", _COMMENT.sub("", source)))
    source = source.replace(str(cache_dir()), "CACHE")
    return "\n".join(line.rstrip() for line in source.splitlines() if line.strip())


def num_launches(source: str) -> int:
    """How often the code of a graph starts a generated kernel in one call."""
    names = {python or cpp for python, cpp in _DEFINED.findall(source)} - {"kernel"}
    return sum(len(re.findall(rf"^[ \t]+{name}(?:\.run)?\(", source, re.MULTILINE)) for name in names)


def calls_device_from_cpp(source: str) -> bool:
    """A C++ wrapper for a device: its kernels are loaded as binaries, and do not show by these names."""
    return "cpp_wrapper_src" in source and "cpp_wrapper/cpu.h" not in source


# What graph breaks cost, by torch.profiler (https://docs.pytorch.org/docs/2.13/profiler.html).

_REGION, _GRAPH = "Torch-Compiled Region: ", "## Call CompiledFxGraph"


def break_costs(call: Callable[[], None], num_calls: int) -> dict[str, float]:
    """See `Profiler`. What is seen is time on the host."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(num_calls):
            call()
    events = [(event.name, event.time_range.start * 1e-6, event.time_range.end * 1e-6) for event in profiler.events()]
    at_breaks = between_graphs(events, resumed_locations())
    lost = given_up_locations()
    if len(lost) == 1:
        at_breaks[lost[0]] = after_the_last_graph(events)
    return {place: seconds / num_calls for place, seconds in at_breaks.items()}


_Event = tuple[str, float, float]
"""Name, start and end in seconds of what the profiler saw."""


def between_graphs(events: Iterable[_Event], resumed: Mapping[str, str]) -> dict[str, float]:
    """Place of a graph break -> seconds on the host between the graph before it and what is compiled after it.

    `resumed` says which compiled region goes on after which break; it lies within the region that broke. What counts is
    the time from the end of the last graph (or the start of the region that broke) to the start of the next graph or
    region: what Python does there, the operators that it calls one by one, and finding the code that goes on.
    """
    marks = _marks(events)
    seconds: dict[str, float] = {}
    for position, (start, end, name) in enumerate(marks):
        place = resumed.get(name.removeprefix(_REGION))
        if place is None:
            continue
        before, after = marks[:position], marks[position + 1 :]
        # Of what is over its end counts; of what is not, and so lies around it, its start.
        left = max((past if past <= start else begun for begun, past, _ in before), default=start)
        entered = min((begun for begun, _, _ in after if begun < end), default=end)
        seconds[place] = seconds.get(place, 0.0) + entered - left
    return seconds


def after_the_last_graph(events: Iterable[_Event]) -> float:
    """Seconds of all calls in which compiled code had been entered, and none ran any more before it was left."""
    seconds, until, inner = 0.0, 0.0, 0.0
    for start, end, name in [*_marks(events), (math.inf, math.inf, "")]:
        if start >= until:
            seconds += until - inner
            until, inner = end, start
        else:
            inner = max(inner, end if name.startswith(_GRAPH) else start)
    return seconds


def _marks(events: Iterable[_Event]) -> list[tuple[float, float, str]]:
    """Compiled regions and graphs: start, end and name, in the order in which they begin."""
    return sorted((start, end, name) for name, start, end in events if name.startswith((_REGION, _GRAPH)))
