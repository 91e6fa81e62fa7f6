"""What a PyTorch job does with its model, and what it must get: real compiled code, and the plain model's answers.

Each test is a row of the table in docs/in-the-job.md.
"""

from __future__ import annotations

import collections
import dataclasses
import gc
import os
import signal
import threading
import weakref
from types import SimpleNamespace

import pytest

import autotune

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.nn.utils import parametrize  # noqa: E402
from torch.testing._internal.two_tensor import TwoTensor  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from autotune.backends.torch.apply import apply  # noqa: E402
from autotune.backends.torch.compiled_step import ClassMethods, CompiledStep  # noqa: E402
from autotune.backends.torch.frozen import FrozenStep, FrozenWeights  # noqa: E402
from autotune.backends.torch.frozen_graph import FrozenGraphPass  # noqa: E402
from autotune.backends.torch.training import training_step  # noqa: E402
from autotune.backends.undo import UndoLog  # noqa: E402
from autotune.config import Config  # noqa: E402
from autotune.errors import InvalidConfigError, UnsuitableCallError  # noqa: E402
from tests.conformance.torch_kit import (  # noqa: E402
    ALL_MODULES,
    CAPTURED,
    COMPILED,
    EAGER,
    FROZEN,
    Block,
    Doubled,
    Net,
    Stateless,
    TorchKit,
    X,
    adapted_layer,
    answer_in,
    doubled,
    in_place,
    load,
    made,
    other_number,
    patched,
    plain,
    replaced_weight,
    through_data,
    warned,
)  # fmt: skip

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("fresh_compiler")]
KINDS = TorchKit.CONFIGS


@pytest.fixture
def answer(tmp_path):
    """See `answer_in`."""
    return answer_in(tmp_path)


@pytest.fixture(scope="module")
def frozen(tmp_path_factory):
    """A model, and what the job holds of it under a frozen config, after a first call."""
    model = made().requires_grad_(False)
    tuned = answer_in(tmp_path_factory.mktemp("frozen"))(FROZEN).apply(model)
    tuned(X)
    return model, tuned


OUTPUT_TYPES = {
    "floats": (torch.float16, torch.bfloat16, torch.float32),
    "others": (torch.float64, torch.float8_e4m3fn, torch.complex64),
    "integers": (torch.bool, torch.uint8, torch.int8, torch.int16),
    "wide integers": (torch.int32, torch.int64, torch.uint16),
}


@dataclasses.dataclass
class Batch:
    x: torch.Tensor


def of_batch(x):
    return Batch(x)


def of_cache(x):
    """As libraries have it: layers in a list, each with its tensors."""
    return SimpleNamespace(name="cache", layers=[SimpleNamespace(keys=x)])


class TestFrozenWeights:
    def test_a_part_of_the_weights_is_read_again_at_each_call(self, answer):
        """A write to one element that nobody counts is found once its part comes round."""
        model = made()
        tuned = answer(FROZEN).apply(model)
        with torch.no_grad():
            tuned(X)
            model.blocks[0].linear.weight.data[3, 3] += 1
            for _ in range(20):
                last = tuned(X)
        assert torch.allclose(last, plain(model), atol=1e-5)
        assert autotune.stats(tuned).state == "untuned"

    def test_all_of_large_weights_is_read_again_within_a_thousand_calls(self):
        """Not 8 KiB a call, which would be 131,072 calls for 1 GiB."""
        weights = FrozenWeights()
        weights.add([torch.zeros(3000, 1000), *(torch.zeros(8) for _ in range(1500))])
        rows, *_, small = weights.tensors
        for tensor, place in ((rows, (2999, 998)), (rows, (17, 3)), (small, (5,))):
            assert not any(weights.have_changed() for _ in range(1000))
            tensor.data[place] = 1.0
            assert any(weights.have_changed() for _ in range(1000))
            tensor.data[place] = 0.0

    def test_weights_that_only_moved_are_the_same(self, answer, caplog):
        """A model that is given to a spawned process moves to shared memory: another address, the same values. What
        changes there is seen."""
        model = made()
        tuned = answer(FROZEN).apply(model)
        with torch.no_grad():
            tuned(X)
            before = [each.data_ptr() for each in model.parameters()]
            model.share_memory()
            assert before != [each.data_ptr() for each in model.parameters()]
            for _ in range(3):
                assert torch.allclose(tuned(X), plain(model), atol=1e-5)
            assert not warned(caplog)
            through_data(model)
            assert torch.allclose(tuned(X), plain(model), atol=1e-5)
        assert len(warned(caplog)) == 1
        assert "weights changed" in warned(caplog)[0]

    @pytest.mark.parametrize("other", ["values", "order"])
    def test_weights_that_did_not_only_move(self, other):
        """Other values, or the same ones in another order."""
        weight = torch.nn.Parameter(torch.eye(64))
        weights = FrozenWeights()
        weights.add([weight])
        weight.data = weight.data.clone()
        assert not any(weights.have_changed() for _ in range(5))
        changed = torch.eye(64)
        changed[3, 5] = 1.0
        weight.data = changed if other == "values" else torch.eye(64).t()
        assert weights.have_changed()

    @pytest.mark.parametrize("how", ["swapped", "converted"])
    def test_weights_can_be_swapped(self, answer, caplog, how):
        """By `torch.utils.swap_tensors`, and by conversions that do: neither the compiler nor the tool holds on to the
        job's tensors in a way that PyTorch refuses. Frozen code is given up then, or gets no calls of another type,
        with one warning."""
        model = made().requires_grad_(False)
        tuned = answer(FROZEN).apply(model)
        tuned(X)
        x = X
        if how == "swapped":
            torch.utils.swap_tensors(model.blocks[0].linear.weight, torch.nn.Parameter(torch.ones(8, 8), False))
        else:
            torch.__future__.set_swap_module_params_on_conversion(True)
            try:
                model.double()
            finally:
                torch.__future__.set_swap_module_params_on_conversion(False)
            model.table, x = model.table.double(), X.double()
        for _ in range(2):
            assert torch.allclose(tuned(x), plain(model, x), atol=1e-5)
        assert len(warned(caplog)) == 1
        assert ("weights changed" if how == "swapped" else "such calls stay untuned") in warned(caplog)[0]

    @pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
    @pytest.mark.filterwarnings("ignore:Sparse")
    def test_a_sparse_buffer(self, answer, layout):
        """Inductor freezes none, as adjacencies of graph networks are: such graphs run as they are, with the weights of
        now."""
        dense = torch.eye(4)
        sparse = dense.to_sparse() if layout == "coo" else getattr(dense, f"to_sparse_{layout}")()

        class Graph(Stateless):
            def __init__(self):
                super().__init__()
                self.register_buffer("adjacency", sparse, persistent=False)

            def forward(self, x):
                return super().forward(torch.sparse.mm(self.adjacency, x))

        model = made(Graph)
        tuned = answer(FROZEN).apply(model, on_mismatch="apply")
        with torch.no_grad():
            for _ in range(2):
                assert torch.allclose(tuned(X), plain(model), atol=1e-5)
            model.adjacency.values().mul_(2) if layout != "coo" else model.adjacency._values().mul_(2)
            in_place(model)
            assert torch.allclose(tuned(X), plain(model), atol=1e-5)
        assert autotune.stats(tuned).num_fallbacks == 0

    def test_an_exported_program(self, answer, caplog):
        """It has no modes, says that it is in training, and is frozen like any other model."""
        model = torch.export.export(made().requires_grad_(False), (X,)).module()
        assert model.training
        tuned = answer(FROZEN, workload_of=model).apply(model)
        with torch.no_grad():
            assert torch.allclose(tuned(X), model(X), atol=1e-5)
        assert not warned(caplog)
        assert autotune.stats(tuned).num_compiles >= 1

    @pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last, "strided"], ids=str)
    def test_weights_in_any_order_are_read_again(self, order):
        """In whatever order their elements lie."""
        weight = torch.ones(8, 4, 3, 3)
        weight = torch.ones(8, 4, 3, 6)[..., ::2] if order == "strided" else weight.to(memory_format=order)
        weights = FrozenWeights()
        weights.add([weight])
        weight.data[7, 3, 2, 2] = 2.0
        assert any(weights.have_changed() for _ in range(3))

    def test_a_frozen_graph_returns_no_constant(self):
        """Inductor would return the same memory at each call, be it behind operations that it leaves out."""
        root = torch.nn.Module()
        root.table = torch.ones(4)
        graph = torch.fx.Graph()
        x, table = graph.placeholder("x"), graph.get_attr("table")
        same = graph.call_function(torch.ops.aten.clone.default, (table,))
        both = graph.call_function(torch.ops.aten.add.Tensor, (x, table))
        graph.output((table, same, both))
        for each in (table, same, both):
            each.meta["val"] = root.table
        FrozenGraphPass()(graph)
        first, second, third = graph.output_node().args[0]
        assert {first.target, second.target} == {torch.ops.aten.mul.Tensor}
        assert third is both

    @pytest.mark.slow
    @pytest.mark.parametrize("types", OUTPUT_TYPES.values(), ids=OUTPUT_TYPES)
    def test_outputs_of_weights_alone_are_the_jobs_own(self, answer, types):
        """What is computed from weights alone is a constant: a job that writes to it does not change later calls. A
        weight that is returned as it is is the weight."""

        class Prototypes(Stateless):
            def forward(self, x):
                table = (self.table[:, None] * self.table).t() * 3
                outputs = [table.to(each) for each in types]
                return Stateless.forward(self, x), outputs, table[:2][None].expand(2, 2, 8), self.norm.weight

        model = made(Prototypes)
        tuned = answer(FROZEN).apply(model)
        with torch.no_grad():
            for _ in range(3):
                _, found, view, weight = tuned(X)
                _, expected, expected_view, _ = plain(model)
                assert weight is model.norm.weight
                for one, other in zip([*found, view], [*expected, expected_view], strict=True):
                    assert one.dtype is other.dtype
                    assert torch.equal(one.to(torch.complex64), other.to(torch.complex64))
                    one.copy_(torch.zeros(one.shape)) if one is not view else None
        assert autotune.stats(tuned).state != "untuned"

    @pytest.mark.parametrize(
        "holder", [collections.UserDict, of_batch, of_cache], ids=["mapping", "dataclass", "object"]
    )
    def test_inputs_within_an_object_are_looked_at(self, holder):
        """Tensors in a mapping, a dataclass or an object's attributes are inputs like any others."""
        x = X.clone().requires_grad_()
        step = CompiledStep(torch.nn.Identity(), lambda value: value)
        with pytest.raises(UnsuitableCallError, match="inputs require gradients"):
            step(holder(x=x))
        frozen = FrozenStep(torch.nn.Identity().eval(), lambda value: value, FrozenWeights())
        frozen(holder(x=X))
        with pytest.raises(UnsuitableCallError, match="float64"):
            frozen(holder(x=X.double()))

    def test_forward_mode_derivatives(self, frozen):
        """Frozen code has none: such calls are untuned."""
        model, tuned = frozen
        ones = torch.ones_like(X)
        with torch.no_grad(), forward_ad.dual_level():
            slopes = [forward_ad.unpack_dual(each(forward_ad.make_dual(X, ones))).tangent for each in (model, tuned)]
        assert torch.allclose(*slopes)

    def test_other_models_of_the_process_are_not_frozen(self, answer):
        """Neither what the job compiles itself nor a second applied model."""
        first, second, third = made(), made(), made()
        tuned = answer(FROZEN).apply(first)
        with torch.no_grad():
            tuned(X)
            assert torch._inductor.config.freezing is False
            for model, step in ((second, torch.compile(second)), (third, answer(COMPILED).apply(third))):
                step(X)
                in_place(model)
                assert torch.allclose(step(X), plain(model), atol=1e-5)

    @pytest.mark.slow
    def test_models_of_one_structure_share_a_cpp_wrapper_and_no_weights(self, answer, tmp_path, monkeypatch):
        """What the wrapper's source says of a constant is its name; the constants are arguments."""
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
        first, second = made(), made()
        torch.nn.init.uniform_(second.blocks[0].linear.weight)  # A bias is short enough to be written in the code.
        compiles = answer({**FROZEN, "cpp_wrapper": True})
        with torch.no_grad():
            tuned, sources = [], []
            for model in (first, second):
                tuned.append(compiles.apply(model))
                tuned[-1](X)
                sources.append(sorted(path.name for path in (tmp_path / "cache").rglob("*.main.cpp")))
            assert not torch.allclose(first(X), second(X), atol=1e-2)
            for model, step in zip((first, second, first), (*tuned, tuned[0]), strict=True):
                assert torch.allclose(step(X), plain(model), atol=1e-5)
        assert [autotune.stats(step).num_fallbacks for step in tuned] == [0, 0]
        assert sources[0]
        assert sources[1] == sources[0]

    def test_a_refused_call_is_told_beside_another_mismatch(self, answer, caplog):
        """A job that was told of one mismatch is told that its calls are untuned, too, and once."""
        tuned = answer(FROZEN).apply(made(), on_mismatch="apply")
        with torch.no_grad():
            tuned(torch.ones(3, 8))
        for _ in range(2):
            tuned(torch.ones(3, 8))
        assert len(warned(caplog)) == 2
        assert "no_grad" in warned(caplog)[1]

    def test_a_head_is_trained_on_the_outputs(self, answer):
        """Outputs of a frozen encoder are plain tensors."""
        tuned, head = answer(FROZEN).apply(made()), torch.nn.Linear(8, 1)
        with torch.no_grad():
            features = tuned(X)
        head(features).sum().backward()
        assert head.weight.grad is not None

    @pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
    def test_what_is_no_number_comes_out_as_from_the_model(self, frozen, number):
        """Frozen code takes it, and gives NaN where the model does."""
        model, tuned = frozen
        events = autotune.stats(tuned).events
        x = X.clone()
        x[1, 2] = number
        assert plain(model, x)[1].isnan().any()
        assert torch.allclose(tuned(x), plain(model, x), atol=1e-5, equal_nan=True)
        assert autotune.stats(tuned).events == events

    @pytest.mark.parametrize("kind", [torch.long, torch.half, torch.double])
    def test_an_input_of_a_type_that_the_model_refuses_is_the_jobs_error(self, frozen, kind):
        """Fused operators take some of them, and give numbers."""
        model, tuned = frozen
        with pytest.raises(RuntimeError) as expected:
            plain(model, X.to(kind))
        with pytest.raises(RuntimeError) as found:
            tuned(X.to(kind))
        assert str(found.value) == str(expected.value)
        assert autotune.stats(tuned).state != "untuned"

    def test_a_weight_that_is_no_number_is_no_constant(self):
        """Masks hold minus infinity, which is right; NaN is what a job wants to see come out."""
        weights = FrozenWeights()
        weights.add([torch.tensor([0.0, float("-inf")])])
        with pytest.raises(InvalidConfigError, match="a weight holds NaN"):
            weights.add([torch.tensor([0.0, float("nan")])])

    def test_a_weight_made_of_others_is_watched_by_these(self):
        """A quantised weight has no memory of its own: numbers and scales lie in tensors within it. An optimizer knows
        the weight itself."""
        inner = [torch.ones(4), torch.ones(4)]
        weight = TwoTensor(*inner)
        weights = FrozenWeights()
        weights.add([weight])
        weights.add([weight])
        assert weights.tensors == [weight]
        assert not weights.have_changed()
        weights.note_step(SimpleNamespace(param_groups=[{"params": [weight]}]))
        assert weights.have_changed()

        written = FrozenWeights()
        written.add([weight])
        inner[1].add_(1)
        assert written.have_changed()


class Activated(torch.nn.Module):
    """A layer whose input is no number in places, and an activation that is fused into it under frozen weights."""

    def __init__(self, layer, activation):
        super().__init__()
        self.layer, self.activation = layer, activation

    def forward(self, x):
        return self.activation(self.layer(torch.log(x)))


class Attention(torch.nn.Module):
    """Masked scores with a softmax, in which a row that is masked as a whole is NaN, and a relu behind a layer."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x, mask):
        scores = (x @ x.transpose(-1, -2) + mask).softmax(-1)
        return torch.relu(self.layer(scores @ x))


def half(model):
    """Its layers in bfloat16, whose linear layers oneDNN computes as well."""
    return torch.autocast("cpu", dtype=torch.bfloat16)(model)


ACTIVATIONS = {
    "relu": torch.relu,
    "relu6": torch.nn.functional.relu6,
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "hardsigmoid": torch.nn.functional.hardsigmoid,
    "hardswish": torch.nn.functional.hardswish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
    "leaky_relu": torch.nn.functional.leaky_relu,
}


class TestNanWithinTheModel:
    """Frozen code gives NaN where the model does, be it made within the model, and takes infinite masks."""

    @staticmethod
    def same(model, inputs, precision=None):
        config = Config(FROZEN if precision is None else {**FROZEN, "precision": precision})
        with torch.no_grad():
            step = apply(model.eval(), config, UndoLog())
            found, expected = step(*inputs), (model if precision is None else half(model))(*inputs)
        assert expected.isnan().any()
        assert not expected.isnan().all()
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.allclose(found, expected.to(found.dtype), atol=1e-5 if precision is None else 0.05, equal_nan=True)

    @pytest.mark.fast_cases("relu", "hardsigmoid")
    @pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
    def test_of_a_logarithm_behind_a_convolution(self, activation):
        """oneDNN's fused relu, and what clamps, would make numbers of it."""
        torch.manual_seed(0)
        x = torch.randn(2, 4, 6, 6).abs()
        x[0, 0, 2, 2] = -1
        self.same(Activated(torch.nn.Conv2d(4, 4, 3), activation), (x,))

    def test_of_a_sum_behind_a_convolution(self):
        """What is added to a convolution is fused with its relu."""
        torch.manual_seed(0)
        x = torch.randn(2, 4, 6, 6).abs()
        x[0, 0, 2, 2] = -1
        self.same(Activated(torch.nn.Conv2d(4, 4, 3, padding=1), lambda y: torch.relu(y + x)), (x,))

    @pytest.mark.fast_cases("None")
    @pytest.mark.parametrize("precision", [None, "bf16_autocast"])
    def test_of_masked_attention(self, precision):
        """Masks of minus infinity are common; a row of nothing else is NaN."""
        torch.manual_seed(0)
        mask = torch.zeros(2, 6, 6)
        mask[:, :, 4:] = float("-inf")
        mask[0, 3] = float("-inf")
        self.same(Attention(), (torch.randn(2, 6, 8), mask), precision)


@pytest.mark.fast_cases("frozen", "left")
@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_moves_with_the_job(answer, config):
    """`.double()` after `apply` is followed: calls in the new type give what the model gives."""
    model = made()
    tuned = answer(config).apply(model, on_mismatch="apply")
    with torch.no_grad():
        tuned(X)
        model.double()
        model.table = model.table.double()
        if "precision" not in config:
            assert torch.allclose(tuned(X.double()), plain(model, X.double()), atol=1e-9)


APPLIED_KINDS = {
    "captured": (CAPTURED, {}),
    "frozen": (FROZEN, {}),
    "blocks": ({**CAPTURED, "region": "blocks.*"}, {}),
}


class TestMemory:
    @pytest.mark.fast_cases("captured")
    @pytest.mark.parametrize(("config", "how"), APPLIED_KINDS.values(), ids=APPLIED_KINDS)
    def test_a_model_that_the_job_drops_goes(self, answer, config, how):
        """As a model does that is compiled without the tool."""
        model = made().requires_grad_(False)
        tuned = answer(config).apply(model, **how)
        tuned(X)
        assert autotune.stats(tuned).num_compiles is not None
        gone = weakref.ref(model), weakref.ref(model.blocks[0].linear.weight)
        del model, tuned
        gc.collect()
        assert gone[0]() is None
        # Weights of frozen code stay with PyTorch (2.13), and so far those of modules that are compiled one by one.
        assert gone[1]() is None or config is not CAPTURED


class TestThreads:
    def test_settings_of_one_model_hold_in_every_thread(self, answer):
        """Another thread than the one that applied compiles under the same settings, and leaves none behind."""
        model, seen = made(), []
        tuned = answer(FROZEN).apply(model)

        def job():
            with torch.no_grad():
                tuned(X)
                seen.append(torch._inductor.config.freezing)
                in_place(model)
                seen.append(torch.allclose(tuned(X), plain(model), atol=1e-5))

        thread = threading.Thread(target=job)
        thread.start()
        thread.join()
        assert seen == [False, True]
        assert autotune.stats(tuned).num_fallbacks == 1  # So it was frozen.


def rounded_in_place(model):
    """As quantisation does: another weight in the same layer."""
    layer = model.blocks[0].linear
    layer.weight = torch.nn.Parameter(layer.weight.detach().round(decimals=1), requires_grad=False)


def rounded_layer(model):
    """The same with another layer."""
    model.blocks[0].linear = torch.nn.Linear(8, 8)
    rounded_in_place(model)


class Listed(Stateless):
    """It calls its modules by a list and a dict, which are no modules themselves."""

    def __init__(self):
        super().__init__()
        self.order = [self.blocks[0], self.blocks[1]]
        self.settings = {"factor": 2.0, "last": (1, [self.blocks[0], 3.0])}

    def forward(self, x):
        for each in self.order:
            x = each(x)
        return self.norm(x) * self.settings["factor"] * self.settings["last"][1][1]


def wrapped(model):
    model.blocks[0].linear = torch.nn.Sequential(model.blocks[0].linear, torch.nn.Identity())


OF_LISTS = {
    "an item of a list": lambda model: model.order.pop(),
    "an item of a dict": lambda model: model.settings.update(factor=7.0),
    "an item further in": lambda model: model.settings["last"][1].__setitem__(1, 5.0),
}


class TestRewrittenModules:
    """Regions and variants work on a copy of the modules that they change."""

    def test_what_a_call_leaves_behind_is_the_jobs(self, answer):
        """Attributes that the model sets in a call are set in the job's model, and the job's are seen by the call."""
        model = made(Net)
        tuned = answer({**CAPTURED, "region": "blocks.*"}).apply(model)
        with torch.no_grad():
            for _ in range(3):
                tuned(X)
            assert model.num_calls == 3
            model.num_calls = 10
            tuned(X)
        assert (model.num_calls, tuned.num_calls) == (11, 11)

    def test_modules_that_are_replaced_end_it(self, answer, caplog):
        """Other parts make another model: from then on it is called as it is, with one warning."""
        model = made()
        tuned = answer({**CAPTURED, "region": "blocks.*"}).apply(model)
        with torch.no_grad():
            tuned(X)
            model.blocks[0] = torch.nn.Identity()
            for _ in range(3):
                assert torch.allclose(tuned(X), plain(model), atol=1e-5)
        assert sum("were replaced" in each for each in warned(caplog)) == 1

    def test_a_variant_changes_the_copy_only(self, answer):
        """The job's modules have what they had, and a variant's function is the job's to give."""

        def doubled(model):
            model.blocks[1] = torch.nn.Sequential(model.blocks[1], torch.nn.Identity())

        model = made()
        asked = {**CAPTURED, "variant.second": "wrapped"}
        tuned = answer(asked, variants={"second": None}).apply(model, variants={"second": {"wrapped": doubled}})
        with torch.no_grad():
            assert torch.allclose(tuned(X), plain(model), atol=1e-5)
            in_place(model)
            assert torch.allclose(tuned(X), plain(model), atol=1e-5)
        assert autotune.stats(tuned).state != "untuned"
        assert type(model.blocks[1]) is Block

    @pytest.mark.parametrize("variant", [rounded_in_place, rounded_layer], ids=["weight", "layer"])
    def test_weights_of_a_variant_are_not_older_than_the_jobs(self, answer, caplog, variant):
        """A variant that made other weights of the job's holds until these change."""
        model = made()
        asked = {**EAGER, "variant.weights": "rounded"}
        tuned = answer(asked, variants={"weights": None}).apply(model, variants={"weights": {"rounded": variant}})
        with torch.no_grad():
            assert not torch.equal(tuned(X), plain(model)), "the variant is what runs"
        assert tuned(X).requires_grad
        assert any("records gradients" in each for each in warned(caplog))
        with torch.no_grad():
            assert not torch.equal(tuned(X), plain(model))
            model.load_state_dict({name: each + 1 for name, each in model.state_dict().items()})
            for _ in range(2):
                assert torch.equal(tuned(X), plain(model))
        assert sum("weights changed after a variant" in each for each in warned(caplog)) == 1

    @pytest.mark.fast_cases("after it-an item further in")
    @pytest.mark.parametrize("change", OF_LISTS.values(), ids=OF_LISTS)
    @pytest.mark.parametrize("when", ["before the first call", "after it"])
    def test_lists_of_modules(self, answer, caplog, change, when):
        """The copy has lists and dicts of its own where modules are in them: the job's changes of them are followed."""
        model = made(Listed)
        tuned = answer({**EAGER, "variant.second": "wrapped"}, variants={"second": None}).apply(
            model, variants={"second": {"wrapped": wrapped}}
        )
        with torch.no_grad():
            if when == "after it":
                assert torch.equal(tuned(X), plain(model))
            change(model)
            for _ in range(2):
                assert torch.equal(tuned(X), plain(model))
        told = sum("were replaced" in each for each in warned(caplog))
        assert told == (when == "after it")

    def test_a_dict_without_rewritten_modules_is_the_jobs(self, answer, caplog):
        """It is one for both, as are lists in it: what the job changes there is seen, and the config is kept."""
        model = made(Listed)
        tuned = answer({**CAPTURED, "region": "whole but norm"}).apply(model)
        with torch.no_grad():
            tuned(X)
            model.settings["factor"] = 7.0
            assert torch.allclose(tuned(X), plain(model), atol=1e-5)
        assert not warned(caplog)

    def test_a_list_that_the_call_changes(self, answer, caplog):
        """It is changed in the job's model too, and all else that the call leaves behind is there once."""

        class Moving(Listed):
            def forward(self, x):
                self.num_calls = self.num_calls + 1
                self.order.append(self.order.pop(0))
                return super().forward(x)

        model, reference = made(Moving), made(Moving)
        asked = {**EAGER, "variant.second": "wrapped"}
        tuned = answer(asked, variants={"second": None}).apply(model, variants={"second": {"wrapped": wrapped}})
        with torch.no_grad():
            for _ in range(3):
                assert torch.equal(tuned(X), reference(X))
        assert model.num_calls == 3
        assert model.order == [model.blocks[1], model.blocks[0]]
        assert sum("were replaced" in each for each in warned(caplog)) == 1

    def test_what_the_job_sets_during_a_call(self, answer):
        """An attribute that a hook or another thread sets is of the next call, whatever the call itself sets."""
        model = made(Net)
        tuned = answer({**CAPTURED, "region": "blocks.*"}).apply(model)
        with torch.no_grad():
            tuned(X)
            hook = model.norm.register_forward_hook(lambda *_: setattr(model, "scale", 7.0))
            tuned(X)
            hook.remove()
            for _ in range(2):
                assert torch.allclose(tuned(X), plain(model), atol=1e-5)
        assert (model.scale, model.num_calls) == (7.0, 6)
        assert autotune.stats(tuned).state != "untuned"

    @pytest.mark.fast_cases("after it-a submodule")
    @pytest.mark.parametrize("changed", ["the model", "a submodule"])
    @pytest.mark.parametrize("when", ["before the first call", "after it"])
    def test_a_class_that_is_changed_ends_it(self, answer, caplog, changed, when):
        """As adapters and sharding do it, which swap the class of a module."""
        model = made()
        owner = model if changed == "the model" else model.blocks[0]
        tuned = answer({**CAPTURED, "region": "blocks.*"}).apply(model)
        with torch.no_grad():
            before = tuned(X) if when == "after it" else plain(model)
            kind = type(owner)
            owner.__class__ = type(kind.__name__, (kind,), {"forward": lambda self, x: kind.forward(self, x) * 3})
            for _ in range(2):
                assert torch.allclose(tuned(X), plain(model), atol=1e-5)
            assert not torch.allclose(plain(model), before, atol=1e-3)
        assert sum("were replaced" in each for each in warned(caplog)) == 1


class Helped(Stateless):
    """Calls a method of its own, and one of its base's."""

    def scaled(self, x):
        return x * 2

    def forward(self, x):
        return self.scaled(super().forward(x))


EARLY_CHANGES = {
    "the mode": lambda model: model.train(),
    "a number": other_number,
    "a parameter": replaced_weight,
    "an adapter": adapted_layer,
    "a checkpoint": lambda model: load(model, assign=True),
}


class TestPatchedModels:
    """What libraries and researchers do to a model after its first calls."""

    @pytest.mark.parametrize(
        "owner", [Helped, Stateless, torch.nn.BatchNorm1d], ids=["its class", "a base", "PyTorch's, which inherits it"]
    )
    def test_methods_of_classes_that_are_replaced_are_called(self, answer, owner):
        """Not `forward` of the modules alone."""
        model = made(Helped)
        tuned = answer(CAPTURED).apply(model)
        with torch.no_grad():
            before = tuned(X)
            undo = patched(owner, "scaled" if owner is Helped else "forward", doubled)
            try:
                assert torch.allclose(tuned(X), model(X), atol=1e-5)
                assert not torch.allclose(model(X), before, atol=1e-3)
            finally:
                undo()

    def test_attributes_of_classes_are_no_methods(self):
        """A class may count its calls, or get an attribute: dynamo looks at those."""

        class Counted(Stateless):
            num_calls = 0

        methods = ClassMethods(made(Counted))
        Counted.num_calls, Counted.cache = 1, {}
        assert not methods.have_changed()
        Counted.forward = lambda self, x: x
        assert methods.have_changed()
        del Counted.forward
        assert not methods.have_changed()

    @pytest.mark.parametrize(
        "register",
        [
            lambda: ALL_MODULES.register_module_full_backward_pre_hook(lambda _m, slopes: (slopes[0] * 2,)),
            lambda: ALL_MODULES.register_module_full_backward_hook(
                lambda _m, slopes, _: None if slopes[0] is None else (slopes[0] * 2,)
            ),
        ],
        ids=["before", "after"],
    )
    def test_backward_hooks_of_all_modules(self, answer, register):
        """They change the gradients as they do in the plain model."""

        class Twice(Stateless):
            def forward(self, x):
                return Stateless.forward(self, x + self.table)

        model, reference = made(Twice), made(Twice)
        for each in (model, reference):
            each.table = torch.nn.Parameter(each.table)
        tuned = answer(CAPTURED, task="train").apply(model, on_mismatch="apply")
        tuned(X).sum().backward()
        model.zero_grad()
        handle = register()
        try:
            tuned(X).sum().backward()
            reference(X).sum().backward()
        finally:
            handle.remove()
        for one, other in zip(model.parameters(), reference.parameters(), strict=True):
            assert torch.allclose(one.grad, other.grad, atol=1e-5)

    def test_second_derivatives_by_inputs(self, answer, caplog):
        """No trial compares gradients of inputs: a call whose inputs require them is untuned, with one warning."""
        found = []
        for model in (made(), answer(CAPTURED, task="train").apply(made())):
            for _ in range(2):
                x = X.clone().requires_grad_()
                (slope,) = torch.autograd.grad(model(x).pow(2).sum(), x, create_graph=True)
                slope.pow(2).sum().backward()
            found.append(x.grad)
        assert torch.allclose(*found)
        assert [each for each in warned(caplog) if "inputs require gradients" in each] == warned(caplog)[:1]

    def test_an_iterator_is_read_once(self, answer):
        """A failed call that is repeated would find the rest of it only, and give a result."""

        class Several(Stateless):
            def forward(self, several):
                return sum(Stateless.forward(self, each) for each in several)

        tuned = answer(CAPTURED).apply(made(Several), on_mismatch="apply")
        with torch.no_grad():
            tuned([X, X])
            with pytest.raises(RuntimeError):
                tuned(iter([X, X[:, :3], X]))
            assert torch.allclose(tuned(iter([X, X])), tuned([X, X]), atol=1e-5)

    @pytest.mark.parametrize("is_told", [True, False])
    def test_a_checkpoint_of_activations(self, answer, monkeypatch, is_told):
        """It ends its second forward pass by an exception, which is no failure of the config, whether or not the
        release tells that there is a checkpoint."""
        if not is_told:
            monkeypatch.setattr("autotune.backends.torch.compiled_step._saved_tensor_hooks", lambda _: None)
        gradients = []
        for model in (made(), answer(CAPTURED, task="train").apply(made())):
            checkpoint(model, X, use_reentrant=False).sum().backward()
            gradients.append([each.grad for each in model.parameters()])
        assert all(map(torch.allclose, *gradients))
        assert autotune.stats(model).state != "untuned"

    @pytest.mark.fast_cases("the mode-left", "a checkpoint-blocks")
    @pytest.mark.parametrize("config", [KINDS["blocks"], KINDS["left"]], ids=["blocks", "left"])
    @pytest.mark.parametrize("change", EARLY_CHANGES.values(), ids=EARLY_CHANGES)
    def test_what_changes_between_apply_and_the_first_call(self, answer, config, change):
        """A job applies the config, and then loads its checkpoint and chooses the mode."""
        model = made()
        tuned = answer({**config, "backend": "aot_eager"}).apply(model)
        change(model)
        with torch.no_grad():
            for _ in range(2):
                assert torch.allclose(tuned(X), model(X), atol=1e-5)

    def test_memory_of_a_replaced_weight_stays_readable(self):
        """A thread may give a weight other memory while a call compares the weights."""
        weights, weight = FrozenWeights(), torch.nn.Parameter(torch.ones(1 << 21))
        weights.add([weight])
        (word, *_) = weights._words
        weight.data = torch.zeros(1)  # Eight megabytes less, which the system would take back.
        assert word.value == 0x3F800000
        assert weights.have_changed()

    def test_a_signal_handlers_exception_is_the_jobs(self, answer, caplog):
        """A job that ends slow calls by a signal gets its own exception, and the config is kept."""

        def end_it(*_):
            raise TimeoutError("too slow for us")

        class Slow(Stateless):
            def forward(self, x):
                return ring(super().forward(x))

        @torch.compiler.disable
        def ring(value):
            if is_slow:
                signal.raise_signal(signal.SIGUSR1)
            return value

        is_slow, before = False, signal.signal(signal.SIGUSR1, end_it)
        try:
            tuned = answer(CAPTURED).apply(made(Slow))
            with torch.no_grad():
                expected = tuned(X)
                is_slow = True
                with pytest.raises(TimeoutError, match="too slow for us"):
                    tuned(X)
                is_slow = False
                assert torch.equal(tuned(X), expected)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert not warned(caplog)
        assert autotune.stats(tuned).state != "untuned"


class Gained(Stateless):
    """A weight of the model's own, outside of its submodules."""

    def __init__(self):
        super().__init__()
        self.gain = torch.nn.Parameter(torch.ones(8))

    def forward(self, x):
        return super().forward(x) * self.gain


class TestOthersOfItsClass:
    """What the job holds is the only object of its class that is called otherwise."""

    @pytest.mark.fast_cases("the tuned")
    @pytest.mark.parametrize("whose", ["the tuned", "the job's"])
    def test_a_class_that_is_changed(self, answer, whose):
        """A parametrization gives its module another class, which both of the job's objects are of."""
        model = made(Gained)
        tuned = answer(CAPTURED).apply(model, on_mismatch="apply")
        with torch.no_grad():
            before = tuned(X)
            parametrize.register_parametrization(tuned if whose == "the tuned" else model, "gain", Doubled())
            assert torch.allclose(tuned(X), 2 * before, atol=1e-5)
            assert torch.equal(tuned.gain, 2 * torch.ones(8))
            assert tuned.__class__ is type(model) is not Gained
            assert isinstance(tuned, type(model))
            parametrize.remove_parametrizations(tuned, "gain", leave_parametrized=False)
            assert torch.allclose(tuned(X), before, atol=1e-5)
        assert tuned.__class__ is Gained


class TestAFileIsNotCode:
    def test_no_function_that_it_names_is_called(self, answer, caplog, tmp_path, monkeypatch):
        """A variant's function is never imported by a name in a file."""
        (tmp_path / "evil.py").write_text("raise SystemExit('imported')\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        config = {**CAPTURED, "variant.attention": "fused"}
        model = made()
        assert answer(config, variants={"attention": "evil:run"}).apply(model) is model
        assert "a file cannot name code to run" in warned(caplog)[0]

    @pytest.mark.parametrize(
        "config",
        [
            {**EAGER, "threads": 1_000_000},
            {**COMPILED, "cpp_wrapper": 7},
            {**COMPILED, "recompile_limit": 10**9},
        ],
        ids=str,
    )
    def test_values_are_bounded(self, answer, caplog, config):
        """What no space offers is refused, with a sentence, before anything is set."""
        model, threads = made(), torch.get_num_threads()
        assert answer(config).apply(model, process_settings=True) is model
        assert len(warned(caplog)) == 1
        assert "stays untuned" in warned(caplog)[0]
        assert torch.get_num_threads() == threads

    @pytest.mark.parametrize("knob", [{"threads": 1}, {"matmul_precision": "medium"}, {"allocator": "keep"}], ids=str)
    def test_the_process_is_the_jobs(self, answer, caplog, knob):
        """What holds for the whole process is set only where the job allows it, and taken back after `applied`."""
        before = (torch.get_num_threads(), torch.get_float32_matmul_precision())
        model = made()
        assert answer({**EAGER, **knob}).apply(model) is model
        assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == before
        assert "process_settings=True" in warned(caplog)[0]
        with answer({**EAGER, **knob}).applied(model, process_settings=True) as tuned:
            assert autotune.stats(tuned).state != "untuned"
        assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == before

    def test_options_without_a_knob_need_the_jobs_word(self, answer, caplog):
        """An option of the compiler that no bundled space has is set only where the job allows it."""
        config = {**CAPTURED, "dynamo.specialize_float": True}
        model = made()
        assert answer(config).apply(model) is model
        assert "compiler_options=True" in warned(caplog)[0]
        tuned = answer(config).apply(model, compiler_options=True)
        assert tuned is not model
        with torch.no_grad():
            assert torch.equal(tuned(X), plain(model))

    @pytest.mark.parametrize(
        "option",
        [
            {"inductor.cpp.cxx": "touch"},
            {"dynamo.guard_nn_modules": False},
            {"os.environ": "x"},
        ],
        ids=str,
    )
    def test_options_are_bounded(self, answer, caplog, option):
        """Also where the job allows options: programs, files and checks left out are refused as in a space."""
        model = made()
        assert answer({**COMPILED, **option}).apply(model, compiler_options=True) is model
        assert "stays untuned" in warned(caplog)[0]

    def test_no_variable_is_set(self, answer, caplog, monkeypatch):
        """A config that was measured with an environment variable is applied where the job has it, and sets none."""
        monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
        model, tuned = made(), answer({**CAPTURED, "env.OMP_WAIT_POLICY": "passive"})
        assert tuned.apply(model) is model
        assert "OMP_WAIT_POLICY=passive (here it is not set)" in warned(caplog)[0]
        assert "best.yaml -- COMMAND" in warned(caplog)[0]
        assert "OMP_WAIT_POLICY" not in os.environ
        monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
        assert tuned.apply(model) is not model


class Relu(Stateless):
    """Takes nested tensors, too."""

    def forward(self, x):
        return torch.relu(x)


class TestCheckedCalls:
    """`check=True` never costs a job its result."""

    @pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
    def test_nested_inputs(self, answer, caplog, layout):
        """Of parts of other sizes, where the study had none: such calls are untuned, with one warning, before and after
        a call of the study's."""
        tuned = answer(CAPTURED).apply(made(Relu).requires_grad_(False))
        nested = torch.nested.nested_tensor([torch.ones(2, 8), torch.ones(3, 8)], layout=layout)
        for x in (nested, X, nested):
            assert tuned(x).is_nested == x.is_nested
        assert len(warned(caplog)) == 1
        assert "here float32[2, -1, 8]" in warned(caplog)[0]

    def test_a_group_that_was_added_to_the_optimizer(self):
        """Undoing the choice of an implementation leaves a later group as the job gave it."""
        model, changes = made().train(), UndoLog()
        optimizer = torch.optim.Adam(model.blocks.parameters())
        config = Config({**EAGER, "optimizer_impl": "foreach"})
        step = training_step(model, lambda model, x: model(x).pow(2).mean(), optimizer, config, changes)
        step(X)
        optimizer.add_param_group({"params": list(model.norm.parameters()), "foreach": True})
        changes.undo()
        assert [group["foreach"] for group in optimizer.param_groups] == [None, True]


def in_a_function_that_is_compiled(model, x):
    return torch.compile(lambda x: model(x) + 1, fullgraph=True)(x) - 1


def compiled_again(model, x):
    return torch.compile(model, fullgraph=True)(x)


def exported_program(strict):
    def export(model, x):
        program = torch.export.export(model, (x,), strict=strict)
        assert program.state_dict.keys() == model.state_dict().keys()
        return program.module()(x)

    return export


def traced(model, x):
    return torch.jit.trace(model, (x,))(x)


def symbolically_traced(model, x):
    return torch.fx.symbolic_trace(torch.nn.Sequential(model))(x)


def made_a_graph(model, x):
    return make_fx(model)(x)(x)


def under_a_mode(model, x):
    with FlopCounterMode(display=False) as counter:
        model(x)
    assert counter.get_total_flops() > 0
    return model(x)


def for_its_shape(model, x):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        given = model(mode.from_tensor(x))
    assert isinstance(given, FakeTensor)
    assert given.shape == x.shape
    return model(x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*torch.jit.trace")
class TestRecordedCalls:
    """The job's own compiler, exporter or mode gets the model, with its weights of now, and the config stays."""

    @pytest.mark.fast_cases("later", "at first-function")
    @pytest.mark.parametrize(
        "record",
        [
            in_a_function_that_is_compiled, compiled_again, exported_program(True), exported_program(False), traced,
            symbolically_traced, made_a_graph, under_a_mode, for_its_shape,
        ],
        ids=["function", "again", "export, strict", "export", "trace", "symbols", "graph", "mode", "shape"],
    )  # fmt: skip
    @pytest.mark.parametrize("num_before", [0, 20], ids=["at first", "later"])
    def test_they_are_the_models(self, answer, caplog, record, num_before):
        model = made()
        # Inductor's kernels read memory, which tensors of a FakeTensorMode do not have.
        tuned = answer(COMPILED if record is for_its_shape else CAPTURED).apply(model)
        with torch.no_grad():
            for _ in range(num_before):
                tuned(X)
            torch.testing.assert_close(record(tuned, X), plain(model))
            in_place(model)
            torch.testing.assert_close(record(tuned, X), plain(model))
            torch.testing.assert_close(tuned(X), plain(model))
        assert autotune.stats(tuned).state != "untuned"
        assert not warned(caplog)
