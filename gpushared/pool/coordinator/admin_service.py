"""Answer administrators' calls about the pool and its nodes.

Tokens and certificates have services of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

import gpushared
from gpushared.api.v1 import pool_pb2
from gpushared.daemon.troubles import Troubles
from gpushared.domain.jobs import staleness_claims
from gpushared.domain.jobs.coordinator_events import NodeDrainAsked, NodeForgotten, PoolEvent
from gpushared.domain.jobs.coordinator_state import PoolState
from gpushared.domain.jobs.job import (
    Job,
    NodeName,
    Queued,
    Running,
)
from gpushared.domain.jobs.liveness import presence
from gpushared.domain.jobs.member import Member, Presence
from gpushared.domain.model.errors import NotFound, RequestError, StateConflict
from gpushared.domain.model.units import shown
from gpushared.pool.coordinator.unary_service import Handler
from gpushared.pool.trust.callers import PoolCaller

log = logging.getLogger(__name__)

NORMAL, SETTLING, RECOVERING = "normal", "settling", "recovering"
MAX_REASON = 500


class AdminLoop(Protocol):
    """The coordinator's loop."""

    @property
    def state(self) -> PoolState: ...
    @property
    def revision(self) -> int: ...
    async def send(self, event: PoolEvent) -> Job | None: ...
    def now(self) -> float: ...


class Certificates(Protocol):
    """Decide who may connect."""

    async def expel(self, node: NodeName, by: str) -> None:
        """Raises NotFound where it has none."""
        ...


class Admin:
    """``drained``: told of each node that was drained or is so no more, so that it hears of it."""

    def __init__(
        self,
        machine: AdminLoop,
        certificates: Certificates,
        troubles: Troubles,
        *,
        pool: str,
        drained: Callable[[NodeName], None],
    ) -> None:
        self._machine = machine
        self._certificates = certificates
        self._troubles = troubles
        self._pool = pool
        self._drained = drained

    def handlers(self) -> Mapping[str, Handler]:
        return {"Status": self.status, "DrainNode": self.drain_node, "ForgetNode": self.forget_node}

    async def status(self, _: pool_pb2.PoolStatusRequest, caller: PoolCaller) -> pool_pb2.PoolStatus:
        """Return the coordinator's state."""
        caller.require_admin()
        state = self._machine.state
        return pool_pb2.PoolStatus(
            pool=self._pool,
            version=gpushared.__version__,
            epoch=state.epoch,
            revision=self._machine.revision,
            phase=phase_of(state),
            awaited_nodes=() if state.settled else state.missing(),
            troubles=(*self._troubles.all(), *map(staleness_claims.told, sorted(state.claimants))),
            nodes=sum(member.forgotten_at is None for member in state.members.values()),
            queued=state.queued_count,
            running=sum(isinstance(job.state, Running) for job in state.jobs.values()),
            started_at=state.day(state.started_at),
        )

    async def drain_node(self, message: pool_pb2.DrainNodeRequest, caller: PoolCaller) -> pool_pb2.NodeAnswer:
        """No new work for a node, or again. What runs there runs on."""
        caller.require_admin()
        member = self._member(message.node)
        reason = None if message.undrain else message.reason.strip()
        if reason == "":
            raise RequestError("why is it to be drained?", hint="say so with --reason, for those who wonder")
        if reason is not None and (len(reason) > MAX_REASON or not reason.isprintable()):
            raise RequestError(f"a reason is one line of at most {MAX_REASON} characters")
        await self._machine.send(NodeDrainAsked(member.name, caller.owner, reason))
        self._drained(member.name)
        log.info("node=%s drained=%r by=%s", member.name, reason, caller.owner.principal)
        return pool_pb2.NodeAnswer(sentences=[self._drain_sentence(member.name, reason)])

    async def forget_node(
        self, message: pool_pb2.ForgetNodeRequest, caller: PoolCaller
    ) -> pool_pb2.NodeAnswer:
        """Take somebody's word for a node that does not answer. Raises StateConflict for one that does."""
        caller.require_admin()
        member = self._member(message.node)
        if not message.is_off and not message.only_waive:
            raise RequestError(
                f"is node {member.name} really off? what runs there would run twice otherwise",
                hint="give your word with --is-off",
            )
        if member.connected and not self._is_unknown(member):
            raise StateConflict(
                f"node {member.name} is connected, so nobody's word is needed",
                hint=f"to have no new work there: gpushare drain {member.name}",
            )
        sentences = await (
            self._waive(member, caller) if message.only_waive else self._forget(member, caller)
        )
        return pool_pb2.NodeAnswer(sentences=sentences)

    async def _waive(self, member: Member, caller: PoolCaller) -> list[str]:
        await self._machine.send(NodeForgotten(member.name, caller.owner, only_waive=True))
        log.info("node=%s waived by=%s", member.name, caller.owner.principal)
        missing = self._machine.state.missing() if not self._machine.state.settled else ()
        waits = f"still waited for: {', '.join(missing)}" if missing else "no other node is waited for"
        return [f"the recovery does not wait for node {member.name} any more", waits]

    async def _forget(self, member: Member, caller: PoolCaller) -> list[str]:
        """Its certificate first: once its jobs run elsewhere it must not come back as if nothing had been."""
        sentences = [f"node {member.name} is forgotten"]
        try:
            await self._certificates.expel(member.name, caller.owner.principal)
            sentences.append("its certificate is revoked: to come back it has to join again")
        except NotFound:
            sentences.append("it has no certificate any more")
        jobs = tuple(self._machine.state.by_node.get(member.name, ()))
        await self._machine.send(NodeForgotten(member.name, caller.owner))
        log.warning("node=%s forgotten by=%s jobs=%d", member.name, caller.owner.principal, len(jobs))
        if jobs:
            now = self._machine.state.jobs
            again = sum(isinstance(one.state, Queued) for job in jobs if (one := now.get(job)) is not None)
            were = "one job was" if len(jobs) == 1 else f"{len(jobs)} jobs were"
            sentences.append(f"{were} there; those that wait for another node now: {again}")
        return sentences

    def _is_unknown(self, member: Member) -> bool:
        """A connection may outlive its machine for a while: what counts is whether anything came over it."""
        return presence(member, self._machine.state, self._machine.now()) is Presence.UNKNOWN

    def _member(self, name: str) -> Member:
        state = self._machine.state
        member = state.members.get(NodeName(name))
        awaited = not state.settled and name in state.missing()
        if member is None or (member.forgotten_at is not None and not awaited):
            raise NotFound(f"there is no node {shown(name)} in the pool", hint="`gpushare nodes` lists them")
        return member

    def _drain_sentence(self, node: NodeName, reason: str | None) -> str:
        if reason is None:
            return f"node {node} takes work again"
        running = len(self._machine.state.by_node.get(node, ()))
        return f"node {node} gets no new work of the pool; jobs that run on there: {running}"


def phase_of(state: PoolState) -> str:
    """Return whether jobs from before the start may be placed, and if not, what the coordinator waits for."""
    if state.settled:
        return NORMAL
    return SETTLING if state.recovering_since is None else RECOVERING
