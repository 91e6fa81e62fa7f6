"""docs/architecture.md leads a reader through the code: its links have to lead there."""

from __future__ import annotations

import re

from tests.conftest import REPOSITORY

PAGE = REPOSITORY / "docs" / "architecture.md"


def test_each_name_is_in_the_file_that_it_links_to() -> None:
    """A function, class, constant or knob that moved or was renamed is found here."""
    links = re.findall(r"\[`(\w+)`\]\((?:\.\./)?([\w./-]+)\)", PAGE.read_text(encoding="utf-8"))
    assert len(links) > 20
    wrong = []
    for name, place in links:
        file = PAGE.parent.parent / place
        definition = re.compile(rf"^\s*(?:def |class |)(?:{name})\b *[:(=]", re.MULTILINE)
        if not file.is_file() or not definition.search(file.read_text(encoding="utf-8")):
            wrong.append(f"{name} is not in {place}")
    assert not wrong, "\n".join(wrong)
