"""A `ModelDiagnosis`, or the findings of a study's trial, in a terminal and as a document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from autotune.answer.format import count, seconds, times
from autotune.answer.result import StudyResult
from autotune.doctor.diagnose import ModelDiagnosis
from autotune.doctor.findings import Finding, FindingCost, Kind, findings_of, ranked, with_profiled_cost
from autotune.doctor.fixes import fix_of
from autotune.measure.diagnosis import BreakKind
from autotune.measure.measurement import Measurement

_NOWHERE = "location unknown"
_GIVES_UP = "the whole function around it runs eagerly"
NO_FINDINGS = "no graph breaks and no recompiles for the inputs that it was called with"
KINDS: dict[Kind, str] = {"graph_break": "graph break", "recompile": "recompile"}
_WORDS: dict[BreakKind, str] = {
    BreakKind.BRANCH: "branch on a tensor's values",
    BreakKind.SCALAR: "number taken out of a tensor",
    BreakKind.PRINT: "printing or logging",
    BreakKind.NUMPY: "NumPy call",
    BreakKind.CLOCK_OR_RANDOM: "Python's clock or random numbers",
    BreakKind.FOREIGN_CALL: "call of other code",
    BreakKind.CONTAINER: "Python container or object",
    BreakKind.DATA_SHAPE: "shape that depends on values",
    BreakKind.OPERATOR: "operator that is not supported",
    BreakKind.CUSTOM_OP: "operator of your own that is not described",
    BreakKind.CONTEXT: "context manager",
    BreakKind.GENERATOR: "generator",
    BreakKind.EXCEPTION: "exception handling",
    BreakKind.DISABLED: "kept from the compiler on purpose",
    BreakKind.CHANGING_SHAPE: "shape that changes",
    BreakKind.CHANGING_VALUE: "Python value that changes",
    BreakKind.CHANGING_CONTAINER: "container that changes",
    BreakKind.CHANGING_TYPE: "element type, device or mode that changes",
    BreakKind.CHANGING_INPUT: "input that changes",
    BreakKind.AFTER_BREAK: "value out of a graph break",
    BreakKind.OTHER: "not classified",
}


def findings_of_best(answer: StudyResult) -> list[Finding]:
    """Of the winner, or where that is the untuned model of the framework's default compile."""
    for record in (answer.best, *answer.records):
        if (
            record is not None
            and isinstance(record.outcome, Measurement)
            and record.outcome.diagnosis.compiled is not False
        ):
            profile = answer.hot_spots.best if answer.hot_spots and record is answer.best else None
            return ranked(with_profiled_cost(findings_of(record.outcome.diagnosis), profile))
    return []


def diagnosis_lines(checkup: ModelDiagnosis) -> list[str]:
    """Headline, then each finding with its line, its cost and its fix."""
    lines = [diagnosis_headline(checkup)]
    if checkup.refusal is not None:
        lines.append(f"  it does not compile: {checkup.refusal}")
    elif checkup.note:
        lines.append(f"  note: {checkup.note}")
    for number, each in enumerate(checkup.findings, start=1):
        lines += ["", *_numbered(number, finding_lines(each, checkup.framework))]
    if not checkup.findings and checkup.refusal is None:
        lines.append(f"  {NO_FINDINGS}")
    return [*lines, *_fusion(checkup)]


def finding_lines(finding: Finding, framework: str) -> list[str]:
    """One finding, with its fix."""
    lines = [f"{finding.location or _NOWHERE}: {_kind_words(finding)}"]
    if finding.source:
        lines.append(f"    {finding.source}")
    lines.append(f"  reason  {finding.reason}")
    if finding.gives_up:
        lines.append(f"  effect  {_GIVES_UP}")
    lines.append(f"  costs   {cost_words(finding.cost)}")
    return [*lines, *_fix_lines(finding, framework)]


def finding_row(finding: Finding, framework: str) -> tuple[str, ...]:
    """The same in a row: what it is and why, its place and line, what it costs, the fix."""
    what = [_kind_words(finding), finding.reason, *([_GIVES_UP] if finding.gives_up else [])]
    where = [finding.location or _NOWHERE, *([finding.source] if finding.source else [])]
    cure = fix_of(framework, finding.ailment)
    fix = [finding.hint or "-"] if cure is None else [cure.words]
    if cure is not None and cure.after:
        fix += ["before:", *filter(None, cure.before), "after:", *filter(None, cure.after)]
    return "\n".join(what), "\n".join(where), cost_words(finding.cost), "\n".join(fix)


def _kind_words(finding: Finding) -> str:
    often = f" ({finding.count} times)" if finding.count > 1 else ""
    return f"{KINDS[finding.kind]}{often}: {_WORDS[finding.ailment]}"


def one_line(finding: Finding) -> str:
    """Place, kind and line of a finding, and what it costs if that is known, for a study's report."""
    said = finding.reason if finding.ailment is BreakKind.OTHER else _WORDS[finding.ailment]
    cost = "" if finding.cost is None else f"; {seconds(finding.cost.seconds)} {_PAID[finding.cost.kind]}"
    return f"{finding.location or _NOWHERE}: {(finding.source or said)[:80]}  ({said[:110]}{cost})"


_PAID: dict[str, str] = {"per_call": "a call", "once": "of recompiling"}


def cost_words(cost: FindingCost | None) -> str:
    """Seconds with what kind of seconds they are."""
    if cost is None:
        return "not measured: no setting removes it alone, and no profile shows it"
    if cost.kind == "once":
        return f"{seconds(cost.seconds)} of recompiling ({cost.how})"
    graphs = f"; graphs without it: {count(cost.num_graphs_without)}" if cost.num_graphs_without is not None else ""
    amount = f"{seconds(abs(cost.seconds))} a call" if cost.seconds else "nothing distinguishable from noise"
    if cost.seconds < 0:
        amount = f"nothing: a call takes {seconds(-cost.seconds)} more without it"
    return f"{amount} ({cost.how}{graphs})"


def diagnosis_document(checkup: ModelDiagnosis) -> dict[str, Any]:
    """Plain data; the keys are documented in docs/json.md."""
    return {"schema": 1, **checkup.model_dump(mode="json"), "findings": _findings_document(checkup)}


def _findings_document(checkup: ModelDiagnosis) -> list[dict[str, Any]]:
    found = []
    for each in checkup.findings:
        cure = fix_of(checkup.framework, each.ailment)
        found.append({**each.model_dump(mode="json"), "cure": None if cure is None else asdict(cure)})
    return found


def diagnosis_headline(checkup: ModelDiagnosis) -> str:
    """How many breaks and recompiles there are, and how long a call takes."""
    num_breaks = sum(each.kind == "graph_break" for each in checkup.findings)
    num_again = len(checkup.findings) - num_breaks
    found = f"{num_breaks} graph breaks, {num_again} recompiles"
    ran = f"untuned {seconds(checkup.untuned_s)}"
    if checkup.compiled_s is not None and checkup.untuned_s is not None:
        ran += f", compiled {seconds(checkup.compiled_s)} ({times(checkup.untuned_s / checkup.compiled_s)})"
    return f"{checkup.model} ({checkup.framework}): {found}; {count(checkup.num_graphs)} graphs; {ran} a call"


def _fix_lines(finding: Finding, framework: str) -> list[str]:
    cure = fix_of(framework, finding.ailment)
    if cure is None:
        return [f"  hint    {finding.hint}"] if finding.hint else []
    lines = [f"  fix     {cure.words}"]
    for name, code in (("before", cure.before), ("after", cure.after)):
        lines += [f"    {name if number == 0 else '':<7} {line}" for number, line in enumerate(code) if line]
    return lines


def _numbered(number: int, lines: Sequence[str]) -> list[str]:
    return [f"{number}. {lines[0]}", *(f"   {line}" for line in lines[1:])]


def _fusion(checkup: ModelDiagnosis) -> list[str]:
    """What the compiler made of the operators, where it tells."""
    if checkup.num_kernels is None:
        return []
    lines = [
        "",
        f"kernels: {count(checkup.num_kernels)} a call; operators fused into others: {count(checkup.num_fused)}",
    ]
    for title, named in (("formed", checkup.fused), ("alone", checkup.unfused)):
        lines += [f"  {title:<7} {number:>4} x {name}" for name, number in (named or {}).items()]
    return lines
