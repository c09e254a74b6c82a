"""Show a waiting request to a person: live lines on a terminal, else one line for each change."""

from __future__ import annotations

import os
from contextlib import suppress

from gpushared.cli import text
from gpushared.client import Lease, Waiting
from gpushared.light import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TextIO

    from gpushared.client.job_messages import Job

_DEFAULT_SIZE = os.terminal_size((80, 24))
_NARROWEST = 20
"""Columns; on a narrower terminal the terminal itself breaks the lines."""
_INDENT = "  "


class Progress:
    """Write to ``stream`` (stderr) only, so that the container's own output stays alone on stdout."""

    def __init__(self, stream: TextIO, advice: str = "") -> None:
        """``advice`` is said once, before the first line of the wait."""
        self._stream = stream
        self._advice = advice
        self._live = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._seen: object = None
        self._rows: list[str] = []
        """The next lines take the place of these lines on the terminal."""
        self.waited = False

    def queued(self, lease: Lease, now: float) -> None:
        """Show the place in the queue, the expected start, and the reason of the wait."""
        waiting = lease.waiting or Waiting({})
        times = (_minute(waiting.start_from), _minute(waiting.start_to))
        # Not the sentence: it may count minutes, and a log file wants a line per change of the place.
        seen = (waiting.position, waiting.queue_length, waiting.reason, times)
        self.waited = True
        self._advise()
        if self._live or seen != self._seen:
            self._show(_standing(lease, waiting, now), waiting.text or waiting.reason)
        self._seen = seen

    def job(self, job: Job) -> None:
        """Show a job's place in the pool's queue, and the reason of its wait."""
        where = f", position {job.position}" if job.position else ""
        seen = (job.state, job.position, job.reason)
        if job.state == "queued":
            self.waited = True
            self._advise()
        if seen != self._seen:
            self._show(f"{job.id} {job.state} in the pool{where}", job.reason)
        self._seen = seen

    def _advise(self) -> None:
        if self._advice:
            self.clear()
            self._write(f"gpushare: {self._advice}\n")
            self._advice = ""

    def lost(self, sentence: str) -> None:
        """Show the sentence that the daemon does not answer; the next state counts as news again."""
        self._seen = None
        self._show(sentence)

    def granted(self, lease: Lease, now: float) -> None:
        """Show the grants after a wait, and a note if the GPU is simulated."""
        self.clear()
        if self.waited:
            self._write(f"gpushare: {_granted(lease)}, after {text.span(now - lease.created_at)}\n")
        if lease.simulated:
            self._write(f"gpushare: {lease.id} is on a SIMULATED GPU\n")

    def clear(self) -> None:
        """Take the live lines away, so that what comes next begins in their place."""
        if self._rows:
            self._write(self._cleared())
            self._rows = []

    def _show(self, state: str, reason: str = "") -> None:
        state, reason = text.printable(f"gpushare: {state}"), text.printable(reason)
        if not self._live:
            self._write(f"{state}: {reason}\n" if reason else f"{state}\n")
            return
        size = self._size()
        rows = _wrapped(state, size.columns)
        rows += _wrapped(f"{_INDENT}why: {reason}", size.columns) if reason else []
        most = max(1, size.lines - 1)  # what has scrolled off the screen cannot be written over
        rows = rows if len(rows) <= most else [*rows[: most - 1], f"{rows[most - 1][: size.columns - 2]}…"]
        self._write(self._cleared() + "\n".join(rows))
        self._rows = rows

    def _cleared(self) -> str:
        """Clear the lines written last, however wide the terminal has become since."""
        columns = self._size().columns
        above = sum(max(1, -(-len(row) // columns)) for row in self._rows) - 1
        return "\r" + (f"\x1b[{above}A" if above > 0 else "") + "\x1b[J"

    def _size(self) -> os.terminal_size:
        try:
            size = os.get_terminal_size(self._stream.fileno())
        except OSError:
            return _DEFAULT_SIZE
        return size if size.columns and size.lines else _DEFAULT_SIZE

    def _write(self, words: str) -> None:
        with suppress(OSError):  # a closed terminal ends the wait by its signal, not by a failed write
            self._stream.write(words)
            self._stream.flush()


def _minute(moment: float | None) -> int | None:
    return None if moment is None else round(moment / 60)


def _wrapped(sentence: str, columns: int) -> list[str]:
    """Break the sentence into lines without the last column, where some terminals break early."""
    from textwrap import wrap

    width = max(_NARROWEST, columns) - 1
    return wrap(sentence, width, subsequent_indent=_INDENT * 2, break_on_hyphens=False)


def _standing(lease: Lease, waiting: Waiting, now: float) -> str:
    where = f"position {waiting.position} of {waiting.queue_length}"
    simulated = "SIMULATED, " if lease.simulated else ""
    start = ""
    if waiting.start_from or waiting.start_to:  # where it is unknown, the reason says why
        start = f", start {text.start(waiting.start_from, waiting.start_to, now)}"
    return f"{lease.id} queued, {simulated}{where}{start}"


def _granted(lease: Lease) -> str:
    if not lease.grants:
        return f"{lease.id} granted"
    from gpushared.cli.ps import share  # most commands do not wait

    gpus = ", ".join(f"GPU {grant.gpu_label or grant.gpu_index} ({grant.gpu_name})" for grant in lease.grants)
    size = f"{share(lease)} on {gpus}, {text.memory(lease.grants[0].memory_bytes)}"
    return f"{lease.id} granted: {size}" + (" each" if len(lease.grants) > 1 else "")
