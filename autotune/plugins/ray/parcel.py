"""What travels between the driver's folders and the workers: the model's source with its local imports and the
reference outputs to them, a trial's outcome and logs from them."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from autotune.bench.messages import Refused
from autotune.files import write_whole
from autotune.measure.measurement import Failure, Outcome, Reason, Stage
from autotune.plugins.ray.messages import Begin, Ended, File
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
from autotune.workload.workload import split_reference

MODEL_FOLDER = "model"
"""Place of the model's file, with its siblings."""
SEARCH_FOLDER = "search"
"""Place of the folder from which the user's packages are imported."""
INPUTS_FOLDER = "inputs"
"""Place of the file of real calls."""
REFERENCE = "reference.npz"
CACHE = "cache"
_OWN_PACKAGE = "autotune"
_MOST_FILES = 2000
"""Files of one package: a folder with more is no package that somebody wrote for a model."""


@dataclass
class Parcel:
    """Files by their place on the worker; `contents` holds each content once, under its digest."""

    files: dict[str, str] = field(default_factory=dict)
    contents: dict[str, bytes] = field(default_factory=dict)
    cache: str | None = None
    """Digest of a packed compile cache."""

    def add(self, place: str, path: Path) -> None:
        """Read a file."""
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        self.files[place] = digest
        self.contents[digest] = content

    def add_cache(self, packed: bytes) -> None:
        """The trial begins with it."""
        self.cache = hashlib.sha256(packed).hexdigest()
        self.contents[self.cache] = packed

    def include(self, other: Parcel) -> None:
        """Take over the files of another."""
        self.files |= other.files
        self.contents |= other.contents


def parcel_of(request: TrialRequest) -> Parcel:
    """The model's source and whatever it imports from the same folder or from the workload's search path.

    Installed packages are not included: they must be installed on each host. Raises OSError.
    """
    workload = request.workload
    place, _ = split_reference(workload.reference)
    search_path = Path(workload.search_path)
    parcel = Parcel()
    if workload.inputs is not None:
        parcel.add(_inputs_there(workload.inputs), Path(workload.inputs))
    if not place.endswith(".py"):
        _add_imports(parcel, {place.partition(".")[0]}, {SEARCH_FOLDER: search_path})
        return parcel
    model = Path(place)
    for path in model.parent.glob(f"{model.stem}.*"):  # A saved model's weights lie beside its source.
        if path.is_file():
            parcel.add(f"{MODEL_FOLDER}/{path.name}", path)
    _add_imports(parcel, _imported_by(model), {MODEL_FOLDER: model.parent, SEARCH_FOLDER: search_path})
    return parcel


def order_for(
    job: str, request: TrialRequest, parcel: Parcel, *, is_live: bool, fresh: bool, returns_cache: bool = False
) -> Begin:
    """The order to begin a trial, with the places that stand for its paths on the worker."""
    place, _ = split_reference(request.workload.reference)
    rewritten = {request.workload.search_path: SEARCH_FOLDER}
    if place.endswith(".py"):
        rewritten[place] = f"{MODEL_FOLDER}/{Path(place).name}"
    if request.workload.inputs is not None:
        rewritten[request.workload.inputs] = _inputs_there(request.workload.inputs)
    return Begin(
        job=job,
        request=request.model_dump_json(by_alias=True),
        files=tuple(File(place, digest) for place, digest in parcel.files.items()),
        rewritten=rewritten,
        is_live=is_live,
        fresh=fresh,
        cache=parcel.cache,
        returns_cache=returns_cache,
    )


def request_there(order: Begin, home: Path, reference: Path, cache: Path) -> TrialRequest:
    """The request of an order, with the paths of this host; `home` holds the order's files."""
    request = TrialRequest.model_validate_json(order.request)
    workload = request.workload
    place, function = split_reference(workload.reference)
    moved = order.rewritten.get(place)
    workload = workload.model_copy(
        update={
            "reference": workload.reference if moved is None else f"{home / moved}:{function}",
            "search_path": str(home / SEARCH_FOLDER),
            "inputs": workload.inputs and str(home / order.rewritten[workload.inputs]),
        }
    )
    return request.model_copy(
        update={"workload": workload, "reference": str(reference), "cache": str(cache), "toolchain": None}
    )


def _inputs_there(path: str) -> str:
    return f"{INPUTS_FOLDER}/{Path(path).name}"


def _add_imports(parcel: Parcel, names: set[str], roots: dict[str, Path]) -> None:
    """Add the modules and packages of these top-level names that lie in one of the roots, and what they import."""
    seen: set[str] = set()
    waiting = sorted(names)
    while waiting:
        name = waiting.pop()
        if name in seen or name == _OWN_PACKAGE:
            continue
        seen.add(name)
        for folder, root in roots.items():
            found = list(_sources_of(root, name))
            for path in found:
                parcel.add(f"{folder}/{path.relative_to(root).as_posix()}", path)
                waiting += _imported_by(path) - seen
            if found:
                break


def _sources_of(root: Path, name: str) -> Iterator[Path]:
    """The file of a module, or all sources of a package."""
    if (root / f"{name}.py").is_file():
        yield root / f"{name}.py"
    elif (root / name).is_dir():
        sources = sorted((root / name).rglob("*.py"))
        yield from sources[:_MOST_FILES]


def _imported_by(path: Path) -> set[str]:
    """Top-level names of the modules that a source imports anywhere in it; none of one that cannot be parsed."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.partition(".")[0])
    return names


class Parcels:
    """The files of each request. A file is read once: what a run of the tool measures does not change under it."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], Parcel] = {}

    def of(self, request: TrialRequest, cache: bytes | None) -> Parcel:
        """The model's source with its local imports, the reference outputs once they are there, and a compile cache."""
        key = (request.workload.reference, f"{request.workload.search_path} {request.workload.inputs}")
        if key not in self._made:
            self._made[key] = parcel_of(request)
        parcel = Parcel()
        parcel.include(self._made[key])
        reference = Path(request.reference)
        if reference.exists():
            made = (request.reference, str(reference.stat().st_mtime_ns))
            if made not in self._made:
                self._made[made] = Parcel()
                self._made[made].add(REFERENCE, reference)
            parcel.include(self._made[made])
        if cache is not None:
            parcel.add_cache(cache)
        return parcel


def outcome_in(folder: TrialFolder, ended: Ended) -> Outcome:
    """Write the files of a trial into the driver's folder, and read the outcome there."""
    evidence = str(folder.stderr)
    for name, content in ended.files.items():
        write_whole(folder.path / name, content)
    outcome = folder.read_outcome()
    if outcome is None:
        error = "the worker sent no outcome that this version can read"
        return Failure(reason=Reason.SETUP, stage=Stage.START, error=error, evidence=evidence)
    if isinstance(outcome, Failure):
        outcome = outcome.model_copy(update={"evidence": evidence})  # The log lies here as well.
        folder.write_outcome(outcome)
    return outcome


def refusal_in(folder: TrialFolder, refused: Refused) -> Failure:
    """The outcome of a trial that a worker could not start."""
    return Failure(reason=Reason.SETUP, stage=Stage.START, error=refused.error, evidence=str(folder.stderr))
