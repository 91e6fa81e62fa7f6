"""Jobs with PyTorch: see `jobs`."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.conformance import jobs  # noqa: E402
from tests.conformance.torch_kit import TorchKit  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("fresh_compiler")]

CASES = jobs.cases_of(TorchKit)
UNDER = {
    "follows": ("frozen", "blocks", "left"),
    "does_what_a_patched_model_does": ("frozen", "captured", "blocks", "left"),
    "others_of_its_class_have_calls_of_their_own": ("eager",),
    "a_call_that_changes_what_it_reads_is_made_once": ("captured",),
    "a_right_result_is_checked": ("captured", "blocks"),
    "a_wrong_result_is_given_up": ("captured",),
}
"""Case -> the only configs under which it is tried."""
FAST = {
    "frozen": (
        "follows: load_state_dict", "follows: fused Adam", "follows: a plain number", "no_call_is_torn: a fallback",
    ),
    "blocks": (
        "follows: load_state_dict", "does_what_a_patched_model_does: forward() of the model",
        "a_right_result_is_checked",
    ),
    "left": ("follows: another parameter",),
    "captured": (
        "does_what_a_patched_model_does: a hook of a submodule", "does_what_a_patched_model_does: forward() of a class",
    ),
}  # fmt: skip
COMPILING = [name for name in TorchKit.CONFIGS if name != "eager"]
"""Configs under which cases are tried that `UNDER` does not name."""


def pairs():
    for name in CASES:
        for config in UNDER.get(name.partition(":")[0], COMPILING):
            is_fast = name in FAST.get(config, ()) or config == "eager" or (":" not in name and config == "captured")
            marks = () if is_fast or name.startswith("a_call_that_changes") else pytest.mark.slow
            yield pytest.param(config, name, id=f"{config}-{name}", marks=marks)


@pytest.mark.parametrize(("config", "name"), list(pairs()))
def test_a_job(tmp_path, config, name):
    kit = TorchKit(TorchKit.CONFIGS[config], tmp_path)
    jobs.run(CASES[name], kit)
