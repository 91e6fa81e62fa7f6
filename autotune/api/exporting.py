"""Writing a study's answer for a job: the YAML file, and its compile cache beside it."""

from __future__ import annotations

from pathlib import Path

from autotune.answer import export as exports
from autotune.bench.local import LocalBench
from autotune.study.study import Study
from autotune.tuned.cache_file import SUFFIX, Artifact
from autotune.tuned.tuned_config import TunedConfig, require_replaceable


def export_config(study: Study, path: Path, trial: int | None, *, with_cache: bool) -> TunedConfig:
    """Write the YAML file. Raises InputError, before anything is written, also where the cache that comes `with_cache`
    could not be."""
    require_replaceable(path)
    if with_cache:
        study.require_writable()
        require_replaceable(path.with_suffix(SUFFIX))
    return exports.export(study, path, trial)


def export_cache(study: Study, tuned: TunedConfig, path: Path) -> Artifact:
    """Compile in three processes and write the cache. Raises InputError where none is worth having; the YAML file then
    stands without one."""
    log = study.folder / "supervisor.log"
    with study.exclusive(), LocalBench(study.manifest.variables, preload=False, log=log) as runner:
        return exports.export_artifact(study, tuned, path, runner)
