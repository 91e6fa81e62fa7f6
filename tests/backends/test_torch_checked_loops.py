"""Checks of indices in loops of several threads: they raise, where inductor's code ends the process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from autotune.backends.torch.checked_loops import checks_raise, raising

CHECK = 'TORCH_CHECK((0 <= tmp1) & (tmp1 < 5L), "index { out of bounds");'


def kernel(body: str) -> str:
    """A kernel with this body, as inductor prints one."""
    return 'extern "C" void kernel(const float* in_ptr0)\n{\n' + textwrap.dedent(body).replace("CHECK", CHECK) + "}\n"


SHARED_LOOP = """
    #pragma omp parallel num_threads(2)
    {
        int tid = omp_get_thread_num();
        {
            #pragma omp for
            for(int64_t x0=0L; x0<9L; x0+=(1L))
            {
                for(int64_t x1=0L; x1<9L; x1+=1L)
                { CHECK }
            }
        }
    }
"""
COLLAPSED = """
    #pragma omp parallel
    {
        #pragma omp for collapse(2)
        for(int64_t x0=0L; x0<9L; x0+=1L)
        {
            for(int64_t x1=0L; x1<9L; x1+=1L)
            {
                CHECK
            }
        }
    }
"""
ONE_THREAD = """
    #pragma omp parallel
    {
        #pragma omp single
        {
            #pragma GCC ivdep
            for(int64_t x0=0L; x0<9L; x0+=1L) { CHECK }
        }
        #pragma omp for
        for(int64_t x0=0L; x0<9L; x0+=1L) { }
    }
"""
VECTORISED = """
    #pragma omp simd simdlen(8)
    for(int64_t x0=0L; x0<9L; x0+=1L)
    {
        CHECK
    }
"""


@pytest.mark.parametrize("body", [SHARED_LOOP, COLLAPSED, ONE_THREAD, VECTORISED])
def test_what_a_shared_loop_throws_is_thrown_behind_it(body):
    """The body of the innermost loop that threads share catches; nothing else is touched."""
    source = kernel(body)
    found = raising(source)
    (tried,), (caught,), (thrown,) = ([found.index(word)] for word in ("try {", "catch (...)", "rethrow_exception"))
    assert tried < found.index("TORCH_CHECK") < caught < thrown
    assert [found.count(word) for word in ("try {", "catch (...)", "rethrow_exception")] == [1, 1, 1]
    assert found.count("{") - found.count("}") == source.count("{") - source.count("}")
    if body is COLLAPSED:
        assert found.index("x1+=1L") < tried


UNCHANGED = {
    "no check": SHARED_LOOP.replace("CHECK", ""),
    "one thread": "for(int64_t x0=0L; x0<9L; x0+=1L) { CHECK }\n",
    "outside of the shared loop": COLLAPSED.replace("#pragma omp for", "CHECK\n        #pragma omp for"),
    "no block": SHARED_LOOP.replace("{ CHECK }", "CHECK").replace("        {\n                for", "        for", 1),
    "cut off": COLLAPSED.partition("CHECK")[0] + "CHECK\n",
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_a_kernel_of_another_form_stays_as_it_is(name):
    """What needs no change has none, and what is not understood is compiled as the release has it."""
    source = kernel(UNCHANGED[name])
    assert raising(source) == source


def test_a_check_under_a_mask_checks():
    """One index is checked where any lane of the mask is read; a mask of lanes that is compared with lanes stays."""
    check = 'TORCH_CHECK(((0 <= tmp1) & (tmp1 < 5L)) | ~({}), "index out of bounds: 0 <= tmp1 < 5L");'
    for mask, right in {"tmp9": "| !(tmp9), ", "(tmp9).all_masked()": "| (tmp9).all_zero(), "}.items():
        assert right in raising(kernel(check.format(mask) + "\n"))
    of_lanes = 'TORCH_CHECK(((VecMask(tmp1 < tmp2)) | ~(tmp9)).all_masked(), "index out of bounds: tmp1 < 5L");\n'
    assert raising(kernel(of_lanes)) == kernel(of_lanes)


def test_what_a_release_notes_while_a_kernel_runs_is_put_back():
    """The pointer of a release that notes a division by zero does not outlive what it points to."""
    flag = "inductor_cpu_integer_div_error_flag = nullptr;"
    found = raising(kernel(SHARED_LOOP + f"    {flag}\n"))
    assert found.index(flag) < found.index("rethrow_exception") < found.rindex(flag)


@pytest.mark.torch
def test_the_compiler_is_put_back():
    """Code of another model, which the job compiles itself, is compiled as before."""
    from torch._inductor.codecache import CppCodeCache, CppPythonBindingsCodeCache

    before = vars(CppCodeCache)["load_async"]
    with checks_raise():
        assert CppPythonBindingsCodeCache.load_async.__func__ is not before.__func__
    assert vars(CppCodeCache)["load_async"] is before


JOB = """
import os, sys, torch
from autotune.backends.registry import load_backend
from autotune.backends.undo import UndoLog
from autotune.config import Config

class Cells(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.pads = "pads" in sys.argv
        self.grid = torch.nn.Parameter(torch.randn(1000, 16))

    def forward(self, place):
        rows = torch.tanh(self.grid * 2)[place.long()]
        return torch.nn.functional.pad(rows, (1, 1)) + 1 if self.pads else rows.sum(-1)

torch.set_num_threads(2)
torch.manual_seed(0)
backend = load_backend("torch")
backend.prepare("cpu", 0)
model, place = Cells().eval(), torch.rand(20_000) * 999
beyond = place.clone()
beyond[7] = 1000
with torch.no_grad():
    step = backend.compile(model, Config.model_validate(eval(sys.argv[1])), UndoLog())
    for _ in range(3):
        assert torch.allclose(step(place), model(place), atol=1e-4)
        try:
            step(beyond)
        except (RuntimeError, IndexError) as error:
            print("raised", "out of bounds" in str(error), flush=True)
os._exit(0)
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("knobs", "arguments"), [({}, []), ({"cpp_wrapper": True}, []), ({"freezing": True}, []), ({}, ["pads"])]
)
def test_an_index_beyond_raises_and_the_process_lives(tmp_path, knobs, arguments):
    """A coordinate beyond the grid, which is no whole number among the inputs, raises in a kernel of two threads, also
    where what it reads is padded, and the next call is right."""
    variables = {**os.environ, "OMP_NUM_THREADS": "2", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", JOB, repr({"execution": "compile", **knobs}), *arguments],
        env=variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, "raised True\n" * 3), ended.stderr[-2000:]
