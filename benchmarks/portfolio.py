"""Records how models of many kinds run under a design of configs, which the portfolio of the package is made from.

    taskset -c 1 python -m benchmarks.portfolio record              goes on with what is there, for an hour or two
    taskset -c 1 python -m benchmarks.portfolio record --rounds 1   one process a config, of every model
    python -m benchmarks.portfolio record --device gpu --side-by-side 8    models beside each other, each timed alone

Each round gives a config a fresh process. The untuned model runs before and after every few of them, and what counts is
the ratio to it: on a CPU in CPU seconds of the process, since other programs may use the machine meanwhile, on a GPU in
seconds of a call. The first round compiles, later ones start from its caches.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from autotune import environment
from autotune.backends.registry import entry_of, framework_version
from autotune.bench.local import LocalBench
from autotune.config import Config, Scalar
from autotune.environment import Environment
from autotune.errors import SetupError
from autotune.files import write_whole
from autotune.measure.measurement import Failure, Measurement, Outcome
from autotune.measure.sampling import SamplingPlan
from autotune.planning.models import make_workload
from autotune.planning.spaces import bundled_space
from autotune.space.load import Circumstances, load_space, read_space_file
from autotune.space.portfolio import FILE as PACKAGE_FILE
from autotune.space.portfolio import Entry, PortfolioFile, PortfolioTable, recorded
from autotune.space.space import SearchSpace
from autotune.trial.folder import TrialFolder
from autotune.trial.request import Limits, TrialRequest
from autotune.workload.workload import Device, Task
from benchmarks.evidence import REPOSITORY, RESULTS
from benchmarks.tables import Question, read_table

RECORDS: Mapping[Device, Path] = {"cpu": RESULTS / "portfolio.jsonl", "gpu": RESULTS / "portfolio_gpu.jsonl"}
TOLERANCE = 5e-2
"""Of a trial here; what a config's error was is recorded, and judged where the portfolio is made."""
SAMPLING = SamplingPlan(max_warmup_s=1.0, max_sampling_s=0.7, min_samples=20, max_samples=300)
LIMITS = Limits(compile=400.0, check=60.0, run=60.0, total=500.0)
FLOAT_TOLERANCE, HALF_TOLERANCE = 1e-3, 2e-2
"""Largest errors of a config that a study of these classes would take."""
NOTABLE = 0.02
"""Share by which a config must be slower than the best not to be told as the best of a model."""
QUANTILE = 0.2
FEWEST_KNOWN = 1 / 3
"""Share of the models that have a reading of a config; with fewer it is not known how good it is."""
PAIR = 3
"""Configs between two readings of the untuned model."""
ALIKE = 1.25
"""Two readings of the untuned model differ by no more than this, or what was read between them is not kept: a ratio to
one slow reading is not the config's. Configs of ResNet-18 in bfloat16 were once told as 24 to 30 times as fast so."""
TABLES_OF = {
    "torch": {"vit_torch": "attention", "resnet18_torch_exhaustive": "convolution", "small_mlp_torch": "mlp"},
    "mindspore": {"tanh_matmul_mindspore": "mlp"},
}
"""Recorded tables of whole spaces, with the kinds of their models."""
ON_DEVICE = "benchmarks/models/on_device_torch.py"
KINDS_TORCH, KINDS_MINDSPORE = "benchmarks/models/kinds_torch.py", "benchmarks/models/kinds_mindspore.py"
EXAMPLES = "examples/models"

Settings = dict[str, Scalar]


@dataclass(frozen=True)
class Recorded:
    """A model that is recorded. `family` is left out as one where a portfolio is judged."""

    name: str
    family: str
    model: str
    framework: str = "torch"
    task: Task = "infer"
    arguments: Mapping[str, Scalar] = ()  # type: ignore[assignment]


def _kind(name: str, family: str, **arguments: Scalar) -> Recorded:
    return Recorded(name, family, f"{KINDS_TORCH}:{name}", arguments=arguments)


def _trained(name: str, family: str, model: str, framework: str = "torch", **arguments: Scalar) -> Recorded:
    return Recorded(name, family, model, framework, "train", arguments)


def _written(name: str, family: str = "decoder", **arguments: Scalar) -> Recorded:
    """A model that generates, small enough for many passes over its prompts."""
    sizes: Settings = {"hidden_size": 256, "new_tokens": 32, **arguments}
    return Recorded(f"generate_{name}", family, f"hf:{name}", task="generate", arguments=sizes)


MODELS: tuple[Recorded, ...] = (
    Recorded("vit", "attention", "vit", arguments={"depth": 2, "image": 112}),
    Recorded("resnet18", "convolution", "resnet18", arguments={"image": 64, "width": 32}),
    _kind("decoder_step", "decoder"),
    _kind("small_mlp", "mlp"),
    _kind("gru_by_hand", "recurrent"),
    _trained("train_vit", "attention", "vit", depth=1, image=64, batch=2),
    Recorded("vit_mindspore", "attention", "vit", "mindspore", arguments={"depth": 2, "image": 64}),
    Recorded("resnet18_mindspore", "convolution", "resnet18", "mindspore", arguments={"image": 32, "width": 16}),
    _kind("message_passing", "graph"),
    _kind("separable", "convolution"),
    _kind("unet", "diffusion"),
    _kind("mixer", "mlp"),
    _kind("prefill", "decoder"),
    _trained("train_resnet18", "convolution", "resnet18", image=64, width=16),
    Recorded("bert_small_mindspore", "attention", "bert_small", "mindspore", arguments={"depth": 2}),
    Recorded("mixer_mindspore", "mlp", f"{KINDS_MINDSPORE}:mixer", "mindspore"),
    Recorded("gru_mindspore", "recurrent", f"{KINDS_MINDSPORE}:gru_by_hand", "mindspore"),
    _kind("lstm_tagger", "recurrent"),
    _kind("wide_mlp", "mlp"),
    _kind("waveform", "signal"),
    _kind("recommender", "recommender"),
    Recorded("bert_small", "attention", "bert_small", arguments={"depth": 2}),
    Recorded("yolo_tiny", "detection", f"{EXAMPLES}/yolo_tiny_torch.py:yolo_tiny", arguments={"image": 64}),
    Recorded("planner", "planner", f"{EXAMPLES}/planner.py:planner"),
    _trained("train_prefill", "decoder", f"{KINDS_TORCH}:train_prefill"),
    _trained("train_mlp", "mlp", f"{KINDS_TORCH}:train_mlp"),
    _trained("train_mixer", "mlp", f"{KINDS_TORCH}:train_mixer"),
    _trained("train_vit_mindspore", "attention", "vit", "mindspore", depth=1, image=32, batch=2),
    _trained("train_bert_mindspore", "attention", "bert_small", "mindspore", depth=1, batch=2),
    Recorded(
        "yolo_tiny_mindspore",
        "detection",
        f"{EXAMPLES}/yolo_tiny_mindspore.py:yolo_tiny",
        "mindspore",
        arguments={"image": 32},
    ),
    Recorded(
        "tanh_matmul",
        "mlp",
        f"{EXAMPLES}/tanh_matmul_torch.py:tanh_matmul",
        arguments={"size": 128, "repeats": 8},
    ),
    _written("gpt2", num_hidden_layers=4),
    _written("llama", num_hidden_layers=4),
    _written("t5", "encoder and decoder"),
    _written("qwen3", num_hidden_layers=4),
    _written("opt", num_hidden_layers=4),
)
"""In the order in which they are recorded: the first half of them has most kinds."""

_VIT_S: Settings = {"dim": 384, "depth": 6, "heads": 6, "batch": 32}
MODELS_ON_GPU: tuple[Recorded, ...] = (
    Recorded("vit", "attention", "vit"),
    Recorded("vit_batch", "attention", "vit", arguments=_VIT_S),
    Recorded("resnet50_batch", "convolution", f"{ON_DEVICE}:resnet50", arguments={"depth": 8}),
    Recorded("decoder_batch", "decoder", f"{ON_DEVICE}:decoder", arguments={"depth": 6, "dtype": "float32"}),
    _kind("decoder_step", "decoder", dim=1024, depth=4, heads=16),
    _kind("gru_by_hand", "recurrent"),
    _kind("unet", "diffusion"),
    _kind("recommender", "recommender"),
    _trained("train_vit", "attention", "vit", dim=384, depth=6, heads=6, batch=32),
    _trained("train_prefill", "decoder", f"{KINDS_TORCH}:train_prefill"),
)
"""Small ones wait for the launches of their kernels, as most models do with one input; the others compute."""

COMPILED: Settings = {"execution": "compile"}
EAGER: Settings = {"execution": "eager"}
FROZEN: Settings = {**COMPILED, "freezing": True}
WRAPPED: Settings = {**FROZEN, "cpp_wrapper": True}
PACKED: Settings = {**WRAPPED, "packed_linear": "onednn"}
HIGH: Settings = {"matmul_precision": "high"}
KEEP: Settings = {"allocator": "keep"}
HALF: Settings = {"precision": "bf16_autocast"}
GEMM: Settings = {"max_autotune_gemm": True}
STEP: Settings = {**COMPILED, "scope": "loss"}
FUSED: Settings = {"optimizer_impl": "fused"}
GRAPH: Settings = {"execution": "graph"}
JIT: Settings = {"execution": "jit"}
GROWING: Settings = {**COMPILED, "cache": "dynamic", "prefill": "compile_dynamic"}
FIXED: Settings = {**COMPILED, "cache": "static", "cache_length": 64}
AVX2: Settings = {"onednn_isa": "AVX2"}
FUSION: Settings = {"enable_graph_kernel": True}

DESIGN: dict[tuple[str, Task], tuple[Settings, ...]] = {
    ("torch", "infer"): (
        COMPILED,
        WRAPPED,
        PACKED,
        {**WRAPPED, **HIGH},
        FROZEN,
        {**WRAPPED, **HALF},
        {**FROZEN, **GEMM},
        {**COMPILED, "cpp_wrapper": True},
        {**COMPILED, "mode": "lite"},
        {**EAGER, **KEEP},
        {**WRAPPED, **HIGH, **KEEP},
        {**WRAPPED, **GEMM},
        {**EAGER, **HIGH},
        {**WRAPPED, "matmul_precision": "medium"},
        {**EAGER, **HALF},
        {**WRAPPED, **GEMM, **HALF},
        {**WRAPPED, **GEMM, **HIGH},
        {**FROZEN, **HIGH},
        {**WRAPPED, **KEEP},
    ),
    ("torch", "train"): (
        COMPILED,
        STEP,
        {**STEP, "cpp_wrapper": True},
        {**STEP, **FUSED},
        {**STEP, "cpp_wrapper": True, **FUSED},
        {**EAGER, **FUSED},
        {**STEP, "cpp_wrapper": True, **FUSED, **HIGH},
        {**STEP, "cpp_wrapper": True, **FUSED, **HIGH, **KEEP},
        {**STEP, "optimizer_compiled": True},
        {**STEP, "cpp_wrapper": True, "optimizer_compiled": True},
        {**STEP, "cpp_wrapper": True, **FUSED, **HALF},
        {**EAGER, **FUSED, **KEEP},
        {**EAGER, **HIGH},
        {**COMPILED, **FUSED},
        {**EAGER, **FUSED, **HALF},
        {**STEP, "mode": "lite", **FUSED},
    ),
    ("torch", "generate"): (
        COMPILED,
        GROWING,
        {**COMPILED, "cache": "transformers"},
        {**GROWING, "freezing": True, "max_autotune_gemm": True},
        {**COMPILED, "cache": "dynamic", "freezing": True, "max_autotune_gemm": True},
        {**FIXED, "prefill": "compile"},
        {**GROWING, "freezing": True},
        {**FIXED, "prefill": "compile", "freezing": True},
        {**COMPILED, "cache": "transformers", "cpp_wrapper": True},
        {**FIXED, "prefill": "compile", "freezing": True, "cpp_wrapper": True},
        {**GROWING, "freezing": True, "cpp_wrapper": True},
        {**COMPILED, "cache": "dynamic"},
        {**COMPILED, "prefill": "compile_dynamic"},
        {**GROWING, "freezing": True, **HIGH},
        {**FIXED, "prefill": "compile", "freezing": True, "cpp_wrapper": True, **HIGH},
        {**GROWING, "mode": "lite"},
        {**EAGER, **HIGH},
        {**EAGER, **KEEP},
        {**FIXED, "prefill": "compile", "freezing": True, "cpp_wrapper": True, **HALF},
    ),
    ("mindspore", "infer"): (
        JIT,
        GRAPH,
        {**GRAPH, **AVX2},
        {**GRAPH, **FUSION},
        {**GRAPH, **FUSION, **AVX2},
        {**JIT, **AVX2},
        {**JIT, **FUSION, **AVX2},
        {**GRAPH, **FUSION, **AVX2, "graph_kernel_expand": "norms"},
        {**GRAPH, **FUSION, **AVX2, "graph_kernel_opt_level": 1},
        {"execution": "pynative", **AVX2},
        {"execution": "pynative", "launch_blocking": True},
        {**JIT, "fullgraph": True},
        {**GRAPH, **FUSION, "graph_kernel_expand": "norms"},
        {**GRAPH, **FUSION, **AVX2, "graph_kernel_limit": 3},
        {**GRAPH, **FUSION, **AVX2, "graph_kernel_transpose": False},
    ),
    ("mindspore", "train"): (
        JIT,
        GRAPH,
        {**GRAPH, **AVX2},
        {**GRAPH, **FUSION, **AVX2},
        {**GRAPH, **FUSION},
        {**JIT, "step_pipeline": False},
        {**JIT, "step_pipeline": False, **AVX2},
        {**JIT, "step_pipeline": False, **FUSION, **AVX2},
        {**JIT, "scope": "gradients"},
        {**JIT, "scope": "gradients", "step_pipeline": False, **AVX2},
        {"execution": "pynative", **AVX2},
        {"execution": "pynative", "launch_blocking": True},
        {**GRAPH, **FUSION, **AVX2, "graph_kernel_expand": "norms"},
        {**JIT, "scope": "model", **AVX2},
    ),
}
"""What is recorded beside the untuned model, by framework and task: what was best somewhere, and the main knobs one by
one. What matters most comes first."""
INSTEAD: Mapping[str, Settings] = {
    json.dumps({**WRAPPED, **HIGH, **more}, sort_keys=True): PACKED for more in ({}, KEEP)
}
"""Settings, as text -> what comes to the same code without a lower precision in the process: on a processor that has no
units for TF32 or bfloat16, that does no more than pack linear layers for oneDNN (docs/knobs.md)."""
BY_HAND: Mapping[tuple[str, Task], tuple[Settings, ...]] = {
    ("torch", "generate"): (GROWING, {**COMPILED, "cache": "transformers"})
}
"""What users write by hand and the default is not: `torch.compile(model.forward)`, where text is generated, and Hugging
Face's own way."""

GRAPHS: Settings = {**COMPILED, "mode": "reduce-overhead"}
DESIGN_ON_GPU: dict[tuple[str, Task], tuple[Settings, ...]] = {
    ("torch", "infer"): (
        COMPILED,
        GRAPHS,
        {**GRAPHS, **HIGH},
        {**GRAPHS, **HALF},
        {**COMPILED, "cpp_wrapper": True},
        {**EAGER, **HIGH},
        {**COMPILED, "mode": "max-autotune"},
        {**EAGER, **HALF},
        {**COMPILED, "mode": "max-autotune-no-cudagraphs"},
    ),
    ("torch", "train"): (
        COMPILED,
        {**GRAPHS, **FUSED},
        {**EAGER, **FUSED},
        {**STEP, **FUSED},
        {**GRAPHS, **FUSED, **HIGH},
        {**GRAPHS, "scope": "loss", **FUSED},
        {**GRAPHS, **FUSED, **HALF},
        {**EAGER, **HIGH},
    ),
}
"""The same on a GPU."""
GROUNDS: tuple[tuple[str, Task, Device], ...] = (
    *((framework, task, "cpu") for framework, task in DESIGN),
    *((framework, task, "gpu") for framework, task in DESIGN_ON_GPU),
)
"""What the package has a table for."""


def models_on(device: Device) -> tuple[Recorded, ...]:
    """In the order in which they are recorded."""
    return MODELS if device == "cpu" else MODELS_ON_GPU


def settings_for(framework: str, task: Task, device: Device) -> tuple[Settings, ...]:
    """The design there."""
    return (DESIGN if device == "cpu" else DESIGN_ON_GPU)[framework, task]


def space_for(framework: str, task: Task, device: Device = "cpu", release: str | None = None) -> SearchSpace:
    """All that one core, or a device, offers with process settings and half precision."""
    here = Circumstances(
        version=release or framework_version(framework),
        device=device,
        task=task,
        tolerance=TOLERANCE,
        process_settings=True,
    )
    return load_space(bundled_space(framework), framework=framework, circumstances=here)


def process_knobs(framework: str) -> tuple[str, ...]:
    """Those of the bundled space that are for the whole process."""
    return tuple(name for name, entry in read_space_file(bundled_space(framework)).knobs.items() if entry.process)


def design(framework: str, task: Task, space: SearchSpace, device: Device = "cpu") -> list[tuple[Settings, Config]]:
    """What is recorded there, as it was written and as configs of the space; what cannot be said is left out."""
    written = settings_for(framework, task, device)
    configs = [(settings, space.projected(Config(settings))) for settings in written]
    return [
        (settings, config) for settings, config in configs if config.matches(settings) and not space.forbidden(config)
    ]


class Recorder:
    """Records models, a round after the other, and appends each reading to the file."""

    def __init__(self, file: Path, folder: Path, most: int | None, device: Device) -> None:
        self._file, self._most, self._device = file, most, device
        self._folder = folder
        lines = file.read_text().splitlines() if file.exists() else []
        self._done = {(row["model"], row["round"], text_of(row["config"])) for row in map(json.loads, lines)}

    def record(self, one: Recorded, number: int) -> None:
        """One round of a model, but for what the file has."""
        space = space_for(one.framework, one.task, self._device)
        left = [
            (settings, config)
            for settings, config in design(one.framework, one.task, space, self._device)[: self._most]
            if (one.name, number, text_of(settings)) not in self._done
        ]
        if not left:
            return
        with LocalBench({}, preload=True, log=self._folder / "log.txt") as bench:
            trials = _Trials(one, space.untuned(), bench, self._folder / one.name, self._device)
            before = trials.untuned()
            for start in range(0, len(left), PAIR):
                rows = [trials.row(settings, config, number) for settings, config in left[start : start + PAIR]]
                after = trials.untuned()
                beside_s = between(before, after)
                if beside_s is None:
                    print(
                        f"{one.name} {number}: left for another run, untuned {before:.3g} and {after:.3g} s", flush=True
                    )
                else:
                    self._append({**row, "beside_s": beside_s} for row in rows)
                before = after

    def _append(self, rows: Iterator[dict[str, Any]]) -> None:
        with self._file.open("a") as file:
            for row in rows:
                file.write(json.dumps(row) + "\n")
                print(_in_words(row), flush=True)


class _Trials:
    """Trials of one model in processes of their own; caches are kept from round to round."""

    def __init__(self, one: Recorded, untuned: Config, bench: LocalBench, folder: Path, device: Device) -> None:
        self._device = device
        self._one, self._untuned, self._bench, self._folder = one, untuned, bench, folder
        folder.mkdir(parents=True, exist_ok=True)
        self._workload = make_workload(
            one.model, dict(one.arguments), one.framework, device, 0, task=one.task, search_path=REPOSITORY
        )

    def untuned(self) -> float:
        """Seconds of a call. Raises SetupError where it fails."""
        outcome, _ = self._run(self._untuned, "untuned", cold=False)
        if isinstance(outcome, Failure):
            raise SetupError(f"{self._one.name}: {outcome.reason}: {outcome.error}; see {outcome.evidence}")
        return _call_s(outcome, self._device)

    def row(self, settings: Settings, config: Config, number: int) -> dict[str, Any]:
        """What the file holds of it, without what ran beside."""
        cache = self._folder / "cache" / config.fingerprint
        outcome, trial_s = self._run(config, config.fingerprint, cold=not cache.exists())
        row: dict[str, Any] = {"model": self._one.name, "round": number, "config": settings}
        if isinstance(outcome, Failure):
            return {**row, "failure": outcome.reason, "error": outcome.error[:200]}
        return {
            **row,
            "call_s": round(_call_s(outcome, self._device), 9),
            "trial_s": round(trial_s if self._device == "cpu" else sum(outcome.stage_s.values()), 2),
            "error": outcome.relative_error,
            "program": (outcome.program or "")[:12],
            **self._where(outcome.environment),
        }

    def _where(self, environment: Environment) -> dict[str, str]:
        """A device is lent, and the table is made elsewhere."""
        release = environment.packages[self._one.framework]
        return {} if self._device == "cpu" else {"machine": environment.device, "release": release}

    def _run(self, config: Config, name: str, *, cold: bool) -> tuple[Outcome, float]:
        trial = TrialFolder((self._folder / "trial").resolve())
        request = TrialRequest(
            number=0,
            workload=self._workload,
            config=config,
            untuned=config == self._untuned,
            tolerance=TOLERANCE,
            reference=str(self._folder / "reference.npz"),
            cache=str((self._folder / "cache" / name).resolve()),
            cold=cold,
            sampling=SAMPLING,
            limits=LIMITS,
        ).timed_alone_on(*(() if self._device == "cpu" else ("device",)))
        if self._device == "cpu" and entry_of(self._one.framework).toolchain is not None:
            request = request.with_kernels((self._folder / "kernels").resolve(), 1)
        before = _cpu_s()
        outcome = self._bench.run(trial, request)
        trial.drop_leftovers()
        return outcome, _cpu_s() - before


def between(before: float, after: float) -> float | None:
    """What the untuned model took while configs were read between two readings of it, in seconds; None where these
    differ too much to tell."""
    return round(math.sqrt(before * after), 9) if max(before, after) <= ALIKE * min(before, after) else None


def _call_s(outcome: Measurement, device: Device) -> float:
    """Seconds of a call that little disturbed, on a CPU those of the CPU: the fifth part of them was shorter. Other
    programs on the machine empty caches, and take turns on the same core."""
    usage = outcome.samples.usage if device == "cpu" else None
    return float(np.quantile(usage.cpu_s if usage else outcome.samples.latency_s, QUANTILE))


def _cpu_s() -> float:
    """CPU seconds of this process's children so far, with those that have ended."""
    spent = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            times = process.cpu_times()
            spent += times.user + times.system + times.children_user + times.children_system
        except psutil.Error:
            continue
    return spent


def text_of(settings: Mapping[str, Scalar]) -> str:
    """A key for settings."""
    return json.dumps(settings, sort_keys=True)


def _in_words(row: Mapping[str, Any]) -> str:
    told = " ".join(f"{name}={value}" for name, value in row["config"].items())
    if "failure" in row:
        return f"{row['model']} {row['round']} {row['failure']}: {row['error'][:80]}  {told}"
    return f"{row['model']} {row['round']} {row['beside_s'] / row['call_s']:.3f}x {row['trial_s']:.1f} s  {told}"


def record(given: argparse.Namespace) -> None:
    """Every model, a round after the other; a model that fails is told, and left out."""
    with tempfile.TemporaryDirectory(prefix="autotune-portfolio-") as made:
        folder = given.folder or Path(made)
        recorder = Recorder(given.file or RECORDS[given.device], folder, given.most, given.device)
        chosen = [one for one in models_on(given.device) if not given.models or one.name in given.models]

        def record_one(one: Recorded, number: int) -> None:
            try:
                recorder.record(one, number)
            except SetupError as error:
                print(f"{one.name}: {error}", file=sys.stderr, flush=True)

        for number in range(1, given.rounds + 1):
            with ThreadPoolExecutor(given.side_by_side) as threads:
                list(threads.map(record_one, chosen, repeat(number)))


@dataclass
class Readings:
    """What one model showed: for each config of the design the ratios of its processes, and seconds of its trials."""

    name: str
    kind: str
    machine: str | None = None
    """None: this one."""
    release: str | None = None
    """Of the framework, there."""
    gains: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def gain(self, settings: Settings) -> float | None:
        """How many times as fast as untuned it is; None where it failed, was wrong, or is not known."""
        found = self.gains.get(text_of(settings))
        return round(statistics.median(found), 4) if found else None


def is_half(settings: Settings) -> bool:
    """Whether it computes in half precision, which a study of float32's tolerance does not take."""
    return "precision" in settings


def is_right(settings: Settings, error: float | None) -> bool:
    """Within the tolerance of its class."""
    return error is None or error <= (HALF_TOLERANCE if is_half(settings) else FLOAT_TOLERANCE)


def readings_of(framework: str, task: Task, file: Path, device: Device = "cpu") -> list[Readings]:
    """The models of the records, and those of recorded tables, in their order. Processes of one program are one."""
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    found = []
    for one in models_on(device):
        if (one.framework, one.task) == (framework, task):
            own = [row for row in rows if row["model"] == one.name and "call_s" in row]
            if own:
                found.append(_recorded(one, [row for row in own if is_right(row["config"], row["error"])]))
    return found + (
        [_of_table(name, framework) for name in TABLES_OF[framework]] if (task, device) == ("infer", "cpu") else []
    )


def _recorded(one: Recorded, rows: Sequence[dict[str, Any]]) -> Readings:
    readings = Readings(one.name, one.family, rows[0].get("machine"), rows[0].get("release"))
    same: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        same[row["program"] or text_of(row["config"])].append(row["beside_s"] / row["call_s"])
    for row in rows:
        text = text_of(row["config"])
        readings.gains[text] = same[row["program"] or text]
        if row["round"] == 1:
            readings.seconds[text].append(row["trial_s"])
    return readings


def _of_table(name: str, framework: str) -> Readings:
    """One process a config, but for those that gave the same program."""
    question = Question(read_table(name))
    space = question.table.space
    readings = Readings(f"{name} (table)", TABLES_OF[framework][name])
    untuned_s = question.latency_s(question.table.by_config[space.untuned()])
    for settings in DESIGN[framework, "infer"]:
        config = space.projected(Config(settings))
        row = question.table.by_config.get(config) if config.matches(settings) else None
        if row is not None and row.works and is_right(settings, row.error):
            readings.gains[text_of(settings)].append(untuned_s / question.latency_s(row))
            readings.seconds[text_of(settings)].append(row.trial_s)
    return readings


def table_of(framework: str, task: Task, known: Sequence[Readings], device: Device = "cpu") -> PortfolioTable:
    """The readings as the package keeps them. A config that few models have a reading of is left out."""
    machine, release = known[0].machine, known[0].release
    space = space_for(framework, task, device, release)
    entries, count = [], range(len(known))
    for settings in settings_for(framework, task, device):
        gains = tuple(one.gain(settings) for one in known)
        if sum(gain is not None for gain in gains) < FEWEST_KNOWN * len(known):
            continue
        seconds = [
            statistics.fmean(one.seconds[text_of(settings)]) for one in known if one.seconds.get(text_of(settings))
        ]
        entries.append((settings, gains, statistics.median(seconds) if seconds else 1.0))
    best = {
        half: [max(gains[n] or 0.0 for settings, gains, _ in entries if half or not is_half(settings)) for n in count]
        for half in (False, True)
    }
    return PortfolioTable(
        framework=framework,
        release=release or framework_version(framework),
        device=device,
        task=task,
        processor=machine or environment.describe(device=device, variables={}).processor,
        num_cores=1,
        space=space.fingerprint,
        models=tuple(one.name for one in known),
        kinds=tuple(one.kind for one in known),
        process=process_knobs(framework),
        by_hand=tuple(map(Config, BY_HAND.get((framework, task), ()))),
        entries=tuple(
            Entry(
                config=Config(settings),
                instead=Config(INSTEAD[text_of(settings)]) if text_of(settings) in INSTEAD else None,
                seconds=round(seconds, 1),
                gains=gains,
                best_on=tuple(
                    one.name
                    for one, gain, top in zip(known, gains, best[is_half(settings)], strict=True)
                    if gain is not None and gain >= max(1.0, top) * (1 - NOTABLE)
                ),
            )
            for settings, gains, seconds in entries
        ),
    )


def build(given: argparse.Namespace) -> None:
    """Write the package's file from the records and the recorded tables; tables of other devices stay."""
    known = {
        (framework, task, device): readings_of(framework, task, given.file or RECORDS[device], device)
        for framework, task, device in GROUNDS
        if device in given.devices
    }
    kept = [table for table in recorded() if table.device not in given.devices]
    made = [table_of(framework, task, found, device) for (framework, task, device), found in known.items() if found]
    tables = (*kept, *made)
    document = PortfolioFile(schema=1, tables=tables).model_dump(mode="json", by_alias=True)
    write_whole(PACKAGE_FILE, _compact(document) + "\n")
    for table in tables:
        print(
            f"{table.framework} {table.task} {table.device}: {len(table.entries)} configs on {len(table.models)} models"
        )


def _compact(document: Any) -> str:
    """JSON with an entry on a line."""
    tables = []
    for table in document["tables"]:
        entries = table.pop("entries")
        head = json.dumps(table, indent=1)[:-2]
        for entry in entries:
            if entry["instead"] is None:
                del entry["instead"]
        lines = ",\n  ".join(json.dumps(entry) for entry in entries)
        tables.append(f'{head},\n "entries": [\n  {lines}\n ]\n}}')
    return f'{{"schema": {document["schema"]}, "tables": [\n{",".join(tables)}\n]}}'


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.portfolio", description=(__doc__ or "").partition("\n")[0]
    )
    steps = parser.add_subparsers(required=True)
    step = steps.add_parser("record", help="measure, and append to the records")
    step.add_argument("models", nargs="*", help="names of models (default: all)")
    step.add_argument("--rounds", type=int, default=3, help="processes of each config (default: %(default)s)")
    step.add_argument("--most", type=int, help="configs of a model, the most telling first (default: all)")
    step.add_argument("--device", choices=list(RECORDS), default="cpu", help="default: %(default)s")
    step.add_argument("--side-by-side", type=int, default=1, help="models at a time (default: %(default)s)")
    step.add_argument("--file", type=Path, help="to append to (default: that of the device)")
    step.add_argument("--folder", type=Path, help="of caches that are kept (default: a temporary one)")
    step.set_defaults(run=record)
    step = steps.add_parser("build", help="write the package's file from the records")
    step.add_argument("--devices", nargs="+", choices=list(RECORDS), default=list(RECORDS), help="default: all")
    step.add_argument("--file", type=Path, help="records to read (default: those of each device)")
    step.set_defaults(run=build)
    given = parser.parse_args()
    given.run(given)


if __name__ == "__main__":
    main()
