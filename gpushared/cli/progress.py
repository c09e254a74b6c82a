"""What a person sees while a request waits: one live line on a terminal, else a line per change."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TextIO

from gpushared.cli import text
from gpushared.cli.ps import share
from gpushared.client import Lease, Waiting
from gpushared.client.job_messages import Job

_CLEAR = "\r\x1b[K"
_DEFAULT_WIDTH = 80


class Progress:
    """Writes to ``stream`` (stderr) only, so that the container's own output stays alone on stdout."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._seen: object = None
        self._line_open = False
        self.waited = False

    def queued(self, lease: Lease, now: float) -> None:
        """The place in the queue, when the start is expected, and why it waits."""
        waiting = lease.waiting or Waiting({})
        times = (_minute(waiting.start_from), _minute(waiting.start_to))
        # Not the sentence: it may count minutes, and a log file wants a line per change of the place.
        seen = (waiting.position, waiting.queue_length, waiting.reason, times)
        self.waited = True
        if self._live or seen != self._seen:
            self._line(_sentence(lease, waiting, now))
        self._seen = seen

    def job(self, job: Job) -> None:
        """A job's place in the pool's queue, and why it waits."""
        where = f", position {job.position}" if job.position else ""
        why = f": {job.reason}" if job.reason else ""
        seen = (job.state, job.position, job.reason)
        self.waited = self.waited or job.state == "queued"
        if seen != self._seen:
            self._line(f"{job.id} {job.state} in the pool{where}{why}")
        self._seen = seen

    def lost(self, sentence: str) -> None:
        """Nobody answers; what is shown next is news again."""
        self._seen = None
        self._line(sentence)

    def granted(self, lease: Lease, now: float) -> None:
        """What was granted, where somebody waited for it or the hardware is not real."""
        self.clear()
        if self.waited:
            self._write(f"gpushare: {_granted(lease)}, after {text.span(now - lease.created_at)}\n")
        if lease.simulated:
            self._write(f"gpushare: {lease.id} is on a SIMULATED GPU\n")

    def clear(self) -> None:
        """Leaves an empty line for what comes next."""
        if self._line_open:
            self._write(_CLEAR)
            self._line_open = False

    def _line(self, sentence: str) -> None:
        line = text.printable(f"gpushare: {sentence}")
        if not self._live:
            self._write(f"{line}\n")
            return
        room = self._width() - 1
        self._write(_CLEAR + (line if len(line) <= room else line[: room - 1] + "…"))
        self._line_open = True

    def _width(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or _DEFAULT_WIDTH
        except OSError:
            return _DEFAULT_WIDTH

    def _write(self, words: str) -> None:
        with suppress(OSError):  # a closed terminal ends the wait by its signal, not by a failed write
            self._stream.write(words)
            self._stream.flush()


def _minute(moment: float | None) -> int | None:
    return None if moment is None else round(moment / 60)


def _sentence(lease: Lease, waiting: Waiting, now: float) -> str:
    where = f"position {waiting.position} of {waiting.queue_length}"
    simulated = "SIMULATED, " if lease.simulated else ""
    start = ""
    if waiting.start_from or waiting.start_to:  # where it is unknown, the reason says why
        start = f", start {text.start(waiting.start_from, waiting.start_to, now)}"
    return f"{lease.id} queued, {simulated}{where}{start}: {waiting.text or waiting.reason}"


def _granted(lease: Lease) -> str:
    if not lease.grants:
        return f"{lease.id} granted"
    gpus = ", ".join(f"GPU {grant.gpu_label or grant.gpu_index} ({grant.gpu_name})" for grant in lease.grants)
    size = f"{share(lease)} on {gpus}, {text.memory(lease.grants[0].memory_bytes)}"
    return f"{lease.id} granted: {size}" + (" each" if len(lease.grants) > 1 else "")
