"""The parts of a report that are text: failures, graph breaks, traffic, environment, and all trials."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.answer.configs import config_text
from autotune.answer.format import count, error, num_bytes, seconds
from autotune.answer.result import StudyResult
from autotune.answer.workers import worker_shares
from autotune.doctor.findings import Finding
from autotune.environment import Environment
from autotune.measure.measurement import Failure, Measurement
from autotune.render.accelerator import accelerator_facts
from autotune.render.failure_rules import rule_in_words
from autotune.render.findings import finding_row, findings_of_best
from autotune.render.html.content import Section, Table
from autotune.render.traffic import traffic_document
from autotune.render.workers import COLUMNS, TEXTS, about_neighbours, about_workers, worker_rows
from autotune.study.manifest import Manifest
from autotune.study.records import failures_by_reason
from autotune.study.study import Study


def sections(study: Study, answer: StudyResult) -> list[Section]:
    """Those that have something to say, in the order of the page."""
    found = (
        _failures(answer), _graph_breaks(study.manifest, answer), _traffic(answer), _workers(answer),
        _trials(study, answer), _environment(study.manifest, answer),
    )  # fmt: skip
    return [each for each in found if each is not None]


def _failures(answer: StudyResult) -> Section | None:
    failed = [(each, each.outcome) for each in answer.records if isinstance(each.outcome, Failure)]
    if not failed:
        return None
    by_reason = []
    for reason, number in failures_by_reason(answer.records).items():
        of_reason = [(record, outcome) for record, outcome in failed if outcome.reason == reason]
        numbers = ", ".join(str(record.number) for record, _ in of_reason)
        by_reason.append((reason, str(number), numbers, of_reason[0][1].stage.value, of_reason[0][1].error))
    tables = [
        Table(
            "Failures by reason",
            ("reason", "number", "trials", "stage", "first error"),
            by_reason,
            texts=frozenset({"reason", "trials", "stage", "first error"}),
        )
    ]
    if answer.failure_rules:
        rules = [(rule_in_words(each), ", ".join(map(str, each.failed))) for each in answer.failure_rules]
        tables.append(
            Table("Settings that are not tried again", ("rule", "failed in trials"), rules, frozenset({"rule"}))
        )
    words = "A config that fails cannot win. The full logs lie in the study's folder."
    return Section("failures", "Failures by reason", words, tuple(tables))


def _graph_breaks(manifest: Manifest, answer: StudyResult) -> Section | None:
    told = findings_of_best(answer)
    if not told:
        return None
    words = "Of the best config if it compiles, else of the first trial that does. `diagnose` measures what each costs."
    return findings_section(told, manifest.workload.framework, words)


def findings_section(findings: Sequence[Finding], framework: str, words: str) -> Section:
    """Graph breaks and recompiles, one a row."""
    columns = ("finding and reason", "location and line", "cost", "fix")
    rows = [finding_row(each, framework) for each in findings]
    tables = (Table("Each finding", columns, rows, frozenset(columns)),) if rows else ()
    return Section("breaks", "Graph breaks and recompiles", words, tables)


def _traffic(answer: StudyResult) -> Section | None:
    told = traffic_document(answer)
    if told is None or not told["shapes"]:
        return None
    rows = [
        (
            " ".join(f"{name}={size}" for name, size in shape["sizes"].items()),
            count(shape["num_calls"]),
            *(seconds(shape["latency_s"].get(name)) for name in ("untuned", "tuned")),
        )
        for shape in told["shapes"]
    ]
    table = Table("Each shape", ("shape", "calls", "untuned", "tuned"), rows, frozenset({"shape"}))
    return Section("traffic", "Shapes of the traffic", f"Traffic {told['asked']}.", (table,))


def _workers(answer: StudyResult) -> Section | None:
    shares = worker_shares(answer.records, answer.neighbours, answer.lost_trials)
    if shares is None:
        return None
    table = Table("Each worker", COLUMNS, worker_rows(shares), TEXTS)
    found = [f"{each[0].upper()}{each[1:]}." for each in map(about_neighbours, shares.neighbours)]
    words = " ".join([f"{about_workers(shares).capitalize()}.", *found, "The confirmation ran on one of them."])
    return Section("workers", "Workers", words, (table,))


def _trials(study: Study, answer: StudyResult) -> Section:
    rows = []
    for record in answer.records:
        m = record.outcome if isinstance(record.outcome, Measurement) else None
        rows.append((
            str(record.number), record.state,
            *((seconds(m.latency.p50), seconds(m.latency.p99), num_bytes(m.peak_memory_bytes), seconds(m.compile_s),
               count(m.diagnosis.num_graph_breaks), error(m.relative_error)) if m else ("-",) * 6),
            config_text(record.config, answer.space), f"{study.command('run')} {record.number}",
        ))  # fmt: skip
    table = Table(
        "All trials, one process each",
        ("trial", "state", "median", "p99", "memory", "compile", "breaks", "error", "config", "run it again"),
        rows,
        texts=frozenset({"state", "config", "run it again"}),
    )
    words = (
        "Config: what differs from the untuned model. The command repeats the trial by itself, from the same folder."
    )
    return Section("trials", "All trials", words, (table,))


def _environment(manifest: Manifest, answer: StudyResult) -> Section:
    asked = [
        ("model", manifest.workload.model),
        ("arguments", " ".join(f"{name}={value}" for name, value in manifest.workload.arguments.items()) or "-"),
        (f"{manifest.framework} release", manifest.framework_version),
        ("device", manifest.workload.device),
        ("objectives", ", ".join(each.name for each in answer.objectives)),
        ("constraints", ", ".join(each.text for each in manifest.constraints) or "-"),
        ("seed", str(manifest.workload.seed)),
        ("study made", f"{manifest.created}, autotune {manifest.autotune_version}"),
    ]
    record = answer.best or answer.untuned
    machine = [] if record is None else machine_rows(record.measurement.environment)
    facts = [] if record is None else accelerator_facts(record.measurement)
    words = "A result holds for this model, machine and release; `verify` measures it again elsewhere."
    return environment_section(words, asked, [*machine, *facts])


def environment_section(words: str, asked: Sequence[tuple[str, str]], machine: Sequence[tuple[str, str]]) -> Section:
    """What was asked for, and the machine, if it is known."""
    parts = (("What was asked", asked), ("Where it was measured", machine))
    tables = [Table(caption, ("", "value"), rows, frozenset({"", "value"})) for caption, rows in parts if rows]
    return Section("environment", "Environment", words, tuple(tables))


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
