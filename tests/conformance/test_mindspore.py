"""Jobs with MindSpore: see `jobs` and `mindspore_kit`."""

from __future__ import annotations

import json

import pytest

from tests.stand_ins.child import said_by

pytest.importorskip("mindspore")

from tests.conformance.mindspore_kit import CASES, MindSporeKit

pytestmark = pytest.mark.mindspore

JOB = "import sys\nfrom tests.conformance.mindspore_kit import main\nmain(*sys.argv[1:])\n"
SOME = [
    "holds_the_models_own", "all_is_as_before_after_the_block", "a_right_result_is_checked", "follows: set_data",
    "a_call_that_changes_what_it_reads_is_made_once: 0",
]  # fmt: skip
TORN = [name for name in CASES if name.startswith("no_call_is_torn")]


@pytest.fixture(scope="module", params=["jit", "graph"])
def found(request, tmp_path_factory):
    """Case -> what it raised; all from one process for each way of compiling."""
    return tried(tmp_path_factory.mktemp(request.param), request.param, list(CASES), 225)


def tried(folder, config, names, num_calls):
    return said_by(folder, JOB, json.dumps(MindSporeKit.CONFIGS[config]), json.dumps(names), num_calls)


def test_some_of_it(tmp_path):
    """A case of each sort: what the slow tests below ask of all of them."""
    assert tried(tmp_path, "jit", SOME, 0) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_job(found, name):
    assert name not in found, found[name]


@pytest.mark.soak
@pytest.mark.parametrize("config", MindSporeKit.CONFIGS)
def test_no_call_of_many_is_torn(tmp_path, config):
    """10,000 calls, for each kind of config."""
    assert tried(tmp_path, config, TORN, 2500) == {}
