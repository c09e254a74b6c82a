"""Answer the questions of the pool's coordinator: this node's history, and its leases and GPUs as they are now."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from gpushared.domain.model.errors import GpushareError
from gpushared.pool.link import codec
from gpushared.pool.link.history_wire import part_bytes, read_position
from gpushared.pool.member.node_ports import Answerer
from gpushared.storage.history import SqliteHistory

Flush = Callable[[], Awaitable[None]]


class HistoryAnswers:
    """Send the history part by part; ``pool`` and ``realm`` are those of the node now."""

    def __init__(
        self, history: SqliteHistory, flush: Flush, pool: Callable[[], str], realm: Callable[[], str]
    ) -> None:
        """``flush`` writes what happened last, so that a part is of now."""
        self._history = history
        self._flush = flush
        self._pool = pool
        self._realm = realm

    def answerers(self) -> Mapping[str, Answerer]:
        return {codec.HISTORY: self._part}

    async def _part(self, body: bytes) -> bytes:
        position = read_position(body)
        # A history that cannot be written has its trouble on this node; what it has can be read.
        with suppress(GpushareError):
            await self._flush()
        part = await self._history.part(position, self._pool(), self._realm())
        return part_bytes(part)
