"""A service with requests that the untuned model refuses: it lives, and each answer or error is the untuned one's."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from tests.conftest import REPOSITORY

pytestmark = pytest.mark.torch
SERVICE = textwrap.dedent(
    """
    import random, sys, tempfile, threading
    from pathlib import Path
    import torch
    import torch.nn.functional as F
    import autotune
    from tests.stand_ins.exports import export

    name, backend, freezing, threads, requests, told = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:7])
    torch.set_num_threads(2)
    N = 2048


    class Tagger(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.out = torch.nn.Embedding(500, 32), torch.nn.Linear(32, 8)

        def forward(self, ids):
            return self.out(F.silu(self.table(ids)) * 2)


    class Graph(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.out = torch.nn.Linear(16, 16)

        def forward(self, nodes, edges):
            messages = torch.tanh(self.out(nodes))[edges[0]]
            return torch.zeros_like(nodes).index_add(0, edges[1], messages) + nodes


    class Tables(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.users, self.items = (torch.nn.Parameter(torch.randn(n, 32)) for n in (500, 300))

        def forward(self, pairs):
            return (torch.tanh(self.users)[pairs[:, 0]] * torch.tanh(self.items)[pairs[:, 1]]).sum(-1)


    class Labelled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.out = torch.nn.Linear(16, 10)

        def forward(self, x, *, labels):
            return F.cross_entropy(self.out(x) * 2, labels, reduction="none")


    def ids(high, *shape):
        return torch.randint(0, high, shape)


    nodes, x = torch.randn(200, 16), torch.randn(N, 16)
    MODELS = {
        "tagger": (Tagger, lambda: ((ids(500, N),), {}), [500, -1]),
        "graph": (Graph, lambda: ((nodes, ids(200, 2, N)), {}), [200, -201]),
        "tables": (Tables, lambda: ((ids(300, N, 2),), {}), [500, -501]),
        "labels": (Labelled, lambda: ((x,), {"labels": ids(10, N)}), [10, -1]),
    }
    kind, make, bad_numbers = MODELS[name]
    torch.manual_seed(0)
    model = kind().eval()


    def spoiled(call, number):
        (args, kwargs) = call
        given = kwargs.get("labels", args[-1])
        given.view(-1)[random.randrange(given.numel())] = number
        return call


    def outcome(model, call):
        try:
            return model(*call[0], **call[1])
        except (IndexError, RuntimeError) as error:
            return type(error), str(error)


    config = {"execution": "compile", "backend": backend} | ({"freezing": True} if freezing else {})
    args, kwargs = make()
    path = export(Path(tempfile.mkdtemp()) / "best.yaml", "torch", config, model, [*args, *kwargs.values()])
    tuned = autotune.load(path).apply(model, margin=None, check=bool(told))
    wrong, refused = [], []


    def serve(seed):
        with torch.no_grad():
            for number in range(requests):
                call = make()
                is_bad = number % 100 == 50 or number == 3
                if is_bad:
                    call = spoiled(call, random.choice(bad_numbers))
                expected, got = outcome(model, call), outcome(tuned, call)
                if isinstance(expected, tuple):
                    refused.append(got == expected or wrong.append((expected, got)))
                elif not isinstance(got, torch.Tensor) or not torch.allclose(got, expected, atol=1e-4):
                    wrong.append((number, got))


    workers = [threading.Thread(target=serve, args=(seed,)) for seed in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    stats = autotune.stats(tuned)
    assert not wrong, wrong[:2]
    assert len(refused) >= threads, "nothing was refused"
    assert stats.state == "tuned" and not stats.num_fallbacks and not stats.events, stats
    print("alive", len(refused))
    """
)


def served(*arguments):
    command = [sys.executable, "-c", SERVICE, *map(str, arguments)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["graph", "labels"])
def test_a_service_with_bad_requests_lives(name):
    """Captured and run without code of its own, so that what is refused is told by where it is refused."""
    service = served(name, "aot_eager", 0, 1, 104, 0)
    assert service.returncode == 0, service.stderr[-2000:]
    assert service.stdout.startswith("alive")


@pytest.mark.slow
@pytest.mark.parametrize("freezing", [0, 1])
def test_compiled_code_of_several_threads(freezing):
    """A thousand requests for a tagger, whose check of an index would end the process."""
    service = served("tagger", "inductor", freezing, 1, 1000, 0)
    assert service.returncode == 0, (service.returncode, service.stderr[-2000:])
    assert service.stdout.startswith("alive")


@pytest.mark.soak
@pytest.mark.parametrize("freezing", [0, 1])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["tagger", "graph", "tables", "labels"])
def test_ten_thousand_requests(name, threads, freezing):
    """Of which one in a hundred is refused by the untuned model, in compiled code of several threads."""
    service = served(name, "inductor", freezing, threads, 10_000 // threads, 0)
    assert service.returncode == 0, (service.returncode, service.stderr[-2000:])
    assert service.stdout.startswith("alive")
