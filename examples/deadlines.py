"""A controller that answers at every tick within its deadline, by the best tier of its model that the time left allows.

python examples/deadlines.py                                                   # as it is: nothing is tuned yet
python cli.py tune --model examples/deadlines.py:build --deadline 5ms --study controller
python examples/deadlines.py --tiers studies/controller.tiers/tiers.yaml
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from torch import nn

import autotune

WIDTH = 256
DEADLINE_S = 0.005
TIERS: dict[str, dict[str, int]] = {"full": {}, "half_depth": {"depth": 8}, "one_layer": {"depth": 1}}


def build(depth: int = 16, seed: int = 0) -> dict[str, Any]:
    """The model of a tier and its input, as `tune --model` asks for them; trained ones would be loaded here."""
    torch.manual_seed(seed)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(depth)]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 2), nn.Tanh())
    return {"model": model.eval(), "inputs": torch.randn(32, WIDTH), "tiers": TIERS}


def observe(tick: int) -> torch.Tensor:
    """What comes before the model, and takes sometimes longer: now and then nearly all of the time."""
    time.sleep(0.9 * DEADLINE_S if tick % 10 == 0 else 0.1 * DEADLINE_S)
    return torch.randn(32, WIDTH)


def main() -> None:
    """Run for some ticks, then say which tiers answered and how often the deadline was missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tiers", default="tiers.yaml")
    parser.add_argument("--ticks", type=int, default=200)
    options = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    models = {name: build(**arguments)["model"].to(device) for name, arguments in TIERS.items()}
    model = autotune.load_tiers(options.tiers).apply(models)
    with torch.inference_mode():
        # In the same mode as later: what is compiled holds for it.
        model.warm_up(build()["inputs"].to(device))
        for tick in range(options.ticks):
            begun = time.perf_counter()
            observation = observe(tick).to(device)
            model.within(DEADLINE_S - (time.perf_counter() - begun))(observation)

    stats = autotune.stats(model)
    for tier in stats.tiers:
        print(f"{tier.name}: {tier.num_calls} calls, {tier.num_misses} missed")
    print(f"{stats.num_calls} ticks, {stats.num_degraded} degraded, {stats.num_hopeless} hopeless")


if __name__ == "__main__":
    main()
