"""Priors: the best configs of another study, or the config of an exported YAML, tried first in this one.

A prior is a suggestion and no evidence: each of its configs is measured here like any other, and what it saved is told
from the trial numbers alone. It is no part of the study's question.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.config import Config
from autotune.errors import AutotuneError, InputError, marked
from autotune.measure.measurement import Measurement
from autotune.measure.statistics import Verdict
from autotune.schema import Record
from autotune.space.portfolio import Portfolio, portfolio_for
from autotune.space.space import SearchSpace
from autotune.study.budget import Budget
from autotune.study.equivalence import run_same_program
from autotune.study.manifest import Manifest
from autotune.study.records import TrialRecord, fastest
from autotune.study.slots import Readable, list_slot
from autotune.study.study import Studies, Study
from autotune.tuned.tuned_config import load_tuned
from autotune.tuning.events import Notify, PriorsGiven, PriorsOffered
from autotune.workload.kinds import kind_of
from autotune.workload.process_start import INSTANCES

MOST_CONFIGS = 4
"""So many configs are taken from all priors together, in turns: what they save must not be eaten up by trying them."""
NEAR_BEST = 0.02
"""A search has arrived when its best is within this share of what it ends with."""


class Prior(Record):
    """What was taken from one source, as stored with the study."""

    name: str
    """As the user gave it: a study or a file."""
    origin: str
    """What was tuned there, in words."""
    configs: tuple[Config, ...]
    """As they are in this study's space, the best first."""
    given_at: int
    """Number of trials that this study had by then."""
    near_best_after: int | None
    """Trials after which the other study's search had arrived; None: not known."""


@dataclass(frozen=True)
class PriorSource:
    """A study or a file that was read: its configs, the best first, in its own space."""

    name: str
    framework: str
    origin: str
    configs: tuple[Config, ...]
    near_best_after: int | None


@dataclass(frozen=True)
class PriorUse:
    """What became of a prior."""

    prior: Prior
    trials: tuple[int, ...]
    """Trials of this study that came from the prior."""


def read_prior(text: str, studies: Studies) -> PriorSource:
    """What `--prior TEXT` names: a file, or one of the studies. Raises an AutotuneError where it is neither."""
    if Path(text).suffix in (".yaml", ".yml") or Path(text).is_file():
        return _from_file(text)
    try:
        study = studies.open(text)
    except InputError as error:
        raise InputError(
            f"{marked('prior', text)}: {error}", tip=error.unworded[1] or "give a study or an exported YAML"
        ) from None
    try:
        return _from_study(study)
    finally:
        study.close()


_GIVEN = list_slot("priors", Prior)


def enqueue_priors(study: Study, sources: Sequence[PriorSource], notify: Notify) -> None:
    """Enqueue what the sources suggest, once; offer other studies of the same model to one that has no prior. A study
    without a trial gets its portfolio, unless its budget says otherwise.

    Raises InputError for a source that has nothing in common with this study's space.
    """
    if not study.records() and (study.budget or Budget()).portfolio:
        study.portfolio = _portfolio_of(study.manifest)
    if not study.records():
        study.enqueue(_in_instances(study.manifest.space))
    already = {prior.name for prior in priors_of(study)}
    new = _projected([source for source in sources if source.name not in already], study)
    if new:
        configs = [config for prior in new for config in prior.configs]
        study.enqueue(configs)
        _GIVEN.write(study, [*_GIVEN.read(study), *new])
        notify(PriorsGiven({prior.name: len(prior.configs) for prior in new}))
    elif not already and not study.records():
        offered = related_studies(study.studies, study.manifest)
        if offered:
            notify(PriorsOffered(offered))


def _portfolio_of(manifest: Manifest) -> Portfolio | None:
    """What was recorded is how long steady calls of one shape take."""
    workload = manifest.workload
    if kind_of(workload).has_many_shapes or not manifest.objective.needs_turns:
        return None
    return portfolio_for(manifest.space, workload.device, workload.task)


def _in_instances(space: SearchSpace) -> list[Config]:
    """The untuned model in each number of instances: what they give by themselves, which no portfolio knows."""
    values = next((knob.values for knob in space.knobs if knob.name == INSTANCES), ())
    configs = [Config({**space.untuned().root, INSTANCES: value}) for value in values if value is not None]
    return [config for config in configs if config != space.untuned()]


def priors_of(study: Readable) -> list[Prior]:
    """The priors that the study was given, in order."""
    return _GIVEN.read(study)


def prior_uses(study: Readable, records: Sequence[TrialRecord]) -> list[PriorUse]:
    """Each prior with the trials that came from it."""
    return [
        PriorUse(
            prior,
            tuple(
                trial.number for trial in records if prior.given_at <= trial.number and trial.config in prior.configs
            ),
        )
        for prior in priors_of(study)
    ]


def related_studies(studies: Studies, manifest: Manifest) -> list[str]:
    """Other studies of the same model and framework that have something to suggest."""
    others = (other for other in studies.manifests() if other.name != manifest.name)
    same = [other.name for other in others if other.workload.is_of_same_model(manifest.workload)]
    return [name for name in same if _suggests(name, studies)]


def near_best_after(manifest: Manifest, records: Sequence[TrialRecord]) -> int | None:
    """Trials after which the search had a config within 2 % of its best, or its best's program under another name; None
    as long as nothing is feasible."""
    value = manifest.objective.value
    best = fastest(records, value)
    if best is None:
        return None
    bar = (1 + NEAR_BEST) * value(best.measurement)
    counted = [record for record in records if record.counts]
    return next(
        done
        for done, record in enumerate(counted, start=1)
        if record.state == "measured" and (value(record.measurement) <= bar or run_same_program(record, best))
    )


def _from_file(text: str) -> PriorSource:
    tuned = load_tuned(text)
    environment = tuned.environment
    return PriorSource(
        name=text,
        framework=tuned.framework,
        origin=f"{tuned.workload.model}, {tuned.framework} {environment.framework_version} on {environment.device}",
        configs=() if tuned.is_untuned else (tuned.config,),
        near_best_after=None,
    )


def _from_study(study: Study) -> PriorSource:
    manifest, records = study.manifest, study.records()
    workload = manifest.workload
    return PriorSource(
        name=study.name,
        framework=manifest.framework,
        origin=f"{workload.model}, {manifest.framework} {manifest.framework_version} on {workload.device}",
        configs=tuple(record.config for record in _complementary(list(_best_distinct(study, records)), manifest)),
        near_best_after=near_best_after(manifest, records),
    )


def _best_distinct(study: Study, records: Sequence[TrialRecord]) -> Iterator[TrialRecord]:
    """The confirmed winner, then by the objective; one of each program, and none slower than the untuned model."""
    value = study.manifest.objective.value
    untuned, confirmation = study.untuned_record(), study.confirmation
    winner = confirmation.candidate if confirmation and confirmation.verdict is Verdict.FASTER else None
    is_measured = untuned is not None and isinstance(untuned.outcome, Measurement)
    bar = value(untuned.measurement) if untuned and is_measured else None
    unchanged = study.manifest.space.untuned()
    feasible = [record for record in records if record.state == "measured" and record.config != unchanged]
    programs: set[str] = set()
    for record in sorted(feasible, key=lambda record: (record.number != winner, value(record.measurement))):
        program = record.measurement.program or record.config.fingerprint
        if program not in programs and (bar is None or value(record.measurement) <= bar):
            programs.add(program)
            yield record


def _complementary(ranked: Sequence[TrialRecord], manifest: Manifest) -> Iterator[TrialRecord]:
    """The first; then, for each of its settings, the fastest without it, since one that helps here may do harm to
    another model; then the rest. One that is as fast as another of them, and differs in a single setting, is left out.
    """
    value = manifest.objective.value
    told: list[TrialRecord] = []

    def is_twin(one: TrialRecord, other: TrialRecord) -> bool:
        ratio = value(one.measurement) / value(other.measurement)
        return abs(math.log(ratio)) <= NEAR_BEST and len(one.config.differing(other.config)) == 1

    def tell(records: Iterable[TrialRecord]) -> Iterator[TrialRecord]:
        for record in records:
            if not any(record == other or is_twin(record, other) for other in told):
                told.append(record)
                yield record

    if not ranked:
        return
    best = ranked[0]
    yield from tell([best])
    others = [record for record in ranked[1:] if not is_twin(record, best)]
    without = [
        next((other for other in others if knob in other.config.differing(best.config)), None)
        for knob in best.config.knobs()
    ]
    yield from tell(record for record in others if record in without)
    yield from tell(others)


def _projected(sources: Sequence[PriorSource], study: Study) -> list[Prior]:
    """Each source in this study's space; of all together `MOST_CONFIGS`, the best of each first."""
    space, records = study.manifest.space, study.records()
    taken: set[Config] = {space.untuned(), space.default(), *(record.config for record in records if record.counts)}
    chosen: dict[str, list[Config]] = {source.name: [] for source in sources}
    offers = [[(source.name, config) for config in _in_space(source, space)] for source in sources]
    for name, config in (offer for rank in itertools.zip_longest(*offers) for offer in rank if offer is not None):
        if config not in taken and sum(map(len, chosen.values())) < MOST_CONFIGS:
            taken.add(config)
            chosen[name].append(config)
    return [
        Prior(
            name=source.name,
            origin=source.origin,
            configs=tuple(chosen[source.name]),
            given_at=max((record.number + 1 for record in records), default=0),
            near_best_after=source.near_best_after,
        )
        for source in sources
    ]


def _in_space(source: PriorSource, space: SearchSpace) -> list[Config]:
    """The source's configs, made whole here; those that are forbidden are left out.

    Raises InputError where none of them says anything about this space.
    """
    if source.configs and (
        source.framework != space.framework
        or not any(config.matches({knob.name: list(knob.values)}) for config in source.configs for knob in space.knobs)
    ):
        raise InputError(
            f"{marked('prior', source.name)}: its configs ({source.origin}) say nothing about the knobs of "
            f"{space.framework}",
            tip=f"give a study or an exported YAML of {space.framework}",
        )
    projected = (space.projected(config) for config in source.configs)
    return [config for config in dict.fromkeys(projected) if space.forbidden(config) is None]


def _suggests(name: str, studies: Studies) -> bool:
    try:
        return bool(read_prior(name, studies).configs)
    except AutotuneError:
        return False
