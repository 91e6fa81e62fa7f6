"""The house's plan as data: who may import whom, where foreign libraries live, and what an import costs."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "autotune"

ROWS: tuple[tuple[str, ...], ...] = (
    ("printable",),
    ("errors", "environment", "numerics", "changes", "ailment"),
    ("config", "measurement", "cures", "files", "machine_load", "room"),
    ("traffic", "profile", "grade", "adaptive"),
    (
        "shapes",
        "finding",
        "workload",
        "regions",
        "objective",
        "outlook",
        "timing",
        "disturbance",
        "statistics",
        "lease",
        "leftovers",
        "artifact",
        "buckets",
    ),
    ("space", "trial", "backends", "record", "passes"),
    ("strategy", "shaped", "toolchain", "belongings"),
    ("variants", "caches"),
    (
        "joint",
        "declaration",
        "memory",
        "subject",
        "check",
        "surrogate",
        "candidates",
        "importance",
        "tuned",
        "tiers",
        "backends.*",
        "culprit",
        "journal",
        "ladder",
        "warm_start",
    ),
    (
        "replay",
        "guard",
        "adaptation",
        "mismatch",
        "manifest",
        "forecast",
        "classes",
        "classmate",
        "trial_rows",
        "front",
        "deadline",
    ),
    ("inference", "training"),
    ("exercise", "sampler", "effects", "store"),
    ("reference", "rules", "application", "prometheus"),
    ("loaded",),
    ("tiered",),
    ("autotune", "worker", "study"),
    ("supervisor", "postmortem", "probe"),
    ("runner",),
    ("contest", "doctor", "models", "prewarm", "checkup"),
    ("budget", "breaker", "events", "reuse", "pace", "assignment", "prune"),
    ("workbench",),
    ("quiet",),
    ("noise", "confirm", "again", "tail", "counterparts", "lessons", "priors", "second_try"),
    ("timekeeper",),
    ("tune", "plan", "answer"),
    ("duel", "explain", "tiering"),
    ("verify",),
    ("report",),
    ("cli",),
)
"""A module imports only from rows above its own. A package counts as one, and its own modules may import each other;
`backends` is the contract and its table, `backends.*` the frameworks, each a module or several that share a first word;
`autotune` is the package's front door."""

HOMES: dict[str, tuple[str, ...]] = {
    "torch": ("backends/torch_", "models/torch/"),
    "torch_npu": ("backends/torch_compile.py", "models/torch/"),
    "torchair": ("backends/torch_apply.py",),
    "transformers": ("models/torch/",),
    "huggingface_hub": ("models/torch/",),
    "triton": ("backends/torch_compile.py",),
    "mindspore": ("backends/mindspore_", "models/mindspore/"),
    "optuna": ("study.py", "sampler.py", "importance.py", "store.py", "trial_rows.py", "plan.py"),
    "scipy": ("surrogate.py", "forecast.py"),
    "sqlalchemy": ("store.py",),
    "prometheus_client": ("prometheus.py",),
    "yaml": ("files.py",),
    "typer": ("cli/",),
    "rich": ("report/", "cli/"),
}
"""Foreign library -> the files, or folders, that may import it."""

OPTUNA_OUTSIDE_THE_STUDY: dict[str, frozenset[str]] = {
    "importance.py": frozenset({"create_study", "distributions", "importance", "trial"}),
    "sampler.py": frozenset({"samplers", "distributions", "trial", "Study"}),
    "store.py": frozenset({"storages", "exceptions", "logging", "trial"}),
    "trial_rows.py": frozenset({"trial", "distributions"}),
    "plan.py": frozenset({"__version__"}),
}
"""Making, loading, asking and telling a study is study.py's alone: here is what each other file may use."""

MEANINGLESS = frozenset({"util", "common", "helper", "manager", "base", "data", "info"})


@dataclass(frozen=True)
class Import:
    """One import in one file: `module` is the module that is loaded, as far as the file system can tell."""

    line: int
    module: str


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def place(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


each_source = pytest.mark.parametrize("path", sources(), ids=place)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below, but for what stands under `if TYPE_CHECKING`: a type checker alone reads that."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for otherwise in child.orelse:
                yield otherwise
                yield from at_run_time(otherwise)
        else:
            yield child
            yield from at_run_time(child)


def is_module(dotted: str) -> bool:
    where = REPOSITORY / dotted.replace(".", "/")
    return where.with_suffix(".py").is_file() or (where / "__init__.py").is_file()


def imports_of(path: Path) -> Iterator[Import]:
    """Imports at the top, in functions, and by `import_module` with a name written out."""
    for node in at_run_time(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write the import in full, so that it can be checked"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield Import(node.lineno, full if is_module(full) else str(node.module))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
            yield from (Import(node.lineno, str(arg.value)) for arg in node.args[:1] if isinstance(arg, ast.Constant))


def unit_of(dotted: str) -> str:
    """The table's name for a module of this package."""
    parts = dotted.split(".")[1:]
    if not parts:
        return "autotune"
    return "backends.*" if parts[0] == "backends" and len(parts) > 1 else parts[0]


def dotted_name(path: Path) -> str:
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def row_of(unit: str) -> int:
    return next(number for number, row in enumerate(ROWS) if unit in row)


def test_the_table_and_the_files_agree() -> None:
    """Every module has exactly one row, and no row names a module that is gone."""
    listed = [unit for row in ROWS for unit in row]
    assert sorted(listed) == sorted({unit_of(dotted_name(path)) for path in sources()})


@each_source
def test_imports_go_down_only(path: Path) -> None:
    """A module imports from rows above its own only, wherever in the file the import stands."""
    unit = unit_of(dotted_name(path))
    is_package = unit == "backends.*" or (unit != "autotune" and (PACKAGE / unit).is_dir())
    wrong = [
        f"{place(path)}:{each.line} ({unit}, row {row_of(unit)}) imports {each.module} (row {row_of(target)})"
        for each in imports_of(path)
        if each.module.split(".")[0] == "autotune"
        and (target := unit_of(each.module))
        and not (is_package and target == unit)
        and row_of(target) >= row_of(unit)
    ]
    assert not wrong


@each_source
def test_foreign_libraries_stay_at_home(path: Path) -> None:
    """One foreign library, one file: a framework, the search engine or the terminal is imported nowhere else."""
    wrong = [
        f"{place(path)}:{each.line} imports {each.module}"
        for each in imports_of(path)
        if (homes := HOMES.get(each.module.split(".")[0])) and not place(path).startswith(homes)
    ]
    assert not wrong


@pytest.mark.parametrize("file", OPTUNA_OUTSIDE_THE_STUDY)
def test_the_search_engine_is_used_in_one_file(file: str) -> None:
    """Beside study.py, optuna serves as a sampler in one file, as storage in one, and for its version in another."""
    used: set[str] = set()
    for node in at_run_time(parsed(PACKAGE / file)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "optuna":
            used.add(node.attr)
        elif isinstance(node, ast.Import):
            used.update(alias.name.split(".")[1] for alias in node.names if alias.name.startswith("optuna."))
            assert not any(alias.asname for alias in node.names if alias.name.startswith("optuna"))
        elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "optuna":
            parts = str(node.module).split(".")
            used.update([parts[1]] if len(parts) > 1 else [alias.name for alias in node.names])
    assert used
    assert used <= OPTUNA_OUTSIDE_THE_STUDY[file]


def test_the_script_at_the_root_only_calls_the_command_line() -> None:
    """cli.py at the root holds no code of its own, so that an installed command and a checkout do the same."""
    assert [each.module for each in imports_of(REPOSITORY / "cli.py")] == ["autotune.cli"]


@each_source
def test_a_module_is_named_after_what_it_holds(path: Path) -> None:
    """No module is a drawer for everything: none is called util, common, helper, manager, base, data or info."""
    words = {word for name in dotted_name(path).split(".") for word in (name, name.removesuffix("s"))}
    assert not words & MEANINGLESS


@each_source
def test_a_module_says_what_it_is(path: Path) -> None:
    """Every file opens with a docstring."""
    assert (ast.get_docstring(parsed(path)) or "").strip()


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


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("autotune", FRAMEWORKS | {"optuna", "sqlalchemy", "scipy", "pydantic", "numpy", "typer", "rich"}),
        ("autotune.tuned.tuned_config", FRAMEWORKS | {"optuna", "sqlalchemy", "scipy", "typer", "rich"}),
        ("autotune.models", FRAMEWORKS | {"optuna"}),
        ("autotune.tuning.loop", FRAMEWORKS | {"scipy", "typer", "rich"}),
    ],
)
def test_what_an_import_costs(tmp_path: Path, module: str, heavy: set[str]) -> None:
    """`import autotune` costs a job next to nothing, loading a config no search engine, and tuning no framework."""
    loaded = loaded_by(f"import {module}", tmp_path)
    assert "autotune" in loaded
    assert not loaded & heavy


def test_help_is_quick(tmp_path: Path) -> None:
    """`python cli.py --help` loads no framework, no search engine and no statistics: only the command line itself."""
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
    assert not loaded & (FRAMEWORKS | {"optuna", "sqlalchemy", "scipy", "numpy", "pydantic"})


def test_no_module_has_the_name_of_something_public() -> None:
    """Importing it would put the module in the place of the package's own function, such as `autotune.load`."""
    import autotune

    modules = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert not modules & {name for name in autotune.__all__ if not name.startswith("__")}
