"""The page about a model that `diagnose` examined. It has no figures: what was found is text."""

from __future__ import annotations

from autotune.answer.format import count, seconds, times
from autotune.doctor.diagnose import ModelDiagnosis
from autotune.render.findings import NO_FINDINGS, diagnosis_headline
from autotune.render.html.content import Section, Table
from autotune.render.html.rendering import render
from autotune.render.html.sections import environment_section, findings_section, machine_rows


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
        sections=_sections(checkup),
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
    return rows


def _sections(checkup: ModelDiagnosis) -> list[Section]:
    words = "The most expensive first. A graph break costs time in each call, a recompile once."
    if not checkup.findings:
        words = "It did not compile." if checkup.refusal is not None else f"{NO_FINDINGS.capitalize()}."
    found = [findings_section(checkup.findings, checkup.framework, words)]
    kernels = [
        Table(caption, ("kernels", "of"), [(count(n), name) for name, n in named.items()], frozenset({"of"}))
        for caption, named in (("Formed by fusion", checkup.fused), ("Operators alone", checkup.unfused))
        if named
    ]
    if kernels:
        found.append(Section("kernels", "Kernels", "What the compiler made of the operators.", tuple(kernels)))
    machine = [] if checkup.environment is None else machine_rows(checkup.environment)
    asked = [("model", checkup.model), ("framework", checkup.framework)]
    return [*found, environment_section("A result holds for this model, machine and release.", asked, machine)]
