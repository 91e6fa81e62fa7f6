"""What was asked for, and where it was measured."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.answer.accelerator import accelerator_facts
from autotune.answer.content import Part, Section, Table
from autotune.answer.format import num_bytes
from autotune.environment import Environment


class EnvironmentSection(Section):
    """The study's question, and the machine of the best trial."""

    place = 99
    name, title, is_long = "environment", "Environment", True

    def words(self) -> str:
        return "A result holds for this model, machine and release; `verify` measures it again elsewhere."

    def tables(self) -> list[Table]:
        manifest, workload = self.answer.manifest, self.answer.manifest.workload
        asked = [
            ("model", workload.model),
            ("arguments", " ".join(f"{name}={value}" for name, value in workload.arguments.items()) or "-"),
            (f"{manifest.framework} release", manifest.framework_version),
            ("device", workload.device),
            ("objectives", ", ".join(objective.name for objective in manifest.objectives)),
            ("constraints", ", ".join(constraint.text for constraint in manifest.constraints) or "-"),
            ("seed", str(workload.seed)),
            ("study made", f"{manifest.created}, autotune {manifest.autotune_version}"),
        ]
        record = self.answer.best or self.answer.untuned
        machine = [] if record is None else machine_rows(record.measurement.environment)
        return environment_tables(asked, [*machine, *([] if record is None else accelerator_facts(record.measurement))])


def environment_part(words: str, asked: Sequence[tuple[str, str]], machine: Sequence[tuple[str, str]]) -> Part:
    """The last part of a page that is not about a study."""
    return Part("environment", "Environment", words, environment_tables(asked, machine))


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
