"""A coordinator that kills itself at each kind of write of its store: once before it, then once after it.

Run as a program: NOTES, then the flags of ``gpushared-pool``. All its parts are the real ones; what it died
at is noted in a file, so that the next life gets past it. A life is a fork of a process that has loaded the
program and begun nothing of it, because loading is most of a start.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from gpushared.daemon.clocks import SteadyClock
from gpushared.daemon.process import set_up_logging
from gpushared.daemon.systemd import Notifier
from gpushared.jobs.job_records import ENDED, JOB
from gpushared.pool.coordinator.app import AUDIT_NAME, PoolDaemon, PoolParts
from gpushared.pool.coordinator.main import read_config
from gpushared.pool.coordinator.stores import MARK_NAME, STORE_NAME
from gpushared.pool.trust.trust import CA_FOLDER
from gpushared.ports.job_store import Transaction
from gpushared.storage.audit.audit_file import SqliteAudit
from gpushared.storage.history import SqliteHistory
from gpushared.storage.job_store import SqliteStore

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when its parent ends."""


class DyingStore(SqliteStore):
    """Ends the process as a power cut does."""

    def __init__(self, path: Path, notes: Path) -> None:
        super().__init__(path, mark=path.parent / CA_FOLDER / MARK_NAME)
        self._notes = notes

    async def commit(self, transaction: Transaction) -> int:
        marks = sorted(set(_marks(transaction)))
        self._die_at(f"before {mark}" for mark in marks)
        revision = await super().commit(transaction)
        self._die_at(f"after {mark}" for mark in marks)
        return revision

    def _die_at(self, marks: Iterable[str]) -> None:
        known = set(self._notes.read_text().splitlines()) if self._notes.exists() else set()
        new = [mark for mark in marks if mark not in known]
        if new:
            with self._notes.open("a") as notes:
                notes.writelines(f"{mark}\n" for mark in new)
            os.kill(os.getpid(), signal.SIGKILL)


def _marks(transaction: Transaction) -> Iterator[str]:
    """What kind of write it is: of which record, and of a job in which state, of how many parts."""
    for key, value in transaction.puts.items():
        kind = key.partition("/")[0]
        yield f"{kind} {_of_job(value)}" if key.startswith((JOB, ENDED)) else kind
    for key in transaction.deletes:
        yield f"no {key.partition('/')[0]}"


def _of_job(value: bytes) -> str:
    state = json.loads(value)["state"]
    parts = sorted({part["state"] or "not answered" for part in state.get("parts", ())})
    outcome = state.get("outcome", {}).get("kind", "")
    return " ".join((state["kind"], outcome, *parts, "committed" * state.get("committed", False)))


async def serve(notes: Path, config: Path) -> None:
    """Until it dies, or is told to end."""
    settings = read_config(config, {})
    set_up_logging(settings.log)
    folder = Path(settings.coordinator.state_dir)
    store = DyingStore(folder / STORE_NAME, notes)
    parts = PoolParts(
        store, SteadyClock(), SqliteAudit(folder / AUDIT_NAME), SqliteHistory(folder / "history.db")
    )
    daemon = PoolDaemon(settings, parts, Notifier())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, daemon.stop)
    await daemon.run()


def live_on(life: Callable[[], None]) -> None:
    """As a service manager does: whenever it was killed it lives again."""
    status = -signal.SIGKILL
    while status == -signal.SIGKILL:
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            life()
            os._exit(0)
        signal.signal(signal.SIGTERM, lambda *_, child=child: os.kill(child, signal.SIGTERM))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    config = Path(sys.argv[sys.argv.index("--config") + 1])
    live_on(lambda: asyncio.run(serve(Path(sys.argv[1]), config)))
