"""`autotune.record`: real calls of a job's model in a file, without a change of what the job computes."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections import UserDict
from pathlib import Path

import pytest

import autotune
from autotune.errors import InputError
from autotune.workload.arguments import Arguments
from tests.conftest import REPOSITORY

torch = pytest.importorskip("torch")

from torch.distributed import HashStore  # noqa: E402

from autotune.backends.torch.backend import TorchBackend  # noqa: E402
from autotune.backends.torch.parallel import StoreRanks  # noqa: E402

pytestmark = pytest.mark.torch


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, batch, step=0, **more):
        return self.layer(batch["x"] if isinstance(batch, (dict, UserDict)) else batch) * step


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net().eval()


def read(path) -> list[Arguments]:
    return TorchBackend().calls_file.read(Path(path))


def test_the_calls_are_kept_as_they_were_made(net, tmp_path):
    """Positional and keyword arguments, containers, numbers and texts; tensors as they were before the call."""
    x = torch.ones(2, 3)
    with autotune.record(net, tmp_path / "calls.pt") as recording:
        net(x, 2)
        x.zero_()
        net({"x": x, "id": "a"}, step=3, extra=[x, None])
        net(UserDict(x=x + 1))
        assert len(recording.calls) == 3
        assert not (tmp_path / "calls.pt").exists()
    first, second, third = read(tmp_path / "calls.pt")
    assert torch.equal(first.positional[0], torch.ones(2, 3))
    assert first.positional[1] == 2
    assert (second.positional[0]["id"], second.keyword["step"], second.keyword["extra"][1]) == ("a", 3, None)
    assert type(third.positional[0]) is dict
    net(x, 5)
    assert len(read(tmp_path / "calls.pt")) == 3, "the block is over"


def test_only_so_many_calls_are_kept(net, tmp_path):
    """Then the file is written, also without a block, and the model is as it was."""
    autotune.record(net, tmp_path / "calls.pt", calls=2)
    for size in (1, 2, 3):
        net(torch.ones(size, 3))
    assert [each.positional[0].shape[0] for each in read(tmp_path / "calls.pt")] == [1, 2]
    assert not net._forward_pre_hooks


def test_results_are_those_of_an_unwatched_model(net, tmp_path):
    """In gradients too, and compiled: a compiler that traces the call sees nothing of it."""
    x = torch.randn(2, 3, requires_grad=True)
    expected = net(x, 2)
    (wanted,) = torch.autograd.grad(expected.sum(), x)
    with autotune.record(net, tmp_path / "calls.pt"):
        got = net(x, 2)
        (gradient,) = torch.autograd.grad(got.sum(), x)
        compiled = torch.compile(net, backend="eager", fullgraph=True)
        assert torch.equal(compiled(x, 2), expected)
    assert torch.equal(got, expected)
    assert torch.equal(gradient, wanted)
    (call, *_) = read(tmp_path / "calls.pt")
    assert call.positional[0].requires_grad


def test_a_call_that_cannot_be_kept_ends_the_recording(net, tmp_path, caplog):
    """With one warning that names the argument. The call is made, and those before it are kept."""
    with autotune.record(net, tmp_path / "calls.pt"), caplog.at_level(logging.WARNING, "autotune"):
        net(torch.ones(2, 3))
        assert net(torch.ones(1, 3), odd={"a": object()}) is not None
        net(torch.ones(1, 3))
    assert [each.getMessage() for each in caplog.records] == [
        f"{tmp_path}/calls.pt: no more calls are recorded: odd['a'] is a object"
    ]
    assert [each.positional[0].shape[0] for each in read(tmp_path / "calls.pt")] == [2]


def test_a_file_that_cannot_be_written_ends_no_call(net, tmp_path, caplog):
    """A full disk, or a folder that is gone, is a warning."""
    autotune.record(net, tmp_path / "none" / "calls.pt", calls=1)
    with caplog.at_level(logging.WARNING, "autotune"):
        assert net(torch.ones(1, 3)) is not None
    assert "No such file" in caplog.text


def test_what_cannot_be_recorded_is_refused(net, tmp_path):
    """Nothing is replaced, and a file that no study can read is not begun."""
    (tmp_path / "weights.pt").write_bytes(b"precious")
    with pytest.raises(InputError, match="is there already"):
        autotune.record(net, tmp_path / "weights.pt")
    with pytest.raises(InputError, match=r"ends in \.pt"):
        autotune.record(net, tmp_path / "calls.npz")
    with pytest.raises(InputError, match="no model of an imported framework"):
        autotune.record(print, tmp_path / "calls.pt")
    with pytest.raises(InputError, match="calls=0"):
        autotune.record(net, tmp_path / "calls.pt", calls=0)
    tuned = autotune.load(tmp_path / "none.yaml").apply(net)
    with pytest.raises(InputError, match="tuned model's calls are not recorded"):
        autotune.record(tuned, tmp_path / "calls.pt")
    assert (tmp_path / "weights.pt").read_bytes() == b"precious"


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


MINDSPORE = """
import sys
from pathlib import Path
import mindspore as ms
import numpy as np
import autotune
from autotune.backends.mindspore.backend import MindSporeBackend

class Net(ms.nn.Cell):
    def construct(self, x, batch, scale=1):
        return x * scale + batch["z"]

ms.set_seed(0)
net, path = Net(), Path(sys.argv[1])
half = ms.Tensor([1.5, 2.5], ms.bfloat16)
with autotune.record(net, path, calls=2):
    for n in (1, 2, 3):
        y = net(ms.Tensor(float(n)), {"y": half, "z": ms.Tensor(1.0), "kind": "a"}, scale=n)
calls = MindSporeBackend().calls_file.read(path)
assert len(calls) == 2, calls
x, batch = calls[1].positional
assert (x.shape, float(x), calls[1].keyword) == ((), 2.0, {"scale": 2})
assert (batch["kind"], batch["y"].dtype) == ("a", ms.bfloat16)
assert batch["y"].astype(ms.float32).asnumpy().tolist() == [1.5, 2.5]
backend = MindSporeBackend()
whole, weight = ms.Tensor(37), ms.Parameter(ms.Tensor([1.0]))
for value in (ms.Tensor(3.5), whole, half, ms.Tensor(np.ones((2, 3)), ms.float16), weight):
    made = backend.like(np.array(backend.to_array(value)), value)
    assert (type(made), made.shape, made.dtype) == (type(value), value.shape, value.dtype), made
"""


@pytest.mark.slow
@pytest.mark.mindspore
def test_a_cell_is_recorded_too(tmp_path):
    """In arrays, with the types that NumPy lacks; and a tensor like another has its rank, type and class."""
    pytest.importorskip("mindspore")
    done = subprocess.run(
        [sys.executable, "-c", MINDSPORE, str(tmp_path / "calls.npz")],
        cwd=tmp_path,
        env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_ranks_that_record_under_one_name(net, tmp_path, monkeypatch):
    """Each has a file of its own: rank 0 that of the name."""
    for rank in range(2):
        ranks = StoreRanks(rank, 2, HashStore())
        monkeypatch.setattr(TorchBackend, "ranks", lambda _, ranks=ranks: ranks)
        with autotune.record(net, tmp_path / "calls.pt"):
            net(torch.full((1, 3), float(rank)))
    assert [read(tmp_path / name)[0].positional[0].sum() for name in ("calls.pt", "calls-rank1.pt")] == [0, 3]
    with pytest.raises(InputError, match=r"calls-rank1\.pt is there already"):
        autotune.record(net, tmp_path / "calls.pt")


def test_processes_that_record_under_one_name(net, tmp_path, caplog):
    """The file that is there first stays, and a warning says where the other calls are."""
    with autotune.record(net, tmp_path / "calls.pt"):
        net(torch.ones(1, 3))
        (tmp_path / "calls.pt").write_text("another process's")
    assert (tmp_path / "calls.pt").read_text() == "another process's"
    [other] = tmp_path.glob("calls-*.pt")
    assert len(read(other)) == 1
    assert str(other) in caplog.text
