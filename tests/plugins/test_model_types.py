"""docs/model-types.md: which model types of transformers do not run under `hf:TYPE`."""

from __future__ import annotations

import importlib
import importlib.util
import random
import re
import sys
from types import ModuleType

import pytest

from autotune.errors import InputError
from tests.conftest import REPOSITORY

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.torch


def _script() -> ModuleType:
    """docs/site/model_types.py, which is in no package."""
    spec = importlib.util.spec_from_file_location("model_types", REPOSITORY / "docs" / "site" / "model_types.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["model_types"] = module
    spec.loader.exec_module(module)
    return module


SCRIPT = _script()
PAGE = SCRIPT.PAGE.read_text(encoding="utf-8")
TYPES = SCRIPT.types_of(PAGE)
REFUSED = sorted(TYPES)
RUN = sorted(transformers.CONFIG_MAPPING.keys() - TYPES.keys())
RELEASE = re.search(r"transformers ([\d.]+)", PAGE)[1]

of_that_release = pytest.mark.skipif(
    transformers.__version__ != RELEASE, reason=f"the page is of transformers {RELEASE}, here is another"
)


def test_the_page_says_of_each_type_what_to_do():
    """At least 600 run; each of the others has a reason and a way out. The page is what its script makes of it."""
    number, of, releases = re.search(r"^(\d+) of (\d+) run \((.*)\)\. \[Models", PAGE, re.M).groups()
    assert int(number) >= 600
    assert all(TYPES[name].why and TYPES[name].way_out for name in REFUSED)
    running = dict.fromkeys(f"type {n}" for n in range(int(of) - len(REFUSED)))
    assert SCRIPT.page_of(TYPES | running, releases) == PAGE


@of_that_release
def test_the_page_refuses_types_that_there_are():
    """Those of the release that it is of, whose number it says."""
    assert TYPES.keys() < set(transformers.CONFIG_MAPPING.keys())
    assert f" of {len(transformers.CONFIG_MAPPING.keys())} run" in PAGE


@pytest.mark.slow
@of_that_release
@pytest.mark.parametrize("name", random.Random(43).sample(RUN, 20))
def test_a_type_runs_as_the_page_says(name):
    """A sample, the same each time; the script makes the whole list."""
    assert SCRIPT.tried(name) is None


@pytest.mark.slow
@of_that_release
@pytest.mark.parametrize("name", random.Random(43).sample(REFUSED, 6))
def test_a_type_is_refused_in_a_sentence(name):
    """No exception of transformers gets through, and a tip says what to do."""
    build = importlib.import_module("autotune.plugins.hubs.torch.hugging_face").build
    with pytest.raises(InputError, match=f"hf:{name}': ") as caught:
        build(name)
    assert caught.value.tip
