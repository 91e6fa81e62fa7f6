"""Failure rules and priors in words: as they come up while trials run, and in a study's summary."""

from __future__ import annotations

from autotune.answer.result import StudyResult
from autotune.command_line import asked, options
from autotune.config import Config
from autotune.tuning.events import Event, PriorsGiven, PriorsOffered, RuleLearned
from autotune.tuning.failure_rules import FailureRule
from autotune.tuning.priors import PriorUse

MAX_RULES_SHOWN = 5
MAX_OFFERED = 3


def news_of(event: Event) -> list[str]:
    """A line for each thing that an event about rules or priors has to tell; none for other events."""
    match event:
        case PriorsGiven():
            return [f"prior {name}: {num or 'no'} new configs, tried first" for name, num in event.num_configs.items()]
        case PriorsOffered():
            return [_offer(event.studies)]
        case RuleLearned():
            return [_found(event)]
    return []


def _offer(studies: list[str]) -> str:
    noun = "study" if len(studies) == 1 else "studies"
    return f"{noun} {', '.join(studies[:MAX_OFFERED])} tuned the same model: add {asked('prior', studies[0])}"


def _found(event: RuleLearned) -> str:
    many = "" if event.num_excluded is None else f"; {event.num_excluded} configs have that and are not tried"
    return f"rule {event.rule.id}: {rule_in_words(event.rule)}{many}"


def rule_in_words(rule: FailureRule) -> str:
    """What it excludes and why, in one line."""
    return f"{Config(rule.pattern)} fails ({rule.reason}): {rule.error[:100]}"


def rules_summary(answer: StudyResult) -> list[str]:
    """What is not tried again, and why."""
    rules = answer.failure_rules
    lines = [f"rule        {each.id}: {rule_in_words(each)}" for each in rules[:MAX_RULES_SHOWN]]
    if len(rules) > MAX_RULES_SHOWN:
        lines.append(f"rule        and {len(rules) - MAX_RULES_SHOWN} more: `show{options(json=True)}` lists them")
    return lines


def priors_summary(answer: StudyResult) -> list[str]:
    """What the priors were good for, in trial numbers."""
    lines = [f"prior       {each.prior.name} ({each.prior.origin}): {_use(each, answer)}" for each in answer.priors]
    if lines and answer.near_best_after is not None:
        others = [each.prior for each in answer.priors if each.prior.near_best_after is not None]
        there = "".join(f"; {each.name} was after {each.near_best_after}" for each in others)
        lines.append(f"search      within 2 % of its best after {answer.near_best_after} trials{there}")
    return lines


def _use(use: PriorUse, answer: StudyResult) -> str:
    if not use.prior.configs:
        return "no config that is new here"
    if not use.trials:
        return f"{len(use.prior.configs)} configs, none tried"
    named = f"trial{'s' * (len(use.trials) > 1)} {', '.join(map(str, use.trials))}"
    won = answer.best is not None and answer.best.number in use.trials
    return f"gave {named}; the best {'is one of them' if won else 'is none of them'}"
