"""A `ModelDiagnosis` in a terminal, as a document, and as a page. It has no figures: what was found is text."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from autotune.answer.content import PagePart, Table
from autotune.answer.findings import NO_FINDINGS, finding_lines
from autotune.answer.format import count, seconds, times
from autotune.answer.sections.breaks import BreaksSection, findings_tables
from autotune.answer.sections.environment import environment_part, machine_rows
from autotune.answer.sections.noise import state_in_words
from autotune.measure.fixes import fix_of
from autotune.plugins.diagnose.diagnoser import ModelDiagnosis
from autotune.render.html.page import render


def diagnosis_lines(checkup: ModelDiagnosis) -> list[str]:
    """Headline, then each finding with its line, its cost and its fix."""
    lines = [diagnosis_headline(checkup)]
    if checkup.refusal is not None:
        lines.append(f"  it does not compile: {checkup.refusal}")
    elif checkup.note:
        lines.append(f"  note: {checkup.note}")
    lines += [f"  {label}: {text}" for label, text in _of_processes(checkup)]
    for number, finding in enumerate(checkup.findings, start=1):
        first, *rest = finding_lines(finding, checkup.framework)
        lines += ["", f"{number}. {first}", *(f"   {line}" for line in rest)]
    if not checkup.findings and checkup.refusal is None:
        lines.append(f"  {NO_FINDINGS}")
    return [*lines, *_fusion(checkup)]


def diagnosis_document(checkup: ModelDiagnosis) -> dict[str, Any]:
    """Plain data; the keys are documented in docs/json.md."""
    findings = []
    for finding in checkup.findings:
        cure = fix_of(checkup.framework, finding.ailment)
        findings.append({**finding.model_dump(mode="json"), "cure": None if cure is None else asdict(cure)})
    return {"schema": 1, **checkup.model_dump(mode="json"), "findings": findings}


def diagnosis_headline(checkup: ModelDiagnosis) -> str:
    """How many breaks and recompiles there are, and how long a call takes."""
    num_breaks = sum(finding.kind == "graph_break" for finding in checkup.findings)
    num_again = len(checkup.findings) - num_breaks
    found = f"{num_breaks} graph breaks, {num_again} recompiles"
    ran = f"untuned {seconds(checkup.untuned_s)}"
    if checkup.compiled_s is not None and checkup.untuned_s is not None:
        ran += f", compiled {seconds(checkup.compiled_s)} ({times(checkup.untuned_s / checkup.compiled_s)})"
    return f"{checkup.model} ({checkup.framework}): {found}; {count(checkup.num_graphs)} graphs; {ran} a call"


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


def diagnosis_page(checkup: ModelDiagnosis, command: str | None) -> str:
    """The HTML document. `command`: what repeats it, if a command line does."""
    return render(
        name=checkup.model,
        kind="diagnosis",
        headline=diagnosis_headline(checkup),
        wins=not checkup.findings and checkup.refusal is None,
        lines=_lines(checkup),
        configs=[("The config", sorted(checkup.config.root.items()))],
        commands=[] if command is None else [("examine it again", command)],
        figures=[],
        parts=_parts(checkup),
        origin="Made by autotune from what was measured for this page.",
    )


def _lines(checkup: ModelDiagnosis) -> list[tuple[str, str]]:
    rows = [("untuned", f"{seconds(checkup.untuned_s)} a call"), ("graphs", count(checkup.num_graphs))]
    if checkup.compiled_s is not None and checkup.untuned_s is not None:
        ratio = times(checkup.untuned_s / checkup.compiled_s)
        rows.insert(1, ("compiled", f"{seconds(checkup.compiled_s)} a call ({ratio})"))
    if checkup.num_kernels is not None:
        fused = f"{count(checkup.num_fused)} operators fused into others"
        rows.append(("kernels", f"{count(checkup.num_kernels)} a call; {fused}"))
    if checkup.refusal is not None:
        rows.append(("does not compile", checkup.refusal))
    elif checkup.note:
        rows.append(("note", checkup.note))
    return [*rows, *_of_processes(checkup)]


def _of_processes(checkup: ModelDiagnosis) -> list[tuple[str, str]]:
    """What made their calls slower than the model is, in the words of a study."""
    names = {"untuned": "the untuned model", "compiled": "the compiled model"}
    return [fact for name, state in checkup.states.items() for fact in state_in_words(names[name], state)]


def _parts(checkup: ModelDiagnosis) -> list[PagePart]:
    words = "The most expensive first. A graph break costs time in each call, a recompile once."
    if not checkup.findings:
        words = "It did not compile." if checkup.refusal is not None else f"{NO_FINDINGS.capitalize()}."
    found = [PagePart("breaks", BreaksSection.title, words, findings_tables(checkup.findings, checkup.framework))]
    kernels = [
        Table(caption, ("kernels", "of"), [(count(n), name) for name, n in named.items()], frozenset({"of"}))
        for caption, named in (("Formed by fusion", checkup.fused), ("Operators alone", checkup.unfused))
        if named
    ]
    if kernels:
        found.append(PagePart("kernels", "Kernels", "What the compiler made of the operators.", kernels))
    machine = [] if checkup.environment is None else machine_rows(checkup.environment)
    asked = [("model", checkup.model), ("framework", checkup.framework)]
    return [*found, environment_part("A result holds for this model, machine and release.", asked, machine)]
