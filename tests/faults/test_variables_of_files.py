"""What a file sets for processes, whoever wrote it: an export, a study. The rest is for the user to give again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from autotune import user_folders
from autotune.api.side_by_side import read_exported
from autotune.api.studies import studies_at
from autotune.errors import InputError, StoreError
from autotune.measure.measurement import Measurement
from autotune.study.folder import FolderStudies
from autotune.study.study import Study
from tests.asking import ask
from tests.conftest import REPOSITORY, run_here

FOREIGN = ("LD_PRELOAD", "/tmp/evil.so")
HARMLESS = {"OMP_NUM_THREADS": "2", "MALLOC_ARENA_MAX": "2"}


@pytest.fixture(autouse=True)
def _nothing_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(user_folders, "_remembered", set())


@pytest.fixture
def folder(make_study: Callable[..., Study], measurement: Measurement, tmp_path: Path) -> Path:
    """Somebody else's folder: a study and two exports, which have a variable that names a library."""
    study = make_study()
    for _ in range(2):
        study.tell(ask(study), measurement)
    study.close()
    manifest = study.folder / "manifest.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "variables": dict([FOREIGN])}))
    export = yaml.safe_load((REPOSITORY / "tests" / "best.yaml").read_text())
    export["environment"]["variables"] = dict([FOREIGN])
    for name in ("one.yaml", "other.yaml"):
        (tmp_path / name).write_text(yaml.safe_dump(export))
    return tmp_path


COMMANDS = [
    ("verify", "one.yaml"),
    ("verify", "one.yaml", "--against", "venv"),
    ("compare", "one.yaml", "other.yaml"),
    ("compare", "s", "0", "1"),
    ("run", "s", "1"),
    ("resume", "s"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_variable_of_a_file_is_given_again(
    folder: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence that names it and what to type, and no process was started. Typed, it is no obstacle."""
    monkeypatch.setattr("autotune.api.running.require_same_question", lambda _: None)
    started: list[str] = []
    for start in ("bench.local.LocalBench.start", "bench.local.LocalBench.run", "bench.probe._ask"):
        monkeypatch.setattr(f"autotune.{start}", lambda *_, **__: started.append("a process"))
    result = run_here(folder, *command)
    assert result.returncode == 2, result
    assert "LD_PRELOAD=/tmp/evil.so, which no file may set" in result.stderr
    assert "--env LD_PRELOAD=/tmp/evil.so" in result.stderr
    assert not started
    again = run_here(folder, *command, "--env", "=".join(FOREIGN))
    assert "which no file may set" not in again.stderr


def test_an_export_sets_what_is_on_the_list(folder: Path) -> None:
    """As `launch` does; what the user gives comes on top, and in place of the file's own value."""
    file = folder / "one.yaml"
    content = yaml.safe_load(file.read_text())
    content["environment"]["variables"] = HARMLESS
    file.write_text(yaml.safe_dump(content))
    assert read_exported(str(file), None).environment.variables == HARMLESS
    typed = {"OMP_NUM_THREADS": "1", "FOO": "1"}
    assert read_exported(str(file), typed).environment.variables == {**HARMLESS, **typed}
    content["environment"]["variables"] = {"OMP_NUM_THREADS": "2147483647"}
    file.write_text(yaml.safe_dump(content))
    with pytest.raises(InputError, match="OMP_NUM_THREADS=2147483647, which no file may set"):
        read_exported(str(file), None)


class TestAStudy:
    def test_of_the_user_goes_on(self, make_study: Callable[..., Study], tmp_path: Path) -> None:
        """Whoever made it with a variable need not give it again, in another process either."""
        make_study(variables={"FOO": "1"}).close()
        user_folders._remembered.clear()
        study = FolderStudies(tmp_path / "studies").open("s")
        assert study.variables == {"FOO": "1"}

    def test_of_somebody_else_does_not(
        self, make_study: Callable[..., Study], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nor one of the user's own in which a variable was changed. Given again it does, now and later."""
        make_study(variables={"FOO": "1"}).close()
        manifest = tmp_path / "studies" / "s" / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"FOO"', '"BAR"'))
        studies = FolderStudies(tmp_path / "studies")
        study = studies.open("s")
        with pytest.raises(StoreError, match="BAR=1, which no file may set") as caught:
            _ = study.variables
        assert "BAR" in str(caught.value.tip)
        study.accept({"BAR": "2"})
        with pytest.raises(StoreError, match="BAR=1"):
            _ = study.variables
        study.accept({"BAR": "1"})
        assert study.variables == studies.open("s").variables == {"BAR": "1"}

    def test_that_has_what_this_process_has(
        self, make_study: Callable[..., Study], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A variable that is set in front of the command is the user's already."""
        make_study(variables={"FOO": "1"}).close()
        user_folders._remembered.clear()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "of another account"))
        monkeypatch.setenv("FOO", "1")
        assert FolderStudies(tmp_path / "studies").open("s").variables == {"FOO": "1"}

    def test_in_a_trusted_folder_goes_on(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What the user's own file trusts is the user's; `studies` may be a link there, too."""
        monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        (folder / "studies").rename(folder / "elsewhere")
        (folder / "studies").symlink_to("elsewhere")
        monkeypatch.chdir(folder)
        with pytest.raises(StoreError, match="studies is a symbolic link"):
            studies_at("studies").open("s")
        (folder / "config" / "autotune").mkdir(parents=True)
        (folder / "config" / "autotune" / "config.toml").write_text(f'trusted = ["{folder}"]\n')
        assert studies_at("studies").open("s").variables == dict([FOREIGN])

    @pytest.mark.parametrize("beside", ["work-of-others", "work/link"])
    def test_beside_a_trusted_folder_does_not(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: str
    ) -> None:
        """Trust is of a folder and what is below it: not of a name that begins alike, nor through a link in it."""
        for name in ("work-of-others", "work/below", "config/autotune"):
            (tmp_path / name).mkdir(parents=True)
        (tmp_path / "work" / "link").symlink_to(tmp_path / "work-of-others")
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        (tmp_path / "config" / "autotune" / "config.toml").write_text(f'trusted = ["/nowhere", "{tmp_path}/work"]\n')
        assert user_folders.is_trusted(tmp_path / "work" / "below")
        assert not user_folders.is_trusted(tmp_path / beside)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            *(
                (f"trusted = {wrong}", "is not a list of absolute paths")
                for wrong in ("'/here'", "['.']", "['']", "[1]")
            ),
            *((f"trusted = {wrong}", "is not valid TOML") for wrong in ("", "9" * 5000, "[" * 10_000)),
        ],
    )
    def test_a_broken_file_of_the_user_is_a_sentence(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
    ) -> None:
        """With the file."""
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        (tmp_path / "autotune").mkdir()
        (tmp_path / "autotune" / "config.toml").write_text(text + "\n")
        with pytest.raises(InputError, match=rf"config\.toml.*{words}"):
            user_folders.is_trusted(tmp_path)

    def test_with_harmless_ones_is_not_asked_about(self, make_study: Callable[..., Study], tmp_path: Path) -> None:
        """And nothing is written beside it."""
        make_study(variables=HARMLESS).close()
        assert FolderStudies(tmp_path / "studies").open("s").variables == HARMLESS
        assert not (tmp_path / "cache").exists()
