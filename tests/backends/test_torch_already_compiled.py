"""A model that is compiled already when it is given to a study or a job."""

from __future__ import annotations

import pytest

import autotune

torch = pytest.importorskip("torch")

from autotune.backends.torch.backend import TorchBackend  # noqa: E402
from autotune.backends.torch.given_model import uncompiled  # noqa: E402
from autotune.config import Config  # noqa: E402
from tests.conformance.torch_kit import CAPTURED, Stateless, X, answer_in, made, plain, warned  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("fresh_compiler")]
EAGER = Config({"execution": "eager"})


class Counting(Stateless):
    """Counts calls of `forward` that no compiler made: what is compiled does not come here once it is."""

    num_eager = 0

    def forward(self, x):
        if not torch.compiler.is_dynamo_compiling():
            Counting.num_eager += 1
        return super().forward(x)


class Decorated(Counting):
    @torch.compile(backend="eager")
    def forward(self, x):
        return super().forward(x)


def in_place(model):
    model.compile(backend="eager")
    return model


GIVEN = {
    "torch.compile(model)": lambda: torch.compile(made(Counting), backend="eager"),
    "model.compile()": lambda: in_place(made(Counting)),
    "@torch.compile at its forward()": lambda: made(Decorated),
    "twice": lambda: torch.compile(in_place(made(Counting)), backend="eager"),
}


@pytest.mark.parametrize("how", GIVEN)
def test_its_uncompiled_self_is_the_untuned_model(how):
    """With its weights and names; and the study's untuned trial says so."""
    given, backend = GIVEN[how](), TorchBackend()
    model = backend.as_model(given)
    before = Counting.num_eager
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(model(X), plain(made()))
    assert Counting.num_eager == before + 3
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in made().named_parameters()]
    assert all(one is other for one, other in zip(model.parameters(), given.parameters(), strict=True))
    said = backend.diagnose(model, EAGER).note
    assert said is not None
    assert "is compiled already" in said
    assert how == "twice" or how in said


@pytest.mark.parametrize("how", GIVEN)
def test_in_a_job(tmp_path, caplog, how):
    """The config is the model's without the compiler; the job's object has the class and the names of what it gave."""
    given = GIVEN[how]()
    tuned = answer_in(tmp_path)(CAPTURED).apply(given)
    with torch.no_grad():
        for _ in range(20):
            assert torch.allclose(tuned(X), plain(made()), atol=1e-6)
        given.load_state_dict({name: each + 0.25 for name, each in given.state_dict().items()})
        assert torch.allclose(tuned(X), given(X), atol=1e-5)
    assert autotune.stats(tuned).state == "tuned"
    assert autotune.stats(given) is not None
    assert isinstance(tuned, type(given))
    assert list(tuned.state_dict()) == list(given.state_dict())
    assert [each for each in warned(caplog) if "is compiled already" in each] == warned(caplog)


def test_functions():
    """As a decorator leaves them, and methods; one that is kept from the compiler is as it is."""

    def plainly(x):
        return x + 1

    class Owner:
        @torch.compile(backend="eager")
        def shifted(self, x):
            return x + 2

    function, said = uncompiled(torch.compile(plainly, backend="eager"))
    assert function is plainly
    assert said is not None
    method, said = uncompiled(Owner().shifted)
    assert torch.equal(method(X), X + 2)
    assert said is not None
    assert uncompiled(plainly) == (plainly, None)
    kept = torch.compiler.disable(plainly)
    assert uncompiled(kept) == (kept, None)


def test_parts():
    """They stay as they are, in the untuned model too, which is said."""
    model = made()
    model.blocks[1].compile(backend="eager")
    found, said = uncompiled(model)
    assert found is model
    assert said is not None
    assert said.endswith(": blocks.1")
    assert uncompiled(made())[1] is None


def test_scripts_and_programs_are_no_such_models():
    """What TorchScript or torch.export made is as it is."""
    script = torch.jit.trace(made().requires_grad_(False), (X,))
    program = torch.export.export(made(), (X,)).module()
    for each in (script, program):
        assert uncompiled(each) == (each, None)
