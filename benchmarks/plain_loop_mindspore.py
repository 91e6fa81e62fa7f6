"""`plain_loop.py` for MindSpore: the same loop over the knobs that move a model on a CPU.

python benchmarks/plain_loop_mindspore.py vit --minutes 20 --folder build/loop
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import optuna

from benchmarks import plain_loop

_EXPAND = {"default": "", "norms": "--enable_expand_ops=LayerNorm,Softmax"}


def suggest(trial: optuna.Trial, *, half: bool) -> dict[str, Any]:  # noqa: ARG001
    """One config. `half` changes nothing: float16 is slower on a CPU."""
    choose = trial.suggest_categorical
    execution = choose("execution", ["pynative", "jit", "graph"])
    config: dict[str, Any] = {"execution": execution, "onednn_isa": choose("onednn_isa", [None, "AVX2"])}
    config["kernel_threads"] = choose("kernel_threads", [None, 1])
    if execution == "pynative":
        return {**config, "launch_blocking": choose("launch_blocking", [False, True])}
    config["dispatch_threads"] = choose("dispatch_threads", [None, 1])
    if execution == "jit":
        config["capture"] = choose("capture", ["ast", "trace", "bytecode"])
        if config["capture"] != "trace":
            config["fullgraph"] = choose("fullgraph", [False, True])
    config["enable_graph_kernel"] = choose("enable_graph_kernel", [False, True])
    if config["enable_graph_kernel"]:
        config["graph_kernel_opt_level"] = choose("graph_kernel_opt_level", [2, 1])
        config["graph_kernel_limit"] = choose("graph_kernel_limit", [6, 3])
        config["graph_kernel_transpose"] = choose("graph_kernel_transpose", [True, False])
        config["graph_kernel_expand"] = choose("graph_kernel_expand", list(_EXPAND))
    return config


def measure(model_name: str, config: dict[str, Any], tolerance: float) -> float:
    """Seconds a call under `config`, in this process. Raises what MindSpore does, and ValueError for a wrong output."""
    if config["onednn_isa"] is not None:
        os.environ["ONEDNN_MAX_CPU_ISA"] = config["onednn_isa"]
    import mindspore as ms

    if config.get("launch_blocking"):
        ms.set_context(pynative_synchronize=True)
    for knob, name in (("kernel_threads", "runtime_num_threads"), ("dispatch_threads", "inter_op_parallel_num")):
        if config.get(knob):
            ms.set_context(**{name: config[knob]})
    module = importlib.import_module(f"autotune.models.mindspore.{model_name}")
    built = getattr(module, model_name)()
    model, inputs = (built["model"], built["inputs"]) if isinstance(built, dict) else built
    reference = model(*inputs).asnumpy()
    if config.get("enable_graph_kernel"):
        flags = [
            f"--opt_level={config['graph_kernel_opt_level']}",
            f"--composite_op_limit_size={config['graph_kernel_limit']}",
            _EXPAND[config["graph_kernel_expand"]],
            "" if config["graph_kernel_transpose"] else "--disable_cluster_ops=Transpose",
        ]
        ms.set_context(enable_graph_kernel=True, graph_kernel_flags=" ".join(filter(None, flags)))
    if config["execution"] == "graph":
        ms.set_context(mode=ms.GRAPH_MODE)
    elif config["execution"] == "jit":
        model.construct = ms.jit(model, capture_mode=config["capture"], fullgraph=config.get("fullgraph", False))
    error = abs(model(*inputs).asnumpy() - reference).max() / abs(reference).max()
    if not error <= tolerance:
        raise ValueError(f"relative error {error:.1e}")
    return plain_loop.time_calls(lambda: model(*inputs).asnumpy())


if __name__ == "__main__":
    plain_loop.main(suggest, measure, __file__)
