"""Studies whose records several machines share in a PostgreSQL database, on a server that the tests start and kill."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest

import autotune
from autotune import environment
from autotune.errors import InputError, StoreError
from autotune.measure.measurement import Failure, Measurement, Reason, Stage
from autotune.measure.statistics import Speedup, Verdict
from autotune.plugins.postgres.studies import SharedStudies
from autotune.plugins.postgres.url import StorageUrl, parse_storage
from autotune.study.folder import FolderStudies
from autotune.study.manifest import Manifest
from autotune.study.marker import MARKER
from autotune.study.records import Confirmation
from autotune.study.storages import VARIABLE, studies_in
from autotune.study.study import Study
from autotune.tuned.tuned_config import load_tuned
from autotune.tuning.field import record_verdict
from autotune.tuning.priors import read_prior, related_studies
from tests.asking import ask
from tests.conftest import _PACKAGES, REPOSITORY, cli_command, cli_environment
from tests.postgres import PASSWORD, Server

NOWHERE = "postgresql://me:hidden-word@127.0.0.1:1/studies"
FAILED = Failure(reason=Reason.SETUP, stage=Stage.BUILD, error="no")


@pytest.fixture(autouse=True)
def _less_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not come back fails the test, and soon."""
    monkeypatch.setattr("autotune.plugins.postgres.database.PATIENCE_S", 20.0)


@pytest.fixture
def url(server: Server, database: str) -> StorageUrl:
    return parse_storage(server.url(database))


@pytest.fixture
def studies(tmp_path: Path) -> Path:
    return tmp_path / "studies"


@pytest.fixture
def make_shared(url: StorageUrl, studies: Path, make_manifest: Callable[..., Manifest]) -> Callable[..., Study]:
    def make(name: str = "s", **overrides: object) -> Study:
        return SharedStudies(studies, url).create(make_manifest(name, **overrides))

    return make


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """From now on this is another machine: another name, and the folder's files are not there."""

    def move(studies: Path) -> None:
        monkeypatch.setattr(environment, "hostname", lambda: "other-host")
        studies.rename(studies.with_name("on-the-first-host"))

    return move


def tell(study: Study, outcome: Any, number: int = 1) -> None:
    for _ in range(number):
        study.tell(ask(study), outcome)


def outcomes(study: Study) -> list[Any]:
    return [each.outcome for each in study.records()]


class TestTheSameAsInAFile:
    """What a study records comes back from the server as it does from a file."""

    def test_trials_and_slots(self, make_shared, url, studies, measurement: Measurement) -> None:
        """A study opened again has the same manifest, outcomes and slots."""
        study = make_shared()
        with study.writing() as lost:
            assert lost == []
            tell(study, measurement, 2)
            study.enqueue([study.manifest.space.default()])
        study.close()
        again = SharedStudies(studies, url).open("s")
        assert again.manifest == study.manifest
        assert outcomes(again) == [measurement, measurement]
        assert again.queue == study.queue
        assert SharedStudies(studies, url).names() == ["s"]
        assert FolderStudies(studies).names() == []

    def test_optuna_and_the_dashboard_read_it(self, make_shared, server, database, measurement: Measurement) -> None:
        """The tables are Optuna's own: `load_study` finds the trials, as `optuna-dashboard` does, with the unit of what
        is minimised and the verdict as people read it."""
        study = make_shared()
        with study.writing():
            tell(study, measurement, 2)
            speedup = Speedup(median=1.42, low=1.38, high=1.47)
            told = {"verdict": Verdict.FASTER, "candidate": 1, "contestants": (0, 1), "speedups": (speedup,)}
            record_verdict(study, Confirmation(**told, num_trials=2))
        plain = optuna.storages.RDBStorage(server.url(database).replace("postgresql:", "postgresql+psycopg:"))
        loaded = optuna.load_study(study_name="s", storage=plain)
        assert [each.state.name for each in loaded.trials] == ["COMPLETE", "COMPLETE"]
        assert loaded.metric_names == ["latency (s)"]
        assert loaded.user_attrs["verdict"] == "faster: 1.42x (1.38x to 1.47x)"
        assert [each.study_name for each in optuna.get_all_study_summaries(plain)] == ["s"]
        plain.engine.dispose()

    def test_a_study_without_evidence_begins_anew(self, make_shared, url, studies, make_manifest) -> None:
        """As in a folder: a mistake in the model file does not take the name."""
        study = make_shared()
        tell(study, FAILED)
        study.close()
        again = SharedStudies(studies, url).open_or_create(make_manifest(tolerance=0.5))
        assert again.records() == []
        assert again.manifest.tolerance == 0.5
        with again.writing():
            pass
        with pytest.raises(StoreError, match="was replaced by another process"), study.writing():
            pass

    def test_trials_of_a_dead_process_are_ended(self, make_shared, url, studies, server, database) -> None:
        """kill -9 of the driver frees the lock at once, and the next start ends its trial."""
        make_shared().close()
        script = (
            "import os, sys; from pathlib import Path; from autotune.api.studies import studies_at\n"
            "study = studies_at(sys.argv[1]).open('s')\n"
            "with study.writing():\n    study.ask(study.manifest.space.untuned(), 60); os.kill(os.getpid(), 9)"
        )
        variables = {**os.environ, VARIABLE: server.url(database)}
        child = subprocess.run([sys.executable, "-c", script, str(studies)], env=variables, check=False)
        assert child.returncode == -signal.SIGKILL
        study = SharedStudies(studies, url).open("s")
        with retried(study) as lost:
            assert lost == [0]


@contextlib.contextmanager
def retried(study: Study) -> Iterator[list[int]]:
    """`writing`, some tenths of a second after a process was killed: the server has to see that first."""
    for _ in range(50):
        try:
            with study.writing() as lost:
                yield lost
            return
        except StoreError:
            time.sleep(0.1)
    raise TimeoutError("the lock was never freed")


class TestTwoDrivers:
    """One driver at a time, on whichever machine."""

    def test_the_second_is_refused(self, make_shared, url, studies) -> None:
        """With who has it; reading goes on, and so does another study."""
        first = make_shared()
        other = make_shared("other")
        second = SharedStudies(studies, url).open("s")
        with first.writing():
            with pytest.raises(StoreError, match=rf"being tuned by another process .*pid {os.getpid()}\)"):
                second.writing().__enter__()
            assert second.records() == []
            with other.writing():
                pass
        with second.writing():
            pass

    def test_a_lock_that_somebody_else_took_stops_the_run(self, make_shared, url, studies, server, measurement) -> None:
        """A driver that lost its connection writes nothing once another one was there."""
        first = make_shared()
        with first.writing():
            tell(first, measurement)
            asked = ask(first)
            end_sessions(server, url)
            second = SharedStudies(studies, url).open("s")
            with second.writing():
                tell(second, measurement)
            second.close()
            with pytest.raises(StoreError, match="was tuned by another process"):
                first.tell(asked, FAILED)
        again = SharedStudies(studies, url).open("s")
        assert [each.state for each in again.records()] == ["measured", "running", "measured"]

    def test_a_lost_connection_is_made_again(self, make_shared, url, server, measurement) -> None:
        """Where nobody else came in between, the run goes on with the lock."""
        study = make_shared()
        with study.writing():
            for _ in range(2):
                end_sessions(server, url)
                tell(study, measurement)
            second = SharedStudies(study.folder.parent, url).open("s")
            with pytest.raises(StoreError, match="another process"), second.writing():
                pass
        assert len(study.records()) == 2


def end_sessions(server: Server, url: StorageUrl) -> None:
    server.execute(
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{url.url.database}' "
        "AND pid <> pg_backend_pid()"
    )


class TestTheServerGoesAway:
    """Killed and started again: nothing recorded is lost, and the run goes on."""

    def test_between_two_trials(self, make_shared, server, measurement, caplog) -> None:
        """The run waits for the server and has its lock again."""
        study = make_shared()
        with study.writing():
            tell(study, measurement)
            asked = ask(study)
            server.kill()
            later = threading.Timer(0.5, server.start)
            later.start()
            study.tell(asked, measurement)
            later.join()
            tell(study, measurement)
            assert [each.state for each in study.records()] == ["measured"] * 3
        assert "no connection to postgresql://" in caplog.text
        assert PASSWORD not in caplog.text

    def test_for_too_long(self, make_shared, server, url, studies, measurement, monkeypatch) -> None:
        """A sentence; what was told is there afterwards, and the trial that was not is asked for again."""
        monkeypatch.setattr("autotune.plugins.postgres.database.PATIENCE_S", 0.3)
        study = make_shared()
        with study.writing():
            tell(study, measurement)
            asked = ask(study)
            server.kill()
            with pytest.raises(StoreError, match="cannot be reached"):
                study.tell(asked, measurement)
        server.start()
        monkeypatch.setattr("autotune.study.stored_trials.Lease.is_dead", lambda *_, **__: True)
        again = SharedStudies(studies, url).open("s")
        with again.writing() as lost:
            assert lost == [1]
            assert [each.state for each in again.records()] == ["measured", "lost"]
            assert ask(again).config == asked.config


class TestAnotherMachine:
    """Records are shared, measurements are not."""

    def test_it_reads_and_does_not_measure(self, make_shared, url, studies, make_manifest, measurement, elsewhere):
        """Reading works, with the first machine's name; running trials is refused, and so is the name."""
        study = make_shared()
        with study.writing():
            tell(study, measurement)
        host, folder = environment.hostname(), study.folder.resolve()
        elsewhere(studies)
        there = SharedStudies(studies, url).open("s")
        assert outcomes(there) == [measurement]
        assert str(there.folder) == f"{host}:{folder}"
        with pytest.raises(StoreError, match=f"is one of host {host}") as caught, there.writing():
            pass
        assert "study='s-other-host' and prior='s'" in str(caught.value.tip)
        with pytest.raises(StoreError, match=f"is one of host {host}"):
            SharedStudies(studies, url).open_or_create(make_manifest(tolerance=0.5))

    def test_its_study_is_a_prior(self, make_shared, url, studies, make_manifest, measurement, elsewhere) -> None:
        """`--prior NAME` takes configs from a study of another machine, and a new study hears of it."""
        study = make_shared()
        with study.writing():
            tell(study, measurement, 3)
        elsewhere(studies)
        source = read_prior("s", SharedStudies(studies, url))
        assert source.configs
        mine = SharedStudies(studies, url).create(make_manifest("mine"))
        assert related_studies(SharedStudies(studies, url), mine.manifest) == ["s"]

    def test_a_moved_folder_is_found(self, make_shared, url, studies, tmp_path, elsewhere, measurement) -> None:
        """A volume with its evidence on another machine, as a container has it: the study goes on there."""
        study = make_shared()
        with study.writing():
            tell(study, measurement)
            ask(study, 1e6)
        elsewhere(studies)
        again = SharedStudies(tmp_path / "on-the-first-host", url).open("s")
        with again.writing() as lost:
            assert lost == [1]

    def test_it_is_found_from_any_folder(self, make_shared, url, tmp_path) -> None:
        """On its own machine the record says where the evidence is."""
        study = make_shared()
        assert SharedStudies(tmp_path / "somewhere", url).open("s").folder == study.folder.resolve()

    def test_a_folder_is_one_studys(self, make_shared, make_study, url, server, studies, make_manifest) -> None:
        """Neither kind of study takes a folder of the other kind, and a shared one says what is missing."""
        make_shared("shared").close()
        make_study("local").close()
        with pytest.raises(InputError, match="has its records in postgresql://") as caught:
            FolderStudies(studies).open("shared")
        assert caught.value.tip == f"add storage={str(url)!r}"
        with pytest.raises(InputError, match="has its records in"):
            FolderStudies(studies).create(make_manifest("shared"))
        with pytest.raises(StoreError, match="holds a study of this machine"):
            SharedStudies(studies, url).create(make_manifest("local"))
        server.execute("CREATE DATABASE another")
        with pytest.raises(StoreError, match="holds the evidence of a study in postgresql://"):
            SharedStudies(studies, parse_storage(server.url("another"))).create(make_manifest("shared"))

    def test_a_study_that_was_removed(self, make_shared, url, server, database, studies, make_manifest) -> None:
        """In the dashboard, say: its folder is taken over by the next study of the name."""
        study = make_shared()
        tell(study, FAILED)
        optuna.delete_study(study_name="s", storage=study.database.storage)
        with pytest.raises(StoreError, match="has no study 's' any more"):
            study.queue  # noqa: B018
        (study.folder / "notes.txt").write_text("mine")
        again = SharedStudies(studies, url).open_or_create(make_manifest("s"))
        assert again.records() == []
        assert (again.folder / "notes.txt").read_text() == "mine"


class TestRemoval:
    """`studies rm`."""

    def test_records_and_files_go(self, make_shared, shared_cli, url, studies, measurement) -> None:
        """A person's own file stays; the name is free; an unknown one is refused before anything is removed."""
        study = make_shared()
        tell(study, measurement)
        study.close()
        (studies / "s" / "notes.txt").write_text("mine")
        assert shared_cli("studies", "rm", "s", "nobody", "--yes").returncode == 2
        result = shared_cli("studies", "rm", "s", "--yes")
        assert (result.returncode, result.stdout) == (0, "removed s; not removed: notes.txt\n"), result.stderr
        assert SharedStudies(studies, url).names() == []
        assert [each.name for each in (studies / "s").iterdir()] == ["notes.txt"]

    def test_one_in_use_stays_and_one_of_a_machine_that_is_gone_goes(
        self, make_shared, url, studies, elsewhere, shared_cli, make_manifest
    ) -> None:
        """Whether its process runs here or there. The files stay where they are, and yield to the next of the name."""
        study = make_shared()
        old = f"{environment.hostname()}:{study.folder.resolve()}"
        with study.writing(), pytest.raises(StoreError, match="is being tuned by another process"):
            SharedStudies(studies, url).remove("s")
        with study.writing():
            elsewhere(studies)
            with pytest.raises(StoreError, match="is being tuned by another process"):
                SharedStudies(studies, url).remove("s")
        result = shared_cli("studies", "rm", "s", "--yes")
        assert (result.returncode, result.stdout) == (0, f"removed s; not removed: {old}\n"), result.stderr
        assert SharedStudies(studies, url).names() == []
        back = SharedStudies(studies.with_name("on-the-first-host"), url).create(make_manifest())
        assert back.records() == []


class TestMistakes:
    """One sentence each, with what to do, and never the password."""

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("hidden-word", "not the URL"),
            ("mysql://me:hidden-word@host/db", "no storage for studies"),
            ("sqlite:///hidden-word.db", "no storage for studies"),
            ("postgresql+other://me:hidden-word@host/db", "not the driver"),
            ("postgresql://me:hidden-word@host", "names no database"),
            ("postgresql://me:x@hidden-word@host/db", "two @"),
            ("postgresql://me:hidden-word@host:port/db", "not the URL"),
        ],
    )
    def test_a_bad_url(self, text: str, words: str) -> None:
        """Nothing of the URL that may be a password is repeated."""
        with pytest.raises(InputError, match=words) as caught:
            studies_in(Path("studies"), text)
        assert caught.value.tip
        assert "hidden-word" not in f"{caught.value}{caught.value.tip}"

    @pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
    def test_a_url_is_shown_without_secrets(self, scheme: str) -> None:
        """Its text, its representation and the flag of a command to paste."""
        url = parse_storage(f"{scheme}://me:hidden-word@host:5433/db?sslmode=require&sslpassword=hidden-word")
        assert str(url) == repr(url) == "postgresql://me@host:5433/db?sslmode=require"
        assert "hidden-word" not in url.flag
        assert url.without_secrets("bad hidden-word!") == "bad ***!"
        assert url.connect_arguments()["password"] == "hidden-word"

    def test_the_environment_names_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where no option does; an empty option means none. A command to paste then needs no flag."""
        monkeypatch.setenv(VARIABLE, NOWHERE)
        found = studies_in(Path("studies"), None)
        assert str(found) == "postgresql://me@127.0.0.1:1/studies"
        assert found.flags == ""
        assert isinstance(studies_in(Path("studies"), ""), FolderStudies)
        monkeypatch.delenv(VARIABLE)
        assert isinstance(studies_in(Path("studies"), None), FolderStudies)

    def test_no_driver(self, monkeypatch: pytest.MonkeyPatch, studies: Path) -> None:
        """Names the extra to install."""
        monkeypatch.setitem(sys.modules, "psycopg", None)
        with pytest.raises(InputError, match="psycopg") as caught:
            SharedStudies(studies, parse_storage(NOWHERE)).open("s")
        assert "[postgres]'" in str(caught.value.tip)

    def test_nobody_answers(self, server: Server, studies: Path) -> None:
        """A refused connection names the storage."""
        with pytest.raises(StoreError, match=r"postgresql://me@127\.0\.0\.1:1/studies cannot be reached") as caught:
            SharedStudies(studies, parse_storage(NOWHERE)).open("s")
        assert "hidden-word" not in repr(caught.getrepr(showlocals=False))

    def test_a_wrong_database_or_user(self, server: Server, studies: Path) -> None:
        """A database that is not there, and a wrong password."""
        with pytest.raises(StoreError, match="does not exist on that server") as caught:
            SharedStudies(studies, parse_storage(server.url("nothing"))).open("s")
        assert "createdb" in str(caught.value.tip)
        wrong = server.shown("postgres").replace("@", ":hidden-word@")
        with pytest.raises(StoreError, match="refuses this user") as caught:
            SharedStudies(studies, parse_storage(wrong)).open("s")
        assert "hidden-word" not in f"{caught.value}{caught.value.tip}"

    def test_tables_of_something_else(self, server, database, url, studies, make_manifest) -> None:
        """No tables are made among them."""
        server.execute("CREATE TABLE studies (id int, patient text)", database)
        for call in (
            lambda: SharedStudies(studies, url).open("s"),
            lambda: SharedStudies(studies, url).create(make_manifest()),
        ):
            with pytest.raises(StoreError, match="database of something else: it has 1 tables"):
                call()
        assert server.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", database) == [(1,)]

    def test_another_release_of_optuna(self, server, database, url, studies, make_shared, monkeypatch) -> None:
        """It says how to upgrade. What was found to be of this release is not checked again, by reading all of Optuna's
        migrations, in the same process."""
        make_shared().close()
        shared, check = SharedStudies(studies, url), "optuna.storages._rdb.storage._VersionManager.get_head_version"
        shared.open("s").close()
        with monkeypatch.context() as patch:
            patch.setattr(check, lambda _: pytest.fail("it was checked again"))
            shared.open("s").close()
        server.execute("UPDATE alembic_version SET version_num = 'v2.6.0.a'", database)
        with pytest.raises(StoreError, match="schema of another Optuna release"):
            shared.open("s")

    def test_an_empty_database(self, server, database, url, studies) -> None:
        """Reading makes no tables."""
        with pytest.raises(InputError, match="no study 's' in postgresql://") as caught:
            SharedStudies(studies, url).open("s")
        assert "none yet" in str(caught.value.tip)
        assert server.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", database) == [(0,)]

    def test_a_study_of_optuna_alone(self, url, server, database, studies, make_manifest, make_shared) -> None:
        """A study that another program keeps in the same tables is neither listed nor taken over."""
        make_shared("mine").close()
        optuna.create_study(study_name="s", storage=server.url(database).replace("postgresql:", "postgresql+psycopg:"))
        assert SharedStudies(studies, url).names() == ["mine"]
        with pytest.raises(InputError, match="no study 's'"):
            SharedStudies(studies, url).open("s")
        with pytest.raises(StoreError, match="that autotune did not make"):
            SharedStudies(studies, url).open_or_create(make_manifest("s"))

    def test_a_user_who_may_only_read(self, server, database, studies, make_shared, measurement) -> None:
        """Reading works, and writing is a sentence."""
        study = make_shared()
        tell(study, measurement)
        server.execute("CREATE ROLE reader LOGIN PASSWORD 'r'; GRANT pg_read_all_data TO reader", database)
        reader = parse_storage(f"postgresql://reader:r@127.0.0.1:{server.port}/{database}")
        again = SharedStudies(studies, reader).open("s")
        assert outcomes(again) == [measurement]
        with pytest.raises(StoreError, match="may not be written by this user"), again.writing():
            pass
        with study.writing():
            pass


@pytest.fixture
def shared_cli(cli: Callable[..., Any], server: Server, database: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command line with the storage in the environment."""
    import psycopg

    monkeypatch.setenv(VARIABLE, server.url(database))
    monkeypatch.setenv(_PACKAGES, os.pathsep.join([os.environ[_PACKAGES], str(Path(psycopg.__file__).parent.parent)]))
    return cli


class TestTheCommandLine:
    """`tune`, `resume` and what reads, with the fake framework."""

    @pytest.mark.slow
    @pytest.mark.usefixtures("shared_cli")
    def test_tune_show_and_export(self, tune_fake, cli, server, database, tmp_path, studies, elsewhere) -> None:
        """The whole way; then from another machine, which shows and exports it. No password anywhere."""
        tuned = tune_fake("--trials", "4")
        assert tuned.returncode == 0, tuned.stderr
        assert f"--storage {server.shown(database)}" not in tuned.stdout, "the environment names it"
        assert not (studies / "s" / "study.db").exists()
        assert (studies / "s" / MARKER).exists()
        assert (studies / "s" / "trials" / "0000" / "outcome.json").exists()
        files = [path for path in (studies / "s").rglob("*") if path.is_file()]
        host = environment.hostname()
        resumed = cli("resume", "s", "--trials", "5")
        assert resumed.returncode == 0, resumed.stderr
        elsewhere(studies)
        told = [tuned.stdout, tuned.stderr, resumed.stdout, resumed.stderr]
        told += [path.read_text(errors="replace") for path in files if path.exists()]
        for arguments in (
            ["show", "s"], ["show", "s", "--json"], ["studies"], ["studies", "--json"], ["explain", "s"],
            ["export", "s", "-o", "best.yaml"], ["report", "s", "-o", "report.html"],
        ):  # fmt: skip
            result = cli(*arguments)
            assert result.returncode == 0, result.stderr
            told += [result.stdout, result.stderr]
            if arguments == ["show", "s"]:
                assert f"records in {server.shown(database)}; files of the trials on {host}" in result.stdout
            if arguments == ["studies", "--json"]:
                assert json.loads(result.stdout)[0]["host"] == host
            if arguments == ["show", "s", "--json"]:
                assert json.loads(result.stdout)["home"]["host"] == host
        refused = cli("resume", "s")
        assert refused.returncode == 2
        assert f"is one of host {host}" in refused.stderr
        assert not load_tuned(tmp_path / "best.yaml").is_untuned
        told += [(tmp_path / "best.yaml").read_text(), (tmp_path / "report.html").read_text(), refused.stderr]
        told += [str(row) for row in server.execute("SELECT value_json FROM study_user_attributes", database)]
        for secret in (PASSWORD, "s3cret"):
            assert not [text for text in told if secret in text]

    @pytest.mark.slow
    def test_the_server_is_killed_in_the_middle_of_a_study(
        self, shared_cli, server, database, url, model_file, space_file, budget_file, tmp_path, studies
    ) -> None:
        """And started again while the trials go on: the study ends with its verdict, and every trial is there."""
        child = subprocess.Popen(
            cli_command(
                "tune", "--model", f"{model_file}:tiny", "--framework", "fake", "--device", "cpu", "--space",
                str(space_file), "--study", "s", "--budget", str(budget_file), "--trials", "4",
            ),
            cwd=tmp_path, env=cli_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert child.stderr is not None
        before = next(line for line in child.stderr if "  trial   1" in line)
        server.kill()
        time.sleep(0.3)
        server.start()
        said = before + child.stderr.read()
        assert child.wait(60) == 0, said
        study = SharedStudies(studies, url).open("s")
        assert study.num_recorded() == 4
        assert study.confirmation is not None
        assert PASSWORD not in said

    def test_from_python(self, shared_cli, server, database, model_file, space_file, budget_file, studies, monkeypatch):
        """`storage=` of `tune`, `load_study` and the result's own `export`."""
        monkeypatch.delenv(VARIABLE)
        storage = server.url(database)
        result = autotune.tune(
            f"{model_file}:tiny", framework="fake", device="cpu", space=str(space_file), budget=budget_file, trials=3,
            study="s", studies_dir=studies, storage=storage, progress=False,
        )  # fmt: skip
        assert not (studies / "s" / "study.db").exists()
        again = autotune.load_study("s", storage=storage)
        assert again.verdict == result.verdict
        again.export(studies / "best.yaml")
        shutil.rmtree(studies / "s")
        assert autotune.load_study("s", storage=storage).verdict == result.verdict


def test_two_processes_make_the_tables_at_once(server, database) -> None:
    """Optuna alone fails here; the loser of the race finds the tables there."""
    script = (
        "import sys; from autotune.plugins.postgres.storage import open_storage\n"
        "from autotune.plugins.postgres.url import parse_storage\n"
        "url = parse_storage(sys.argv[1]); sys.stdin.read(1); assert open_storage(url, create=True)"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", script, server.url(database)], stdin=subprocess.PIPE, cwd=REPOSITORY)
        for _ in range(2)
    ]
    for child in children:
        child.communicate(b"x")
    assert [child.returncode for child in children] == [0, 0]


def test_an_operation_that_was_cut_off_is_done_again(make_shared, monkeypatch, measurement) -> None:
    """A connection that breaks in the middle of an operation, not between two: here what it did had come through."""
    from sqlalchemy.exc import OperationalError

    study, plain = make_shared(), optuna.storages.RDBStorage.set_trial_state_values
    broken = OperationalError("UPDATE", {}, Exception("gone"), connection_invalidated=True)
    times = iter([True])

    def acknowledged_too_late(self, *args, **kwargs):
        done = plain(self, *args, **kwargs)
        if next(times, False):
            raise optuna.exceptions.StorageInternalError from broken
        return done

    with study.writing():
        asked = ask(study)
        monkeypatch.setattr(optuna.storages.RDBStorage, "set_trial_state_values", acknowledged_too_late)
        study.tell(asked, measurement)
        times = iter([True])
        again = ask(study)
    assert [record.state for record in study.records()] == ["measured", "lost", "running"]
    assert again.config == study.manifest.space.default()
