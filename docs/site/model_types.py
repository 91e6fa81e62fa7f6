"""Writes docs/model-types.md: which model types of transformers `hf:TYPE` builds and runs, and why not the others.

    python docs/site/model_types.py              all, some 20 minutes on one core
    python docs/site/model_types.py sam clip     these; what the page says of the others stays

The page names those that are refused: all other types of its release run.

Each type is built and called in a fork of one process that has imported PyTorch and transformers. No other package of
theirs, such as timm, need be there: what asks for one is refused. A slow test holds a sample against the page.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
PAGE = REPOSITORY / "docs" / "model-types.md"
sys.path[:0] = [str(REPOSITORY)]

LIMIT_S, LIMIT_BYTES = 60, 16 << 30
"""Of one type; one that needs more is refused, which says so."""


@dataclass(frozen=True)
class Refusal:
    """Why a type is not built, and what to do instead."""

    why: str
    way_out: str


Types = dict[str, Refusal | None]
"""Model type -> None where it runs."""

HEAD = """# Model types of transformers

This page lists the types of Hugging Face models that `hf:TYPE` does not run. `docs/site/model_types.py` writes it: it
builds each type as `hf:TYPE` does without further arguments (`size=tiny`) and calls it once.

"""


REASONS = {
    "needs a package": "needs a package that is not installed here (timm, natten, torchaudio, ...)",
    "has no such model": "is a part for which transformers has no class",
    "has no forward": "has no `forward`: its parts and methods are called one by one",
    "no inputs were found": "no inputs were found with which it runs",
    "needs more than": "needs too much time or memory",
    "": "is not made by its configuration alone",
}
"""Part of what a refusal says -> the reason on the page."""


def page_of(types: Types, releases: str) -> str:
    """The page: a row a reason, with what to take behind each type."""
    refused: dict[str, list[str]] = {}
    for name, refusal in sorted(types.items()):
        if refusal is not None:
            way_out = "" if refusal.way_out == "own" else f" ({refusal.way_out})"
            refused.setdefault(refusal.why, []).append(f"`{name}`{way_out}")
    rows = "\n".join(f"| {why} | {', '.join(those)} |" for why, those in sorted(refused.items()))
    count = sum(refusal is None for refusal in types.values())
    return (
        f"{HEAD}{count} of {len(types)} run ({releases}). [Models](models.md#hugging-face) says how inputs and sizes "
        f"are chosen.\n\n## These do not run\n\n"
        "In brackets the model type to take, which has it as a part; without one, write a function that returns "
        f"`(model, inputs)`, as in [models](models.md).\n\n| why | types |\n|---|---|\n{rows}\n"
    )


def types_of(page: str) -> Types:
    """Those that a page refuses."""
    found: Types = {}
    for why, those in re.findall(r"^\| (?!why)(.+?) \| (`.*) \|$", page, re.M):
        for name, way_out in re.findall(r"`([^`]+)`(?: \(([^)]*)\))?", those):
            found[name] = Refusal(why, way_out or "own")
    return found


def tried(name: str) -> Refusal | None:
    """What becomes of a type here, within the limits."""
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_try, args=(name, sender))
    child.start()
    sender.close()
    try:
        answer: Refusal | None = receiver.recv()
    except EOFError:
        answer = _refusal(f"needs more than {LIMIT_S} s or {LIMIT_BYTES >> 30} GiB", "")
    child.join()
    return answer


def _try(name: str, sender: Connection) -> None:
    from autotune.errors import InputError
    from autotune.plugins.hubs.torch.hugging_face import build

    signal.alarm(LIMIT_S)
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    try:
        build(name)
    except InputError as error:
        sender.send(_refusal(str(error), error.tip or ""))
    else:
        sender.send(None)


def _refusal(why: str, tip: str) -> Refusal:
    """As it stands on the page."""
    told = re.search(r"it is a part of (.*?): take that", tip)
    wholes = told[1].split(" or ") if told else []
    reason = next(words for part, words in REASONS.items() if part in why)
    return Refusal(reason, ", ".join(f"`{whole}`" for whole in wholes) or "own")


def main() -> None:
    """Try the types and write the page."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    import torch
    import transformers

    torch.set_num_threads(1)
    names = sorted(transformers.CONFIG_MAPPING.keys())
    known = dict.fromkeys(names) | types_of(PAGE.read_text(encoding="utf-8"))
    releases = f"transformers {transformers.__version__}, PyTorch {torch.__version__.partition('+')[0]}"
    for name in sys.argv[1:] or names:
        known[name] = tried(name)
        sys.stdout.write(f"{name}: {known[name] or 'runs'}\n")
        sys.stdout.flush()
    PAGE.write_text(page_of({name: known[name] for name in names}, releases), encoding="utf-8")


if __name__ == "__main__":
    main()
