"""What only an NPU runs, against a stand-in that was written from the documentation. Never run on an NPU."""

from __future__ import annotations

import importlib
import os
import sys
from types import SimpleNamespace

import pytest

from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.errors import InvalidConfigError

torch = pytest.importorskip("torch")

from autotune.backends.torch import apply as applied  # noqa: E402
from autotune.backends.torch import npu  # noqa: E402
from autotune.backends.torch.backend import TorchBackend  # noqa: E402
from autotune.backends.torch.compile_cache import cache_variables  # noqa: E402
from tests.stand_ins.torch_npu import StandIn  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def installed(monkeypatch):
    """torch_npu as it is installed on a machine with an NPU; the models of these tests are where it would be."""

    def install(**release):
        stand_in = StandIn(**release)
        stand_in.install(monkeypatch)
        monkeypatch.setattr(applied, "device_of", lambda model: SimpleNamespace(type="npu"))
        return stand_in

    torch._dynamo.reset()
    yield install
    torch._dynamo.reset()


def outputs_of(settings):
    """What two calls gave, read after both."""
    torch.manual_seed(0)
    model, changes = torch.nn.Linear(4, 4).eval(), UndoLog()
    step = TorchBackend().compile(model, Config({"execution": "compile", **settings}), changes)
    with torch.no_grad():
        first, second = step(torch.ones(2, 4)), step(torch.zeros(2, 4))
        assert torch.equal(first, model(torch.ones(2, 4)))
        assert torch.equal(second, model(torch.zeros(2, 4)))


def test_without_torch_npu_there_is_no_npu():
    """Nothing is imported, no device is listed, and the backends are refused with those that there are."""
    assert npu.device_label() is None
    assert "ACL_OP_COMPILER_CACHE_DIR" not in cache_variables("somewhere")
    with pytest.raises(InvalidConfigError, match="has no 'npugraph_ex', only"):
        outputs_of({"backend": "npugraph_ex"})
    with pytest.raises(InvalidConfigError, match="torchair cannot be imported"):
        outputs_of({"backend": "torchair"})


def test_the_device_is_there_once_torch_npu_is_imported(installed):
    """The import comes before the first question to the device; its name is torch_npu's. Others are torch's own."""
    stand_in = installed()
    assert torch.get_device_module("cpu") is torch.cpu
    assert npu.device_label() == "Ascend910B0"
    assert stand_in.calls == [("import", "torch_npu")]
    assert TorchBackend().find().devices["ascend"] == "Ascend910B0"


@pytest.mark.parametrize("late", [False, True], ids=["before the import", "after the import"])
def test_a_trial_falls_back_on_nothing_silently(installed, monkeypatch, late):
    """An operator that inductor cannot compile for the NPU is an error in a trial, whenever torch_npu was imported."""
    installed()
    monkeypatch.delenv("INDUCTOR_ASCEND_AUTO_FALLBACK", raising=False)
    if late:
        importlib.import_module("torch_npu._inductor.config")
    npu.prepare_trial()
    assert not importlib.import_module("torch_npu._inductor.config").auto_fallback
    assert os.environ["INDUCTOR_ASCEND_AUTO_FALLBACK"] == ""


def test_operators_of_cann_are_cached_in_the_trial(installed):
    """A cold trial does not find what CANN compiled for the one before."""
    installed()
    variables = cache_variables("/trial/cache")
    assert variables["ACL_OP_COMPILER_CACHE_DIR"] == variables["ASCEND_CACHE_PATH"] == "/trial/cache/cann"


@pytest.mark.parametrize(
    ("settings", "called"),
    [
        ({"backend": "npugraph_ex"}, ("npugraph_ex", {"options": {"clone_output": True}})),
        ({"backend": "npugraphs"}, ("npugraphs", {})),
        ({"backend": "torchair", "torchair_mode": "reduce-overhead"}, ("get_npu_backend", "reduce-overhead")),
        ({"backend": "torchair", "torchair_mode": "max-autotune"}, ("get_npu_backend", "max-autotune")),
    ],
    ids=str,
)
def test_outputs_of_a_captured_graph_are_the_callers_own(installed, settings, called):
    """Each backend gets the arguments that its documentation names, and no call changes what an earlier one gave."""
    stand_in = installed()
    importlib.import_module("torch_npu")
    outputs_of(settings)
    assert called in stand_in.calls


def test_the_compiler_of_operators_is_an_option_of_one_compile(installed, monkeypatch):
    """An entry of inductor's settings that torch_npu makes when they are first copied; without it it is refused."""
    installed()
    settings = {"backend": "inductor", "mode": "default", "npu_backend": "mlir"}
    with pytest.raises(InvalidConfigError, match=r"has no setting torch\._inductor\.config\.npu_backend"):
        outputs_of(settings)
    config, seen = importlib.import_module("torch._inductor.config"), []
    copy = config.get_config_copy()
    monkeypatch.setattr(type(config), "get_config_copy", lambda self: {**copy, "npu_backend": "default"})
    monkeypatch.setattr(applied, "compiler", lambda arguments, *_: seen.append(arguments) or (lambda model: model))
    outputs_of(settings)
    assert seen[0]["options"]["npu_backend"] == "mlir"


def test_the_stand_in_overwrites_as_the_documentation_says(installed):
    """Without the copies the second call changes the first one's outputs: the test above would see it."""
    installed()
    importlib.import_module("torch_npu")
    step = torch.compile(lambda x: x + 1, backend="npugraphs")
    kept = step(torch.zeros(2))
    step(torch.ones(2))
    assert kept.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("modes", [("max-autotune",), None], ids=["26.0 and newer", "6.0 and older"])
def test_a_mode_that_the_release_lacks_is_invalid(installed, modes):
    """TorchAir's reduce-overhead came with 7.0 and went with 26.0: there the trial is invalid, with a reason."""
    installed(modes=modes)
    with pytest.raises(InvalidConfigError, match="this release of torch_npu refuses 'reduce-overhead'"):
        outputs_of({"backend": "torchair", "torchair_mode": "reduce-overhead"})


def test_torchair_is_there_after_torch_npu_only(installed):
    """It is no package of its own: torch_npu is imported first."""
    stand_in = installed()
    assert "torchair" not in sys.modules
    outputs_of({"backend": "torchair"})
    assert stand_in.calls[0] == ("import", "torch_npu")
