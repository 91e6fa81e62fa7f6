"""Rules and priors in words: as they come up while trials run, in a study's summary, and in the list of rules."""

from __future__ import annotations

from autotune.config import Config
from autotune.report.format import percent
from autotune.results.result import StudyResult
from autotune.tuning.events import (
    Event,
    IsolationStarted,
    PriorsGiven,
    PriorsOffered,
    RuleLearned,
    RulesRecalled,
    RulesUnavailable,
)
from autotune.tuning.failure_rules.rules import Rule, RuleEvidence
from autotune.tuning.priors import Use

MAX_RULES_SHOWN = 5
MAX_OFFERED = 3


def news_of(event: Event) -> list[str]:
    """A line for each thing that an event about rules or priors has to tell; none for other events."""
    match event:
        case PriorsGiven():
            return [f"prior {name}: {num or 'no'} new configs, tried first" for name, num in event.num_configs.items()]
        case PriorsOffered():
            return [_offer(event.studies)]
        case RulesRecalled():
            return _recalled(event)
        case RuleLearned() | IsolationStarted():
            return [_found(event)]
        case RulesUnavailable():
            return [f"going on without the rules of other studies: {event.why}"]
    return []


def _offer(studies: list[str]) -> str:
    noun = "study" if len(studies) == 1 else "studies"
    return f"{noun} {', '.join(studies[:MAX_OFFERED])} tuned the same model: add --prior {studies[0]}"


def _recalled(event: RulesRecalled) -> list[str]:
    lines = [f"rule {each.id} is refuted by what this study has measured, and removed" for each in event.refuted]
    num = len(event.rules)
    if num:
        share = "configs" if event.num_excluded is None else f"{event.num_excluded} of {event.num_configs} configs"
        lines.append(f"{num} rule{'s' * (num != 1)} from earlier studies exclude{'s' * (num == 1)} {share}")
    return lines


def _found(event: RuleLearned | IsolationStarted) -> str:
    if isinstance(event, IsolationStarted):
        suspects = ", ".join(event.question.suspects)
        return f"why trial {event.question.failure} failed: the next config tells more about {suspects}"
    many = "" if event.num_excluded is None else f"; {event.num_excluded} configs have that and are not tried"
    return f"rule {event.rule.id}: {rule_in_words(event.rule)}{many}"


def rule_in_words(rule: Rule) -> str:
    """What it excludes and why, in one line."""
    return f"{Config(rule.pattern)} fails ({rule.reason}): {rule.error[:100]}"


def rule_lines(rule: Rule) -> list[str]:
    """A rule with its scope and what shows it."""
    scope, evidence = rule.scope, rule.evidence
    alone = ", this study alone" if scope.study else ""
    where = f"{scope.framework} {scope.version} on {scope.device} ({scope.device_name})"
    lines = [f"{rule.id}  {rule_in_words(rule)}", f"          holds for {scope.model}, {where}{alone}"]
    if evidence is not None:
        lines.append(f"          study {evidence.study}: {_shown_by(evidence)}; {rule.created}")
    return lines


def _shown_by(evidence: RuleEvidence) -> str:
    failed = f"trials {', '.join(map(str, evidence.failed))} failed"
    spent = f"trials spent: {evidence.trials_spent}"
    if evidence.proof == "hybrid":
        return f"{failed}; trial {evidence.worked[0]}, which differs by this alone, works; {spent}"
    return f"{failed} and none of {len(evidence.worked)} without it; by chance {percent(evidence.chance or 0)}; {spent}"


def rules_summary(answer: StudyResult) -> list[str]:
    """What is not tried, and why."""
    rules, problem = answer.learned
    lines = [f"rule        {each.id}: {rule_in_words(each)}" for each in rules[:MAX_RULES_SHOWN]]
    if len(rules) > MAX_RULES_SHOWN:
        lines.append(f"rule        and {len(rules) - MAX_RULES_SHOWN} more: `spaces --rules` lists them")
    return lines + ([] if problem is None else [f"note        the rules of other studies are not used: {problem}"])


def priors_summary(answer: StudyResult) -> list[str]:
    """What the priors were good for, in trial numbers."""
    lines = [f"prior       {each.prior.name} ({each.prior.origin}): {_use(each, answer)}" for each in answer.priors]
    if lines and answer.near_best_after is not None:
        others = [each.prior for each in answer.priors if each.prior.near_best_after is not None]
        there = "".join(f"; {each.name} was after {each.near_best_after}" for each in others)
        lines.append(f"search      within 2 % of its best after {answer.near_best_after} trials{there}")
    return lines


def _use(use: Use, answer: StudyResult) -> str:
    if not use.prior.configs:
        return "no config that is new here"
    if not use.trials:
        return f"{len(use.prior.configs)} configs, none tried"
    named = f"trial{'s' * (len(use.trials) > 1)} {', '.join(map(str, use.trials))}"
    won = answer.best is not None and answer.best.number in use.trials
    return f"gave {named}; the best {'is one of them' if won else 'is none of them'}"
