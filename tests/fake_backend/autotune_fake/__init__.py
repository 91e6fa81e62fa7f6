"""A framework that compiles nothing, for tests: a package of its own, found as any other that adds a framework.

The folder above lies on the import path of the tests and of all their processes, as pip would leave it on disk.
"""

from autotune.backends.registry import BackendEntry

ENTRY = BackendEntry(
    compilers=("triton",),
    backend="autotune_fake.backend:FakeBackend",
    distribution=None,
    oldest="0",
    install="",
    untuned={"execution": "eager"},
    preload="autotune_fake.preloaded",
    compiled={"execution": "compile"},
    shares_compilations=True,
    holds_fresh=False,
)
