"""Variables of the environment that calls of a model read: named for a study, and followed in a job."""

from __future__ import annotations

import functools
import os
from os import environ, getenv

import pytest

import autotune
from autotune.backends.read_around import EnvironmentRead, variables_read
from tests.stand_ins.exports import export

NAME = "TENANT_OF_A_GLOBAL"


def of_a_function():
    return os.getenv("TENANT")


class Helper:
    def __init__(self):
        self.made_with = os.environ.get("WHEN_MADE")

    @property
    def tenant(self):
        return environ["TENANT"]

    def __len__(self):
        return len(os.environ["TENANT"])


class WithHelper:
    def __init__(self):
        self.helper = Helper()


class Base:
    def which(self):
        return getenv("TENANT", "none")


class Calling(Base):
    """Of the readers, a case names the one that it calls."""

    def __init__(self):
        self.hooks = {}
        self.seed = os.environ.get("WHEN_MADE")

    def never(self):
        return os.environ["NEVER"]


def forward(body, base=Calling):
    return type("Case", (base,), {"forward": body})()


class Worker:
    def work(self):
        return os.environ.get("TENANT")


def hooked():
    model = forward(lambda self, x: x)
    model.hooks[1] = lambda *_: os.environ["TENANT"]
    return model


CASES = {
    "environ": forward(lambda self, x: os.environ["TENANT"]),
    "in environ": forward(lambda self, x: "TENANT" in os.environ),
    "getenv": forward(lambda self, x: getenv("TENANT")),
    "a method of a base": forward(lambda self, x: self.which()),
    "a property of a held object": forward(lambda self, x: self.helper.tenant, WithHelper),
    "an operator of a held object": forward(lambda self, x: len(self.helper), WithHelper),
    "a function": forward(lambda self, x: of_a_function()),
    "a function within": forward(lambda self, x: [os.getenv("TENANT") for _ in x]),
    "a partial": forward(lambda self, x: PARTIAL()),
    "an object made in the call": forward(lambda self, x: Worker().work()),
    "a hook": hooked(),
    "a plain function": of_a_function,
}
PARTIAL = functools.partial(of_a_function)


@pytest.mark.parametrize("case", CASES)
def test_a_variable_that_a_call_may_read_is_found(case):
    """By reading code alone; what only makes the model reads no variable of a call."""
    assert "TENANT" in variables_read([CASES[case]])
    assert not {"WHEN_MADE", "NEVER"}.intersection(variables_read([CASES[case]]))


def test_a_name_that_stands_elsewhere_is_found():
    """In a global; where it stands nowhere, each variable counts."""
    assert variables_read([lambda x: os.environ[NAME]]) == (NAME,)
    assert variables_read([lambda x: os.environ[x]]) == ()


def test_other_models_read_none():
    """Nor do those that read the environment when they are made, or in a method that no call comes to."""
    made = type("Made", (), {"__init__": Calling.__init__, "never": Calling.never, "forward": lambda self, x: x})
    assert variables_read([made()]) is None
    assert variables_read([lambda x: made()]) == ("WHEN_MADE",)


@pytest.mark.parametrize(
    ("names", "is_seen"), [((), True), (("TENANT_1",), True), (("TENANT_",), True), (("OTHER", "A"), False)]
)
def test_a_change_of_a_variable_is_seen(monkeypatch, names, is_seen):
    """Also of one that was not set, and of one of whose name a part stands in the code; no other counts."""
    monkeypatch.delenv("TENANT_1", raising=False)
    environment = EnvironmentRead(names)
    assert [environment.changed(), environment.changed()] == [None, None]
    monkeypatch.setenv("TENANT_1", "1")
    assert environment.changed() == ("TENANT_1" if is_seen else None)
    assert environment.changed() is None


@pytest.mark.torch
@pytest.mark.parametrize("is_set", [False, True])
def test_a_job_gets_no_stale_result(tmp_path, monkeypatch, caplog, is_set):
    """Compiled code goes on with what it saw: the config is given up before the call."""
    torch = pytest.importorskip("torch")

    class Choosing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

        def forward(self, x):
            return self.parts[int(os.getenv("AUTOTUNE_TEST_TENANT", "0"))](x)

    monkeypatch.delenv("AUTOTUNE_TEST_TENANT", raising=False)
    if is_set:
        monkeypatch.setenv("AUTOTUNE_TEST_TENANT", "1")
    model, x = Choosing().eval(), torch.randn(2, 4)
    config = {"execution": "compile", "backend": "aot_eager"}
    with torch.no_grad():
        tuned = autotune.load(export(tmp_path / "best.yaml", "torch", config, model, [x])).apply(model)
        for _ in range(15):
            tuned(x)
        monkeypatch.setenv("AUTOTUNE_TEST_OF_NOBODY", "1")
        tuned(x)
        assert autotune.stats(tuned).state == "tuned"
        monkeypatch.setenv("AUTOTUNE_TEST_TENANT", "2")
        assert torch.equal(tuned(x), model.parts[2](x))
    assert autotune.stats(tuned).state == "untuned"
    (warning,) = [each.getMessage() for each in caplog.records if each.name == "autotune"]
    assert "AUTOTUNE_TEST_TENANT was changed" in warning
