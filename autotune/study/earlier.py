"""`STUDY`: the schema of a study with all its records, and what became of the keys of earlier ones.

A study of an earlier schema is read by this table, in its manifest, in what is stored with it and in its trials: it is
shown, exported and used as a prior. It does not go on, since what would be written into it has other keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.schema import Change, Format, gone, refused, renamed
from autotune.version import __version__

MANIFEST, OUTCOME = "manifest", "outcome"
"""Parts that are read by themselves; all others are what is stored with the study, by name."""


def _relation(exact: Any) -> Mapping[str, Any]:
    """There were two."""
    return {"relation": "==" if exact else "<="}


def _of_one_framework(variants: Any) -> Mapping[str, Any]:
    """They were kept by framework, of which there is one (`others`)."""
    return {"variants": next(iter(variants.values()), {}) if isinstance(variants, dict) else variants}


def _whole(ended_by: Any) -> Mapping[str, Any]:
    """Sampling of a config that was clearly slower used to be cut short: its samples are not those of a settled one."""
    return {"ended_by": "time", "steady": False} if ended_by == "slower" else {"ended_by": ended_by}


def _of_one_process(ranks: Any) -> Mapping[str, Any]:
    """A trial could be several processes that took each training step together."""
    return refused(f"trials of {ranks} ranks are not read any more")(ranks != 1)


def _reason(reason: Any) -> Mapping[str, Any]:
    """One has another name."""
    return {"reason": "setup" if reason == "harness" else reason}


STUDY = Format(
    schema=4,
    oldest=2,
    release=__version__,
    changes=(
        Change(2, MANIFEST, "objective", lambda objective: {"objectives": [objective]}),
        Change(3, f"{MANIFEST}.constraints.*", "exact", _relation),
        Change(3, MANIFEST, "others", refused("a study of several frameworks is not read any more")),
        Change(3, MANIFEST, "variants", _of_one_framework),
        # Keys that went while the schema was 4, before it was counted up for that. That of ranks said nothing but 1, by
        # which earlier releases read a study without it, unless ranks were asked for.
        Change(4, f"{MANIFEST}.workload", "ranks", _of_one_process),
        *(
            Change(4, f"budget.{plan}", key, gone)
            for plan in ("sampling", "sentinel")
            for key in ("clearly_slower", "samples_to_judge")
        ),
        Change(4, MANIFEST, "sampler", gone),
        Change(4, "budget", "tail", gone),
        Change(4, "confirmation", "blocks_s", renamed("blocks")),
        Change(4, "confirmation", "retired", gone),
        Change(4, OUTCOME, "reason", _reason),
        Change(4, OUTCOME, "reused_from", gone),
        Change(4, OUTCOME, "not_checked", renamed("not_varied")),
        Change(4, f"{OUTCOME}.samples", "ended_by", _whole),
    ),
)
