"""Writes the generated parts of the pages: all commands, the Python API, the knobs of the bundled spaces, which mode.

    python docs/site/reference.py

Each part stands between two markers of a page under docs/, as the sections of the benchmarks do. It is committed, so
that a page is whole where the site is not built; tests/test_documentation.py compares the pages with the code.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

REPOSITORY = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(REPOSITORY), str(Path(__file__).parent)]

import python_api
import typer
import which_mode

from autotune.cli import app
from autotune.config import Scalar
from autotune.space.load import read_space_file
from autotune.space.schema import Conditions, KnobEntry, RegisteredEntry, ValueEntry
from autotune.workload.workload import Task
from benchmarks.evidence import table, with_section

DOCS = REPOSITORY / "docs"


# Commands


def commands() -> str:
    """Every command with its arguments and options, as `-h` prints them. What several have is told once, before."""
    group: Any = typer.main.get_command(app)
    found = {**group.commands, **{name: group.get_command(None, name) for name in _BEHIND_A_DOOR}}
    told = {name: (_cell(" ".join((each.help or "").split())), _rows_of(each)) for name, each in _commands_of(found)}
    times = Counter(row for _, rows in told.values() for row in rows)
    shared = [row for row, number in times.items() if number >= _SEVERAL]
    parts = [f"## Options of several commands\n\n{table(_HEAD, shared)}\n"]
    for name, (about, rows) in told.items():
        own = [row for row in rows if row not in shared]
        parts.append(f"## `autotune {name}`\n\n{about}\n" + (f"\n{table(_HEAD, own)}\n" if own else ""))
        if others := [row[0] for row in rows if row in shared]:
            parts.append(f"As above: {', '.join(others)}.\n")
    return "\n".join(parts)


_BEHIND_A_DOOR = ("fleet", "try", "watch")
"""Commands that people type, of those that the help does not name."""
_HEAD = ["option or argument", "meaning"]
_SEVERAL = 3
"""Commands that have one option with one meaning, from which it is told once."""


def _commands_of(found: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in found.items():
        yield f"{before}{name}", command
        if hasattr(command, "commands"):
            yield from _commands_of(command.commands, f"{before}{name} ")


def _rows_of(command: Any) -> list[tuple[str, str]]:
    """Options and arguments, each with its meaning."""
    context = command.make_context(command.name, ["-"], resilient_parsing=True)
    records = (each.get_help_record(context) for each in command.get_params(context))
    found = [(_code(option), _cell(text)) for option, text in filter(None, records) if not option.endswith("--help")]
    meanings = [text for _, text in found]
    return [(name, "The same." if text in meanings[:n] else text) for n, (name, text) in enumerate(found)]


def _cell(text: str) -> str:
    """Plain text that Markdown leaves as it is."""
    return python_api.linked(" ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*"))


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


# Knobs

_EVERYWHERE = ["cpu", "gpu", "ascend"]


def knobs(framework: str) -> str:
    """A row for each knob and, below it, one for each group of values that is offered under the same conditions."""
    space = read_space_file(REPOSITORY / "search_spaces" / f"{framework}.yaml")
    rows = [row for name in space.knobs for row in _rows(name, space.knobs)]
    return f"{table(['knob', 'values', 'what it does', 'from preset', 'offered'], rows)}\n"


def recipes(framework: str) -> str:
    """A row for each recipe."""
    space = read_space_file(REPOSITORY / "search_spaces" / f"{framework}.yaml")
    rows = []
    for name, entry in space.recipes.items():
        settings = " ".join(f"`{knob}={_word(value)}`" for knob, value in entry.settings.items())
        offered = "; ".join(_conditions(entry))
        rows.append([f"[{name}]({entry.source})", _cell(entry.about), settings, entry.preset, offered])
    return f"{table(['recipe', 'what was reported', 'settings', 'from preset', 'tried'], rows)}\n"


def _rows(name: str, knobs: Mapping[str, KnobEntry]) -> Iterator[list[str]]:
    entry = knobs[name]
    about = [_cell(entry.about), *([f"With {_pattern(entry, knobs)}."] if entry.when else [])]
    first, meaning = f"[`{name}`]({entry.doc})", ". ".join(each.rstrip(".") for each in about if each)
    for (preset, offered), values in groupby(entry.written(), key=lambda value: _offered(entry, value)):
        several = list(values)
        because = _cell("; ".join(dict.fromkeys(each.because for each in several if each.because)))
        shown = ", ".join(_value(each, entry) for each in several)
        yield [first, shown, ". ".join(filter(None, (meaning, because))), preset, offered]
        first, meaning = "", ""


def _value(written: ValueEntry | RegisteredEntry, entry: KnobEntry) -> str:
    if isinstance(written, RegisteredEntry):
        return f"each entry point of `{written.registered}`"
    value = written.value
    is_default = value == entry.default and type(value) is type(entry.default)
    return f"`{_word(value)}`{' (default)' if is_default else ''}"


def _word(value: Scalar) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _pattern(entry: KnobEntry, knobs: Mapping[str, KnobEntry]) -> str:
    wanted = {knob: value if isinstance(value, list) else [value] for knob, value in entry.when.items()}
    return ", ".join(_wanted(knobs[name], name, values) for name, values in wanted.items())


def _wanted(entry: KnobEntry, name: str, values: list[Scalar]) -> str:
    """The values of a knob, or the one that is left out where there are many."""
    written = [each.value for each in entry.written() if isinstance(each, ValueEntry)]
    others = [value for value in written if value not in values]
    if len(others) == 1 and len(values) > 2:
        return f"`{name}` other than `{_word(others[0])}`"
    return f"`{name}={' or '.join(map(_word, values))}`"


def _offered(knob: Conditions, value: Conditions) -> tuple[str, str]:
    """The preset that begins to try it, and under which conditions it is tried; those of the knob and of the value."""
    presets = ["quick", "standard", "exhaustive"]
    preset = max(knob.preset, value.preset, key=presets.index)
    return preset, "; ".join(_conditions(knob, value)) or "always"


def _conditions(*both: Conditions) -> Iterator[str]:
    devices = [each for each in _EVERYWHERE if all(each in one.devices for one in both)]
    if devices != _EVERYWHERE:
        yield " or ".join(devices)
    named = ("inference", "training", "generation")
    for tasks, words in (
        *(([task], f"{name} only") for task, name in zip(get_args(Task), named, strict=True)),
        (["infer", "generate"], "not for training"),
    ):
        if any(each.tasks == tasks for each in both):
            yield words
    yield from dict.fromkeys(f"releases {each.versions}" for each in both if each.versions)
    yield from dict.fromkeys(f"Python {each.python}" for each in both if each.python)
    yield from dict.fromkeys(words for each in both for words in _packages(each))
    if (error := max(each.error for each in both)) > 0:
        yield f"tolerance {error:g} or more"
    yield from dict.fromkeys(need for each in both for need in each.needs)
    if any(each.process for each in both):
        yield "`--process-settings`"
    yield from dict.fromkeys(f"a process can be started with {each.start}" for each in both if each.start)
    if any(each.whole_step for each in both):
        yield "with `--whole-step`"
    if any(each.unrecorded for each in both):
        yield "calls without gradients"
    if any(each.constant_weights for each in both):
        yield "weights that may be constants"


def _packages(conditions: Conditions) -> Iterator[str]:
    """What has to be installed; where only some devices need it, these are named."""
    if not isinstance(conditions.packages, dict):
        yield from (f"package {name}" for name in conditions.packages)
        return
    for name in dict.fromkeys(name for names in conditions.packages.values() for name in names):
        devices = [device for device, names in conditions.packages.items() if name in names]
        yield f"package {name} on {' and '.join(devices)}"


# Pages


def sections() -> dict[tuple[str, str], str]:
    """(page, name of the section) -> what has to stand there."""
    return {
        ("commands.md", "commands"): commands(),
        ("python-reference.md", "python"): python_api.text(),
        ("knobs.md", "space-torch"): knobs("torch"),
        ("knobs.md", "recipes-torch"): recipes("torch"),
        ("knobs.md", "space-mindspore"): knobs("mindspore"),
        **{("which-mode.md", name): text for name, text in which_mode.sections().items()},
    }


def main() -> None:
    """Write every section into its page."""
    for (page, name), text in sections().items():
        file = DOCS / page
        file.write_text(with_section(file.read_text(encoding="utf-8"), name, f"{text.strip()}\n"), encoding="utf-8")


if __name__ == "__main__":
    main()
