"""Strict YAML in, whole files out: a mistake is a sentence with file and place, a failed write changes nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import InputError, StoreError
from autotune.files import parse_as, read_yaml, write_whole, write_yaml
from autotune.schema import Record


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "given.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refused(folder: Path, text: str | bytes) -> str:
    path = written(folder, text)
    with pytest.raises(InputError) as caught:
        read_yaml(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_plain_yaml_is_read_as_it_stands(tmp_path: Path) -> None:
    """Text, numbers, booleans, null, lists and mappings come through, keys in the file's order."""
    text = 'b: [1, 2.5, true, False, null]\na: {x: "on", y: off-peak}\n"yes": é\n'
    content = read_yaml(written(tmp_path, text))
    assert content == {"b": [1, 2.5, True, False, None], "a": {"x": "on", "y": "off-peak"}, "yes": "é"}
    assert list(content) == ["b", "a", "yes"]


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        ("a: 1\nb: 2\na: 3\n", "a", 3),
        ("knobs:\n  mode: 1\n  mode: 1\n", "mode", 3),
        ("list:\n  - x: 1\n    y: 2\n  - x: 1\n    x: 2\n", "x", 5),
        ('a: 1\n"a": 1\n', "a", 2),
    ],
)
def test_a_key_given_twice_is_refused(tmp_path: Path, text: str, key: str, line: int) -> None:
    """YAML would silently keep the last of two equal keys; the message names file, line and key."""
    message = refused(tmp_path, text)
    assert f", line {line}:" in message
    assert f"'{key}' is given twice" in message


@pytest.mark.parametrize("word", ["on", "off", "yes", "no", "On", "OFF", "Yes", "NO"])
@pytest.mark.parametrize(
    ("template", "line"),
    [("a: 1\nb: {}\n", 2), ("a: 1\nb:\n  - x\n  - {}\n", 4), ("{}: 1\n", 1), ("a:\n  {}: 1\n", 2)],
    ids=["value", "item", "key", "nested key"],
)
def test_a_bare_switch_word_is_refused(tmp_path: Path, word: str, template: str, line: int) -> None:
    """A bare on, off, yes or no would silently become a boolean, as a value and as a key; both cures are named."""
    message = refused(tmp_path, template.format(word))
    assert f", line {line}:" in message
    assert f"'{word}' without quotes" in message
    assert f"true, false or '{word}'" in message


@pytest.mark.parametrize("key", ["1", "2.5", "null", "~", "true", "0x1f", "[a, b]", "{a: b}", "!!int 1"])
def test_a_key_is_text(tmp_path: Path, key: str) -> None:
    """A key that YAML reads as a number, null, a boolean, a list or a mapping is refused, with its line."""
    message = refused(tmp_path, f"a: 1\n? {key}\n: 2\n")
    assert ", line 2:" in message
    assert "quote it" in message


REFUSED: dict[str, tuple[str | bytes, str]] = {
    **{f"no mapping: {text!r}": (text, "expected keys and values")
       for text in ("", "# only a comment\n", "- a\n- b\n", "just text", "3", "null")},
    "another encoding": ("a: ü".encode("latin-1"), "UTF-8"),
    "an open list": ("a: [1,\n", ", line 2:"),
    "a tab": ("a: 1\n\tb: 2\n", ", line 2:"),
    "no such anchor": ("a: *nowhere\n", ", line 1:"),
    "a control character": ("a: \x07", ":"),
    # A file from somebody else is data: tags that would build objects are refused.
    "a tag of Python": ("a: !!python/object/apply:os.getcwd []\n", ", line 1:"),
    "a tag of its own": ("a: !mine x\n", ", line 1:"),
    "deep lists": ("a: " + "[" * 60 + "]" * 60, "nested more than 50 deep"),
    "open lists": ("a: " + "[" * 100_000, "nested more than 50 deep"),
    "deep mappings": ("a: " + "{b: " * 60 + "}" * 60, "nested more than 50 deep"),
    "a deep block": ("".join("  " * i + "a:\n" for i in range(100)), "nested more than 50 deep"),
    "deep complex keys": ("? " * 800 + "x\n", "nested more than 50 deep"),
    "deep items": ("a:\n" + "- " * 300 + "x\n", "nested more than 50 deep"),
    # Few bytes that stand for gigabytes of text, as those that stand for many nodes.
    "aliases of a long text": ("a: &a " + "x" * 20_000 + "\nb: [" + "*a, " * 50_000 + "]\n",
                               "aliases counted as often as they are used"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_settings_file_is_refused(tmp_path: Path, text: str | bytes, words: str) -> None:
    """In a sentence that names the file, and the line where the parser tells."""
    assert words in refused(tmp_path, text)


@pytest.mark.parametrize("text", [r'a: {b: ["\0"]}', r'a: {b: "\ud800"}', r'a: {"\0": 1}'])
def test_what_no_file_or_process_can_hold_is_refused(tmp_path: Path, text: str) -> None:
    """YAML can write null characters and halves of surrogate pairs: the key is named."""
    message = refused(tmp_path, text)
    assert "key" in message
    assert "a" in message
    assert "is not text" in message


CORE: dict[str, object] = {
    "": None, "Null": None, "~": None, "TRUE": True, "False": False, "true": True,
    "0": 0, "-7": -7, "+12": 12, "010": 10, "0o17": 15, "0xfF": 255, "9" * 64: int("9" * 64),
    "1.": 1.0, ".5": 0.5, "-0.5": -0.5, "1e3": 1000.0, "2.5E-3": 0.0025, "-.INF": float("-inf"), "+.inf": float("inf"),
    "!!int 7": 7, "!!float 1": 1.0, "!!str 7": "7", "!!str": "", "!!bool true": True, "!!null ~": None,
    "!!seq [1]": [1], "!!map {x: 1}": {"x": 1},
}  # fmt: skip
NO_NUMBERS = (
    *("1_000", "0b101", "0x", "0o8", "-0x1f", "1:30", "1:30:00.5", "190:20:30", "2024-13-45", "2001-12-14t21:59:43.10"),
    *("1e", "e5", ".", "-.nan", "nan", "inf", "tRUE", "nULL", "y", "oN", "=", "0b_", "1 2", "١٢"),
)
"""Some are numbers, dates or switches to YAML 1.1, others to Python."""


@pytest.mark.parametrize("text", CORE)
def test_plain_scalars_are_those_of_the_core_schema(tmp_path: Path, text: str) -> None:
    """Null, booleans, decimal, octal and hexadecimal numbers as YAML 1.2 writes them, and the tags of these alone."""
    value = read_yaml(written(tmp_path, f"a: {text}\n"))["a"]
    assert (type(value), value) == (type(CORE[text]), CORE[text])


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_everything_else_is_text(tmp_path: Path, text: str) -> None:
    """Forms that only YAML 1.1 or Python takes for numbers, dates and switches are the text that stands there."""
    assert read_yaml(written(tmp_path, f"a: {text}\n")) == {"a": text}
    write_yaml(tmp_path / "out.yaml", {"a": text})
    assert read_yaml(tmp_path / "out.yaml") == {"a": text}


@pytest.mark.parametrize("text", [each for each in CORE if "!" not in each])
def test_text_that_looks_like_a_number_is_quoted(tmp_path: Path, text: str) -> None:
    """A text that either version of YAML takes for something else comes back as text."""
    write_yaml(tmp_path / "out.yaml", {"a": text})
    assert read_yaml(tmp_path / "out.yaml") == {"a": text}


TAGGED = (
    *("!!int ''", "!!int _", "!!int x", "!!int 0b1", "!!int 1.5", "!!float ''", "!!float x", "!!float 1_0", "!!bool x"),
    *("!!bool ''", "!!bool yes", "!!null x", "!!str {a: 1}", "!!str [1]", "!!seq x", "!!seq {a: 1}", "!!map []"),
    *(
        "!!map x",
        "!!int [1]",
        "!!float {a: 1}",
        "!!timestamp x",
        "!!timestamp 2001-12-14",
        "!!binary aGVsbG8=",
        "!!binary é",
    ),
    *(
        "!!set {a, b}",
        "!!omap [a: 1]",
        "!!pairs [a: 1]",
        "!!merge x",
        "!!value x",
        "!<tag:yaml.org,2002:python/none> x",
    ),
    *("!mine x", "!<int> 1", "!<autotune:ambiguous> x", "!!python/name:os.system ''", "!!int &a !!str 1"),
)


@pytest.mark.parametrize("text", TAGGED)
def test_a_tag_that_does_not_fit_is_refused(tmp_path: Path, text: str) -> None:
    """A tag of another schema, or one whose content is none of its kind, is a sentence with its line."""
    assert ", line 2:" in refused(tmp_path, f"a: 1\nb: {text}\n")
    refused(tmp_path, f"a: 1\n? {text}\n: 2\n")


LONG = {
    "hexadecimal": "0x" + "f" * 5000,
    "negative": "-" + "9" * 5000,
    "octal": "0o" + "7" * 5000,
    "decimal": "7" * 400_000,
    "digits after the point": "1." + "1" * 300_000,
    "exponent": "1e" + "9" * 300_000,
    "exponent of few digits": "1e999",
    "sexagesimal": "1" + ":1" * 150_000,
    "binary": "0b1" + "0" * 30_000,
    "underscores": "1" + "_" * 300_000 + "1",
    "tag": "!!int " + "1" * 300_000,
    "another tag": "!" + "x" * 50_000 + " 1",
    "text": "a" * 30_000,
    "quoted": '"' + "\\x41" * 30_000 + '"',
    "anchor": "*" + "x" * 50_000,
}


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("template", ["a: {}\n", "? {}\n: 1\n", "a: [{{b: {}}}]\n"], ids=["value", "key", "nested"])
def test_a_scalar_is_bounded(tmp_path: Path, name: str, template: str) -> None:
    """A number of thousands of digits and a text without end are refused before anything is made of them, in a
    sentence that does not repeat them."""
    assert len(refused(tmp_path, template.format(LONG[name])).removeprefix(str(tmp_path))) < 800


def test_a_bare_merge_is_refused(tmp_path: Path) -> None:
    """YAML 1.1 would merge mappings; as text the key would be lost on the reader. Quoted, it is text."""
    message = refused(tmp_path, "a: &a {x: 1}\nb:\n  <<: *a\n")
    assert ", line 3:" in message
    assert "write the keys out" in message
    assert read_yaml(written(tmp_path, '"<<": 1\n')) == {"<<": 1}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A path that is not there, or is a folder, gives its name, the system's reason and a tip."""
    for path, reason in [(tmp_path / "nowhere.yaml", "No such file"), (tmp_path, "Is a directory")]:
        with pytest.raises(InputError) as caught:
            read_yaml(path)
        assert str(path) in str(caught.value)
        assert reason in str(caught.value)
        assert caught.value.tip


class Inner(Record):
    number: int


class Outer(Record):
    inner: list[Inner] = []
    name: str = ""


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"nam": "x"}, "key nam: unknown key"),
        ({"inner": [{"number": 1}, {}]}, "key inner.1.number: is missing"),
        ({"inner": [{"number": "many"}]}, "key inner.0.number: Input should be a valid integer"),
        ([], "key (top level):"),
    ],
)
def test_content_is_checked_with_file_and_key(content: object, expected: str) -> None:
    """A wrong entry names the file and the full key, and is raised as the error class that the caller chose."""
    for error_class in (InputError, StoreError):
        with pytest.raises(error_class) as caught:
            parse_as(Outer, content, Path("some/file.yaml"), error_class)
        assert str(caught.value).startswith("some/file.yaml: ")
        assert expected in str(caught.value)


AWKWARD: dict[str, Any] = {
    "z": "on",
    "yes": "no",
    "number as text": "1",
    "null as text": "null",
    "empty": "",
    "nothing": None,
    "float": 1e-05,
    "tiny": 4.9e-324,
    "bool": True,
    "list": [{"a": [1, "y", "2020-01-01"]}, []],
    "colon": "a: b # c",
    "lines": "one\ntwo\n",
    "long": "word " * 100,
    "=": "<<",
    "unicode": "Ångström 量",
}


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    """Every value survives writing and strict reading with its type, keys in the given order."""
    path = tmp_path / "out.yaml"
    write_yaml(path, AWKWARD)
    content = read_yaml(path)
    assert content == AWKWARD
    assert list(content) == list(AWKWARD)
    assert type(content["bool"]) is bool
    assert "Ångström 量" in path.read_text(encoding="utf-8")


def test_a_comment_stands_on_top(tmp_path: Path) -> None:
    """Each line of the comment becomes a YAML comment above the content, without trailing blanks."""
    path = tmp_path / "out.yaml"
    write_yaml(path, {"a": 1}, comment="What this is:\n\n  in a job")
    assert path.read_text(encoding="utf-8") == "# What this is:\n#\n#   in a job\na: 1\n"


def test_a_yaml_file_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    """Writing into a folder that is not there names the path and tells of -o."""
    path = tmp_path / "nowhere" / "best.yaml"
    with pytest.raises(InputError, match="cannot write") as caught:
        write_yaml(path, {"a": 1})
    assert str(path) in str(caught.value)
    assert "-o" in str(caught.value.tip)


def test_a_written_file_is_there_alone(tmp_path: Path) -> None:
    """After writing, the folder holds the file with the new text and no temporary one, first time and again."""
    path = tmp_path / "outcome.json"
    for text in ("old é", "new, and longer"):
        write_whole(path, text)
        assert path.read_text(encoding="utf-8") == text
        assert os.listdir(tmp_path) == ["outcome.json"]


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    """Whoever has the old file open goes on reading all of it: the new one takes its place in one step."""
    path = tmp_path / "outcome.json"
    write_whole(path, "old " * 1000)
    with path.open() as reader:
        assert reader.read(4) == "old "
        write_whole(path, "new")
        assert reader.read() == "old " * 999
    assert path.read_text() == "new"


def test_a_write_that_fails_midway_keeps_the_old_file(tmp_path: Path) -> None:
    """Text that cannot be encoded fails after the temporary file was opened: old content stays, nothing else does."""
    path = tmp_path / "outcome.json"
    write_whole(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "half a file" * 10_000 + "\ud800")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["outcome.json"]


def test_a_rename_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    """If the place is taken by a folder, the error comes through and the temporary file is removed."""
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_whole(tmp_path / "taken", "text")
    assert os.listdir(tmp_path) == ["taken"]
