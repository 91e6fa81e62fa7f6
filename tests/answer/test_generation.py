"""What a study of generated text says: tokens a second, waiting times, and passes that compile again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from autotune.answer.objectives import described, faster, to_be_better
from autotune.answer.sections.generation import GenerationSection
from autotune.config import Config
from autotune.measure.diagnosis import Compilations
from autotune.measure.measurement import Measurement
from autotune.measure.objective import Objective
from autotune.measure.statistics import Speedup
from tests.measure.test_objective import generating, measurement

SPEEDUP = Speedup(median=2.0, low=1.9, high=2.1)


def record(number: int, config: dict[str, Any], measured: Measurement) -> Any:
    return SimpleNamespace(number=number, config=Config(config), measurement=measured)


def measured(graphs: tuple[int, int] = (0, 0)) -> Measurement:
    """Graphs after the first pass, and after the last one."""
    found = generating(measurement())
    assert found.generated is not None
    cold, steady = (Compilations(num_graphs=number, num_given_up=0) for number in graphs)
    return found.model_copy(update={"generated": found.generated.model_copy(update={"cold": cold, "steady": steady})})


def section(*, task: str = "generate", steady: int = 2) -> GenerationSection:
    untuned = record(0, {"execution": "eager"}, measured())
    own = record(1, {"execution": "compile", "cache": "transformers"}, measured((3, 3)))
    best = record(2, {"execution": "compile", "cache": "static"}, measured((2, steady)))
    manifest = SimpleNamespace(workload=SimpleNamespace(task=task))
    answer: Any = SimpleNamespace(
        untuned=untuned, measured=[untuned, own, best], best=best, objective=Objective(), manifest=manifest
    )
    return GenerationSection(answer)


def test_the_library_stands_between_the_untuned_model_and_the_tuned_one() -> None:
    """Each with its figures, of the same prompts."""
    (table,) = section().tables()
    assert table.caption == "prompts of 3, 9 tokens, each continued by 11:"
    assert [row[0] for row in table.rows] == ["untuned", "Hugging Face's own", "tuned"]
    assert [(row[2], row[3], row[6], row[7]) for row in table.rows] == [
        ("3 s", "500 ms", number, "0") for number in ("0", "3", "2")
    ]
    assert len(list(section().facts())) == 3


def test_what_compiles_again_is_said() -> None:
    """A pass after the first one that compiles breaks the promise of the others."""
    *_, (label, text) = section(steady=3).facts()
    assert (label, text.partition(":")[0]) == ("recompiles", "1 graph was compiled in passes after the first")
    assert section(steady=3).document()["generation"]["tuned"]["recompiles"] == 1


def test_other_tasks_have_no_such_key() -> None:
    """Documents of other studies are as they were."""
    assert section(task="infer").document() == {}


@pytest.mark.parametrize(
    ("goal", "shown", "headline", "wish"),
    [
        ("ttft", "first token after 20 ms", "faster: 2.00x to the first token", "be faster to the first token than"),
        ("tpot", "20 ms for each further token", "faster: 2.00x for each further token", "be faster for each further"),
    ],
)
def test_objectives_of_tokens_in_words(goal: str, shown: str, headline: str, wish: str) -> None:
    """A verdict says what became faster."""
    objective = Objective.parse(goal)
    assert described(objective, 0.02, record(1, {}, measured())).startswith(shown)
    assert faster(objective, SPEEDUP).startswith(headline)
    assert to_be_better(objective).startswith(wish)


def test_a_gain_by_blocks_that_scatter_widely_is_its_lower_end():
    """Beside other programs the middle of some blocks is a matter of chance; that it is faster is not."""
    wide = Speedup(median=34.0, low=3.29, high=133.0)
    assert faster(Objective(), wide) == "faster: at least 3.29x (98 % interval 3.29x to 133.00x)"
