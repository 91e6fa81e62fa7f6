"""Options of the compiler as knobs of a user's own space: which are taken, and where they hold."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo.config as dynamo_config
import torch._inductor.config as inductor_config

from autotune.backends.torch.apply import apply
from autotune.backends.torch.knobs import require_option, settings_of
from autotune.backends.undo import UndoLog
from autotune.bench import probe
from autotune.config import Config
from autotune.errors import InputError, InvalidConfigError
from autotune.planning.spaces import require_open_knobs
from autotune.space.space import Knob, SearchSpace

COMPILED = {"execution": "compile", "backend": "inductor"}
CAPTURED = {"execution": "compile", "backend": "aot_eager"}


class Branching(torch.nn.Module):
    """Reads a number out of a tensor, which breaks the graph unless dynamo is told to capture it."""

    def forward(self, x):
        return x * x.int().sum().item() + 1  # Of a float torch 2.6 makes a symbol that it then does not find.


def space_with(**knobs):
    """A space of PyTorch with these knobs, values by name, all of them for compiled configs only."""
    choice = Knob(
        name="execution", doc="", values=("eager", "compile"), when={}, default="compile", untuned="eager"
    )  # fmt: skip
    compiled = {"execution": "compile"}
    rows = [
        Knob(name=name, doc="", values=values, when=compiled, default=values[0], untuned=values[0])
        for name, values in knobs.items()
    ]
    return SearchSpace(framework="torch", knobs=(choice, *rows), forbid=())


def newer(knob, *values):
    """A case about an option of inductor that not every release has."""
    _, *parents, name = knob.split(".")
    owner = getattr(inductor_config, parents[0]) if parents else inductor_config
    return pytest.param(knob, *values, marks=pytest.mark.skipif(not hasattr(owner, name), reason="not in this release"))


class TestWhatIsTaken:
    @pytest.mark.parametrize(
        ("knob", "value"),
        [
            ("inductor.max_fusion_size", 128),
            ("inductor.cpp.simdlen", 256),
            ("inductor.aggressive_fusion", True),
            newer("inductor.cpu_gpu_bw", 0.5),
            ("inductor.triton.max_tiles", None),
            ("dynamo.specialize_float", True),
        ],
    )
    def test_switches_and_numbers_are(self, knob, value):
        """An option whose declared type is a switch or a number takes a value of exactly that type, or null."""
        require_option(knob, value)

    @pytest.mark.parametrize(
        ("knob", "value", "words"),
        [
            ("inductor.cpp.cxx", "evil", "text or objects"),
            ("inductor.post_grad_custom_pre_pass", "os.system", "text or objects"),
            ("inductor.trace.enabled", True, "writes files"),
            ("inductor.global_cache_dir", "/tmp", "processes, caches"),
            ("inductor.size_asserts", False, "a check at run time"),
            ("dynamo.guard_nn_modules", False, "a check at run time"),
            ("inductor.freezing_discard_parameters", True, "something of the model"),
            ("inductor._micro_pipeline_tp", True, "private"),
            ("dynamo.recompile_limit", 10**9, "a knob of its own, recompile_limit"),
            ("inductor.max_fusion_siz", 128, "has no setting"),
            ("inductor.max_fusion_size", True, "true is not an integer"),
            ("inductor.max_fusion_size", "128", '"128" is not an integer'),
            newer("inductor.cpu_gpu_bw", 1, "1 is not a number with a point"),
        ],
    )
    def test_all_else_is_refused(self, knob, value, words):
        """Programs, paths, code, files, checks left out, other types: one sentence with the knob's name."""
        with pytest.raises(InvalidConfigError, match=f"knob {knob}: .*{words}"):
            require_option(knob, value)

    def test_no_option_that_takes_text_is_on_offer(self):
        """Of all that this release has, whatever takes free text or an object is refused."""
        for group, module in (("inductor", inductor_config), ("dynamo", dynamo_config)):
            for name, entry in module._config.items():
                if entry.value_type in (str, list, dict, tuple, set):
                    with pytest.raises(InvalidConfigError):
                        require_option(f"{group}.{name}", None)

    def test_a_misspelt_name_is_guessed(self):
        """The tip names an option of this release."""
        with pytest.raises(InvalidConfigError) as refused:
            require_option("inductor.max_fusion_siz", 128)
        assert "did you mean inductor.max_fusion_size?" in refused.value.tip

    def test_it_is_read_back(self, monkeypatch):
        """What a variable of the environment overrides is not taken for set."""
        entry = inductor_config._config["aggressive_fusion"]
        monkeypatch.setattr(entry, "env_value_force", False)
        with pytest.raises(InvalidConfigError, match="set to true, it reads False"):
            require_option("inductor.aggressive_fusion", True)


class TestWhereItHolds:
    def test_inductor_gets_it_for_this_model(self):
        """It goes through `options=`, by the option's own name; null is left out."""
        settings = settings_of(Config({**COMPILED, "inductor.cpp.simdlen": 256, "inductor.max_fusion_size": None}))
        assert settings.options == {"cpp.simdlen": 256}
        assert settings.open_options == {"inductor.cpp.simdlen": 256}

    @pytest.mark.parametrize("value", [None, True])
    def test_dynamo_has_it_while_this_model_is_compiled(self, value):
        """The option does what it is for, in this model alone: what the process has is as before."""
        model, changes = Branching(), UndoLog()
        config = Config({**CAPTURED, "dynamo.capture_scalar_outputs": value})
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        apply(model, config, changes)(torch.ones(2))
        assert bool(torch._dynamo.utils.counters["graph_break"]) is (value is None)
        assert dynamo_config.capture_scalar_outputs is False

    def test_an_eager_model_has_no_compiler(self):
        """An option with execution=eager means nothing, and one of inductor means nothing to another backend."""
        for config in ({"execution": "eager", "dynamo.specialize_int": True}, {**CAPTURED, "inductor.dce": True}):
            with pytest.raises(InvalidConfigError, match="only"):
                settings_of(Config(config))


class TestBeforeAStudy:
    def test_the_release_is_asked(self):
        """A child says what is wrong with the first option that cannot be set."""
        probe.require_options("torch", {"inductor.dce": [None, True]}, {})
        with pytest.raises(InputError, match=r"knob inductor\.cpp\.cxx"):
            probe.require_options("torch", {"inductor.dce": [None, True], "inductor.cpp.cxx": ["evil"]}, {})

    @pytest.mark.parametrize(
        ("knob", "values", "words", "tip"),
        [
            ("inducter.dce", (None, True), "there are no options of 'inducter'", "did you mean inductor.dce"),
            ("env.LD_PRELOAD", (None, "x.so"), "no config may ask for this variable", "env={'NAME': 'VALUE'} sets"),
            ("env.PATH", (None, "/tmp"), "no config may ask for this variable", "env={'NAME': 'VALUE'} sets"),
            ("env.OMP_NUM_THREADS", (None, 2), "no config may ask for this variable", "the knob threads"),
            ("env.TORCHINDUCTOR_CXX", (None, "x"), "no config may ask for this variable", "the knob inductor.NAME"),
            ("env.OMP_WAIT_POLICIES", (None, "active"), "no config may", "did you mean OMP_WAIT_POLICY"),
            ("env.OMP_WAIT_POLICY", (None, "activ"), "'activ' is none of active, passive", "did you mean active"),
            ("env.KMP_BLOCKTIME", (None, -1), "'-1' is no number from 0", None),
        ],
    )
    def test_a_mistake_in_the_file_is_told_with_its_place(self, knob, values, words, tip):
        """Before anything is made: the file, the knob, what is wrong with it."""
        with pytest.raises(InputError, match=f"own.yaml: knob {knob}: {words}") as refused:
            require_open_knobs(space_with(**{knob: values}), "own.yaml", {})
        assert tip is None or tip in refused.value.tip

    def test_the_untuned_model_has_no_options(self):
        """A knob without a condition would be one of the untuned model."""
        knob = Knob(name="inductor.dce", doc="", values=(None, True), when={}, default=None, untuned=None)
        space = space_with().model_copy(update={"knobs": (*space_with().knobs, knob)})
        with pytest.raises(InputError, match=r"knob inductor\.dce: the untuned model") as refused:
            require_open_knobs(space, "own.yaml", {})
        assert "when:" in refused.value.tip

    def test_variables_are_taken(self):
        """A number or one of a few words, or null."""
        space = space_with(**{"env.OMP_WAIT_POLICY": (None, "passive"), "env.KMP_BLOCKTIME": (None, 0, 200)})
        require_open_knobs(space, "own.yaml", {})
