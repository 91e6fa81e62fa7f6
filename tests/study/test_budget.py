"""How much is measured: the defaults, what overrides them, and the file that a user writes."""

from __future__ import annotations

import yaml

from autotune.study.budget import Budget
from tests.conftest import REPOSITORY


def test_the_documented_file_holds_the_defaults():
    """docs/measurement.md shows every key with its default value, and the file is one that is accepted."""
    page = (REPOSITORY / "docs" / "measurement.md").read_text()
    shown = yaml.safe_load(page[page.index("```yaml") + len("```yaml") : page.rindex("```")])
    assert Budget.model_validate(shown) == Budget()
    assert shown.keys() == Budget.model_fields.keys()


def test_flags_override_the_file():
    """What is given on the command line wins, what is not stays as it is."""
    budget = Budget(num_trials=5)
    assert budget.but() == budget
    assert budget.but(num_trials=7).num_trials == 7
    limits = budget.but(compile_s=10, total_s=20).limits
    assert (limits.compile, limits.check, limits.total, limits.run) == (10, 10, 20, 180)


def test_a_mistake_in_the_file_is_a_sentence(cli, tmp_path, model_file, space_file):
    """File and key are named, and no study is begun."""
    path = tmp_path / "budget.yaml"
    path.write_text("confirmation: {blocks: 3}\n")
    result = cli(
        "tune", "--model", f"{model_file}:tiny", "--framework", "fake", "--device", "cpu", "--space", str(space_file),
        "--budget", str(path),
    )  # fmt: skip
    assert result.returncode == 2
    assert f"{path}: key confirmation.blocks: unknown key" in result.stderr
    assert not (tmp_path / "studies").exists()
