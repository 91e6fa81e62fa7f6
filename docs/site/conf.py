"""Sphinx's settings: the site is the repository's Markdown as it is (docs/decisions/0032-docs-site.md)."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import navigation

project = "autotune"
_package = (navigation.REPOSITORY / "autotune" / "version.py").read_text(encoding="utf-8")
version = release = re.findall(r'^__version__ = "(.+)"$', _package, re.MULTILINE)[0]

extensions = ["myst_parser"]
root_doc = navigation.FIRST
include_patterns = [f"{page}.md" for page in navigation.pages()]
exclude_patterns = [".*", "build", "studies"]
html_theme = "furo"
html_title = f"autotune {release}"
html_extra_path = ["index.html"]
html_static_path = ["static"]
html_css_files = ["site.css"]
smartquotes = False  # Quotes in options are there to be pasted.
html_copy_source = html_show_sourcelink = False
html_show_copyright = False
html_show_search_summary = False  # It fetches pages, which a browser refuses for pages opened from a disk.
highlight_language = "none"
myst_heading_anchors = 4
"""Headings as deep as this can be linked to, under the names that a forge gives them."""


def setup(app: Any) -> None:
    """Sphinx calls this: each page is read with the list of the pages below it."""
    app.connect("source-read", _add_pages_below)


def _add_pages_below(_: Any, page: str, source: list[str]) -> None:
    source[0] += navigation.below(page)
    if page.startswith(_UNSEARCHED):
        source[0] = f"---\nnosearch: true\n---\n\n{source[0]}"


_UNSEARCHED = ("docs/decisions/", "docs/benchmarks", "docs/model-types", "CHANGELOG")
"""Pages that nobody opens to get a job done: the site's search leaves them out."""
