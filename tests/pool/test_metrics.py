"""Metrics of a coordinator: of one on a store in memory, and of a process, on its socket and on TCP."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpushared.config.pool_settings import CoordinatorConfig
from gpushared.domain.jobs.job import NodeName
from gpushared.domain.model.request import Caller
from gpushared.pool.coordinator.pool_metrics import PoolMetrics
from gpushared.storage.audit.audit_log import AuditLog
from tests.node.daemon import make_directory, wait_until
from tests.node.test_metrics import check_metrics, labels_of, of, read
from tests.pool.pools import NODE, REQUEST, Pool, coordinator
from tests.pool.processes import CoordinatorProcess, free_port

SOMEBODY = Caller(1000, 1000, "somebody")


class AuditWithoutLosses:
    """An audit that has lost nothing."""

    lost_total = 0


def page_of(pool: Pool) -> str:
    audit: AuditLog = AuditWithoutLosses()  # type: ignore[assignment]  # the page reads one figure of it
    metrics = PoolMetrics(lambda: pool.loop, pool.troubles, audit, CoordinatorConfig)
    return metrics.page(SOMEBODY, "").body.decode()


async def test_the_page_tells_of_nodes_jobs_and_the_queue() -> None:
    async with coordinator() as pool:
        await pool.join()
        await pool.join(NodeName("n2"))
        await pool.submit(1)
        await pool.until_placed(1)
        for number in range(2, 5):
            await pool.submit(number, request=replace(REQUEST, gpu_count=8))
        pool.clock.advance(7.0)
        series = read(page_of(pool))
        assert of(series, "gpushare_pool_leader") == [1.0]
        assert of(series, "gpushare_pool_epoch") == [pool.loop.epoch]
        assert of(series, "gpushare_pool_members") == [2.0]
        assert of(series, "gpushare_pool_member_up", node=NODE) == [1.0]
        assert min(of(series, "gpushare_pool_member_heard_seconds")) >= 7.0
        assert of(series, "gpushare_pool_jobs", state="placing") == [1.0]
        assert of(series, "gpushare_pool_jobs", state="queued") == [3.0]
        assert of(series, "gpushare_pool_queue_length", **{"class": "train"}) == [3.0]
        assert of(series, "gpushare_pool_queue_length", **{"class": "infer"}) == [0.0]
        assert of(series, "gpushare_pool_placement_seconds_count")[0] >= 1
        assert of(series, "gpushare_pool_store_commit_seconds_count")[0] >= 1


async def test_a_store_in_trouble_is_told_and_no_leader_is_claimed() -> None:
    async with coordinator() as pool:
        pool.troubles.raised("store", "the disk is full")
        series = read(page_of(pool))
        assert of(series, "gpushare_pool_leader") == [0.0]
        assert labels_of(series, "gpushare_pool_trouble", "part") == {"store"}


@pytest.fixture
def process() -> Iterator[tuple[CoordinatorProcess, int]]:
    port = free_port()
    made = CoordinatorProcess(make_directory(), config=f'[metrics]\nlisten = "{port}"\n')
    made.start()
    yield made, port
    made.dispose()


def test_a_coordinator_answers_on_its_socket_and_on_tcp(process: tuple[CoordinatorProcess, int]) -> None:
    made, port = process
    local = http.client.HTTPConnection("coordinator")
    local.sock = socket.socket(socket.AF_UNIX)
    local.sock.connect(str(made.socket))
    wait_until(lambda: _serves(port), "the port serves")
    remote = http.client.HTTPConnection("127.0.0.1", port)
    for connection in (local, remote):
        connection.request("GET", "/metrics")
        series = read(connection.getresponse().read().decode())
        assert of(series, "gpushare_pool_leader") == [1.0]
        assert of(series, "gpushare_pool_members") == [0.0]
        connection.close()


def test_promtool_finds_nothing_wrong(process: tuple[CoordinatorProcess, int], prometheus: Path) -> None:
    _, port = process
    wait_until(lambda: _serves(port), "the port serves")
    remote = http.client.HTTPConnection("127.0.0.1", port)
    remote.request("GET", "/metrics")
    check_metrics(prometheus, remote.getresponse().read())
    remote.close()


def _serves(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
