"""Faults of storage and of files: nothing recorded is lost, nothing of the user's is removed, one sentence each."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.errors import InputError, StoreError
from autotune.files import write_whole
from autotune.measure.accuracy import load_reference, save_reference
from autotune.measure.measurement import Measurement
from autotune.study import own_files, sqlite
from autotune.study.folder import FolderStudies
from autotune.study.study import Study
from autotune.trial.folder import FIRST_CRASH
from autotune.trial.processes import package_path
from autotune.tuned.cache_file import CacheFile, pack, read_verified
from autotune.tuned.tuned_config import load_tuned, require_replaceable
from tests.asking import ask
from tests.conftest import MODEL_FILE, QUICK_BUDGET, REPOSITORY, SPACE_FILE, cli_environment, run_here
from tests.faults.commands import a_pipe, command, refused
from tests.tuned.test_cache_file import KEY


def contents(folder: Path) -> dict[str, bytes | str]:
    """Every file and link below a folder."""
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def tell(study: Study, outcome: Any, number: int = 1) -> None:
    for _ in range(number):
        study.tell(ask(study), outcome)


@pytest.fixture(scope="module")
def tuned_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a whole study, `studies/s`, made by the command line. Not to be changed."""
    folder = tmp_path_factory.mktemp("tuned")
    (folder / "tiny_model.py").write_text(MODEL_FILE)
    (folder / "space.yaml").write_text(SPACE_FILE.replace("[right, breaks, wrong, compile_error]", "[right]"))
    (folder / "budget.yaml").write_text(QUICK_BUDGET.model_dump_json(exclude={"num_trials", "limits"}))
    child = run_here(
        folder, "tune", "--model", "tiny_model.py:tiny", "--framework", "fake", "--device", "cpu", "--space",
        "space.yaml", "--study", "s", "--budget", "budget.yaml", "--trials", "3",
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    return folder


@pytest.fixture
def tuned(tuned_folder: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(tuned_folder, tmp_path / "tuned")


class TestTheUsersOwnFiles:
    """Nothing is removed that the tool did not make."""

    def test_they_survive_failed_attempts(self, tune_fake, model_file: Path, tmp_path: Path) -> None:
        """Notes and checkpoints where a study is to be: a model file with a mistake leaves them alone, twice."""
        model_file.write_text("def tiny():\n    raise ValueError('my mistake')\n")
        study = tmp_path / "studies" / "s"
        own = {"thesis.txt": b"my thesis", "checkpoints/last.pt": b"weights", "trials/notes.md": b"notes"}
        for name, content in own.items():
            (study / name).parent.mkdir(parents=True, exist_ok=True)
            (study / name).write_bytes(content)
        for _ in range(2):
            result = tune_fake()
            assert result.returncode == 2
            assert "my mistake" in result.stderr
            assert {name: (study / name).read_bytes() for name in own} == own
        assert not (study / "study.db").exists()

    def test_all_that_a_study_makes_is_known_by_name(self, tuned: Path) -> None:
        """After a whole run nothing lies in the folder that is not on the list; cleared, only the lock is left."""
        study = tuned / "studies" / "s"
        assert {path.name for path in study.iterdir()} <= {*own_files.FILES, *own_files.FOLDERS, own_files.LOCK}
        (study / "trials" / "0001" / FIRST_CRASH).mkdir()
        (study / "trials" / "0001" / FIRST_CRASH / "stderr.txt").write_text("Segmentation fault")
        own_files.clear_study(study)
        assert list(contents(study)) == [own_files.LOCK]
        assert [path.name for path in study.iterdir()] == [own_files.LOCK]

    def test_what_stands_beside_stays(self, tuned: Path, tmp_path: Path) -> None:
        """In every folder of a study, also under names that the tool uses elsewhere; and links are not followed."""
        study, outside = tuned / "studies" / "s", tmp_path / "outside"
        shutil.copytree(study / "trials" / "0000", outside)
        own = [
            "thesis.txt", "checkpoints/cache/last.pt", "checkpoints/study.db", "trials/0000/notes.md",
            "trials/mine/outcome.json", "trials/mine/cache/x", "confirm/why.txt", "caches/model.pt", "caches/mine/0001",
            "tail/stdout.txt", "again/plan/key.json",
        ]  # fmt: skip
        for name in own:
            (study / name).parent.mkdir(parents=True, exist_ok=True)
            (study / name).write_text(name)
        (study / "caches" / "0001").mkdir()
        (study / "caches" / "0001.whole").touch()
        for link in ("results", "trials/0099", "artifact", "noise_floor/cache", "reference.partial"):
            shutil.rmtree(study / link, ignore_errors=True)
            (study / link).parent.mkdir(exist_ok=True)
            (study / link).symlink_to(outside)
        before = contents(outside)
        own_files.clear_study(study)
        links = {"results", "trials/0099", "artifact", "noise_floor/cache", "reference.partial"}
        assert set(contents(study)) == {*own, *links, own_files.LOCK}
        assert contents(outside) == before

    def test_a_cache_folder_of_the_users_does_not_end_a_search(self, tmp_path: Path) -> None:
        """Folders on the shelf of caches that are no trial's are passed over."""
        from autotune.tuning.cache_store import CacheStore

        (tmp_path / "caches" / "mine").mkdir(parents=True)
        (tmp_path / "caches" / "mine.whole").write_text("mine")
        shelf = CacheStore(tmp_path / "caches")
        with shelf.open():
            shelf.keep([1])
        assert contents(tmp_path) == {"caches/mine.whole": b"mine"}
        assert (tmp_path / "caches" / "mine").is_dir()

    @pytest.mark.parametrize("name", ["thesis.txt", "best.cache"])
    def test_an_export_replaces_exports_only(self, tmp_path: Path, name: str) -> None:
        """A file that `-o` names by mistake, or that has the name of the artifact, stays."""
        path = tmp_path / name
        path.write_text("my own words")
        with pytest.raises(InputError, match="was not written by autotune"):
            require_replaceable(path)
        for replaceable in ("", "schema: 1\n", "# The best compile configuration found by autotune"):
            path.write_text(replaceable)
            require_replaceable(path)

    @pytest.mark.parametrize("flags", [[], ["--with-cache"]])
    def test_export_asks_that_first(self, tuned: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str]) -> None:
        """Nothing is measured or written before."""
        monkeypatch.chdir(tuned)
        own = Path("best.cache" if flags else "best.yaml")
        own.write_text("my own words")
        refused(command("export", "s", "-o", "best.yaml", *flags), str(own), "was not written by autotune")
        assert own.read_text() == "my own words"

    def test_a_device_is_not_replaced_by_a_file(self, tmp_path: Path) -> None:
        """`-o /dev/null` as root would be the end of it."""
        pipe = tmp_path / "best.yaml"
        os.mkfifo(pipe)
        with pytest.raises(OSError, match="not a plain file"):
            write_whole(pipe, "text")
        assert pipe.is_fifo()


class TestLinksOfOthers:
    """In a folder that others may write, no link of theirs has another file overwritten, whatever its name."""

    @pytest.fixture
    def victim(self, tmp_path: Path) -> Path:
        path = tmp_path / "thesis.txt"
        path.write_text("mine")
        return path

    @pytest.fixture
    def _known_names(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As if the name could be foreseen."""
        monkeypatch.setattr("secrets.token_hex", lambda _: "0")

    @pytest.mark.usefixtures("_known_names")
    def test_at_the_temporary_name(self, tmp_path: Path, victim: Path) -> None:
        """Even where it is guessed: the write fails, and neither the link nor what it leads to is touched."""
        link = tmp_path / ".best.yaml.0.partial"
        link.symlink_to(victim)
        (tmp_path / ".new.yaml.0.partial").symlink_to(tmp_path / "not there")
        for name in ("best.yaml", "new.yaml"):
            with pytest.raises(OSError, match="File exists"):
                write_whole(tmp_path / name, "text")
            assert not (tmp_path / name).exists()
        assert link.is_symlink()
        assert victim.read_text() == "mine"
        assert not (tmp_path / "not there").exists()

    def test_at_names_that_can_be_foreseen(self, tmp_path: Path, victim: Path) -> None:
        """Those of the file, of its process and of its kind; the file itself takes a link's place."""
        names = (f".best.yaml.{os.getpid()}.partial", "best.yaml.partial", "best.partial", "best.yaml")
        for each in names:
            (tmp_path / each).symlink_to(victim)
        write_whole(tmp_path / "best.yaml", "text")
        assert victim.read_text() == "mine"
        assert (tmp_path / "best.yaml").read_text() == "text"
        assert not (tmp_path / "best.yaml").is_symlink()
        assert all((tmp_path / each).is_symlink() for each in names[:-1])

    def test_of_the_reference(self, tmp_path: Path, victim: Path) -> None:
        """The outputs that configs are compared with are no way in either."""
        for each in ("reference.partial", "reference.npz.partial", "reference.npz"):
            (tmp_path / each).symlink_to(victim)
        save_reference(tmp_path / "reference.npz", [[np.arange(3.0)]])
        assert victim.read_text() == "mine"
        assert load_reference(tmp_path / "reference.npz")[0][0].tolist() == [0.0, 1.0, 2.0]

    @pytest.mark.usefixtures("_known_names")
    def test_an_export_says_so(self, tuned: Path, monkeypatch: pytest.MonkeyPatch, victim: Path) -> None:
        """One sentence, exit status 2."""
        monkeypatch.chdir(tuned)
        Path(".best.yaml.0.partial").symlink_to(victim)
        refused(command("export", "s", "-o", "best.yaml"), "cannot write best.yaml: File exists")
        assert victim.read_text() == "mine"


EDITS: dict[str, Callable[[dict[str, Any]], object]] = {
    "another framework": lambda m: m["workload"].update(framework="torch"),
    "a further framework": lambda m: m.update(
        others=[{"workload": m["workload"], "framework_version": "0", "space_file": "x.yaml"}]
    ),
    "name of a knob": lambda m: m["space"]["knobs"][0].update(name="nosuch"),
    "untuned": lambda m: m["space"]["knobs"][0].update(untuned="nosuch"),
    "name": lambda m: m.update(name="other"),
    "null": lambda m: m.update(workload=None),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_manifest(tuned: Path, monkeypatch: pytest.MonkeyPatch, edit: str) -> None:
    """Every command has one sentence, that names the file or the study; the others of the folder are listed."""
    monkeypatch.chdir(tuned)
    path = Path("studies/s/manifest.json")
    content = json.loads(path.read_text())
    EDITS[edit](content)
    path.write_text(json.dumps(content))
    before = contents(tuned)
    for verb in ("show", "export", "explain", "report", "resume"):
        result = command(verb, "s")
        refused(result, "error: ")
        assert result.stderr.count("\n") == 2, result.stderr
        assert "manifest.json" in result.stderr or "study.db" in result.stderr
    assert command("studies").exit_code == 0
    assert {name: each for name, each in contents(tuned).items() if "study.db" not in name} == {
        name: each for name, each in before.items() if "study.db" not in name
    }


READING = """
import json, sys
from typer.testing import CliRunner
from autotune.cli import app
done = {}
for text in json.loads(sys.argv[1]):
    result = CliRunner().invoke(app, text.split())
    done[text] = [result.exit_code, result.stdout, result.stderr]
print(json.dumps(done))
"""


class TestReadOnly:
    """Reading a study needs no write; what writes says that it cannot."""

    def run(self, folder: Path, *texts: str) -> dict[str, list[Any]]:
        """Commands in a process for which the studies' folder is read-only."""
        plain = [sys.executable, "-c", READING, json.dumps(texts)]
        if os.geteuid() != 0:
            subprocess.run(["chmod", "-R", "a-w", "studies"], cwd=folder, check=True)
        else:  # Root writes where it likes, but for a file system that takes nothing.
            if subprocess.run(["unshare", "-m", "mount", "--bind", "/", "/"], check=False).returncode:
                pytest.skip("root, and not allowed to mount")
            mount = 'mount --bind -o ro studies studies && exec "$@"'
            plain = ["unshare", "-m", "sh", "-c", mount, "sh", *plain]
        child = subprocess.run(
            plain, cwd=folder, env={**cli_environment(), "PYTHONPATH": package_path()}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert child.returncode == 0, child.stderr
        done: dict[str, list[Any]] = json.loads(child.stdout)
        return done

    def test_reading_works_and_writing_is_refused(self, tuned: Path) -> None:
        """`show`, `explain`, `studies` and `export` elsewhere; `run`, `resume`, a new study and the cache do not."""
        before = contents(tuned / "studies")
        reading = ["show s", "show s --json", "explain s", "studies --json", "export s -o ../out.yaml"]
        writing = ["run s 0", "resume s", "export s -o ../o2.yaml --with-cache", "export s -o studies/best.yaml"]
        done = self.run(tuned, *reading, *writing)
        for text in reading:
            assert done[text][0] == 0, done[text]
        assert "faster" in done["show s"][1]
        assert len(json.loads(done["show s --json"][1])["trials"]) == 3
        assert json.loads(done["studies --json"][1])[0]["verdict"] == "faster"
        assert not load_tuned(tuned.parent / "out.yaml").is_untuned
        for text in writing:
            code, stdout, stderr = done[text]
            assert (code, stdout) == (2, ""), done[text]
            assert "error: " in stderr
            assert "cannot" in stderr
            assert "tip: " in stderr
        assert contents(tuned / "studies") == before

    def test_a_study_that_was_not_closed(self, tuned: Path) -> None:
        """What the dead run had not folded into the file cannot be read without a write: older trials are not shown as
        all there are."""
        database = tuned / "studies" / "s" / "study.db"
        script = (
            "import os, sqlite3, sys; connection = sqlite3.connect(sys.argv[1])\n"
            "connection.execute('CREATE TABLE more (x)'); connection.commit(); os._exit(9)"
        )
        subprocess.run([sys.executable, "-c", script, str(database)], check=False)
        assert database.with_name("study.db-wal").stat().st_size > 0
        database.with_name("study.db-shm").unlink()
        code, _, stderr = self.run(tuned, "show s")["show s"]
        assert code == 2
        assert "was not closed by the run that wrote it" in stderr
        assert "copy the study" in stderr


class TestAFullDisk:
    """The run stops with what to do; once there is room it goes on, and every outcome that was told is there."""

    @pytest.fixture
    def disk(self, tmp_path: Path) -> Iterator[Path]:
        """A file system of 2 MiB."""
        place = tmp_path / "disk"
        place.mkdir()
        with suppress(FileNotFoundError):
            mounted = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True, check=False
            )
            if mounted.returncode == 0:
                yield place
                subprocess.run(["umount", "-l", str(place)], check=True)
                return
        pytest.skip("not allowed to mount a small file system")

    @staticmethod
    def fill(disk: Path) -> Path:
        ballast = disk / "ballast"
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"x" * 4096)
        return ballast

    def test_no_outcome_is_lost(self, disk: Path, make_manifest, measurement: Measurement) -> None:
        """An outcome that cannot be written is told again afterwards; the manifest and the others are whole."""
        study = FolderStudies(disk / "studies").create(make_manifest())
        tell(study, measurement, 2)
        asked = ask(study)
        ballast = self.fill(disk)
        with pytest.raises(StoreError, match="the disk is full") as caught:
            study.write_attribute("ballast", "x" * 1_000_000)
        assert "free some space" in str(caught.value.tip)
        with suppress(StoreError):  # It may just fit into pages that are free.
            study.tell(asked, measurement)
        ballast.unlink()
        study.close()
        again = FolderStudies(disk / "studies").open("s")
        assert [each.outcome for each in again.records()[:2]] == [measurement, measurement]
        with again.writing():
            tell(again, measurement)
        assert again.num_recorded() >= 3

    def test_every_write_is_a_sentence(self, disk: Path, tuned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What could not be written, and no half a file; reading a study takes no room."""
        shutil.copytree(tuned / "studies", disk / "studies")
        monkeypatch.chdir(disk)
        before = contents(disk)
        ballast = self.fill(disk)
        refused(command("export", "s", "-o", "best.yaml"), "cannot write best.yaml: No space left on device")
        refused(command("run", "s", "0"), "study.db cannot grow: the disk is full", "free some space")
        with pytest.raises(StoreError, match="the disk is full"), FolderStudies(disk / "studies").open("s").writing():
            pass
        assert json.loads(command("show", "s", "--json").stdout)["verdict"] == "faster"
        ballast.unlink()
        assert contents(disk) == before
        result = command("export", "s", "-o", "best.yaml")
        assert result.exit_code == 0, result.output

    def test_an_error_of_the_disk_is_no_bug(self, monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
        """Wherever it strikes: exit status 2, the file and what to do; other errors of the system keep a traceback."""
        for number, words in (
            (28, "free some space"),
            (30, "--studies-dir"),
            (27, "ulimit -f"),
            (36, "a shorter name"),
        ):

            def fails(*_: object, number: int = number) -> None:
                raise OSError(number, os.strerror(number), "studies/s/trials/0001/request.json")

            monkeypatch.setattr("autotune.doctor.examine", fails)
            verb = "use" if number == errno.ENAMETOOLONG else "write"
            refused(command("doctor"), f"cannot {verb} studies/s/trials/0001/request.json", words)
        monkeypatch.setattr("autotune.doctor.examine", lambda *_: os.stat("/nowhere"))
        assert isinstance(command("doctor").exception, FileNotFoundError)

    def test_a_limit_of_file_sizes(self, make_study, measurement: Measurement, tmp_path: Path) -> None:
        """`ulimit -f`: the database says so, and what was told stays."""
        study = make_study()
        tell(study, measurement, 2)
        study.close()
        script = (
            "import resource, sys; from pathlib import Path; from autotune.study.folder import FolderStudies\n"
            "study = FolderStudies(Path(sys.argv[1])).open('s')\n"
            "size = (Path(sys.argv[1]) / 's' / 'study.db').stat().st_size\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))\n"
            "for number in range(99): study.write_attribute('ballast', 'x' * 50_000 * (number + 1))"
        )
        child = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "studies")],
            cwd=REPOSITORY, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert re.search(r"StoreError: .*study.db cannot grow: a file may have [\d,]+ bytes here", child.stderr), (
            child.stderr
        )
        assert len(FolderStudies(tmp_path / "studies").open("s").records()) == 2


class TestDatabase:
    """What is wrong with the file is said in a sentence that names it; the file is never touched."""

    @pytest.fixture
    def database(self, make_study, measurement):
        study = make_study()
        tell(study, measurement, 2)
        study.close()
        return study.folder / "study.db"

    def refused(self, tmp_path, words):
        with pytest.raises(StoreError, match=words) as caught:
            FolderStudies(tmp_path / "studies").open("s")
        assert "study.db" in str(caught.value)
        assert caught.value.tip

    def test_missing(self, database, tmp_path):
        """Optuna would create an empty one; we do not."""
        database.unlink()
        self.refused(tmp_path, "is missing")
        assert not database.exists()

    @pytest.mark.parametrize("content", [b"", b"this is a text file, and long enough to be one\n" * 50])
    def test_no_database(self, database, tmp_path, content):
        """An empty file or a text file is not taken for a new study."""
        database.write_bytes(content)
        self.refused(tmp_path, "is no study's database" if not content else "is not a SQLite database")
        assert database.read_bytes() == content

    def test_foreign(self, database, tmp_path):
        """Another program's database is recognised."""
        database.unlink()
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("CREATE TABLE songs (name TEXT)")
            connection.commit()
        self.refused(tmp_path, "is no study's database")

    def test_damaged_in_the_middle(self, database, tmp_path):
        """A page of rubbish is found when the study is opened, not in the middle of the night."""
        content = bytearray(database.read_bytes())
        content[4096 * 3 : 4096 * 20] = b"\xa5" * (4096 * 17)
        database.write_bytes(bytes(content))
        self.refused(tmp_path, "is damaged")

    def test_another_schema(self, database, tmp_path):
        """A database of another Optuna release says how to upgrade it."""
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("UPDATE alembic_version SET version_num = 'v2.6.0.a'")
            connection.commit()
        self.refused(tmp_path, "schema of another Optuna release")

    def test_the_name_within_is_checked(self, database, tmp_path):
        """A folder that was renamed holds a study of another name."""
        database.parent.rename(tmp_path / "studies" / "renamed")
        manifest = tmp_path / "studies" / "renamed" / "manifest.json"
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "name": "renamed"}))
        with pytest.raises(StoreError, match="holds no study named 'renamed'"):
            FolderStudies(tmp_path / "studies").open("renamed")

    def test_locked(self, database, tmp_path, measurement, monkeypatch):
        """A lock that outlasts the timeout is a sentence; once it is gone the same outcome can be told."""
        monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.2)
        monkeypatch.setattr(sqlite.open_storage, "__kwdefaults__", {"timeout_s": 0.2})
        study = FolderStudies(tmp_path / "studies").open("s")
        asked = ask(study)
        with closing(sqlite3.connect(database, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            with pytest.raises(StoreError, match="is locked by another process"):
                study.tell(asked, measurement)
            other.execute("ROLLBACK")
        study.tell(asked, measurement)
        assert study.num_recorded() == 3

    def test_a_reader_does_not_block_a_result(self, database, tmp_path, measurement):
        """WAL: a dashboard with an open read transaction does not keep an outcome from being written."""
        study = FolderStudies(tmp_path / "studies").open("s")
        with closing(sqlite3.connect(database, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM trials").fetchone()
            tell(study, measurement, 1)
        assert study.num_recorded() == 3

    def test_a_record_of_another_version(self, make_study, measurement, tmp_path):
        """An outcome in a form that is not ours is a sentence with the trial's number."""
        study = make_study()
        asked = ask(study)
        asked.handle.set_user_attr("result", {"outcome": {"kind": "measurement", "latency": 5}})
        study.abandon(asked)
        with pytest.raises(StoreError, match="trial 0 cannot be read: key measurement"):
            study.records()

    @pytest.mark.parametrize(
        "change",
        [
            *(f"update study_user_attributes set value_json = '{value}'" for value in ("{", '"x"')),
            *(f"update trial_user_attributes set value_json = '{value}'" for value in ("{", "7")),
            *("update trials set state = 'ODD'", "update trial_params set distribution_json = '{'"),
            *("drop table trial_params", "delete from trials where number = 0"),
        ],
    )
    def test_what_no_study_writes(self, database, cli, change):
        """A study whose database says something odd is one line of `studies`, beside the others, and a sentence or a
        result where it is read."""
        shutil.copytree(database.parent, database.parent.with_name("other"))
        with closing(sqlite3.connect(database)) as damaged:
            row = "(study_id, key, value_json) values (1, 'stop', '1')"
            damaged.execute(f"insert or ignore into study_user_attributes {row}")
            damaged.execute(change)
            damaged.commit()
        listed = cli("studies")
        assert (listed.returncode, "\nother " in listed.stdout, "\ns " in listed.stdout) == (0, True, True)
        shown = cli("show", "s")
        assert "Traceback" not in shown.stderr
        assert (shown.returncode == 0) is not shown.stderr.startswith("error: ")


@pytest.fixture
def shipped(tmp_path: Path) -> tuple[Path, CacheFile]:
    """An artifact as it was exported, in the folder `home`."""
    (tmp_path / "caches").mkdir()
    (tmp_path / "caches" / "kernel.so").write_bytes(b"\x7fELF" * 100)
    content = pack(tmp_path / "caches")
    home = tmp_path / "home"
    home.mkdir()
    (home / "best.cache").write_bytes(content)
    sha256 = hashlib.sha256(content).hexdigest()
    return home, CacheFile(file="best.cache", sha256=sha256, num_bytes=len(content), key=KEY, check_first_call=False)


def swapped(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def linked(path):
    path.rename(path.with_name("other"))
    path.symlink_to("other")


DAMAGES = {
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-7]), "bytes, the YAML says"),
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b"x"), "bytes, the YAML says"),
    "swapped": (swapped, "its checksum differs"),
    "missing": (lambda path: path.unlink(), "cannot be read: No such file"),
    "a symbolic link": (linked, "is a symbolic link"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "is no plain file"),
    "a pipe": (a_pipe, "is no plain file"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_another_file_than_the_exported_one(shipped, damage):
    """Whatever happened to the file: a sentence with its path, and nothing of it is read as a cache."""
    home, file = shipped
    change, words = DAMAGES[damage]
    change(home / "best.cache")
    with pytest.raises(InputError, match=words) as caught:
        read_verified(home, file)
    assert str(home / "best.cache") in str(caught.value)


class TestTheFilesOfAStudy:
    """Half a study, a torn one and a newer one."""

    @pytest.mark.parametrize("size", [0, 1, 100, 700])
    def test_a_torn_manifest(self, make_study, measurement: Measurement, tmp_path: Path, size: int) -> None:
        """Cut off anywhere: a sentence; the database is as it was."""
        study = make_study()
        tell(study, measurement)
        study.close()
        manifest, database = study.folder / "manifest.json", study.folder / "study.db"
        whole, before = manifest.read_bytes(), database.read_bytes()
        manifest.write_bytes(whole[:size])
        with pytest.raises(StoreError, match=r"manifest\.json"):
            FolderStudies(tmp_path / "studies").open_or_create(study.manifest)
        assert database.read_bytes() == before
        manifest.write_bytes(whole)
        assert FolderStudies(tmp_path / "studies").open("s").num_recorded() == 1
