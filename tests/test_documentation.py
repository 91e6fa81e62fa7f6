"""README and docs are kept true: links lead somewhere, commands and options exist, code blocks run.

A fenced block without a language holds commands, each of which is checked, or begins with `$ ` where output follows. A
block that is neither run nor checked has the comment `<!-- not executed: WHY -->` above it.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import typer
import yaml

import autotune
from autotune import environment
from autotune.api.running import parse_budget
from autotune.cli import app
from autotune.cli.app import COMMANDS
from autotune.planning import manifest
from autotune.question.question import Question
from autotune.study.budget import Budget
from tests.conftest import REPOSITORY

PAGES = [
    *(
        REPOSITORY / name
        for name in ("README.md", "README_CN.md", "CONTRIBUTING.md", "examples/README.md", "benchmarks/README.md")
    ),
    *sorted((REPOSITORY / "docs").rglob("*.md")),
]
MARKER = re.compile(r"<!-- not executed: (.+) -->\s*$")
BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)|!\[[^\]]*\]\((?P<image>[^)\s]+)\)")
SPAN = re.compile(r"`([^`\n]+)`")
ELSEWHERE = {
    "docs/python-api.md": "tests/api/test_page.py runs them one after the other",
    "docs/python-reference.md": "signatures",
    "docs/serving.md": "tests/end_to_end/test_service.py runs its two files under gunicorn",
    "docs/watch.md": "tests/plugins/test_watch.py runs the job and the block",
    "docs/tutorial.md": "tests/end_to_end/test_tutorial.py runs the page",
    "docs/tutorial_cn.md": "the same, in MindSpore",
    "README_CN.md": "the same; its model is one of MindSpore",
}
LIBRARIES = ("mindspore", "transformers")
"""Imported by the code of a page, which is not run where one is not installed."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str
    why_not: str | None

    def __str__(self) -> str:
        return f"{name_of(self.page)}:{self.line}"


def name_of(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


@cache
def blocks() -> tuple[Block, ...]:
    found = []
    for page in PAGES:
        content = page.read_text(encoding="utf-8")
        for match in BLOCK.finditer(content):
            before = MARKER.search(content[: match.start()].rstrip("\n"))
            usual = "a signature" if page.name == "python-reference.md" else None
            found.append(
                Block(
                    page,
                    content.count("\n", 0, match.start()) + 1,
                    match["language"],
                    textwrap.dedent(match["text"]),
                    before[1] if before else usual,
                )
            )
    return tuple(found)


def of_language(*languages: str, executed: bool = True) -> list[Any]:
    chosen = [each for each in blocks() if each.language in languages and (each.why_not is None) is executed]
    return [pytest.param(each, id=str(each)) for each in chosen]


def prose(page: Path) -> str:
    return BLOCK.sub("", page.read_text(encoding="utf-8"))


# Links


def anchors(page: Path) -> set[str]:
    """The headings of a page as a browser addresses them on the usual sites."""
    titles = re.findall(r"^#+ +(.*)$", BLOCK.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles)
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_somewhere(page: Path) -> None:
    """To a file of the repository, and to a heading of that file where one is named."""
    broken = []
    for match in LINK.finditer(prose(page)):
        target = match["target"] or match["image"]
        if re.match(r"[a-z]+:", target):
            continue
        place, _, anchor = target.partition("#")
        file = (page.parent / place).resolve() if place else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            broken.append(target)
    assert not broken


def test_code_names_decisions_that_exist() -> None:
    """A docstring or comment that names a decision, by file or by number, names a page that is there."""
    there = {int(each.name[:4]): each.name for each in (REPOSITORY / "docs" / "decisions").glob("0*.md")}
    named = re.compile(r"docs/decisions/(\d+)([-a-z0-9]*(?:\.md)?)|\b[Dd]ecisions? (\d+)")
    lost = []
    for folder in ("autotune", "tests", "benchmarks", "search_spaces", "docs/site", ".ci"):
        for file in sorted((REPOSITORY / folder).rglob("*")):
            if file.suffix not in (".py", ".yaml") and file.name != "run":
                continue
            for number, rest, alone in named.findall(file.read_text(encoding="utf-8")):
                page = there.get(int(number or alone), "")
                if not page.startswith(number + rest):
                    lost.append(f"{name_of(file)}: {number}{rest}{alone}")
    assert not lost


# The site and its reference


def of_the_site(name: str) -> Any:
    """A module of docs/site/, which is no package: Sphinx and `make reference` run these files."""
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "docs" / "site" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_navigation() -> None:
    """Once. The navigation is what docs/README.md and docs/decisions/README.md list; no entry is without a page, and no
    part without an entry.
    """
    navigation = of_the_site("navigation")
    listed = [f"{each}.md" for each in navigation.pages()]
    assert sorted(set(listed)) == sorted(listed)
    assert not [each for each in listed if not (REPOSITORY / each).is_file()]
    assert {name_of(each) for each in PAGES} <= set(listed)
    parts = navigation.parts()
    assert list(parts) == [
        "Start", "Serve", "Train", "Tune", "When something is wrong", "Reference", "Evidence", "The code",
    ]  # fmt: skip
    assert all(parts.values())


def test_the_recording_is_that_of_its_text() -> None:
    """`python docs/site/recording.py` draws it; it is small and loads nothing."""
    recording = of_the_site("recording")
    drawn = recording.PICTURE.read_text(encoding="utf-8")
    assert drawn == recording.picture(recording.TEXT.read_text(encoding="utf-8"))
    assert len(drawn) < 100_000
    assert "url(http" not in drawn
    assert all(len(line) <= recording.COLUMNS for line in recording.TEXT.read_text(encoding="utf-8").splitlines())


def test_the_first_page_is_short() -> None:
    """At most 140 lines, with the status before the first picture."""
    page = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert len(page.splitlines()) <= 140
    assert 0 < page.index("**Status:") < page.index("![")


def test_the_reference_is_that_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands, Python API and knobs stand on their pages as in the code of now; `make reference` writes them anew."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("COLUMNS", "80")
    outdated = [
        f"{page}: {name}"
        for (page, name), text in of_the_site("reference").sections().items()
        if f"<!-- {name}: begin -->\n{text.strip()}\n<!-- {name}: end -->\n"
        not in (REPOSITORY / "docs" / page).read_text(encoding="utf-8")
    ]
    assert not outdated, "run: make reference"


def test_documents_are_described(tmp_path: Path) -> None:
    """docs/json.md names every command that has `--json`, and every key of a study's document and of its trials."""
    page = (REPOSITORY / "docs" / "json.md").read_text(encoding="utf-8")
    with_json = [name for name, each in commands().commands.items() if "--json" in options_of(each)]
    assert len(with_json) > 5
    assert not [name for name in with_json if not re.search(rf"`{name}[^`]* --json`", " ".join(page.split()))]
    shutil.copytree(REPOSITORY / "tests" / "study" / "recorded" / "studies", tmp_path / "recorded")
    document = autotune.load_study("earlier", studies_dir=tmp_path / "recorded").document()
    keys = {*document, *document["best"], *document["trials"][0], *document["confirmation"], *document["noise_floor"]}
    assert not sorted(key for key in keys if f"`{key}`" not in page)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("sphinx") is None, reason="the extra `docs` brings Sphinx")
def test_the_site_is_built(tmp_path: Path) -> None:
    """As by `make docs`, without a warning; every page is there, and nothing on it comes from another host."""
    command = ["-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "--conf-dir", "docs/site"]
    built = tmp_path / "site"
    run = subprocess.run(
        [sys.executable, *command, "--doctree-dir", str(tmp_path / "trees"), ".", str(built)],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")
    for page in (*of_the_site("navigation").pages(), "index"):
        text = (built / f"{page}.html").read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=\"([^\"]+)\"", text)
        assert not [each for each in loaded if re.match(r"(?:\w+:)?//", each)]
    found = (built / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(found[found.index("(") + 1 : found.rindex(")")])
    for word, name in {"trainer": "docs/trainer", "ddp": "docs/many-ranks", "generat": "docs/in-the-job"}.items():
        numbers = index["titleterms"].get(word, [])
        assert index["docnames"].index(name) in (numbers if isinstance(numbers, list) else [numbers]), word
    scored = (built / "_static" / "language_data.js").read_text(encoding="utf-8")
    assert 'startsWith("docs/decisions/")' in scored  # Pages for users come first.
    styles = "".join(each.read_text(encoding="utf-8") for each in built.rglob("*.css"))
    assert not re.findall(r"(?:@import|url\()[\s\"'(]*(?:https?:)?//", styles)


# Commands


@cache
def commands() -> Any:
    """Typer's group: a class of its own, like click's."""
    return typer.main.get_command(app)


def options_of(command: Any) -> set[str]:
    return {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {"--help"}


def problem_of(line: str) -> str | None:
    """Why a command line would be refused, by the parser that a user meets; for other programs, what is missing."""
    words = shlex.split(line, comments=True)
    while words and (
        words[0] in ("taskset", "-c", "nohup") or re.fullmatch(r"[\d,]+", words[0]) or re.match(r"\w+=", words[0])
    ):
        words.pop(0)
    program, *rest = words
    if program in ("python", ".venv/bin/python") and rest[:1] == ["cli.py"]:
        return problem_of_arguments(rest[1:])
    if program == "autotune":
        return problem_of_arguments(rest)
    check = _OTHERS.get(Path(program).name)
    return f"unknown program {program}" if check is None else check(rest)


def problem_of_arguments(arguments: list[str]) -> str | None:
    command = commands().get_command(None, arguments[0]) if arguments else None
    while command is not None and arguments[1:] and arguments[1] in getattr(command, "commands", {}):
        arguments = arguments[1:]
        command = command.commands[arguments[0]]
    if command is None:
        return f"no such command: {arguments[:1]}" if arguments and not arguments[0].startswith("-") else None
    try:
        context = command.make_context(arguments[0], list(arguments[1:]))
        if arguments[0] == "tune" and command is commands().commands["tune"]:
            ask(context.params)
    except Exception as error:
        return str(error.format_message()) if hasattr(error, "format_message") else str(error)
    return None


class _AskedError(Exception):
    """Nothing is wrong with the question: what is next is the model."""


def ask(given: Mapping[str, Any]) -> None:
    """Raises InputError where `tune` refuses the flags, alone or together. No model, file or device is looked at."""
    fields = {name: given.get(name) for name in Question.model_fields if name not in ("traffic", "studies_dir")}
    named = given["named"] or [given["build"]]
    question = Question.of({**fields, "build": named[0]})
    parse_budget(question.budget)
    with pytest.MonkeyPatch.context() as patch, suppress(_AskedError):
        patch.setattr(manifest, "require_model", lambda *_: None)
        patch.setattr(manifest, "choose_target", lambda *_, **__: (question.framework or "torch", "cpu"))
        patch.setattr(manifest, "_make_workload", Mock(side_effect=_AskedError))
        manifest.make_manifest(question)


def problem_of_python(arguments: list[str]) -> str | None:
    if arguments[0] == "-m":
        return None if importlib.util.find_spec(arguments[1]) else f"no module {arguments[1]}"
    written = any(each.text.startswith(f"# {arguments[0]}\n") for each in blocks())  # By the reader of a page.
    return None if written or (REPOSITORY / arguments[0]).exists() else f"no file {arguments[0]}"


def problem_of_pip(arguments: list[str]) -> str | None:
    """Extras that are asked for exist."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = {name for word in arguments for part in re.findall(r"\[([\w,]+)\]", word) for name in part.split(",")}
    unknown = asked - set(project["optional-dependencies"])
    return f"no such extra: {', '.join(unknown)}" if unknown else None


def problem_of_make(arguments: list[str]) -> str | None:
    targets = re.findall(r"^(\w[\w-]*):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    return next((f"no target {each}" for each in arguments if each not in targets), None)


def problem_of_pytest(arguments: list[str]) -> str | None:
    paths = [each for each in arguments if each.startswith("tests")]
    return next((f"no file {each}" for each in paths if not (REPOSITORY / each.partition("::")[0]).exists()), None)


_OTHERS = {
    "python": problem_of_python,
    "python3": problem_of_python,
    "pip": problem_of_pip,
    "make": problem_of_make,
    "pytest": problem_of_pytest,
    "docker": lambda _: None,
    "cd": lambda _: None,
    "export": lambda _: None,
    "source": lambda _: None,
    "git": lambda _: None,
}
"""Program -> why its arguments cannot be right."""


@pytest.mark.parametrize("block", of_language("", "sh", "bash", "console"))
def test_commands_are_taken(block: Block) -> None:
    """Each line of a block is a command with options and arguments that exist. Where lines begin with `$ `, the others
    are what was printed."""
    lines = [each for each in block.text.replace("\\\n", " ").splitlines() if each.strip()]
    if any(each.startswith("$ ") for each in lines):
        lines = [each.removeprefix("$ ") for each in lines if each.startswith("$ ")]
    problems = {line: problem_of(line) for line in lines if not line.lstrip().startswith("#")}
    assert not {line: problem for line, problem in problems.items() if problem}


@pytest.mark.parametrize(
    "line",
    [
        "python cli.py tune --model vit --trails 5",
        "python cli.py tune vit --objective p95",
        'python cli.py tune vit --constraint "latency <= 5"',
        'python cli.py tune vit --shapes "batch=1,4" --objective throughput',
        "python cli.py tune vit --report r.html --inputs calls.pt --shapes batch=1,4",
        "python cli.py tune vit --budget 1h30m",
        "python cli.py tunes",
        "python cli.py resume",
        "autotune run my-study five",
        "autotune fleet show --max-loss 0.1",
        "python examples/nowhere.py",
        "pip install 'autotune-compile[everything]'",
        "make coffee",
        "tune --model vit",
    ],
)
def test_a_wrong_command_is_found(line: str) -> None:
    """Unknown options, commands, arguments, files, extras and targets."""
    assert problem_of(line)


def test_options_in_the_text_exist() -> None:
    """`tune --trials 5`, `python cli.py show STUDY` and `--json` between backquotes: command and option exist."""
    known = {**commands().commands, **{name: commands().get_command(None, name) for name in COMMANDS.names()}}
    groups = {name: each.commands for name, each in known.items() if hasattr(each, "commands")}
    known |= {f"{group} {name}": each for group, found in groups.items() for name, each in found.items()}
    everywhere = set().union(*(options_of(each) for each in known.values())) | {"--version", "--install-completion"}
    problems = []
    for page in PAGES:
        if page.parent.name in ("decisions", "benchmarks") or page.name == "benchmarks.md":
            continue  # What was measured then, with the commands of then.
        for span in SPAN.findall(prose(page)):
            words = span.removeprefix("python cli.py ").removeprefix("autotune ").split()
            options = {word.partition("=")[0].strip("[],;") for word in words if re.match(r"--[a-z]", word)}
            named = next((name for name in (" ".join(words[:2]), *words[:1]) if name in known), None)
            if named is not None:
                unknown = options - options_of(known[named])
            elif words and words[0].startswith("--"):
                unknown = options - everywhere
            else:
                unknown = set(words[:1]) if span.startswith("python cli.py ") else set()
            problems += [f"{name_of(page)}: `{span}`: {each}" for each in unknown]
    assert not problems, "\n".join(problems)


# Code


@pytest.fixture
def job(tmp_path, monkeypatch) -> dict[str, Any]:
    """What the pages take as given: a model and a file for it, a loss, an optimizer, a study's other things."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    content = yaml.safe_load((REPOSITORY / "tests" / "best.yaml").read_text())
    content["environment"]["device"] = "fake"
    content["environment"]["processor"] = environment.describe(device="cpu", variables={}).processor
    (tmp_path / "best.yaml").write_text(yaml.safe_dump(content))
    return {
        "autotune": autotune,
        "model": lambda x: x * 2,
        "inputs": np.ones((4, 8)),
    }


def of_torch(folder: Path) -> dict[str, Any]:
    """The same for PyTorch: with a file that was made elsewhere, so that nothing is compiled."""
    torch = pytest.importorskip("torch")
    content = yaml.safe_load((folder / "best.yaml").read_text())
    (folder / "best.yaml").write_text(yaml.safe_dump({**content, "framework": "torch"}))
    model = torch.nn.Linear(4, 3)
    return {
        "torch": torch,
        "model": model,
        "inputs": torch.ones(8, 256),
        "loss": lambda model, images, labels: torch.nn.functional.cross_entropy(model(images), labels),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "batches": [(torch.ones(2, 4), torch.tensor([0, 1]))],
    }


def pages_with_code() -> Iterator[Any]:
    for page in PAGES:
        texts = [each.text for each in blocks() if each.page == page and each.language == "python"]
        if texts and name_of(page) not in ELSEWHERE:
            needs_torch = any(word in text for text in texts for word in ("torch", "training_step"))
            yield pytest.param(page, needs_torch, id=name_of(page), marks=[pytest.mark.torch] * needs_torch)


@pytest.mark.parametrize(("page", "needs_torch"), list(pages_with_code()))
def test_python_runs(page: Path, needs_torch: bool, job: dict[str, Any], tmp_path: Path) -> None:
    """The blocks of a page one after the other, with the names that it takes as given. A block that begins with
    `# FILE.py` is that file; its `build` is called."""
    for library in LIBRARIES:
        if any(f"from {library} import" in block.text for block in blocks() if block.page == page):
            pytest.importorskip(library)
    names = {**job, **(of_torch(tmp_path) if needs_torch else {}), "__name__": "__main__"}
    made = []
    for block in blocks():
        if block.page != page or block.language != "python" or block.why_not is not None:
            continue
        file = re.match(r"# (\w+)\.py\n", block.text)
        if file:
            (tmp_path / f"{file[1]}.py").write_text(block.text)
            importlib.invalidate_caches()
            made.append(file[1])
            assert importlib.import_module(file[1]).build()
        else:
            exec(compile(block.text, str(block), "exec"), names)
    for each in made:
        sys.modules.pop(each, None)


@pytest.mark.parametrize("block", of_language("python", executed=False))
def test_python_that_is_not_run_is_python(block: Block) -> None:
    """And says why it is not run."""
    assert len(block.why_not or "") > 5
    compile("async def _():\n" + textwrap.indent(block.text, "    "), str(block), "exec")


@pytest.mark.parametrize("block", of_language("yaml", "toml"))
def test_settings_are_read(block: Block) -> None:
    """As YAML or TOML; a budget by the code that reads budgets."""
    content = yaml.safe_load(block.text) if block.language == "yaml" else tomllib.loads(block.text)
    assert content
    if "num_trials" in content:
        assert Budget.model_validate(content) == Budget()


def test_no_block_is_left_out() -> None:
    """Each page is read, each fence on it begins or ends a block, and each block is of a language that is checked."""
    pages = {path for folder in ("", "examples", "benchmarks") for path in (REPOSITORY / folder).glob("*.md")}
    unread = {name_of(each) for each in pages.union((REPOSITORY / "docs").rglob("*.md"))} - set(map(name_of, PAGES))
    assert unread <= {"CHANGELOG.md"}
    fence = re.compile(r"^[ >]*(?:`{3,}|~{3,})", re.MULTILINE)
    fences = {each: len(fence.findall(each.read_text(encoding="utf-8"))) for each in PAGES}
    found = Counter(each.page for each in blocks())
    assert {each: 2 * found[each] for each in PAGES} == fences
    assert {each.language for each in blocks()} <= {"", "sh", "bash", "console", "python", "yaml", "toml"}


def test_few_blocks_are_not_executed() -> None:
    """A block that is neither run nor checked needs what a test lacks, such as other machines, or it is output. The
    signatures of the reference are held by the test above."""
    skipped = {str(each): each.why_not for each in blocks() if each.why_not and each.why_not != "a signature"}
    assert {name_of(each.page) for each in blocks() if each.why_not == "a signature"} == {"docs/python-reference.md"}
    assert set(skipped.values()) <= {"output", "the last line of a model's function"} | {
        f"needs {each}"
        for each in (
            "several machines",
            "Slurm",
            "systemd",
            "torch",
            "mlflow",
            "tensorboard",
            "a trainer",
            "an environment with another release",
        )
    }
    assert len(skipped) < len(blocks()) / 6
