"""Which shape knobs a space offers, depending on the shapes of the inputs."""

from __future__ import annotations

from collections.abc import Iterable

from autotune.space.schema import Need
from autotune.workload.traffic import Traffic


def known_shapes(traffic: Traffic | None, padded: Iterable[str]) -> frozenset[Need]:
    """What decides which strategies a search space offers. `padded` are the dimensions that may be padded, as the model
    declares them. A dimension that varies and whose name begins with `batch` is taken for a batch: whether calls can be
    split along it shows in a trial."""
    if traffic is None:
        return frozenset({"one shape"})
    varying = [name for name in traffic.dimensions if len(traffic.sizes_of(name)) > 1]
    known: set[Need] = {"traffic"}
    if set(padded).intersection(varying):
        known.add("padding")
    if any(name.startswith("batch") for name in varying):
        known.add("batch")
    return frozenset(known)
