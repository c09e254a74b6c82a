"""Carry the audit's lines to their stores without ever blocking the writer; fold a flood into few lines.

A line goes to journald at once, or to the ordinary log if there is no journald, and within a second to the
file. While the file cannot be written, lines wait. At a bound they are lost and counted; nothing else depends
on the file.

A user's flood does not fold other users' lines, as long as all together stay below the audit's own bound.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpushared.config.job_settings import AuditConfig
from gpushared.daemon.systemd import Journald, is_logged_to
from gpushared.daemon.tasks import within
from gpushared.daemon.troubles import Troubles
from gpushared.domain.model.errors import AuditUnavailable, ConfigError, GpushareError, TimedOut
from gpushared.storage.audit.audit_file import Keep, NumberedLine, Search, SqliteAudit
from gpushared.storage.audit.line import FACTS, AuditLine, line_now

WINDOW_SECONDS = 60.0
MAX_FOLDS = 1000
"""Count at most this many kinds of lines at once; a user of many uids (user namespaces) may have many."""
MAX_BUCKETS = 4096
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CALL", "ORDER"})
_User = tuple[int, str]
_Key = tuple[_User, str, str, int]
MESSAGE_ID = "6c2f5c1ad9d84f5db2f0e7d8a1b3c471"
"""`journalctl MESSAGE_ID=` finds all lines by this id."""
NOTICE, INFO = "5", "6"
log = logging.getLogger("gpushared.storage.audit")

WRITE_SECONDS = 1.0
BATCH = 100
"""Write after this many lines, before the second has passed."""
MAX_BATCH = 1000
MAX_WAITING = 20_000
"""Let this many lines wait, about 20 MB; further lines are lost."""
PRUNE_SECONDS = 3600.0
PART = "audit"


@dataclass(frozen=True, slots=True)
class Rate:
    """Allow ``burst`` lines at once, and ``per_second`` a second after that."""

    burst: float
    per_second: float


REFUSED = Rate(60, 1.0)
DONE = Rate(600, 4.0)
ALL = Rate(5000, 100.0)


@dataclass(slots=True)
class _Bucket:
    rate: Rate
    tokens: float
    at: float

    def take(self, now: float) -> bool:
        self.tokens = min(self.rate.burst, self.tokens + (now - self.at) * self.rate.per_second)
        self.at = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


@dataclass(slots=True)
class _Fold:
    since: float
    newest: AuditLine
    count: int = 1


class Folding:
    """Fold lines. Times are in seconds, of a clock that nobody sets."""

    def __init__(self, now: float) -> None:
        self._all = _Bucket(ALL, ALL.burst, now)
        self._buckets: dict[tuple[_User, bool], _Bucket] = {}
        """The bucket that was used last is the last one."""
        self._folds: dict[_Key, _Fold] = {}
        self.lost = 0
        """Count lines that no other line counts."""

    def passes(self, line: AuditLine, now: float) -> bool:
        """Return True if the line must be written by itself; otherwise count the line."""
        if self._bucket(line, now).take(now) and self._all.take(now):
            return True
        method = line.method if line.method in METHODS else ""
        key = ((line.uid, line.user), method, line.code, line.status)
        if (fold := self._folds.get(key)) is not None:
            fold.newest = line
            fold.count += 1
        elif len(self._folds) < MAX_FOLDS:
            self._folds[key] = _Fold(now, line)
        else:
            self.lost += 1
        return False

    def due(self, now: float, *, all_of_them: bool = False) -> Iterator[AuditLine]:
        """Yield a line for each kind that was counted for long enough.

        The line is the newest of its kind, with the number of the other lines.
        """
        for key, fold in list(self._folds.items()):
            if all_of_them or now - fold.since >= WINDOW_SECONDS:
                del self._folds[key]
                yield replace(fold.newest, more=fold.newest.more + fold.count - 1)

    def _bucket(self, line: AuditLine, now: float) -> _Bucket:
        key = ((line.uid, line.user), line.refused)
        if (bucket := self._buckets.pop(key, None)) is None:
            if len(self._buckets) >= MAX_BUCKETS:
                del self._buckets[next(iter(self._buckets))]
            rate = REFUSED if line.refused else DONE
            bucket = _Bucket(rate, rate.burst, now)
        self._buckets[key] = bucket
        return bucket


def sentence(line: AuditLine) -> str:
    """Return the line as a sentence for people."""
    about = f" name={line.name!r}" if line.name else ""
    about += f" container={line.container[:12]}" if line.container else ""
    caller = f"{line.user} (uid {line.uid}, pid {line.origin.pid} {line.origin.executable or '-'})"
    answered = f"refused {line.status} {line.code}" if line.refused else f"{line.status or 'no answer'}"
    text = f": {line.text}" if line.text else ""
    return f"audit {caller} {line.method} {line.endpoint}{about} {answered}{text}{more(line)}"


def more(line: AuditLine) -> str:
    """Return a remark on the number of other lines that this line stands for."""
    if not line.more:
        return ""
    return f" (and {line.more} more like it by uid {line.uid} within {WINDOW_SECONDS:.0f} s)"


def fields_of(line: AuditLine) -> dict[str, str]:
    """Return the line as journald's fields; leave out empty fields."""
    fields = {
        "MESSAGE": sentence(line),
        "MESSAGE_ID": MESSAGE_ID,
        "PRIORITY": NOTICE if line.refused else INFO,
        "SYSLOG_IDENTIFIER": "gpushared",
        "GPUSHARE_UID": str(line.uid),
        "GPUSHARE_USER": line.user,
        "GPUSHARE_PID": str(line.origin.pid or ""),
        "GPUSHARE_EXE": line.origin.executable,
        **{f"GPUSHARE_{name.upper()}": str(getattr(line, name)) for name in FACTS},
    }
    if not line.more:
        del fields["GPUSHARE_MORE"]
    return {name: value for name, value in fields.items() if value}


class AuditLog:
    """Take lines from all parts by ``take``, and write them by ``run`` as long as the daemon runs."""

    def __init__(
        self,
        file: SqliteAudit,
        troubles: Troubles,
        config: AuditConfig,
        journald: Journald | None = None,
        folding: Folding | None = None,
    ) -> None:
        self._file = file
        self._troubles = troubles
        self.config = config
        """The configuration may be replaced at any time."""
        self._journald = journald or (Journald() if is_logged_to() else None)
        self._lost = 0
        self._lost_written = 0
        self._folding = folding or Folding(time.monotonic())
        self._waiting: deque[AuditLine] = deque()
        self._in_doubt: tuple[NumberedLine, ...] = ()
        self._next: int | None = None
        self._enough = asyncio.Event()
        self._writing = asyncio.Lock()
        self._prune_at = 0.0

    def take(self, line: AuditLine) -> None:
        """Accept a line; many similar lines of one user are written together later."""
        if self._folding.passes(line, time.monotonic()):
            self._keep(line)

    def take_finding(self, uid: int, user: str, event: str, container: str, text: str) -> None:
        """Accept a line on what the daemon found by itself about a user's container; ``event`` names it."""
        self.take(line_now(uid, user, "FOUND", event, container=container, status=0, code=event, text=text))

    def take_reload(self, error: GpushareError | None = None) -> None:
        """Accept a line on a reload of the configuration, or on its failure.

        The configuration decides on rights. A signal does not name its sender, who is root or the daemon's
        own user.
        """
        text = "reloaded" if error is None else f"not reloaded, the old one stays: {error}"
        self.take(line_now(0, "root", "SIGHUP", "configuration", text=text, error=error))

    async def run(self) -> None:
        while True:
            await within(self._enough, WRITE_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        """Write the waiting lines; a file that cannot be written raises a trouble, not an error."""
        async with self._writing:
            for line in self._folding.due(time.monotonic()):
                self._keep(line)
            self._enough.clear()
            try:
                await self._write_all()
            except (AuditUnavailable, TimedOut, ConfigError) as error:
                self._troubles.raised(PART, self._trouble_text(str(error)))
                return
            self._troubles.cleared(PART)

    async def search(self, query: Search) -> tuple[NumberedLine, ...]:
        """Search the file, including lines from before this call. Raises AuditUnavailable, TimedOut."""
        await self.flush()
        return await self._file.search(query)

    @property
    def lost_total(self) -> int:
        """Return the number of lines that were lost since the start."""
        return self._lost_written + self._lines_lost

    @property
    def trouble(self) -> str:
        return self._troubles.of(PART)

    async def close(self) -> None:
        """Write the waiting lines and the counted ones, and close."""
        for line in self._folding.due(0.0, all_of_them=True):
            self._keep(line)
        await self.flush()
        await self._file.close()
        if self._journald is not None:
            self._journald.close()

    # --- pieces ---

    def _keep(self, line: AuditLine) -> None:
        if self._journald is None or not self._journald.send(fields_of(line)):
            log.info("%s", sentence(line))
        if len(self._waiting) >= MAX_WAITING:
            self._lost += 1
            return
        self._waiting.append(line)
        if len(self._waiting) >= BATCH:
            self._enough.set()

    async def _write_all(self) -> None:
        if self._next is None:
            self._next = await self._file.newest() + 1
        if self._lines_lost:
            text = f"{self._lines_lost} lines before this one were lost: the audit could not be written"
            self._waiting.append(line_now(0, "gpushared", "LOST", "audit", status=0, text=text))
            self._lost_written += self._lines_lost
            self._lost = self._folding.lost = 0
        while self._in_doubt or self._waiting:
            # Each line gets its number once: a batch with an unknown outcome is written again unchanged.
            batch = self._in_doubt or self._numbered()
            self._in_doubt = batch
            await self._file.write(batch, self._bounds(), time.time())
            self._in_doubt = ()
        await self._prune_now_and_then()

    def _numbered(self) -> tuple[NumberedLine, ...]:
        assert self._next is not None, "the newest number is read first"
        lines: Sequence[AuditLine] = [
            self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))
        ]
        first, self._next = self._next, self._next + len(lines)
        return tuple(enumerate(lines, first))

    async def _prune_now_and_then(self) -> None:
        if time.monotonic() >= self._prune_at:
            self._prune_at = time.monotonic() + PRUNE_SECONDS
            await self._file.prune(self._bounds(), time.time())

    def _bounds(self) -> Keep:
        return Keep(self.config.keep_days, self.config.max_rows)

    def _trouble_text(self, error: str) -> str:
        waiting = len(self._waiting) + len(self._in_doubt)
        lost = f", {self._lines_lost} are lost" if self._lines_lost else ""
        return f"the audit is behind: {error}; {waiting} lines wait{lost}"

    @property
    def _lines_lost(self) -> int:
        return self._lost + self._folding.lost
