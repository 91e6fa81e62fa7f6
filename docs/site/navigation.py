"""The site's navigation, which is the list that a reader of docs/README.md sees: there is no other one.

Each heading of that page with a list is a part of the site; the links of the list are its pages.
docs/decisions/README.md lists the pages below itself in the same way.
"""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
FIRST = "README"
INDEX = "docs/README"
DECISIONS = "docs/decisions/README"


def parts() -> dict[str, list[str]]:
    """Part of the site -> its pages, as paths from the repository's root without `.md`."""
    sections = re.split(r"^## +(.+)$", _text(INDEX), flags=re.MULTILINE)
    listed = dict(zip(sections[1::2], map(_items, sections[2::2]), strict=True))
    return {part: [_page(link, INDEX) for link in links] for part, links in listed.items() if links}


def decisions() -> list[str]:
    """The pages that the list of decisions links."""
    return [_page(link, DECISIONS) for link in re.findall(r"^\| \[\d+\]\(([^)]+)\)", _text(DECISIONS), re.MULTILINE)]


def pages() -> list[str]:
    """All pages of the site, in the order of the navigation."""
    return [FIRST, INDEX, *(page for part in parts().values() for page in part if page != FIRST), *decisions()]


def below(page: str) -> str:
    """What the site adds to a page: hidden lists of the pages below it, which the theme shows at the side."""
    lists = {FIRST: {"": [INDEX], **parts()}, DECISIONS: {"": decisions()}}.get(page, {})
    return "".join(_toctree(title, [each for each in entries if each != FIRST]) for title, entries in lists.items())


def _toctree(title: str, entries: list[str]) -> str:
    caption = f":caption: {title}\n" if title else ""
    lines = "\n".join(f"/{each}" for each in entries)
    return f"\n\n```{{toctree}}\n:hidden:\n{caption}\n{lines}\n```\n"


def _items(section: str) -> list[str]:
    """The pages of the section's bullets: of each bullet the first link to one."""
    return re.findall(r"^\* .*?\]\(([^)#]+\.md)\)", section, re.MULTILINE)


def _page(link: str, place: str) -> str:
    return (REPOSITORY / place).parent.joinpath(link).resolve().relative_to(REPOSITORY).with_suffix("").as_posix()


def _text(page: str) -> str:
    return (REPOSITORY / f"{page}.md").read_text(encoding="utf-8")
