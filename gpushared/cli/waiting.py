"""Wait in the queue from a request to a reserved lease, and show the wait to a person.

Any early end of the wait (Ctrl-C, a closed terminal, a time limit, an error) leaves the queue. A daemon that
goes away does not end the wait: its journal keeps the queue, and the client asks again until it is back.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType

from gpushared.cli import text
from gpushared.cli.text import span
from gpushared.client import Client, Lease, Waiting
from gpushared.domain.model.errors import GpushareError, StateConflict, TimedOut
from gpushared.light import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, NoReturn, TextIO

    from gpushared.api.v1.messages import Job

POLL_SECONDS = 15.0
"""A wait is asked anew at least so often: the estimate on the screen is redrawn, a dead daemon noticed."""
LEAVE_SECONDS = 5.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DEFAULT_SIZE = os.terminal_size((80, 24))
_NARROWEST = 20
"""Columns; on a narrower terminal the terminal itself breaks the lines."""
_INDENT = "  "


class Interrupted(BaseException):
    """A signal asked for the end; not an Exception, so that nothing on the way takes it for a failure."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Raise Interrupted on Ctrl-C, SIGTERM and SIGHUP in the block; an ignored one (nohup) stays so."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 - a handler's signature
    # The second signal ends the process at once, even when leaving the queue hangs.
    for each_number in _SIGNALS:
        if signal.getsignal(each_number) is not signal.SIG_IGN:
            signal.signal(each_number, signal.SIG_DFL)
    raise Interrupted(number)


class MaxWaitReached(TimedOut):
    """The user's own limit for the wait is over."""


class QueueWait:
    """Bring one request to a reservation. ``request`` are the keyword arguments of ``Client.request``.

    ``before_waiting`` is called once where the request has to wait, and may raise errors of the tree.
    """

    def __init__(
        self,
        client: Client,
        request: Mapping[str, Any],
        progress: Progress,
        max_wait_seconds: float | None,
        before_waiting: Callable[[], None],
    ) -> None:
        self._client = client
        if client.retries is not None:
            client.retries.tell = progress.lost
        self._request = {"request_id": os.urandom(16).hex(), **request}
        self._progress = progress
        self._max_wait = max_wait_seconds
        self._before_waiting = before_waiting
        self._deadline: float | None = None
        self.lease: Lease | None = None

    def run(self) -> Lease:
        """Return the reserved lease. Raises Interrupted or an error of our tree, after leaving the queue."""
        if self._max_wait is not None:
            self._deadline = time.monotonic() + self._max_wait
        try:
            self.lease = self._client.request(**self._request)
            if self.lease.state == "queued":
                self._before_waiting()
            while self.lease.state == "queued":
                self._progress.queued(self.lease, time.time())
                self.lease = self._next(self.lease)
        except (GpushareError, Interrupted) as error:
            self._progress.clear()
            if self.lease is None and isinstance(error, Interrupted):
                self.lease = self._find()
            self.leave()
            raise
        if self.lease.state != "reserved":
            self._progress.clear()
            raise _ended_before_use(self.lease)
        self._progress.granted(self.lease, time.time())
        return self.lease

    def leave(self) -> None:
        """Give back the lease, as a best effort: the daemon takes unclaimed leases back by itself."""
        self._client.retries = None
        lease, self.lease = self.lease, None
        if lease is not None:
            with suppress(GpushareError):
                self._client.release(lease.id, answer_seconds=LEAVE_SECONDS)

    def _find(self) -> Lease | None:
        """Find the lease of an interrupted request, which may be granted, by the same request again."""
        self._client.retries = None
        with suppress(GpushareError):
            return self._client.request(**self._request, answer_seconds=LEAVE_SECONDS)
        return None

    def _next(self, lease: Lease) -> Lease:
        seconds = POLL_SECONDS
        if self._deadline is not None:
            seconds = min(seconds, self._deadline - time.monotonic())
            if seconds <= 0:
                raise MaxWaitReached(
                    f"gave up after {span(self._max_wait)} in the queue (--max-wait)",
                    hint=f"why it waited: {lease.waiting.text}" if lease.waiting else "",
                )
        return self._client.wait(lease.id, lease.token, timeout_seconds=seconds)


def _ended_before_use(lease: Lease) -> StateConflict:
    text = lease.outcome.text or lease.outcome.kind if lease.outcome else lease.state
    return StateConflict(
        f"lease {lease.id} ended before it was used: {text}", hint=f"its story: gpushare why {lease.id}"
    )


class Progress:
    """Write to ``stream`` (stderr) only, so that the container's own output stays alone on stdout."""

    def __init__(self, stream: TextIO, advice: str = "") -> None:
        """Take ``advice`` to say once, before the first line of the wait."""
        self._stream = stream
        self._advice = advice
        self._live = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._shown_state: object = None
        self._rows: list[str] = []
        """The next lines take the place of these lines on the terminal."""
        self.waited = False

    def queued(self, lease: Lease, now: float) -> None:
        """Show the place in the queue, the expected start, and the reason of the wait."""
        waiting = lease.waiting or Waiting({})
        times = (_minute(waiting.start_from), _minute(waiting.start_to))
        # Not the sentence: it may count minutes, and a log file wants a line per change of the place.
        state = (waiting.position, waiting.queue_length, waiting.reason, times)
        self.waited = True
        self._advise()
        if self._live or state != self._shown_state:
            self._show(_queue_line(lease, waiting, now), waiting.text or waiting.reason)
        self._shown_state = state

    def job(self, job: Job) -> None:
        """Show a job's place in the pool's queue, and the reason of its wait."""
        where = f", position {job.position}" if job.position else ""
        state = (job.state, job.position, job.reason)
        if job.state == "queued":
            self.waited = True
            self._advise()
        if state != self._shown_state:
            self._show(f"{job.id} {job.state} in the pool{where}", job.reason)
        self._shown_state = state

    def _advise(self) -> None:
        if self._advice:
            self.clear()
            self._write(f"gpushare: {self._advice}\n")
            self._advice = ""

    def lost(self, sentence: str) -> None:
        """Show ``sentence`` while the daemon is away; the next state is shown even if it is the same as before."""
        self._shown_state = None
        self._show(sentence)

    def granted(self, lease: Lease, now: float) -> None:
        """Show the grants after a wait, and a note if the GPU is simulated."""
        self.clear()
        if self.waited:
            self._write(f"gpushare: {_granted(lease)}, after {text.span(now - lease.created_at)}\n")
        if lease.simulated:
            self._write(f"gpushare: {lease.id} is on a SIMULATED GPU\n")

    def clear(self) -> None:
        """Clear the live lines, so that the next output begins in their place."""
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

    def _write(self, output: str) -> None:
        with suppress(OSError):  # a closed terminal ends the wait by its signal, not by a failed write
            self._stream.write(output)
            self._stream.flush()


def _minute(moment: float | None) -> int | None:
    return None if moment is None else round(moment / 60)


def _wrapped(sentence: str, columns: int) -> list[str]:
    """Break the sentence into lines without the last column, where some terminals break early."""
    from textwrap import wrap

    width = max(_NARROWEST, columns) - 1
    return wrap(sentence, width, subsequent_indent=_INDENT * 2, break_on_hyphens=False)


def _queue_line(lease: Lease, waiting: Waiting, now: float) -> str:
    where = f"position {waiting.position} of {waiting.queue_length}"
    simulated = "SIMULATED, " if lease.simulated else ""
    start = ""
    if waiting.start_from or waiting.start_to:  # where it is unknown, the reason says why
        start = f", start {text.start(waiting.start_from, waiting.start_to, now)}"
    return f"{lease.id} queued, {simulated}{where}{start}"


def _granted(lease: Lease) -> str:
    if not lease.grants:
        return f"{lease.id} granted"
    from gpushared.cli.ps import gpus, share  # most commands do not wait

    size = f"{share(lease)} on {gpus(lease.grants)}, {text.memory(lease.grants[0].memory_bytes)}"
    return f"{lease.id} granted: {size}" + (" each" if len(lease.grants) > 1 else "")
