"""A model examined: compiled as it is by default and called: what broke, what was compiled again, and at what cost?

Every figure comes from a trial in a process of its own with cold caches, as in a study: one of the untuned model, one
of the compiled model, and one for each kind of graph break that the framework can be told to capture after all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from autotune.backends.protocol import Reports
from autotune.backends.registry import framework_version, reports_of
from autotune.bench.bench import Bench
from autotune.command_line import command
from autotune.config import Config, Scalar
from autotune.environment import Environment
from autotune.errors import InputError, SetupError, marked
from autotune.measure.diagnosis import BreakKind, Diagnosis
from autotune.measure.findings import Finding, FindingCost, findings_of, ranked, with_profiled_cost
from autotune.measure.measurement import Failure, Measurement, Outcome
from autotune.measure.sampling import SamplingPlan
from autotune.measure.scatter import ProcessState, state_of
from autotune.own_folders import absolute, remove
from autotune.planning.models import make_workload
from autotune.planning.spaces import bundled_space
from autotune.planning.targets import choose_target
from autotune.question.question import Question, parse_arguments
from autotune.schema import Record
from autotune.space.load import Circumstances, load_space
from autotune.space.space import SearchSpace
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
from autotune.workload.workload import Workload

SAMPLING = SamplingPlan(max_warmup_s=3.0, max_sampling_s=2.0, max_samples=200)
"""Shorter than a study's: what a break costs is to be told, not which of two configs is faster by 1 %."""
NOTABLE = 0.03
"""A difference below this share of a call is within what two processes of one config differ by."""


class ModelDiagnosis(Record):
    """What was found. `untuned_s` and `compiled_s` are medians of a call; None where the model did not run."""

    model: str
    framework: str
    config: Config
    untuned_s: float | None
    compiled_s: float | None
    num_graphs: int | None
    num_kernels: int | None = None
    num_fused: int | None = None
    fused: dict[str, int] | None = None
    unfused: dict[str, int] | None = None
    refusal: str | None = None
    """Why the compiled model did not run at all."""
    note: str | None = None
    states: dict[str, ProcessState] = {}
    """What is known of the processes of `untuned` and `compiled` beside their calls; nothing on a device."""
    findings: tuple[Finding, ...]
    environment: Annotated[Environment | None, Field(exclude=True)] = None
    """Where the untuned model was measured."""


@dataclass(frozen=True)
class DiagnosisCase:
    """What is examined: a model under a config, and what it is compared with."""

    workload: Workload
    untuned: Config
    config: Config


class Diagnoser:
    """Measures one case. `folder` takes the trials, `tell` hears what is being measured."""

    def __init__(self, case: DiagnosisCase, bench: Bench, folder: Path, tell: Callable[[str], None]) -> None:
        self._workload = case.workload
        self._untuned = case.untuned
        self._config = case.config
        self._bench = bench
        self._folder = folder
        self._tell = tell

    def run(self) -> ModelDiagnosis:
        """Measure and judge. Raises SetupError for a model that does not even run untuned."""
        self._tell("the untuned model")
        untuned = self._attempt("untuned", self._untuned)
        if isinstance(untuned, Failure):
            raise SetupError(f"the untuned model fails: {untuned.error}", tip=f"full log: {untuned.evidence}")
        self._tell("compiled")
        compiled = self._attempt("compiled", self._config, profiled=True)
        diagnosis = self._diagnosis(compiled)
        findings = findings_of(diagnosis)
        if isinstance(compiled, Measurement):
            costs = {break_kind: self._cost(break_kind, compiled) for break_kind in self._capturable(findings)}
            findings = [_with_cost(finding, findings, costs) for finding in findings]
            findings = with_profiled_cost(findings, TrialFolder(self._folder / "compiled").read_profile())
        return ModelDiagnosis(
            model=self._workload.model,
            framework=self._workload.framework,
            config=self._config,
            untuned_s=untuned.latency.p50,
            compiled_s=compiled.latency.p50 if isinstance(compiled, Measurement) else None,
            num_graphs=diagnosis.num_graphs,
            num_kernels=diagnosis.num_kernels,
            num_fused=diagnosis.num_fused,
            fused=diagnosis.fused,
            unfused=diagnosis.unfused,
            refusal=f"{compiled.error} (full log: {compiled.evidence})" if isinstance(compiled, Failure) else None,
            note=diagnosis.note,
            states=_states({"untuned": untuned, "compiled": compiled}),
            findings=tuple(ranked(findings)),
            environment=untuned.environment,
        )

    def _attempt(
        self, name: str, config: Config, without: tuple[BreakKind, ...] = (), *, profiled: bool = False
    ) -> Outcome:
        folder = TrialFolder(absolute(self._folder / name))
        reports = self._reports
        request = TrialRequest(
            number=0,
            workload=self._workload,
            config=config,
            untuned=config == self._untuned,
            tolerance=None,
            reference=str(folder.path / "reference.npz"),
            cache=str(folder.path / "cache"),
            cold=True,
            sampling=SAMPLING,
            without=without,
            judged=False,
            profile_in=str(folder.path) if profiled else None,
            variables={} if reports is None else reports.VARIABLES,
        )
        return self._bench.run(folder, request, fresh=True)

    def _diagnosis(self, outcome: Outcome) -> Diagnosis:
        """What the process recorded, and what it wrote to stderr."""
        reports = self._reports
        try:
            text = TrialFolder(self._folder / "compiled").stderr.read_text(encoding="utf-8", errors="replace")
        except OSError:
            text = ""
        if isinstance(outcome, Failure):
            refused = None if reports is None else reports.refusal(text)
            return Diagnosis(compiled=False, graph_breaks=() if refused is None else (refused,))
        said = outcome.diagnosis
        if reports is None:
            return said
        return said.model_copy(update={"graph_breaks": reports.breaks(text) or said.graph_breaks})

    def _capturable(self, findings: list[Finding]) -> list[BreakKind]:
        found = {finding.ailment for finding in findings if finding.kind == "graph_break"}
        return [] if self._reports is None else [ailment for ailment in self._reports.CAPTURABLE if ailment in found]

    def _cost(self, break_kind: BreakKind, compiled: Measurement) -> FindingCost | None:
        """Cost of all breaks of one kind, by a run in which they are captured; None unless that is all that differs."""
        self._tell(f"compiled without breaks of kind {break_kind.value}")
        without = self._attempt(f"without-{break_kind.value}", self._config, without=(break_kind,))
        if isinstance(without, Failure):
            # No evidence of anything that is wrong with the model.
            remove(self._folder / f"without-{break_kind.value}")
            return None
        if not differ_in(break_kind, compiled.diagnosis, without.diagnosis):
            return None
        saved_s = compiled.latency.p50 - without.latency.p50
        is_noise = abs(saved_s) < NOTABLE * compiled.latency.p50
        return FindingCost(
            kind="per_call",
            seconds=0.0 if is_noise else saved_s,
            num_graphs_without=without.diagnosis.num_graphs,
            how="measured: median of a call with it, minus median with the compiler told to capture it",
        )

    @property
    def _reports(self) -> Reports | None:
        return reports_of(self._workload.framework)


def _states(outcomes: dict[str, Outcome]) -> dict[str, ProcessState]:
    measured = {name: state_of(outcome) for name, outcome in outcomes.items() if isinstance(outcome, Measurement)}
    return {name: state for name, state in measured.items() if state is not None}


def differ_in(break_kind: BreakKind, compiled: Diagnosis, without: Diagnosis) -> bool:
    """The breaks of this kind are gone, and nothing else broke for it: a number that is captured can break what it is
    handed to, and then the two runs do not differ by the number alone."""
    before, after = (
        {(found.location, found.ailment, found.gives_up) for found in findings_of(said) if found.kind == "graph_break"}
        for said in (compiled, without)
    )
    return after <= before and not any(kind is break_kind for _, kind, _ in after)


def _with_cost(finding: Finding, findings: list[Finding], costs: dict[BreakKind, FindingCost | None]) -> Finding:
    """The cost of a kind stands at each of its places; where there are several, it says that it is that of all."""
    cost = costs.get(finding.ailment)
    if finding.kind != "graph_break" or cost is None:
        return finding
    num_places = sum(other.kind == "graph_break" and other.ailment is finding.ailment for other in findings)
    if num_places > 1:
        cost = cost.model_copy(update={"how": f"{cost.how}; of all {num_places} places of this kind together"})
    return finding.model_copy(update={"cost": cost})


def make_case(question: Question, knobs: Iterable[str]) -> DiagnosisCase:
    """The request's one model under the default config of its framework, with some knobs (`NAME=VALUE`) set otherwise.

    Raises like `make_manifest`, and InputError for a knob or value that the bundled space does not hold here.
    """
    framework, device = choose_target(question.framework, question.device)
    # Every value that there is: what is examined need not be worth a search.
    here = Circumstances(
        version=framework_version(framework), device=device, preset="exhaustive", process_settings=True
    )
    space = load_space(bundled_space(framework), framework=framework, circumstances=here)
    return DiagnosisCase(
        workload=make_workload(
            question.model,
            question.arguments,
            framework,
            device,
            question.seed,
            search_path=question.search_path,
            inputs=question.inputs,
        ),
        untuned=space.untuned(),
        config=_with_knobs(space, parse_arguments(marked("knobs"), knobs)),
    )


def _with_knobs(space: SearchSpace, settings: dict[str, Scalar]) -> Config:
    default = space.default()

    def choose(name: str, values: tuple[Scalar, ...]) -> Scalar:
        wanted = settings.get(name, default.get(name))
        return wanted if Config({name: wanted}).matches({name: values}) else values[0]

    config = space.walk(choose)
    if not config.matches(settings) or not space.holds(config):
        named = " ".join(f"{marked('knobs')} {name}={value}" for name, value in settings.items())
        offered = [knob for knob in space.knobs if knob.name in settings]
        known = "; ".join(f"{knob.name} takes {', '.join(map(str, knob.values))}" for knob in offered)
        known = known or f"the knobs are {', '.join(knob.name for knob in space.knobs)}"
        raise InputError(
            f"{named}: not in the search space for {space.framework} here",
            tip=f"{known}; `{command('spaces')}` lists knobs and values",
        )
    return config
