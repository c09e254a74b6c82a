"""Simulated nodes with 8 GPUs each: the real end of the link, and nothing behind it. Run by ``pool.py``."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc

from gpushared.api.v1 import link_pb2
from gpushared.daemon.process import allow_many_files
from gpushared.daemon.troubles import Troubles
from gpushared.domain.jobs import attempt_log
from gpushared.domain.jobs.attempt_log import AttemptLog
from gpushared.domain.jobs.job import NodeName
from gpushared.domain.jobs.member import HeartbeatReport, Inventory
from gpushared.domain.jobs.node_messages import Contact
from gpushared.domain.jobs.protocol import Order, Report, StaleEpoch
from gpushared.domain.model.coordinator_addresses import divided
from gpushared.domain.model.errors import GpushareError
from gpushared.domain.model.gpu import Gpu, GpuId
from gpushared.domain.model.lease import AttemptKey, JobId
from gpushared.pool.member.coordinator_link import MemberLink
from gpushared.pool.member.dial import Dial
from gpushared.pool.member.link_session import Identity
from gpushared.pool.member.node_ports import OutboxJob
from gpushared.pool.trust.people import coordinator_host

GIB = 1 << 30
POOL = "bench"
AT_ONCE = 20
"""So many begin to dial in the same tenth of a second; a pool is not switched on at one stroke."""


class Node:
    """Desk, facts and outbox of a node where nothing happens, not even what the coordinator orders."""

    def __init__(self, name: str) -> None:
        gpus = tuple(
            Gpu(GpuId(f"GPU-{name}-{index}"), index, "NVIDIA H100 80GB HBM3", 80 * GIB, 79 * GIB)
            for index in range(8)
        )
        self._inventory = Inventory(gpus, 128_000, 1024 * GIB, "10.0.0.1", "0.1.0", simulated=True)
        self._free = HeartbeatReport()
        self._book = AttemptLog()
        self._seen = Contact()

    async def take(self, order: Order) -> Report | StaleEpoch:
        taken = attempt_log.take(self._book, order, None, None, time.time())
        self._book = taken.attempt_log
        return taken.report

    def reports(self) -> tuple[Report, ...]:
        return attempt_log.reports(self._book)

    def report(self, key: AttemptKey) -> Report | None:
        record = self._book.get(key)
        return None if record is None else attempt_log.report_of(record)

    def contact(self) -> Contact:
        return self._seen

    async def contact_made(self, sent_at: float, epoch: int, revision: int) -> None:
        self._seen = Contact(max(epoch, self._seen.epoch), max(revision, self._seen.revision), "b", sent_at)

    async def look(self) -> None:
        return

    def inventory(self) -> Inventory:
        return self._inventory

    def free(self) -> HeartbeatReport:
        return self._free

    async def changed(self, timeout_seconds: float) -> bool:
        await asyncio.sleep(timeout_seconds)
        return False

    def jobs(self) -> tuple[JobId, ...]:
        return ()

    def job(self, _: JobId) -> OutboxJob | None:
        return None

    def cancels(self) -> Mapping[JobId, int]:
        return {}

    def vouch(self, _: JobId, digest: bytes) -> bytes:
        return digest

    def vouch_cancel(self, _: JobId, digest: bytes) -> bytes:
        return digest

    async def taken(self, _: JobId, __: GpushareError | None) -> None:
        return

    async def cancelled(self, _: JobId, __: GpushareError | None) -> None:
        return

    async def updated(self, _: link_pb2.JobUpdate) -> None:
        return


def link_of(name: str, node: Node, address: str, facts: dict[str, Any]) -> MemberLink:
    """The link of one node, with its own certificate."""
    mine = facts["nodes"][name]
    anchors, key, certificate = (
        text.encode() for text in (facts["anchors"], mine["key"], mine["certificate"])
    )
    return MemberLink(
        Identity(POOL, NodeName(name), "boot", "0.1.0"),
        Dial(
            lambda: divided(address),
            lambda: grpc.ssl_channel_credentials(anchors, key, certificate),
            coordinator_host(POOL),
        ),
        node,
        node,
        node,
        Troubles(),
    )


async def tell(link: MemberLink) -> None:
    """One line each time the link comes up or is lost."""
    was = False
    while True:
        if link.connected is not was:
            was = link.connected
            print(json.dumps({"up": was, "at": time.time()}), flush=True)
        await link.changed(3600.0)


async def main(address: str, names: list[str], facts: dict[str, Any]) -> None:
    """Until SIGTERM."""
    tasks = []
    for number, name in enumerate(names):
        link = link_of(name, Node(name), address, facts)
        tasks += [asyncio.create_task(link.run()), asyncio.create_task(tell(link))]
        if number % AT_ONCE == AT_ONCE - 1:
            await asyncio.sleep(0.1)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    allow_many_files()
    asyncio.run(main(sys.argv[2], sys.argv[3:], json.loads(Path(sys.argv[1]).read_text())))
