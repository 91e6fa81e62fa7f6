"""A study of each model in a realistic size, and the plain script against what it promised and against what one would
do by hand: every mode of torch.compile, `mode="max-autotune"` among them."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from autotune.config import Scalar
from autotune.workload.workload import Device, Task
from benchmarks.on_device.job import DEVICES
from benchmarks.on_device.records import PlainSeen, StudySeen, Way
from benchmarks.on_device.session import KINDS, MODELS, OutOfTimeError, Session
from benchmarks.processes import Document, PlainScript, Product, ProductError

STUDY_S, SMALL_STUDY_S = 150.0, 90.0
"""Longest study: people wait minutes, and a machine that is lent for ten has time for its plain script too."""
NUM_PROCESSES = 2
MODES: dict[Device, tuple[str, ...]] = {
    "cpu": ("default", "max-autotune"),
    "gpu": ("reduce-overhead", "max-autotune", "default", "max-autotune-no-cudagraphs"),
    "ascend": ("default", "reduce-overhead"),
}
"""What one would try by hand, the most promising first."""
UNTUNED, TUNED = "untuned", "as exported"
NO_TIME = "no time was left"
BEGUN_LATE_S = 60.0


@dataclass(frozen=True)
class Model:
    """A model in a realistic size, and in a small one for a check on a CPU."""

    name: str
    model: str
    full: Mapping[str, Scalar]
    small: Mapping[str, Scalar]
    task: Task = "infer"

    @property
    def takes_process_settings(self) -> bool:
        """TF32 does nothing to a model in half precision, and would double its space."""
        return self.full.get("dtype", "float32") == "float32"

    def sizes(self, session: Session) -> dict[str, Scalar]:
        """Arguments of the model's function."""
        return dict(self.small if session.small else self.full)

    def tune(self, session: Session) -> StudySeen:
        """A study within its time. Raises ProductError where there is no answer at all."""
        begun = time.perf_counter()
        longest_s = max(30.0, min(SMALL_STUDY_S if session.small else STUDY_S, session.left_s() - 15))
        with Product() as product:
            document = product.tune(
                self.model, "torch", device=session.device, study="study", task=self.task,
                model_arguments=self.sizes(session), budget=_budget(product.folder, longest_s),
                process_settings=self.takes_process_settings,
            )  # fmt: skip
            export = _exported(product)
        seen = _seen(self.name, document, (time.perf_counter() - begun) / 60, export)
        return replace(seen, sizes=self.sizes(session))

    def run_plainly(self, session: Session, study: StudySeen) -> PlainSeen:
        """The plain script untuned and as exported, in rounds, forth and back, and then in each mode by hand.

        Raises OutOfTimeError where the promise could not be looked at and a session that begins with this has more
        time for it. A mode that there was no time for has no figure.
        """
        begun_late = session.spent_s() > BEGUN_LATE_S
        with tempfile.TemporaryDirectory(dir=session.folder) as folder:
            settings = self._settings(session.device, study, Path(folder))
            ways = {name: Way() for name in settings}
            promised = [name for name in settings if name in (UNTUNED, TUNED)]
            for group in (promised, [name for name in settings if name not in promised]):
                for number in range(NUM_PROCESSES):
                    for name in group if number % 2 == 0 else reversed(group):
                        ways[name] = self._once(session, settings[name], ways[name], Path(folder))
        if begun_late and any(ways[name].problem == NO_TIME for name in promised):
            raise OutOfTimeError("there was no time for what was promised")
        return PlainSeen(self.name, study.verdict, study.speedup, ways)

    def _settings(self, device: Device, study: StudySeen, folder: Path) -> dict[str, str]:
        """Way -> what the plain script is told."""
        by_hand = {"execution": "compile", **({"scope": "model"} if self.task == "train" else {})}
        settings = {UNTUNED: json.dumps({"execution": "eager"})}
        if study.export is not None:
            (folder / "best.yaml").write_text(study.export)
            settings[TUNED] = str(folder / "best.yaml")
        return settings | {f'mode="{mode}"': json.dumps({**by_hand, "mode": mode}) for mode in MODES[device]}

    def _once(self, session: Session, settings: str, before: Way, folder: Path) -> Way:
        """One more process of a way; one that failed, or came too late, is not tried again."""
        if before.problem is not None:
            return before
        if session.left_s() < 20:
            return before if before.median_s else Way(problem=NO_TIME)
        try:
            seen = self._script(session, folder).seen("--settings", settings, timeout_s=max(20.0, session.left_s() - 5))
        except subprocess.TimeoutExpired:
            return Way(problem=NO_TIME)
        except subprocess.CalledProcessError as error:
            return Way(problem=(str(error.stderr or "").strip().splitlines() or [str(error)])[-1][:300])
        return Way([*before.median_s, seen["median_s"]], [*before.first_call_s, seen["first_call_s"]])

    def _script(self, session: Session, folder: Path) -> PlainScript:
        sizes = [f"--size={name}={value}" for name, value in self.sizes(session).items()]
        return PlainScript(
            self.model, folder, sampling_s=1.0 if session.small else 3.0, warmup_s=1.0 if session.small else 3.0,
            arguments=("--device", DEVICES[session.device], *sizes), training=self.task == "train",
        )  # fmt: skip


def _budget(folder: Path, longest_s: float) -> Path:
    path = folder / "budget.yaml"
    path.write_text(yaml.safe_dump({"num_trials": None, "wall_s": longest_s}))
    return path


def _exported(product: Product) -> str | None:
    path = product.folder / "exports" / "best.yaml"
    try:
        product.export("study", path)
    except ProductError:
        return None
    return path.read_text(encoding="utf-8")


def _seen(name: str, document: Document, minutes: float, export: str | None) -> StudySeen:
    speedup, best = document["speedup"], document["best"]
    return StudySeen(
        model=name,
        minutes=minutes,
        num_trials=len(document["trials"]),
        num_failed=sum(document["failures"].values()),
        verdict=document["verdict"],
        speedup=speedup and (speedup["median"], speedup["low"], speedup["high"]),
        best={}
        if best is None
        else {name: value for name, value in best["config"].items() if value not in (None, False)},
        export=export,
    )


_SMALL_VIT: Mapping[str, Scalar] = {"image": 64, "dim": 64, "depth": 2, "heads": 2, "dtype": "float32"}
MODELS_BY_WORTH = (
    Model("a decoder's step, 8 layers of 1024, bfloat16", f"{KINDS}:decoder_step",
          {"cached": 512, "dim": 1024, "depth": 8, "heads": 16, "dtype": "bfloat16"}, {"depth": 1}),
    Model("ViT-L/16, 32 images, bfloat16", "vit",
          {"dim": 1024, "depth": 24, "heads": 16, "batch": 32, "dtype": "bfloat16"}, _SMALL_VIT),
    Model("ViT-S/16, a training step of 64 images", "vit", {"dim": 384, "depth": 12, "heads": 6, "batch": 64},
          {**_SMALL_VIT, "batch": 2}, task="train"),
    Model("GPT-2, a prompt of 1024 tokens, bfloat16", f"{MODELS}:decoder", {"batch": 4, "dtype": "bfloat16"},
          {"seq": 32, "dim": 64, "depth": 2, "heads": 2, "vocab": 500, "batch": 1, "dtype": "float32"}),
    Model("ResNet-50, 32 images", f"{MODELS}:resnet50", {"batch": 32},
          {"image": 64, "width": 8, "depth": 4, "batch": 1}),
    Model("BERT-base, 32 sequences of 128", "bert_small",
          {"seq": 128, "dim": 768, "depth": 12, "heads": 12, "vocab": 30522, "batch": 32}, {"depth": 2}),
)  # fmt: skip
"""By worth: what gained most in earlier sessions and what people run on such a card come first."""
