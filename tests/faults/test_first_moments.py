"""Faults around a command: an interrupt while it starts or ends, nowhere to print, a user without a home."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.command_line import called_as
from autotune.trial.toolchain import Toolchain
from autotune.user_folders import user_file
from autotune.workload.workload import file_reference
from tests.conftest import REPOSITORY, cli_command
from tests.faults.commands import command, refused

INTERRUPTED = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(0.01)\n"


def started(folder: Path, *command: str, **settings: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(REPOSITORY)])}
    how = {"stdout": subprocess.PIPE, **settings}
    return subprocess.run(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True, check=False, **how)  # type: ignore[call-overload, no-any-return]


class TestAnInterrupt:
    """Ctrl-C before a command has begun, or after it has ended: status 130 and one word, no traceback."""

    @pytest.mark.parametrize("module", ["typer", "optuna"])
    @pytest.mark.parametrize("program", [("cli.py",), ("-m", "autotune")], ids=" ".join)
    def test_while_modules_are_imported(self, tmp_path: Path, module: str, program: tuple[str, ...]) -> None:
        """That of the command line itself, and of a command: each stands for all of its phase."""
        (tmp_path / f"{module}.py").write_text(INTERRUPTED)
        called = [str(REPOSITORY / each) if each.endswith(".py") else each for each in program]
        ended = started(tmp_path, sys.executable, *called, "show", "s")
        assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "interrupted\n")

    def test_when_all_is_done(self, tmp_path: Path) -> None:
        """In what Python does at its end."""
        (tmp_path / "optuna.py").write_text(f"import atexit\natexit.register(lambda: exec({INTERRUPTED!r}))\n")
        (tmp_path / "run.py").write_text("import optuna\nfrom autotune.__main__ import main\nmain()\n")
        ended = started(tmp_path, sys.executable, "run.py", "--version")
        assert ended.stdout.startswith("autotune ")
        assert (ended.returncode, ended.stderr) == (130, "interrupted\n")

    def test_that_the_shell_has_ignored(self, tmp_path: Path) -> None:
        """A background job of a script is not ended by the script's Ctrl-C."""
        begins = f"from autotune.cli.app import at_begin\nat_begin.append(lambda: exec({INTERRUPTED!r}))\n"
        (tmp_path / "run.py").write_text(f"{begins}from autotune.__main__ import main\nmain()\n")
        ignored = lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)  # noqa: E731
        ended = started(tmp_path, sys.executable, "run.py", "models", preexec_fn=ignored)
        assert (ended.returncode, ended.stderr) == (0, "")


class TestAFullOutput:
    """`/dev/full` as standard output: exit status 2 and a sentence that names it."""

    @pytest.mark.parametrize(
        "arguments",
        [("--help",), ("--version",), ("tune", "--help"), ("models",), ("studies", "--json"), ("show", "s", "--json")],
        ids=" ".join,
    )
    def test_it_is_a_sentence(self, tmp_path: Path, arguments: tuple[str, ...]) -> None:
        """Whoever prints: the command line's own help, a table, a document, an error as a document."""
        with open("/dev/full", "w") as full:
            ended = started(tmp_path, *cli_command(*arguments), stdout=full)
        assert ended.returncode == 2
        assert "error: cannot write standard output: No space left on device\n" in ended.stderr
        assert "Traceback" not in ended.stderr
        assert "Exception ignored" not in ended.stderr

    def test_of_what_nobody_can_read(self, tmp_path: Path) -> None:
        """A full standard error changes neither the result nor the exit status."""
        with open("/dev/full", "w") as full:
            ended = subprocess.run(
                cli_command("show", "s"), cwd=tmp_path, stdout=subprocess.PIPE, stderr=full, check=False
            )
        assert ended.returncode == 2


def test_a_folder_that_was_removed(tmp_path: Path) -> None:
    """Whoever stands in it is told so, whatever the command."""
    line = f"mkdir gone && cd gone && rmdir ../gone && exec {' '.join(cli_command('studies'))}"
    ended = started(tmp_path, "bash", "-c", line)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: the current folder is not there any more\n")


class TestAUserWithoutAHome:
    """HOME unset under a number without an entry, as containers run: nothing needs a home."""

    @pytest.fixture(autouse=True)
    def _no_home(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def unknown(number: int) -> None:
            raise KeyError(f"getpwuid(): uid not found: {number}")

        for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(pwd, "getpwuid", unknown)

    def test_commands_work(self, here: Path) -> None:
        """There are no settings of the user, and no shared toolchain."""
        assert user_file() is None
        assert Toolchain.begin("torch", "2", {}) is None
        assert command("studies").exit_code == 0

    def test_a_path_from_home(self, here: Path) -> None:
        """`~` stands for nothing then: no such file."""
        from autotune.errors import InputError

        with pytest.raises(InputError, match="No such file"):
            file_reference("~/m.py", "build")


class TestAFolderWithoutPermission:
    """A place that this user may not look into: a sentence with its name, whatever is looked for there."""

    @pytest.fixture
    def closed(self, tmp_path: Path) -> Iterator[Path]:
        """A folder that only root may enter, and this process as another user."""
        if os.geteuid() != 0:
            pytest.skip("needs root, to become somebody else")
        folder = tmp_path / "closed"
        folder.mkdir(mode=0o700)
        for each in (tmp_path, *tmp_path.parents[:2]):
            each.chmod(0o755)
        for arguments in (("studies",), ("show", "s"), ("export", "s")):
            command(*arguments)  # Imports what it needs, which lies perhaps where only root may read.
        os.seteuid(54321)
        yield folder
        os.seteuid(0)

    def test_the_program_itself(self, closed: Path) -> None:
        """How it was called is found out without looking at all costs."""
        assert called_as(str(closed / "bin" / "autotune")) == str(closed / "bin" / "autotune")
        assert called_as(str(closed / "cli.py")) == "python -m autotune"

    def test_studies(self, closed: Path) -> None:
        """Exit status 2."""
        place = ("--studies-dir", str(closed / "studies"))
        for arguments in (("studies",), ("show", "s"), ("export", "s")):
            refused(command(*arguments, *place), "cannot use", str(closed), "Permission denied")
