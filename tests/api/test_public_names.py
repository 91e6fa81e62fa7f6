"""What `autotune` offers: every name is there, documented, and costs nothing before it is asked for."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import autotune
from autotune.errors import InputError
from autotune.plugins.diagnose import command as diagnosing
from tests.test_architecture import FRAMEWORKS, loaded_by

CALLS = ("tune", "resume", "load_study", "verify", "compare", "diagnose")


def test_every_public_name_is_there_and_has_a_type():
    """Type checkers see the very objects that are imported when they are asked for; `dir` lists them."""
    assert set(autotune.__all__) <= set(dir(autotune))
    assert set(autotune._PLACES) < set(autotune.__all__)
    tree = ast.parse(Path(autotune.__file__).read_text())
    typing, *_ = (node for node in tree.body if isinstance(node, ast.If))
    for_types = {
        alias.name: f"{node.module}.{alias.name}" if alias.name == "events" else node.module
        for node in typing.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for name, place in autotune._PLACES.items():
        assert getattr(autotune, name).__doc__, name
        assert for_types[name] == place
    with pytest.raises(AttributeError, match="nothing"):
        autotune.nothing  # noqa: B018


@pytest.mark.parametrize("name", CALLS)
def test_every_argument_is_explained(name):
    """In the docstring, by its name."""
    function = getattr(autotune, name)
    told = function.__doc__
    if name in ("resume", "compare"):
        told += autotune.tune.__doc__ + autotune.verify.__doc__
    shared = {"studies_dir", "storage"}
    missing = [each for each in inspect.signature(function).parameters if f"`{each}`" not in told]
    assert set(missing) <= shared | {"file", "name", "study"}


def test_every_event_is_explained_and_offered():
    """`autotune.events` has all that a callback may receive."""
    from typing import get_args

    offered = {getattr(autotune.events, name) for name in autotune.events.__all__}
    assert set(get_args(autotune.events.Event)) <= offered
    assert all(each.__doc__ for each in offered if inspect.isclass(each))


def test_a_job_pays_for_the_job_alone(tmp_path):
    """Loading a config imports neither the search engine nor a framework; the API is imported when it is used."""
    loaded = loaded_by("import autotune; autotune.load('none.yaml')", tmp_path)
    assert not loaded & (FRAMEWORKS | {"optuna", "sqlalchemy", "scipy", "typer", "rich"})


def test_importing_the_api_loads_no_framework_and_no_cluster(tmp_path):
    """A notebook's own framework is its own affair, and most runs use no cluster."""
    calls = "import autotune; autotune.tune; autotune.verify; autotune.diagnose"
    assert not loaded_by(f"{calls}; assert not [n for n in sys.modules if 'plugins.ray' in n]", tmp_path) & FRAMEWORKS


def test_diagnose_asks_for_what_was_given(monkeypatch, tmp_path, notebook):
    """Arguments and knobs reach the examiner as the command line's do; a notebook's function lies in a file."""
    asked = []

    def make_case(request, knobs):
        (file, _, function) = request.build.rpartition(":")
        asked.append((Path(file).exists(), function, request.arguments, list(knobs)))
        raise InputError("enough")

    monkeypatch.setattr(diagnosing, "make_case", make_case)
    build = notebook.run("def build(rows):\n    return rows\n")["build"]
    with pytest.raises(InputError, match="enough"):
        autotune.diagnose(build, framework="fake", arguments={"rows": 3}, knobs={"mode": "x", "fullgraph": True})
    assert asked == [(True, "build", {"rows": 3}, ["mode='x'", "fullgraph=True"])]
