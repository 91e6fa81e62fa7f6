"""Text from outside, safe to show: characters that act on a terminal or begin a new line of a log are written out.

A model's error, a name or a path may hold escape sequences, which would move the cursor, hide lines or set a title.
"""

from __future__ import annotations

import re

_ACTING = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, line and paragraph separators, those that turn the direction of text, and what is no text."""


def is_printable(text: str) -> bool:
    """It holds no character that acts on a terminal, not even a new line."""
    return _ACTING.search(text) is None


def printable(text: str) -> str:
    """The text in one line, with such characters as escapes: ESC becomes `\\x1b`."""
    return _ACTING.sub(_written_out, text)


def printable_lines(text: str) -> str:
    """The same for text of several lines, which stay as they are; so do tabs."""
    return _ACTING.sub(lambda match: match[0] if match[0] in "\n\t" else _written_out(match), text)


def _written_out(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()
