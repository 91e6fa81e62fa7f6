"""The source of a notebook's function: what is written stands alone, and what cannot be written is refused."""

from __future__ import annotations

import functools
import runpy

import pytest

from autotune.api.function_source import source_of
from autotune.errors import InputError


def run_alone(source, tmp_path):
    """The names of a module that holds nothing but the written text."""
    path = tmp_path / "written.py"
    path.write_text(source.text)
    return runpy.run_path(str(path))


def test_the_text_has_all_that_the_function_uses(notebook, tmp_path):
    """Imports, constants, functions and classes of other cells, in an order in which they can be run."""
    notebook.run(
        "import os.path\nimport json as j\nfrom fractions import Fraction as F\nSIZES = {'a': [1, 2.5]}\nN = 3\n"
    )
    notebook.run("def scaled(x, by=N):\n    return x * by\n\ndef decorator(cls):\n    return cls\n")
    notebook.run("class Base:\n    def one(self):\n        return F(1, 2)\n")
    notebook.run(
        "@decorator\nclass Net(Base):\n    '''A net.'''\n    def __call__(self, x):\n        return scaled(x)\n"
    )
    names = notebook.run(
        "def build(rows: Undefined = N) -> Net:\n"
        "    total = [j.dumps(SIZES) for _ in range(rows)]\n"
        "    return Net(), (os.path.join('a', 'b'), total)\n"
    )
    source = source_of(names["build"])
    alone = run_alone(source, tmp_path)
    model, (path, total) = alone["build"]()
    assert (model(2), model.one() * 2, path, total) == (6, 1, "a/b", ['{"a": [1, 2.5]}'] * 3)
    assert {"os", "os.path", "json", "fractions"} >= source.modules >= {"os", "json", "fractions"}
    assert source.text == source_of(names["build"]).text, "the same function gives the same text"


def test_a_dataclass_of_a_cell(notebook, tmp_path):
    """Found by the method that the cell has written, and not by those that Python has made for it."""
    names = notebook.run(
        "from dataclasses import dataclass\n"
        "@dataclass\nclass Sizes:\n    rows: int = 2\n    def double(self):\n        return 2 * self.rows\n"
        "def build():\n    return Sizes(3).double()\n"
    )
    assert run_alone(source_of(names["build"]), tmp_path)["build"]() == 6


def test_functions_that_call_each_other(notebook, tmp_path):
    """A cycle of names is no reason to refuse."""
    names = notebook.run(
        "def even(n):\n    return n == 0 or odd(n - 1)\n"
        "def odd(n):\n    return n != 0 and even(n - 1)\n"
        "def build():\n    return even, build\n"
    )
    even, again = run_alone(source_of(names["build"]), tmp_path)["build"]()
    assert even(4)
    assert again.__name__ == "build"


def test_a_submodule_that_is_reached_through_its_package(notebook):
    """`import xml` of a notebook that has imported `xml.dom.minidom` elsewhere is not enough in a new process."""
    names = notebook.run("import xml.dom.minidom\ndef build():\n    return xml.dom.minidom.Document()\n")
    assert "import xml.dom.minidom" in source_of(names["build"]).text


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("net = object()\ndef build():\n    return net, 1\n", "uses net, a object"),
        ("def build():\n    return nothing\n", "uses nothing, which is not defined"),
        ("x = float('nan')\ndef build():\n    return x\n", "uses x, a float"),
        ("build = lambda: 1\n", "a lambda has no name"),
        (
            "def outer(v):\n    def build():\n        return v\n    return build\nbuild = outer(3)\n",
            "uses v of the function",
        ),
        ("def first():\n    return 1\nother = first\ndef build():\n    return other()\n", "another name of first"),
        ("exec('def build():\\n    return 1')\n", "the source of build is not available"),
    ],
)
def test_what_lives_in_this_process_only_is_refused(notebook, cell, words):
    """One sentence that names what cannot be written, and the way out."""
    with pytest.raises(InputError, match=words) as refused:
        source_of(notebook.run(cell)["build"])
    assert refused.value.tip


def test_a_decorated_function(notebook, tmp_path):
    """The source has the decorator; what it leaves is not taken for a closure of the user's."""
    notebook.names["functools"] = functools
    names = notebook.run(
        "def twice(f):\n    @functools.wraps(f)\n    def call():\n        return 2 * f()\n    return call\n"
        "@twice\ndef build():\n    return 4\n"
    )
    assert run_alone(source_of(names["build"]), tmp_path)["build"]() == 8


def test_the_body_of_a_function(tmp_path):
    """A function that a test or another function defines is written without its indentation."""

    def build(rows=2):
        return [rows]

    assert run_alone(source_of(build), tmp_path)["build"]() == [2]
