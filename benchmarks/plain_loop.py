"""The tuner that a good engineer writes by hand with Optuna: what the product is held against. They share no code.

    python benchmarks/plain_loop.py vit --minutes 20 --folder build/loop

Each trial is a process of its own, suggested define-by-run over the same knobs that the product offers for a CPU, set
in the ways in which they work; outputs are checked, and the median of 30 warm calls counts. What fails is pruned. As
such a script would, it lets compile caches stand from trial to trial. Everything is kept in `folder/loop.db`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import optuna

STUDY = "plain-loop"


def suggest(trial: optuna.Trial, *, half: bool) -> dict[str, Any]:
    """One config. `half`: bfloat16 is right enough."""
    choose = trial.suggest_categorical
    config: dict[str, Any] = {"execution": choose("execution", ["eager", "compile"])}
    if config["execution"] == "compile":
        config["mode"] = choose("mode", ["default", "max-autotune", "lite"])
        if config["mode"] != "lite":
            config["freezing"] = choose("freezing", [False, True])
            config["cpp_wrapper"] = choose("cpp_wrapper", [False, True])
            if config["mode"] == "default":
                config["max_autotune_gemm"] = choose("max_autotune_gemm", [False, True])
    config["precision"] = choose("precision", [None, "bf16_autocast"]) if half else None
    if config["precision"] is None:
        config["matmul_precision"] = choose("matmul_precision", [None, "medium", "high"])
    config["allocator"] = choose("allocator", [None, "keep"])
    return config


def measure(model_name: str, config: dict[str, Any], tolerance: float) -> float:
    """Seconds a call under `config`, in this process. Raises what torch raises, and ValueError for a wrong output."""
    import ctypes

    import torch
    import torch._inductor.config as inductor

    if config["allocator"] == "keep":
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-1, 2**30)  # M_TRIM_THRESHOLD
        libc.mallopt(-4, 0)  # M_MMAP_MAX
    module = importlib.import_module(f"autotune.models.torch.{model_name}")
    built = getattr(module, model_name)()
    model, inputs = (built["model"], built["inputs"]) if isinstance(built, dict) else built
    with torch.no_grad():
        reference = model(*inputs)
        torch.set_float32_matmul_precision(config.get("matmul_precision") or "highest")
        if config["execution"] == "compile":
            inductor.freezing = config.get("freezing", False)
            inductor.cpp_wrapper = config.get("cpp_wrapper", False)
            inductor.max_autotune_gemm = config.get("max_autotune_gemm", False)
            model = torch.compile(model, mode=config["mode"])
        with torch.autocast("cpu", torch.bfloat16, enabled=config["precision"] == "bf16_autocast"):
            error = (model(*inputs).float() - reference).abs().max() / reference.abs().max()
            if not error <= tolerance:
                raise ValueError(f"relative error {error:.1e}")
            return time_calls(lambda: model(*inputs))


def time_calls(call: Any, warmup: int = 10, calls: int = 30) -> float:
    """Median seconds of a call, warm."""
    samples_s = []
    for _ in range(warmup + calls):
        start = time.perf_counter()
        call()
        samples_s.append(time.perf_counter() - start)
    return statistics.median(samples_s[warmup:])


def run_trial(command: list[str], folder: Path, timeout_s: float = 300.0) -> float:
    """One config in a process of its own: seconds a call. Raises TrialPruned with the last words of what failed."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise optuna.TrialPruned("timeout") from None
    if done.returncode != 0:
        raise optuna.TrialPruned((done.stderr.strip().splitlines() or ["no word"])[-1])
    return float(done.stdout.splitlines()[-1])


def tune(
    model: str,
    folder: Path,
    tolerance: float,
    *,
    minutes: float,
    trials: int | None = None,
    script: str = __file__,
) -> optuna.Study:
    """Search for so long, or so many trials if that is sooner; or go on with what is in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(storage=f"sqlite:///{folder}/loop.db", study_name=STUDY, load_if_exists=True)

    def objective(trial: optuna.Trial) -> float:
        config = suggest(trial, half=tolerance >= 2e-3)
        trial.set_user_attr("config", config)
        asked = json.dumps(config)
        return run_trial([sys.executable, script, model, "--tolerance", str(tolerance), "--measure", asked], folder)

    study.optimize(objective, n_trials=trials, timeout=60 * minutes)
    return study


def main() -> None:
    """Tune, or measure one config for the tuner."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    parser = argparse.ArgumentParser(description="A plain Optuna loop over torch's settings, on the CPU.")
    parser.add_argument("model", help="name of a bundled model, e.g. vit")
    parser.add_argument("--minutes", type=float, default=20.0, help="how long to search (default: %(default)s)")
    parser.add_argument("--trials", type=int, help="at most so many (default: as many as there is time for)")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="largest relative error (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=Path("build/loop"), help="of its database and compile caches")
    parser.add_argument("--measure", type=json.loads, metavar="CONFIG", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure is not None:
        print(measure(given.model, given.measure, given.tolerance))
        return
    study = tune(given.model, given.folder, given.tolerance, minutes=given.minutes, trials=given.trials)
    print(f"{len(study.trials)} trials; best {1e3 * study.best_value:.2f} ms: {study.best_trial.user_attrs['config']}")


if __name__ == "__main__":
    main()
