"""Draw lines of text with their looks as an SVG, for pages that show ``gpushare top``.

``python -m tests.cli.top.svg [light] >FILE`` writes a picture of a busy machine.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from gpushared.cli.table import Segment, text_width
from gpushared.cli.top.keys import Ui
from gpushared.cli.top.panels import panels
from gpushared.cli.top.view import News, ScreenSize, picture
from tests.cli.top import machines

CELL_WIDTH, LINE_HEIGHT, MARGIN = 8.4, 18, 12
DARK = {"": "#d8dee9", "paper": "#16181d", "31": "#ff7b72", "32": "#7ee787", "33": "#e3b341", "36": "#76e3ea"}
LIGHT = {
    "": "#24292f",
    "paper": "#ffffff",
    "31": "#b31d28",
    "32": "#116329",
    "33": "#7d4e00",
    "36": "#0b6a78",
}


def svg(lines: Sequence[Sequence[Segment]], *, dark: bool = True) -> str:
    """Return the text of an SVG that needs nothing but a font with characters of one width."""
    colours = DARK if dark else LIGHT
    columns = max((sum(text_width(one.text) for one in line) for line in lines), default=0)
    width = round(columns * CELL_WIDTH + 2 * MARGIN)
    height = len(lines) * LINE_HEIGHT + 2 * MARGIN
    shapes = [shape for number, line in enumerate(lines) for shape in _line(line, number, colours)]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="ui-monospace, monospace" font-size="14">'
    )
    paper = f'<rect width="100%" height="100%" rx="8" fill="{colours["paper"]}"/>'
    return "\n".join([head, paper, *shapes, "</svg>\n"])


def _line(line: Sequence[Segment], number: int, colours: dict[str, str]) -> Iterator[str]:
    place = 0
    for one in line:
        wide = text_width(one.text)
        yield from _segment(one, place, number, colours)
        place += wide


def _segment(one: Segment, place: int, number: int, colours: dict[str, str]) -> Iterator[str]:
    """Draw a piece of text as wide as its places are, whatever the font."""
    left, wide = MARGIN + place * CELL_WIDTH, text_width(one.text) * CELL_WIDTH
    codes = one.look.split(";")
    ink = next((colours[code] for code in codes if code in colours and code), colours[""])
    if "7" in codes:
        top = MARGIN + number * LINE_HEIGHT
        yield f'<rect x="{left:.1f}" y="{top}" width="{wide:.1f}" height="{LINE_HEIGHT}" fill="{ink}"/>'
        ink = colours["paper"]
    if one.text.strip():
        weight = ' font-weight="bold"' if "1" in codes else ""
        faint = ' opacity="0.7"' if "2" in codes else ""
        base = MARGIN + number * LINE_HEIGHT + 13
        yield (
            f'<text x="{left:.1f}" y="{base}" fill="{ink}"{weight}{faint} xml:space="preserve" '
            f'textLength="{wide:.1f}" lengthAdjust="spacingAndGlyphs">{escape(one.text)}</text>'
        )


def of_a_busy_machine(*, dark: bool = True, width: int = 120, height: int = 32) -> str:
    """Return a picture of the example machine."""
    answers = machines.busy()
    made = panels(answers, machines.NOW, filter_text="", orders={}, plain=False)
    lines = picture(News(answers), Ui(), made, ScreenSize(width, height), machines.NOW)
    return svg(lines, dark=dark)


if __name__ == "__main__":
    sys.stdout.write(of_a_busy_machine(dark="light" not in sys.argv))
