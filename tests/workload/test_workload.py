"""From a named function to a model and its inputs: found where the operator said, or a sentence says why not."""

from __future__ import annotations

import hashlib
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from autotune.config import Scalar
from autotune.errors import InputError
from autotune.workload.arguments import Arguments
from autotune.workload.build import _READ, Built, build
from autotune.workload.workload import Task, Workload, file_reference, split_reference

_numbers = itertools.count()
Make = Callable[..., Workload]


@pytest.fixture(autouse=True)
def _imports_are_undone(tmp_path: Path) -> Iterator[None]:
    """Building imports the operator's code into this process; a trial's child would simply end."""
    path = list(sys.path)
    yield
    sys.path[:] = path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def in_file(tmp_path: Path) -> Make:
    """A workload whose function is in a file with this source."""

    def make(
        source: str, *, function: str = "f", arguments: dict[str, Scalar] | None = None, seed: int = 0
    ) -> Workload:
        path = tmp_path / f"model_{next(_numbers)}.py"
        path.write_text(source)
        return workload(f"{path}:{function}", tmp_path, arguments=arguments or {}, seed=seed)

    return make


def workload(reference: str, search_path: Path, **fields: Any) -> Workload:
    return Workload(
        model="my-model", reference=reference, framework="fake", device="cpu", search_path=str(search_path), **fields
    )


def answer(built: Built) -> Any:
    return built.inputs.call(built.model)


def test_a_function_in_a_package(tmp_path: Path) -> None:
    """`package.module:function` is found from where the user started the tool, wherever the child stands."""
    package = tmp_path / f"package_{next(_numbers)}"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "net.py").write_text("from .sizes import SIZE\ndef make():\n    return (lambda x: x * SIZE), 7\n")
    (package / "sizes.py").write_text("SIZE = 6\n")
    assert answer(build(workload(f"{package.name}.net:make", tmp_path))) == 42


def test_a_file_imports_its_neighbours(tmp_path: Path) -> None:
    """A model's file can import the files beside it, as it does when it is run as a script."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    neighbour = f"neighbour_{next(_numbers)}"
    (folder / f"{neighbour}.py").write_text("VALUE = 42\n")
    (folder / "uses_it.py").write_text(f"import {neighbour} as n\ndef f():\n    return (lambda x: n.VALUE), 0\n")
    assert answer(build(workload(f"{folder}/uses_it.py:f", tmp_path))) == 42


def test_a_file_may_define_dataclasses(in_file: Make) -> None:
    """The file is a proper module, known by name, so that what looks itself up there (dataclasses, pickle) works."""
    source = (
        "from __future__ import annotations\nimport dataclasses, pickle\n@dataclasses.dataclass\nclass Size:\n"
        "    n: int\ndef f():\n    return (lambda x: x.n), pickle.loads(pickle.dumps(Size(3)))\n"
    )
    assert answer(build(in_file(source))) == 3


@pytest.mark.parametrize(
    ("returned", "message", "tip"),
    [
        ("None", "returned a NoneType", "(model, inputs)"),
        ("model", "returned a function", "(model, inputs)"),
        ("[model, 1]", "returned a list of 2", "(model, inputs)"),
        ("(model,)", "returned a tuple of 1", "(model, inputs)"),
        ("(model, 1, [], [])", "returned a tuple of 4", "(model, inputs, more_inputs)"),
        ("(1, 1)", "returned an int as the model, which cannot be called", ""),
        ("(model, 1, {})", "returned a dict as more_inputs; it must be a list", ""),
        ("(model, 1, 'abc')", "returned a str as more_inputs; it must be a list", ""),
        ("(model, 1, None)", "returned a NoneType as more_inputs; it must be a list", ""),
    ],
)
def test_a_wrong_return_is_a_sentence(in_file: Make, returned: str, message: str, tip: str) -> None:
    """What the function returned is said in words, with the model's name as the operator gave it."""
    with pytest.raises(InputError) as caught:
        build(in_file(f"def model(x):\n    return x\ndef f():\n    return {returned}\n"))
    assert str(caught.value).startswith("my-model returned a")
    assert message in str(caught.value)
    assert tip in (caught.value.tip or "")


def test_a_dict_says_the_same_and_more(in_file: Make) -> None:
    """Under the names of a tuple's parts; regions and variants are what only a dict can say."""
    source = (
        "def model(x):\n    return x + 1\ndef other(model): ...\ndef f():\n    return {'model': model, 'inputs': 41, "
        "'more_inputs': [1], 'regions': ['a.*', 'a.*', 'b'], 'variants': {'kind': {'plain': None, 'other': other}}}\n"
    )
    built = build(in_file(source))
    assert answer(built) == 42
    assert [each.call(built.model) for each in built.more_inputs] == [2]
    assert built.regions == ("a.*", "b")
    assert [(value, callable(function)) for value, function in built.variants["kind"].items()] == [
        ("plain", False),
        ("other", True),
    ]
    plain = build(in_file("def f():\n    return {'model': print, 'inputs': 0}\n"))
    assert (plain.regions, plain.variants, plain.more_inputs) == (None, {}, ())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("'region': ['a']", "returned a mapping with 'region'"),
        ("'model': 3", "returned an int as the model, which cannot be called"),
        ("'more_inputs': 3", "returned an int as more_inputs"),
        ("'regions': [1]", "returned a list of 1 as regions"),
        ("'variants': {'a b': {'plain': None, 'x': print}}", "the variant 'a b' needs a name"),
        ("'variants': {'a': {'plain': None}}", "the variant a must have the model as it is first"),
        ("'variants': {'a': {'plain': None, 'x': None}}", "the variant a=x is a NoneType"),
        ("'variants': {'a': {'plain': None, 1: print}}", "the variant a has a value whose name is no text"),
    ],
)
def test_a_wrong_dict_is_a_sentence(in_file: Make, more: str, message: str) -> None:
    """A key that means nothing and a value of the wrong kind are named, with the model."""
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        build(in_file(f"def f():\n    return {{'model': print, 'inputs': 0, {more}}}\n"))
    assert str(caught.value).startswith("my-model")


_DECLARED = {
    "more_inputs": "[1]", "compare": "{'*': 1e-3}", "regions": "('a.*',)",
    "variants": "{'kind': {'plain': None, 'other': print}}", "padding": "{'batch': 0}", "gradients": "True",
    "reset": "print",
}  # fmt: skip
_WITHOUT_EFFECT = {
    "infer": set[str](),
    "train": {"compare", "regions", "variants", "padding", "reset"},
    "generate": set(_DECLARED),
}


@pytest.mark.parametrize("task", get_args(Task))
@pytest.mark.parametrize("key", _READ)
def test_no_declaration_is_dropped_without_a_word(in_file: Make, task: Task, key: str) -> None:
    """What a task cannot honour is refused in a sentence that names it; all else reaches the trial."""
    of_task = {"infer": "", "train": "'loss': print,", "generate": "'generate': {'prompts': [4], 'new_tokens': 2},"}
    declared = f"{of_task[task]} '{key}': {_DECLARED[key]}"
    source = f"def f():\n    return {{'model': print, 'inputs': 1, {declared}}}\n"
    workload = in_file(source).model_copy(update={"task": task})
    if key not in _WITHOUT_EFFECT[task]:
        assert getattr(build(workload), key)
        return
    with pytest.raises(InputError, match=f"'{key}' that my-model returned cannot be used, since "):
        build(workload)


@pytest.mark.parametrize("missing", ["model", "inputs"])
def test_a_dict_without_a_needed_key(in_file: Make, missing: str) -> None:
    """A model and its inputs are the least that a function returns."""
    held = {"model": "print", "inputs": "0"}
    del held[missing]
    ((name, value),) = held.items()
    with pytest.raises(InputError, match=f"task='infer': my-model.* returned no {missing}"):
        build(in_file(f"def f():\n    return {{{name!r}: {value}}}\n"))


def test_a_missing_function_lists_those_there_are(in_file: Make) -> None:
    """A misspelt function names the public functions of the file, and nothing else of it."""
    source = "import json\nSIZE = 3\ndef small(): ...\ndef large(): ...\ndef _private(): ...\nclass Net: ...\n"
    with pytest.raises(InputError, match=r"has no function smal(\n|$)") as caught:
        build(in_file(source, function="smal"))
    assert caught.value.tip == "it has: large, small"
    with pytest.raises(InputError) as caught:
        build(in_file("SIZE = 3\n"))
    assert caught.value.tip == "it has: none"


def test_a_name_that_is_no_function(in_file: Make) -> None:
    """A name that stands for something that cannot be called says what it is."""
    with pytest.raises(InputError, match=":SIZE is an int, not a function"):
        build(in_file("SIZE = 3\n", function="SIZE"))


PARSER = "import argparse, sys\nparser = argparse.ArgumentParser()\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("parser.add_argument('data')\nparser.parse_args()", "SystemExit: 2"),
        ("sys.exit('no data')", "SystemExit: no data"),
        ("def f(): raise SystemExit", "SystemExit: None"),
    ],
)
def test_a_file_that_ends_the_program_is_a_sentence(in_file: Make, text: str, words: str) -> None:
    """When it is imported as when its function is called; and the tip says where a script's part belongs."""
    with pytest.raises(InputError, match=re.escape(words)) as refused:
        build(in_file(PARSER + text))
    assert "__main__" in str(refused.value.tip)


def test_a_file_finds_no_arguments(in_file: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the child was started with is nobody's business: a parser with defaults gives them."""
    monkeypatch.setattr(sys, "argv", ["worker.py", "/a/folder", "--odd"])
    parsed = "parser.add_argument('--rows', type=int, default=3)\nrows = parser.parse_args().rows\n"
    made = build(in_file(f"{PARSER}{parsed}def f(): return max, [rows]"))
    assert made.inputs.positional == (3,)
    assert sys.argv == ["worker.py", "/a/folder", "--odd"]


def test_what_the_function_raises_comes_through(in_file: Make) -> None:
    """An error of the operator's own code keeps its type and words: it is not ours to rephrase."""
    with pytest.raises(ZeroDivisionError):
        build(in_file("def f():\n    return 1 / 0, 1\n"))
    with pytest.raises(RuntimeError, match="while importing"):
        build(in_file("raise RuntimeError('while importing')\n"))


ECHO = "def f({}):\n    got = dict(locals())\n    return (lambda x: x), (got,)\n"


@pytest.mark.parametrize(
    ("parameters", "arguments", "expected"),
    [
        ("a, b=2", {"a": 1}, {"a": 1, "b": 2}),
        ("a, *, b", {"a": None, "b": "x"}, {"a": None, "b": "x"}),
        ("a=1, **rest", {"a": 3, "z": 4.5}, {"a": 3, "rest": {"z": 4.5}}),
        ("", {}, {}),
    ],
)
def test_model_arguments_reach_the_function(
    in_file: Make, parameters: str, arguments: dict[str, Scalar], expected: dict[str, Any]
) -> None:
    """Each --model-arg is passed by name, and a function that takes anything gets anything."""
    assert answer(build(in_file(ECHO.format(parameters), arguments=arguments))) == expected


@pytest.mark.parametrize(
    ("parameters", "tip"), [("size, depth=2", "it takes: size, depth"), ("", "it takes: none"), ("*args", "it takes:")]
)
def test_an_unknown_model_argument_names_those_there_are(in_file: Make, parameters: str, tip: str) -> None:
    """A misspelt --model-arg is refused before the function runs, and the tip lists what it takes."""
    source = f"def f({parameters}):\n    raise AssertionError('was called')\n"
    with pytest.raises(InputError, match="arguments sise: my-model has no such argument") as caught:
        build(in_file(source, arguments={"sise": 1}))
    assert tip in str(caught.value.tip)


@pytest.mark.parametrize(
    ("parameters", "arguments", "expected"),
    [
        ("seed", {}, {"seed": 7}),
        ("seed=3", {}, {"seed": 7}),
        ("*, seed=3", {}, {"seed": 7}),
        ("seed=3", {"seed": 9}, {"seed": 9}),
        ("a=1", {}, {"a": 1}),
        ("**rest", {}, {"rest": {}}),
    ],
)
def test_the_seed_goes_to_a_function_that_takes_one(
    in_file: Make, parameters: str, arguments: dict[str, Scalar], expected: dict[str, Any]
) -> None:
    """The study's seed is passed if the function, or what can be called as one, has a parameter `seed`; a --model-arg
    seed=... wins."""
    source = "class Maker:\n    def __call__(self, seed):\n        return (lambda x: x), seed\nf = Maker()\n"
    assert answer(build(in_file(source, seed=5))) == 5
    assert answer(build(in_file(ECHO.format(parameters), arguments=arguments, seed=7))) == expected


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ("3", ((3,), {})),
        ("'text'", (("text",), {})),
        ("(1, 2)", ((1, 2), {})),
        ("[1, 2]", ((1, 2), {})),
        ("()", ((), {})),
        ("((1, 2),)", (((1, 2),), {})),
        ("{'a': 1, 'b': 2}", ((), {"a": 1, "b": 2})),
    ],
)
def test_inputs_become_a_call(in_file: Make, inputs: str, expected: tuple[Any, Any]) -> None:
    """A single value is one argument, a tuple or list positional ones, a dict keyword ones; so it is with further
    inputs, of which there are none unless they are given."""
    built = build(in_file(f"def f():\n    return (lambda *a, **k: (a, k)), {inputs}, [0, {inputs}]\n"))
    assert answer(built) == expected
    assert [each.call(built.model) for each in built.more_inputs] == [((0,), {}), expected]
    assert build(in_file(f"def f():\n    return print, {inputs}\n")).more_inputs == ()


@pytest.mark.parametrize("inputs", [5, (1, 2), [], {"a": 1, "b": 2}, ((1, 2), {"a": 3})], ids=str)
def test_the_values_of_a_call_can_be_replaced(inputs: object) -> None:
    """Leaves come out in the call's order and go back in it, under the same names."""

    def call(*positional: int, **keyword: int) -> Any:
        return positional, keyword

    arguments = Arguments.of(inputs)
    leaves = arguments.leaves()
    assert arguments.with_leaves(leaves) == arguments
    raised = arguments.with_leaves([each + 10 for each in leaves])
    positional, keyword = arguments.call(call)
    assert raised.call(call) == (
        tuple(each + 10 for each in positional),
        {name: each + 10 for name, each in keyword.items()},
    )


def test_positional_and_keyword_values_stay_apart() -> None:
    """A call with both kinds of arguments keeps each value in its place. It is given as a tuple and a dict; a list and
    a dict, or a tuple and a dict with other keys than names, are two positional arguments."""
    arguments = Arguments.of(((1, 2), {"a": 3}))
    assert arguments == Arguments(positional=(1, 2), keyword={"a": 3})
    assert Arguments.of(((1,), {})) == Arguments(positional=(1,))
    for two in (([1], {"a": 3}), ((1,), {0: 3}), ({"a": 3}, (1,))):
        assert Arguments.of(two) == Arguments(positional=two)
    assert arguments.leaves() == [1, 2, 3]
    assert arguments.with_leaves([4, 5, 6]) == Arguments(positional=(4, 5), keyword={"a": 6})


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("path/to/file.py:function", ("path/to/file.py", "function")),
        ("package.module:function", ("package.module", "function")),
        ("/odd:folder/file.py:f", ("/odd:folder/file.py", "f")),
    ],
)
def test_a_reference_has_two_parts(model: str, expected: tuple[str, str]) -> None:
    """The function's name stands after the last colon."""
    assert split_reference(model) == expected


@pytest.mark.parametrize("model", ["", "vitt", "file.py", ":f", "file.py:", "file.py:a.b", "file.py:f()", "a:1x"])
def test_what_is_no_reference_is_refused(model: str) -> None:
    """What is neither a bundled name nor has the two parts is refused, with where to look."""
    with pytest.raises(InputError) as caught:
        split_reference(model)
    assert f"build={model!r}:" in str(caught.value)
    assert "autotune models" in str(caught.value.tip)


def test_a_file_s_reference_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given relative to where the user stands, or to the home folder, which no shell need know; a file is known by its
    content's digest."""
    (tmp_path / "net.py").write_bytes(b"x = 1\n")
    monkeypatch.chdir(tmp_path)
    reference, digest = file_reference(Path("net.py"), "f")
    assert reference == f"{tmp_path.resolve()}/net.py:f"
    assert digest == hashlib.sha256(b"x = 1\n").hexdigest()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert file_reference(Path("~/net.py"), "f")[0] == reference


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """A model's file that is missing, or is a folder, is named with the system's reason and a tip."""
    for path, reason in [(tmp_path / "nowhere.py", "No such file"), (tmp_path, "Is a directory")]:
        with pytest.raises(InputError) as caught:
            file_reference(path, "f")
        assert f"build='{path.name}:f" in str(caught.value)
        assert str(path) in str(caught.value)
        assert reason in str(caught.value)
        assert caught.value.tip


@pytest.mark.parametrize("wrong", [{"device": "tpu"}, {"task": "dream"}, {"arguments": {"a": [1]}}, {"extra": 1}])
def test_a_workload_is_checked(tmp_path: Path, wrong: dict[str, Any]) -> None:
    """An unknown device, task or key, or an argument that is no plain value, is refused."""
    content = {**workload("m:f", tmp_path).model_dump(), **wrong}
    with pytest.raises(ValidationError):
        Workload.model_validate(content)


def test_a_workload_survives_json(tmp_path: Path) -> None:
    """The child builds exactly what the parent described: arguments keep their types."""
    given = workload("m:f", tmp_path, arguments={"a": 1, "b": True, "c": 1.0, "d": None, "e": "1"}, seed=3)
    read = Workload.model_validate_json(given.model_dump_json())
    assert read == given
    assert [type(each) for each in read.arguments.values()] == [int, bool, float, type(None), str]
