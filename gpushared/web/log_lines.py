"""Cut a log into lines for a page, within bounds: a program may write anything, and as much as it likes."""

from __future__ import annotations

import re
from collections import deque

MAX_LINE = 2000
"""Show at most this many characters of a line."""
MAX_LINE_BYTES = 4 * MAX_LINE
"""Keep at most this many bytes of a line that has not ended."""
MAX_LINES = 500
"""Keep at most this many lines for the page until it takes them."""
CUT = " ..."
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
"""Match what a terminal takes for colours, movements of the cursor and titles (ECMA-48)."""
CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")


class LogLines:
    """Collect the lines of the two streams of a log, until they are taken."""

    def __init__(self) -> None:
        self._begun = {False: b"", True: b""}
        self._lines: deque[str] = deque()
        self._left_out = 0

    def add(self, data: bytes, *, stderr: bool) -> None:
        """Add a piece of one of the streams; a piece may begin and end anywhere."""
        *whole, begun = data.split(b"\n")
        if whole:
            whole[0] = self._begun[stderr] + whole[0]
            for line in self._newest(whole):
                self._lines.append(text_of(line))
        else:
            begun = self._begun[stderr] + begun
        self._begun[stderr] = shortened(begun)

    def end(self) -> None:
        """Take what has no line's end for lines, because nothing follows."""
        for stderr, line in self._begun.items():
            if line:
                self.add(b"\n", stderr=stderr)

    def take(self) -> list[str]:
        """Return the lines since the last call, after one that says how many were left out."""
        lines = list(self._lines)
        if self._left_out:
            lines.insert(0, f"[{self._left_out} lines were left out]")
        self._lines.clear()
        self._left_out = 0
        return lines

    @property
    def begun(self) -> str:
        """Return the newest text of a line that has not ended, such as a progress bar."""
        return text_of(self._begun[False] or self._begun[True])

    def _newest(self, lines: list[bytes]) -> list[bytes]:
        """Count the lines that a full store leaves out, the oldest, and return the others of ``lines``."""
        over = max(0, len(lines) - MAX_LINES)
        drop = min(len(self._lines), max(0, len(self._lines) + len(lines) - over - MAX_LINES))
        for _ in range(drop):
            self._lines.popleft()
        self._left_out += over + drop
        return lines[over:]


def text_of(line: bytes) -> str:
    """Return what a terminal would show of a line, as plain text: the newest state of a progress bar."""
    newest = line.rstrip(b"\r").rpartition(b"\r")[2]
    text = CONTROLS.sub("", ESCAPES.sub("", newest[: MAX_LINE_BYTES + 1].decode(errors="replace")))
    return text if len(text) <= MAX_LINE else text[:MAX_LINE] + CUT


def shortened(line: bytes) -> bytes:
    """Return the part of a line without an end that is still needed."""
    newest = line[line.rfind(b"\r", 0, len(line.rstrip(b"\r"))) + 1 :]
    return newest[: MAX_LINE_BYTES + 1]
