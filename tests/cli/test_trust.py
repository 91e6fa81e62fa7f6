"""A foreign folder decides nothing that costs: no server is called, no variable set, no code run, nothing written
elsewhere, before the user has said so."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from autotune.cli import app
from autotune.cli.trust import INSIDE_A_PROJECT, OF_A_NAMED_FILE, OF_A_PROJECT
from tests.conftest import REPOSITORY, run_here

SERVERS = frozenset({"storage", "on"})
NOT_FOR_FILES = frozenset({"config", "dry-run", "json"})


class Listener:
    """A server of somebody else: it answers nothing, and knows who came."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self._hangs_up: threading.Thread | None = None
        self._has_hung_up = False
        self.port = self._socket.getsockname()[1]
        self.storage = f"postgresql://me@127.0.0.1:{self.port}/studies?connect_timeout=2"

    def hang_up(self) -> None:
        """End the first call, which then fails at once."""
        self._hangs_up = threading.Thread(target=self._hang_up)
        self._hangs_up.start()

    def _hang_up(self) -> None:
        self._socket.settimeout(30)
        with suppress(TimeoutError):
            self._socket.accept()[0].close()
            self._has_hung_up = True

    def was_called(self) -> bool:
        """The kernel takes a call in before the caller goes on."""
        if self._hangs_up is not None:
            self._hangs_up.join()
            return self._has_hung_up
        try:
            connection, _ = self._socket.accept()
        except BlockingIOError:
            return False
        connection.close()
        return True

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    monkeypatch.setenv("PGPASSWORD", "secret")
    monkeypatch.delenv("AUTOTUNE_STORAGE", raising=False)
    found = Listener()
    yield found
    found.close()


@pytest.fixture
def own_file(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own file, which is not there yet."""
    home = tmp_path_factory.mktemp("own")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    (home / "autotune").mkdir()
    return home / "autotune" / "config.toml"


def project(folder: Path, **settings: object) -> Path:
    lines = [f"{key.replace('_', '-')} = {json.dumps(value)}" for key, value in settings.items()]
    path = folder / "pyproject.toml"
    path.write_text("\n".join(["[tool.autotune]", *lines]) + "\n")
    return path


COMMANDS = (
    ("studies",), ("studies", "--json"), ("studies", "prune", "--yes"), ("studies", "rm", "s", "--yes"), ("show", "s"),
    ("explain", "s"), ("report", "s"), ("resume", "s"), ("run", "s", "0"), ("export", "s"),
    ("tune", "--model", "vit", "--framework", "torch", "--device", "cpu", "--dry-run"),
)  # fmt: skip


class TestServers:
    """A server that a file alone names is not called, so it gets no password; the sentence says why, and what to do."""

    @pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
    def test_of_a_foreign_folder(
        self, tmp_path: Path, listener: Listener, own_file: Path, command: tuple[str, ...]
    ) -> None:
        """Whatever is typed there."""
        project(tmp_path, storage=listener.storage, trials=3)
        result = run_here(tmp_path, *command)
        assert not listener.was_called()
        assert "Traceback" not in result.stderr
        (said,) = [line for line in result.stderr.splitlines() if "ignored" in line]
        assert said.startswith("pyproject.toml: ignored tool.autotune.storage")
        assert "--storage" in said
        assert f'trusted = ["{tmp_path}"] into {own_file}' in said

    @pytest.mark.parametrize("key", ["storage", "on"])
    def test_of_a_file_that_is_named(self, tmp_path: Path, listener: Listener, own_file: Path, key: str) -> None:
        """`--config` does not say that its servers are the user's."""
        value = listener.storage if key == "storage" else f"ray://127.0.0.1:{listener.port}"
        (tmp_path / "tune.yaml").write_text(f'"{key}": {value}\ntrials: 3\n')
        result = run_here(tmp_path, *COMMANDS[-1], "--config", "tune.yaml")
        assert not listener.was_called()
        assert result.returncode == 0, result.stderr
        assert f"tune.yaml: ignored {key}" in result.stderr
        assert "trials: 3 at most" in result.stdout

    @pytest.mark.parametrize("where", ["its own", "trusted", "below a trusted one", "typed", "environment"])
    def test_of_the_user(
        self, tmp_path: Path, listener: Listener, own_file: Path, monkeypatch: pytest.MonkeyPatch, where: str
    ) -> None:
        """What the user says is done: in the own file, of a folder that it trusts, on the command line."""
        pytest.importorskip("psycopg")
        flags: tuple[str, ...] = ()
        listener.hang_up()
        if where == "its own":
            own_file.write_text(f'storage = "{listener.storage}"\n')
        elif where == "typed":
            flags = ("--storage", listener.storage)
        elif where == "environment":
            monkeypatch.setenv("AUTOTUNE_STORAGE", listener.storage)
        else:
            project(tmp_path, storage=listener.storage)
            trusted = tmp_path if where == "trusted" else tmp_path.parent
            own_file.write_text(f'trusted = ["/nowhere", "{trusted}"]\n')
        result = run_here(tmp_path, "studies", *flags)
        assert listener.was_called()
        assert "ignored" not in result.stderr
        assert "cannot be reached" in result.stderr

    def test_a_folder_beside_a_trusted_one(self, tmp_path: Path, listener: Listener, own_file: Path) -> None:
        """Trust is of a folder and what is below it: not of a name that begins alike, nor through a link in it."""
        here = tmp_path / "work-of-others"
        here.mkdir()
        project(here, storage=listener.storage)
        (tmp_path / "work").mkdir()
        (tmp_path / "work" / "link").symlink_to(here)
        own_file.write_text(f'trusted = ["{tmp_path}/work"]\n')
        for folder in (here, tmp_path / "work" / "link"):
            run_here(folder, "studies")
            assert not listener.was_called()

    def test_a_file_behind_a_link(self, tmp_path: Path, listener: Listener, own_file: Path) -> None:
        """A link in a trusted folder to a file of somebody else is somebody else's."""
        (tmp_path / "others").mkdir()
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "pyproject.toml").symlink_to(project(tmp_path / "others", storage=listener.storage))
        own_file.write_text(f'trusted = ["{tmp_path}/mine"]\n')
        result = run_here(tmp_path / "mine", "studies")
        assert not listener.was_called()
        assert f'trusted = ["{tmp_path}/others"]' in result.stderr


class TestAFolder:
    """What `[tool.autotune]` of a folder may say, and what becomes of the rest."""

    REFUSED: tuple[tuple[str, object], ...] = (
        ("storage", "postgresql://me@127.0.0.1/x"),
        ("on", "ray"),
        ("env", ["LD_PRELOAD=./evil.so"]),
        ("model", ["evil.py:build"]),
        ("model-arg", ["path=/etc/passwd"]),
        ("space", ["space.yaml"]),
        ("sampler", "evil:Sampler"),
        ("prior", ["other.yaml"]),
        ("report", "report.html"),
        ("process-settings", True),
        ("jobs", 10_000),
        ("studies-dir", "../elsewhere"),
        ("studies-dir", "/tmp/elsewhere"),
        ("studies-dir", "inside/../../elsewhere"),
        ("studies-dir", "link"),
        ("studies-dir", "link/below"),
        ("studies-dir", "~/elsewhere"),
        ("inputs", "~/calls.pt"),
        ("traffic", "/var/log/traffic.jsonl"),
        ("budget", "../budget.yaml"),
    )

    @pytest.mark.parametrize(("key", "value"), REFUSED)
    def test_it_decides_no_more_than_it_may(self, tmp_path: Path, own_file: Path, key: str, value: object) -> None:
        """The key is named and has no effect; the rest of the table has."""
        folder = tmp_path / "folder"
        folder.mkdir()
        (folder / "link").symlink_to(tmp_path)
        project(folder, **{key: value, "trials": 3})
        result = run_here(folder, *COMMANDS[-1])
        assert result.returncode == 0, result.stderr
        assert f"pyproject.toml: ignored tool.autotune.{key}:" in result.stderr
        assert f"give --{key} yourself" in result.stderr
        assert "trials: 3 at most" in result.stdout
        assert f"--{key} from" not in result.stdout
        assert list(tmp_path.iterdir()) == [folder]

    @pytest.mark.parametrize("by", ["project", "user"])
    def test_it_decides_no_number_of_processes(self, tmp_path: Path, own_file: Path, by: str) -> None:
        """What takes memory is for the user: instances and trials side by side, by a budget's file as well."""
        folder = tmp_path / "folder"
        folder.mkdir()
        (folder / "budget.yaml").write_text("num_jobs: 64\n")
        project(folder, instances="auto", jobs=64, budget="budget.yaml")
        if by == "user":
            own_file.write_text(f'trusted = ["{folder}"]\n')
        result = run_here(folder, *COMMANDS[-1])
        for key in ("instances", "jobs", "budget"):
            assert (f"tool.autotune.{key}" in result.stderr) is (by == "project")

    def test_no_variable_reaches_a_process(self, tune_fake: Callable, tmp_path: Path, own_file: Path) -> None:
        """The measured processes have none of the folder's; once the folder is trusted they have."""
        project(tmp_path, env=["FROM_A_FOLDER=1"])
        assert tune_fake("--trials", "1").returncode == 0
        (tmp_path / "studies" / "s").rename(tmp_path / "studies" / "before")
        own_file.write_text(f'trusted = ["{tmp_path}"]\n')
        assert tune_fake("--trials", "1").returncode == 0
        requests = [tmp_path / "studies" / each / "trials" / "0000" / "request.json" for each in ("before", "s")]
        assert [json.loads(each.read_text())["variables"] for each in requests] == [{}, {"FROM_A_FOLDER": "1"}]

    def test_what_lies_in_the_folder_is_taken(self, tmp_path: Path, own_file: Path) -> None:
        """Studies, traffic and a budget of its own, without a word."""
        (tmp_path / "budget.yaml").write_text("num_trials: 7\n")
        project(tmp_path, studies_dir=str(tmp_path / "own"), budget="budget.yaml")
        result = run_here(tmp_path, *COMMANDS[-1])
        assert "ignored" not in result.stderr
        assert "trials: 7 at most" in result.stdout

    def test_a_folder_above_decides_nothing(self, tmp_path: Path, listener: Listener, own_file: Path) -> None:
        """Only the current folder's file is read."""
        project(tmp_path, storage=listener.storage, trials=3)
        (tmp_path / "below").mkdir()
        assert "trials: 3" not in run_here(tmp_path / "below", *COMMANDS[-1]).stdout
        assert not listener.was_called()

    def test_every_flag_is_decided_on(self) -> None:
        """A new flag of `tune` is nobody's but the user's until it is put on a list."""
        import typer.main

        parameters = typer.main.get_command(app).commands["tune"].params  # type: ignore[attr-defined]
        flags = {max(each.opts, key=len).lstrip("-") for each in parameters if each.param_type_name == "option"}
        assert flags - {"help-all"} == OF_A_NAMED_FILE | SERVERS | NOT_FOR_FILES
        assert OF_A_PROJECT | INSIDE_A_PROJECT < OF_A_NAMED_FILE
        assert not (OF_A_NAMED_FILE & SERVERS)

    def test_the_page_has_the_lists(self) -> None:
        """docs/security.md names each flag that a folder may set."""
        page = (REPOSITORY / "docs" / "security.md").read_text()
        assert {each for each in OF_A_PROJECT | INSIDE_A_PROJECT if f"`{each}`" not in page} == set()


class TestTheUsersFile:
    """`~/.config/autotune/config.toml`."""

    def test_it_counts_least(self, tmp_path: Path, own_file: Path) -> None:
        """Its flags are those of every project that says nothing else."""
        own_file.write_text('trials = 5\nenv = ["MINE=1"]\n')
        said = run_here(tmp_path, *COMMANDS[-1]).stdout
        assert "trials: 5 at most" in said
        assert f"--env from {own_file}" in said
        project(tmp_path, trials=3)
        said = run_here(tmp_path, *COMMANDS[-1]).stdout
        assert "trials: 3 at most" in said
        assert "--trials from pyproject.toml" in said

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("trusted = '/here'", "key trusted: is not a list of absolute paths"),
            ("trusted = ['.']", "key trusted: is not a list of absolute paths"),
            ("trusted = ['']", "key trusted: is not a list of absolute paths"),
            ("trusted = [1]", "key trusted: is not a list of absolute paths"),
            ("trustd = []", "key trustd: no such flag"),
            ("trials = ", "is not valid TOML"),
            ("trials = 0x" + "f" * 5000, "key trials: the number is too large"),
            ("trials = " + "9" * 5000, "is not valid TOML"),
            ('study = "a\\u0000"', "null characters"),
            ("trials = " + "[" * 10_000, "is not valid TOML"),
        ],
    )
    def test_a_mistake_is_a_sentence(self, tmp_path: Path, own_file: Path, text: str, words: str) -> None:
        """With the file and the key, and exit status 2."""
        own_file.write_text(text + "\n")
        result = run_here(tmp_path, *COMMANDS[-1])
        assert (result.returncode, "Traceback" in result.stderr) == (2, False)
        assert str(own_file) in result.stderr
        assert words in result.stderr
        assert len(result.stderr) < 1500

    @pytest.mark.parametrize("home", ["", ".", None])
    def test_a_home_that_is_no_folder(
        self, tmp_path: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch, home: str | None
    ) -> None:
        """The current folder is never taken for the user's own, whatever HOME says."""
        monkeypatch.delenv("XDG_CONFIG_HOME")
        if home is None:
            monkeypatch.setenv("XDG_CONFIG_HOME", ".")
            monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))
        else:
            monkeypatch.setenv("HOME", home)
        for place in (tmp_path / ".config" / "autotune", tmp_path / "autotune"):
            place.mkdir(parents=True)
            (place / "config.toml").write_text(f'storage = "{listener.storage}"\n')
        with suppress(OSError):
            os.stat("/.config/autotune/config.toml")
            pytest.skip("this machine has one at its root")
        assert run_here(tmp_path, "studies").returncode == 0
        assert not listener.was_called()
