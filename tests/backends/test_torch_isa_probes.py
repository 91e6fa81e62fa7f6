"""Instruction sets that the toolchain's program has asked for are known to a process that compiles."""

import json

import pytest

torch = pytest.importorskip("torch")

from torch._inductor import cpu_vec_isa  # noqa: E402

from autotune.backends.torch import isa_probes  # noqa: E402

pytestmark = pytest.mark.torch

CODE = "int main() {}"


@pytest.fixture
def asked(monkeypatch):
    """What was asked of the machine, which says yes to AVX2 alone."""
    asked = []

    def check_build(isa, code):
        asked.append((str(isa), code))
        return str(isa) == "avx2"

    monkeypatch.setattr(cpu_vec_isa.VecISA, "check_build", check_build)

    def valid_vec_isa_list():
        return [isa for isa in (cpu_vec_isa.VecAVX512(), cpu_vec_isa.VecAVX2()) if isa.check_build(CODE)]

    monkeypatch.setattr(cpu_vec_isa, "valid_vec_isa_list", valid_vec_isa_list)
    return asked


def test_what_was_asked_once_is_known(asked, tmp_path):
    """The answers are those that were given, whatever they were, and no child is asked again."""
    isa_probes.ask(tmp_path)
    valid = [str(isa) for isa in cpu_vec_isa.valid_vec_isa_list()]
    del asked[:]
    spared = []
    with isa_probes.answered(tmp_path, spared.append):
        assert [str(isa) for isa in cpu_vec_isa.valid_vec_isa_list()] == valid == ["avx2"]
    assert asked == []
    answers = json.loads((tmp_path / "probes.json").read_text())
    assert sorted(spared) == sorted(seconds for _, seconds in answers.values())


@pytest.mark.parametrize("written", [None, "{}", "no json"])
def test_what_has_no_answer_is_asked(asked, tmp_path, written):
    """Of a toolchain of an earlier release, or of another question."""
    if written is not None:
        (tmp_path / "probes.json").write_text(written)
    with isa_probes.answered(tmp_path, lambda seconds: pytest.fail("nothing was spared")):
        assert cpu_vec_isa.VecAVX2().check_build(CODE)
    assert len(asked) == 1


def test_another_compiler_is_asked_anew(asked, tmp_path, monkeypatch):
    isa_probes.ask(tmp_path)
    del asked[:]
    monkeypatch.setenv("CXX", "another")
    with isa_probes.answered(tmp_path, lambda _: None):
        cpu_vec_isa.valid_vec_isa_list()
    assert len(asked) == 2


def test_a_release_that_asks_in_another_way_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.delattr(cpu_vec_isa.VecISA, "check_build")
    monkeypatch.setattr(cpu_vec_isa, "valid_vec_isa_list", list)
    isa_probes.ask(tmp_path)
    assert not list(tmp_path.iterdir())
    (tmp_path / "probes.json").write_text("{}")
    with isa_probes.answered(tmp_path, lambda _: None):
        assert not hasattr(cpu_vec_isa.VecISA, "check_build")
