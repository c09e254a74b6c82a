"""From a request to a reserved lease: the wait in the queue, and every way out of it.

Whatever ends the wait early (Ctrl-C, a closed terminal, a time limit, an error) leaves the queue. The daemon
going away does not: its journal keeps the queue, so the same request is sent again until it is back.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn, TypeVar

from gpushared.cli.faults import say
from gpushared.cli.progress import Progress
from gpushared.cli.text import span
from gpushared.client import Client, ConnectionLost, Lease
from gpushared.domain.errors import DaemonUnavailable, GpushareError, StateConflict, TimedOut, Unavailable

POLL_SECONDS = 15.0
"""A wait is asked anew at least so often: the estimate on the screen is redrawn, a dead daemon noticed."""
RECONNECT_SECONDS = 30.0
"""As long as the daemon keeps a place in the queue that nobody waits for."""
RETRY_SECONDS = 0.3
LEAVE_SECONDS = 5.0
_Answer = TypeVar("_Answer")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal asked for the end; not an Exception, so that nothing on the way takes it for a failure."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Within, Ctrl-C, SIGTERM and SIGHUP raise Interrupted; one that is ignored (nohup) stays ignored."""
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
    """The user's own limit for the wait."""


def persistently(ask: Callable[[], _Answer]) -> _Answer:
    """Asks until the daemon is back; only for what does no harm when it is asked twice."""
    until = time.monotonic() + RECONNECT_SECONDS
    while True:
        try:
            return ask()
        except (DaemonUnavailable, TimedOut) as error:
            if isinstance(error, TimedOut) or time.monotonic() >= until or _never_there(error):
                raise
            say("the daemon is away; trying again")
        time.sleep(RETRY_SECONDS)


def _never_there(error: Unavailable) -> bool:
    return "there is no socket" in error.message


class Wait:
    """One request on its way to a reservation. ``asked`` are the keyword arguments of ``Client.request``."""

    def __init__(
        self, client: Client, asked: Mapping[str, Any], progress: Progress, max_wait_seconds: float | None
    ) -> None:
        self._client = client
        self._asked = {"request_id": os.urandom(16).hex(), **asked}
        self._progress = progress
        self._max_wait = max_wait_seconds
        self._deadline: float | None = None
        self.lease: Lease | None = None

    def run(self) -> Lease:
        """The reserved lease. Raises Interrupted or an error of our tree; then the queue has been left."""
        if self._max_wait is not None:
            self._deadline = time.monotonic() + self._max_wait
        try:
            self.lease = self._first()
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
        """Gives back what is held. Best effort: the daemon takes back by itself what nobody claims."""
        lease, self.lease = self.lease, None
        if lease is not None:
            with suppress(GpushareError):
                self._client.release(lease.id, answer_seconds=LEAVE_SECONDS)

    def _first(self) -> Lease:
        try:
            return self._client.request(**self._asked)
        except ConnectionLost:
            return self._again()

    def _find(self) -> Lease | None:
        """An interrupted request may have been granted: asked again, it tells which lease it was."""
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
        try:
            return self._client.wait(lease.id, lease.token, timeout_seconds=seconds)
        except (Unavailable, TimedOut):
            return self._again()

    def _again(self) -> Lease:
        """The same request, until the daemon is back; asking twice with one id gives the same lease."""
        self._progress.lost(RECONNECT_SECONDS)
        until = time.monotonic() + RECONNECT_SECONDS
        while True:
            try:
                return self._client.request(**self._asked)
            except (Unavailable, TimedOut) as error:
                if time.monotonic() >= until:
                    raise DaemonUnavailable(
                        f"the daemon did not come back within {RECONNECT_SECONDS:.0f} s",
                        hint="see `systemctl status gpushared`",
                    ) from error
            time.sleep(RETRY_SECONDS)


def _over(lease: Lease) -> StateConflict:
    text = lease.outcome.text or lease.outcome.kind if lease.outcome else lease.state
    return StateConflict(
        f"lease {lease.id} ended before it was used: {text}", hint=f"its story: gpushare why {lease.id}"
    )
