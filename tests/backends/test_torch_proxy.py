"""What a job holds of a module, as an object: its `forward`, its class, and patches of either."""

from __future__ import annotations

import copy
import inspect
import pickle
from types import MethodType

import pytest

torch = pytest.importorskip("torch")

from autotune.backends.proxy_object import original  # noqa: E402
from autotune.backends.torch.proxy import asks_fx, proxy  # noqa: E402
from autotune.backends.undo import UndoLog  # noqa: E402

X = torch.linspace(-1, 1, 8).reshape(2, 4)


def made():
    """A model of a class that a test may patch, what the job holds of it, and the tuned calls."""

    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x, scale=1.0):
            return self.layer(x) * self.helped(scale)

        def helped(self, scale):
            return scale

    torch.manual_seed(0)
    model, calls = Scaled().requires_grad_(False), []

    def call(*args, **kwargs):
        calls.append(args)
        return model(*args, **kwargs)

    return model, proxy(model, model, call, UndoLog()), calls


class TestForward:
    def test_goes_the_tuned_way(self):
        """As its calls do; it is a method of the object, with the author's name and signature."""
        model, tuned, calls = made()
        assert torch.equal(tuned.forward(X, scale=2.0), model(X, scale=2.0))
        assert len(calls) == 1
        assert inspect.signature(tuned.forward) == inspect.signature(model.forward)
        assert tuned.forward == tuned.forward
        assert (tuned.forward.__self__, tuned.forward.__name__) == (tuned, "forward")

    def test_of_its_class_it_is_the_authors(self):
        """And of other objects of the class: replicas, derived classes, pickles."""
        model, tuned, calls = made()
        assert type(tuned).forward is type(model).forward
        assert torch.equal(type(model).forward(tuned, X), model(X))
        replica = tuned._replicate_for_data_parallel()
        assert torch.equal(replica.forward(X), model(X))
        assert type(replica) is type(model)

        class Derived(type(tuned)):
            def forward(self, x):
                return super().forward(x) + 1

        derived = Derived()
        assert torch.equal(derived(X), derived.layer(X) + 1)
        Derived.forward = lambda self, x: x
        assert derived.forward(X) is X
        assert type(model).forward is not Derived.forward
        assert not calls

    @pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
    def test_calls_no_hooks_of_the_model(self, register):
        """Hooks are called by a call, not by its `forward`."""
        model, tuned, calls = made()
        seen = []
        getattr(tuned, register)(lambda *_: seen.append(1))
        assert torch.equal(tuned.forward(X), model.layer(X))
        assert (seen, calls) == ([], [])

    @pytest.mark.parametrize("through", ["a function", "another method", "the model"])
    def test_a_patch_may_call_what_it_replaces(self, through):
        """As libraries wrap the `forward` of an object: there is no way back into the patch."""
        model, tuned, _ = made()
        before = tuned.forward
        if through == "a function":
            tuned.forward = lambda x: before(x) * 3
        elif through == "another method":
            tuned.forward = MethodType(lambda self, x: before.__func__(self, x) * 3, tuned)
        else:
            model.forward = lambda x: before(x) * 3
        for each in (tuned, tuned.forward, model, model.forward):
            assert torch.equal(each(X), model.layer(X) * 3)
        del model.forward
        assert torch.equal(tuned.forward(X), model.layer(X))

    @pytest.mark.torch
    def test_recorded_it_is_the_models(self):
        """In a function that the job compiles, by an exporter, or by a tracer."""
        model, tuned, calls = made()
        step = torch.compile(lambda x: tuned.forward(x) + 1, backend="eager", fullgraph=True)
        assert torch.equal(step(X), model.layer(X) + 1)
        program = torch.export.export(tuned, (X,))
        assert program.state_dict.keys() == model.state_dict().keys()
        assert torch.equal(program.module()(X), model.layer(X))
        assert not calls
        torch._dynamo.reset()


class TestItsClass:
    @pytest.mark.parametrize("name", ["forward", "helped", "added"])
    def test_what_is_set_there_is_set_in_the_authors_class(self, name):
        """A job that patches `type(tuned)` patches the class of its model, and can take that back."""
        model, tuned, _ = made()
        kind, before = type(model), vars(type(model)).get(name)
        setattr(type(tuned), name, lambda self, *_: 5.0)
        assert getattr(kind, name)(model) == 5.0
        assert getattr(type(tuned), name)(tuned) == 5.0
        delattr(type(tuned), name)
        assert name not in vars(kind)
        if before is not None:
            setattr(type(tuned), name, before)
            assert torch.equal(tuned(X), model.layer(X))

    def test_a_wrapper_of_the_authors_method(self):
        """It calls the method that it found in the class."""
        model, tuned, _ = made()
        before = type(tuned).forward
        type(tuned).forward = lambda self, x: before(self, x) * 3
        for each in (tuned, tuned.forward, model):
            assert torch.equal(each(X), model.layer(X) * 3)

    def test_copies_are_of_it(self):
        """The class of the class is one too, and is in the way of none."""
        model, tuned, _ = made()
        for other in (copy.copy(tuned), copy.deepcopy(tuned), original(tuned)):
            assert type(other) is type(model)
        assert isinstance(tuned, type(model))
        assert issubclass(type(tuned), type(model))
        with pytest.raises((AttributeError, pickle.PicklingError)):
            pickle.dumps(tuned)  # As of any class within a function.


@pytest.mark.parametrize("release", ["2.13", "2.14"])
def test_a_call_under_symbolic_tracing_is_recorded_as_the_models(monkeypatch, release):
    """The release says in its own way that `torch.fx` is at work: one flag, or from 2.14 on one for each thread."""
    private = torch.fx._symbolic_trace
    monkeypatch.delattr(private, "_get_is_fx_tracing" if release == "2.13" else "_is_fx_tracing_flag", raising=False)
    if release == "2.13":
        monkeypatch.setattr(private, "_is_fx_tracing_flag", True, raising=False)
    else:
        monkeypatch.setattr(private, "_get_is_fx_tracing", lambda: True, raising=False)
    monkeypatch.setattr("autotune.backends.torch.proxy._is_fx_tracing", asks_fx(private))
    model, tuned, calls = made()
    assert torch.equal(tuned(X), model(X))
    assert not calls
