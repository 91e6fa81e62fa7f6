"""A config as one line of plain PyTorch, for whoever wants to read, check or use it without this package.

`torch.compile` takes a mode or options, not both, so with options of its own a config spells its mode out. What
is no argument of `torch.compile` is set in front of it in the same line, or named beside it where it surrounds calls.
No torch in here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from autotune.backends.protocol import PlainCode
from autotune.backends.torch.knobs import BROUGHT_BY, SHAPES, Settings, settings_of
from autotune.config import Config
from autotune.workload.regions import Region
from autotune.workload.workload import Device, Task

_PLAIN_STRATEGIES = (None, "automatic", "static", "dynamic")
"""Values of the knob `shapes` that are nothing but torch.compile's `dynamic`."""
_PRECISION = "torch.backends.mkldnn.matmul.fp32_precision"
"""What decides, while inductor compiles, for which library linear layers are packed."""
_MODULES = ("torch._inductor.config", "torch._dynamo.config", "torch._functorch.config")


def plain_code(config: Config, version: str, device: Device, task: Task) -> PlainCode | None:
    """The line; None where no line does what the config does. Raises InvalidConfigError."""
    settings = settings_of(config)
    has_own_calls = config.get(SHAPES) not in _PLAIN_STRATEGIES or settings.backend in ("torchair", "npugraph_ex")
    if not settings.compiled or settings.region != Region() or has_own_calls:
        return None
    line = f"model = torch.compile({', '.join(['model', *_arguments(settings)])})"
    return PlainCode("; ".join([*_before(settings), line]), tuple(_beside(settings, device)))


def _arguments(settings: Settings) -> Iterator[str]:
    if settings.backend != "inductor":
        yield f"backend={_written(settings.backend)}"
    if settings.dynamic is not None:
        yield f"dynamic={settings.dynamic}"
    if settings.fullgraph:
        yield "fullgraph=True"
    if settings.openvino:
        yield f"options={{{', '.join(_options_of_openvino(settings))}}}"
    mode = None if settings.mode == "default" else settings.mode
    if settings.options:
        entries = [f"{_written(name)}: {_written(value)}" for name, value in settings.options.items()]
        spelled = [] if mode is None else [f"**torch._inductor.list_mode_options({_written(mode)})"]
        yield f"options={{{', '.join(spelled + entries)}}}"
    elif mode is not None:
        yield f"mode={_written(mode)}"


def _options_of_openvino(settings: Settings) -> Iterator[str]:
    if "device" in settings.openvino:
        yield f'"device": {_written(settings.openvino["device"])}'
    if "precision" in settings.openvino:
        yield f'"config": {{"INFERENCE_PRECISION_HINT": {_written(settings.openvino["precision"])}}}'


def _before(settings: Settings) -> Iterator[str]:
    """Statements that come first."""
    if settings.backend in BROUGHT_BY:
        yield f"import {BROUGHT_BY[settings.backend]}"
    entries = (settings.compiler_options, settings.dynamo_options, settings.functorch_options)
    for module, options in zip(_MODULES, entries, strict=True):
        if options:
            yield f"import {module}"
        yield from (f"{module}.{name} = {_written(value)}" for name, value in options.items())
    if settings.packs_for_onednn:
        yield f'{_PRECISION} = "tf32"'
    if settings.matmul_precision is not None:
        yield f"torch.set_float32_matmul_precision({_written(settings.matmul_precision)})"
    if settings.cudnn_benchmark:
        yield "torch.backends.cudnn.benchmark = True"
    if settings.fp16_accumulation:
        yield "torch.backends.cuda.matmul.allow_fp16_accumulation = True"
    if settings.blas_library is not None:
        yield f"torch.backends.cuda.preferred_blas_library({_written(settings.blas_library)})"
    if settings.num_threads is not None:
        yield f"torch.set_num_threads({settings.num_threads})"


def _beside(settings: Settings, device: Device) -> Iterator[str]:
    if settings.is_unknown:
        yield f"call it under torch.no_grad(): {settings.backend} may make constants of the weights"
        yield "copy what a call gives: the next one may overwrite it"
    elif settings.freezes:
        yield "call it under torch.no_grad(): freezing makes constants of the weights"
    if settings.packs_for_onednn:
        yield f'after the first call, {_PRECISION} = "none": by then linear layers are packed for oneDNN, in float32'
    if settings.autocast is not None:
        kind = {"gpu": "cuda", "ascend": "npu"}.get(device, device)
        yield f'call it under torch.autocast("{kind}", torch.{settings.autocast})'
    if settings.attention is not None:
        yield f"call it under torch.nn.attention.sdpa_kernel, {settings.attention} first"
    if settings.keeps_memory:
        yield "glibc keeps freed memory: mallopt(3) with M_MMAP_MAX=0 and M_TRIM_THRESHOLD=-1"
    if settings.scope == "loss":
        yield "compile the model and the loss as one function"
    if settings.optimizer_impl is not None:
        yield f"make the optimizer with {settings.optimizer_impl}=True"
    if settings.optimizer_compiled:
        yield "compile the optimizer's step, too: torch.compile(optimizer.step)"


def _written(value: object) -> str:
    """As Python code, texts in double quotes."""
    return json.dumps(value) if isinstance(value, str) else repr(value)
