"""What graph breaks cost, by the framework's profiler."""

from __future__ import annotations

import pytest

GRAPH = "## Call CompiledFxGraph f ##"
BROKEN_CALL = [
    # The forward to its branch at line 5, then the rest to its print at line 9, then the rest; each with its graph.
    ("Torch-Compiled Region: 0/0", 0.0, 10.0),
    ("TorchDynamo Cache Lookup", 0.0, 0.1),
    (GRAPH, 1.0, 2.0),
    ("aten::is_nonzero", 2.5, 3.0),
    ("Torch-Compiled Region: 1/0", 4.0, 9.9),
    (GRAPH, 4.5, 5.0),
    ("Torch-Compiled Region: 2/0", 7.0, 9.8),
    (GRAPH, 7.25, 9.0),
]


@pytest.mark.torch
def test_a_break_costs_the_time_between_its_graphs():
    """From the end of the graph before the break to the start of the next one, whatever runs in between."""
    pytest.importorskip("torch")
    from autotune.backends.torch.counters import between_graphs

    resumed = {"1/0": "m.py:5", "2/0": "m.py:9"}
    assert between_graphs(BROKEN_CALL, resumed) == {"m.py:5": 2.5, "m.py:9": 2.25}
    twice = BROKEN_CALL + [(name, begin + 20, end + 20) for name, begin, end in BROKEN_CALL]
    assert between_graphs(twice, resumed) == {"m.py:5": 5.0, "m.py:9": 4.5}
    without_graph_before = [each for each in BROKEN_CALL if each[1] != 1.0]
    assert between_graphs(without_graph_before, {"1/0": "m.py:5"}) == {"m.py:5": 4.5}
    assert between_graphs([], resumed) == {}


@pytest.mark.torch
def test_what_is_given_up_costs_the_time_after_the_last_graph():
    """Of each call, until what was compiled first is left; a call without any graph counts from its start."""
    pytest.importorskip("torch")
    from autotune.backends.torch.counters import after_the_last_graph

    assert after_the_last_graph(BROKEN_CALL) == 1.0
    second = [("Torch-Compiled Region: 0/0", 20.0, 23.0)]
    assert after_the_last_graph(BROKEN_CALL + second) == 4.0
    assert after_the_last_graph([]) == 0.0
