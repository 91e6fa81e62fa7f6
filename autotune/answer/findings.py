"""Graph breaks and recompiles in words: what each is, where, what it costs, and what to do about it."""

from __future__ import annotations

from autotune.answer.format import count, seconds
from autotune.measure.diagnosis import BreakKind
from autotune.measure.findings import Finding, FindingCost, Kind
from autotune.measure.fixes import fix_of

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
    """One finding as a row: what it is and why, its place and line, what it costs, the fix."""
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


def _fix_lines(finding: Finding, framework: str) -> list[str]:
    cure = fix_of(framework, finding.ailment)
    if cure is None:
        return [f"  hint    {finding.hint}"] if finding.hint else []
    lines = [f"  fix     {cure.words}"]
    for name, code in (("before", cure.before), ("after", cure.after)):
        lines += [f"    {name if number == 0 else '':<7} {line}" for number, line in enumerate(code) if line]
    return lines
