"""Real calls of a model in a file, of whoever wrote it."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import InputError
from autotune.workload.arguments import Arguments

torch = pytest.importorskip("torch")


from autotune.backends.torch.backend import TorchBackend  # noqa: E402

pytestmark = pytest.mark.torch


def read(path) -> list[Arguments]:
    return TorchBackend().calls_file.read(Path(path))


class Unpickled:
    """Runs code when it is loaded by an unsafe reader."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('code of the file ran')",))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([Unpickled()], "cannot be read"),
        ({"x": 1}, "holds a dict and not a list of calls"),
        ([], "holds a list and not a list of calls"),
        (None, "cannot be read"),
    ],
)
def test_a_file_is_data(tmp_path, content, words):
    """No code of it is run, and what holds no calls is one sentence."""
    path = tmp_path / "calls.pt"
    torch.save(content, path) if content is not None else path.write_bytes(b"junk")
    with pytest.raises(InputError, match=words):
        read(path)


def test_a_list_that_a_user_saved_is_read(tmp_path):
    """Each call in one of the forms in which a model's function gives inputs."""
    x = torch.ones(2)
    torch.save([x, (x, 3), {"x": x}, ((x,), {"n": 1})], tmp_path / "calls.pt")
    found = [(len(each.positional), sorted(each.keyword or {})) for each in read(tmp_path / "calls.pt")]
    assert found == [(1, []), (2, []), (0, ["x"]), (1, ["n"])]
