"""Studies on the device whose answer is known: configs that do the same work, and a planted gain. Few blocks each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from autotune.config import Scalar
from benchmarks.on_device.records import TruthSeen
from benchmarks.on_device.session import Session
from benchmarks.processes import Product

BENCHMARKS = Path(__file__).resolve().parent.parent
NOTHING_TO_GAIN = ("tie", "keep_untuned", "undecided")
FEW_BLOCKS = {"num_rounds": 4, "fewest_rounds": 3, "first_look": 4, "num_looks": 1, "max_sampling_s": 4.0}
LONGEST_S = 240.0


@dataclass(frozen=True)
class Truth:
    """A model with a space of which it is known what can be gained in it."""

    name: str
    model: str
    arguments: Mapping[str, Scalar]
    space: str
    right: tuple[str, ...]
    num_trials: int = 4

    def run(self, session: Session) -> TruthSeen:
        """One study through the command line."""
        with Product() as product:
            document = product.tune(
                self.model, "torch", device=session.device, study="truth", space=BENCHMARKS / "spaces" / self.space,
                model_arguments=self._sizes(session), budget=few_blocks(product.folder, self.num_trials, session),
            )  # fmt: skip
        speedup = document["speedup"]
        return TruthSeen(self.name, list(self.right), document["verdict"], speedup and speedup["median"])

    def _sizes(self, session: Session) -> dict[str, Scalar]:
        """Larger on a device, so that its kernels take longer than their launch."""
        larger = {} if session.small or session.device == "cpu" else {"width": 2048, "batch": 1024}
        return {**self.arguments, **(larger if "gain" in self.arguments else {})}


def few_blocks(folder: Path, num_trials: int, session: Session) -> Path:
    """A budget of few trials and few blocks, which ends before the session does."""
    seconds = max(30.0, min(LONGEST_S, session.left_s() - 10))
    budget = {"num_trials": num_trials, "wall_s": seconds, "confirmation": {**FEW_BLOCKS, "max_s": seconds / 2}}
    path = folder / "budget.yaml"
    path.write_text(yaml.safe_dump(budget))
    return path


_REPEATED = f"{BENCHMARKS / 'models' / 'repeated_torch.py'}:repeated"
_CHAIN = f"{BENCHMARKS.parent / 'examples' / 'models' / 'tanh_matmul_torch.py'}:tanh_matmul"
TRUTHS = (
    Truth("a gain of 1.33 is there", _REPEATED, {"gain": 1}, "eager_torch.yaml", ("faster",)),
    Truth("A/A: equal configs", _CHAIN, {"size": 128, "repeats": 20}, "identical_torch.yaml", NOTHING_TO_GAIN),
    Truth("all others are slower", _REPEATED, {"gain": 0}, "eager_torch.yaml", NOTHING_TO_GAIN),
)
