"""`Hub`: models of other packages by name, behind a door (`autotune.hubs`): `hf:NAME` is of the hub `hf`."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from autotune.doors import Door
from autotune.errors import InputError, marked

_NAMED = re.compile(r"([a-z][a-z0-9_-]*):")


class Hub(ABC):
    """A source of models. What it imports for one is imported where the model is built, and nowhere else."""

    about: str
    """A line for the list of models: what the names are, and examples."""
    framework: str
    """Framework that its models are written in."""

    @abstractmethod
    def builder(self, task: str) -> str:
        """Import reference of the function that builds a model, as `package.module:function`; it is called with `name`
        and the arguments that the user gives, and returns what a user's own function may return."""

    @abstractmethod
    def require(self, model: str, task: str) -> None:
        """Raises InputError for a text that names no model or a task that its models have not, and
        MissingFrameworkError where the package is not installed."""

    @abstractmethod
    def digest(self, task: str) -> str:
        """Digest of what holds the code of its models: another one is another model."""

    def name_of(self, name: str, search_path: Path) -> str:  # noqa: ARG002 - a hub of folders needs it
        """The name that the builder is called with, for what the user wrote behind the scheme. That of a folder or a
        file, which is seen from `search_path`, is absolute."""
        return name


HUBS = Door("autotune.hubs", "hub", Hub)


def hub_of(model: str) -> Hub | None:
    """The hub that a text names; None for a model of any other kind. Raises InputError where it cannot be used."""
    scheme = _NAMED.match(model)
    return None if scheme is None else HUBS.find(scheme[1])


def hub_reference(hub: Hub, model: str, framework: str, task: str) -> tuple[str, str]:
    """The import reference of the builder, and a digest of what holds the model's code. Raises like `Hub.require`."""
    if framework != hub.framework:
        raise InputError(
            f"{marked('build', model)}: its models are written in {hub.framework}, and this is a study of {framework}",
            tip=f"use {marked('framework', hub.framework)}",
        )
    hub.require(model, task)
    return hub.builder(task), hub.digest(task)


def builder_of_today(model: str, task: str, reference: Any) -> Any:
    """The reference of a workload that was stored: an earlier release had the builders of hubs in `autotune.models`."""
    if not str(reference).startswith("autotune.models.") or ":" not in model:
        return reference
    hub = hub_of(model)
    return reference if hub is None else hub.builder(task)
