"""What differs between a job and the place where its tuned config was measured.

A latency holds for one release, one device and one model: elsewhere the config may be slow, wrong or refused. Each
difference is a phrase that says what was and what is, for one log line.
"""

from __future__ import annotations

import shlex
from collections import Counter
from typing import Any

from autotune import environment
from autotune.backends import Backend, framework_version
from autotune.environment import Environment
from autotune.subject import structure_sha256
from autotune.tuned import TunedConfig
from autotune.workload import Arguments

_COMPILERS = ("triton", "torch-npu")
"""Packages that make the code of an accelerator, next to the framework."""


def differences(tuned: TunedConfig, backend: Backend, model: Any) -> list[str]:
    """What is known before the first call: the framework's release, the device with its driver, the model. Empty: all
    is as it was when the config was measured."""
    here = environment.describe(device=backend.device_name(), variables={})
    release = framework_version(tuned.framework)
    found = [_other(tuned.framework, tuned.environment.framework_version, release)]
    found += _of_the_device(tuned.environment, here)
    if structure_sha256(backend.parameters(model)) != tuned.workload.signature.structure_sha256:
        found.append(f"a {tuned.workload.signature.model_class} with other parameters than this {type(model).__name__}")
    return [each for each in found if each is not None]


def inputs_differ(tuned: TunedConfig, backend: Backend, arguments: Arguments) -> str | None:
    """Whether a call's tensors have other shapes or types than the measured call's, in whatever order they come.

    Tensors of a single number are left out: trainers pass such counts along, and they change no shape.
    """
    specs = [spec for leaf in arguments.leaves() if (spec := backend.spec(leaf)) is not None and spec.shape]
    then = [spec for spec in tuned.workload.signature.inputs if spec.shape]
    return None if Counter(specs) == Counter(then) else f"inputs {_shapes(then)}, here {_shapes(specs)}"


def retune_command(tuned: TunedConfig) -> str:
    """What a user types to tune the same model here."""
    workload, traffic = tuned.workload, None if tuned.shapes is None else tuned.shapes.traffic
    words = ["python", "cli.py", "tune", "--model", workload.model, "--framework", tuned.framework]
    words += ["--device", workload.device]
    if workload.task != "infer":
        words += ["--task", workload.task]
    for name, value in workload.arguments.items():
        if traffic is None or name not in traffic.dimensions:
            words += ["--model-arg", f"{name}={value}"]
    return shlex.join([*words, *([] if traffic is None else traffic.flags)])


def _of_the_device(then: Environment, here: Environment) -> list[str | None]:
    found = [_other("the device", then.device, here.device)]
    if here.device.lower() == "cpu":
        # Cores decide how many threads there are, and with them which config is fastest.
        return [*found, _other("a", then.processor, here.processor), _other("cores:", then.num_cores, here.num_cores)]
    found.append(_other("the driver", then.driver, here.driver) if then.driver and here.driver else None)
    return [*found, *(_other(name, then.packages.get(name), here.packages.get(name)) for name in _COMPILERS)]


def _other(what: str, then: object, here: object) -> str | None:
    return None if then == here else f"{what} {then}, here {here}"


def _shapes(specs: Any) -> str:
    return ", ".join(f"{each.dtype.lower()}{list(each.shape)}" for each in specs) or "none"
