"""What administrators may ask of a pool and its nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpushared.api.v1 import pool_pb2
from gpushared.domain.jobs.coordinator_events import (
    AttemptReported,
    NodeDisconnected,
    NodeEnrolled,
    NodeRegistered,
    PoolTick,
)
from gpushared.domain.jobs.job import AttemptState, NodeName, Owner, Queued
from gpushared.domain.jobs.member import HeartbeatReport, Inventory, Member
from gpushared.domain.jobs.protocol import Report
from gpushared.domain.model.errors import (
    GpushareError,
    NotFound,
    PermissionRefused,
    RequestError,
    StateConflict,
)
from gpushared.pool.coordinator.admin_service import Admin
from gpushared.pool.trust.callers import ALL_SCOPES, PoolCaller
from gpushared.testing.fake_job_store import MemoryStore
from tests.pool.pools import ADA, NODE, Pool, coordinator, job_id

ROOT = PoolCaller(Owner("root@lab", "root", admin=True), None, ALL_SCOPES, is_admin=True)
USER = PoolCaller(ADA, NODE, ALL_SCOPES, is_admin=False)


class Certificates:
    """Remembers whose were revoked; ``known`` have one."""

    def __init__(self) -> None:
        self.known = {NODE}
        self.revoked: list[tuple[NodeName, str]] = []

    async def expel(self, node: NodeName, by: str) -> None:
        if node not in self.known:
            raise NotFound(f"no node {node} has a certificate")
        self.known.remove(node)
        self.revoked.append((node, by))


class AdministeredPool:
    """A pool with its administration."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.certificates = Certificates()
        self.drained: list[NodeName] = []
        self.admin = Admin(
            pool.loop,
            self.certificates,
            pool.troubles,
            pool="lab",
            send_drain=self.drained.append,
            store=MemoryStore(),
        )

    async def status(self) -> pool_pb2.PoolStatus:
        return await self.admin.status(pool_pb2.PoolStatusRequest(), ROOT)

    async def drain(self, **fields: Any) -> list[str]:
        answer = await self.admin.drain_node(pool_pb2.DrainNodeRequest(**fields), ROOT)
        return list(answer.sentences)

    async def forget(self, **fields: Any) -> list[str]:
        answer = await self.admin.forget_node(pool_pb2.ForgetNodeRequest(**fields), ROOT)
        return list(answer.sentences)

    async def run_job(self, number: int) -> None:
        await self.pool.submit(number)
        order = await self.pool.until_placed(number)
        await self.pool.loop.send(AttemptReported(NODE, Report(order.key, AttemptState.RUNNING, 1)))


@pytest.fixture
async def administered() -> AsyncIterator[AdministeredPool]:
    async with coordinator() as pool:
        await pool.join()
        yield AdministeredPool(pool)


async def test_status_tells_how_the_coordinator_is(administered: AdministeredPool) -> None:
    await administered.run_job(1)
    await administered.pool.submit(2, target=NODE)
    administered.pool.troubles.raised("store", "the disk is full")
    status = await administered.status()
    assert (status.pool, status.epoch, status.phase) == ("lab", 1, "normal")
    assert (status.nodes, status.running, list(status.troubles)) == (1, 1, ["the disk is full"])
    assert status.queued == sum(
        isinstance(job.state, Queued) for job in administered.pool.loop.state.jobs.values()
    )
    assert status.revision == administered.pool.loop.revision > 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("status", pool_pb2.PoolStatusRequest()),
        ("drain_node", pool_pb2.DrainNodeRequest(node="n1", reason="x")),
        ("forget_node", pool_pb2.ForgetNodeRequest(node="n1", is_off=True)),
        ("forget_coordinator", pool_pb2.ForgetCoordinatorRequest(name="h3")),
    ],
)
async def test_only_administrators_are_answered(
    administered: AdministeredPool, call: str, message: Any
) -> None:
    with pytest.raises(PermissionRefused, match="only admins"):
        await getattr(administered.admin, call)(message, USER)
    assert administered.certificates.revoked == []


async def test_a_pool_of_one_coordinator_has_none_to_forget(administered: AdministeredPool) -> None:
    with pytest.raises(StateConflict, match="this pool has one coordinator"):
        await administered.admin.forget_coordinator(pool_pb2.ForgetCoordinatorRequest(name="h3"), ROOT)


async def test_a_drained_node_gets_no_new_work_and_is_told(administered: AdministeredPool) -> None:
    await administered.run_job(1)
    assert await administered.drain(node="n1", reason="new fans") == [
        "node n1 gets no new work of the pool; jobs that run on there: 1"
    ]
    member = administered.pool.loop.state.members[NODE]
    assert (member.drained_by, member.drain_reason) == ("root@lab", "new fans")
    assert await administered.drain(node="n1", undrain=True) == ["node n1 takes work again"]
    assert administered.pool.loop.state.members[NODE].drained_by == ""
    assert administered.drained == [NODE, NODE]


@pytest.mark.parametrize(
    ("fields", "error", "told"),
    [
        ({"node": "n1"}, RequestError, "why is it to be drained"),
        ({"node": "n1", "reason": "two\nlines"}, RequestError, "one line"),
        ({"node": "n9", "reason": "x"}, NotFound, "no node 'n9'"),
        ({"node": "n9", "undrain": True}, NotFound, "no node 'n9'"),
    ],
)
async def test_what_cannot_be_drained(
    administered: AdministeredPool, fields: dict[str, Any], error: type[GpushareError], told: str
) -> None:
    with pytest.raises(error, match=told):
        await administered.drain(**fields)


async def test_a_forgotten_node_s_jobs_wait_again_once_its_certificate_is_revoked(
    administered: AdministeredPool,
) -> None:
    await administered.run_job(1)
    await administered.pool.loop.send(NodeDisconnected(NODE))
    assert await administered.forget(node="n1", is_off=True) == [
        "node n1 is forgotten",
        "its certificate is revoked: to come back it has to join again",
        "one job was there; those that wait for another node now: 1",
    ]
    assert administered.certificates.revoked == [(NODE, "root@lab")]
    assert isinstance(administered.pool.loop.state.jobs[job_id(1)].state, Queued)
    with pytest.raises(NotFound):
        await administered.forget(node="n1", is_off=True)
    assert (await administered.status()).nodes == 0


async def test_a_node_without_a_certificate_can_be_forgotten(administered: AdministeredPool) -> None:
    await administered.pool.loop.send(NodeEnrolled(NodeName("n2")))
    assert await administered.forget(node="n2", is_off=True) == [
        "node n2 is forgotten",
        "it has no certificate any more",
    ]


@pytest.mark.parametrize(
    ("fields", "error", "told"),
    [
        ({"node": "n1"}, RequestError, "really off"),
        ({"node": "n1", "is_off": True}, StateConflict, "is connected"),
        ({"node": "n9", "is_off": True}, NotFound, "no node 'n9'"),
    ],
)
async def test_nobody_s_word_is_taken_against_what_is_known(
    administered: AdministeredPool, fields: dict[str, Any], error: type[GpushareError], told: str
) -> None:
    with pytest.raises(error, match=told):
        await administered.forget(**fields)
    assert administered.certificates.revoked == []


async def test_a_word_is_taken_for_a_silent_node_whose_connection_nobody_closed(
    administered: AdministeredPool,
) -> None:
    """A machine that lost its power, or a cable, says no goodbye."""
    administered.pool.clock.advance(31)
    assert (await administered.forget(node="n1", is_off=True))[0] == "node n1 is forgotten"


async def test_a_recovery_need_not_wait_for_a_node_whose_certificate_was_revoked() -> None:
    """It cannot report any more; should it ever join again, what it tells is taken as of then."""
    async with coordinator(enrolled=(Member(NODE, 5.0, ("n1",)),)) as pool:
        administered = AdministeredPool(pool)
        await administered.certificates.expel(NODE, "root@lab")
        assert list((await administered.status()).awaited_nodes) == ["n1"]
        assert (await administered.forget(node="n1", only_waive=True))[1] == "no other node is waited for"
        assert pool.loop.state.members[NODE].excused
        pool.clock.advance(pool.loop.state.rules.recover_seconds)
        await pool.loop.send(PoolTick())
        assert (await administered.status()).phase == "normal"


async def test_administrators_are_told_on_whose_word_all_nodes_were_asked_anew(
    administered: AdministeredPool,
) -> None:
    inventory, free = Inventory(()), HeartbeatReport()
    await administered.pool.loop.send(NodeRegistered(NODE, inventory, free, seen_epoch=90))
    (trouble,) = (await administered.status()).troubles
    assert "node n1 said that it has seen more of this pool" in trouble
    assert "gpushare pool revoke --node n1" in trouble


async def test_a_recovery_need_not_wait_for_a_waived_node() -> None:
    lost = Member(NODE, 5.0, ("n1",))
    async with coordinator(enrolled=(lost,)) as pool:
        administered = AdministeredPool(pool)
        status = await administered.status()
        assert (status.phase, list(status.awaited_nodes)) == ("recovering", ["n1"])
        assert await administered.forget(node="n1", only_waive=True) == [
            "the recovery does not wait for node n1 any more",
            "no other node is waited for",
        ]
        assert administered.certificates.revoked == []
        assert list((await administered.status()).awaited_nodes) == []
