"""What may be given to be tuned: names, functions of files, of notebooks, live models; and what may not."""

from __future__ import annotations

import functools
import importlib
import json
import sys
from pathlib import Path

import pytest

from autotune.api.given_model import named_model
from autotune.errors import AutotuneError, InputError
from autotune.question.question import Question
from tests.api.conftest import Notebook

NEVER = pytest.fail


@pytest.fixture
def text_of(tmp_path, monkeypatch):
    """The text that stands for a model, and the request."""
    monkeypatch.chdir(tmp_path)

    def text_of(build, inputs=None, notify=NEVER, **settings):
        request = Question.of({"framework": "fake", "device": "cpu", **settings})
        with named_model(build, None if inputs is None else [inputs], request, Path("studies"), notify) as named:
            return named.build, named

    return text_of


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """A module of the user's: its text in a file below the test's folder, imported."""
    monkeypatch.syspath_prepend(str(tmp_path / "home"))
    made = []

    def imported(name, text):
        path = tmp_path / "home" / (name.replace(".", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        for package in path.relative_to(tmp_path / "home").parents[:-1]:
            (tmp_path / "home" / package / "__init__.py").touch()
        path.write_text(text)
        importlib.invalidate_caches()
        made.append(name)
        return importlib.import_module(name)

    yield imported
    for name in made:
        sys.modules.pop(name, None)


def test_names_stay_as_they_are(text_of):
    """What `--model` takes; nothing is written."""
    assert text_of("vit")[0] == "vit"
    assert not Path("studies").exists()


def test_a_function_of_a_file_is_named_by_its_place(text_of, imported, tmp_path):
    """Of a plain module by its file; of a package by its dotted name and the folder of the package."""
    module = imported("my_net", "def build():\n    return 1\n")
    text, named = text_of(module.build)
    assert text == f"{tmp_path / 'home' / 'my_net.py'}:build"
    assert named.search_path is None
    module = imported("my_package.nets.small", "def build():\n    return 1\n")
    text, named = text_of(module.build)
    assert (text, named.search_path) == ("my_package.nets.small:build", tmp_path / "home")
    assert not Path("studies").exists()


def test_a_function_of_a_notebook_is_written_into_the_study(text_of, notebook):
    """Under a name made of its content: the same function is the same file, another one is another."""
    build = notebook.run("import json\nN = 3\ndef build():\n    return json, N\n")["build"]
    text, named = text_of(build)
    assert named.study == "build-fake-cpu"
    path = Path(text.partition(":")[0])
    assert path.parent == Path("studies/build-fake-cpu")
    assert "N = 3" in path.read_text()
    assert text_of(build)[0] == text
    other = notebook.run("N = 4\n") and notebook.run("def build():\n    return N\n")["build"]
    assert text_of(other, study="mine")[0].startswith("studies/mine/build_")


def test_nothing_is_left_where_no_study_comes_of_it(text_of, notebook, tmp_path):
    """What was written is removed again, and nothing else."""
    build = notebook.run("def build():\n    return 1\n")["build"]
    request = Question(framework="fake", device="cpu", study="s")
    folder = tmp_path / "studies" / "s"

    def fail():
        with named_model(build, None, request, tmp_path / "studies", NEVER):
            assert len(list(folder.glob("build_*.py"))) == 1
            raise InputError("no study")

    with pytest.raises(InputError, match="no study"):
        fail()
    assert not folder.exists()
    folder.mkdir()
    (folder / "notes.txt").touch()
    with pytest.raises(InputError, match="no study"):
        fail()
    assert [each.name for each in folder.iterdir()] == ["notes.txt"]


def test_modules_that_only_this_process_finds(text_of, notebook, imported):
    """A notebook that changed `sys.path` is told so at once, and not by a trial."""
    notebook.names["my_helpers"] = imported("my_helpers", "")
    build = notebook.run("def build():\n    return my_helpers\n")["build"]
    with pytest.raises(InputError, match="build needs my_helpers, which a new Python does not find") as refused:
        text_of(build)
    assert "PYTHONPATH" in refused.value.tip
    assert not Path("studies").exists()
    folder = str(Path(sys.modules["my_helpers"].__file__).parent)
    assert text_of(build, env={"PYTHONPATH": folder})[0]


class Callable:
    def __call__(self):
        return 1

    def method(self):
        return 1


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (Callable, "Callable is not a plain function"),
        (Callable().method, "method is not a plain function"),
        (functools.partial(json.dumps, 1), "partial has no source"),
        (Callable(), "a Callable cannot be tuned"),
        (3, "an int cannot be tuned"),
        (len, "cannot be tuned"),
    ],
)
def test_what_cannot_be_tuned(text_of, build, words):
    """One sentence and what to give instead."""
    with pytest.raises(InputError, match=words) as refused:
        text_of(build)
    assert refused.value.tip


def test_inputs_belong_to_a_live_model(text_of, notebook):
    """A function returns its own."""
    for build in ("vit", notebook.run("def build():\n    return 1\n")["build"]):
        with pytest.raises(InputError, match="inputs are given with a live model"):
            text_of(build, inputs=(1,))
    with pytest.raises(InputError, match="no model of an imported framework"):
        text_of(Callable(), inputs=(1,))


def test_a_study_in_a_notebook_goes_on(tune, scripted):
    """The same cell, run again, finds its study; a changed cell is told that the study is another's; the sources of
    both stay apart."""
    cell = "import numpy as np\ndef build():\n    return (lambda x: x + {}), np.ones(3)\n"
    build = Notebook().run(cell.format(1))["build"]
    assert len(tune(build, trials=1).trials()) == 1
    assert len(tune(Notebook().run(cell.format(1))["build"], trials=2).trials()) >= 2
    with pytest.raises(AutotuneError, match="different settings"):
        tune(Notebook().run(cell.format(2))["build"], trials=2)
    assert len(list(Path("studies/build-fake-cpu").glob("build_*.py"))) == 1
