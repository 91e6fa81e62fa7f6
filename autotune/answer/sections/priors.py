"""Priors: what they were good for, in trial numbers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from autotune.answer.content import Fact, Section
from autotune.errors import marked
from autotune.space.portfolio import Beyond, Portfolio, beyond
from autotune.study.study import Study
from autotune.tuning.events import Event, PriorsGiven, PriorsOffered
from autotune.tuning.priors import PriorUse, near_best_after, prior_uses

_MAX_OFFERED = 3


class PriorsSection(Section):
    """Each prior with the trials that came from it, and how soon the search arrived."""

    place = 70

    @classmethod
    def news(cls, event: Event) -> Iterator[str]:
        if isinstance(event, PriorsGiven):
            for name, number in event.num_configs.items():
                yield f"prior {name}: " + (f"{number} new configs, tried first" if number else "nothing new here")
        elif isinstance(event, PriorsOffered):
            first, names = event.studies[0], ", ".join(event.studies[:_MAX_OFFERED])
            noun = "study" if len(event.studies) == 1 else "studies"
            yield f"{noun} {names} tuned the same model: add {marked('prior', first)}"

    @cached_property
    def _uses(self) -> list[PriorUse]:
        return prior_uses(self.answer, self.answer.records)

    @cached_property
    def _near_best_after(self) -> int | None:
        return near_best_after(self.answer.manifest, self.answer.records)

    @cached_property
    def _portfolio(self) -> Portfolio | None:
        return Study.portfolio.read(self.answer)

    @cached_property
    def _beyond(self) -> Beyond | None:
        manifest = self.answer.manifest
        if self.answer.confirmation is None:
            return None
        return beyond(manifest.space, manifest.workload.device, manifest.workload.task)

    def facts(self) -> Iterator[Fact]:
        if self._portfolio is not None:
            yield "start", " and ".join(_beginnings(self._portfolio))
        if self._beyond is not None:
            settings = " ".join(f"{name}={value}" for name, value in self._beyond.settings.items())
            yield (
                "beyond",
                f"{settings} made {self._beyond.num_models} other models {self._beyond.ratio:.1f}x as fast as what was "
                f"tried here (on {self._beyond.processor}): {marked('process_settings', True)} tries it, where the job "
                "allows settings of its whole process",
            )
        for use in self._uses:
            yield "prior", f"{use.prior.name} ({use.prior.origin}): {self._worth(use)}"
        if self._uses and self._near_best_after is not None:
            others = [use.prior for use in self._uses if use.prior.near_best_after is not None]
            there = "".join(f"; {prior.name} was after {prior.near_best_after}" for prior in others)
            yield "search", f"within 2 % of its best after {self._near_best_after} trials{there}"

    def _worth(self, use: PriorUse) -> str:
        if not use.prior.configs:
            return "no config that is new here"
        if not use.trials:
            return f"{len(use.prior.configs)} configs, none tried"
        named = f"trial{'s' * (len(use.trials) > 1)} {', '.join(map(str, use.trials))}"
        return f"gave {named}; the best {'is one of them' if self._gave_best(use) else 'is none of them'}"

    def _gave_best(self, use: PriorUse) -> bool:
        return self.answer.best is not None and self.answer.best.number in use.trials

    def document(self) -> dict[str, Any]:
        portfolio = self._portfolio
        return {
            "beyond": self._beyond and self._beyond.model_dump(),
            "portfolio": portfolio
            and {
                "num_models": portfolio.num_models,
                "num_configs": len(portfolio.configs),
                "recipes": [recipe.model_dump(exclude={"slow"}) for recipe in portfolio.recipes],
            },
            "priors": [
                {
                    "name": use.prior.name,
                    "origin": use.prior.origin,
                    "num_configs": len(use.prior.configs),
                    "trials": list(use.trials),
                    "gave_best": self._gave_best(use),
                    "near_best_after": use.prior.near_best_after,
                }
                for use in self._uses
            ],
            "near_best_after": self._near_best_after,
        }


def _beginnings(portfolio: Portfolio) -> Iterator[str]:
    """What it began with, each with what is known of it."""
    if portfolio.num_models:
        yield f"from configs that were best on {portfolio.num_models} models"
    if portfolio.recipes:
        sources = ", ".join(recipe.source for recipe in portfolio.recipes)
        yield f"from public reports that nobody has measured here ({sources})"
