"""Try calls again while the daemon restarts: which calls, for how long, and what the user is told.

A daemon is expected if its socket exists, or the directory that it serves from. If neither exists, no daemon
was ever started, and the first error is the answer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from time import monotonic, sleep

from gpushared.client.http import ConnectionLost, NotOurDaemon
from gpushared.domain.model.backoff import backoff_seconds
from gpushared.domain.model.errors import (
    ConfigError,
    DaemonUnavailable,
    GpushareError,
    NotLeader,
    TimedOut,
    Unavailable,
)
from gpushared.light import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from typing import Any, TypeVar

    _Answer = TypeVar("_Answer")

FIRST_SECONDS = 10.0
"""A peer that has never answered is perhaps not there at all: an address may be wrong."""
SHORTEST_SECONDS = 0.2
LONGEST_SECONDS = 5.0
RETRY_SECONDS = 30.0
"""The daemon keeps a place in the queue for as long when no client asks for it."""
SECONDS_VARIABLE = "GPUSHARE_RETRY_SECONDS"
MAX_RETRY_SECONDS = 86_400
LONGEST_PAUSE_SECONDS = 1.0
INNER_DIRECTORY = "inner"
"""Every daemon has this directory beside its socket, and leaves it there when it ends."""

READ_ONLY = frozenset(
    {
        *("Leases/Get", "Leases/List", "Leases/Wait", "Leases/Explain", "Leases/Offer"),
        *("Gpus/List", "Projects/List", "Node/Status", "Node/Presets", "Node/Doctor"),
        *("Audit/List", "Policy/Explain", "Policy/Show"),
        *(f"History/{call}" for call in ("Ended", "Report", "Usage", "Waits", "Jobs", "Export", "Recent")),
        *("Jobs/Get", "Jobs/List", "Jobs/Wait", "Jobs/Explain", "Jobs/Door", "Jobs/Nodes"),
        *("PoolAdmin/Status", "PoolAdmin/ListJoinTokens", "PoolAdmin/ListApiTokens", "PoolAdmin/Anchors"),
    }
)
IDEMPOTENT = frozenset(
    {
        *("Leases/Release", "Leases/Stop", "Leases/Hold", "Leases/SetPriority"),
        *("Leases/Pause", "Leases/Resume", "Gpus/Drain", "Gpus/Undrain", "Projects/Set"),
        *("Jobs/Cancel", "Jobs/Hold", "Jobs/SetPriority", "PoolAdmin/DrainNode"),
    }
)
"""These changes say how something is to be: a second call changes nothing more."""
WITH_REQUEST_ID = frozenset({"Leases/Request", "Jobs/Submit", "Jobs/Reserve"})
"""The daemon tells by the id that it was asked before, over restarts too."""


class RetryPatience:
    """Time the tries of one call or stream. ``seconds`` begin anew after each answer."""

    def __init__(
        self,
        seconds: float,
        *,
        is_known: bool,
        longest_pause_seconds: float = LONGEST_SECONDS,
        generator: random.Random | None = None,
    ) -> None:
        """Take ``is_known``: True if the other side has ever answered."""
        self._seconds = seconds if is_known else min(seconds, FIRST_SECONDS)
        self._full_seconds = seconds
        self._longest_pause_seconds = longest_pause_seconds
        if generator is None:
            import random  # a listing must not wait for this import

            generator = random.SystemRandom()
        self._random = generator
        self._since: float | None = None
        self._tries = 0

    def reached(self) -> None:
        """Note that the other side is there, even if it only refuses."""
        self._seconds = self._full_seconds

    def answered(self) -> None:
        """Reset the failure count after a successful call."""
        self._seconds, self._since, self._tries = self._full_seconds, None, 0

    def pause_seconds(self, error: GpushareError, now: float) -> float:
        """Return the wait before the next try.

        Raises ``error`` if there is no next try. ``now``: monotonic.
        """
        if not isinstance(error, Unavailable | TimedOut):
            raise error
        self._since = now if self._since is None else self._since
        if now - self._since >= self._seconds:
            raise error
        self._tries += 1
        longest = backoff_seconds(self._tries, first=SHORTEST_SECONDS, longest=self._longest_pause_seconds)
        return self._random.uniform(longest / 2, longest)


class Retries:
    """Ask again for one client. ``tell`` gets a sentence, once for each time that the daemon is away."""

    def __init__(self, tell: Callable[[str], None], seconds: float = RETRY_SECONDS) -> None:
        self.tell = tell
        self.seconds = seconds
        self._patience: RetryPatience | None = None

    def ask(self, once: Callable[[], _Answer], path: str, *, may_repeat: bool) -> _Answer:
        """Return the result of ``once``, tried again if that may help.

        ``path``: the socket's. ``may_repeat``: True if the daemon may have carried out an earlier try. Raises
        the error of the last try; or, if an earlier try may have been carried out, the error of that one.
        """
        lost: ConnectionLost | None = None
        while True:
            try:
                answer = once()
            except GpushareError as latest:
                if isinstance(latest, ConnectionLost):
                    lost = latest
                error = lost if lost is not None and isinstance(latest, DaemonUnavailable) else latest
                if not _may_pass(error, path, may_repeat=may_repeat):
                    self._patience = None
                    raise error from None
                self._pause(error)
            else:
                self._patience = None
                return answer

    def _pause(self, error: GpushareError) -> None:
        if self._patience is None:
            self._patience = RetryPatience(
                self.seconds, is_known=True, longest_pause_seconds=LONGEST_PAUSE_SECONDS
            )
            away = "the daemon is away" if isinstance(error, DaemonUnavailable) else error.message
            self.tell(f"{away}; trying again for {self.seconds:.0f} s")
        sleep(self._patience.pause_seconds(error, monotonic()))


def configured_retries(tell: Callable[[str], None]) -> Retries | None:
    """Return the retries for GPUSHARE_RETRY_SECONDS, or 30 s; None for 0 seconds. Raises ConfigError."""
    text = os.environ.get(SECONDS_VARIABLE) or str(RETRY_SECONDS)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_RETRY_SECONDS:
        raise ConfigError(
            f"{SECONDS_VARIABLE} is {text[:100]!r}, which is not a number of seconds to wait",
            hint=f"give 0 to {MAX_RETRY_SECONDS}; without it calls are tried again for {RETRY_SECONDS:.0f} s",
        )
    return Retries(tell, seconds) if seconds else None


def may_repeat(call: str, fields: Mapping[str, Any]) -> bool:
    """Return True if a call does no harm even though an earlier try of it was carried out."""
    if call in WITH_REQUEST_ID:
        return bool(fields.get("request_id") or fields.get("job", {}).get("request_id"))
    return call in READ_ONLY or call in IDEMPOTENT


def _may_pass(error: GpushareError, path: str, *, may_repeat: bool) -> bool:
    if isinstance(error, NotOurDaemon) or not isinstance(error, Unavailable | TimedOut):
        return False
    if isinstance(error, NotLeader) and error.leader:
        return False  # the socket stays that of the coordinator that refuses
    if isinstance(error, DaemonUnavailable) and not isinstance(error, ConnectionLost):
        return _is_expected(path)  # nothing was sent, so nothing was carried out
    return may_repeat


def _is_expected(path: str) -> bool:
    # os.path, because importing pathlib takes longer than most calls.
    inner = os.path.join(os.path.dirname(path), INNER_DIRECTORY)  # noqa: PTH118, PTH120
    return os.path.exists(path) or os.path.exists(inner)  # noqa: PTH110
