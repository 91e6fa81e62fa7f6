"""The artifact of a config: compiled, packed, and proven in a process that starts without caches.

Only what is proven is written: with the artifact the outputs are right, and at least half the compile is spared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from autotune.backends.registry import entry_of
from autotune.bench.bench import Bench
from autotune.errors import InputError
from autotune.files import write_whole
from autotune.measure.measurement import Measurement
from autotune.trial.folder import KEPT_CACHES, KEY_FILE, TrialFolder
from autotune.trial.request import ShippedCache, TrialRequest
from autotune.tuned.cache_file import Artifact, CacheFile, Key, pack

MIN_GAIN = 2.0
"""A cold compile must take so many times what the first call takes with the artifact."""
MIN_SPARED_S = 0.1
"""And so many seconds longer: for less, nobody should have to trust a file."""


@dataclass(frozen=True)
class ConfirmedCaches:
    """The caches that a confirmation measured, and what it took to fill them."""

    copy_to: Callable[[Path], bool]
    """False, and no folder, where they are not there any more."""
    compile_s: float


def prewarm(
    request: TrialRequest, folder: Path, target: Path, bench: Bench, confirmed: ConfirmedCaches | None = None
) -> Artifact:
    """Make the artifact of the request's config and write it to `target`. `folder` is for the processes. With
    `confirmed`, what was confirmed is what is in it; else it is compiled once more.

    Raises InputError, before anything is written, where nothing is compiled, a process fails, or the file does not
    keep its promise; HarnessError where no process can be started.
    """
    return _Making(request, folder.resolve(), bench, confirmed).make(target)


class _Making:
    """One artifact."""

    def __init__(self, request: TrialRequest, folder: Path, bench: Bench, confirmed: ConfirmedCaches | None) -> None:
        self._request = request
        self._folder = folder
        self._bench = bench
        self._confirmed = confirmed

    def make(self, target: Path) -> Artifact:
        kept = self._folder / "kept"
        was_confirmed = self._confirmed is not None and self._confirmed.copy_to(kept / KEPT_CACHES)
        cold = self._measured("cold", self._request.keeping_cache_in(kept))
        if cold.diagnosis.compiled is False:
            raise InputError("no artifact: under this config nothing is compiled")
        # Started from its cached graph, MindSpore gives fused kernels other names and compiles them once more.
        self._measured("again", self._request.keeping_cache_in(kept))
        content = pack(kept / KEPT_CACHES)
        write_whole(kept / target.name, content)
        file = self._described(target.name, content, kept / KEY_FILE)
        cold_s = self._confirmed.compile_s if self._confirmed and was_confirmed else cold.compile_s
        from_artifact = self._request.started_from(ShippedCache(artifact=file, home=str(kept)))
        shipped = self._measured("shipped", from_artifact)
        _refuse_if_useless(cold_s, shipped.compile_s)
        try:
            write_whole(target, content)
        except OSError as error:
            raise InputError(f"cannot write {target}: {error.strerror}", tip="choose another place with -o") from None
        return Artifact(**dict(file), compile_s=shipped.compile_s, compile_cold_s=cold_s)

    def _described(self, name: str, content: bytes, key_file: Path) -> CacheFile:
        return CacheFile(
            file=name,
            sha256=hashlib.sha256(content).hexdigest(),
            num_bytes=len(content),
            key=Key.model_validate_json(key_file.read_text(encoding="utf-8")),
            check_first_call=not entry_of(self._request.workload.framework).cache_is_exact,
        )

    def _measured(self, name: str, request: TrialRequest) -> Measurement:
        """A run in a process of its own, with empty caches but for what the request keeps or starts from."""
        folder = TrialFolder(self._folder / name)
        outcome = self._bench.run(folder, request.cached_in(folder.path / "cache", cold=True), fresh=True)
        if isinstance(outcome, Measurement):
            return outcome
        tip = f"full log: {outcome.evidence}"
        raise InputError(f"no artifact: {_DOING[name]} failed: {outcome.error}", tip=tip)


_DOING = {
    "cold": "compiling the config",
    "again": "a second process with the first one's caches",
    "shipped": "a process that started from the artifact",
}


def _refuse_if_useless(cold_s: float, shipped_s: float) -> None:
    if cold_s < max(MIN_GAIN * shipped_s, shipped_s + MIN_SPARED_S):
        raise InputError(
            f"no artifact: it would save too little, {shipped_s:.3g} s of compiling instead of {cold_s:.3g} s",
            tip="some configs cannot be cached (docs/warm-start.md)",
        )
