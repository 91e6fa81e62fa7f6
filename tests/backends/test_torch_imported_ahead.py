"""Dynamo and inductor imported before a fork: what they read of folders at import is the fork's own in it."""

import os
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.torch


def run(code, **variables):
    """What a program prints, in a Python that has imported nothing yet."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1", **variables},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


READ = """
    import torch._dynamo.config, torch._inductor.codecache, torch._dynamo.package
    for value in (
        torch._inductor.codecache._HEADER_DIR, torch._dynamo.config.debug_dir_root,
        torch._dynamo.package.DynamoCache._path_prefix,
    ):
        print(value)
"""


def own_folders(home):
    for name in ("temporary", "cache", "working"):
        (home / name).mkdir()
    return f"""
    import os, tempfile
    os.environ["TMPDIR"], tempfile.tempdir = {str(home / "temporary")!r}, None
    from autotune.backends.torch.compile_cache import cache_variables
    os.environ.update(cache_variables({str(home / "cache")!r}))
    os.chdir({str(home / "working")!r})
    """


@pytest.mark.slow
def test_a_fork_has_what_a_process_that_imports_for_itself_has(tmp_path):
    """The three values that 2.13 is known to keep; `test_no_path_of_the_import_is_left` is about all others."""
    own = own_folders(tmp_path)
    by_itself = run(own + READ)
    assert by_itself.count(str(tmp_path)) == 3
    ahead = """
    from autotune.backends.torch.imported_ahead import import_ahead
    imported = import_ahead()
    assert imported.seconds > 0.1
    assert imported.resident_bytes > 2**24
    """
    adopt = f"""
    imported.adopt({str(tmp_path / "cache")!r})
    """
    assert run(ahead + own + adopt + READ) == by_itself


def test_no_path_of_the_import_is_left(tmp_path):
    """In any string that Python's collector reaches. Variables and the working folder are as before, the temporary
    folder is empty, and no thread was started."""
    system = tmp_path / "system"
    system.mkdir()
    code = """
    import gc, os, tempfile
    from autotune.backends.torch import imported_ahead
    before = dict(os.environ), os.getcwd(), tempfile.gettempdir()
    imported = imported_ahead.import_ahead()
    assert (dict(os.environ), os.getcwd(), tempfile.gettempdir()) == before
    print(len(os.listdir("/proc/self/task")), os.listdir(tempfile.gettempdir()))
    stand_ins = dict(imported._stand_ins)
    name = stand_ins["cache"].split("/")[-2]
    """
    code += (
        own_folders(tmp_path)
        + f"""
    imported.adopt({str(tmp_path / "cache")!r})
    del imported
    found = [
        value for holder in gc.get_objects() if holder is not stand_ins for value in gc.get_referents(holder)
        if type(value) is str and name in value and value != name
    ]
    print(found)
    """
    )
    assert run(code, TMPDIR=str(system)).split() == ["1", "[]", "[]"]


KEPT = {
    "(os.environ['TMPDIR'],)": "tuple",
    "{os.environ['TMPDIR']: 1}": "dict",
    "frozenset([os.environ['TMPDIR']])": "frozenset",
    "type('Kept', (), {'path': os.environ['TMPDIR']})": "dict",
}
"""What a module keeps of a path -> what holds the path."""
HELD = """
import os, sys, tempfile
from pathlib import Path
from autotune.backends.torch import imported_ahead
from autotune.errors import SetupError

home, said = Path(sys.argv[1]), []
sys.path.insert(0, str(home))

def import_ahead(of_compiler, of_model):
    imported_ahead._MODULES = of_compiler
    try:
        return imported_ahead.import_ahead(of_model)
    except SetupError as error:
        said.append(str(error))

for number in range(4):
    import_ahead((f"keeps_{number}",), ())
imported = import_ahead((), ("keeps_a_folder",))
os.environ["TMPDIR"], tempfile.tempdir = str(home / "own"), None
imported.adopt("cache")
said.append(sys.modules["keeps_a_folder"].KEPT[0])
import_ahead((), ("changes",))
(home / "said").write_text("\\n".join(said))
"""


def test_a_path_that_cannot_be_replaced_makes_the_import_useless(tmp_path, program):
    """Whatever holds it: each is imported by a process that imported the others before. Modules of the model are held
    to the same: their paths are replaced in a fork, and one that changes the environment is of no use."""
    for number, kept in enumerate(KEPT):
        (tmp_path / f"keeps_{number}.py").write_text(f"import gc, os\nKEPT = {kept}\ngc.collect()\n")
    (tmp_path / "keeps_a_folder.py").write_text("import tempfile\nKEPT = [tempfile.gettempdir()]\n")
    (tmp_path / "changes.py").write_text("import os\nos.environ['CHANGED'] = '1'\n")
    (tmp_path / "own").mkdir()
    assert program(HELD, str(tmp_path)).wait() == 0
    *said, folder, changes = (tmp_path / "said").read_text().splitlines()
    assert len(said) == len(KEPT)
    for line, holder in zip(said, KEPT.values(), strict=True):
        assert f"a {holder} holds a path of the import" in line
    assert (folder, changes) == (f"{tmp_path}/own", "the import of changes changes the environment")
