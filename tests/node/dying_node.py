"""A daemon that kills itself at every kind of write of its journal: once before it, then once after it.

The parts are the real ones. What it died at is noted in a file, so that the next life gets past it. A life is
a fork of a process that has loaded the program and begun nothing of it, because loading is most of a start.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from gpushared.config.model import Config
from gpushared.domain.model.lease import Lease, LeaseId, StoryEntry
from gpushared.domain.model.span import Span
from gpushared.node.main import main
from gpushared.node.parts import Parts, real_parts
from gpushared.ports import Journal, JournalSnapshot, JournalWrite, PastLeases

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when its parent ends."""


class DyingJournal:
    """The ``Journal`` port over another one."""

    def __init__(self, inner: Journal, notes: Path) -> None:
        self._inner = inner
        self._notes = notes
        self._names: dict[LeaseId, str] = {}

    async def commit(self, writes: Sequence[JournalWrite]) -> None:
        marks = {self._mark(write, *entry) for write in writes for entry in write.entries}
        marks |= {mark for write in writes if (mark := _mark_of_projects(write))}
        self._die_at(f"before {mark}" for mark in sorted(marks) if not _comes_once(mark))
        await self._inner.commit(writes)
        self._die_at(f"after {mark}" for mark in sorted(marks))

    def _mark(self, write: JournalWrite, lease: LeaseId, entry: StoryEntry) -> str:
        """The same for the same write of another life: whose, in which state, why."""
        for changed in write.leases:
            self._names[changed.id] = changed.request_id
        why = re.sub(r"[0-9a-f]{12}|[0-9.]+", "#", entry.text)
        return f"{self._names.get(lease, lease)} {entry.state}: {why}"

    def _die_at(self, marks: Any) -> None:
        known = set(self._notes.read_text().splitlines()) if self._notes.exists() else set()
        new = [mark for mark in marks if mark not in known]
        if new:
            with self._notes.open("a") as notes:
                notes.writelines(f"{mark}\n" for mark in new)
            os.kill(os.getpid(), signal.SIGKILL)

    async def load(self) -> JournalSnapshot:
        snapshot = await self._inner.load()
        self._names |= {lease.id: lease.request_id for lease in snapshot.leases}
        return snapshot

    async def story(self, lease: LeaseId) -> tuple[StoryEntry, ...]:
        return await self._inner.story(lease)

    async def lease(self, lease: LeaseId) -> Lease | None:
        return await self._inner.lease(lease)

    async def ended(self, limit: int) -> tuple[Lease, ...]:
        return await self._inner.ended(limit)

    async def past(self, query: PastLeases, limit: int) -> tuple[tuple[Lease, ...], int]:
        return await self._inner.past(query, limit)

    async def identity(self, newest_span: int = 0) -> int:
        return await self._inner.identity(newest_span)

    async def spans(self, limit: int) -> tuple[tuple[int, Span], ...]:
        return await self._inner.spans(limit)

    async def forget_spans(self, newest: int) -> None:
        await self._inner.forget_spans(newest)

    async def close(self) -> None:
        await self._inner.close()


def _mark_of_projects(write: JournalWrite) -> str:
    """Empty where no project was set or unset."""
    set_now = None if write.accounts is None else write.accounts.projects
    if set_now is None:
        return ""
    figures = (f"{one.name} of weight {one.weight:g} with {one.quota}" for one in set_now.values())
    return f"projects set: {', '.join(figures) or 'none'}"


def _comes_once(mark: str) -> bool:
    """What was not written of a create is found out in another way; half of them must get past it."""
    return mark.endswith("was created") and mark.startswith(("batch", "queued"))


def dying_parts(config: Config) -> Parts:
    parts = real_parts(config)
    notes = Path(config.node.state_dir).with_name("deaths")
    return replace(parts, journal=DyingJournal(parts.journal, notes))


def live_on(life: Callable[[], NoReturn]) -> None:
    """Live, tell how it ended in a line on standard output, and live again when a line comes back."""
    while True:
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            life()
        signal.signal(signal.SIGTERM, lambda *_, child=child: os.kill(child, signal.SIGTERM))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        sys.stdout.write(f"{status}\n")
        sys.stdout.flush()
        if not sys.stdin.readline():
            return


if __name__ == "__main__":
    with mock.patch("gpushared.node.main.real_parts", dying_parts):
        live_on(main)
