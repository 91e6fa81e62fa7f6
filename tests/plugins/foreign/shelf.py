"""A hub of somebody else's package: `autotune tune shelf:small`. The worked example of docs/architecture.md."""

import numpy as np

from autotune.errors import InputError
from autotune.workload.hubs import Hub

WIDTHS = {"small": 8, "large": 32}


class Shelf(Hub):
    """Models of a shelf, by size."""

    about = f"models of the shelf: {', '.join(WIDTHS)}"
    framework = "fake"

    def builder(self, task):
        return "shelf:build"

    def require(self, model, task):
        name = model.partition(":")[2]
        if name not in WIDTHS:
            raise InputError(f"{model}: the shelf has no {name!r}", tip=f"choose one of: {', '.join(WIDTHS)}")

    def digest(self, task):
        return "release 1"


def build(name, rows=4, seed=0):
    weight = np.random.default_rng(seed).normal(size=(WIDTHS[name], 8))
    return (lambda x: x @ weight), np.ones((rows, WIDTHS[name]))


ENTRY = Shelf()
