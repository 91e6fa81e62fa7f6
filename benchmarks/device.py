"""A device in one command: which paths work on it, and do promises hold there?

    python benchmarks/device.py --minutes 9 --device gpu --folder results        goes on where it left off
    python benchmarks/device.py --device cpu --small                             proves the steps, not a device

Steps are run by worth until the time is used up; each is finished within minutes, and its record is written to
`FOLDER/device.json` at once, so that a machine may be lent for ten minutes at a time, and the folder be carried from
one to the next. What was not run has no figure. The section names the device; on a CPU its title says so.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pydantic import TypeAdapter

from autotune.errors import InputError
from autotune.files import write_whole
from autotune.planning.targets import choose_target
from autotune.workload.workload import Device
from benchmarks.evidence import (
    DOCS,
    REPOSITORY,
    RESULTS,
    Benchmark,
    Conditions,
    Kept,
    commit,
    errors_in_words,
    read,
    with_section,
)
from benchmarks.on_device.machine import facts_of
from benchmarks.on_device.records import Done
from benchmarks.on_device.section import judge, section
from benchmarks.on_device.session import Session
from benchmarks.on_device.steps import PIECES, Step, steps_on

FOLDER_VARIABLE = "DEVICE_RESULTS"
"""Names the folder of the results where `--folder` does not."""
_ADAPTER = TypeAdapter(Done)


def options(parser: argparse.ArgumentParser) -> None:
    """The flags of this benchmark alone."""
    flag = parser.add_argument
    flag("--device", choices=["auto", *get_args(Device)], default="auto", help="default: %(default)s")
    flag("--minutes", type=float, default=9.0, help="a step that may last longer is not begun (default: %(default)s)")
    flag("--small", action="store_true", help="small models: a check of the steps, on a CPU")
    flag("--pieces", nargs="+", choices=PIECES, default=list(PIECES), help="default: all")
    flag("--folder", type=Path, help=f"of the results (default: ${FOLDER_VARIABLE}, or build/device-DEVICE)")
    flag("--docs", type=Path, default=DOCS, help="file whose section is written (default: %(default)s)")
    flag("--list", action="store_true", help="name the steps and what is known of each; run nothing")


@dataclass(frozen=True)
class DeviceBenchmark(Benchmark[Step, Done]):
    """A benchmark whose records are kept one by one, and which goes on where it left off."""

    @errors_in_words()
    def execute(self, given: argparse.Namespace, command: str) -> None:
        """Do what the flags say, and print the section."""
        device = _device_of(given)
        file = folder_of(given, device) / "device.json"
        kept = read(file) if file.exists() else None
        steps = [step for step in steps_on(device, small=given.small) if step.piece in given.pieces]
        if given.list:
            tell(steps, kept)
            return
        if not given.report_only:
            kept = self.begun(kept, command, facts_of(device).get("name", device), small=given.small)
            with Session(device, small=given.small, minutes=given.minutes) as session:
                go_on(kept, steps[:2] if given.quick else steps, session, file)
        if kept is None:
            raise InputError(f"there is no {file}", tip="run the benchmark first")
        named = dataclasses.replace(self, name=kept.benchmark, title=f"{self.title}: {title_of(kept, device)}")
        kept.goals, text = named.report(kept)
        print(text)
        if not given.quick:
            named.publish(kept, text, given.docs)

    def publish(self, kept: Kept, text: str, docs: Path) -> None:
        """The section; beside the published ones its numbers too."""
        if docs == DOCS:
            numbers = json.dumps(kept.model_dump(mode="json"), indent=2)
            write_whole(RESULTS / f"{self.name}.json", without_repository(numbers) + "\n")
        before = docs.read_text(encoding="utf-8") if docs.exists() else ""
        write_whole(docs, with_section(before, self.name, text))

    def begun(self, kept: Kept | None, command: str, device: str, *, small: bool) -> Kept:
        """What is gone on from. Raises InputError for the results of another device, or of other sizes."""
        if kept is None:
            conditions = Conditions.now().model_copy(update={"device": device})
            return Kept(
                benchmark=f"{self.name}_{slug(device)}", command=command, minutes=0.0, conditions=conditions, records={}
            )
        if slug(kept.conditions.device) != slug(device) or ("--small" in kept.command.split()) != small:
            raise InputError(
                f"the results are those of {kept.conditions.device} (`{kept.command}`), and this is {device}",
                tip="give another --folder",
            )
        return kept


def _device_of(given: argparse.Namespace) -> Device:
    """The device that is meant. One that is named need not be there to list steps, or to report what was seen."""
    if given.device != "auto" and (given.list or given.report_only):
        named: Device = given.device
        return named
    return choose_target("torch", given.device)[1]


def go_on(kept: Kept, steps: Sequence[Step], session: Session, file: Path) -> None:
    """Run what was not run yet, then what failed, for as long as there is time. `kept` grows, and the file with it."""
    before = kept.minutes
    for step in in_order(steps, kept):
        if session.left_s() < step.expected_s:
            print(f"{step.name}: left for the next run, it takes up to {step.expected_s:.0f} s", flush=True)
            continue
        done = do(step, session, kept)
        print(f"{step.name}: {done.problem or 'done'}, {done.seconds:.0f} s", flush=True)
        kept.records[step.name] = _ADAPTER.dump_python(done, mode="json")
        kept.minutes = before + session.spent_s() / 60
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(kept.model_dump(mode="json"), indent=2) + "\n")


def folder_of(given: argparse.Namespace, device: Device) -> Path:
    """Where the results lie."""
    named = given.folder or os.environ.get(FOLDER_VARIABLE)
    return Path(named) if named else REPOSITORY / "build" / f"device-{device}{'-small' if given.small else ''}"


def in_order(steps: Sequence[Step], kept: Kept) -> list[Step]:
    """What was never tried comes before what failed; what is done is not done again."""
    untried = [step for step in steps if step.name not in kept.records]
    failed = [step for step in steps if step.name in kept.records and kept.records[step.name]["problem"]]
    return untried + failed


def do(step: Step, session: Session, kept: Kept) -> Done:
    """One step. What stops it is written down: the next one may do better."""
    before = {name: _ADAPTER.validate_python(each) for name, each in kept.records.items()}
    started, begun = datetime.now(UTC).replace(microsecond=0), time.monotonic()
    result = problem = None
    try:
        result = step.run(session, before)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    return Done(
        step=step.name,
        piece=step.piece,
        started=started.isoformat(),
        seconds=time.monotonic() - begun,
        device=kept.conditions.device,
        commit=commit(),
        result=result,
        problem=problem,
    )


def tell(steps: Sequence[Step], kept: Kept | None) -> None:
    """The steps, and whether each was run."""
    records = {} if kept is None else kept.records
    for step in steps:
        record = records.get(step.name)
        state = "not run" if record is None else f"failed: {record['problem']}" if record["problem"] else "done"
        print(f"{step.name:55} {step.expected_s:5.0f} s  {state}")


def without_repository(numbers: str) -> str:
    """Exports name the model's file where it lies; others have the repository elsewhere."""
    return numbers.replace(f"{REPOSITORY}{os.sep}", "")


def slug(device: str) -> str:
    """A device's name as part of a file's and a section's."""
    return re.sub(r"[^a-z0-9]+", "_", device.lower()).strip("_")


def title_of(kept: Kept, device: Device) -> str:
    """What was measured, and on what: nobody shall take a CPU's figures for a device's."""
    sizes = ", small sizes" if "--small" in kept.command.split() else ""
    return f"CPU{sizes}, a check of the steps" if device == "cpu" else f"{kept.conditions.device}{sizes}"


def alone(step: Step) -> Done:
    """A step by itself, on the best device of this machine."""
    device = choose_target("torch", "auto")[1]
    conditions = Conditions.now().model_copy(update={"device": facts_of(device).get("name", device)})
    kept = Kept(benchmark="device", command="device.py", minutes=0.0, conditions=conditions, records={})
    with Session(device, small=device == "cpu", minutes=10.0) as session:
        return do(step, session, kept)


def cases(given: argparse.Namespace) -> list[Step]:
    """All steps of the device, by worth."""
    return steps_on(choose_target("torch", given.device)[1], small=given.small)


BENCHMARK = DeviceBenchmark("device", "On a device", __doc__, Done, cases, alone, judge, section, options)

if __name__ == "__main__":
    BENCHMARK.main()
