"""Jobs with the fake framework: see `jobs`. What the job holds of a plain callable is called like it, and no more."""

from __future__ import annotations

from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest

from autotune_fake.behaviours import BEHAVIOURS
from tests.conformance import jobs
from tests.conformance.kit import Kit


class Model:
    def __init__(self):
        self.weight = np.random.default_rng(0).normal(size=(8, 8))
        self.scale = 2.0

    def __call__(self, x):
        return x @ self.weight * self.scale


class Cached(Model):
    """Writes to its second input, as to a cache of keys and values."""

    def __call__(self, x, cache):
        cache += 1
        return super().__call__(x) * cache.sum()


class Stateful(Model):
    """Writes to an array of its own."""

    def __init__(self):
        super().__init__()
        self.total = np.zeros(2)

    def __call__(self, x, cache):
        self.total += 1
        return super().__call__(x) * self.total.sum()


class FakeKit(Kit):
    framework = "fake"
    CHANGES = {
        "in place": lambda model, _: model.weight.__imul__(2),
        "another array": lambda model, _: setattr(model, "weight", np.ones((8, 8))),
        "a number": lambda model, _: setattr(model, "scale", 3.0),
    }
    PATCHES = {}
    OTHERS = {}
    WRITERS = (Cached, Stateful)
    WRONG = {"execution": "compile", "behaviour": "wrong"}
    x = np.linspace(-1, 1, 32).reshape(4, 8)

    def model(self, kind=None):
        return (kind or Model)()

    def rows(self, num):
        return np.linspace(-1, 1, 8 * num).reshape(num, 8)

    def unfit(self):
        return np.ones((4, 7))

    def cache(self):
        return np.zeros(2)

    def weights(self, model):
        return {}

    def array(self, value):
        return value

    def settings(self):
        return np.geterr()

    @contextmanager
    def refusing(self, x):
        def refuse(output):
            if len(output) == len(x):
                raise RuntimeError("no more memory for the compiler")
            return output

        with mock.patch.dict(BEHAVIOURS, right=refuse):
            yield


OF_CLASSES = {
    jobs.holds_the_models_own, jobs.leaves_the_model_untouched, jobs.saves_the_models_own, jobs.copies_are_untuned,
    jobs.gradients_are_the_models, jobs.as_a_part_it_is_the_model,
}  # fmt: skip
CASES = {name: case for name, case in jobs.cases_of(FakeKit).items() if case not in OF_CLASSES}


@pytest.mark.parametrize("name", CASES)
def test_a_job(tmp_path, name):
    jobs.run(CASES[name], FakeKit({"execution": "compile"}, tmp_path))
