"""What dynamo and inductor did, from their own books.

`torch._dynamo.utils.counters`, `graph_break_reasons`, `get_compilation_metrics()` and `torch._inductor.metrics` are
private and differ between releases, so each is looked up on its own and a missing one makes that quantity None.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

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


def _kernels(counters: Any) -> tuple[int | None, int | None]:
    """Kernels, generated and called from libraries; and operators that were fused into another one's kernel.

    Both None where inductor compiled nothing or this release does not count.
    """
    metrics = sys.modules.get("torch._inductor.metrics")
    generated = getattr(metrics, "generated_kernel_count", None)
    operators = getattr(metrics, "ir_nodes_pre_fusion", None)
    if counters is None or (not generated and not operators):
        return None, None
    num_kernels = int(generated or 0) + int(counters["inductor"]["extern_calls"])
    return num_kernels, None if operators is None else max(int(operators) - num_kernels, 0)


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
