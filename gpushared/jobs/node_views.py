"""The nodes of a pool as users see them: what is known of each, and since when."""

from __future__ import annotations

from collections.abc import Iterable

from gpushared.api.v1 import jobs_pb2
from gpushared.domain.jobs.coordinator_state import PoolState, is_tried_last
from gpushared.domain.jobs.job import HERE, NodeName, Running
from gpushared.domain.jobs.liveness import presence, silent_since
from gpushared.domain.jobs.member import HeartbeatReport, Inventory, Member, Presence
from gpushared.domain.model.gpu import WHOLE_PERMILLE, Gpu, GpuId
from gpushared.domain.model.units import format_duration


def nodes_of(state: PoolState, now: float) -> list[jobs_pb2.PoolNode]:
    """Return all members that are enrolled and not forgotten, by name."""
    members = sorted(state.members.values(), key=lambda member: member.name)
    return [_node(member, state, now) for member in members if member.forgotten_at is None]


def lone_node(
    name: str, inventory: Inventory, free: HeartbeatReport, book: PoolState, *, heard_at: float
) -> jobs_pb2.PoolNode:
    """A node in no pool, as it sees itself. ``book``: its own jobs; ``heard_at``: the time of day."""
    view = jobs_pb2.PoolNode(
        name=name,
        presence=Presence.READY,
        heard_at=heard_at,
        waiting=free.waiting,
        running=_running(HERE, book),
    )
    _add_inventory(view, inventory, Member(NodeName(name), enrolled_at=0.0, free=free))
    return view


def has_simulated(state: PoolState) -> bool:
    """Return True if a node of the pool has simulated GPUs."""
    return any(one.inventory is not None and one.inventory.simulated for one in state.members.values())


def notices_of(state: PoolState, now: float) -> list[str]:
    """Return notices about nodes that refuse jobs which they had room for by their own word."""
    return [
        _rest_of(state.members[name], rest.until, now)
        for name, rest in sorted(state.resting.items())
        if is_tried_last(name, state, now)
    ]


def _rest_of(member: Member, until: float, now: float) -> str:
    if now < until:
        return (
            f"{member.name} refused {member.refusals} jobs in a row that it was said to have room for; for "
            f"{format_duration(max(1, round(until - now)))} it is tried last"
        )
    return (
        f"{member.name} keeps room for its own queue and refused {member.refusals} jobs in a row; while "
        "others wait there it is tried last"
    )


def _node(member: Member, state: PoolState, now: float) -> jobs_pb2.PoolNode:
    since = silent_since(member, state, now)
    view = jobs_pb2.PoolNode(
        name=member.name,
        presence=presence(member, state, now),
        heard_at=state.day(member.heard_at) if member.heard_at else 0.0,
        silent_since=state.day(since) if since else 0.0,
        drain_reason=member.drain_reason,
        drained_by=member.drained_by,
        waiting=member.free.waiting,
        running=_running(member.name, state),
        enrolled_at=state.day(member.enrolled_at),
    )
    if member.inventory is not None:
        _add_inventory(view, member.inventory, member)
    return view


def _running(node: NodeName, state: PoolState) -> int:
    return sum(isinstance(state.jobs[name].state, Running) for name in state.by_node.get(node) or ())


def _add_inventory(view: jobs_pb2.PoolNode, inventory: Inventory, member: Member) -> None:
    view.version, view.address, view.simulated = inventory.version, inventory.address, inventory.simulated
    view.gpus.extend(_gpus(inventory.gpus, member))


def _gpus(gpus: Iterable[Gpu], member: Member) -> list[jobs_pb2.PoolGpu]:
    """Return the GPUs of a node with the room that was free by the node's last word."""
    troubles = dict(member.free.troubles)
    stray: dict[GpuId, int] = {}
    for gpu, size in member.free.stray_bytes:
        stray[gpu] = stray.get(gpu, 0) + size
    return [_gpu(gpu, member, stray.get(gpu.id, 0), troubles.get(gpu.id, "")) for gpu in gpus]


def _gpu(gpu: Gpu, member: Member, stray_bytes: int, trouble: str) -> jobs_pb2.PoolGpu:
    held = [grant for one in member.free.holdings for grant in one.grants if grant.gpu == gpu.id]
    whole = any(one.exclusive and grant.gpu == gpu.id for one in member.free.holdings for grant in one.grants)
    free_bytes = gpu.leasable_bytes - stray_bytes - sum(grant.memory_bytes for grant in held)
    free_permille = WHOLE_PERMILLE - sum(grant.compute_permille for grant in held)
    return jobs_pb2.PoolGpu(
        id=gpu.id,
        index=gpu.index,
        name=gpu.name,
        memory_bytes=gpu.memory_total_bytes,
        free_memory_bytes=0 if whole else max(0, free_bytes),
        free_compute_permille=0 if whole else max(0, free_permille),
        trouble=gpu.trouble or trouble,
        leases=len(held),
    )
