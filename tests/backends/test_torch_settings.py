"""What a config of PyTorch's space means: pure, over the whole space, and refused where it means nothing."""

from __future__ import annotations

import itertools
import random

import pytest

from autotune.apply.config_parts import STRATEGY_NUMBERS, ConfigParts
from autotune.backends.torch.knobs import DYNAMIC, KNOBS, Goes, Settings, compile_arguments, settings_of
from autotune.config import Config
from autotune.errors import InvalidConfigError
from autotune.planning.spaces import bundled_space
from autotune.space.declared import Declaration, with_declared_knobs
from autotune.space.load import Circumstances, load_space, read_space_file

EAGER, COMPILE = {"execution": "eager"}, {"execution": "compile"}


def space_for(device, version="2.13.0", preset="standard", tolerance=1.0, num_cores=32):
    here = Circumstances(
        version=version, device=device, preset=preset, tolerance=tolerance, num_cores=num_cores, process_settings=True
    )  # fmt: skip
    return load_space(bundled_space("torch"), framework="torch", circumstances=here)


@pytest.mark.parametrize("device", ["cpu", "gpu", "ascend"])
@pytest.mark.parametrize(
    ("version", "preset", "tolerance"),
    [("2.6.0", "standard", 1.0), ("2.13.0", "standard", 1.0), ("2.13.0", "quick", 1.0), ("2.13.0", "exhaustive", 0.0)],
)
def test_every_config_on_offer_means_something(device, version, preset, tolerance):
    """No config of any device, release or preset is refused, and only eager ones leave the model uncompiled. Of large
    spaces a sample is taken."""
    space, draw = space_for(device, version, preset, tolerance), random.Random(0)
    drawn = (space.walk(lambda _, values: draw.choice(values)) for _ in range(3000))
    few = space.size(3000) < 3000
    for config in space.configs() if few else drawn:
        assert settings_of(config).compiled == (config["execution"] == "compile")


@pytest.mark.parametrize("preset", ["quick", "standard"])
def test_every_strategy_on_offer_means_something(preset):
    """Under traffic `shapes` stands in for `dynamic`: torch.compile is told what the strategy needs, and no more."""
    here = Circumstances(version="2.13.0", device="cpu", preset=preset, known=frozenset({"traffic", "padding"}))
    space = load_space(bundled_space("torch"), framework="torch", circumstances=here)
    seen = {}
    for config in space.configs():
        settings = settings_of(ConfigParts.of(config).settings)
        seen[config.get("shapes")] = settings.dynamic
        assert "dynamic" not in config.root
        limit = 64 if config.get("shapes") == "bucketed" or config.get("recompile_limit") == 64 else None
        assert settings.dynamo_options.get("recompile_limit") == limit
    assert seen.pop(None) is None
    assert seen == {name: dynamic for name, dynamic in DYNAMIC.items() if preset != "quick" or name != "bounded"}


@pytest.mark.parametrize("device", ["cpu", "gpu", "ascend"])
def test_every_knob_on_offer_shows(device):
    """Two values of one knob, all else equal, never mean the same: a forgotten line of the mapping would show here."""
    space = space_for(device, preset="exhaustive")
    for knob in space.knobs:
        base = {"execution": "compile", "backend": "inductor", "mode": "default", "freezing": True}
        if knob.name in ("backend", "torchair_mode"):
            base = {"execution": "compile", "backend": "torchair"}
        if knob.name == "execution":
            base = {}
        seen = [settings_of(Config({**base, knob.name: value})) for value in knob.values]
        assert all(one != other for one, other in itertools.combinations(seen, 2)), knob.name


def test_the_default_is_plain_torch_compile():
    """The default config hands torch.compile nothing but its own defaults, and sets nothing in the process."""
    for device in ("cpu", "gpu", "ascend"):
        settings = settings_of(space_for(device, preset="exhaustive").default())
        assert settings == Settings(compiled=True, mode="default")
        assert compile_arguments(settings, {}) == {
            "backend": "inductor", "mode": "default", "dynamic": None, "fullgraph": False,
        }  # fmt: skip


def test_the_untuned_model_is_left_alone():
    """The untuned config means eager and nothing else."""
    assert settings_of(space_for("cpu", preset="exhaustive").untuned()) == Settings(compiled=False)


def test_a_mode_with_options_is_spelled_out():
    """torch.compile takes a mode or options: the mode's own entries go along, and the config's come last."""
    config = Config({**COMPILE, "backend": "inductor", "mode": "max-autotune", "cpp_wrapper": True})
    arguments = compile_arguments(settings_of(config), {"max_autotune": True, "cpp_wrapper": False})
    assert arguments["options"] == {"max_autotune": True, "cpp_wrapper": True}
    assert "mode" not in arguments


def test_options_go_by_inductors_own_names():
    """Each option's other value reaches `options=` under its entry; the plain value reaches nothing."""
    options = {name: knob for name, knob in KNOBS.items() if knob.goes is Goes.INDUCTOR}
    assert len({knob.name or name for name, knob in options.items()}) == len(options) > 5
    for knob, entry, plain in ((name, knob.name or name, knob.plain) for name, knob in options.items()):
        other = next(value for value in KNOBS[knob].values if value != plain)
        assert settings_of(Config({**COMPILE, knob: other})).options == {entry: other}
        assert settings_of(Config({**COMPILE, knob: plain})).options == {}


def test_freezing_is_no_option():
    """Handed over as one it does nothing: dynamo decides before inductor sees the options."""
    settings = settings_of(Config({**COMPILE, "freezing": True}))
    assert settings.compiler_options == {"freezing": True}
    assert settings.options == {}
    assert settings.freezes


REFUSED = [
    ({"mode": "default"}, "knob execution: None is neither"),
    ({**COMPILE, "turbo": True}, "knob turbo: unknown to the torch backend"),
    ({**EAGER, "mode": "default"}, "knob mode: is for execution=compile only"),
    ({**EAGER, "freezing": False}, "knob freezing: is for execution=compile only"),
    ({**COMPILE, "backend": "aot_eager", "freezing": True}, "knob freezing: is for backend=inductor only"),
    ({**COMPILE, "backend": "aot_eager", "mode": "default"}, "knob mode: is for backend=inductor only"),
    ({**COMPILE, "torchair_mode": "max-autotune"}, "knob torchair_mode: is for backend=torchair only"),
    ({**EAGER, "precision": "int8"}, "knob precision: 'int8' is none of None, bf16_autocast"),
    ({**EAGER, "matmul_precision": "low"}, "knob matmul_precision: 'low' is none of"),
    ({**COMPILE, "cpp_wrapper": 1}, "knob cpp_wrapper: 1 is none of False, True"),
    ({**COMPILE, "freezing": "yes"}, "knob freezing: 'yes' is none of"),
    ({**COMPILE, "packed_linear": "onednn"}, "knob packed_linear: onednn is for freezing=true only"),
    ({**EAGER, "shapes": "static"}, "knob shapes: is for execution=compile only"),
    ({**COMPILE, "shapes": "some"}, "knob shapes: 'some' is none of automatic, static"),
    ({**COMPILE, "shapes": "static", "dynamic": False}, "knob dynamic: shapes says it already"),
    ({**COMPILE, "recompile_limit": 9}, "knob recompile_limit: 9 is none of 8, 64"),
    ({**EAGER, "allocator": "jemalloc"}, "knob allocator"),
    ({**EAGER, "threads": 0}, "knob threads: 0 is no number of threads"),
    ({**EAGER, "threads": True}, "knob threads: True is no number of threads"),
    ({**EAGER, "threads": 1.5}, "knob threads: 1.5 is no number of threads"),
    ({**EAGER, "threads": 2**31 - 1}, "knob threads: 2147483647 is no number of threads"),
]


@pytest.mark.parametrize(("config", "words"), REFUSED)
def test_what_means_nothing_is_refused(config, words):
    """A knob, value or combination that PyTorch does not have is one sentence that names the knob."""
    with pytest.raises(InvalidConfigError) as refused:
        settings_of(Config(config))
    assert words in str(refused.value)


def test_the_presets_grow():
    """Each preset has all configs of the one before it; quick is some two dozen, standard some hundred on a CPU."""
    quick, standard = (set(space_for("cpu", preset=each, num_cores=2).configs()) for each in ("quick", "standard"))
    common = {name for config in quick for name in config.knobs()}
    assert 12 <= len(quick) <= 30
    assert 100 <= len(standard) < 1500
    assert quick <= {Config({n: v for n, v in each.root.items() if n in common}) for each in standard}


def test_what_inductor_would_not_do_is_not_offered():
    """On a GPU no config asks for CUDA graphs under the C++ wrapper, of which none would be captured; on a CPU the rule
    does not stand in the way of autotuning."""
    both = {"cpp_wrapper": True, "mode": "max-autotune"}
    offered = [any(config.matches(both) for config in space_for(device).configs()) for device in ("gpu", "cpu")]
    assert offered == [False, True]


@pytest.mark.parametrize(
    ("device", "settings", "is_offered"),
    [
        ("gpu", {"mode": "reduce-overhead"}, False),
        ("gpu", {"mode": "max-autotune"}, False),
        ("gpu", {"mode": "max-autotune-no-cudagraphs"}, True),
        ("gpu", {"backend": "cudagraphs"}, False),
        ("ascend", {"mode": "reduce-overhead"}, False),
        ("cpu", {"mode": "max-autotune", "freezing": True}, True),
    ],
    ids=str,
)
def test_captured_graphs_are_for_the_whole_model(device, settings, is_offered):
    """Blocks that are compiled each on its own are not captured; the whole, and the whole without a part, may be."""
    declared = Declaration(regions=("blocks.*", "whole but head"))
    space = with_declared_knobs(space_for(device, preset="exhaustive"), declared, COMPILE, found_too=False)
    draw = random.Random(0)
    regions = set()
    for _ in range(2000):
        config = space.walk(lambda name, values: settings.get(name, draw.choice(values)))
        if config.matches({**COMPILE, **settings}) and space.forbidden(config) is None:
            regions.add(config["region"])
    assert regions == ({"whole", "whole but head", "blocks.*"} if is_offered else {"whole", "whole but head"})


@pytest.mark.parametrize(("version", "is_offered"), [("2.6.0", False), ("2.7.1", False), ("2.8.0", True)])
def test_tanh_is_decomposed_since_2_8(version, is_offered):
    """`cpp.use_decompose_tanh` came with torch 2.8."""
    names = {knob.name for knob in space_for("cpu", version=version, preset="exhaustive").knobs}
    assert ("decompose_tanh" in names) is is_offered


@pytest.mark.parametrize(
    ("circumstances", "is_offered"),
    [
        ({}, True),
        ({"tolerance": 0.0}, True),
        ({"task": "generate"}, True),
        ({"version": "2.8.0"}, False),
        ({"device": "gpu"}, False),
        ({"task": "train"}, False),
        ({"preset": "quick"}, False),
        ({"known": frozenset({"one shape"})}, False),
        ({"constant_weights": False}, False),
    ],
    ids=str,
)
def test_the_library_of_linear_layers_is_chosen_where_there_are_some_to_pack(circumstances, is_offered):
    """In the standard preset and without settings of the process; beside frozen float32 weights alone."""
    here = Circumstances(**{"version": "2.13.0", "device": "cpu", **circumstances})
    space = load_space(bundled_space("torch"), framework="torch", circumstances=here)
    chosen = [config for config in space.configs() if config.get("packed_linear") == "onednn"]
    assert bool(chosen) is is_offered
    assert all(config.matches({"freezing": True, "precision": None}) for config in chosen)


def test_ascends_compilers_need_torch_npu_alone(monkeypatch):
    """TorchAir is a part of torch_npu, not a distribution; it and the graph backends have no backward."""

    def backends(version, task):
        installed = {"torch_npu": version}.get
        monkeypatch.setattr("autotune.space.load.package_version", installed)
        here = Circumstances(version="2.9.0", device="ascend", preset="exhaustive", task=task, tolerance=1.0)
        space = load_space(bundled_space("torch"), framework="torch", circumstances=here)
        return set(next(knob.values for knob in space.knobs if knob.name == "backend"))

    plain = {"inductor", "aot_eager"}
    assert backends("2.9.0.post2", "infer") == plain | {"npugraph_ex", "npugraphs", "torchair"}
    assert backends("2.7.1", "infer") == plain | {"npugraphs", "torchair"}
    assert backends("2.9.0.post2", "train") == backends(None, "infer") == plain


def test_modes_on_ascend_are_those_that_torch_npu_documents():
    """Default and reduce-overhead, and none of the settings that are documented for NVIDIA's GPUs only."""
    space = space_for("ascend", preset="exhaustive")
    assert next(knob.values for knob in space.knobs if knob.name == "mode") == ("default", "reduce-overhead")


def test_fixed_precision_leaves_numerics_alone():
    """Where nothing is tolerated, no setting is on offer that changes how numbers are rounded."""
    names = {knob.name for knob in space_for("cpu", preset="exhaustive", tolerance=0.0).knobs}
    for config in itertools.islice(space_for("cpu", tolerance=0.0).configs(), 1000):
        settings = settings_of(config)
        assert (settings.autocast, settings.matmul_precision) == (None, None)
    assert "decompose_tanh" in names
    space = space_for("cpu", preset="exhaustive", tolerance=0.0)
    assert next(knob for knob in space.knobs if knob.name == "decompose_tanh").values == (False,)


def test_each_knob_of_the_space_has_one_row():
    """The space and the backend's table name the same knobs; the numbers of a shape strategy are not the backend's,
    nor is what a process is started with."""
    entries = read_space_file(bundled_space("torch")).knobs
    offered = {name for name, entry in entries.items() if name not in STRATEGY_NUMBERS and entry.start is None}
    assert offered == set(KNOBS) - {"region"}
