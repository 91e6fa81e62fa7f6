"""Ranks that leave answers on a board: whoever comes when, they read the same decisions and nobody waits for long."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch.distributed import HashStore  # noqa: E402

from autotune.backends.torch.parallel import StoreRanks  # noqa: E402
from autotune.job.board import Answer, Board, _Post  # noqa: E402
from autotune.job.ranks import DECISION_S, Pact, pact_for  # noqa: E402
from tests.stand_ins.simulated_ranks import SimulatedRanks  # noqa: E402

LIMIT_S = 60.0


def about(name, refusal=None):
    return Answer(refusal, "a model", f"{name}.yaml", "" if refusal else name, name)


def applying(rank, time, scripts, members=None):
    """(why or None, seconds) of each thing that this rank applies, by its script of (seconds before, name, refusal)."""
    found = []
    for pause_s, name, refusal in scripts[rank]:
        time.sleep(pause_s)
        pact, begun = pact_for("torch", None, None if members is None else members[rank]), time.monotonic()
        assert isinstance(pact, Pact)
        why = pact.agree(about(name, refusal), pact.at_most_s(DECISION_S))
        found.append((name, why, time.monotonic() - begun, pact.name))
    return found


def run(*scripts, store=None, timeout_s=None, members=None):
    outcomes = SimulatedRanks(len(scripts), store, timeout_s).run(applying, scripts, members)
    assert [outcome.error for outcome in outcomes] == [None] * len(scripts)
    assert max(wait_s for outcome in outcomes for _, _, wait_s, _ in outcome.value) <= LIMIT_S
    return [outcome.value for outcome in outcomes]


def decisions(found):
    """Of each rank, whether the things that it applied one after the other are tuned."""
    return [[why is None for _, why, _, _ in of_rank] for of_rank in found]


def at_once(*names):
    return [(0.0, name, None) for name in names]


def test_one_file_for_two_models():
    """They are paired in the order in which each rank applies them."""
    assert decisions(run(at_once("x", "x", "y"), at_once("x", "x", "y"))) == [[True] * 3] * 2


def test_two_orders():
    """Nobody waits, nothing is tuned, and what comes afterwards is."""
    found = run(at_once("x", "y", "z"), at_once("y", "x", "z"))
    assert decisions(found) == [[False, False, True]] * 2
    assert max(wait_s for of_rank in found for _, _, wait_s, _ in of_rank) < 1.0
    assert "rank 1 has another file than rank 0: y.yaml" in found[0][0][1]


@pytest.mark.parametrize("alone", [0, 1])
def test_what_one_rank_alone_applied_many_times(alone):
    """It is waited for once. What all apply then is tuned, and then so is the same file, applied by all."""
    scripts = [[(200.0, "y", None), (0.0, "x", None)]] * 2
    scripts[alone] = [*at_once(*"xxxx"), (100.0, "y", None), (0.0, "x", None)]
    found = run(*scripts)
    assert decisions(found)[alone] == [False] * 4 + [True] * 2
    assert decisions(found)[1 - alone] == [True] * 2
    assert [wait_s > 1.0 for _, _, wait_s, _ in found[alone][:4]] == [True, False, False, False]


@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_that_is_late_for_the_first_of_many(late):
    """It finds what was decided without it, and is in step again with the next thing that is waited for."""
    scripts = [[*at_once(*"xxx"), (100.0, "x", None), (0.0, "y", None)]] * 2
    scripts[late] = [(70.0, "x", None), *at_once(*"xx"), (100.0, "x", None), (0.0, "y", None)]
    assert decisions(run(*scripts)) == [[False] * 3 + [True] * 2] * 2


@pytest.mark.parametrize("refusing", [0, 1, 2])
def test_who_refuses_is_named_beside_who_does_not_come(refusing):
    """Both are reasons."""
    scripts = [at_once("x"), at_once("x"), at_once("x")]
    scripts[refusing], scripts[(refusing + 1) % 3] = [(0.0, "x", "no such file")], []
    found = run(*scripts)
    [why] = {why for of_rank in found for _, why, _, _ in of_rank}
    assert f"rank {refusing}: no such file" in why
    assert f"rank {(refusing + 1) % 3}: no answer within 50 s" in why


def test_some_ranks_decide_together():
    """What others apply meanwhile is nothing to them."""
    members = [[0, 1], [0, 1], [2, 3], [2, 3]]
    found = run(at_once("x"), at_once("x"), at_once("x"), [(0.0, "x", "no such file")], members=members)
    assert decisions(found) == [[True], [True], [False], [False]]


@pytest.mark.parametrize(("timeout_s", "expected_s"), [(20.0, 10.0), (600.0, 50.0), (None, 50.0)])
def test_the_limit_of_the_jobs_own_collectives(timeout_s, expected_s):
    """A rank waits for half of it at most: the others may be in a collective and wait for this one."""
    [[(_, why, wait_s, _)], _] = run(at_once("x"), [], timeout_s=timeout_s)
    assert f"no answer within {expected_s:g} s" in why
    assert expected_s <= wait_s <= 1.1 * expected_s


@pytest.mark.parametrize("comes", [True, False])
def test_a_store_that_dead_processes_have_left(comes):
    """An answer of a process that is gone stands for none of the one that has its rank now: that one is waited for."""
    store = HashStore()
    dead = Board(StoreRanks(1, 2, store), (0, 1))
    dead._ranks.write("all/roll", "of a dead process")
    dead._leave(_Post(1, about("x"), dead._heard()))
    found = run(at_once("x"), [(5.0, "x", None)] if comes else [], store=store)
    assert decisions(found) == ([[True], [True]] if comes else [[False], []])


class Broken:
    """A store that goes with the rank that held it."""

    def __init__(self, store, after):
        self._store, self._left = store, after

    def __getattr__(self, name):
        def asked(*args):
            self._left -= 1
            if self._left < 0:
                raise RuntimeError("connection reset")
            return getattr(self._store, name)(*args)

        return asked


def test_a_store_that_is_gone(monkeypatch):
    """The model stays untuned, with the reason."""
    monkeypatch.setattr("torch.distributed.PrefixStore", lambda _, store: store)
    [[(_, why, _, _)], _] = run(at_once("x"), [], store=Broken(HashStore(), 20))
    assert "the ranks could not agree: " in why
    assert "connection reset" in why


@pytest.mark.parametrize("seed", range(20))
def test_any_scripts(seed):
    """Whatever ranks do, none waits for long; what is decided for a config is decided for all ranks; and once they have
    come together, they are in step."""
    chance = random.Random(seed)
    num_ranks = chance.choice([2, 2, 3, 4])
    scripts = []
    for _ in range(num_ranks):
        steps = []
        for name in "abcab":
            if chance.random() < 0.8:
                pause_s = chance.choice([0.0, 0.0, 0.0, 5.0, 40.0, 70.0, 300.0])
                steps.append((pause_s, name, "no such file" if chance.random() < 0.15 else None))
        chance.shuffle(steps) if chance.random() < 0.2 else None
        scripts.append(steps)
    outcomes = SimulatedRanks(num_ranks).run(applying_and_meeting, scripts)
    assert [outcome.error for outcome in outcomes] == [None] * num_ranks
    found = [outcome.value for outcome in outcomes]
    assert max(wait_s for of_rank in found for _, _, wait_s, _ in of_rank) <= LIMIT_S
    tuned = [sorted(name for _, why, _, name in of_rank if why is None) for of_rank in found]
    assert all(each == tuned[0] for each in tuned)
    assert [[why is None for _, why, _, _ in of_rank[-2:]] for of_rank in found] == [[True, True]] * num_ranks


def applying_and_meeting(rank, time, scripts):
    found = applying(rank, time, scripts)
    time.sleep(5000.0 - time.monotonic())  # As in a barrier of the job's.
    return found + applying(rank, time, [[*at_once("z", "a")]] * len(scripts))
