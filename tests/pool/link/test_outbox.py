"""Jobs that come in through a node: kept there, sent until the coordinator has them, and then told of."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from gpushared.api.v1 import jobs_pb2, link_pb2
from gpushared.domain.jobs import coordinator_events as m
from gpushared.domain.jobs.job import Owner
from gpushared.domain.model.errors import NotFound, Unavailable
from gpushared.domain.model.lease import JobId
from gpushared.pool.member.node_ports import OutboxJob
from tests.pool.link.coordinator import Coordinator
from tests.pool.link.member import Node, spec
from tests.pool.link.proxy import Proxy

N1 = "n1"
JOB = JobId("0123456789")


def node_of(coordinator: Coordinator) -> Node:
    return Node(coordinator.enrol(N1), lambda: coordinator.address)


def is_submitted(event: m.PoolEvent) -> bool:
    return isinstance(event, m.JobSubmitted)


async def test_a_job_is_sent_with_the_nodes_word_and_acknowledged(coordinator: Coordinator) -> None:
    """The owner is who the node's signed word names, whatever the job itself says."""
    node = node_of(coordinator)
    claimed = replace(spec(), owner=Owner("ada@n1", "root", admin=True))
    async with node.running():
        await node.connected()
        coordinator.jobs.states[JOB] = "queued"
        node.outbox.kept[JOB] = OutboxJob(claimed, held=True, priority=3, kept_seconds=90.0)
        node.link.submit(JOB)
        event = await coordinator.machine.heard(is_submitted)
        await node.outbox.until(lambda box: bool(box.acks) and bool(box.updates))
    expected = replace(spec(), origin=node.name)
    assert event == m.JobSubmitted(JOB, expected, held=True, priority=3, old=False, kept_seconds=90.0)
    assert node.outbox.acks == [(JOB, None)]
    assert jobs_pb2.Job.FromString(node.outbox.updates[0].job).state == "queued"


async def test_a_node_cannot_speak_for_users_of_others(coordinator: Coordinator) -> None:
    """And says so to the one who asked."""
    node = node_of(coordinator)
    async with node.running():
        await node.connected()
        node.outbox.kept[JOB] = OutboxJob(spec("bob@n2"))
        node.link.submit(JOB)
        await node.outbox.until(lambda box: bool(box.acks))
    ((job, refusal),) = node.outbox.acks
    assert (job, refusal is not None and refusal.code) == (JOB, "permission_denied")
    assert coordinator.machine.count(m.JobSubmitted) == 0


async def test_what_waits_in_the_outbox_is_sent_again_after_each_registration(
    coordinator: Coordinator,
) -> None:
    """As old: a coordinator that lost its memory may have started it before."""
    async with Proxy(coordinator.port).running() as proxy:
        node = Node(coordinator.enrol(N1), lambda: proxy.address)
        node.outbox.kept[JOB] = OutboxJob(spec())
        async with node.running():
            first = await coordinator.machine.heard(is_submitted)
            await proxy.cut()
            again = await coordinator.machine.heard(is_submitted, times=2)
    assert isinstance(first, m.JobSubmitted)
    assert first.old
    assert again == first


async def test_a_job_is_acknowledged_only_once_the_store_has_it(coordinator: Coordinator) -> None:
    """A store that is away for a while is waited for."""
    node = node_of(coordinator)
    refused = asyncio.Event()

    def refuse(event: m.PoolEvent) -> Unavailable | None:
        if is_submitted(event) and not refused.is_set():
            refused.set()
            assert node.outbox.acks == []
            return Unavailable("the disk is full")
        return None

    coordinator.machine.answer = refuse
    async with node.running():
        await node.connected()
        node.outbox.kept[JOB] = OutboxJob(spec())
        node.link.submit(JOB)
        await coordinator.machine.heard(is_submitted)
        await node.outbox.until(lambda box: box.acks == [(JOB, None)])
    assert refused.is_set()


async def test_a_cancellation_follows_its_job_and_is_acknowledged(coordinator: Coordinator) -> None:
    """Never before it, else the coordinator would know nothing of what to cancel."""
    node = node_of(coordinator)
    node.outbox.kept[JOB] = OutboxJob(spec())
    node.outbox.wanted[JOB] = 7
    async with node.running():
        await node.outbox.until(lambda box: not box.wanted)
    kinds = [type(event) for event in coordinator.machine.events if isinstance(event, USERS)]
    assert kinds == [m.JobSubmitted, m.CancelAsked]
    owner = Owner("ada@n1", "ada@n1")
    assert m.CancelAsked(JOB, owner, 7) in coordinator.machine.events


async def test_the_end_of_a_client_is_told_in_the_name_of_who_asked_for_the_job(
    coordinator: Coordinator,
) -> None:
    """As often as the node says it: nobody acknowledges it."""
    node = node_of(coordinator)
    async with node.running():
        await node.connected()
        node.outbox.kept[JOB] = OutboxJob(spec())
        node.link.submit(JOB)
        await node.outbox.until(lambda box: bool(box.acks))
        for times in (1, 2):
            node.link.client_gone(JOB)
            event = await coordinator.machine.heard(lambda one: isinstance(one, m.ClientGone), times=times)
            assert event == m.ClientGone(JOB, Owner("ada@n1", "ada@n1"))


async def test_a_cancellation_of_what_is_not_known_is_refused_for_good(coordinator: Coordinator) -> None:
    node = node_of(coordinator)
    node.outbox.wanted[JOB] = 7
    coordinator.machine.answer = lambda event: (
        NotFound("there is no such job") if isinstance(event, m.CancelAsked) else None
    )
    async with node.running():
        await node.outbox.until(lambda box: not box.wanted)


async def test_the_newest_word_on_a_job_reaches_its_origin(coordinator: Coordinator) -> None:
    """Those in between may be left out."""
    node = node_of(coordinator)
    coordinator.jobs.origins[JOB] = node.name
    async with node.running():
        await node.connected()
        for state in ("queued", "placing", "running", "succeeded"):
            coordinator.jobs.states[JOB] = state
            coordinator.link.perform(m.TellOrigin(JOB))
        await node.outbox.until(lambda box: bool(box.updates) and box.updates[-1].over)
    assert jobs_pb2.Job.FromString(node.outbox.updates[-1].job).state == "succeeded"


async def test_a_job_with_a_name_that_is_none_is_refused(coordinator: Coordinator) -> None:
    node = node_of(coordinator)
    strange = JobId("../../etc")
    async with node.running():
        await node.connected()
        node.outbox.kept[strange] = OutboxJob(spec())
        node.link.submit(strange)
        await node.outbox.until(lambda box: bool(box.acks))
    assert node.outbox.acks[0][1] is not None
    assert coordinator.machine.count(m.JobSubmitted) == 0


async def test_a_node_that_trusts_too_little_is_told_once_whom_to_trust(coordinator: Coordinator) -> None:
    """It says what it has after each registration; where it cannot take over the new, that is not said for ever."""
    node = node_of(coordinator)
    told: list[link_pb2.NewTrust] = []

    async def fail(trust: link_pb2.NewTrust) -> int:
        told.append(trust)
        return 0

    node.link.receivers.new_trust = fail
    async with node.running():
        await coordinator.machine.heard(lambda event: isinstance(event, m.NodeHeartbeat), times=4)
    assert [trust.generation for trust in told] == [1]
    assert told[0].anchors == coordinator.trust.authority.anchors_pem


USERS = (m.JobSubmitted, m.CancelAsked)
