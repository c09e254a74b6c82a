"""Answer administrators' calls about the pool, its nodes, its tokens and its authority."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import gpushared
from gpushared.api.v1 import pool_pb2
from gpushared.daemon.troubles import Troubles
from gpushared.domain.jobs import staleness_claims
from gpushared.domain.jobs.coordinator_events import NodeDrainAsked, NodeForgotten, PoolEvent
from gpushared.domain.jobs.coordinator_state import PoolState
from gpushared.domain.jobs.job import Job, NodeName, Queued, Running
from gpushared.domain.jobs.liveness import presence
from gpushared.domain.jobs.member import Member, Presence
from gpushared.domain.model.errors import GpushareError, NotFound, RequestError, StateConflict
from gpushared.domain.model.units import shown
from gpushared.jobs.standby import Standby
from gpushared.pool.coordinator.coordinator_registry import CoordinatorRegistry
from gpushared.pool.coordinator.running_parts import Handler
from gpushared.pool.trust.callers import PoolCaller
from gpushared.pool.trust.token_records import ApiRecord, JoinRecord
from gpushared.pool.trust.trust import PoolTrust
from gpushared.ports.job_store import JobStore, SharedStore, StoreMember

log = logging.getLogger(__name__)

NORMAL, SETTLING, RECOVERING = "normal", "settling", "recovering"
MAX_REASON = 500
OTHERS_SECONDS = 5.0
"""Wait this long for the store's answers on other coordinators and on its members."""


class AdminLoop(Protocol):
    """Provide the coordinator's loop."""

    @property
    def state(self) -> PoolState: ...
    @property
    def revision(self) -> int: ...
    async def send(self, event: PoolEvent) -> Job | None: ...
    async def write(self, puts: Mapping[str, bytes], deletes: Iterable[str] = ()) -> int: ...
    def now(self) -> float: ...


class Certificates(Protocol):
    """Revoke the certificates of nodes."""

    async def expel(self, node: NodeName, by: str) -> None:
        """Revoke the node's certificates. Raises NotFound if the node has none."""
        ...


class Admin:
    """Handle calls on nodes.

    ``send_drain`` sends a node that it was drained or undrained.
    """

    def __init__(
        self,
        loop: AdminLoop,
        certificates: Certificates,
        troubles: Troubles,
        *,
        pool: str,
        send_drain: Callable[[NodeName], None],
        store: JobStore,
        standby: Callable[[], Standby | None] = lambda: None,
        registry: CoordinatorRegistry | None = None,
    ) -> None:
        self._store = store
        self._standby = standby
        self._registry = registry
        self._loop = loop
        self._certificates = certificates
        self._troubles = troubles
        self._pool = pool
        self._send_drain = send_drain

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "Status": self.status,
            "DrainNode": self.drain_node,
            "ForgetNode": self.forget_node,
            "ForgetCoordinator": self.forget_coordinator,
        }

    async def status(self, _: pool_pb2.PoolStatusRequest, caller: PoolCaller) -> pool_pb2.PoolStatus:
        """Return the coordinator's state."""
        caller.require_admin()
        state, standby = self._loop.state, self._standby()
        status = pool_pb2.PoolStatus(
            role="leader" if standby is None else "standby",
            store="etcd" if isinstance(self._store, SharedStore) else "file",
            pool=self._pool,
            version=gpushared.__version__,
            epoch=state.epoch,
            revision=self._loop.revision,
            phase=phase_of(state),
            awaited_nodes=() if state.settled else state.missing(),
            troubles=(*self._troubles.all(), *map(staleness_claims.claim_trouble, sorted(state.claimants))),
            nodes=sum(member.forgotten_at is None for member in state.members.values()),
            queued=state.queued_count,
            running=sum(isinstance(job.state, Running) for job in state.jobs.values()),
            started_at=state.day(state.started_at),
        )
        if standby is not None:
            status.age_seconds = standby.age_seconds()
        await self._add_others(status)
        return status

    async def _add_others(self, status: pool_pb2.PoolStatus) -> None:
        """Add the other coordinators, and the members of the store's engine."""
        if not isinstance(self._store, SharedStore) or self._registry is None:
            return
        try:
            async with asyncio.timeout(OTHERS_SECONDS):
                status.store_members.extend(map(_store_member, await self._store.health()))
                status.coordinators.extend(await self._registry.all())
        except TimeoutError:
            status.troubles.append(f"etcd did not tell who runs within {OTHERS_SECONDS:g} s")
        except GpushareError as error:
            status.troubles.append(str(error))

    async def drain_node(self, message: pool_pb2.DrainNodeRequest, caller: PoolCaller) -> pool_pb2.NodeAnswer:
        """Drain or undrain a node: a drained node gets no new work, and its running jobs continue."""
        caller.require_admin()
        member = self._member(message.node)
        reason = None if message.undrain else message.reason.strip()
        if reason == "":
            raise RequestError("why is it to be drained?", hint="say so with --reason, for those who wonder")
        if reason is not None and (len(reason) > MAX_REASON or not reason.isprintable()):
            raise RequestError(f"a reason is one line of at most {MAX_REASON} characters")
        await self._loop.send(NodeDrainAsked(member.name, caller.owner, reason))
        self._send_drain(member.name)
        log.info("node=%s drained=%r by=%s", member.name, reason, caller.owner.principal)
        return pool_pb2.NodeAnswer(sentences=[self._drain_sentence(member.name, reason)])

    async def forget_node(
        self, message: pool_pb2.ForgetNodeRequest, caller: PoolCaller
    ) -> pool_pb2.NodeAnswer:
        """Forget a node that does not answer, on the administrator's statement that it is off.

        Raises StateConflict for a node that answers.
        """
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

    async def forget_coordinator(
        self, message: pool_pb2.ForgetCoordinatorRequest, caller: PoolCaller
    ) -> pool_pb2.CoordinatorForgotten:
        """Take a coordinator that does not run any more out of the list that nodes and users have.

        Raises StateConflict for one that runs, and if the pool has one coordinator.
        """
        caller.require_admin()
        if self._registry is None:
            raise StateConflict(
                "this pool has one coordinator", hint="only a pool on an etcd may have several"
            )
        await self._registry.forget(message.name, self._loop.write)
        log.info("coordinator=%s forgotten by=%s", message.name, caller.owner.principal)
        return pool_pb2.CoordinatorForgotten(
            sentence=f"coordinator {message.name} is forgotten; each node learns that when it next connects"
        )

    async def _waive(self, member: Member, caller: PoolCaller) -> list[str]:
        await self._loop.send(NodeForgotten(member.name, caller.owner, only_waive=True))
        log.info("node=%s waived by=%s", member.name, caller.owner.principal)
        missing = self._loop.state.missing() if not self._loop.state.settled else ()
        waits = f"still waited for: {', '.join(missing)}" if missing else "no other node is waited for"
        return [f"the recovery does not wait for node {member.name} any more", waits]

    async def _forget(self, member: Member, caller: PoolCaller) -> list[str]:
        """Forget a node. Revoke its certificate first: once its jobs run elsewhere, it must not return."""
        sentences = [f"node {member.name} is forgotten"]
        try:
            await self._certificates.expel(member.name, caller.owner.principal)
            sentences.append("its certificate is revoked: to come back it has to join again")
        except NotFound:
            sentences.append("it has no certificate any more")
        jobs = tuple(self._loop.state.by_node.get(member.name, ()))
        await self._loop.send(NodeForgotten(member.name, caller.owner))
        log.warning("node=%s forgotten by=%s jobs=%d", member.name, caller.owner.principal, len(jobs))
        if jobs:
            present = (self._loop.state.jobs.get(job) for job in jobs)
            again = sum(job is not None and isinstance(job.state, Queued) for job in present)
            were = "one job was" if len(jobs) == 1 else f"{len(jobs)} jobs were"
            sentences.append(f"{were} there; those that wait for another node now: {again}")
        return sentences

    def _is_unknown(self, member: Member) -> bool:
        """Return True if nothing came from the node for long.

        A connection may outlive its machine for a while.
        """
        return presence(member, self._loop.state, self._loop.now()) is Presence.UNKNOWN

    def _member(self, name: str) -> Member:
        state = self._loop.state
        member = state.members.get(NodeName(name))
        awaited = not state.settled and name in state.missing()
        if member is None or (member.forgotten_at is not None and not awaited):
            raise NotFound(f"there is no node {shown(name)} in the pool", hint="`gpushare nodes` lists them")
        return member

    def _drain_sentence(self, node: NodeName, reason: str | None) -> str:
        if reason is None:
            return f"node {node} takes work again"
        running = len(self._loop.state.by_node.get(node, ()))
        return f"node {node} gets no new work of the pool; jobs that run on there: {running}"


def _store_member(member: StoreMember) -> pool_pb2.StoreMember:
    return pool_pb2.StoreMember(
        endpoint=member.endpoint,
        healthy=not member.problem,
        leads=member.leads,
        version=member.version,
        size_bytes=member.size_bytes,
        problem=member.problem,
    )


def phase_of(state: PoolState) -> str:
    """Return the word for whether jobs from before the start may be placed yet."""
    if state.settled:
        return NORMAL
    return SETTLING if state.recovering_since is None else RECOVERING


class TrustAdmin:
    """Handle calls on trust, for administrators only. The caller who makes a secret sees it once."""

    def __init__(self, trust: PoolTrust) -> None:
        self._trust = trust

    def handlers(self) -> Mapping[str, Any]:
        """Return the handlers by the names of the calls."""
        return {
            "CreateJoinToken": self.create_join_token,
            "ListJoinTokens": self.list_join_tokens,
            "CreateApiToken": self.create_api_token,
            "ListApiTokens": self.list_api_tokens,
            "RevokeToken": self.revoke_token,
            "RotateCa": self.rotate_ca,
            "Anchors": self.anchors,
        }

    async def create_join_token(
        self, message: pool_pb2.JoinTokenRequest, caller: PoolCaller
    ) -> pool_pb2.JoinToken:
        caller.require_admin()
        token, record = await self._trust.join_tokens.make(
            caller.owner.principal,
            self._trust.now(),
            node=message.node,
            realms=message.realms,
            valid_seconds=message.valid_seconds,
        )
        log.info("join token made id=%s node=%s by=%s", record.id, record.node, record.made_by)
        answer = _join_token(record)
        answer.token = str(token)
        return answer

    async def list_join_tokens(
        self, _: pool_pb2.ListTokensRequest, caller: PoolCaller
    ) -> pool_pb2.ListJoinTokensResponse:
        caller.require_admin()
        records = await self._trust.join_tokens.all(self._trust.now())
        return pool_pb2.ListJoinTokensResponse(tokens=map(_join_token, records))

    async def create_api_token(
        self, message: pool_pb2.ApiTokenRequest, caller: PoolCaller
    ) -> pool_pb2.ApiToken:
        caller.require_admin()
        token, record = await self._trust.api_tokens.make(
            caller.owner.principal,
            self._trust.now(),
            person=message.person,
            scopes=message.scopes,
            valid_seconds=message.valid_seconds,
            description=message.description,
            admins=self._trust.people().admins,
        )
        log.info("API token made id=%s person=%s by=%s", record.id, record.person, record.made_by)
        answer = _api_token(record)
        answer.token = str(token)
        return answer

    async def list_api_tokens(
        self, _: pool_pb2.ListTokensRequest, caller: PoolCaller
    ) -> pool_pb2.ListApiTokensResponse:
        caller.require_admin()
        records = await self._trust.api_tokens.all(self._trust.now())
        return pool_pb2.ListApiTokensResponse(tokens=map(_api_token, records))

    async def revoke_token(self, message: pool_pb2.TokenRef, caller: PoolCaller) -> pool_pb2.Revoked:
        """Revoke a token of either kind, as an id belongs to only one of them, or a node's certificates."""
        caller.require_admin()
        if bool(message.id) == bool(message.node):
            hint = "`gpushare pool tokens` lists tokens with their ids, `gpushare nodes` the nodes"
            raise RequestError("name a token or a node", hint=hint)
        if message.node:
            return await self._revoke_node(NodeName(message.node), caller)
        now = self._trust.now()
        for kind in (self._trust.api_tokens, self._trust.join_tokens):
            try:
                sentence = await kind.revoke(message.id, now)
            except NotFound:
                continue
            self._trust.certificate_status.look_again(now)
            log.info("token revoked id=%s by=%s", message.id, caller.owner.principal)
            return pool_pb2.Revoked(sentence=sentence)
        raise NotFound(
            f"there is no token {shown(message.id)}", hint="`gpushare pool tokens` lists them with their ids"
        )

    async def _revoke_node(self, node: NodeName, caller: PoolCaller) -> pool_pb2.Revoked:
        await self._trust.enrolment.expel(node, caller.owner.principal)
        return pool_pb2.Revoked(
            sentence=f"the certificates of node {node} are revoked: it is cut off until it joins again with "
            f"a token for it; what runs there is kept until: gpushare node forget {node} --is-off"
        )

    async def rotate_ca(
        self, message: pool_pb2.RotateCaRequest, caller: PoolCaller
    ) -> pool_pb2.RotateCaAnswer:
        caller.require_admin()
        change = self._trust.finish_rotation if message.finish else self._trust.begin_rotation
        sentences = await change()
        log.warning("authority changed finish=%s by=%s", message.finish, caller.owner.principal)
        return pool_pb2.RotateCaAnswer(sentences=sentences)

    async def anchors(self, _: pool_pb2.GetTrustRequest, caller: PoolCaller) -> pool_pb2.Trust:
        """Return the anchors that programs must trust on the users' port. The answer holds no secret."""
        caller.require_admin()
        return self._trust.anchors_message(self._trust.now())


def _join_token(record: JoinRecord) -> pool_pb2.JoinToken:
    return pool_pb2.JoinToken(
        id=record.id,
        expires_at=record.expires_at,
        node=record.node,
        used_by=record.used_by,
        realms=record.realms,
        created_at=record.created_at,
        used_at=record.used_at or 0.0,
        revoked=record.revoked_at is not None,
        made_by=record.made_by,
    )


def _api_token(record: ApiRecord) -> pool_pb2.ApiToken:
    return pool_pb2.ApiToken(
        id=record.id,
        person=record.person,
        scopes=record.scopes,
        expires_at=record.expires_at,
        created_at=record.created_at,
        used_at=record.used_at or 0.0,
        description=record.description,
        revoked=record.revoked_at is not None,
        made_by=record.made_by,
    )
