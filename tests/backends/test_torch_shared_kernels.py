"""Kernels that earlier trials compiled are found in an empty cache, with the seconds that they took."""

import time

import pytest

torch = pytest.importorskip("torch")

from torch._inductor import codecache  # noqa: E402

from autotune.backends.torch.compile_cache import shared_kernels, use  # noqa: E402

pytestmark = pytest.mark.torch

X = torch.linspace(-1, 1, 64)


@pytest.fixture
def compile_anew(tmp_path, monkeypatch):
    """Compiles a function from an empty cache with the kernels of a folder; returns the output and what was spared."""

    def compile_anew(function, number, folder="kernels"):
        torch._dynamo.reset()
        codecache.PyCodeCache.cache_clear()
        codecache.CppPythonBindingsCodeCache.cache_clear()
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / str(number)))
        if folder == "kernels":  # The run makes it.
            (tmp_path / folder).mkdir(exist_ok=True)
        spared_s = []
        with shared_kernels(tmp_path / folder, 1, time.perf_counter, spared_s.append), torch.no_grad():
            return torch.compile(function)(X), spared_s

    return compile_anew


def libraries(tmp_path, number):
    return {path.name: path.stat() for path in (tmp_path / str(number)).rglob("*.so")}


def made(tmp_path):
    """The kernels that are kept, and their seconds."""
    return {path.name[: -len(".seconds")]: float(path.read_text()) for path in tmp_path.glob("kernels/*.seconds")}


def test_a_kernel_is_compiled_once_and_found_with_its_seconds(compile_anew, tmp_path):
    def function(x):
        return x.sin() * 2.5

    first, spared_s = compile_anew(function, 1)
    assert spared_s == []
    second, spared_s = compile_anew(function, 2)
    torch.testing.assert_close(second, first)
    torch.testing.assert_close(second, function(X))
    kept, before, after = made(tmp_path), libraries(tmp_path, 1), libraries(tmp_path, 2)
    assert after
    assert all(after[name].st_ino == before[name].st_ino for name in after)
    assert sum(spared_s) == pytest.approx(sum(kept[name] for name in after), abs=0.01)
    assert sum(spared_s) > 0.1  # A C++ compiler was at work.


def test_other_code_is_compiled(compile_anew, tmp_path):
    compile_anew(lambda x: x.sin() * 3.5, 1)
    output, spared_s = compile_anew(lambda x: x.sin() * 4.5, 2)
    torch.testing.assert_close(output, X.sin() * 4.5)
    kept, used = made(tmp_path), libraries(tmp_path, 2)
    own = set(used) - set(libraries(tmp_path, 1))
    assert len(own) == 1
    assert sum(spared_s) == pytest.approx(sum(kept[name] for name in set(used) & set(kept) - own), abs=0.01)


def test_a_kernel_whose_seconds_are_not_known_is_compiled_again(compile_anew, tmp_path):
    def function(x):
        return x.cos() * 5.5

    compile_anew(function, 1)
    for path in tmp_path.glob("kernels/*.seconds"):
        path.write_text("")
    output, spared_s = compile_anew(function, 2)
    torch.testing.assert_close(output, function(X))
    assert spared_s == []


def test_without_room_for_kernels_all_are_compiled(compile_anew, tmp_path):
    (tmp_path / "no_folder").write_text("")
    output, spared_s = compile_anew(lambda x: x.tan() * 6.5, 1, folder="no_folder")
    torch.testing.assert_close(output, X.tan() * 6.5)
    assert spared_s == []


def test_afterwards_the_compiler_is_as_before():
    from torch._inductor import config
    from torch._inductor.cpp_builder import CppBuilder

    build, threads = CppBuilder.build, config.compile_threads
    with shared_kernels(None, threads + 1, time.perf_counter, print):
        assert config.compile_threads == threads + 1
        assert CppBuilder.build is not build
    assert (CppBuilder.build, config.compile_threads) == (build, threads)


@pytest.mark.parametrize("name", ["my project", "it's"])
def test_a_folder_whose_name_a_compiler_would_take_apart(tmp_path, name):
    """Inductor writes the line for the C++ compiler with paths as they are."""
    torch._dynamo.reset()
    codecache.PyCodeCache.cache_clear()
    codecache.CppPythonBindingsCodeCache.cache_clear()
    with use(tmp_path / name, "key"), torch.no_grad():
        torch.testing.assert_close(torch.compile(lambda x: x.cos() * 1.5)(X), X.cos() * 1.5)
    assert list((tmp_path / name).rglob("*.so"))
