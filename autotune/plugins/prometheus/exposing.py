"""`autotune.expose`, which says so where the package of Prometheus is missing."""

from __future__ import annotations

from typing import Any

from autotune.command_line import install
from autotune.errors import InputError


def expose(model: Any, name: str) -> None:
    """Give the statistics of a model that `apply` gave to Prometheus, under the label `model=name`, for as long as the
    model lives.

    Raises InputError for any other model, for a name that another model has, and where the package `prometheus-client`
    is missing.
    """
    try:
        from autotune.plugins.prometheus.collector import expose as register
    except ImportError:
        raise InputError(
            "Prometheus needs the package prometheus-client", tip=f"run: {install('prometheus')}"
        ) from None
    register(model, name)
