"""What a config means to MindSpore: the pure mapping, over all releases and devices, without MindSpore."""

from __future__ import annotations

import itertools
import json
import math
import random
from dataclasses import asdict

import pytest
from packaging.version import Version

from autotune.apply.config_parts import STRATEGY_NUMBERS, ConfigParts
from autotune.backends.mindspore.knobs import KNOBS, compile_arguments, process_knobs
from autotune.config import Config
from autotune.errors import InvalidConfigError
from autotune.planning.spaces import bundled_spaces
from autotune.space.load import Circumstances, load_space, read_space_file
from tests.backends.mindspore_child import AST, FUSION, GRAPH, PYNATIVE, WHOLE

RELEASES = ["2.3.0", "2.5.0", "2.6.0", "2.8.0", "2.9.0", "2.10.0"]
DEVICES = ["cpu", "gpu", "ascend"]
PROCESS = {}
SPACE = next(path for path in bundled_spaces() if path.stem == "mindspore")
CPU_FLAGS = "--opt_level=2 --composite_op_limit_size=6"


def space_of(version, device, **circumstances):
    here = Circumstances(version=version, device=device, num_cores=64, **circumstances)
    return load_space(SPACE, framework="mindspore", circumstances=here)


each_place = pytest.mark.parametrize(
    ("version", "device"), [pytest.param(v, d, id=f"{v}-{d}") for v in RELEASES for d in DEVICES]
)


@pytest.mark.parametrize(
    ("config", "version", "device", "context", "jit", "jit_config"),
    [
        (PYNATIVE, "2.10.0", "cpu", PROCESS, None, {}),
        (GRAPH, "2.10.0", "cpu", PROCESS, None, {"jit_level": "O0"}),
        (GRAPH | {"jit_level": "O2"}, "2.8.0", "ascend", PROCESS, None, {"jit_level": "O2"}),
        (AST, "2.10.0", "cpu", PROCESS, {"capture_mode": "ast", "jit_level": "O0", "fullgraph": False}, {}),
        (
            AST,
            "2.8.0",
            "ascend",
            PROCESS,
            {"capture_mode": "ast", "jit_level": "O0", "fullgraph": False, "backend": "ms_backend"},
            {},
        ),
        (AST, "2.9.0", "ascend", PROCESS, {"capture_mode": "ast", "jit_level": "O0", "fullgraph": False}, {}),
        (WHOLE, "2.6.0", "gpu", PROCESS, {"capture_mode": "ast", "jit_level": "O0", "fullgraph": True}, {}),
        (WHOLE, "2.5.0", "cpu", PROCESS, {"mode": "PSJit"}, {"jit_level": "O0", "jit_syntax_level": "STRICT"}),
        (AST, "2.3.1", "cpu", PROCESS, {"mode": "PSJit"}, {"jit_level": "O0", "jit_syntax_level": "LAX"}),
        (
            GRAPH | FUSION,
            "2.10.0",
            "cpu",
            {"enable_graph_kernel": True, "graph_kernel_flags": CPU_FLAGS},
            None,
            {"jit_level": "O0"},
        ),
        (
            GRAPH | FUSION | {"graph_kernel_opt_level": 3},
            "2.10.0",
            "ascend",
            {"enable_graph_kernel": True, "graph_kernel_flags": "--opt_level=3"},
            None,
            {"jit_level": "O0"},
        ),
    ],
)
def test_what_a_config_hands_to_mindspore(config, version, device, context, jit, jit_config):
    """The mapping is pure: config, release and device decide what is set and what ms.jit gets."""
    arguments = compile_arguments(Config(config), version, device)
    assert (arguments.context | arguments.compiling, arguments.jit, arguments.jit_config) == (context, jit, jit_config)


@pytest.mark.parametrize(
    ("config", "version", "device", "sentence"),
    [
        ({}, "2.10.0", "cpu", "execution: is missing"),
        (PYNATIVE | {"backend": "GE"}, "2.10.0", "cpu", "backend: unknown"),
        (AST | {"capture": "bytecode"}, "2.10.0", "cpu", "'bytecode' is none"),
        (AST | {"jit_level": "O2"}, "2.8.0", "ascend", "needs execution graph"),
        (GRAPH | {"jit_level": "O2"}, "2.8.0", "cpu", "CANN"),
        (GRAPH | {"jit_level": "O2"}, "2.10.0", "ascend", "deprecated since 2.9"),
        (PYNATIVE | {"shapes": "static"}, "2.10.0", "cpu", "no code for a shape"),
        (GRAPH | {"shapes": "automatic"}, "2.10.0", "cpu", "a setting of ms.jit"),
        (AST | {"shapes": "automatic"}, "2.5.0", "cpu", "'automatic' came with MindSpore 2.6"),
        (PYNATIVE | {"enable_graph_kernel": True}, "2.10.0", "cpu", "nothing to fuse"),
        (PYNATIVE | {"amp_level": "O1"}, "2.10.0", "cpu", "writes the model's class anew"),
        (PYNATIVE | {"kernel_threads": 0}, "2.10.0", "cpu", "0 is neither null nor a whole number"),
        (PYNATIVE | {"onednn_isa": "AVX2"}, "2.10.0", "ascend", "oneDNN computes on CPUs only"),
        (PYNATIVE | {"pynative_fusion": True}, "2.8.0", "ascend", "came with MindSpore 2.9"),
        (AST | {"pynative_fusion": True}, "2.10.0", "ascend", "operators that PyNative runs"),
        (GRAPH | {"launch_blocking": True}, "2.10.0", "cpu", "without PyNative's queue"),
        (AST | {"exec_order": "dfs"}, "2.10.0", "cpu", "on Ascend only"),
        (AST | {"kernel_launch": "capture"}, "2.6.0", "ascend", "came with MindSpore 2.7"),
        (PYNATIVE | {"precision_mode": "force_fp16"}, "2.10.0", "gpu", "setting of CANN"),
        (AST | {"aclnn_global_cache": True}, "2.10.0", "ascend", "graph mode only"),
        (PYNATIVE | {"matmul_hf32": True}, "2.10.0", "cpu", "Ascend's"),
        (PYNATIVE | {"matmul_tf32": True}, "2.10.0", "ascend", "NVIDIA's"),
        (AST | {"format_transform": False}, "2.10.0", "ascend", "only on a GPU"),
    ],
)
def test_what_a_release_does_not_take_is_invalid(config, version, device, sentence):
    """An unknown knob, a wrong value or an unsupported combination is refused with a sentence, before anything runs."""
    with pytest.raises(InvalidConfigError, match=sentence):
        compile_arguments(Config(config), version, device)


@pytest.mark.parametrize(
    ("config", "device", "part", "wanted"),
    [
        (PYNATIVE, "cpu", "variables", {}),
        (
            PYNATIVE | {"pynative_fusion": True},
            "ascend",
            "variables",
            {"MS_DEV_PYNATIVE_FUSION_FLAGS": "--opt_level=1"},
        ),
        (PYNATIVE | {"onednn_isa": "AVX2"}, "cpu", "variables", {"ONEDNN_MAX_CPU_ISA": "AVX2"}),
        (WHOLE | {"graph_pipeline": False}, "cpu", "variables", {"MS_DEV_RUNTIME_CONF": "graph_pipeline:false"}),
        (PYNATIVE | {"launch_blocking": True}, "cpu", "context", PROCESS | {"pynative_synchronize": True}),
        (
            GRAPH | {"kernel_threads": 2, "dispatch_threads": 3},
            "cpu",
            "context",
            {"runtime_num_threads": 2, "inter_op_parallel_num": 3},
        ),
        (
            AST | FUSION | {"graph_kernel_limit": 3, "graph_kernel_transpose": False, "graph_kernel_expand": "norms"},
            "cpu",
            "compiling",
            PROCESS
            | {
                "enable_graph_kernel": True,
                "graph_kernel_flags": "--opt_level=2 --composite_op_limit_size=3 "
                "--enable_expand_ops=LayerNorm,Softmax --disable_cluster_ops=Transpose",
            },
        ),
        (
            AST | FUSION | {"graph_kernel_matmul": True, "graph_kernel_parallel": True, "graph_kernel_stitch": True},
            "ascend",
            "compiling",
            PROCESS
            | {
                "enable_graph_kernel": True,
                "graph_kernel_flags": "--opt_level=2 --enable_cluster_ops=MatMul --enable_parallel_fusion=true "
                "--enable_stitch_fusion=true",
            },
        ),
        (PYNATIVE | {"amp_level": "O0"}, "cpu", "mixed_precision", None),
        (PYNATIVE | {"amp_level": "O2", "amp_dtype": "bfloat16"}, "ascend", "mixed_precision", ("O2", "bfloat16")),
        (
            PYNATIVE | {"precision_mode": "force_fp16", "op_compile": False, "matmul_hf32": True, "conv_hf32": False},
            "ascend",
            "context",
            PROCESS
            | {
                "ascend_config": {
                    "precision_mode": "force_fp16",
                    "jit_compile": False,
                    "matmul_allow_hf32": True,
                    "conv_allow_hf32": False,
                }
            },
        ),
        (
            PYNATIVE | {"conv_algorithm": "performance", "conv_tf32": False, "matmul_tf32": True},
            "gpu",
            "context",
            PROCESS
            | {
                "gpu_config": {
                    "conv_fprop_algo": "performance",
                    "conv_allow_tf32": False,
                    "matmul_allow_tf32": True,
                }
            },
        ),
        (GRAPH | {"memory_optimize_level": "O1"}, "gpu", "context", {"memory_optimize_level": "O1"}),
        (
            AST | {"kernel_launch": "group-4-8"},
            "ascend",
            "calls",
            {"runtime.set_kernel_launch_group": {"thread_num": 4, "kernel_group_num": 8}},
        ),
        (
            GRAPH | {"kernel_launch": "capture", "aclnn_global_cache": True},
            "ascend",
            "calls",
            {
                "runtime.set_kernel_launch_capture": {"enable_capture_graph": True},
                "device_context.ascend.op_tuning.aclnn_cache": {"enable_global_cache": True},
            },
        ),
    ],
)
def test_what_a_knob_becomes(config, device, part, wanted):
    """Each knob lands where MindSpore reads it; a knob at MindSpore's own default sets nothing."""
    assert getattr(compile_arguments(Config(config), "2.10.0", device), part) == wanted


def test_the_options_of_jit_by_device():
    """The order of kernels and the layout of tensors are options of ms.jit."""
    on_ascend = compile_arguments(Config(AST | {"exec_order": "dfs"}), "2.10.0", "ascend").jit
    on_gpu = compile_arguments(Config(AST | {"format_transform": False}), "2.10.0", "gpu").jit
    assert on_ascend["exec_order"] == "dfs"
    assert on_gpu["disable_format_transform"] is True


@pytest.mark.fast_cases("2.10.0-cpu", "2.5.0-ascend")
@each_place
def test_the_space_offers_only_what_the_backend_takes(version, device):
    """No config of the bundled space at its usual depth is refused, on any release and device it can be narrowed to."""
    configs = list(space_of(version, device).configs())
    assert 40 <= len(configs) < 1500
    for config in configs:
        compile_arguments(config, version, device)


@pytest.mark.fast_cases("2.10.0-cpu", "2.5.0-ascend")
@each_place
def test_every_strategy_on_offer_is_taken(version, device):
    """Under traffic, with all that can be known of it, there are shape strategies, and each means something."""
    space = space_of(version, device, known=frozenset({"traffic", "padding"}), preset="quick")
    taken = set()
    for config in (ConfigParts.of(each).settings for each in space.configs()):
        options = compile_arguments(config, version, device).jit or {}
        assert options.get("dynamic") == (1 if config.get("shapes") == "automatic" else None)
        taken.add(config.get("shapes"))
    assert {None, "static", "marked", "bucketed"} <= taken
    assert ("automatic" in taken) == (Version(version) >= Version("2.6"))


def test_what_holds_for_the_process():
    """The settings of a config that MindSpore has for the whole process only, and none at its own default."""
    fused = AST | FUSION | {"kernel_threads": None, "dispatch_threads": 2}
    assert process_knobs(Config(fused)) == ("dispatch_threads",)
    assert process_knobs(Config(PYNATIVE | {"launch_blocking": False, "onednn_isa": "AVX2"})) == ("onednn_isa",)
    assert process_knobs(Config(WHOLE | {"graph_pipeline": False})) == ("graph_pipeline",)
    assert process_knobs(Config(GRAPH | {"memory_optimize_level": "O0"})) == ()


def test_the_space_marks_what_holds_for_the_process():
    """The knobs that a job gets only if it asks are those that the backend finds in a config."""
    knobs = read_space_file(SPACE).knobs.items()
    marked = {name for name, entry in knobs if entry.process and entry.start is None}
    assert marked == {name for name, knob in KNOBS.items() if knob.is_of_process}


@pytest.mark.fast_cases("2.10.0-cpu", "2.5.0-ascend")
@each_place
def test_a_quick_space_is_quick(version, device):
    """Two dozen configs at most, all of which the deeper presets have too."""
    quick = space_of(version, device, preset="quick", tolerance=1e-3)
    assert 4 <= quick.size(100) <= 24
    deeper = space_of(version, device)
    for config in quick.configs():
        assert deeper.walk(lambda name, values, config=config: config.get(name, values[0])).root.items() >= (
            config.root.items()
        )


@pytest.mark.fast_cases("2.10.0-cpu", "2.5.0-ascend")
@each_place
def test_the_backend_takes_whatever_a_deep_space_offers(version, device):
    """A thousand draws of the exhaustive space, and every value of every knob at least once, are taken."""
    space = space_of(version, device, preset="exhaustive")
    generator = random.Random(0)
    offered = {(knob.name, json.dumps(value)) for knob in space.knobs for value in knob.values}
    for _ in range(1000):
        config = space.walk(lambda _, values: generator.choice(values))
        if space.forbidden(config) is None:
            compile_arguments(config, version, device)
            offered -= {(name, json.dumps(value)) for name, value in config.root.items()}
    assert not offered


@pytest.mark.fast_cases("2.10.0-cpu", "2.5.0-ascend")
@each_place
def test_no_knob_is_idle(version, device):
    """Any two values of a knob mean different things to MindSpore: a knob that maps to nothing is a defect."""
    space = space_of(version, device, preset="exhaustive")
    generator = random.Random(0)
    for _ in range(100):
        config = space.walk(lambda _, values: generator.choice(values))
        if space.forbidden(config):
            continue
        for knob in space.knobs:
            if knob.name in config.root:
                others = [Config({**config.root, knob.name: value}) for value in knob.values]
                taken = [meaning for other in others if (meaning := meaning_of(other, version, device)) is not None]
                assert all(one != two for one, two in itertools.combinations(taken, 2)), knob.name


def meaning_of(config, version, device):
    try:
        return asdict(compile_arguments(config, version, device))
    except InvalidConfigError:
        return None


@pytest.mark.parametrize("device", DEVICES)
def test_numerics_can_be_left_alone(device):
    """With a tolerance of nothing no knob of precision is left, and with a wide one each device has some."""
    strict, wide = (space_of("2.10.0", device, preset="exhaustive", tolerance=t) for t in (0.0, math.inf))
    precision = {"amp_dtype", "precision_mode", "matmul_hf32", "matmul_tf32", "enable_graph_kernel"}
    assert {len(knob.values) for knob in strict.knobs if knob.name in precision - {"precision_mode"}} <= {1}
    assert strict.size(10**5) < wide.size(10**5)
    assert not {"O1", "O2", "O3", "auto"} & set(next(k for k in strict.knobs if k.name == "amp_level").values)


def test_each_knob_of_the_space_has_one_row():
    """The space and the backend's table name the same knobs; the numbers of a shape strategy are not the backend's,
    nor is what a process is started with. `capture` is read of studies that had several."""
    entries = read_space_file(SPACE).knobs
    offered = {name for name, entry in entries.items() if name not in STRATEGY_NUMBERS and entry.start is None}
    assert offered == set(KNOBS) - {"capture"}
