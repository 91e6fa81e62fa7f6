"""What only an NPU runs, against a stand-in that was written from the documentation. Never run on an NPU."""

from __future__ import annotations

import logging
import random

import pytest

from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import InvalidConfigError
from autotune.planning.spaces import bundled_space
from autotune.space.load import Circumstances, load_space

ms = pytest.importorskip("mindspore")

from autotune.backends.mindspore import ascend  # noqa: E402
from autotune.backends.mindspore.apply import prepare  # noqa: E402
from autotune.backends.mindspore.backend import MindSporeBackend  # noqa: E402
from tests.stand_ins.mindspore_ascend import StandIn  # noqa: E402

pytestmark = pytest.mark.mindspore
RELEASES = ["2.3.0", "2.5.0", "2.6.0", "2.7.0", "2.9.0", "2.10.0"]
GRAPH = {"execution": "graph", "jit_level": "O0"}


@pytest.fixture
def npu(monkeypatch):
    """A process whose device is an NPU that has run nothing yet."""

    def install(version="2.10.0"):
        stand_in = StandIn(version)
        stand_in.install(monkeypatch)
        MindSporeBackend().prepare("ascend", 0)
        return stand_in

    return install


def set_up(config, changes=None):
    return prepare(ms.nn.Dense(2, 2), Config(config), "infer", UndoLog() if changes is None else changes)


def test_the_device_is_chosen_before_anything_is_set(npu):
    """It is listed by its name, and `set_device` is the first call."""
    stand_in = npu()
    set_up(GRAPH | {"matmul_hf32": True, "aclnn_global_cache": True})
    assert [call[0] for call in stand_in.calls] == ["set_device", "set_context", "aclnn_cache"]
    assert MindSporeBackend().find().devices["ascend"] == "Ascend910B0"
    assert MindSporeBackend().device_name() == "Ascend910B0"


def test_a_release_without_set_device_has_the_context(npu):
    """Before 2.5 the device is an argument of `set_context`."""
    assert npu("2.3.0").target == "Ascend"


@pytest.mark.parametrize("version", RELEASES)
def test_each_release_takes_what_the_space_offers_for_it(monkeypatch, version):
    """Each value of the deepest space is handed over in a form that the release knows, and nothing is ignored."""
    circumstances = Circumstances(version=version, device="ascend", preset="exhaustive", num_cores=64)
    space = load_space(bundled_space("mindspore"), framework="mindspore", circumstances=circumstances)
    draw = random.Random(0)
    left = {(knob.name, repr(value)) for knob in space.knobs for value in knob.values}
    for _ in range(250):
        config = space.walk(lambda _, values: draw.choice(values))
        if space.forbidden(config) is None:
            stand_in = StandIn(version)
            with monkeypatch.context() as here:
                stand_in.install(here)
                stand_in.set_device("Ascend")
                set_up(config.root)
            assert not [call for call in stand_in.calls if call[0] == "ignored"]
            left -= {(name, repr(value)) for name, value in config.root.items()}
    assert not left


def test_a_setting_of_cann_after_the_first_operator_is_refused(npu):
    """MindSpore says in its log only that it may not take effect: a trial would measure something else. Nothing is
    set then."""
    stand_in = npu()
    stand_in.is_initialised = True
    with pytest.raises(InvalidConfigError, match="may ignore jit_compile, precision_mode"):
        set_up(GRAPH | {"precision_mode": "force_fp16", "op_compile": True, "kernel_launch": "group-2-8"})
    assert stand_in.calls == [("set_device", "Ascend")]
    with pytest.raises(InvalidConfigError, match="may ignore MS_DEV_PYNATIVE_FUSION_FLAGS"):
        set_up({"execution": "pynative", "pynative_fusion": True})
    set_up(GRAPH | {"kernel_launch": "group-2-8"})
    assert stand_in.calls[-1] == ("set_kernel_launch_group", 2, 8)


def test_the_context_is_put_back(npu):
    """What the job's author had set before is there again once the config is taken back."""
    stand_in, changes = npu(), UndoLog()
    ms.set_context(ascend_config={"conv_allow_hf32": False})
    set_up(GRAPH | {"matmul_hf32": True}, changes)
    assert ms.get_context("ascend_config") == {"matmul_allow_hf32": True}
    changes.undo()
    assert ms.get_context("ascend_config") == {"conv_allow_hf32": False}
    assert stand_in.calls[-1][0] == "set_context"


def test_what_is_taken_once_stays_as_it_was(npu, caplog):
    """Launches that the job has arranged already are left alone, and one line says so."""
    stand_in = npu()
    ms.runtime.set_kernel_launch_group(thread_num=4, kernel_group_num=8)
    with caplog.at_level(logging.WARNING, logger="autotune"):
        set_up(GRAPH | {"kernel_launch": "group-2-8"})
        set_up(GRAPH | {"kernel_launch": "capture"})
    assert [call for call in stand_in.calls if "launch" in call[0]] == [("set_kernel_launch_group", 4, 8)]
    assert [line for line in caplog.messages if "called before in this process" in line] == caplog.messages
    assert len(caplog.messages) == 2


def test_a_function_that_would_set_nothing_is_refused(npu, monkeypatch):
    """One that the release lacks, and one of CANN's before the device is Ascend."""
    stand_in = npu("2.6.0")
    with pytest.raises(InvalidConfigError, match=r"MindSpore 2.6.0 has no mindspore.runtime.set_kernel_launch_capture"):
        ascend.call("runtime.set_kernel_launch_capture", {"enable_capture_graph": True})
    stand_in = StandIn()
    stand_in.install(monkeypatch)
    with pytest.raises(InvalidConfigError, match="sets nothing before the device is Ascend"):
        ascend.call("device_context.ascend.op_tuning.aclnn_cache", {"enable_global_cache": True})
    assert stand_in.calls == []


@pytest.mark.parametrize("variable", ["ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH"])
def test_operators_of_cann_are_cached_in_the_trial(monkeypatch, tmp_path, variable):
    """A cold trial does not find what CANN compiled for the one before; without CANN nothing is set."""
    for name in ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH"):
        monkeypatch.delenv(name, raising=False)
    backend = MindSporeBackend()
    assert "ASCEND_CACHE_PATH" not in backend.cache_variables("/trial/cache")
    assert backend.compile_cache.build_tools() == {}
    (tmp_path / "8.1.RC1").mkdir()
    (tmp_path / "latest").symlink_to(tmp_path / "8.1.RC1")
    monkeypatch.setenv(variable, str(tmp_path / "latest"))
    assert backend.cache_variables("/trial/cache")["ASCEND_CACHE_PATH"] == "/trial/cache"
    assert backend.compile_cache.build_tools() == {"CANN": str(tmp_path / "8.1.RC1")}


def test_the_stand_in_refuses_what_the_documentation_says(npu):
    """Wrong values, wrong order, and what goes only once: the tests above would see it."""
    stand_in = npu()
    with pytest.raises(ValueError, match="must be one of"):
        ms.set_context(ascend_config={"precision_mode": "fast"})
    with pytest.raises(ValueError, match="key of argument"):
        ms.set_context(ascend_config={"turbo": True})
    with pytest.raises(ValueError, match="evenly divisible"):
        ms.runtime.set_kernel_launch_group(3, 8)
    with pytest.raises(RuntimeError, match="can not be modified"):
        ms.set_device("GPU")
    ms.runtime.set_kernel_launch_capture(True)
    with pytest.raises(RuntimeError, match="together"):
        ms.runtime.set_kernel_launch_group(2, 8)
    stand_in.is_initialised = True
    ms.set_context(ascend_config={"jit_compile": True})
    assert stand_in.calls[-1] == ("ignored", "ascend_config", {"jit_compile": True})
