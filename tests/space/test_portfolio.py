"""The portfolio: complementary configs, as far as a space can say them, and what the package knows."""

from __future__ import annotations

import pytest

from autotune.config import Config
from autotune.planning.spaces import bundled_space
from autotune.space import portfolio
from autotune.space.load import Circumstances, load_space
from autotune.space.portfolio import MOST_CHOSEN, Entry, PortfolioTable, beyond, portfolio_for, recorded
from tests.conftest import fake_space

SPACE = fake_space(
    "  execution: {doc: 'https://e.org', values: [eager, compile], untuned: eager, default: compile}\n"
    "  freezing: {doc: 'https://e.org', values: [false, true], default: false, when: {execution: compile}}\n"
    "  fusion: {doc: 'https://e.org', values: [0, 1, 2], default: 0, when: {execution: compile}}\n"
    "  allocator: {doc: 'https://e.org', values: [null, keep], default: null}\n"
)
COMPILED = {"execution": "compile"}
FROZEN = {**COMPILED, "freezing": True}


def entry(settings, *gains, seconds=10.0):
    return Entry(config=Config(settings), seconds=seconds, gains=gains, best_on=())


def table(*entries, kinds=("a", "b", "c"), by_hand=()):
    return PortfolioTable(
        framework="fake", release="0", device="cpu", task="infer", processor="x", num_cores=1, space="none",
        models=tuple(f"model {n}" for n in range(len(kinds))), kinds=kinds,
        process=("allocator", "cores"), by_hand=by_hand, entries=entries,
    )  # fmt: skip


def settings_of(found):
    """What they set beside the defaults."""
    return [{name: value for name, value in config.root.items() if value} for config in found.configs]


def chosen(*entries, space=SPACE, **more):
    return portfolio_for(space, "cpu", "infer", [table(*entries, **more)])


class TestWhatIsChosen:
    def test_what_is_good_where_another_is_good_takes_no_place(self):
        """Two near-duplicates are the fastest of all; the second adds nothing to the first."""
        best, twin = entry(FROZEN, 2.0, 2.0, 1.0), entry({**FROZEN, "allocator": "keep"}, 1.99, 1.99, 1.0)
        other = entry({**COMPILED, "fusion": 2}, 1.0, 1.0, 1.3)
        assert settings_of(chosen(twin, best, other))[2:] == [FROZEN, {**COMPILED, "fusion": 2}]

    def test_what_gains_most_in_the_least_time_comes_first_and_the_default_has_its_place(self):
        kept = {"execution": "eager", "allocator": "keep"}
        found = chosen(
            entry(COMPILED, 1.1, 1.1, 1.1, seconds=8.0),
            entry(FROZEN, 2.0, 1.0, 1.0, seconds=12.0),
            entry(kept, 1.0, 1.5, 1.0, seconds=1.0),
        )
        assert settings_of(found) == [{"execution": "eager"}, kept, FROZEN, COMPILED]
        assert found.num_models == 3

    def test_what_users_write_by_hand_is_tried_whatever_it_gained(self):
        """And what adds nothing to it takes no place."""
        known, twin = entry(COMPILED, 1.2, 1.2, 1.2), entry({**FROZEN, "allocator": "keep"}, 1.2, 1.2, 1.2)
        slow = entry(FROZEN, 0.9, 0.9, 0.9)
        assert chosen(known, slow, twin) is None
        assert settings_of(chosen(known, slow, twin, by_hand=(Config(FROZEN),)))[2:] == [FROZEN]

    def test_a_default_that_is_not_known_comes_first(self):
        assert settings_of(chosen(entry(FROZEN, 2.0, 2.0, 2.0))) == [{"execution": "eager"}, COMPILED, FROZEN]

    def test_what_the_space_cannot_say_is_left_out(self):
        """It is not bent into something else, of which nothing is known."""
        unknown = entry({**FROZEN, "cpp_wrapper": True}, 9.0, 9.0, 9.0)
        not_offered = entry({**COMPILED, "fusion": 3}, 9.0, 9.0, 9.0)
        assert settings_of(chosen(unknown, not_offered, entry(FROZEN, 1.5, 1.5, 1.5)))[2:] == [FROZEN]
        assert chosen(unknown, not_offered) is None

    def test_a_forbidden_config_is_left_out(self):
        space = SPACE.model_copy(update={"forbid": (({"freezing": True}, "so"),)})
        assert chosen(entry(FROZEN, 2.0, 2.0, 2.0), space=space) is None

    def test_what_later_ones_make_superfluous_loses_its_place(self):
        """One is good everywhere; two others are better, each where the other is not, and leave it nothing."""
        everywhere = entry({**COMPILED, "fusion": 1}, 1.5, 1.5, 1.5, 1.5)
        here, there = entry(FROZEN, 2.0, 2.0, 1.0, 1.0), entry({**COMPILED, "fusion": 2}, 1.0, 1.0, 2.0, 2.0)
        found = chosen(everywhere, here, there, kinds=tuple("abcd"))
        assert settings_of(found)[2:] == [FROZEN, {**COMPILED, "fusion": 2}]

    def test_what_sets_less_in_the_process_takes_the_place_of_the_same_code(self):
        """Also where its own reading is the lower one; a space that cannot say it keeps the other."""
        high = entry({**FROZEN, "allocator": "keep"}, 2.5, 2.5, 2.5)
        high = high.model_copy(update={"instead": Config({**FROZEN, "fusion": 2})})
        same = entry({**FROZEN, "fusion": 2}, 2.0, 2.0, 2.0)
        assert settings_of(chosen(high, same))[2:] == [{**FROZEN, "fusion": 2}]
        assert settings_of(chosen(high))[2:] == [{**FROZEN, "allocator": "keep"}]

    def test_kinds_count_alike(self, monkeypatch):
        """Three models of one kind are one voice: where one place is left, the other kind's larger gain has it."""
        monkeypatch.setattr(portfolio, "MOST_CHOSEN", 1)
        many, one = entry(FROZEN, 1.3, 1.3, 1.3, 1.0), entry({**COMPILED, "fusion": 1}, 1.0, 1.0, 1.0, 1.5)
        assert settings_of(chosen(many, one, kinds=("mlp", "mlp", "mlp", "other")))[2:] == [{**COMPILED, "fusion": 1}]
        assert settings_of(chosen(many, one, kinds=("a", "b", "c", "d")))[2:] == [FROZEN]

    def test_gains_below_the_noise_take_no_place(self):
        assert chosen(entry(FROZEN, 1.01, 1.015, None)) is None

    def test_there_are_six_at_most(self):
        settings = [{**COMPILED, "freezing": freezing, "fusion": n} for freezing in (False, True) for n in (0, 1, 2)]
        gains = [[3.0 if n == place else None for n in range(6)] for place in range(6)]
        entries = [entry(one, *own) for one, own in zip(settings, gains, strict=True)]
        found = chosen(*entries, kinds=tuple("abcdef"))
        assert len(found.configs) == 2 + MOST_CHOSEN == len(set(found.configs))

    def test_nothing_is_known_of_other_devices_and_tasks(self):
        known = [table(entry(FROZEN, 2.0, 2.0, 2.0))]
        assert portfolio_for(SPACE, "gpu", "infer", known) is None
        assert portfolio_for(SPACE, "cpu", "train", known) is None


def on_gpu(task, *load, **more):
    """What a study there begins with beside the untuned model: what each config sets."""
    known = frozenset({"one shape", "matrix products", "plain decoder", *load})
    here = Circumstances(version="2.13", device="gpu", task=task, tolerance=1e-3, known=known, **more)
    space = load_space(bundled_space("torch"), framework="torch", circumstances=here)
    found = portfolio_for(space, "gpu", task)
    assert found is not None
    assert all(space.holds(config) for config in found.configs)
    assert [recipe for recipe in found.recipes if space.projected(recipe.settings) not in found.configs] == []
    default = space.default().root
    told = [{n: v for n, v in each.root.items() if v != default.get(n)} for each in found.configs[1:]]
    return told, found


GRAPHS = {"mode": "reduce-overhead"}
STEP = {**GRAPHS, "coordinate_descent_tuning": True, "sdpa": "math"}
MEASURED = {"mode": "max-autotune", "all_directions": True, "epilogue_fusion": False}


class TestRecipes:
    """Settings that pay together by public reports, for the kind of load."""

    @pytest.mark.parametrize(
        ("task", "load", "told"),
        [
            ("infer", "few rows", [GRAPHS, STEP, {}]),
            ("infer", "many rows", [GRAPHS, {}, MEASURED]),
            ("infer", "convolutions", [GRAPHS, {}, {**MEASURED, "conv_1x1_as_mm": True}]),
            ("generate", None, [GRAPHS, {**STEP, "prefill": "compile_dynamic"}, {}]),
        ],
    )
    def test_they_follow_what_was_recorded_and_the_slow_ones_come_last(self, task, load, told):
        """On a GPU, by the kind of load that a call is; nothing recorded there is taken for a report."""
        assert on_gpu(task, load)[0] == told

    def test_a_training_step_has_its_own(self):
        told, found = on_gpu("train")
        assert {"sdpa": "cudnn"} in told
        assert told[-1] == {"mode": "max-autotune-no-cudagraphs"}
        assert all(recipe.source.startswith("https://") for recipe in found.recipes)

    def test_none_where_the_load_is_not_known_or_the_search_is_quick(self):
        assert on_gpu("infer")[1].recipes == ()
        assert on_gpu("infer", "many rows", preset="quick")[1].recipes == ()

    def test_none_is_for_a_cpu(self):
        """Of whatever load: what is tried there is as it was recorded."""
        here = Circumstances(version="2.13", device="cpu", tolerance=2e-2, process_settings=True)
        assert load_space(bundled_space("torch"), framework="torch", circumstances=here).recipes == ()


class TestBeyond:
    """What settings of the process would have added, where a study has none."""

    WITHOUT = SPACE.model_copy(update={"knobs": tuple(knob for knob in SPACE.knobs if knob.name != "allocator")})

    def test_it_is_told_with_what_it_added_to_the_best_of_the_space(self):
        told = table(entry(FROZEN, 2.0, 2.0, 1.0), entry({**FROZEN, "allocator": "keep"}, 4.0, 4.0, 2.0))
        found = beyond(self.WITHOUT, "cpu", "infer", [told])
        assert found is not None
        assert found.ratio == pytest.approx(2.0)
        assert (found.settings, found.num_models, found.processor) == ({"allocator": "keep"}, 3, "x")
        assert beyond(SPACE, "cpu", "infer", [told]) is None, "it was tried"

    @pytest.mark.parametrize(
        "gains", [(2.4, 2.4, 1.2), (9.0, None, None)], ids=["it adds little", "few models have a reading"]
    )
    def test_it_is_not_told_where_it_is_not_known_to_add_much(self, gains):
        told = table(entry(FROZEN, 2.0, 2.0, 1.0), entry({**FROZEN, "allocator": "keep"}, *gains))
        assert beyond(self.WITHOUT, "cpu", "infer", [told]) is None

    def test_settings_of_the_model_alone_are_no_reason(self):
        """A space without half precision leaves it out for its tolerance."""
        told = table(entry(FROZEN, 2.0, 2.0, 1.0), entry({**FROZEN, "precision": "half"}, 9.0, 9.0, 9.0))
        assert beyond(self.WITHOUT, "cpu", "infer", [told]) is None

    def test_mindspore_on_a_cpu_has_more_to_gain(self):
        """The limit on oneDNN's instruction sets is a setting of the process."""
        here = Circumstances(version="2.10", device="cpu")
        found = beyond(
            load_space(bundled_space("mindspore"), framework="mindspore", circumstances=here), "cpu", "infer"
        )
        assert found is not None
        assert "onednn_isa" in found.settings


class TestWhatThePackageKnows:
    @pytest.mark.parametrize("known", recorded(), ids=lambda known: f"{known.framework}-{known.task}")
    def test_every_config_can_be_said_in_the_bundled_space(self, known):
        here = Circumstances(
            version=known.release, device=known.device, task=known.task, tolerance=2e-2, process_settings=True
        )
        space = load_space(bundled_space(known.framework), framework=known.framework, circumstances=here)
        for entry in known.entries:
            assert space.holds(space.projected(entry.config)), entry.config
            assert space.projected(entry.config).matches(entry.config.root)
            assert len(entry.gains) == len(known.models) == len(known.kinds)
            assert set(entry.best_on) <= set(known.models)

    def test_generated_text_begins_with_what_is_written_by_hand(self):
        """Hugging Face's own way, what gained most, and `torch.compile(model.forward)`."""
        here = Circumstances(version="2.13", device="cpu", task="generate")
        found = portfolio_for(
            load_space(bundled_space("torch"), framework="torch", circumstances=here), "cpu", "generate"
        )
        assert found is not None
        ways = [(config["cache"], config.get("prefill"), config["freezing"]) for config in found.configs[1:]]
        assert ways[:2] == [("transformers", None, False), ("dynamic", "eager", True)]
        assert ("dynamic", "compile_dynamic", False) in ways

    @pytest.mark.parametrize("process", [False, True])
    def test_a_model_of_linear_layers_begins_with_both_libraries(self, process):
        """oneDNN's comes first, which gained most; MKL's is among the first as well. No other model pays for a trial of
        the choice, and nothing is said of settings that would add to it."""
        told = {}
        for known in ((), ("linear layers",)):
            here = Circumstances(
                version="2.13", device="cpu", tolerance=1e-3, process_settings=process,
                known=frozenset({"one shape", *known}),
            )  # fmt: skip
            space = load_space(bundled_space("torch"), framework="torch", circumstances=here)
            found = portfolio_for(space, "cpu", "infer")
            assert found is not None
            told[known] = [config.get("packed_linear") for config in found.configs if config.get("freezing")]
            assert beyond(space, "cpu", "infer") is None
        assert told["linear layers",][:2] == ["onednn", "mkl"]
        assert {*told[()]} == {None}

    @pytest.mark.parametrize("half", [False, True])
    @pytest.mark.parametrize("process", [False, True])
    def test_it_fits_the_study(self, process, half):
        """Half precision and settings of the process come only where the study allows them."""
        here = Circumstances(version="2.13", device="cpu", tolerance=2e-2 if half else 1e-3, process_settings=process)
        space = load_space(bundled_space("torch"), framework="torch", circumstances=here)
        found = portfolio_for(space, "cpu", "infer")
        assert found is not None
        assert found.configs[0] == space.untuned()
        assert space.default() in found.configs
        assert 3 <= len(found.configs) == len(set(found.configs)) <= 6
        assert all(space.holds(config) for config in found.configs)
        assert any(config.get("precision") for config in found.configs) == half
        assert process or not any(config.get("matmul_precision") for config in found.configs)
