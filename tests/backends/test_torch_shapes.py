"""Shape strategies on real torch.compile: what is compiled for a stream of shapes, and that the outputs are right."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest

import autotune
from autotune.apply import compile_model
from autotune.apply.config_parts import ConfigParts
from autotune.backends.registry import load_backend
from autotune.backends.torch import counters
from autotune.backends.torch import shapes as shapes_module
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.measure.measurement import Axis
from autotune.workload.traffic import Load, Shapes, Traffic
from tests.stand_ins.exports import export

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

BATCHES, LENGTHS = (1, 3, 4), (2, 5, 6, 9)
STREAM = [(batch, seq) for batch in BATCHES for seq in LENGTHS]
OUTSIDE = [(5, 11)]
"""Larger than all of the traffic."""


class Part(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        return torch.tanh(self.linear(x))


class Rows(torch.nn.Module):
    """Each element by itself, so that rows and tokens can be appended: (batch, seq, 8) to the same, and to sums."""

    def __init__(self):
        super().__init__()
        self.part = Part()

    def forward(self, x):
        y = self.part(x)
        return {"rows": y, "more": (y.sum(2), 3)}


def shapes(**padding):
    batch, seq = (Axis(dimension=name, leaf=0, axis=axis) for axis, name in enumerate(("batch", "seq")))
    again = tuple(each.model_copy(update={"leaf": 1}) for each in (batch, seq))
    loads = tuple(Load(sizes={"batch": b, "seq": s}, share=1 / len(STREAM)) for b, s in STREAM)
    return Shapes(traffic=Traffic(loads=loads), inputs=(batch, seq), outputs=(batch, seq, *again), padding=padding)


@pytest.fixture
def streamed():
    """Calls the stream twice under some knobs, compares each output with that of the model as it is in the same
    precision, and tells what was compiled."""
    backend = load_backend("torch")
    changes = UndoLog()

    def run(known=None, stream=(*STREAM, *OUTSIDE), **knobs):
        backend.prepare("cpu", 0)
        torch._dynamo.reset()
        model = Rows().eval()
        plain = copy.deepcopy(model)
        config = Config({"execution": "compile", "backend": "aot_eager", **knobs})
        is_lower = knobs.get("precision") == "bf16_autocast"
        with backend.inference():
            step = compile_model.compile_under(backend, model, config, [], changes, shapes=known or shapes())
            for batch, seq in (*stream, *stream):
                x = torch.randn(batch, seq, 8)
                got = step(x)
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_lower):
                    expected = plain(x)
                assert got["more"][1] == 3
                assert got["rows"].is_contiguous()
                assert got["rows"].dtype is torch.float32
                torch.testing.assert_close(got["rows"].to(expected["rows"].dtype), expected["rows"])
                torch.testing.assert_close(got["more"][0].to(expected["more"][0].dtype), expected["more"][0])
        return backend.diagnose(model, ConfigParts.of(config).settings)

    yield run
    changes.undo()
    torch._dynamo.reset()


COMPILED = [
    # The first shape, then one for a sequence of any length, then one for both of any size.
    ({"shapes": "automatic"}, {}, 3),
    ({"shapes": "static"}, {}, 8),
    ({"shapes": "static", "recompile_limit": 64}, {}, 13),
    # A batch of 1 is fixed whatever is asked for.
    ({"shapes": "dynamic"}, {}, 2),
    ({"shapes": "marked"}, {}, 2),
    ({"shapes": "bounded"}, {}, 2),
    # Two buckets of either dimension, and the shape that is larger than all of them.
    ({"shapes": "bucketed", "num_buckets": 2}, {"batch": 0, "seq": 0}, 5),
    ({"shapes": "bucketed", "num_buckets": 1}, {"seq": 0}, 4),
]


@pytest.mark.fast_cases(
    "{'shapes': 'automatic'}",
    "{'shapes': 'bounded'}",
    "{'shapes': 'bucketed', 'num_buckets': 2}",
)
@pytest.mark.parametrize(("knobs", "padding", "num_graphs"), COMPILED, ids=str)
def test_what_is_compiled_for_a_stream(streamed, knobs, padding, num_graphs):
    """Odd sizes, size 1 and what is larger than the traffic give the model's outputs, and code is made as often as the
    strategy means to; a second pass compiles nothing."""
    said = streamed(shapes(**padding), **knobs)
    assert said.num_graphs == num_graphs


def test_past_its_limit_dynamo_runs_eagerly(streamed):
    """Static code for more shapes than the limit is no error: it shows in the diagnosis."""
    assert "limit" in streamed(shapes="static").note
    assert streamed(shapes="static", recompile_limit=64).note is None


def test_a_recompile_is_not_said_to_be_in_the_tool():
    """A function of this package stands around the model; where the model's own is compiled again, that is named."""
    again = {"recompile_reason": "0/0: tensor 'x' size mismatch at index 0", "co_firstlineno": 7}
    own = SimpleNamespace(co_filename=shapes_module.__file__, **again)
    models = SimpleNamespace(co_filename="/job/model.py", **again)
    assert [each.location for each in counters._recompiles([own, models])] == [None, "/job/model.py:7"]


def test_a_strategy_stands_around_everything_else(streamed):
    """Autocast and modules that are compiled alone: the outputs stay right."""
    both = shapes(batch=0, seq=0)
    assert streamed(both, shapes="bucketed", num_buckets=1, precision="bf16_autocast").num_graphs == 2


def test_shapes_outside_the_bounds_run_in_the_precision_of_the_config():
    """Autocast holds for a call that is not compiled, too."""
    backend, changes, model = load_backend("torch"), UndoLog(), Rows().eval()
    knobs = {"execution": "compile", "backend": "aot_eager", "precision": "bf16_autocast"}
    config = Config({**knobs, "shapes": "bounded"})
    with backend.inference():
        step = compile_model.compile_under(backend, model, config, [], changes, shapes=shapes())
        given = [step(torch.randn(batch, seq, 8))["rows"] for batch, seq in ((3, 5), (99, 5))]
    changes.undo()
    for rows in given:
        assert rows.dtype is torch.float32
        assert torch.equal(rows, rows.bfloat16().float())


@pytest.mark.parametrize("strategy", ["marked", "bounded"])
def test_a_mark_lasts_as_long_as_its_call(strategy):
    """Other compiled code of the job, for which a size cannot stay open, gets the same tensor."""
    backend, changes = load_backend("torch"), UndoLog()
    config = Config({"execution": "compile", "backend": "aot_eager", "shapes": strategy})
    x = torch.randn(3, 5, 8)
    x.note = "the job's own"
    with backend.inference():
        step = compile_model.compile_under(backend, Rows().eval(), config, [], changes, shapes=shapes())
        other = torch.compile(lambda given: given + torch.ones(3, 1, 1), backend="aot_eager")
        for _ in range(2):
            step(x)
            torch.testing.assert_close(other(x), x + 1)
    changes.undo()
    assert vars(x) == {"note": "the job's own"}


@pytest.mark.fast_cases("{'shapes': 'bucketed', 'num_buckets': 2}")
@pytest.mark.parametrize(
    ("knobs", "padding"),
    [
        ({"shapes": "static"}, {}),
        ({"shapes": "marked"}, {}),
        ({"shapes": "bucketed", "num_buckets": 2}, {"batch": 0, "seq": 0}),
        ({"shapes": "bounded"}, {}),
    ],
    ids=str,
)
def test_a_job_compiles_as_often_as_the_trial(streamed, tmp_path, knobs, padding):
    """`apply` of an exported answer on the same stream: the same outputs, the same number of compilations."""
    known = shapes(**padding)
    in_trial = streamed(known, stream=STREAM, **knobs).num_graphs
    load_backend("torch").prepare("cpu", 0)
    torch._dynamo.reset()
    model = Rows().eval()
    plain = copy.deepcopy(model)
    config, inputs = {"execution": "compile", "backend": "aot_eager", **knobs}, [torch.randn(3, 5, 8)]
    path = export(tmp_path / "best.yaml", "torch", config, model, inputs, shapes=known.model_dump(mode="json"))
    with torch.no_grad(), autotune.load(path).applied(model) as tuned:
        for batch, seq in (*STREAM, *STREAM):
            x = torch.randn(batch, seq, 8)
            torch.testing.assert_close(tuned(x)["rows"], plain(x)["rows"])
        stats = autotune.stats(tuned)
    assert (stats.state, stats.num_compiles) == ("tuned", in_trial)
