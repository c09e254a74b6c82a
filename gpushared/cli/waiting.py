"""Wait in the queue from a request to a reserved lease, with every way out of the wait.

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

from gpushared.cli.progress import Progress
from gpushared.cli.text import span
from gpushared.client import Client, Lease
from gpushared.domain.model.errors import GpushareError, StateConflict, TimedOut
from gpushared.light import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, NoReturn

POLL_SECONDS = 15.0
"""A wait is asked anew at least so often: the estimate on the screen is redrawn, a dead daemon noticed."""
LEAVE_SECONDS = 5.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
    for one in _SIGNALS:  # the second signal ends the process at once, even when leaving the queue hangs
        if signal.getsignal(one) is not signal.SIG_IGN:
            signal.signal(one, signal.SIG_DFL)
    raise Interrupted(number)


class MaxWaitReached(TimedOut):
    """The user's own limit for the wait is over."""


class QueueWait:
    """Bring one request to a reservation. ``asked`` are the keyword arguments of ``Client.request``.

    ``before_waiting`` is called once where the request has to wait, and may raise errors of the tree.
    """

    def __init__(
        self,
        client: Client,
        asked: Mapping[str, Any],
        progress: Progress,
        max_wait_seconds: float | None,
        before_waiting: Callable[[], None],
    ) -> None:
        self._client = client
        if client.retries is not None:
            client.retries.tell = progress.lost
        self._asked = {"request_id": os.urandom(16).hex(), **asked}
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
            self.lease = self._client.request(**self._asked)
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
            raise _over(self.lease)
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
            return self._client.request(**self._asked, answer_seconds=LEAVE_SECONDS)
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


def _over(lease: Lease) -> StateConflict:
    text = lease.outcome.text or lease.outcome.kind if lease.outcome else lease.state
    return StateConflict(
        f"lease {lease.id} ended before it was used: {text}", hint=f"its story: gpushare why {lease.id}"
    )
