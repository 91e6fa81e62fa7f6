"""Recorded tables: what is written is read again, and a killed recording goes on without running anything twice."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.bench.runner import Runner
from autotune.config import Config
from autotune.environment import num_usable_cores
from autotune.errors import HarnessError, InputError
from autotune.files import write_yaml
from autotune.measure.measurement import Failure, Measurement, Reason, Stage, Usage
from benchmarks import record_table, table
from benchmarks.recording import Part, Recording, row_of
from benchmarks.table import Definition, read_definitions, read_table
from tests.conftest import MODEL_FILE, QUICK, SPACE_FILE, ScriptedTrials, with_latency

NUM_CONFIGS = 15
EAGER = Config({"execution": "eager", "latency_ms": 8})
HARNESS = Failure(reason=Reason.HARNESS, stage=Stage.START, error="no memory\nleft")


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    (tmp_path / "tiny_model.py").write_text(MODEL_FILE)
    (tmp_path / "fake.yaml").write_text(SPACE_FILE)
    definition = Definition(
        model=f"{tmp_path}/tiny_model.py:tiny",
        framework="fake",
        space="fake.yaml",
        tolerance=1e-3,
        arguments={"rows": 2},
    )
    return Recording("fake", definition, spaces=tmp_path, folder=tmp_path, sampling=QUICK)


def counting(measured: Measurement, fails: frozenset[int] = frozenset()) -> tuple[ScriptedTrials, list[Config]]:
    """Trials that are all alike, but for the runs (by their number) that end in a failure of the harness."""
    ran: list[Config] = []
    here = measured.environment.model_copy(update={"num_cores": num_usable_cores()})
    measurement = measured.model_copy(update={"environment": here})

    def outcome(_name: str, _block: int, config: Config) -> Measurement | Failure:
        ran.append(config)
        return HARNESS if len(ran) - 1 in fails else with_latency(measurement, 0.01)

    return ScriptedTrials(outcome), ran


def test_every_config_of_the_space_has_a_row_in_the_table_that_is_read_back(recording):
    """A recording of real child processes: every config once, failures with reason and message, and it reads back."""
    with Runner("fake", {}, preload=True, log=recording.folder / "log") as runner:
        written = recording.finish(recording.record(runner))
    read = read_table(recording.table_file)
    assert read == written
    assert [row.config for row in read.rows] == list(recording.space.configs())
    assert len(read.rows) == NUM_CONFIGS
    assert read.arguments == {"rows": 2}
    by_behaviour = {row.config.get("behaviour"): row for row in read.rows}
    assert by_behaviour["compile_error"].failure == "compile_error"
    assert by_behaviour["wrong"].failure == "wrong_result"
    assert by_behaviour["wrong"].message
    assert by_behaviour["breaks"].graph_breaks
    assert by_behaviour["right"].works
    assert read.by_config[EAGER].error is None
    assert not recording.rows_file.exists()
    assert not recording.work.exists()


def test_a_killed_recording_goes_on_and_runs_nothing_twice(recording, measurement):
    """What is recorded stays; a line that a kill cut off is run again; the untuned model leaves the reference first."""
    trials, ran = counting(measurement)
    recording.record(trials, limit=5)
    (recording.work / "reference.npz").write_text("outputs")
    torn = recording.rows_file.read_text()[:-20]
    recording.rows_file.write_text(torn)
    again, ran_later = counting(measurement)
    rows = recording.record(again)
    assert ran[0] == EAGER
    assert ran_later[0] == ran[4]
    assert len(ran_later) == NUM_CONFIGS - 4
    assert not set(ran[:4]) & set(ran_later)
    assert len(recording.finish(rows).rows) == NUM_CONFIGS


def test_a_recording_stops_when_its_time_is_up_and_goes_on_later(recording, measurement):
    """No config is begun after that; what is recorded stays, so that a table may take several quiet hours."""
    trials, ran = counting(measurement)
    recording.record(trials, limit=2)
    assert len(recording.record(trials, ends=0.0)) == 2
    assert len(ran) == 2
    assert len(recording.record(trials)) == NUM_CONFIGS


def test_parts_that_are_recorded_side_by_side_make_one_table(recording, measurement):
    """No config is in two of them, and what they leave the table takes; their files go with it."""
    parts = [replace(recording, part=Part.parse(text)) for text in ("1/2", "2/2")]
    ran_in = []
    for part in parts:
        trials, ran = counting(measurement)
        assert not part.is_whole()
        part.record(trials)
        assert part.is_whole()
        ran_in.append(ran)
    assert ran_in[1].pop(0) == EAGER  # It leaves the reference outputs.
    assert not set(ran_in[0]) & set(ran_in[1])
    parts[1].rows_file.write_text(parts[1].rows_file.read_text()[:-20])
    assert not parts[1].is_whole()
    trials, ran = counting(measurement)
    rows = recording.record(trials)
    assert ran[-1] == ran_in[1][-1]
    assert len(recording.finish(rows).rows) == NUM_CONFIGS
    assert {each.name for each in recording.folder.glob("fake.*")} == {"fake.yaml", "fake.json"}


def test_lost_reference_outputs_are_made_again(recording, measurement):
    """Without the untuned model's outputs nothing can be checked, so it runs first although its row is there."""
    trials, ran = counting(measurement)
    recording.record(trials, limit=3)
    again, ran_later = counting(measurement)
    recording.record(again)
    assert ran[0] == EAGER
    assert ran_later[0] == EAGER
    assert len(ran_later) == 1 + NUM_CONFIGS - 3


def test_a_recording_of_something_else_is_not_continued(recording, measurement):
    """Rows of another workload must not be mixed in: it says so and touches nothing."""
    recording.record(counting(measurement)[0], limit=2)
    before = recording.rows_file.read_text()
    other = replace(recording, definition=recording.definition.model_copy(update={"arguments": {"rows": 3}}))
    with pytest.raises(InputError, match="another workload"):
        other.record(counting(measurement)[0])
    assert recording.rows_file.read_text() == before


def test_a_failure_of_the_harness_is_tried_once_more(recording, measurement):
    """It says nothing about the config: the second try counts, even if that fails too."""
    trials, ran = counting(measurement, fails=frozenset({0, 2, 3}))
    rows = recording.record(trials, limit=2)
    assert len(ran) == 4
    assert rows[ran[0]].works
    assert (rows[ran[2]].failure, rows[ran[2]].message) == ("harness", "no memory")


def test_trials_on_other_cores_are_not_mixed_in(recording, measurement):
    """A trial that saw another number of cores is run again; when it still does, the recording stops and says so."""
    moved = measurement.environment.model_copy(update={"num_cores": 2})
    stayed = measurement.environment.model_copy(update={"num_cores": 1})
    seen = [stayed, moved, stayed, moved, moved]

    def outcome(_name: str, _block: int, _config: Config) -> Measurement:
        return with_latency(measurement, 0.01, environment=seen.pop(0))

    pinned = replace(recording, num_cores=1)
    with pytest.raises(HarnessError, match="2 cores"):
        pinned.record(ScriptedTrials(outcome))
    assert not seen
    assert len(pinned.rows()) == 2


def test_every_config_compiles_for_itself(recording, measurement):
    """A table has cold compile times only: each request starts from empty caches."""
    seen = []

    class Spy(ScriptedTrials):
        def run(self, folder, request, **_):
            seen.append(request)
            return super().run(folder, request)

    recording.record(Spy(counting(measurement)[0].outcome_of))
    assert len(seen) == NUM_CONFIGS
    assert all(each.cold for each in seen)
    assert [each.untuned for each in seen] == [True] + [False] * (NUM_CONFIGS - 1)


def test_latency_is_cpu_time_where_the_system_counts(measurement):
    """latency_s is the median CPU time of a call, wall_s the wall time; without counts they are the same."""
    usage = Usage(cpu_s=(0.004, 0.005, 0.009), page_faults=(0, 0, 0), involuntary_switches=(0, 0, 0))
    slept = with_latency(measurement, 0.01)
    counted = slept.model_copy(update={"samples": slept.samples.model_copy(update={"usage": usage})})
    row = row_of(EAGER, counted, trial_s=1.0)
    assert (row.latency_s, row.wall_s) == (0.005, 0.01)
    bare = slept.model_copy(update={"samples": slept.samples.model_copy(update={"usage": None})})
    assert row_of(EAGER, bare, trial_s=1.0).latency_s == 0.01


def test_an_error_that_json_cannot_hold_is_left_out():
    """A NaN output's relative error is no number; the row is still written and read."""
    wrong = Failure(reason=Reason.WRONG_RESULT, stage=Stage.CHECK, error="NaN", relative_error=float("inf"))
    row = row_of(EAGER, wrong, trial_s=1.0)
    assert table.Row.model_validate_json(row.model_dump_json()) == row
    assert row.error is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rows": []}, "rows"),
        ({"schema": 9}, "schema"),
        ({"surprise": 1}, "surprise"),
        (None, "whole file"),
    ],
    ids=["no rows", "another schema", "an unknown key", "no JSON"],
)
def test_a_broken_table_is_refused_by_name_and_key(recording, measurement, change, says):
    """The message names the file and the key, and how to record it again."""
    trials, _ = counting(measurement)
    recording.finish(recording.record(trials))
    content = json.loads(recording.table_file.read_text())
    text = "{" if change is None else json.dumps({**content, **change})
    recording.table_file.write_text(text)
    with pytest.raises(InputError, match=says) as refused:
        read_table(recording.table_file)
    assert "fake.json" in str(refused.value)
    assert "record_table.py fake" in str(refused.value.tip)


def test_a_missing_table_names_those_that_are_there(tmp_path):
    """A typing error in a table's name is answered with the names that exist."""
    (tmp_path / "vit.json").write_text("{}")
    with pytest.raises(InputError, match=r"vti\.json") as refused:
        read_table(tmp_path / "vti.json")
    assert "vit" in str(refused.value.tip)


def test_an_undefined_table_names_those_that_are_defined(tmp_path):
    """The command line refuses an unknown name before anything runs."""
    with pytest.raises(InputError, match="nothing") as refused:
        list(record_table.recordings(["nothing"], tmp_path))
    assert next(iter(read_definitions())) in str(refused.value.tip)


def test_the_best_row_works(recording, measurement):
    """A failed config has no latency and is never the best; configs of one program count once."""
    trials, _ = counting(measurement)
    made = recording.finish(recording.record(trials))
    failed = table.Row(config=made.rows[0].config, trial_s=1.0, failure="crash")
    fast = made.rows[1].model_copy(update={"latency_s": 0.001, "program": "a"})
    same = made.rows[2].model_copy(update={"latency_s": 0.002, "program": "a"})
    few = made.model_copy(update={"rows": (failed, fast, same)})
    assert few.best == fast
    assert few.num_programs == 1


def test_one_program_s_spread_is_that_of_its_processes(recording, measurement):
    """Two rows of one program at 1 and 1.1 differ by ln 1.1 / sqrt 2; a program measured once says nothing."""
    made = recording.finish(recording.record(counting(measurement)[0]))
    rows = [
        made.rows[n].model_copy(update={"latency_s": latency_s, "program": program})
        for n, (latency_s, program) in enumerate([(1.0, "a"), (1.1, "a"), (7.0, "b")])
    ]
    assert made.model_copy(update={"rows": tuple(rows)}).program_spread == pytest.approx(math.log(1.1) / math.sqrt(2))
    assert made.model_copy(update={"rows": tuple(rows[1:])}).program_spread is None


def test_the_report_counts_what_works_and_judges_number_and_size(recording, measurement):
    """Fifteen configs of one framework are no exhaustive truth, and it says so; the row names the speed-ups."""
    made = recording.finish(recording.record(counting(measurement)[0]))
    seen = [record_table.Summary.of("fake", made)]
    assert not record_table.judge(seen)[0].met
    text = record_table.section(seen)
    assert "| fake | 15 | 15 |" in text
    assert "1.00x" in text


def test_definitions_name_spaces_that_are_there():
    """Every table that is defined has its space file, for its framework."""
    for definition in read_definitions().values():
        content = (table.TABLES / "spaces" / definition.space).read_text()
        assert f"framework: {definition.framework}" in content


def test_a_definition_with_a_spelling_mistake_is_refused(tmp_path):
    """Strict: an unknown key is named, not ignored."""
    path = tmp_path / "definitions.yaml"
    write_yaml(
        path,
        {
            "schema": 1,
            "tables": {"x": {"model": "vit", "framework": "torch", "space": "y", "tolerance": 1, "sapce": "y"}},
        },
    )
    with pytest.raises(InputError, match="sapce"):
        read_definitions(path)
