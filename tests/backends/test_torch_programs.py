"""What a step of a text is known by, and what is asked of each call although the one before it was looked at."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from autotune.backends.torch.compiled_step import ClassMethods
from autotune.backends.torch.programs import Program, Step
from tests.backends.test_torch_generation import Tuned, compiling
from tests.generating import NEW, continued, llama, prompt

pytest.importorskip("transformers")

CACHE = object()
IDS = prompt(1, 5)


def arguments(mask: int = 7, **further: Any) -> dict[str, Any]:
    """Those of a decode step."""
    ids = torch.ones(1, 1, dtype=torch.int64)
    return {
        "input_ids": ids, "attention_mask": torch.ones(1, mask), "past_key_values": CACHE, "use_cache": True, **further
    }  # fmt: skip


def step(is_open: bool = True) -> Step:
    program = Program(dict, dict)
    return Step(program, torch.nn.Identity().eval(), arguments(), is_open=is_open, device="cpu", num_tokens=7)


class TestIsNext:
    @pytest.fixture(autouse=True)
    def without_gradients(self) -> Iterator[None]:
        with torch.no_grad():
            yield

    def test_a_step_with_one_token_more(self) -> None:
        """Under open sizes it is of the same form, and else it is not."""
        assert step().is_next(arguments())
        assert step().is_next(arguments(mask=8))
        assert not step(is_open=False).is_next(arguments(mask=8))
        assert step(is_open=False).is_next(arguments())

    @pytest.mark.parametrize(
        "changed",
        [
            {"input_ids": torch.ones(2, 1, dtype=torch.int64)},
            {"input_ids": torch.ones(1, 1, dtype=torch.int32)},
            {"input_ids": torch.ones(1, 1, dtype=torch.int64, device="meta")},
            {"input_ids": torch.nn.Parameter(torch.ones(1, 1))},
            {"attention_mask": torch.ones(1, 1)},
            {"attention_mask": None},
            {"attention_mask": {"full_attention": torch.ones(1, 7)}},
            {"past_key_values": ["another cache"]},
            {"use_cache": torch.ones(1, 1)},
            {"use_cache": None},
            {"output_attentions": True},
        ],
        ids=str,
    )
    def test_not_one_with_other_arguments(self, changed: dict[str, Any]) -> None:
        assert not step().is_next({**arguments(), **changed})

    def test_not_one_in_another_mode(self) -> None:
        of_a_text = step()
        with torch.enable_grad():
            assert not of_a_text.is_next(arguments())
        with torch.inference_mode():
            assert not of_a_text.is_next(arguments())
        with torch.autocast("cpu"):
            assert not of_a_text.is_next(arguments())
        of_a_text._model.train()
        assert not of_a_text.is_next(arguments())


class At:
    """A streamer that does something once the third token is there."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self._act, self._num = act, 0

    def put(self, tokens: torch.Tensor) -> None:
        self._num += 1
        if self._num == 3:
            self._act()

    def end(self) -> None:
        """Nothing is left to do."""


@pytest.mark.fast_cases("static")
class TestStepsOfAText:
    @pytest.fixture(params=[{"cache": "dynamic"}, {"cache": "static", "cache_length": 16}], ids=["dynamic", "static"])
    def tuned(self, request: pytest.FixtureRequest) -> Iterator[Tuned]:
        """Its programs were compiled, and looked at."""
        torch._dynamo.reset()
        found = Tuned(llama(), compiling(**request.param))
        for _ in range(2):
            assert continued(found.model, IDS) == continued(llama(), IDS)
        yield found
        found.changes.undo()

    def test_classes_are_looked_at_once_a_text(self, tuned: Tuned, monkeypatch: pytest.MonkeyPatch) -> None:
        looks: list[ClassMethods] = []
        have_changed = ClassMethods.have_changed

        def looked_at(methods: ClassMethods) -> bool:
            looks.append(methods)
            return have_changed(methods)

        monkeypatch.setattr(ClassMethods, "have_changed", looked_at)
        before = tuned.generation.num_calls["decode"]
        assert continued(tuned.model, IDS) == continued(llama(), IDS)
        assert (tuned.generation.num_calls["decode"] - before, len(looks)) == (NEW - 1, 1)
        kind: Any = type(tuned.model.model.layers[0])
        own = kind.forward

        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            return own(self, *args, **kwargs)

        monkeypatch.setattr(kind, "forward", forward)
        assert continued(tuned.model, IDS) == continued(llama(), IDS)
        assert ["another method" in why for why in tuned.said[:1]] == [True]

    def test_training_mode_in_the_middle_of_a_text(self, tuned: Tuned) -> None:
        assert continued(tuned.model, IDS, streamer=At(tuned.model.train)) == continued(llama(), IDS)
        assert ["training mode" in why for why in tuned.said[:1]] == [True]

    def test_hooks_for_all_modules_in_the_middle_of_a_text(self, tuned: Tuned) -> None:
        called: list[Any] = []
        handles: list[Any] = []

        def hook() -> None:
            handles.append(torch.nn.modules.module.register_module_forward_hook(lambda *given: called.append(given[0])))

        try:
            assert continued(tuned.model, IDS, streamer=At(hook)) == continued(llama(), IDS)
        finally:
            for handle in handles:
                handle.remove()
        assert tuned.model in called
        assert ["hooks for all modules" in why for why in tuned.said[:1]] == [True]

    @pytest.mark.parametrize("is_new", [False, True], ids=["its own module", "another module"])
    def test_hooks_that_come_and_go_between_texts(self, tuned: Tuned, is_new: bool) -> None:
        """Compiled code does not look for them: it is made anew. What is compared of a program's first call is, too."""
        expected, handles = llama(), []
        for model in (tuned.model, expected):
            layer = model.model.layers[0]
            layer.mlp = copy.deepcopy(layer.mlp) if is_new else layer.mlp
            handles.append(layer.mlp.register_forward_hook(lambda module, given, made: made * 20))
        assert continued(expected, IDS) != continued(llama(), IDS)
        for _ in range(2):
            assert continued(tuned.model, IDS) == continued(expected, IDS)
        handles[0].remove()
        assert continued(tuned.model, IDS) == continued(llama(), IDS)
        assert tuned.generation.num_calls["untuned"] == 0

    def test_two_caches_in_turns(self, tuned: Tuned) -> None:
        """Guidance calls the model once more after each step, with a cache of its own."""
        how = {"guidance_scale": 1.5}
        assert continued(tuned.model, IDS, **how) == continued(llama(), IDS, **how)
