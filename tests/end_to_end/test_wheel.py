"""The wheel that is built from this checkout works where there is no checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
import yaml

from tests import FAKE_BACKEND
from tests.conftest import MODEL_FILE, QUICK_BUDGET, REPOSITORY, SPACE_FILE

pytest.importorskip("hatchling", reason="the extra `dev` builds wheels")

DEMONSTRATIONS = {path.name for path in (REPOSITORY / "examples" / "models").glob("*.py")}
TORCH_MODEL = """
import torch

def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).eval(), (torch.randn(2, 8),)
"""
APPLY = """
import sys
import autotune
from my_model import build
assert "optuna" not in sys.modules
model = autotune.load("best.yaml").apply(build()[0])
assert not {"optuna", "sqlalchemy", "rich", "typer"} & set(sys.modules)
print(autotune.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    built = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("autotune_compile-*.whl")
    return path


class Installed:
    """The wheel in an environment of its own; other packages are those of the tests. Its commands run in `folder`."""

    def __init__(self, home: Path, wheel: Path, folder: Path) -> None:
        self.home, self.folder = home, folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
        python = home / "bin" / "python"
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--python", str(python)]
        subprocess.run([*pip, "install", "--no-deps", "--no-index", str(wheel)], check=True)
        # A .pth file adds a folder and does not read the .pth files in there: this checkout, installed with
        # `--editable`, stays out.
        packages = next(home.glob("lib/python*/site-packages"))
        (packages / "of_the_tests.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def run(self, command: str, *arguments: str) -> str:
        # The package that adds the fake framework lies beside: the wheel has none of it.
        variables = {**os.environ, "PYTHONPATH": FAKE_BACKEND}
        ran = subprocess.run(
            [str(self.home / "bin" / command), *arguments],
            cwd=self.folder, env=variables, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout


@pytest.fixture
def installed(wheel, tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    return Installed(tmp_path / "environment", wheel, folder)


def test_the_wheel_holds_every_file_of_the_package(wheel):
    """Modules, templates, search spaces, the licence, the type marker and the command; no tests, no studies."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        information = next(name.partition("/")[0] for name in names if ".dist-info/" in name)
        metadata = Parser().parsestr(archive.read(f"{information}/METADATA").decode())
        commands = archive.read(f"{information}/entry_points.txt").decode()
    package = REPOSITORY / "autotune"
    expected = {
        path.relative_to(REPOSITORY).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    expected |= {f"autotune/search_spaces/{path.name}" for path in (REPOSITORY / "search_spaces").glob("*.yaml")}
    assert {"autotune/py.typed", "autotune/search_spaces/torch.yaml"} <= expected
    assert any(name.startswith("autotune/render/html/") and not name.endswith(".py") for name in expected)
    assert {name for name in names if not name.startswith(information)} == expected
    assert not [name for name in names if "fake" in name or Path(name).name in DEMONSTRATIONS], "they stay here"
    assert f"{information}/licenses/LICENSE" in names
    assert "autotune = autotune.__main__:main" in commands
    doors = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["entry-points"]
    assert all(f"{name} = {value}" in commands for entries in doors.values() for name, value in entries.items())
    assert (metadata["Name"], metadata["License-Expression"]) == ("autotune-compile", "Apache-2.0")
    assert metadata["Description-Content-Type"] == "text/markdown"


def use(installed: Installed, model: str, *flags: str) -> None:
    """From a model to a job with the installed command, outside of the checkout."""
    (installed.folder / "my_model.py").write_text(model)
    tuned = installed.run("autotune", "tune", "--model", "my_model.py:build", "--device", "cpu", "--study", "s", *flags)
    assert tuned.strip()
    installed.run("autotune", "report", "s", "-o", "report.html")
    assert "<svg" in (installed.folder / "report.html").read_text()
    installed.run("autotune", "export", "s", "-o", "best.yaml")
    assert yaml.safe_load((installed.folder / "best.yaml").read_text())["verdict"]
    (home,) = installed.run("python", "-c", APPLY).split()
    assert Path(home).is_relative_to(installed.home)


@pytest.mark.slow
def test_an_installed_wheel_works_outside_of_the_checkout(installed):
    """`tune`, `report`, `export` and `apply` on the fake framework; `spaces` finds the bundled search spaces."""
    (installed.folder / "space.yaml").write_text(SPACE_FILE)
    (installed.folder / "budget.yaml").write_text(yaml.safe_dump(QUICK_BUDGET.model_dump(mode="json")))
    use(
        installed, MODEL_FILE.replace("def tiny(", "def build("), "--framework", "fake", "--space", "space.yaml",
        "--budget", "budget.yaml", "--trials", "3",
    )  # fmt: skip
    assert "execution" in installed.run("autotune", "spaces", "--framework", "torch")


@pytest.mark.slow
@pytest.mark.torch
def test_an_installed_wheel_tunes_a_real_model(installed, no_toolchain):
    """The same with PyTorch, from the bundled search space."""
    pytest.importorskip("torch")
    (installed.folder / "budget.yaml").write_text(yaml.safe_dump(QUICK_BUDGET.model_dump(mode="json")))
    use(installed, TORCH_MODEL, "--framework", "torch", "--effort", "quick", "--budget", "budget.yaml", "--trials", "2")
