"""What dynamo and inductor did, from their own books.

`torch._dynamo.utils.counters`, `graph_break_reasons`, `get_compilation_metrics()` and `torch._inductor.metrics` are
private and differ between releases, so each is looked up on its own and a missing one makes that quantity None.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

from autotune.backends.torch_code import calls_device_from_cpp, emitted_code, num_launches
from autotune.measurement import Diagnosis, GraphBreak, Recompile


def book(name: str) -> Any:
    """One of dynamo's books, None where this release has no such name or dynamo was never imported."""
    import torch._dynamo.utils

    return getattr(torch._dynamo.utils, name, None)


def diagnosis() -> Diagnosis:
    """What was compiled in this process since `clear`, by all that the books tell."""
    counters = book("counters")
    num_graphs = None if counters is None else int(counters["stats"]["unique_graphs"])
    metrics = _compilation_metrics()
    num_kernels, num_fused = _kernels(counters)
    return Diagnosis(
        compiled=num_graphs != 0,
        num_graphs=num_graphs,
        graph_breaks=_graph_breaks(),
        recompiles=None if metrics is None else _recompiles(metrics),
        cache_hits=None if counters is None else _cache_hits(counters),
        num_kernels=num_kernels,
        num_fused=num_fused,
        note=_note(num_graphs, metrics),
    )


def clear() -> None:
    """A forked or repeated use of the process must not count what was compiled before."""
    if "torch._dynamo" not in sys.modules:
        return
    sys.modules["torch._dynamo"].reset()
    for name in ("counters", "graph_break_reasons"):
        pages = book(name)
        if pages is not None:
            pages.clear()
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


def _compilation_metrics() -> list[Any] | None:
    read = book("get_compilation_metrics")
    return None if read is None else list(read())


def _graph_breaks() -> tuple[GraphBreak, ...] | None:
    """Each place once, with the number of times that dynamo broke there."""
    reasons = book("graph_break_reasons")
    if reasons is None:
        return None
    seen: Counter[tuple[str, str | None]] = Counter()
    for each in reasons:
        if getattr(each, "graph_break", True):
            seen[_first_line(each.reason), _user_line(each.user_stack)] += 1
    return tuple(GraphBreak(reason=r, location=place, count=n) for (r, place), n in seen.items())


def _user_line(stack: Any) -> str | None:
    """`file:line` of the innermost user frame (dynamo lists the innermost last)."""
    frames = list(stack or ())
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None


def _recompiles(metrics: list[Any]) -> tuple[Recompile, ...]:
    """A compilation whose id is N/k with k > 0 compiled the code of frame N again; its reason is the failed guard."""
    again = [each for each in metrics if getattr(each, "recompile_reason", None)]
    return tuple(
        Recompile(
            reason=_first_line(each.recompile_reason),
            location=f"{each.co_filename}:{each.co_firstlineno}" if each.co_filename else None,
        )
        for each in again
    )


def _cache_hits(counters: Any) -> int:
    return int(counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"])


def _note(num_graphs: int | None, metrics: list[Any] | None) -> str | None:
    """What silently did not happen: nothing captured, or a frame given up and run eagerly."""
    if num_graphs == 0:
        return "torch.compile captured nothing: the model ran eagerly"
    failed = [each.fail_reason for each in metrics or () if getattr(each, "fail_reason", None)]
    return f"ran eagerly in part: {_first_line(failed[0])}" if failed else None


def _first_line(text: str, max_chars: int = 300) -> str:
    return str(text).strip().splitlines()[0].strip()[:max_chars] if str(text).strip() else ""
