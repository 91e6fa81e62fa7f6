"""`tune --deadline`: one study for each tier that the model declares, and the file that a job chooses by."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autotune.cli.app import begun, print_json, print_line, say, stop_on_sigterm
from autotune.cli.running import interrupted, live_display, print_summary, search
from autotune.errors import AutotuneError, NoUsableTrialError, SetupError
from autotune.question.question import Question

if TYPE_CHECKING:
    from autotune.api.running import Terms
    from autotune.plugins.serving.tier_file import Tail, Tier, Tiers
    from autotune.study.budget import Budget
    from autotune.study.manifest import Manifest
    from autotune.study.study import Study
    from autotune.trial.deadline import Deadline


def tune_tiers(question: Question) -> int:
    """Tune one tier after the other, the best first. Returns 1 if no tier meets the deadline."""
    from autotune.answer.result import StudyResult
    from autotune.api.running import Terms, terms_of
    from autotune.api.studies import studies_at
    from autotune.plugins.serving.tiers import deadline_s, folder_of, share_of, write_tiers

    limit_s = deadline_s(question.deadline or "")
    studies = studies_at(question.studies_dir, question.storage)
    terms = terms_of(question, begun(), studies)
    manifests, left_out = _manifests(question, terms)
    folder = folder_of(studies.folder, manifests)
    stop_on_sigterm()
    tiers = []
    for number, (name, manifest) in enumerate(manifests.items()):
        say(f"tier {name} ({number + 1} of {len(manifests)}): study {manifest.name}")
        study = studies.open_or_create(manifest)
        own, study_time, all_time = share_of(terms.budget, terms.time, len(manifests) - number)
        try:
            tiers.append(_tuned(study, name, Terms(own, study_time, terms.sources), all_time, folder, question))
        except KeyboardInterrupt:
            return interrupted()
        except AutotuneError as problem:
            left_out[name] = _say_left_out(name, problem)
            continue
        if not question.as_json:
            print_line(f"tier {name}")
            print_summary(StudyResult(study), with_next=False)
        study.close()
    if not tiers:
        raise _nothing_tuned()
    written = write_tiers(next(iter(manifests.values())), tiers, limit_s, folder)
    _print(written, folder, left_out, as_json=question.as_json)
    return _verdict(written)


def _manifests(question: Question, terms: Terms) -> tuple[dict[str, Manifest], dict[str, str]]:
    """Tier -> the manifest of its study; and why others are left out. Raises NoUsableTrialError where all are."""
    from autotune.planning.manifest import make_manifest, tier_questions

    manifests, left_out = {}, {}
    for name, own in tier_questions(question, terms.limits).items():
        try:
            manifests[name] = make_manifest(own, terms.limits)
        except SetupError as problem:
            left_out[name] = _say_left_out(name, problem)
    if not manifests:
        raise _nothing_tuned()
    return manifests, left_out


def _tuned(study: Study, name: str, terms: Terms, all_time: Deadline, folder: Path, question: Question) -> Tier:
    """Tune one tier and export it. Raises an AutotuneError."""
    from autotune.plugins.serving.tiers import export_tier

    search(study, terms, quiet=question.quiet)
    return export_tier(study, name, _confirm_tail(study, terms.budget, all_time, quiet=question.quiet), folder)


def _say_left_out(name: str, problem: AutotuneError) -> str:
    """A tier that cannot be tuned must not stop the others. Returns why."""
    say(f"tier {name} is left out: {problem.with_tip()}")
    return str(problem)


def _nothing_tuned() -> NoUsableTrialError:
    return NoUsableTrialError("no tier could be tuned", tip="the reason of each is printed above")


def _confirm_tail(study: Study, budget: Budget, deadline: Deadline, *, quiet: bool) -> Tail:
    """Raises NoUsableTrialError."""
    from autotune.answer.result import StudyResult
    from autotune.api.running import bench_here
    from autotune.plugins.serving.tail_latency import confirm_tail
    from autotune.tuning.session import Session

    best = StudyResult(study).best
    if best is None:
        raise NoUsableTrialError("no config keeps every constraint", tip=f"look at: {study.command('show')}")
    with live_display(quiet=quiet) as display, bench_here(study) as bench:
        return confirm_tail(Session(study, budget, bench, display, deadline), best)


def _print(tiers: Tiers, folder: Path, left_out: dict[str, str], *, as_json: bool) -> None:
    from autotune.plugins.serving.tier_file import NOISY
    from autotune.plugins.serving.tiers import FILE, tiers_table
    from autotune.render.console import console
    from autotune.render.terminal import drawn

    noisy = [tier.name for tier in tiers.tiers if tier.evidence.spread > NOISY]
    if noisy:
        say(
            f"noisy: processes of {', '.join(noisy)} differ by more than {NOISY:.0%} in their 99th percentile; "
            "run the same command again"
        )
    if as_json:
        content = tiers.model_dump(mode="json", by_alias=True)
        for shown, tier in zip(content["tiers"], tiers.tiers, strict=True):
            shown["fits"] = tiers.fits(tier)
        print_json({**content, "file": str(folder / FILE), "left_out": left_out})
        return
    console(200).print(drawn(tiers_table(tiers)))
    print_line(f"written: {folder / FILE}")


def _verdict(tiers: Tiers) -> int:
    from autotune.answer.format import seconds

    if any(tiers.fits(tier) for tier in tiers.tiers):
        return 0
    fastest = min(tiers.tiers, key=lambda tier: tier.p99_s)
    say(
        f"no tier keeps {seconds(tiers.deadline_s)}: the fastest, {fastest.name}, has a 99th percentile of "
        f"{seconds(fastest.p99_s)}"
    )
    return 1
