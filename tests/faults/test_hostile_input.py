"""Files from somebody else, names that are none, escape sequences: a sentence, before anything is made or read."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

import autotune
from autotune import files
from autotune.errors import InputError
from autotune.files import read_yaml
from autotune.render.console import PlainConsole
from autotune.tuned.tuned_config import load_tuned
from tests.conftest import MODEL_FILE, REPOSITORY, SPACE_FILE, cli_command, cli_environment
from tests.faults.commands import ESCAPES, a_pipe, acts_on_nothing, command, refused

PACKAGE = REPOSITORY / "autotune"


def without_end(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_large_file(path: Path) -> None:
    path.touch()
    os.truncate(path, 100 * 2**20)


def aliases_of_aliases(path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    path.write_text("\n".join(lines))


def mappings_again_and_again(path: Path) -> None:
    lines = ["a0: &a0 {x: 1, y: 2}"]
    lines += [f"a{n}: &a{n} {{z: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 10)]
    path.write_text("\n".join(lines))


HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pipe": (a_pipe, "is a pipe or a device"),
    "a device": (without_end, "is a pipe or a device"),
    "100 MB": (a_large_file, "is larger than"),
    "aliases of aliases": (aliases_of_aliases, "more than 200,000 keys and values"),
    "mappings again and again": (mappings_again_and_again, "more than 200,000 keys and values"),
    "it holds itself": (lambda path: path.write_text("a: &a [*a]"), "it holds itself"),
    "deep": (lambda path: path.write_text("a: " + "[" * 100_000), "nested more than 50 deep"),
    "escapes": (lambda path: path.write_text(f'"{ESCAPES}": 1'), "special characters are not allowed"),
    "escapes in a name": (lambda path: path.write_text('? "\\e[2J"\n: 1\n? "\\e[2J"\n: 2\n'), "given twice"),
    "no text": (lambda path: path.write_bytes(os.urandom(5000)), "given.yaml"),
}


class TestHostileYaml:
    """A file from somebody else, or the wrong one: refused by kind and size, before it is read."""

    @pytest.mark.parametrize(
        "name", [pytest.param(name, marks=pytest.mark.slow) if name == "deep" else name for name in HOSTILE]
    )
    def test_it_is_a_sentence(self, tmp_path: Path, name: str) -> None:
        """With the path in it, in one line that acts on nothing."""
        path = tmp_path / "given.yaml"
        make, words = HOSTILE[name]
        make(path)
        with pytest.raises(InputError) as caught:
            load_tuned(path)
        assert words in str(caught.value)
        assert str(path) in str(caught.value)
        assert acts_on_nothing(str(caught.value))

    def test_many_keys(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Counted as it is read, not when all is in memory."""
        monkeypatch.setattr(files, "MAX_YAML_NODES", 1000)
        path = tmp_path / "given.yaml"
        path.write_text("a:\n" + "- 1\n" * 990)
        assert len(read_yaml(path)["a"]) == 990
        path.write_text("a:\n" + "- 1\n" * 1001)
        with pytest.raises(InputError, match="keys and values"):
            read_yaml(path)

    def test_aliases_are_fine(self, tmp_path: Path) -> None:
        """An anchor that is used a few times is what they are for."""
        path = tmp_path / "given.yaml"
        path.write_text("a: &a [1, 2]\nb: *a\nc: &c {x: *a}\nd: {e: *c, y: 1}\n")
        assert read_yaml(path) == {"a": [1, 2], "b": [1, 2], "c": {"x": [1, 2]}, "d": {"e": {"x": [1, 2]}, "y": 1}}

    @pytest.mark.parametrize(
        "arguments",
        [
            ["verify", "pipe"],
            ["compare", "pipe", "pipe"],
            ["tune", "--model", "m.py:f", "--framework", "fake", "--device", "cpu", "--budget", "pipe"],
            ["tune", "--model", "m.py:f", "--framework", "fake", "--device", "cpu", "--traffic", "pipe"],
            ["tune", "--model", "m.py:f", "--framework", "fake", "--device", "cpu", "--space", "pipe"],
            ["tune", "--model", "pipe.py:f", "--framework", "fake", "--device", "cpu", "--space", "space.yaml"],
            ["show", "s"],
        ],
        ids=lambda each: " ".join(each[:1] + each[-2:]),
    )
    def test_whichever_command(self, here: Path, arguments: list[str]) -> None:
        """Exit status 2 and a sentence, where today's file or pipe was mistyped."""
        (here / "m.py").write_text(MODEL_FILE)
        (here / "space.yaml").write_text(SPACE_FILE)
        (here / "studies" / "s").mkdir(parents=True)
        for name in ("pipe", "pipe.py", "studies/s/manifest.json"):
            a_pipe(here / name)
        refused(command(*arguments), "is a pipe or a device")

    def test_a_job_goes_on(self, here: Path, caplog: pytest.LogCaptureFixture) -> None:
        """`load` never raises: one line in the log, and the job's own model."""
        a_pipe(here / "best.yaml")

        def model(x: object) -> object:
            return x

        assert autotune.load("best.yaml").apply(model) is model
        (record,) = [each for each in caplog.records if each.name == "autotune"]
        assert "is a pipe or a device" in record.getMessage()

    def test_a_torn_file(self, here: Path) -> None:
        """Cut off anywhere, an export is refused with its name, and the job goes on."""
        whole = (REPOSITORY / "tests" / "best.yaml").read_text()
        for size in range(0, len(whole) - 1, len(whole) // 40):
            (here / "best.yaml").write_text(whole[:size])
            with pytest.raises(InputError, match=r"best\.yaml"):
                load_tuned("best.yaml")


SCALARS = {
    "hexadecimal of thousands of digits": "0x" + "f" * 5000,
    "decimal of thousands of digits": "9" * 5000,
    "sexagesimal": "1" + ":1" * 50_000,
    "no integer": "!!int ''",
    "an underscore": "!!int '_'",
    "no float": "!!float ''",
    "a list as a mapping": "!!map []",
    "no time": "!!timestamp x",
    "no bytes": "!!binary '='",
    "an object": "!!python/object/apply:os.getcwd []",
    "deep": "[" * 400 + "]" * 400,
    "an infinity of digits": "1e999",
}


@pytest.mark.parametrize("scalar", SCALARS)
class TestHostileScalars:
    """Wherever YAML is read: one sentence with file and line, at once."""

    @pytest.mark.fast_cases("no integer", "a list as a mapping", "deep")
    def test_in_commands(self, here: Path, scalar: str) -> None:
        """An export, a space, a budget, a file of flags; as a value and as a key."""
        (here / "m.py").write_text(MODEL_FILE)
        (here / "space.yaml").write_text(SPACE_FILE)
        tune = ("tune", "--model", "m.py:tiny", "--framework", "fake", "--device", "cpu")
        for text in (f"schema: 1\ntrials: {SCALARS[scalar]}\n", f"schema: 1\n? {SCALARS[scalar]}\n: 1\n"):
            (here / "given.yaml").write_text(text)
            for arguments in (
                ("verify", "given.yaml"),
                ("compare", "given.yaml", "given.yaml"),
                (*tune, "--space", "given.yaml"),
                (*tune, "--space", "space.yaml", "--budget", "given.yaml"),
                (*tune, "--space", "space.yaml", "--config", "given.yaml"),
            ):
                result = command(*arguments)
                refused(result, "given.yaml, line 2: ")
                assert len(result.stderr) < 1000
        assert not (here / "studies").exists()

    def test_in_a_job(self, here: Path, caplog: pytest.LogCaptureFixture, scalar: str) -> None:
        """The job's own model with one line in the log, or the error where the job wants it."""
        whole = (REPOSITORY / "tests" / "best.yaml").read_text()
        for line in ("schema: 1", "study: s", "num_trials: 8", "latency_ms: 2"):
            assert line in whole
            Path("best.yaml").write_text(whole.replace(line, f"{line.partition(':')[0]}: {SCALARS[scalar]}", 1))
            caplog.clear()

            def model(x: object) -> object:
                return x

            assert autotune.load("best.yaml").apply(model) is model
            (record,) = [each for each in caplog.records if each.name == "autotune"]
            assert "best.yaml, line " in record.getMessage()
            assert len(record.getMessage()) < 500
            with pytest.raises(InputError, match=r"best\.yaml, line"):
                autotune.load("best.yaml").apply(model, on_mismatch="raise")


def exported() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((REPOSITORY / "tests" / "best.yaml").read_text())
    return content


UNFIT: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "model": (lambda c: c["workload"].update(model=ESCAPES), "key workload.model: a text is printable"),
    "lines": (lambda c: c["workload"].update(model="vit\nfaster: 9x"), "key workload.model: a text is printable"),
    "framework": (lambda c: c.update(framework=ESCAPES), "key framework: a text is printable"),
    "study": (lambda c: c["evidence"].update(study="s" * 30_000), "a text or number of 30,000 characters"),
    "device": (lambda c: c["environment"].update(device="\x1b[2J"), "key environment.device: a text is printable"),
    "knob": (lambda c: c["config"].update({ESCAPES: 1}), "a name is printable text of at most 300 characters"),
    "a long knob": (lambda c: c["config"].update({"k" * 301: 1}), "a name is printable text of at most 300 characters"),
    "value": (lambda c: c["config"].update(mode="\x1b[31m"), "key config.mode: a text is printable"),
    "number": (lambda c: c["config"].update(threads=2**70), "key config.threads: the number is too large"),
    "infinity": (lambda c: c["config"].update(threads=float("inf")), "key config.threads"),
    "mapping": (lambda c: c["config"].update(threads={"a": 1}), "key config.threads"),
    "variant": (lambda c: c.update(variants={"\x1b[2J": None}), "key variants.\\x1b[2J: a name is printable"),
    "place": (lambda c: c.update(variants={"a": "m:\x1b[2J"}), "key variants.a: a text is printable"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_names_and_values_of_an_export_are_plain(here: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    """Printable text of bounded length and numbers of bounded size: anything else is refused with its key, and reaches
    no log."""
    change, words = UNFIT[name]
    content = exported()
    change(content)
    Path("best.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(InputError) as caught:
        load_tuned("best.yaml")
    assert words in str(caught.value)
    autotune.load("best.yaml").apply(lambda x: x)
    assert len(str(caught.value)) < 1000
    assert acts_on_nothing(caplog.text)
    assert "\n" not in caplog.records[-1].getMessage()


def test_text_of_other_languages_is_printable(here: Path) -> None:
    """Accents, other scripts, an ideographic space and an emoji are no control characters."""
    content = exported()
    content["workload"]["model"] = "modèle 量\u3000量 😀.py:f"
    Path("best.yaml").write_text(yaml.safe_dump(content, allow_unicode=True))
    assert load_tuned("best.yaml").workload.model == content["workload"]["model"]


class TestWhatIsTyped:
    """Names and values of flags that nothing can be made of."""

    TUNE = ("tune", "--model", "m.py:tiny", "--framework", "fake", "--device", "cpu", "--space", "space.yaml")
    MISTAKES: tuple[tuple[tuple[str, ...], str], ...] = (
        (("--study", ""), "--study ''"),
        (("--study", ".."), "--study '..'"),
        (("--study", "../s"), "--study '../s'"),
        (("--study", "/tmp/s"), "--study '/tmp/s'"),
        (("--study", "a\nb"), "--study 'a\\nb'"),
        (("--study", "a\x1b[31m"), "--study 'a\\x1b[31m'"),
        (("--study", "s" * 101), "at most 100"),
        (("--model-arg", "rows=1e400"), "--model-arg rows: inf is no number"),
        (("--model-arg", "rows=-1e999"), "--model-arg rows: -inf is no number"),
        (("--model-arg", "rows=\udcff"), "is not text (UTF-8)"),
        (("--env", "A=\udcff"), "is not text (UTF-8)"),
    )

    @pytest.mark.parametrize(("flags", "words"), MISTAKES)
    def test_it_is_a_sentence(self, here: Path, flags: tuple[str, ...], words: str) -> None:
        """Exit status 2 before anything is made."""
        (here / "m.py").write_text(MODEL_FILE)
        (here / "space.yaml").write_text(SPACE_FILE)
        refused(command(*self.TUNE, *flags), words)
        assert not (here / "studies").exists()

    @pytest.mark.parametrize("name", ["", "..", "a/b", "a\x1b[31m"])
    @pytest.mark.parametrize("verb", ["show", "explain", "resume", "export"])
    def test_a_name_that_is_none(self, here: Path, verb: str, name: str) -> None:
        """No command takes another folder for a study."""
        refused(command(verb, name), "not usable as a folder's name")

    def test_a_deep_argument_is_text(self) -> None:
        """What Python's own parser gives up on is a text like any other."""
        from autotune.question.question import parse_arguments

        for text in ("(" * 100_000, "-" * 100_000 + "1"):
            assert parse_arguments("arguments", [f"a={text}"]) == {"a": text}


class TestEscapeSequences:
    """What a model, a name or a path says about the terminal stays text."""

    @pytest.mark.slow
    def test_on_a_terminal(self, model_file: Path, space_file: Path, tmp_path: Path) -> None:
        """An error of the model in the live lines, in the failures and in the sentence of the end; a name in `show`."""
        model_file.write_text(f"def tiny():\n    raise ValueError({ESCAPES!r})\n")
        shown = self.on_a_terminal(
            tmp_path, "tune", "--model", f"{model_file}:tiny", "--framework", "fake", "--device", "cpu",
            "--space", str(space_file), "--study", "s",
        )  # fmt: skip
        assert "ValueError: \\x1b]0;title\\x07\\x1b[2J\\x9b31m" in shown
        assert "\x1b]0;title" not in shown
        assert "\x1b[2J" not in shown
        assert "\u202e" not in shown
        assert "\x9b" not in shown

    @staticmethod
    def on_a_terminal(folder: Path, *arguments: str) -> str:
        """All that a command writes to a terminal."""
        ours, its = pty.openpty()
        environment = {**cli_environment(), "TERM": "xterm"}
        child = subprocess.Popen(
            cli_command(*arguments), cwd=folder, env=environment, stdin=its, stdout=its, stderr=its
        )
        os.close(its)
        written = b""
        with suppress(OSError):  # The end of a terminal is an error.
            while more := os.read(ours, 65536):
                written += more
        os.close(ours)
        child.wait(timeout=30)
        return written.decode(errors="replace")

    def test_a_model_by_name(self, here: Path) -> None:
        """`--model` is repeated in what is wrong with it."""
        refused(command("tune", "--model", f"no{ESCAPES}", "--device", "cpu", "--framework", "fake"), "no\\x1b]0;title")
        refused(command("verify", f"{ESCAPES}.yaml"), "\\x1b]0;title")

    def test_a_folder_by_name(self, here: Path) -> None:
        """`studies` lists whatever lies there."""
        (here / "studies" / f"s{ESCAPES}").mkdir(parents=True)
        (here / "studies" / f"s{ESCAPES}" / "manifest.json").write_text("{}")
        result = command("studies")
        assert result.exit_code == 0
        assert "s\\x1b]0;title" in result.stdout
        assert acts_on_nothing(result.stdout)

    def test_tables_and_summaries(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Whatever is printed, in a cell or in a line, keeps its own colours and loses those of its content."""
        from rich.table import Table
        from rich.text import Text

        table = Table("[red]a[/nothing]", ESCAPES)
        table.add_row(ESCAPES, Text(ESCAPES))
        screen = PlainConsole(force_terminal=True, width=200, highlight=False)
        screen.print(table, Text(ESCAPES, style="bold"), ESCAPES, ":smile:")
        shown = capsys.readouterr().out
        assert "\x1b[1m" in shown
        assert "[red]a[/nothing]" in shown
        assert ":smile:" in shown
        assert "\x1b]0;" not in shown
        assert "\x1b[2J" not in shown
        assert shown.count("\\x1b]0;title\\x1b[2J") == 5  # rich itself leaves out the bell.

    def test_the_log(self, caplog: pytest.LogCaptureFixture) -> None:
        """One line for each event, whichever module writes it: a second one could be forged."""
        import logging

        from autotune.job.stats import StatsRecorder

        journal = StatsRecorder()
        journal.note("fallback", f"it failed: {ESCAPES}\nWARNING autotune: all is well")
        logging.getLogger("autotune").warning("autotune: %s", ESCAPES)
        for record in caplog.records:
            assert acts_on_nothing(record.getMessage())
            assert "\n" not in record.getMessage()
        assert journal.stats().events[0].message == caplog.records[0].getMessage().removeprefix("autotune: ")

    def test_there_is_one_way_out(self) -> None:
        """Commands print with `print_line`, `say` and the plain console, which all make text safe."""
        for path in sorted((PACKAGE / "cli").glob("*.py")) + sorted((PACKAGE / "report").glob("*.py")):
            source = path.read_text()
            assert "typer.echo(" not in source or path.name == "app.py", path
            assert " Console(" not in source, path
            assert "from_markup" not in source, path
