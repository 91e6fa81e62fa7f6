"""A study on several workers: without Ray, and mostly without processes; tests/plugins/test_ray.py has both."""

from __future__ import annotations

import hashlib
import os
import queue
import threading
import time
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from autotune.answer.result import StudyResult
from autotune.answer.sections.workers import WorkersSection, about_neighbours
from autotune.bench.messages import Finish, Refused, StageReached, Turn
from autotune.bench.workers import NEIGHBOURS, NeighboursFound
from autotune.config import Config
from autotune.errors import SetupError
from autotune.measure.measurement import Failure, Measurement, Reason, Samples, Stage
from autotune.measure.statistics import Verdict
from autotune.plugins.ray import device_worker, worker_caches
from autotune.plugins.ray.bench import RayBench
from autotune.plugins.ray.device_worker import DeviceWorker
from autotune.plugins.ray.links import LinkLostError
from autotune.plugins.ray.messages import Begin, Ended, Store, WorkerFacts, WorkerSettings
from autotune.plugins.ray.parcel import MODEL_FOLDER, REFERENCE, SEARCH_FOLDER, order_for, parcel_of, request_there
from autotune.plugins.ray.worker_caches import packed_cache
from autotune.render.console import PlainConsole
from autotune.render.terminal import drawn
from autotune.trial.folder import OUTCOME_FILE, TrialFolder
from autotune.trial.request import ColdCompile, TrialRequest
from autotune.tuning.events import SearchEnded, TrialLost
from autotune.tuning.loop import Tuner
from autotune.tuning.time_budget import TimeBudget
from tests.conftest import QUICK_BUDGET, with_latency
from tests.trial.call_log import CallLog

pytestmark = pytest.mark.usefixtures("in_memory")

SETTINGS = WorkerSettings(("fake",), "cpu", {}, {"fake": "0"}, "0")
SEARCH = QUICK_BUDGET.model_copy(update={"stop_early": False, "num_trials": 8})
SECONDS = {8: 0.008, 6: 0.006, 2: 0.002}


@dataclass(eq=False)
class ScriptedLink:
    """A worker that is none: `slowness` times the seconds of the knob `latency_ms`."""

    name: str
    facts: WorkerFacts
    cluster: ScriptedCluster
    slowness: float = 1.0
    waiting: list = field(default_factory=list)
    ran: list = field(default_factory=list)
    sent: list = field(default_factory=list)
    turns: dict = field(default_factory=dict)
    live: dict = field(default_factory=dict)
    unfinished: set = field(default_factory=set)
    begun: list = field(default_factory=list)
    is_dead: bool = False

    def send(self, orders):
        for order in orders:
            match order:
                case Begin():
                    self._begin(order)
                case Turn():
                    slower = self.cluster.disturbance if self.cluster.is_busy_beside(self) else 1.0
                    self.turns[order.job].append(slower * self.live[order.job])
                    self.waiting.append(StageReached(order.job, Stage.WAIT))
                case Finish():
                    self.unfinished.discard(order.job)
                    seconds = self.turns[order.job] or [self.live[order.job]]
                    samples = Samples(
                        latency_s=tuple(seconds), steady=True, ended_by="turns", turns=(1,) * len(seconds)
                    )
                    self.waiting.append(self._ended(order.job, {"samples": samples}))

    def _begin(self, order):
        self.begun.append(order)
        request = TrialRequest.model_validate_json(order.request)
        self.ran.append(request.config)
        if self.cluster.kills(self, request.config):
            self.is_dead = True
        latency_s = SECONDS[request.config["latency_ms"]] * self.slowness
        if order.is_live:
            self.live[order.job], self.turns[order.job] = latency_s, []
            self.unfinished.add(order.job)
            self.waiting.append(StageReached(order.job, Stage.WAIT))
            return
        self.sent.append(request)
        is_first = not any(each.place == REFERENCE for each in order.files)
        figures = {"samples": with_latency(self.cluster.measurement, latency_s).samples}
        cache = b"made by " + self.name.encode() if order.returns_cache else None
        self.waiting.append(self._ended(order.job, figures, b"outputs" if is_first else None, cache))

    def _ended(self, job, figures, reference=None, cache=None):
        outcome = self.cluster.measurement.model_copy(update={**figures, "environment": self.facts.environment})
        return Ended(job, {OUTCOME_FILE: outcome.model_dump_json().encode()}, reference, cache)

    def kill(self):
        self.waiting.clear()


@dataclass
class ScriptedCluster:
    """Workers by name with their slowness; the last one answers first. `kills` says which config ends its worker.
    Each is on a machine of its own, unless `machine` names one for all; there a live turn takes `disturbance` times as
    long while another worker has one."""

    measurement: Measurement
    slowness: dict[str, float]
    kills: object = lambda _link, _config: False
    processors: dict[str, str] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    machine: str | None = None
    keys: dict[str, str] = field(default_factory=dict)
    disturbance: float = 1.0
    links: list = field(default_factory=list)

    def start(self, settings):
        self.links = [self._link(name) for name in self.slowness]
        return list(self.links)

    def _link(self, name):
        here = self.measurement.environment
        environment = here.model_copy(update={"processor": self.processors.get(name, here.processor)})
        host = self.machine or name
        facts = WorkerFacts(
            host, f"boot of {host}", frozenset([0]), "cpu", {"fake": "0"}, environment, self.keys.get(name, "key")
        )
        return ScriptedLink(name, facts, self, self.slowness[name])

    def replace(self, link):
        if link.name in self.gone:
            return None
        replaced = self._link(link.name)
        self.links.append(replaced)
        return replaced

    def wait(self, links):
        for link in reversed(links):
            if link.is_dead:
                return [(link, LinkLostError("it was killed"))]
        heard = []
        for link in reversed(links):
            if link.waiting and (not heard or any(isinstance(each, StageReached) for each in link.waiting)):
                heard.append((link, link.waiting))
                link.waiting = []
        assert heard, "nobody would ever report"
        return heard

    def is_busy_beside(self, link):
        return any(each is not link and each.waiting for each in self.links)

    def close(self):
        pass

    def ran_on(self, name):
        return [config for link in self.links if link.name == name for config in link.ran]


@pytest.fixture
def tune(measurement):
    """Tune a study on scripted workers. Returns the confirmation, the events and the cluster."""

    def run(study, slowness, budget=SEARCH, **scripted):
        cluster = ScriptedCluster(measurement, slowness, **scripted)
        events: list[object] = []
        untuned = study.untuned_record()
        with RayBench(cluster, SETTINGS, None if untuned is None else untuned.outcome) as devices:
            tuner = Tuner(study, budget, devices, events.append)
            return tuner.run(), events, cluster

    return run


def test_the_verdict_is_that_of_one_worker(make_study, tune):
    """Three workers find the config that one finds, each trial is recorded once, and all three took part. Each has
    measured the untuned model first, with which its figures are compared."""
    one = make_study("alone")
    alone, _, _ = tune(one, {"a": 1.0})
    assert not workers_tables(one)
    study = make_study("three")
    together, _, cluster = tune(study, {"a": 1.0, "b": 1.0, "c": 1.0})
    assert study.record(together.candidate).config["latency_ms"] == 2
    assert together.verdict is alone.verdict is Verdict.FASTER
    records = [each for each in study.records() if each.counts]
    assert len(records) == SEARCH.num_trials
    assert len({each.config for each in records}) == len(records)
    assert {each.measurement.worker.name for each in records} == {"a", "b", "c"}
    untuned = study.manifest.space.untuned()
    assert all(cluster.ran_on(name)[0] == untuned for name in "abc")
    assert not NEIGHBOURS.read(study), "each is on a machine of its own: there is nothing to compare"
    assert alone_on(cluster) == {("device",)}


def test_a_slow_worker_makes_no_config_slow(make_study, tune):
    """The objective's value is the ratio to the worker's own untuned model; the samples stay as they were taken. The
    summary shows each worker's name and host, how many trials it measured, and how fast its untuned model is."""
    study = make_study()
    confirmation, _, _ = tune(study, {"a": 1.0, "b": 10.0})
    slow = [each.measurement for each in study.records() if each.measurement.worker.name == "b"]
    objective = study.manifest.objective
    assert slow
    for each in slow:
        assert each.worker.scale == pytest.approx(0.1)
        assert objective.value(each) == pytest.approx(each.latency.p50 / 10)
    assert study.record(confirmation.candidate).config["latency_ms"] == 2
    screen = PlainConsole(width=80)
    with screen.capture() as captured:
        screen.print(*map(drawn, workers_tables(study)))
    lines = [line.split() for line in captured.get().splitlines()]
    shown = {line[0]: line for line in lines}
    assert [shown[name][1] for name in "ab"] == ["a", "b"]
    assert shown["b"][-2:] == ["80", "ms"]
    measured = [each for each in study.records() if each.counts]
    assert sum(int(shown[name][3]) for name in "ab") == len(measured)
    assert all(len(line) <= 80 for line in captured.get().splitlines())


def test_the_confirmation_stays_on_one_worker_of_the_answers_group(make_study, tune):
    """With a host of another processor the blocks are all measured where the untuned trial was."""
    study = make_study()
    _, _, cluster = tune(study, {"other": 3.0, "a": 1.0, "b": 1.0}, processors={"other": "Another CPU"})
    assert study.untuned_record().measurement.worker.name == "a"
    with_live = {link.name for link in cluster.links if link.live}
    assert with_live == {"a"}


def test_the_trial_of_a_lost_worker_is_tried_again(make_study, tune):
    """It is `lost`, its config is blamed for nothing and measured by another trial, and the verdict is the same."""
    study = make_study()
    killed: list[Config] = []

    def kills(link, config):
        if link.name == "b" and config["latency_ms"] == 2 and not killed:
            killed.append(config)
            return True
        return False

    confirmation, events, _ = tune(study, {"a": 1.0, "b": 1.0}, kills=kills)
    lost = [each for each in study.records() if each.state == "lost"]
    assert [each.config for each in lost] == killed
    assert any(isinstance(each.outcome, Measurement) for each in study.records() if each.config == killed[0])
    assert [each.number for each in events if isinstance(each, TrialLost)] == [each.number for each in lost]
    assert confirmation.verdict is Verdict.FASTER


def workers_tables(study):
    return WorkersSection(StudyResult(study)).tables()


def alone_on(cluster):
    """What the trials of the search had for themselves, after the untuned one."""
    return {each.alone_on for link in cluster.links for each in link.sent if each.number}


@pytest.mark.parametrize(("disturbance", "expected"), [(1.5, ("device", "host")), (1.001, ("device",))])
def test_workers_of_one_machine_are_timed_side_by_side_if_they_do_not_disturb_each_other(
    make_study, tune, disturbance, expected
):
    """Else each has the whole machine while it is timed. The finding is stored, told, and shown with the workers; a
    later run of the same workers uses it."""
    study = make_study()
    few = SEARCH.but(num_trials=3)
    _, events, cluster = tune(study, {"a": 1.0, "b": 1.0}, few, machine="box", disturbance=disturbance)
    (found,) = NEIGHBOURS.read(study)
    assert (found.host, found.workers) == ("box", ("a", "b"))
    assert found.moved == pytest.approx(disturbance - 1)
    assert [each.found for each in events if isinstance(each, NeighboursFound)] == [found]
    assert alone_on(cluster) == {expected}
    words = "are timed side by side" if expected == ("device",) else "take turns at being timed"
    assert words in about_neighbours(found)
    (table,) = workers_tables(study)
    assert table.notes == [about_neighbours(found)]

    _, events, cluster = tune(study, {"a": 1.0, "b": 1.0}, SEARCH.but(num_trials=5), machine="box", disturbance=9.0)
    assert [each.found for each in events if isinstance(each, NeighboursFound)] == [found]
    assert NEIGHBOURS.read(study) == [found]
    assert alone_on(cluster) == {expected}


def test_without_a_noise_floor_the_workers_of_a_machine_take_turns(make_study, tune, monkeypatch):
    """A run that has no time to measure it has not shown that they may do otherwise."""
    monkeypatch.setattr(TimeBudget, "has_time_for_noise_floor", lambda _: False)
    study = make_study()
    _, _, cluster = tune(study, {"a": 1.0, "b": 1.0}, SEARCH.but(num_trials=3), machine="box")
    assert not NEIGHBOURS.read(study)
    assert alone_on(cluster) == {("device", "host")}


def test_a_worker_lost_in_the_check_is_checked_again(make_study, tune):
    """With the worker that replaces it; nothing that the others held is left running."""
    study = make_study()
    killed = []

    def kills(link, _config):
        if link.name == "b" and not killed:
            killed.append(link)
            return True
        return False

    few = SEARCH.but(num_trials=3)
    confirmation, _, cluster = tune(study, {"a": 1.0, "b": 1.0}, few, machine="box", kills=kills)
    assert killed
    assert confirmation.verdict is Verdict.FASTER
    assert len(NEIGHBOURS.read(study)) == 1
    assert all(not link.unfinished for link in cluster.links if not link.is_dead)


def test_lost_trials_are_counted(make_study, tune):
    """All together, and those of each worker."""
    study = make_study()
    tune(study, {"a": 1.0, "b": 1.0, "c": 1.0}, kills=lambda link, _: link.name == "c" and len(link.ran) > 1)
    num_lost = sum(each.state == "lost" for each in study.records())
    (table,) = workers_tables(study)
    lost = table.columns.index("lost")
    assert {row[0]: int(row[lost]) for row in table.rows} == {"a": 0, "b": 0, "c": num_lost}
    assert f"{num_lost} trials were lost" in table.caption


def test_a_worker_is_left_out_after_two_losses(make_study, tune):
    """The others go on alone and the study is complete."""
    study = make_study()
    _, _, cluster = tune(study, {"a": 1.0, "b": 1.0}, kills=lambda link, _: link.name == "b")
    assert len([link for link in cluster.links if link.name == "b"]) == 2
    assert study.num_recorded() == SEARCH.num_trials
    assert {each.measurement.worker.name for each in study.records() if each.counts} == {"a"}


def test_a_node_that_is_gone_gets_no_other_worker(make_study, tune):
    """One loss is enough where nothing can be started any more."""
    study = make_study()
    _, _, cluster = tune(study, {"a": 1.0, "b": 1.0}, kills=lambda link, _: link.name == "b", gone={"b"})
    assert len([link for link in cluster.links if link.name == "b"]) == 1
    assert study.num_recorded() == SEARCH.num_trials


def test_a_config_that_kills_its_worker_is_given_up(make_study, tune):
    """It does not take all workers with it: the second time it is a failure of the setup, which blames no config."""
    study = make_study()
    kills = lambda _, config: config.get("behaviour") == "wrong"  # noqa: E731
    budget = SEARCH.model_copy(update={"num_trials": 6})
    tune(study, dict.fromkeys("abcdefgh", 1.0), budget, kills=kills)
    failed = [each.outcome for each in study.records() if isinstance(each.outcome, Failure)]
    assert all(each.reason is Reason.SETUP for each in failed)
    assert study.num_recorded() == 6


def test_without_workers_the_search_ends_and_goes_on_later(make_study, tune):
    """What is recorded stays, no trial is left running, and another run completes the study."""
    study = make_study()
    with pytest.raises(SetupError, match="no worker is left"):
        tune(study, {"a": 1.0, "b": 1.0}, kills=lambda _, config: config["latency_ms"] == 2)
    assert study.untuned_record() is not None
    assert not [each for each in study.records() if each.state == "running"]
    confirmation, _, _ = tune(study, {"a": 1.0, "b": 1.0})
    assert confirmation.verdict is Verdict.FASTER


def test_a_worker_lost_in_the_confirmation_begins_it_anew(make_study, tune):
    """A comparison holds within one device: no block has figures of two."""
    study = make_study()
    seen: list[str] = []

    def kills(link, config):
        if link.live and not seen and config["latency_ms"] == 2:
            seen.append(link.name)
            return True
        return False

    confirmation, _, _ = tune(study, {"a": 1.0, "b": 1.0}, kills=kills)
    assert seen
    assert confirmation.verdict is Verdict.FASTER
    assert [row.number for row in study.blocks] == list(range(1, len(confirmation.blocks) + 1))


def test_local_imports_travel_with_the_model(make_request, tmp_path, workload):
    """The model's siblings and packages that it imports, whole; what is installed does not travel."""
    (tmp_path / "layers").mkdir()
    (tmp_path / "layers" / "__init__.py").write_text("")
    (tmp_path / "layers" / "deep.py").write_text("import constants\n")
    (tmp_path / "constants.py").write_text("N = 3\n")
    (tmp_path / "unused.py").write_text("")
    model = tmp_path / "tiny_model.py"
    model.write_text("import os\nimport numpy\nfrom layers.deep import thing\n")
    model.with_suffix(".pt").write_bytes(b"weights")
    parcel = parcel_of(make_request())
    places = {each.partition("/")[2] for each in parcel.files}
    assert places == {"tiny_model.py", "tiny_model.pt", "layers/__init__.py", "layers/deep.py", "constants.py"}


def test_a_worker_sees_no_path_of_the_driver(make_request, tmp_path):
    """Model, search path, file of calls, reference and cache of the request are paths of the worker's host."""
    calls = tmp_path / "calls.npz"
    calls.write_bytes(b"calls")
    plain = make_request()
    request = plain.model_copy(update={"workload": plain.workload.model_copy(update={"inputs": str(calls)})})
    parcel = parcel_of(request)
    order = order_for("j", request, parcel, is_live=False, fresh=False)
    there = request_there(order, tmp_path / "w", tmp_path / "w" / "r.npz", tmp_path / "w" / "c")
    assert there.workload.reference == f"{tmp_path}/w/{MODEL_FOLDER}/tiny_model.py:tiny"
    assert there.workload.search_path == f"{tmp_path}/w/{SEARCH_FOLDER}"
    assert there.workload.inputs == f"{tmp_path}/w/inputs/calls.npz"
    assert parcel.contents[parcel.files["inputs/calls.npz"]] == b"calls"
    assert there.reference.startswith(f"{tmp_path}/w/")
    assert there.cache.startswith(f"{tmp_path}/w/")


@pytest.mark.parametrize("key", ["key", "another"])
def test_a_cache_made_on_one_worker_serves_another_one_of_the_same_key(make_request, measurement, tmp_path, key):
    """It travels by value, to a trial and to a live process. Under another key a trial compiles for itself, and its
    compile is not said to be another one's."""
    cluster = ScriptedCluster(measurement, {"a": 1.0, "b": 1.0}, keys={"b": key})
    compiled = {"execution": "compile", "latency_ms": 2}
    shelf = [tmp_path / "caches" / f"{number:04d}" for number in range(2)]
    made = [make_request(compiled).cached_in(place, cold=True) for place in shelf]
    with RayBench(cluster, SETTINGS, measurement) as devices:
        folders = [TrialFolder(tmp_path / f"{number}") for number in range(3)]
        for started in [devices.start(*each, "gated") for each in zip(folders, made, strict=False)]:
            started.finish()
        a, b = cluster.links
        assert [link.begun[-1].cache for link in (a, b)] == [None, None]
        devices.hold(folders[2], made[1].cached_in(shelf[1], cold=False))
        assert (a.begun[-1].cache == hashlib.sha256(b"made by b").hexdigest()) == (key == "key")

        again = made[0].compiled_already(ColdCompile(trial=0, compile_s=1.0, peak_memory_bytes=None))
        devices.start(folders[1], again, "gated").finish()
        assert (b.begun[-1].cache is not None) == (b.sent[-1].compiled_before is not None) == (key == "key")
        assert b.sent[-1].cold == (key != "key")


def test_a_cache_that_is_too_large_does_not_travel(tmp_path, monkeypatch):
    """Nor does an empty one: the next compile is cold."""
    (tmp_path / "code").write_bytes(b"x" * 100)
    assert packed_cache(tmp_path) is not None
    assert packed_cache(tmp_path / "none") is None
    monkeypatch.setattr(worker_caches, "MOST_BYTES", 99)
    assert packed_cache(tmp_path) is None


class ThreadLink:
    """A real worker in this process."""

    def __init__(self, name, settings, said):
        self.name, self.worker = name, DeviceWorker(settings)
        self.facts = self.worker.facts()
        self.send = self.worker.order
        self.kill = self.worker.close

        def listen():
            while True:
                said.put((self, self.worker.reports()))

        threading.Thread(target=listen, daemon=True).start()


class ThreadCluster:
    """Real workers in this process: all but Ray."""

    def __init__(self, num_workers, settings=SETTINGS):
        self.num_workers, self.settings, self.said = num_workers, settings, queue.SimpleQueue()

    def start(self, settings):
        self.links = [ThreadLink(f"w{number}", settings, self.said) for number in range(self.num_workers)]
        return self.links

    def wait(self, links):
        return [self.said.get(timeout=60)]

    def replace(self, link):
        return ThreadLink(link.name, self.settings, self.said)

    def close(self):
        for each in self.links:
            each.kill()


@pytest.fixture
def _known_devices(monkeypatch):
    class Found:
        version, devices, compilers = "0", {"cpu": "fake"}, {}

    monkeypatch.setattr(device_worker, "find_devices", lambda _: Found)
    monkeypatch.setattr(device_worker, "code_sha256", lambda: "0")


@pytest.mark.usefixtures("_known_devices")
def test_real_trials_on_two_workers(make_study, tmp_path, monkeypatch):
    """Outcomes, logs, caches and reference come back by value, the first block of the confirmation begins with such
    caches, and the workers leave neither processes nor files."""
    homes = tmp_path / "homes"
    homes.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(homes))
    study = make_study()
    with RayBench(ThreadCluster(2), SETTINGS) as devices:
        confirmation = Tuner(study, QUICK_BUDGET, devices).run()
    assert confirmation.verdict is Verdict.FASTER
    assert study.reference.exists()
    for each in study.records():
        folder = study.trial_folder(each.number)
        assert folder.read_outcome() is not None
        assert str(homes) not in folder.outcome_file.read_text()
        if isinstance(each.outcome, Failure) and each.outcome.evidence:
            assert os.path.exists(each.outcome.evidence)
    assert not list(homes.glob("autotune-worker-*"))
    blocks = [TrialFolder(path).read_outcome() for path in study.folder.glob("confirm/block-01/trial-*")]
    assert blocks
    assert all(each.diagnosis.cache_hits for each in blocks if each.diagnosis.compiled)


@pytest.mark.slow
@pytest.mark.usefixtures("_known_devices", "real_clock")
def test_timings_of_workers_that_disturb_each_other_do_not_overlap(make_study, tmp_path, model_file):
    """Real processes of a model that neighbours slow down: from the finding on, one trial is timed after the other."""
    log = CallLog(tmp_path / "calls")
    log.write_model(model_file, is_sensitive=True)
    study, at = make_study(), {}
    settings = replace(SETTINGS, has_own_processors=True)

    def note(event):
        at.setdefault(type(event), time.monotonic())

    with RayBench(ThreadCluster(2, settings), settings) as devices:
        Tuner(study, SEARCH.but(num_trials=12), devices, note).run()
    (found,) = NEIGHBOURS.read(study)
    assert found.disturb
    spans = log.timed_spans(at[NeighboursFound], at[SearchEnded])
    assert len(spans) >= 4
    assert all(earlier[1] <= later[0] for earlier, later in pairwise(spans))


@pytest.mark.usefixtures("_known_devices")
def test_a_refused_order_is_answered():
    """The driver would wait for ever otherwise."""
    worker = DeviceWorker(SETTINGS)
    try:
        worker.order([Store("digest", b"content"), Begin("j", "{}", (), {})])
        (ended,) = worker.reports()
        assert isinstance(ended, Refused)
        assert ended.error
    finally:
        worker.close()
