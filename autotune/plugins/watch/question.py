"""The question that a watched model makes: values of `tune`'s fields, each with the reason, and the model's file."""

from __future__ import annotations

import hashlib
import json
import os
import pprint
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune import own_folders
from autotune.answer.format import seconds
from autotune.backends.registry import framework_version
from autotune.command_line import flag
from autotune.environment import num_usable_cores
from autotune.errors import InputError
from autotune.files import write_whole
from autotune.plugins.watch.document import UNWRITTEN, is_unwritten, require_writable
from autotune.plugins.watch.folder import Layout, Model, Optimizer, Watched, WatchedSteps

_SATURATED = 0.8
"""Share of its time in calls from which a process is taken to be waiting for nothing else."""
_LEAST_COUNT = 0.5
"""Share of calls in which gradients are taken, from which the model is trained."""
_TOLERANCE_OF_AUTOCAST = 0.03
"""What numbers of 8 bits are worth after some layers."""
Sizes = tuple[tuple[int, ...], ...]


@dataclass
class Asked:
    """A question in the making."""

    values: dict[str, Any] = field(default_factory=dict)
    """Field -> its value, as a flag's text."""
    reasons: dict[str, str] = field(default_factory=dict)
    """What it is about -> what was seen, and what follows."""
    remarks: list[str] = field(default_factory=list)
    """What was seen and is not in the question, with what to do."""
    model: dict[str, Any] = field(default_factory=dict)
    """What `built` takes."""
    is_elsewhere: bool = False
    """Trials run on other machines."""
    counted: list[dict[str, int]] = field(default_factory=list)
    """Sizes of each shape, by dimension, with the number of calls."""
    parameters: dict[str, int] = field(default_factory=dict)
    """Further ones of the model's function, with their defaults."""

    def ask(self, what: str, why: str, **values: Any) -> None:
        """Add values, and why."""
        self.reasons[what] = why
        self.values.update(values)


def question_of(watched: Watched, *, is_elsewhere: bool = False) -> Asked:
    """The question of one model; its file and that of its traffic are written into the folder. `is_elsewhere`: it is
    asked of other machines. Raises InputError for a model that was not kept."""
    saved = watched.saved()
    if saved is None:
        seldom = "it was called once only, or took less than 5 % of the time"
        why = "; ".join(watched.notes()) or (UNWRITTEN if is_unwritten(watched.folder) else seldom)
        raise InputError(f"{watched.name}: was not kept: {why}", tip="watch the job again, for longer")
    asked = Asked(remarks=watched.notes(), is_elsewhere=is_elsewhere)
    model = watched.models[0]
    times = f"{seconds(model.p50_s)} at the median, {seconds(model.p99_s)} at the 99th percentile"
    asked.ask("model", f"{watched.name}: {watched.share:.0%} of the time of all models; {watched.calls} calls, {times}")
    asked.model = {key: saved.files[key] for key in ("model", "source") if key in saved.files}
    process = watched.processes[0]
    asked.ask("device", process.device, device=process.device, framework=process.framework)
    if not is_elsewhere and (here := framework_version(process.framework).partition("+")[0]) != process.release:
        remark = f"the job ran {process.framework} {process.release}, and the study is about {here}, which is here"
        asked.remarks.append(remark)
    shapes = watched.shapes()
    main = _main_layout(shapes)
    asked.model |= {"training": main.training, "autocast": main.autocast, "task": "infer"}
    if main.autocast is not None:
        why = f"{main.autocast[1]} on {main.autocast[0]}: so are all calls of the study, compared by its digits"
        asked.ask("autocast", why, tolerance=_TOLERANCE_OF_AUTOCAST, fixed_precision=True)
    if watched.models[0].is_text:
        _ask_for_text(asked, saved)
    else:
        _ask_for_calls(asked, watched, saved, shapes, main)
    _ask_for_threads(asked, watched)
    asked.values["build"] = f"{_written(asked, watched)}:build"
    return asked


def _main_layout(shapes: Counter[Layout]) -> Layout:
    """The state and signature of most calls; its sizes are the most frequent of these."""
    states = Counter[tuple[Any, ...]]()
    for each, count in shapes.items():
        states[each.signature, each.grad, each.training, each.autocast] += count
    state = states.most_common(1)[0][0]
    alike = {
        each: count
        for each, count in shapes.items()
        if (each.signature, each.grad, each.training, each.autocast) == state
    }
    return max(alike, key=lambda each: alike[each])


def _ask_for_threads(asked: Asked, watched: Watched) -> None:
    """Threads, cores and ranks of the processes."""
    process = watched.processes[0]
    if process.device == "cpu" and process.threads != num_usable_cores() and "instances" not in asked.values:
        asked.ask("threads", f"{process.threads} in the job", env=[f"OMP_NUM_THREADS={process.threads}"])
    used = {core for each in watched.workers for core in each.cores}
    if used < set(os.sched_getaffinity(0)):
        cores = ",".join(map(str, sorted(used)))
        asked.remarks.append(f"the job ran on cores {cores}: tune there, `taskset -c {cores}` in front of this command")
    if (num := max(each.ranks for each in watched.models)) > 1:
        around = f" ({', '.join(watched.models[0].around)})" if watched.models[0].around else ""
        asked.ask("ranks", f"{num}{around}: each applies the file")
        asked.remarks.append(
            f"of {num} ranks a study measures one: what they take to wait for each other, and to average gradients, is "
            "not in it (docs/many-ranks.md)"
        )


def _ask_for_instances(asked: Asked, watched: Watched) -> bool:
    """Ask for as many processes as made calls at the same time. False: there was one, or so many cannot be measured
    here."""
    process, num = watched.processes[0], watched.num_side_by_side
    if num < 2 or process.device != "cpu" or "WORLD_SIZE" in process.variables:
        return False
    num_cores = num_usable_cores()
    if asked.is_elsewhere or num > num_cores:
        here = "there is 1 core here" if num_cores == 1 else f"there are {num_cores} cores here"
        but = f"{flag('on')} measures one on each machine" if asked.is_elsewhere else here
        asked.remarks.append(f"{num} processes made calls at the same time, but {but}: one of them is measured")
        return False
    threads = num_cores // num
    why = f"{num} processes made calls at the same time: as many are measured, each on a part of the cores"
    asked.ask("instances", why, instances=str(num))
    if process.threads != threads:
        tip = f"start workers with OMP_NUM_THREADS={threads}"
        if process.threads < threads:
            tip += f", or tune on {num * process.threads} cores (`taskset`)"
        asked.remarks.append(f"threads of each process: {process.threads} in the job, {threads} in the study; {tip}")
    return True


def _ask_for_text(asked: Asked, saved: Model) -> None:
    texts = saved.prompts
    if not texts:
        raise InputError(
            f"{saved.name}: no prompt was kept", tip="give a function that returns prompts (docs/generation.md)"
        )
    new_tokens = max(2, Counter(each.new_tokens for each in texts).most_common(1)[0][0])
    batch = Counter(each.batch for each in texts).most_common(1)[0][0]
    prompts = list({len(each.ids): each.ids for each in reversed(texts)}.values())[::-1]
    asked.model["prompts"] = {"prompts": prompts, "new_tokens": new_tokens, "batch": batch}
    asked.model["task"] = "generate"
    lengths = ", ".join(str(len(ids)) for ids in prompts)
    why = f"generate: one prompt of each length, {lengths} tokens, {new_tokens} more for each, {batch} at a time"
    asked.ask("task", why, task="generate")


def _ask_for_calls(asked: Asked, watched: Watched, saved: Model, shapes: Counter[Layout], main: Layout) -> None:
    is_trained = sum(each.backward for each in watched.models) > _LEAST_COUNT * watched.calls and main.training
    alike = Counter({each.sizes: 0 for each in shapes if each.signature == main.signature})
    for each, count in shapes.items():
        if each.signature == main.signature:
            alike[each.sizes] += count
    if (other := shapes.total() - alike.total()) > 0:
        asked.remarks.append(f"{other / shapes.total():.0%} of the calls have other arguments, and are not tuned")
    asked.model["dimensions"] = {}
    if is_trained:
        _ask_for_training(asked, saved, alike, main)
        _ask_for_steps(asked, watched.steps(), main)
        return
    asked.ask("task", "infer: no call was differentiated" if not main.grad else "infer", task="infer")
    if main.grad:
        how = watched.processes[0].unrecorded
        asked.remarks.append("calls record gradients, and stay untuned" + (f": {how}" if how else ""))
    if len(alike) > 1:
        _ask_for_shapes(asked, watched, alike)
        _ask_for_instances(asked, watched)
    elif watched.busy > _SATURATED and _ask_for_instances(asked, watched):
        why = f"throughput: the processes were busy {watched.busy:.0%} of their time"
        asked.ask("objective", why, objective="throughput")
    else:
        asked.ask("objective", "latency: all calls have one shape")
    asked.model["calls"] = _kept_calls(saved, main, main.sizes if len(alike) == 1 else None)


def _ask_for_training(asked: Asked, saved: Model, alike: Counter[Sizes], main: Layout) -> None:
    asked.model |= {"task": "train", "own_loss": saved.steps is not None and saved.steps.own_loss}
    loss = "the loss that it returns" if asked.model["own_loss"] else "a loss of all outputs in place of the job's"
    asked.model["calls"] = _kept_calls(saved, main, main.sizes)
    asked.ask(
        "task",
        "train: outputs are differentiated; the forward and backward of the model are tuned, as a loop of "
        f"the job's own uses them, with {loss}",
        task="train",
    )
    if len(alike) > 1:
        asked.remarks.append(
            f"steps have {len(alike)} shapes; only the first is tuned, {alike[main.sizes] / alike.total():.0%} of all"
        )


def _ask_for_steps(asked: Asked, steps: WatchedSteps | None, main: Layout) -> None:
    """What the job does beside forward and backward."""
    if main.autocast is not None and main.autocast[1] == "float16":
        asked.remarks.append("a study does not scale the loss, as GradScaler does: its gradients in float16 may vanish")
    if steps is None:
        return
    asked.parameters["accumulate"] = 1
    if (num := steps.accumulated) > 1:
        why = f"{num} batches to a step of the optimizer; a step of the study has one batch {num} times"
        asked.ask("accumulation", why, arguments=[f"accumulate={num}"])
    if steps.calls > steps.accumulated:
        asked.remarks.append(f"the job calls the model {steps.calls} times in a step, and a study {num}")
    clipped = "" if steps.clip is None else f"; gradients are clipped to a {steps.clip[0]} of {steps.clip[1]:g}"
    if (optimizer := steps.optimizer) is None or not _can_step(optimizer):
        kind = "was not found" if optimizer is None else f"is {optimizer.kind}"
        of_all = "" if optimizer is None or optimizer.has_all else ", and not the only one"
        asked.ask("optimizer", f"the usual one, AdamW{clipped}")
        asked.remarks.append(f"the job's optimizer {kind}{of_all}: a study steps with torch.optim.AdamW in its place")
    else:
        groups = f", its {optimizer.num_groups} groups as the largest" if optimizer.num_groups > 1 else ""
        rate = f", lr {lr:g}" if isinstance(lr := optimizer.settings.get("lr"), (int, float)) else ""
        asked.ask("optimizer", f"{optimizer.kind.rpartition('.')[2]}{rate}{groups}{clipped}")
        asked.model["optimizer"] = (optimizer.kind, optimizer.settings)
    asked.model["clip"] = steps.clip


def _can_step(optimizer: Optimizer) -> bool:
    """Whether a study takes it: one of PyTorch's own, for all weights, that wants no closure."""
    place, _, name = optimizer.kind.rpartition(".")
    return f"{place}.".startswith("torch.optim.") and name != "LBFGS" and optimizer.has_all


def _ask_for_shapes(asked: Asked, watched: Watched, alike: Counter[Sizes]) -> None:
    dimensions = _dimensions(list(alike))
    asked.model["dimensions"] = dimensions
    first = {name: places[0] for name, places in dimensions.items()}
    counts: Counter[tuple[tuple[str, int], ...]] = Counter()
    for sizes, count in alike.items():
        counts[tuple((name, sizes[leaf][axis]) for name, (leaf, axis) in first.items())] += count
    asked.counted = [{**dict(shape), "count": count} for shape, count in sorted(counts.items())]
    spans = (
        f"{name} from {min(line[name] for line in asked.counted)} to {max(line[name] for line in asked.counted)}"
        for name in dimensions
    )
    asked.ask("shapes", f"{len(counts)}: {', '.join(spans)}")
    if watched.busy > _SATURATED:
        asked.ask("objective", f"total:1000: {watched.busy:.0%} of the time was spent in calls, compiling counts")
    else:
        why = f"p99: shapes vary, and {watched.busy:.0%} of the time was spent in calls"
        asked.ask("objective", why, objective="p99")


def _dimensions(shapes: Sequence[Sizes]) -> dict[str, list[tuple[int, int]]]:
    """Name -> the tensors and axes that vary together."""
    found: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for leaf, sizes in enumerate(shapes[0]):
        for axis in range(len(sizes)):
            values = tuple(each[leaf][axis] for each in shapes)
            if len(set(values)) > 1:
                found.setdefault(values, []).append((leaf, axis))
    names: dict[str, list[tuple[int, int]]] = {}
    for places in found.values():
        name = "batch" if places[0][1] == 0 and "batch" not in names else f"size{len(names) + 1}"
        names[name] = places
    return names


def _kept_calls(saved: Model, main: Layout, sizes: Sizes | None) -> dict[str, list[int]]:
    """File -> the places of calls of this signature, and of these sizes. Raises InputError where none was kept."""
    places = [
        place
        for place, call in enumerate(saved.kept)
        if call.signature == main.signature and (sizes is None or call.sizes == sizes)
    ]
    if not places or "calls" not in saved.files:
        why = "; ".join(saved.notes) or "none of them is of the most frequent shape"
        raise InputError(
            f"{saved.name}: no call was kept: {why}",
            tip="give a function that builds model and inputs (docs/models.md)",
        )
    return {saved.files["calls"]: places}


def _written(asked: Asked, watched: Watched) -> str:
    """The path of the model's file, named after all that it says. Raises StoreError at a link, and InputError
    where it cannot be written."""
    own_folders.require_no_link(own_folders.absolute(watched.folder))
    require_writable(watched.folder)
    lines = "".join(f"{json.dumps(line)}\n" for line in asked.counted)
    sizes = {name: max(line[name] for line in asked.counted) for name in asked.model.get("dimensions", {})}
    parameters = {**sizes, **asked.parameters}
    text = _FUNCTION.format(
        name=watched.name,
        model=pprint.pformat(asked.model, width=110, compact=True, sort_dicts=True),
        parameters=", ".join(f"{name}={size}" for name, size in parameters.items()),
        arguments="".join(f", {name}={name}" for name in parameters),
        framework=watched.processes[0].framework,
    )
    stem = f"{watched.name}_{hashlib.sha256((text + lines).encode()).hexdigest()[:8]}"
    path = own_folders.absolute(watched.folder) / f"{stem}.py"
    write_whole(path, text)
    if asked.counted:
        write_whole(path.with_suffix(".jsonl"), lines)
        asked.values["traffic"] = str(path.with_suffix(".jsonl"))
    return str(path)


_FUNCTION = '''"""{name} with its calls, as they were when `autotune watch` saw them.

Written by autotune. The files beside this one hold both; to load them is to run what is in them.
"""

from pathlib import Path

from autotune.plugins.watch.{framework}.built import built

MODEL = {model}


def build({parameters}):
    return built(Path(__file__).parent, MODEL{arguments})
'''


def lines_of(asked: Asked, typed: str) -> list[str]:
    """The question for a reader: values with reasons, the command that would be `typed` for it, remarks."""
    width = max(map(len, asked.reasons))
    lines = [f"{what.ljust(width)}  {why}" for what, why in asked.reasons.items()]
    lines.append(f"{'asked'.ljust(width)}  {typed}")
    return [*lines, *(f"{'note'.ljust(width)}  {remark}" for remark in asked.remarks)]
