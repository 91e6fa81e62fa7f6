"""Draws what a run printed in a terminal, for the README.

    python docs/site/recording.py

`first-run.txt` is the text of a real run, with `...` where lines are left out; `docs/first-run.svg` is its picture,
which loads nothing from elsewhere.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

HERE = Path(__file__).resolve().parent
TEXT, PICTURE = HERE / "first-run.txt", HERE.parent / "first-run.svg"
COLUMNS = 106
STYLES = {
    r"^\$ .*": "bold",
    r"^faster: .*": "bold green",
    r"^proven .*": "green",
    r"^  \w+ ": "dim",
    r"^ +\.\.\.": "dim",
    r"\d[\d.]*x": "cyan",
}
"""Pattern of a line or a part of it -> its style."""


def picture(text: str) -> str:
    """The text as an SVG, in a terminal's window."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), color_system="truecolor", force_terminal=True)
    for line in text.splitlines():
        shown = Text(line)
        for pattern, style in STYLES.items():
            shown.highlight_regex(pattern, style)
        console.print(shown)
    form = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    drawn = console.export_svg(title="autotune", theme=MONOKAI, code_format=form, unique_id="first-run")
    return "".join(f"{line.rstrip()}\n" for line in drawn.splitlines())


def main() -> None:
    """Write the picture."""
    PICTURE.write_text(picture(TEXT.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
