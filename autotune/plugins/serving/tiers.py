"""The tiers of a model under a deadline: a study and a confirmed 99th percentile for each, and the file of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.answer.content import Mark, Table
from autotune.answer.export import export
from autotune.answer.format import seconds
from autotune.errors import InputError, marked
from autotune.measure.units import seconds_of
from autotune.plugins.serving.tier_file import TIERS, Tail, Tier, Tiers
from autotune.study.budget import Budget
from autotune.study.manifest import Manifest
from autotune.study.study import Study
from autotune.trial.deadline import Deadline

FILE = "tiers.yaml"
TAIL_SHARE = 0.2
"""Share of a tier's time that is kept for confirming its 99th percentile."""


def deadline_s(text: str) -> float:
    """Seconds of `50ms`, `0.05s` or `800us`. Raises InputError."""
    limit_s = seconds_of(text)
    if not limit_s:
        raise InputError(
            f"{marked('deadline', text)}: not a duration", tip="give a number with a unit, e.g. 50ms or 0.2s"
        )
    return limit_s


def folder_of(studies_dir: Path, manifests: Mapping[str, Manifest]) -> Path:
    """Where the files of all tiers go, beside their studies: `NAME.tiers`. Raises InputError."""
    tier, manifest = next(iter(manifests.items()))
    folder = studies_dir / f"{manifest.name.removesuffix(f'-{tier}')}.tiers"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot create {folder}: {error.strerror}", tip=f"choose another {marked('studies_dir')}"
        ) from None
    return folder


def share_of(budget: Budget, deadline: Deadline, num_left: int) -> tuple[Budget, Deadline, Deadline]:
    """What the next of so many tiers may take of a run's time: its study's budget and end, and the end of it all.

    What the tiers before left over is shared among the others.
    """
    if budget.wall_s is None:
        return budget, deadline, deadline
    share_s = max(deadline.left_s(), 0.0) / num_left
    now = deadline.clock()
    study_s = max(share_s * (1 - TAIL_SHARE), 1e-3)
    own = budget.model_copy(update={"wall_s": study_s})
    return own, Deadline(now + study_s, deadline.clock), Deadline(now + share_s, deadline.clock)


def export_tier(study: Study, name: str, tail: Tail, folder: Path) -> Tier:
    """Write the answer of a tier's study into the folder. Raises InputError like `export`."""
    file = f"{name}.yaml"
    tuned = export(study, folder / file)
    return Tier(
        name=name,
        arguments=tuned.workload.arguments,
        file=file,
        verdict=tuned.verdict,
        p99_s=tail.promise_s,
        evidence=tail,
    )


def write_tiers(manifest: Manifest, tiers: Sequence[Tier], deadline: float, folder: Path) -> Tiers:
    """The file of all tiers; `manifest` is of any of their studies, `deadline` in seconds. Raises InputError."""
    workload = manifest.workload
    content = Tiers(
        schema=TIERS.schema,
        model=workload.model,
        framework=workload.framework,
        device=workload.device,
        deadline_s=deadline,
        tiers=tuple(tiers),
    )
    content.write(folder / FILE)
    return content


def tiers_table(tiers: Tiers) -> Table:
    """Each tier with what it promises, how that is known, and whether it keeps the deadline."""
    rows = []
    for tier in tiers.tiers:
        evidence = tier.evidence
        rows.append((
            tier.name, "yes" if tiers.fits(tier) else "no",
            *map(seconds, (tier.p99_s, evidence.p99_s, evidence.p50_s)), str(evidence.num_samples),
            str(len(evidence.process_p99_s)), tier.verdict.value,
        ))  # fmt: skip
    columns = ("tier", "keeps it", "p99", "of all", "median", "samples", "processes", "verdict")
    marks: dict[int, Mark] = {n: "broken" for n, tier in enumerate(tiers.tiers) if not tiers.fits(tier)}
    texts = frozenset({"tier", "keeps it", "verdict"})
    return Table(f"deadline {seconds(tiers.deadline_s)}", columns, rows, texts, marks=marks)
