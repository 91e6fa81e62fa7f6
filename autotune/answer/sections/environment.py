"""What was asked for, and where it was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autotune.answer.content import Fact, PagePart, Section, Table
from autotune.answer.format import num_bytes, percent, seconds
from autotune.apply.config_parts import ConfigParts
from autotune.environment import Environment
from autotune.measure.device_state import DeviceState, mean_of_known
from autotune.measure.measurement import Measurement
from autotune.tuning.session import BUILT_APART, IMPORTED_APART
from autotune.workload.process_start import ProcessStart


class EnvironmentSection(Section):
    """The study's question, and the machine of the best trial."""

    place = 99
    name, title, is_long = "environment", "Environment", True

    def facts(self) -> Iterator[Fact]:
        if not self.answer.manifest.is_of_this_schema:
            yield "read alone", f"{self.answer.manifest.written}: it cannot be resumed"
        if (apart := IMPORTED_APART.read(self.answer)) is not None:
            yield "imports", f"trials import {apart}"
        if (apart := BUILT_APART.read(self.answer)) is not None:
            yield "model", f"each trial builds it for itself: {apart}"
        yield from self._unwatched()
        best = self.answer.best
        start = ProcessStart() if best is None else ConfigParts.of(best.config).start
        if start.instances > 1:
            cores = "1 core" if start.cores == 1 else f"{start.cores} cores"
            what = "throughput and memory are those of all, the 99th percentile is over all calls"
            yield "instances", f"{start.instances} processes of {cores} each call at the same time; {what}"

    def _unwatched(self) -> Iterator[Fact]:
        untuned = self.answer.untuned
        state = None if untuned is None else untuned.measurement.samples.device
        if untuned is None or state is None or state.readings:
            return
        if "NVIDIA" in (untuned.measurement.environment.device or ""):
            lacks = "the extra `gpu` (nvidia-ml-py) is not installed"
            yield "clocks", f"they were not watched, so a throttled device does not show: {lacks}"

    def words(self) -> str:
        return "A result holds for this model, machine and release; `verify` measures it again elsewhere."

    def tables(self) -> list[Table]:
        manifest, workload = self.answer.manifest, self.answer.manifest.workload
        asked = [
            ("model", workload.model),
            ("arguments", " ".join(f"{name}={value}" for name, value in workload.arguments.items()) or "-"),
            (f"{manifest.framework} release", manifest.framework_version),
            ("device", workload.device),
            ("objective", manifest.objective.name),
            ("constraints", ", ".join(constraint.text for constraint in manifest.constraints) or "-"),
            ("seed", str(workload.seed)),
            ("study made", f"{manifest.created}, autotune {manifest.autotune_version}"),
        ]
        record = self.answer.best or self.answer.untuned
        machine = [] if record is None else machine_rows(record.measurement.environment)
        return environment_tables(asked, [*machine, *([] if record is None else accelerator_facts(record.measurement))])


def environment_part(words: str, asked: Sequence[tuple[str, str]], machine: Sequence[tuple[str, str]]) -> PagePart:
    """The last part of a page that is not about a study."""
    return PagePart("environment", "Environment", words, environment_tables(asked, machine))


def environment_tables(asked: Sequence[tuple[str, str]], machine: Sequence[tuple[str, str]]) -> list[Table]:
    """What was asked for, and the machine, if it is known."""
    parts = (("What was asked", asked), ("Where it was measured", machine))
    return [Table(caption, ("", "value"), rows, frozenset({"", "value"})) for caption, rows in parts if rows]


def machine_rows(e: Environment) -> list[tuple[str, str]]:
    """The machine, its software and what was set, each with its name."""
    rows = [
        ("device", e.device), ("driver", e.driver), ("processor", e.processor),
        ("vector instructions", e.vector_instructions), ("usable cores", str(e.num_cores)),
        ("memory", num_bytes(e.memory_bytes)), ("frequency governor", e.governor),
        ("load average before", None if e.load_1m is None else f"{e.load_1m:.2f}"), ("system", e.system),
        ("Python", e.python), *sorted(e.packages.items()), *sorted({**e.variables, **e.inherited}.items()),
    ]  # fmt: skip
    return [(name, value or "-") for name, value in rows]


def accelerator_remarks(measured: Measurement) -> list[str]:
    """Nothing on a CPU, and where the driver tells nothing."""
    copies = [] if measured.copies_s is None else [f"copying its outputs takes {seconds(measured.copies_s)} of a call"]
    state = measured.samples.device
    return copies if state is None else [*copies, *_of_state(state)]


def accelerator_facts(measured: Measurement) -> list[tuple[str, str]]:
    """What the device is beside its name, and its clock, power and temperature while samples were taken."""
    state = measured.samples.device
    if state is None:
        return []
    means = [
        ("mean SM clock", mean_of_known(reading.sm_clock_mhz for reading in state.readings), "MHz"),
        ("mean power", mean_of_known(reading.power_w for reading in state.readings), "W"),
        ("mean temperature", mean_of_known(reading.temperature_c for reading in state.readings), "°C"),
    ]
    return [*state.identity.items(), *((name, f"{mean:.0f} {unit}") for name, mean, unit in means if mean is not None)]


def _of_state(state: DeviceState) -> list[str]:
    if state.always_throttled:
        return ["the device was throttled all the time"]
    said = [f"{state.num_dropped} samples dropped: the device was throttled"] if state.num_dropped else []
    return said + ([f"at its power cap in {percent(state.share_capped)} of the readings"] if state.share_capped else [])
