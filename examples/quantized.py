"""A model whose linear layers `tune` may quantise: int8 and fp8 through torchao, declared as variants.

python examples/quantized.py                                                   # as it is: nothing is tuned yet
python cli.py tune --model examples/quantized.py:build --tolerance 3e-2 --study quantized
python cli.py export quantized -o best.yaml
python examples/quantized.py --tuned best.yaml

int8 runs on CPUs and GPUs. fp8 needs compute capability 8.9 or more and was not measured on a device.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torchao.quantization import (
    Float8DynamicActivationFloat8WeightConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    quantize_,
)

import autotune

WIDTH = 512


def int8_weights(model: nn.Module) -> None:
    """Weights in 8 bits, activations as they are: less memory to read, for small batches."""
    quantize_(model, Int8WeightOnlyConfig())


def int8_both(model: nn.Module) -> None:
    """Weights and activations in 8 bits, the latter scaled at each call."""
    quantize_(model, Int8DynamicActivationInt8WeightConfig())


def fp8_both(model: nn.Module) -> None:
    """The same in 8-bit floats. Not measured on a device."""
    quantize_(model, Float8DynamicActivationFloat8WeightConfig())


def variants() -> dict[str, dict[str, Callable[[nn.Module], None] | None]]:
    """What this machine can run. The first value is the model as it is."""
    has_fp8 = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)
    offered = {"plain": None, "int8_weights": int8_weights, "int8_both": int8_both}
    return {"linear": {**offered, "fp8_both": fp8_both} if has_fp8 else offered}


def build(depth: int = 4, batch: int = 32, seed: int = 0) -> dict[str, Any]:
    """The model and its input, as `tune --model` asks for them; trained weights would be loaded here."""
    torch.manual_seed(seed)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(depth)]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 16)).eval()
    return {"model": model, "inputs": torch.randn(batch, WIDTH), "variants": variants()}


def main() -> None:
    """Answer once; by how much it differs from the plain model is what `--tolerance` of the study allowed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tuned", default="best.yaml")
    options = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    built = build()
    plain, inputs = built["model"].to(device), built["inputs"].to(device)
    # A file names variants and cannot bring their code: the job gives it. Weights are final before this line.
    model = autotune.load(options.tuned).apply(plain, variants=variants())
    with torch.inference_mode():
        answer, expected = model(inputs), plain(inputs)
    print(f"largest difference: {((answer - expected).abs().max() / expected.abs().max()).item():.1e}")


if __name__ == "__main__":
    main()
