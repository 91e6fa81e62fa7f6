"""The model of a device's seconds: in which order the product's own tuner does things there."""

from __future__ import annotations

from itertools import groupby

from benchmarks import first_proof


def events(device):
    """What was started and timed, a sequence of samples of one process as one."""
    return [event for event, _ in groupby(device.did)]


def test_the_order_of_a_large_gain():
    """The first block becomes warm beside the first config's trial, which is timed when all three are ready, and proves
    it. The model itself fails where a sample is taken beside anything that is at work."""
    device, proven_s = first_proof.study_of(5.0, 120.0, seed=0)
    block = {"block-01/untuned", "block-01/trial-0001"}
    did = events(device)
    assert did[:3] == [("start", "0000"), ("time", "0000"), ("start", "0001")]
    assert set(did[3:5]) == {("start", name) for name in block}
    assert did[5] == ("time", "0001")
    assert {name for what, name in did[6:14] if what == "time"} == block
    assert proven_s < 120.0


def test_the_order_of_small_gains():
    """The second config is started with others, and all are ready before one is timed; no block but that of the first
    config starts before its trial has shown anything. The noise floor comes behind the first config."""
    device, _ = first_proof.study_of(1.02, 600.0, seed=0, num_configs=5)
    did = events(device)
    numbers = [event for event in did if event[1].isdecimal()]
    assert numbers[:4] == [("start", "0000"), ("time", "0000"), ("start", "0001"), ("time", "0001")]
    assert [what for what, _ in numbers[4:10]] == ["start"] * 3 + ["time"] * 3
    first = did.index(("start", "0001"))
    assert {name for _, name in did[first + 1 : first + 3]} == {"block-01/untuned", "block-01/trial-0001"}
    assert ("time", "block-01/trial-0001") not in did[: did.index(("time", "0004"))]
    assert did.index(("time", "0001")) < did.index(("time", "block-01/untuned-1")) < did.index(("start", "0002"))
