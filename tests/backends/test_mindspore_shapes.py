"""Shape strategies on real MindSpore: what is compiled for a stream of shapes, and that the outputs are right."""

from __future__ import annotations

import functools
import json

import pytest

from tests.stand_ins.child import said_by

pytest.importorskip("mindspore")
pytestmark = pytest.mark.mindspore

SCRIPT = """
import json, os, sys
import numpy as np
from autotune.apply import compile_model
from autotune.apply.config_parts import ConfigParts
from autotune.backends.registry import load_backend
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.measure.measurement import Axis
from autotune.workload.traffic import Shapes
from autotune.workload.traffic import Load, Traffic

backend = load_backend("mindspore")
backend.prepare("cpu", 0)
import mindspore as ms
from mindspore import Tensor, nn, ops


class Rows(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layer = nn.Dense(8, 8)

    def construct(self, x):
        y = ops.tanh(self.layer(x))
        return y, y.sum(2)


stream = [(batch, seq) for batch in (1, 3) for seq in (2, 5, 6)]
axes = [Axis(dimension=name, leaf=leaf, axis=axis) for leaf in (0, 1) for axis, name in enumerate(("batch", "seq"))]
loads = tuple(Load(sizes={"batch": b, "seq": s}, share=1 / len(stream)) for b, s in stream)
shapes = Shapes(traffic=Traffic(loads=loads), inputs=axes[:2], outputs=axes, padding={"batch": 0})
model = Rows().set_train(False)
inputs = [Tensor(np.random.randn(b, s, 8).astype(np.float32)) for b, s in (*stream, (5, 9))]
expected = [[each.asnumpy() for each in model(x)] for x in inputs]
said = []
for knobs in json.loads(sys.argv[1]):
    changes, model_again = UndoLog(), Rows().set_train(False)
    ms.load_param_into_net(model_again, model.parameters_dict())
    config = Config(knobs)
    step = compile_model.compile_under(backend, model_again, config, [], changes, shapes=shapes)
    errors = [
        max(float(np.abs(got.asnumpy() - right).max()) for got, right in zip(step(x), each, strict=True))
        if all(got.shape == right.shape for got, right in zip(step(x), each, strict=True)) else -1.0
        for x, each in zip(inputs, expected, strict=True)
    ]
    graphs = backend.diagnose(model_again, ConfigParts.of(config).settings).num_graphs
    changes.undo()
    ms.graph.api.ms_compile_cache.clear()
    assert model_again.get_inputs() is None
    after = [each.asnumpy() for each in model_again(inputs[0])]
    said.append([graphs, max(errors), min(errors), float(np.abs(after[0] - expected[0][0]).max())])
print(json.dumps(said), flush=True)
os._exit(0)
"""

JIT = {"execution": "jit", "capture": "ast", "jit_level": "O0"}
GRAPH = {"execution": "graph", "jit_level": "O0"}
COMPILED = [
    (JIT | {"shapes": "static"}, 7),
    # The first shape, one dimension open, both.
    (JIT | {"shapes": "automatic"}, 3),
    (JIT | {"shapes": "marked"}, 1),
    # The call outside of the bounds is left as it is.
    (JIT | {"shapes": "bounded"}, 1),
    # The batch is brought to 3, lengths are as they are; and the shape that is larger than the bucket.
    (JIT | {"shapes": "bucketed", "num_buckets": 1}, 4),
    (GRAPH | {"shapes": "static"}, 7),
    (GRAPH | {"shapes": "marked"}, 1),
    (GRAPH | {"shapes": "bounded"}, 1),
]


MARKED, BOUNDED = 2, 3
"""Of `COMPILED` those that are tried in the fast suite."""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What a config says. Configs run one after the other in one process, each on a Cell of its own; those of the fast
    suite have one, the others another."""

    @functools.cache
    def said(*numbers):
        configs = json.dumps([COMPILED[each][0] for each in numbers])
        return dict(zip(numbers, said_by(tmp_path_factory.mktemp("shapes"), SCRIPT, configs), strict=True))

    return said


@pytest.mark.fast_cases(str(COMPILED[MARKED][0]), str(COMPILED[BOUNDED][0]))
@pytest.mark.parametrize("number", range(len(COMPILED)), ids=lambda number: str(COMPILED[number][0]))
def test_what_is_compiled_for_a_stream(said, number):
    """Odd sizes, size 1 and what is larger than the traffic give the model's outputs, graphs are made as often as the
    strategy means to, and undone the Cell is what it was."""
    quick = (MARKED, BOUNDED)
    together = quick if number in quick else tuple(each for each in range(len(COMPILED)) if each not in quick)
    num_graphs, error, least, after = said(*together)[number]
    assert num_graphs == COMPILED[number][1]
    assert 0 <= least <= error < 1e-5
    assert after == 0
