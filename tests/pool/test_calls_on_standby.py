"""Each call of a coordinator that stands by is answered with its age, or refused with the leader's name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor

from gpushared.api.v1 import (
    audit_pb2,
    gpus_pb2,
    history_pb2,
    jobs_pb2,
    jobs_pb2_grpc,
    leases_pb2,
    link_pb2,
    pool_pb2,
    pool_pb2_grpc,
)
from gpushared.domain.jobs.coordinator_events import JobSubmitted
from gpushared.jobs.job_records import MEMBER
from gpushared.pool.coordinator.app import SOCKET_NAME, PoolDaemon, PoolParts
from gpushared.pool.trust.authority import Authority
from gpushared.pool.trust.callers import AGE_METADATA, ANSWERED_BY_ALL
from gpushared.pool.trust.trust import CA_FOLDER
from gpushared.ports.job_store import Contents
from gpushared.storage.audit.audit_file import SqliteAudit
from gpushared.storage.history import SqliteHistory
from gpushared.testing import ManualClock, SharedMemoryStore, StoreWorld
from tests.pool import json_calls
from tests.pool.pools import job_id, spec
from tests.pool.ready import ReadyNotifier
from tests.pool.standbys import leading
from tests.pool.test_listeners import ServedCoordinator, configured, served

SECONDS = 20
FILES = (audit_pb2, gpus_pb2, history_pb2, jobs_pb2, leases_pb2, link_pb2, pool_pb2)
DECIDED_ELSEWHERE = {
    "Join/GetTrust": "the anchors are no secret, and all coordinators have them",
    "Join/Renew": "needs a node's certificate; it asks as Join/Sign does",
    "NodeLink/Connect": "waits for a leader: tests/pool/link/test_standby_link.py",
    "NodeLink/Serve": "answers an order to open a tunnel, which only a leader gives",
}
OWN_PAGE = "Web/"
"""These calls are about the page of this coordinator and who is logged in there."""


def methods() -> Iterator[tuple[str, MethodDescriptor]]:
    for file in FILES:
        for service in file.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                yield f"{service.name}/{method.name}", method


@pytest.fixture
async def coordinator(tmp_path: Path) -> AsyncIterator[ServedCoordinator]:
    """The coordinator b, while a leads."""
    world = StoreWorld()
    async with leading(world) as first:
        await first.loop.send(JobSubmitted(job_id(1), spec()))
        store = SharedMemoryStore(world, name="b")
        async with served(tmp_path, store, coordinator__advertise="b") as made:
            yield made


async def code_of(channel: grpc.aio.Channel, method: MethodDescriptor) -> tuple[grpc.StatusCode, str]:
    """How an empty call ends."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    as_it_is: Any = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, True): channel.stream_stream,
    }[bool(method.client_streaming), bool(method.server_streaming)]
    call: Any = as_it_is(path)(iter([b""]) if method.client_streaming else b"", timeout=SECONDS)
    try:
        if method.server_streaming:
            await call.read()
        else:
            await call
        return await call.code(), await call.details()
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""


def is_refused(answer: tuple[grpc.StatusCode, str]) -> bool:
    code, words = answer
    return code == grpc.StatusCode.UNAVAILABLE and "the coordinator b stands by, and a leads" in words


async def test_each_call_is_answered_by_all_or_refused_by_one_that_stands_by(
    coordinator: ServedCoordinator,
) -> None:
    undecided, served_here = [], set()
    for name, method in methods():
        if name in DECIDED_ELSEWHERE:
            continue
        answer = await code_of(coordinator.local, method)
        if answer[0] == grpc.StatusCode.UNIMPLEMENTED:
            continue  # a node's call, or one of strangers
        served_here.add(name)
        if is_refused(answer) is (name in ANSWERED_BY_ALL):
            undecided.append((name, answer))
    assert undecided == []
    assert served_here >= ANSWERED_BY_ALL
    assert served_here >= {"Jobs/Submit", "Jobs/Tunnel", "PoolAdmin/DrainNode", "Leases/List"}


async def test_the_names_that_are_decided_elsewhere_are_calls(coordinator: ServedCoordinator) -> None:
    names = {name for name, _ in methods()}
    assert names >= DECIDED_ELSEWHERE.keys() | ANSWERED_BY_ALL
    async with coordinator.by_tls(coordinator.daemon.users_port) as users:
        trust = await pool_pb2_grpc.JoinStub(users).GetTrust(pool_pb2.GetTrustRequest())
        assert trust.anchors == coordinator.authority.anchors_pem
        by_name = dict(methods())
        assert is_refused(await code_of(users, by_name["Join/Sign"]))


async def test_the_calls_in_json_are_decided_in_the_same_way(coordinator: ServedCoordinator) -> None:
    calls = list(coordinator.daemon._json.calls)
    assert len(calls) > len(ANSWERED_BY_ALL)
    for path in calls:
        name = path.removeprefix("gpushare.v1.")
        body, age = await asyncio.to_thread(post, coordinator, name)
        if name.startswith(OWN_PAGE):
            assert body.get("code") != "unavailable", (path, body)
        elif name in ANSWERED_BY_ALL:
            assert body.get("code") != "unavailable", (path, body)
            assert "code" in body or float(age) >= 0.0, path
        else:
            assert (body.get("code"), "a leads" in body.get("message", "")) == ("unavailable", True), (
                path,
                body,
            )


def post(coordinator: ServedCoordinator, call: str) -> tuple[dict[str, Any], str]:
    runtime = coordinator.daemon._config.coordinator.runtime_dir
    return json_calls.post(Path(runtime) / SOCKET_NAME, call)


async def test_an_answer_says_how_old_it_is_and_who_leads(coordinator: ServedCoordinator) -> None:
    jobs = jobs_pb2_grpc.JobsStub(coordinator.local)
    call = jobs.List(jobs_pb2.ListJobsRequest(all=True))
    assert [job.id for job in (await call).jobs] == [job_id(1)]
    metadata = dict(await call.trailing_metadata())
    assert float(metadata[AGE_METADATA]) >= 0.0
    nodes = await jobs.Nodes(jobs_pb2.NodesRequest())
    assert "the coordinator b stands by (a leads)" in nodes.notices[0]
    status = await pool_pb2_grpc.PoolAdminStub(coordinator.local).Status(pool_pb2.PoolStatusRequest())
    assert (status.role, status.pool) == ("standby", "lab")


async def test_a_leader_s_answer_has_no_age(tmp_path: Path) -> None:
    store = SharedMemoryStore(name="b")
    async with served(tmp_path, store, coordinator__advertise="b") as coordinator:
        loop = coordinator.daemon._loop
        assert loop is not None
        async with asyncio.timeout(SECONDS):
            while True:
                if loop.standby is None:
                    break
                await asyncio.sleep(0.01)
        call = jobs_pb2_grpc.JobsStub(coordinator.local).List(jobs_pb2.ListJobsRequest())
        await call
        assert AGE_METADATA not in dict(await call.trailing_metadata())
        _, age = await asyncio.to_thread(post, coordinator, "Jobs/List")
        assert age == ""


class SlowStore(SharedMemoryStore):
    """Its members are read only once ``go_on`` is set."""

    def __init__(self, world: StoreWorld) -> None:
        super().__init__(world, name="b")
        self.is_read, self.go_on = asyncio.Event(), asyncio.Event()

    async def load(self, prefix: str = "") -> Contents:
        if prefix == MEMBER:
            self.is_read.set()
            await self.go_on.wait()
        return await super().load(prefix)


async def test_a_reload_before_it_serves_counts(tmp_path: Path) -> None:
    store = SlowStore(StoreWorld())
    Authority.create(tmp_path / CA_FOLDER, "lab", time.time())
    notifier = ReadyNotifier()
    audit, history = SqliteAudit(tmp_path / "audit.db"), SqliteHistory(tmp_path / "history.db")
    daemon = PoolDaemon(configured(tmp_path), PoolParts(store, ManualClock(1e6), audit, history), notifier)
    running = asyncio.create_task(daemon.run())
    async with asyncio.timeout(SECONDS):
        await store.is_read.wait()
        daemon.reload(configured(tmp_path, **{"queue.max_queued": "3"}))
        store.go_on.set()
        await notifier.is_ready.wait()
    try:
        assert daemon._loop is not None
        assert daemon._loop.state.rules.max_queued == 3
    finally:
        daemon.stop()
        await running
