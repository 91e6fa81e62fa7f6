import numpy as np


def tiny(rows=4, seed=0):
    weight = np.random.default_rng(seed).normal(size=(8, 8))
    return (lambda x: x @ weight), np.random.default_rng(1).normal(size=(rows, 8))
