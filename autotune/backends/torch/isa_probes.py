"""Which instruction sets inductor may use: asked once for a user, and known to each process that compiles.

Inductor tries each set that the processor has: it compiles a few lines, which a cache spares all processes but the
first, and lets a child Python load them, which every process does again (0.9 s of CPU time in all). The answers depend
on the processor, the C++ compiler and torch, which the toolchain is made for; so its program writes them down.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_FILE = "probes.json"


def ask(toolchain: Path) -> None:
    """Ask all there is to ask, and write down the answers with the seconds that each takes a process whose cache holds
    what was compiled. Nothing is written where this release asks in another way."""
    from torch._inductor import cpu_vec_isa

    answers: dict[str, tuple[bool, float]] = {}

    def and_note(isa: Any, code: str, check: Callable[[Any, str], bool]) -> bool:
        answer = check(isa, code)
        begun_s = _cpu_s()
        check(isa, code)
        answers[_key(isa, code)] = (answer, round(_cpu_s() - begun_s, 4))
        return answer

    with _asked_by(and_note):
        cpu_vec_isa.valid_vec_isa_list()
    if answers:
        (toolchain / _FILE).write_text(json.dumps(answers))


@contextmanager
def answered(toolchain: Path, spare: Callable[[float], object]) -> Iterator[None]:
    """See `AnsweredProbes`. Imports the compiler."""
    try:
        answers = json.loads((toolchain / _FILE).read_text())
    except (OSError, ValueError):
        yield
        return

    def or_ask(isa: Any, code: str, check: Callable[[Any, str], bool]) -> bool:
        known = answers.get(_key(isa, code))
        if known is None:
            return check(isa, code)
        answer, seconds = known
        spare(seconds)
        return bool(answer)

    with _asked_by(or_ask):
        yield


@contextmanager
def _asked_by(asks: Callable[[Any, str, Callable[[Any, str], bool]], bool]) -> Iterator[None]:
    """Let `asks` answer in here, with what would have answered as its last argument."""
    from torch._inductor import cpu_vec_isa

    of_class: Any = cpu_vec_isa.VecISA
    check = getattr(of_class, "check_build", None)
    if check is None:
        yield
        return
    of_class.check_build = lambda isa, code: asks(isa, code, check)
    try:
        yield
    finally:
        of_class.check_build = check


def _key(isa: Any, code: str) -> str:
    """What is asked, of which compiler."""
    asked = [str(isa), isa.build_arch_flags(), code, os.environ.get("CXX")]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


def _cpu_s() -> float:
    """CPU seconds of this process and of the children that have ended."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system
