"""A coordinator that is killed at a chosen write; run as a program: STATE RUNTIME NUMBER before|after."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from gpushared.config.pool_settings import CoordinatorConfig, load_pool
from gpushared.daemon.clocks import SteadyClock
from gpushared.daemon.systemd import Notifier
from gpushared.pool.coordinator.app import AUDIT_NAME, PoolDaemon, PoolParts
from gpushared.pool.coordinator.stores import MARK_NAME, STORE_NAME
from gpushared.pool.trust.trust import CA_FOLDER
from gpushared.ports.job_store import Transaction
from gpushared.storage.audit.audit_file import SqliteAudit
from gpushared.storage.history import SqliteHistory
from gpushared.storage.job_store import SqliteStore

NEVER = 0


class DyingStore(SqliteStore):
    """Ends the process as a power cut does, at the commit of that number since the start."""

    def __init__(self, path: Path, number: int, *, after: bool) -> None:
        super().__init__(path, mark=path.parent / CA_FOLDER / MARK_NAME)
        self._number = number
        self._after = after
        self._commits = 0

    async def commit(self, transaction: Transaction) -> int:
        self._commits += 1
        dies = self._commits == self._number
        if dies and not self._after:
            os.kill(os.getpid(), signal.SIGKILL)
        revision = await super().commit(transaction)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return revision


def configured(state: Path, runtime: Path) -> CoordinatorConfig:
    flags = {
        "coordinator.state_dir": str(state),
        "coordinator.runtime_dir": str(runtime),
        "coordinator.listen": "127.0.0.1:0",
        "coordinator.listen_nodes": "127.0.0.1:0",
    }
    return load_pool(Path("/nonexistent/pool.toml"), flags=flags)


async def serve(state: Path, runtime: Path, number: int, *, after: bool) -> None:
    """Until it dies, or is told to end."""
    store = DyingStore(state / STORE_NAME, number, after=after)
    parts = PoolParts(
        store, SteadyClock(), SqliteAudit(state / AUDIT_NAME), SqliteHistory(state / "history.db")
    )
    daemon = PoolDaemon(configured(state, runtime), parts, Notifier())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, daemon.stop)
    await daemon.run()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), after=sys.argv[4] == "after"))
