"""`ConfigParts`: a config split into what the framework, the model's variants and the shape strategy are given.

The only place that tells the parts of a config apart by the names of knobs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from autotune.config import VARIANT, Config, Scalar
from autotune.workload.process_start import ProcessStart
from autotune.workload.regions import Region

SHAPES = "shapes"
"""The knob that chooses a shape strategy: the strategy goes by it, and so does the framework's compiler."""
STRATEGY_NUMBERS = ("num_buckets",)
"""Knobs that only a shape strategy goes by."""
NEW_SHAPE_KNOBS = (SHAPES, *STRATEGY_NUMBERS, "recompile_limit")
"""All that decides what becomes of a call of a shape that was not seen before."""


GENERATION_KNOBS = ("cache", "cache_length", "prefill")
"""What decides which step of generated text runs which code: two configs may share the code and not that."""


@dataclass(frozen=True)
class ConfigParts:
    """The parts of a config; each knob is in one of `settings`, `variants`, `strategy_numbers` and `start`."""

    settings: Config
    """What a backend is given."""
    variants: dict[str, str]
    """Variant -> its value."""
    strategy_numbers: dict[str, Scalar]
    start: ProcessStart = field(default_factory=ProcessStart)
    """What the process has to be started with."""

    @classmethod
    def of(cls, config: Config) -> ConfigParts:
        """The parts of a config, told apart by the names of its knobs. Raises InvalidConfigError for a start
        that no config may ask for."""
        knobs = {**config.root}
        start = ProcessStart.taken_from(knobs)
        settings: dict[str, Scalar] = {}
        variants: dict[str, str] = {}
        numbers: dict[str, Scalar] = {}
        for name, value in knobs.items():
            if name.startswith(VARIANT):
                variants[name.removeprefix(VARIANT)] = str(value)
            elif name in STRATEGY_NUMBERS:
                numbers[name] = value
            else:
                settings[name] = value
        return cls(Config(settings), variants, numbers, start)

    @property
    def has_region(self) -> bool:
        """Modules of the model are compiled each on their own, or left as they are. Raises InvalidConfigError."""
        return not Region.of(self.settings).is_whole

    @property
    def options(self) -> tuple[str, ...]:
        """The knobs that set an option of the compiler by its own name: nobody has looked at each of them."""
        return tuple(name for name, value in self.settings.root.items() if "." in name and value is not None)

    @property
    def new_shapes(self) -> dict[str, Scalar]:
        """What decides about calls of a shape that was not seen before."""
        known = {**self.settings.root, **self.strategy_numbers}
        return {name: known[name] for name in NEW_SHAPE_KNOBS if name in known}

    @property
    def generation(self) -> dict[str, Scalar]:
        """How steps of generated text go to the code that is there."""
        return {name: self.settings[name] for name in GENERATION_KNOBS if name in self.settings.knobs()}
