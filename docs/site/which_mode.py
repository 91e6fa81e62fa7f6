"""The tables of docs/which-mode.md: how often a setting is the fastest, by how much, and on which models.

They are computed from the records of the portfolio (benchmarks/results/portfolio*.jsonl) and from the recorded tables
of whole spaces (benchmarks/tables); `make reference` writes them anew.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from autotune.config import Config
from autotune.workload.workload import Task
from benchmarks.evidence import table
from benchmarks.portfolio import (
    AVX2,
    COMPILED,
    EAGER,
    FROZEN,
    FUSED,
    FUSION,
    GEMM,
    GRAPH,
    HALF,
    JIT,
    KEEP,
    PACKED,
    RECORDS,
    STEP,
    WRAPPED,
    Readings,
    Settings,
    is_half,
    readings_of,
)  # fmt: skip
from benchmarks.tables import Question, read_table

CLOSE = 0.95
"""Share of the best gain at which a setting counts as equally fast: processes of one config differ by 5 to 10 %."""

CPU: tuple[tuple[str, Settings], ...] = (
    ("`torch.compile(model)`", COMPILED),
    ('`mode="lite"`', {**COMPILED, "mode": "lite"}),
    ("C++ wrapper", {**COMPILED, "cpp_wrapper": True}),
    ("frozen weights", FROZEN),
    ("frozen, generated matrix products (as `max-autotune`)", {**FROZEN, **GEMM}),
    ("frozen, C++ wrapper", WRAPPED),
    ("frozen, C++ wrapper, generated matrix products", {**WRAPPED, **GEMM}),
    ("frozen, C++ wrapper, linear layers packed for oneDNN", PACKED),
    ("frozen, C++ wrapper, bfloat16 autocast (other tolerance)", {**WRAPPED, **HALF}),
    ("eager, memory kept (process)", {**EAGER, **KEEP}),
)
TRAINING: tuple[tuple[str, Settings], ...] = (
    ("model compiled", COMPILED),
    ("model and loss compiled", STEP),
    ("eager, fused optimizer", {**EAGER, **FUSED}),
    ("model and loss compiled, fused optimizer", {**STEP, **FUSED}),
    ("the same, C++ wrapper", {**STEP, "cpp_wrapper": True, **FUSED}),
    ("model, loss and optimizer compiled", {**STEP, "optimizer_compiled": True}),
)
MINDSPORE: tuple[tuple[str, Settings], ...] = (
    ("`ms.jit`", JIT),
    ("Graph mode", GRAPH),
    ("Graph mode, `enable_graph_kernel`", {**GRAPH, **FUSION}),
    ("PyNative, oneDNN limited to AVX2 (process)", {"execution": "pynative", **AVX2}),
    ("`ms.jit`, AVX2 (process)", {**JIT, **AVX2}),
    ("Graph mode, AVX2 (process)", {**GRAPH, **AVX2}),
    ("Graph mode, AVX2, `enable_graph_kernel` (process)", {**GRAPH, **AVX2, **FUSION}),
    ("PyNative, `launch_blocking` (process)", {"execution": "pynative", "launch_blocking": True}),
)
MODES = (("default", False), ("default", True), ("max-autotune", False), ("max-autotune", True), ("lite", None))
TABLES = {"vit_torch": "ViT", "resnet18_torch_exhaustive": "ResNet-18", "small_mlp_torch": "four small layers"}


def sections() -> dict[str, str]:
    """Name of the section -> what has to stand there."""
    cpu, mindspore = _known("torch"), _known("mindspore")
    return {
        "modes-cpu": _settings(CPU, cpu),
        "modes-kinds": _models(CPU, cpu, "`torch.compile(model)`", COMPILED),
        "modes-whole": _whole_tables(),
        "modes-training": _settings(TRAINING, _known("torch", "train")),
        "modes-mindspore": _settings(MINDSPORE, mindspore) + "\n" + _models(MINDSPORE, mindspore, "`ms.jit`", JIT),
    }


def _known(framework: str, task: Task = "infer") -> list[Readings]:
    """The recorded models; the tables of whole spaces, which are the same networks, stand apart."""
    return [one for one in readings_of(framework, task, RECORDS["cpu"], "cpu") if not one.name.endswith("(table)")]


def _settings(rows: Sequence[tuple[str, Settings]], known: Sequence[Readings]) -> str:
    """A row for each setting: on how many models it is the fastest, its gains, and where it does harm."""
    tops = {one.name: _top(rows, one) for one in known}
    shown = []
    for label, settings in rows:
        gains = {one.name: gain for one in known if (gain := one.gain(settings)) is not None}
        fastest = sum(gain >= CLOSE * max(1.0, tops[name]) for name, gain in gains.items())
        slower = sum(gain < CLOSE for gain in gains.values())
        shown.append([label, "-" if is_half(settings) else f"{fastest} of {len(gains)}", *_spread(gains.values()),
                      f"{slower} of {len(gains)}"])  # fmt: skip
    left = sum(top * CLOSE <= 1.0 for top in tops.values())
    shown.append(["untuned", f"{left} of {len(known)}", "1.00", "1.00 to 1.00", "-"])
    return table(["setting", "fastest on", "median gain", "least and most", "slower than untuned on"], shown) + "\n"


def _models(rows: Sequence[tuple[str, Settings]], known: Sequence[Readings], plain: str, settings: Settings) -> str:
    """A row for each model: what plain compilation gives, and what is best."""
    shown = []
    for one in sorted(known, key=lambda one: (one.kind, one.name)):
        label, best = max(_gains(rows, one), key=lambda pair: pair[1])
        first = one.gain(settings)
        shown.append([one.kind, f"`{one.name}`", "-" if first is None else f"{first:.2f}",
                      "untuned" if best * CLOSE <= 1.0 else label, f"{best:.2f}"])  # fmt: skip
    return table(["kind", "model", plain, "best in float32", "gain"], shown) + "\n"


def _whole_tables() -> str:
    """The modes of `torch.compile`, with and without frozen weights, all else being the default."""
    shown = []
    for name, label in TABLES.items():
        question = Question(read_table(name))
        space = question.table.space
        untuned_s = question.latency_s(question.table.by_config[space.untuned()])
        found = []
        for mode, frozen in MODES:
            settings: Settings = {**COMPILED, "mode": mode, **({} if frozen is None else {"freezing": frozen})}
            row = question.table.by_config.get(space.projected(Config(settings)))
            is_known = row is not None and row.works and row.config.root.get("mode") == mode
            found.append(f"{untuned_s / question.latency_s(row):.2f}" if row is not None and is_known else "-")
        shown.append([label, *found])
    heads = ["`default`", "frozen", "`max-autotune`", "frozen", "`lite`"]
    return table(["model", *heads], shown) + "\n"


def _gains(rows: Sequence[tuple[str, Settings]], one: Readings) -> list[tuple[str, float]]:
    """Of all settings but those in half precision."""
    found = ((label, one.gain(settings)) for label, settings in rows if not is_half(settings))
    return [(label, gain) for label, gain in found if gain is not None]


def _top(rows: Sequence[tuple[str, Settings]], one: Readings) -> float:
    return max((gain for _, gain in _gains(rows, one)), default=1.0)


def _spread(values: Iterable[float]) -> tuple[str, str]:
    gains = list(values)
    median: Callable[[Sequence[float]], float] = statistics.median
    return f"{median(gains):.2f}", f"{min(gains):.2f} to {max(gains):.2f}"
