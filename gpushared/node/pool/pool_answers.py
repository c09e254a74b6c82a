"""Answer the questions of the pool's coordinator: this node's history, and its leases and GPUs as they are now."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from gpushared.api.v1 import gpus_pb2, leases_pb2
from gpushared.domain.model.errors import GpushareError
from gpushared.domain.model.request import Caller
from gpushared.pool.link import codec
from gpushared.pool.link.history_wire import part_bytes, read_position
from gpushared.pool.member.node_ports import Answerer
from gpushared.storage.audit.line import NOBODY_HERE
from gpushared.storage.history import SqliteHistory

Flush = Callable[[], Awaitable[None]]
ListLeases = Callable[[leases_pb2.ListLeasesRequest, Caller], Awaitable[leases_pb2.ListLeasesResponse]]
ListGpus = Callable[[gpus_pb2.ListGpusRequest, Caller], Awaitable[gpus_pb2.ListGpusResponse]]
COORDINATOR = Caller(NOBODY_HERE, NOBODY_HERE, "the coordinator", trusted=True)
MAX_LEASES = 2000


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


class ListingAnswers:
    """Send the leases and GPUs as this node's own listings show them, with their use.

    Owners have their realm, because the coordinator knows people by it. Names of containers, images and
    programs leave the node for the pool's own jobs only.
    """

    def __init__(
        self,
        leases: ListLeases,
        gpus: ListGpus,
        pool: Callable[[], str],
        realm: Callable[[], str],
    ) -> None:
        self._list_leases = leases
        self._list_gpus = gpus
        self._pool = pool
        self._realm = realm

    def answerers(self) -> Mapping[str, Answerer]:
        return {codec.LEASES: self._leases, codec.GPUS: self._gpus}

    async def _leases(self, _: bytes) -> bytes:
        listing = await self._list_leases(leases_pb2.ListLeasesRequest(), COORDINATOR)
        del listing.leases[MAX_LEASES:]
        for view in listing.leases:
            view.owner, view.owner_uid = f"{view.owner}@{self._realm()}", 0
            if not view.job_pool or view.job_pool != self._pool():
                view.container_id = view.container_name = view.image = view.job_id = view.job_pool = ""
        for process in listing.unmanaged:
            process.command, process.pid = "", 0
        return listing.SerializeToString()

    async def _gpus(self, _: bytes) -> bytes:
        listing = await self._list_gpus(gpus_pb2.ListGpusRequest(), COORDINATOR)
        return listing.SerializeToString()
