"""The architecture as data: who may import whom, where foreign libraries live, and what an import costs."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from autotune.backends.contracts.compiler import Compiler
from autotune.backends.contracts.models import Models
from autotune.backends.contracts.runtime import Runtime
from autotune.backends.contracts.values import Values
from autotune.backends.protocol import Backend
from tests.import_graph import (
    PACKAGE,
    REPOSITORY,
    dotted_name,
    file_edges,
    floors,
    imports_of,
    lines,
    own_imports,
    package_edges,
    parsed,
    sources,
    unit_of,
)

ROWS: tuple[tuple[str, ...], ...] = (
    (
        *("errors", "command_line", "config", "doors", "environment", "files", "nesting", "own_folders", "schema"),
        *("user_folders", "version"),
    ),
    ("measure", "question"),
    ("workload", "models"),
    ("space", "tuned", "backends"),
    ("apply",),
    ("trial", "job"),
    ("study", "integrations"),
    ("bench",),
    ("planning",),
    ("tuning", "doctor"),
    ("verification", "answer"),
    ("render",),
    ("api",),
    ("autotune", "cli"),
    ("plugins",),
)
"""A package imports from the rows above its own only, and packages of one row do not import each other. `autotune` is
the front door, `autotune/__init__.py`; `autotune/__main__.py` counts as `cli`. The modules of the first row may import
each other. Imports for a type checker alone count, and modules that a string names, as those behind the public names of
`autotune` do."""

HOMES: dict[str, tuple[str, ...]] = {
    "torch": ("backends/torch/", "models/torch/", "plugins/engines/", "plugins/hubs/torch/", "plugins/watch/torch/"),
    "torch_npu": ("backends/torch/npu.py", "models/torch/"),
    "torchair": ("backends/torch/npu.py",),
    "transformers": (
        "integrations/hugging_face.py",
        "plugins/hubs/torch/",
        "backends/torch/static_cache.py",
        "backends/torch/generating.py",
    ),
    "huggingface_hub": ("plugins/hubs/torch/",),
    "timm": ("plugins/hubs/torch/",),
    "mindcv": ("plugins/hubs/mindspore/",),
    "mindone": ("plugins/hubs/mindspore/",),
    "mindyolo": ("plugins/hubs/mindspore/",),
    "triton": ("backends/torch/backend.py",),
    "pynvml": ("backends/torch/instruments.py",),
    "mindspore": (
        *("backends/mindspore/", "models/mindspore/", "plugins/hubs/mindspore/", "plugins/watch/mindspore/"),
        "integrations/mindspore.py",
    ),
    "optuna": ("study/", "planning/", "plugins/postgres/"),
    "scipy": ("study/sampler/", "measure/early_look.py"),
    "sqlalchemy": ("study/sqlite.py", "plugins/postgres/"),
    "psycopg": ("plugins/postgres/",),
    "ray": ("plugins/ray/cluster.py",),
    "prometheus_client": ("plugins/prometheus/collector.py",),
    "yaml": ("files.py",),
    "typer": ("cli/", "plugins/fleet/command.py", "plugins/upgrade/command.py", "plugins/watch/"),
    "rich": ("render/", "cli/", "plugins/explain/lines.py"),
    "jinja2": ("render/html/",),
    "matplotlib": ("render/html/",),
    "IPython": ("render/notebook.py",),
}
"""Foreign library -> the files, or folders, that may import it."""

FEATURES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "a cluster of workers": (
        r"autotune\.bench\.workers|\w*Neighbours\w*|NEIGHBOURS|LOST_TRIALS|Lost|Worker[A-Z]\w*",
        "bench/",
        (
            "plugins/ray/",
            "answer/sections/workers.py",
            "api/events.py",
            "render/progress.py",
            "tuning/attempts.py",
            "tuning/blocks.py",
            "tuning/events.py",
        ),
    ),
    "traffic": (
        r"\w*[Tt]raffic\w*|StreamInputs",
        "workload/traffic.py",
        (
            "answer/export.py",
            "answer/sections/traffic.py",
            "apply/shape_strategies.py",
            "job/uses/stream.py",
            "planning/shapes.py",
            "question/allows.py",
            "question/question.py",
            "trial/worker/calls/",
            "trial/worker/subjects/",
            "tuned/tuned_config.py",
            "tuning/events.py",
            "tuning/loop.py",
            "verification/",
            "workload/kinds/",
            "workload/workload.py",
        ),
    ),
    "the stream that a trial replays": (
        r"_?[Rr]eplay\w*",
        "trial/worker/calls/",
        (
            "answer/export.py",
            "answer/sections/traffic.py",
            "cli/studies.py",
            "measure/constraint.py",
            "measure/measurement.py",
            "trial/worker/measure.py",
            "tuning/estimate.py",
        ),
    ),
    "a kind of work by its name": (
        r"autotune\.workload\.kinds\.(infer|stream|train|text|pipeline)",
        "workload/kinds/",
        (
            "answer/sections/",
            "job/load.py",
            "job/uses/",
            "trial/worker/calls/",
            "trial/worker/subjects/",
            "tuned/tuned_config.py",
        ),
    ),
    "a finding about a study": (
        r"[A-Z]\w*Section|autotune\.answer\.sections\..*",
        "answer/sections/",
        (
            "api/result.py",
            "cli/running.py",
            "cli/studies.py",
            "plugins/diagnose/page.py",
            "plugins/explain/",
            "render/html/page.py",
            "render/live.py",
            "render/notebook.py",
            "render/terminal.py",
        ),
    ),
}
"""Feature -> what its names look like, its home, and the other files in which such names may stand."""
KIND_FOLDERS = (
    *("workload/kinds/", "trial/worker/subjects/", "trial/worker/calls/", "job/uses/", "answer/sections/"),
    *("models/", "workload/components.py", "workload/generation.py", "workload/traffic.py"),
    *("trial/worker/components.py", "job/components.py", "backends/torch/pipelines.py"),
)
ASKS_FOR_A_KIND = re.compile(
    r"\.(texts|prompts|recipe|components|shapes|traffic|replay|generated|own_loop)\b|\btask\b(?!')|\bPipeline(Model)?\b"
)
"""How a condition tells kinds of work apart: by the task, or by what a file or a measurement has of one kind alone."""
MOST_BRANCHES = 29
FOREIGN_FLAGS: dict[str, str] = {
    "backends/mindspore/knobs.py": "MindSpore's graph kernels are set by MS_DEV_GRAPH_KERNEL_FLAGS, a text of flags",
    "backends/torch/compile_cache.py": "a compiler's --version",
    "trial/toolchain.py": "a compiler's --version",
    "plugins/ray/cluster.py": "`ray start --head`",
    "study/sqlite.py": "`optuna storage upgrade --storage`",
    "plugins/watch/command.py": "`watch --for`: no parameter can be called so",
    "plugins/postgres/storage.py": "`optuna storage upgrade --storage`",
}
"""File outside of the faces -> whose flags, not ours, its texts hold."""

MOST_LINES = 600
MOST_ROWS = 15
MOST_FLOORS = 14
MOST_PACKAGES = 22
MOST_MODULES = 12
"""Beside `__init__.py`, at the top of the package."""

FOLLOWING = re.compile(r"rmtree|copytree|symlink(_to)?|hardlink_to|link|resolve|realpath")
"""Names of what removes or copies a folder, makes a link, or takes a link for what it leads to."""
FOLLOWS: dict[str, str] = {
    "own_folders.py": "the one place that does so in a folder of this tool's",
    "backends/torch/toolchain.py": "the user's caches",
    "trial/toolchain.py": "the user's caches, and links to them in a trial's folder for temporary files",
    "trial/processes.py": "this package's own folder",
    "trial/worker/main.py": "this package's own folder",
    "planning/spaces.py": "this package's own folder",
    "planning/models.py": "a file that the user names",
    "question/question.py": "a file that the user names",
    "workload/workload.py": "a file that the user names",
    "plugins/hubs/hubs.py": "a folder that the user names",
    "api/given_model.py": "the file of a function that was imported",
    "backends/mindspore/ascend.py": "the toolkit's folder",
    "doctor/__init__.py": "the disk that studies are on",
    "user_folders.py": "whether a folder is one that the user trusts",
}
"""File -> what it may follow links to, or remove without `own_folders`."""

MEANINGLESS = frozenset({"util", "common", "helper", "manager", "base", "data", "info"})


def place(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def row_of(unit: str) -> int:
    return next(number for number, row in enumerate(ROWS) if unit in row)


def test_the_table_and_the_files_agree() -> None:
    """Every package has exactly one row, and no row names a package that is gone; the table stays short."""
    assert len(ROWS) <= MOST_ROWS
    listed = [unit for row in ROWS for unit in row]
    assert sorted(listed) == sorted({unit_of(dotted_name(path)) for path in sources()})


def test_imports_are_from_rows_above_only() -> None:
    """A package imports from rows above its own only, wherever in a file the import stands."""
    wrong = [
        f"{place(path)}:{found.line} ({unit}, row {row_of(unit)}) imports {found.module} (row {row_of(target)})"
        for path in sources()
        for unit in [unit_of(dotted_name(path))]
        for found in own_imports(path)
        for target in [unit_of(found.module)]
        if unit != target and row_of(target) >= row_of(unit) and row_of(unit) > 0
    ]
    assert not wrong, "\n".join(wrong)


def test_the_core_knows_no_plugin() -> None:
    """Neither by an import nor in a string: what stands in `plugins` is found by its entry point alone, and one plugin
    knows no other."""
    speaks = [
        f"{place(path)}: {name}"
        for path in sources()
        for name in plugins_in(path)
        if not place(path).startswith(f"plugins/{name}/")
    ]
    assert not speaks, "\n".join(speaks)


def plugins_in(path: Path) -> set[str]:
    """Plugins that the code of a file names."""
    modules = {name.module for name in imports_of(path)} | {text.value for text in texts(parsed(path))}
    return {found[1] for module in modules for found in re.finditer(r"\bplugins[./](\w+)", module)}


def test_there_is_no_cycle() -> None:
    """Neither of packages nor of files, and at most thirteen packages stand on each other. The script
    that prints the graph shows every package."""
    assert max(floors(package_edges()).values()) <= MOST_FLOORS
    floors(file_edges())
    *printed, last = lines()
    assert {line.split()[1] for line in printed} == {unit for row in ROWS for unit in row}
    assert last.endswith("no cycle of packages, no cycle of files")


def test_the_listing_is_short() -> None:
    """What `ls autotune` shows can be read at a glance."""
    packages = [path for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()]
    modules = [path for path in PACKAGE.glob("*.py") if path.name != "__init__.py"]
    assert len(packages) <= MOST_PACKAGES
    assert len(modules) <= MOST_MODULES


def test_no_file_is_long() -> None:
    """A file that has grown past the limit holds more than one noun."""
    long = {place(path): n for path in sources() if (n := len(path.read_text().splitlines())) > MOST_LINES}
    assert not long


def test_foreign_libraries_stay_at_home() -> None:
    """A framework, the search engine or the terminal is imported in its own packages only."""
    wrong = [
        f"{place(path)}:{found.line} imports {found.module}"
        for path in sources()
        for found in imports_of(path)
        if (homes := HOMES.get(found.module.split(".")[0])) and not place(path).startswith(homes)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_is_known_at_home(feature: str) -> None:
    """Other files do not name what it is made of: its modules, classes and values."""
    pattern, home, others = FEATURES[feature]
    speaks = [
        f"{place(path)}: {', '.join(sorted(found))}"
        for path in sources()
        if not place(path).startswith((home, *others))
        and (found := {name for name in names_in(path) if re.fullmatch(pattern, name)})
    ]
    assert not speaks, "\n".join(speaks)


def test_few_places_tell_kinds_of_work_apart() -> None:
    """Outside of their folders code asks a kind for what it needs to know, and does not ask which it is."""
    asking = [
        f"{place(path)}:{test.lineno} {ast.unparse(test)}"
        for path in sources()
        if not place(path).startswith(KIND_FOLDERS)
        for test in conditions_in(parsed(path))
        if ASKS_FOR_A_KIND.search(ast.unparse(test))
    ]
    assert len(asking) <= MOST_BRANCHES, "\n".join(asking)


def conditions_in(tree: ast.AST) -> Iterator[ast.expr]:
    """What decides between two ways, or is returned or kept as such."""
    for node in ast.walk(tree):
        match node:
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) | ast.Match(subject=test):
                yield test
            case ast.comprehension(ifs=tests):
                yield from tests
            case ast.Return(value=ast.BoolOp() | ast.Compare() as test):
                yield test
            case ast.Assign(value=ast.BoolOp() | ast.Compare() as test):
                yield test


@cache
def names_in(path: Path) -> set[str]:
    """Every name that stands in the code of a file, and the modules that it imports."""
    found: set[str] = {name.module for name in imports_of(path)}
    for node in ast.walk(parsed(path)):
        for field in ("id", "attr", "arg", "name", "module"):
            name = getattr(node, field, None)
            found |= {name} if isinstance(name, str) else set()
    return found


FLAG = re.compile(r"(?<![\w-])--[a-z]")


def texts(tree: ast.AST) -> Iterator[ast.Constant]:
    """The constants of type text that are no docstrings."""
    docstrings = {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(body := getattr(node, "body", None), list)
        for statement in body
        if isinstance(statement, ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node


def test_only_the_command_line_names_a_flag() -> None:
    """Below it a field of the question is `marked("fixed_precision")`, which the face that shows the text words; a
    command to paste takes its flags from `command_line`."""
    naming = {
        place(path): found[0].lineno
        for path in sources()
        if not place(path).startswith(("cli/", "question/"))
        and (found := [text for text in texts(parsed(path)) if FLAG.search(text.value)])
    }
    assert naming.keys() == FOREIGN_FLAGS.keys(), naming


NOT_OF_TUNE = {"against", "anew", "instance", "knobs", "max_loss", "output"}
"""What is asked of other commands."""


def test_what_is_named_can_be_asked() -> None:
    """`marked("seed")` names a field that the question has."""
    from autotune.question.question import Question

    named = {
        node.args[0].value: f"{place(path)}:{node.lineno}"
        for path in sources()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "marked"
        if node.args and isinstance(node.args[0], ast.Constant)
    }
    assert not {field: where for field, where in named.items() if field not in {*Question.model_fields, *NOT_OF_TUNE}}


def test_one_module_follows_links_in_folders_of_this_tool() -> None:
    """A path of a study, or of a trial, is neither resolved nor cleared elsewhere than in `own_folders`."""
    following = {
        place(path): f"line {node.lineno}"
        for path in sources()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and FOLLOWING.fullmatch(node.func.attr)
        if ast.unparse(node.func.value) != "own_folders"
    }
    assert following.keys() == FOLLOWS.keys(), following


def test_the_script_at_the_root_only_calls_the_command_line() -> None:
    """cli.py at the root holds no code of its own, so that an installed command and a checkout do the same."""
    assert [found.module for found in imports_of(REPOSITORY / "cli.py")] == ["autotune.__main__"]


def test_a_module_is_named_after_what_it_holds() -> None:
    """No module is a drawer for everything: none is called util, common, helper, manager, base, data or info."""
    words = {
        word for path in sources() for part in dotted_name(path).split(".") for word in (part, part.removesuffix("s"))
    }
    assert not words & MEANINGLESS


def test_a_module_says_what_it_is() -> None:
    """Every file opens with a docstring, and a package with its rule."""
    assert not [place(path) for path in sources() if not (ast.get_docstring(parsed(path)) or "").strip()]


def loaded_by(code: str, folder: Path) -> set[str]:
    """Top-level modules that a fresh Python has loaded after `code`."""
    child = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*(name.split('.')[0] for name in sys.modules))"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(child.stdout.splitlines()[-1].split())


FRAMEWORKS = {"torch", "torch_npu", "mindspore"}
DRAWING = {"jinja2", "matplotlib"}


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("autotune", FRAMEWORKS | {"optuna", "sqlalchemy", "scipy", "pydantic", "numpy", "typer", "rich"} | DRAWING),
        ("autotune.tuned.tuned_config", FRAMEWORKS | {"optuna", "sqlalchemy", "scipy", "typer", "rich"}),
        ("autotune.models", FRAMEWORKS | {"optuna"}),
        ("autotune.tuning.loop", FRAMEWORKS | {"scipy", "typer", "rich"}),
        ("autotune.api.result, autotune.cli.studies", FRAMEWORKS | DRAWING),
    ],
)
def test_what_an_import_costs(tmp_path: Path, module: str, heavy: set[str]) -> None:
    """`import autotune` costs a job next to nothing, loading a config no search engine, and tuning no framework."""
    loaded = loaded_by(f"import {module}", tmp_path)
    assert "autotune" in loaded
    assert not loaded & heavy


def test_help_is_quick(tmp_path: Path) -> None:
    """`python cli.py --help` loads no framework, no search engine and no statistics: only the command line itself, and
    pydantic, of which the flags are made (85 ms, docs/decisions/0021-packages.md)."""
    child = subprocess.run(
        [sys.executable, "-X", "importtime", str(REPOSITORY / "cli.py"), "--help"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "tune" in child.stdout
    loaded = {line.rpartition("|")[2].strip().split(".")[0] for line in child.stderr.splitlines() if "|" in line}
    assert {"autotune", "typer"} <= loaded
    assert not loaded & (FRAMEWORKS | {"optuna", "sqlalchemy", "scipy", "numpy"})


def test_no_module_has_the_name_of_something_public() -> None:
    """Importing it would put the module in the place of the package's own function, such as `autotune.load`."""
    import autotune

    modules = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert not modules & {name for name in autotune.__all__ if not name.startswith("__")}


@pytest.mark.parametrize("contract", [Runtime, Values, Models, Compiler])
def test_a_contract_is_read_in_one_go(contract: type) -> None:
    """What each framework must offer is four protocols of at most 15 methods; everything else is a capability."""
    methods = [name for name, member in vars(contract).items() if inspect.isfunction(member) and name[0] != "_"]
    assert 5 <= len(methods) <= 15
    assert [name for name in vars(Backend) if name[0] != "_"] == []
