"""What of a file a study of one of its functions depends on."""

from __future__ import annotations

import pytest

from autotune.workload.function_digest import digest_of

FILE = """
'''Models.'''
import numpy as np
from torch import nn

WIDTH = 8
SIZES = {"small": WIDTH}
SIZES["large"] = 64


class Block(nn.Module):
    def forward(self, x):
        return helper(x)


def helper(x):
    return x * 2


def build(size="small"):
    return Block(SIZES[size])


def other():
    return np.zeros(3)


if __name__ == "__main__":
    print(build())
"""


def changed(old, new, text=FILE):
    assert old in text
    return text.replace(old, new)


def is_same(text, function="build"):
    return digest_of(FILE.encode(), function) == digest_of(text.encode(), function)


@pytest.mark.parametrize(
    "text",
    [
        FILE + "\n\ndef third():\n    return 3\n",
        changed("np.zeros(3)", "np.ones(3)"),
        changed("Models.", "Other models."),
        changed("    return x * 2", "    # Twice.\n    return (x\n            * 2)"),
        changed("print(build())", "print(build(), 2)"),
        changed("import numpy as np", "import numpy as np\nimport os"),
    ],
    ids=["a function more", "another function", "the docstring", "the layout", "the main part", "an import more"],
)
def test_what_the_function_does_not_use_ends_no_study(text):
    assert is_same(text)


@pytest.mark.parametrize(
    "text",
    [
        changed('size="small"', 'size="large"'),
        changed("x * 2", "x * 3"),
        changed("helper(x)", "helper(x) + 1"),
        changed("WIDTH = 8", "WIDTH = 9"),
        changed('SIZES["large"] = 64', 'SIZES["large"] = 65'),
        changed("from torch import nn", "from torchvision import nn"),
        FILE + "\nimport torch\ntorch.manual_seed(1)\n",
        FILE + "\nfor size in SIZES:\n    SIZES[size] += 1\n",
        FILE + "\n@register\ndef third():\n    return 3\n",
    ],
    ids=[
        "itself", "a function of a class of it", "a class", "a constant of a constant", "a write to an element",
        "an import", "an expression", "a loop", "a decorated function",
    ],
)  # fmt: skip
def test_what_it_uses_and_what_may_have_an_effect_is_another_model(text):
    assert not is_same(text)


@pytest.mark.parametrize(
    "line",
    ["globals()['x'] = 1", "from torch import *", "import sys\nhere = sys.modules[__name__]\nhere.x = 1"],
)
def test_where_names_are_used_that_stand_nowhere_the_whole_file_counts(line):
    text = f"{FILE}\n{line}\n"
    assert digest_of(text.encode(), "build") != digest_of(changed("np.zeros(3)", "np.ones(3)", text).encode(), "build")


@pytest.mark.parametrize("text", ["def broken(:", "x = 1", "\0"], ids=["no Python", "no such function", "a null byte"])
def test_what_cannot_be_read_counts_as_a_whole(text):
    assert digest_of(text.encode(), "build") != digest_of(text.encode() + b"#", "build")


def test_each_function_has_its_own():
    assert digest_of(FILE.encode(), "build") != digest_of(FILE.encode(), "other")
