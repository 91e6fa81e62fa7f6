"""What a watched process imports first, since its folder leads `PYTHONPATH`: the watching begins, the folder leaves
`sys.path`, and the `sitecustomize` that the process would have had is imported in this one's place."""

from __future__ import annotations

import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))


def _load_package() -> None:
    """The package that started the job, where the job's Python does not find that very one."""
    found = importlib.util.find_spec("autotune")
    if found is not None and found.origin == os.path.join(_PACKAGE, "__init__.py"):
        return
    spec = importlib.util.spec_from_file_location(
        "autotune", os.path.join(_PACKAGE, "__init__.py"), submodule_search_locations=[_PACKAGE]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["autotune"] = module
    spec.loader.exec_module(module)


def _go_on() -> None:
    """Import the process's own `sitecustomize`, if it has one."""
    sys.path[:] = [place for place in sys.path if place != _HERE]
    ours = sys.modules.pop(__name__)
    try:
        importlib.import_module(__name__)
    except ModuleNotFoundError as error:
        if error.name != __name__:
            raise
    finally:
        sys.modules.setdefault(__name__, ours)


try:
    _load_package()
    from autotune.plugins.watch.injected import begin

    begin()
except Exception as problem:  # The job runs whatever becomes of its watching.
    if os.environ.get("AUTOTUNE_WATCH_DEBUG"):
        sys.stderr.write(f"autotune: not watched: {problem!r}\n")
_go_on()
