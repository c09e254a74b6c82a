"""Manage a node's membership: join a pool, renew the certificate long before it ends, and leave."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.message import Message

from gpushared.api.v1 import link_pb2, pool_pb2, pool_pb2_grpc
from gpushared.domain.model.coordinator_addresses import divided, joined
from gpushared.domain.model.errors import GpushareError, StateConflict, TimedOut, Unavailable
from gpushared.net.call_checks import error_of
from gpushared.pool.member.dial import pinned_anchor
from gpushared.pool.member.membership_file import Membership, MembershipFile
from gpushared.pool.trust.assertions import Asserter
from gpushared.pool.trust.authority import key_pem, new_key
from gpushared.pool.trust.certificates import ASSERTION_KEY_OID, Address, read_address, read_node_certificate
from gpushared.pool.trust.people import coordinator_host, node_name
from gpushared.pool.trust.token_records import JoinToken, read_join_token

log = logging.getLogger(__name__)

_Address = TypeVar("_Address", Address, str)

CALL_SECONDS = 20.0
MAX_COORDINATORS = 16
EARLIEST_RENEWAL = 0.5
LATEST_RENEWAL = 0.8
"""Renew at a random part of a certificate's life between these two, so that nodes spread over time."""
LOOK_SECONDS = 3600.0
"""Clocks may jump: compute the time to the next renewal at least this often."""
RETRY_SECONDS = 60.0
SPREAD_SECONDS = 10.0
"""Spread the renewals of a pool's nodes over this time when all nodes must renew."""


@dataclass(frozen=True, slots=True)
class _Keys:
    """Hold the keys of a join that was begun, so that a retry with the same token sends the same request."""

    token: str
    key: ec.EllipticCurvePrivateKey
    assertion_key: Ed25519PrivateKey


class Enrolment:
    """Hold the node's membership, if it has one. ``load`` reads the files once."""

    def __init__(
        self,
        folder: Path,
        now: Callable[[], float],
        trouble: Callable[[str | None], None] = lambda _: None,
        chance: random.Random | None = None,
        spread_seconds: float = SPREAD_SECONDS,
    ) -> None:
        """``trouble`` receives the reason that hinders the renewal, or None once nothing hinders it."""
        self._file = MembershipFile(folder)
        self._now = now
        self._trouble = trouble
        self._chance = chance or random.SystemRandom()
        self._spread_seconds = spread_seconds
        self._membership: Membership | None = None
        self._begun: _Keys | None = None
        self._version = 0
        self._changed = asyncio.Condition()
        self._renew_now = asyncio.Event()
        self._turn = asyncio.Lock()

    async def load(self) -> None:
        """Read the membership from the files. Raises ConfigError."""
        await self._set(await asyncio.to_thread(self._file.load))

    # --- what the link needs ---------------------------------------------------------------------------

    @property
    def membership(self) -> Membership | None:
        return self._membership

    @property
    def version(self) -> int:
        """Return a number that rises with every change of the membership."""
        return self._version

    async def changed(self, version: int) -> int:
        """Wait until the version differs from this one, and return the new version."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._version != version)
            return self._version

    def credentials(self) -> grpc.ChannelCredentials:
        """Return the current credentials for channels to the nodes' port. Raises StateConflict."""
        return _credentials(self._member())

    def addresses(self) -> tuple[str, ...]:
        """Return ``HOST:PORT`` of each coordinator's nodes' port. Raises StateConflict."""
        return self._member().all_node_addresses

    def server_name(self) -> str:
        """Return the name that the coordinator's certificate must hold. Raises StateConflict."""
        return coordinator_host(self._member().pool)

    def asserter(self) -> Asserter:
        """Return the signer of assertions for this node's users. Raises StateConflict."""
        member = self._member()
        return Asserter(member.speaks, member.pool)

    def trust_generation(self) -> int:
        """Return the generation of the trusted anchors, or 0 if the node is in no pool."""
        return self._membership.generation if self._membership else 0

    async def take_trust(self, trust: link_pb2.NewTrust) -> int:
        """Apply the coordinator's trust message from the link, and return the generation now trusted."""
        async with self._turn:
            member = self._member()
            if trust.generation > member.generation:
                _check_anchors(trust.anchors)
                newer = member.renewed(
                    member.key, member.certificate, trust.anchors.decode(), trust.generation
                )
                await self._keep(newer)
        if trust.renew_now:
            self._renew_now.set()
        return self.trust_generation()

    async def take_coordinators(self, welcome: link_pb2.Welcome) -> None:
        """Keep the addresses of all coordinators that a welcome names; without any, those known stay.

        Raises ConfigError, Unavailable.
        """
        users, nodes = tuple(welcome.addresses), tuple(welcome.node_addresses)
        if not nodes:
            return
        if max(len(users), len(nodes)) > MAX_COORDINATORS:
            raise Unavailable("the coordinator names too many others", hint="are the versions the same?")
        for address in (*users, *nodes):
            read_address(address)
        async with self._turn:
            member = self._member()
            if (member.addresses, member.node_addresses) != (users, nodes):
                await self._keep(replace(member, addresses=users, node_addresses=nodes))
                log.info("pool=%s coordinators=%s", member.pool, joined(nodes))

    def _member(self) -> Membership:
        if self._membership is None:
            raise StateConflict("this node is in no pool", hint="gpushare node join HOST --token-file FILE")
        return self._membership

    # --- joining and leaving ---------------------------------------------------------------------------

    async def join(self, where: str, token: str, name: str) -> Membership:
        """Join a pool by the first of its coordinators that signs. ``where`` is an address, or a list.

        Raises RequestError, PermissionRefused, StateConflict, Unavailable, TimedOut.
        """
        addresses = tuple(map(read_address, divided(where) or (where,)))
        join_token, node = read_join_token(token), node_name(name)
        async with self._turn:
            if self._membership is not None:
                raise StateConflict(
                    f"this node is in the pool {self._membership.pool} already, as {self._membership.node}",
                    hint="to join another one, or this one anew: gpushare node leave",
                )
            keys = self._keys_for(join_token)
            address, answer = await self._first(
                addresses, lambda address: self._request_certificate(address, join_token, node, keys)
            )
            working_first = (address, *addresses)
            membership = Membership(
                pool=join_token.pool,
                node=node,
                address=joined(map(str, working_first)),
                node_address=joined(str(address.at(answer.node_port)) for address in working_first),
                joined_at=self._now(),
                generation=answer.trust.generation,
                anchors=answer.trust.anchors.decode(),
                certificate=answer.certificate.decode(),
                key=key_pem(keys.key).decode(),
                assertion_key=_ed25519_pem(keys.assertion_key),
            )
            await self._keep(membership)
            self._begun = None
        log.info("joined pool=%s node=%s", membership.pool, membership.node)
        return membership

    def _keys_for(self, token: JoinToken) -> _Keys:
        if self._begun is None or self._begun.token != str(token):
            self._begun = _Keys(str(token), new_key(), Ed25519PrivateKey.generate())
        return self._begun

    async def _first(
        self,
        addresses: Iterable[_Address],
        ask: Callable[[_Address], Awaitable[pool_pb2.SignAnswer]],
    ) -> tuple[_Address, pool_pb2.SignAnswer]:
        """Return the first address that answers, and its answer.

        Coordinators that stand by refuse with Unavailable. Raises any other refusal at once.
        """
        errors: list[GpushareError] = []
        for address in addresses:
            try:
                return address, await ask(address)
            except (Unavailable, TimedOut) as error:
                errors.append(error)
        if len(errors) == 1:
            raise errors[0]
        raise Unavailable("; ".join(error.message for error in errors), hint=errors[0].hint)

    async def _request_certificate(
        self, address: Address, token: JoinToken, node: str, keys: _Keys
    ) -> pool_pb2.SignAnswer:
        anchor = await pinned_anchor(address, token, self._now())
        request = pool_pb2.SignRequest(
            node=node, csr=make_csr(keys.key, keys.assertion_key), token=str(token), now=self._now()
        )
        credentials = grpc.ssl_channel_credentials(anchor)
        async with _channel(str(address), credentials, token.pool) as channel:
            answer = await _call(pool_pb2_grpc.JoinStub(channel).Sign, request, str(address))
        _check_answer(answer, node)
        return answer

    async def leave(self) -> Membership | None:
        """Delete the membership, its keys first. Return the previous membership or None.

        Raises ConfigError.
        """
        async with self._turn:
            before = self._membership
            await asyncio.to_thread(self._file.delete)
            await self._set(None)
        if before is not None:
            log.info("left pool=%s node=%s", before.pool, before.node)
        return before

    # --- renewing --------------------------------------------------------------------------------------

    async def renew(self) -> None:
        """Get a new key and certificate now.

        Raises StateConflict, PermissionRefused, Unavailable, TimedOut.
        """
        async with self._turn:
            member, key = self._member(), new_key()
            if self._now() >= member.facts.expires_at:
                raise StateConflict(
                    f"the certificate of node {member.node} has expired, so its pool knows it no more",
                    hint=f"gpushare pool token --node {member.node} there; here gpushare node leave, and "
                    "gpushare node join",
                )
            request = pool_pb2.RenewRequest(csr=make_csr(key, member.speaks), now=self._now())
            _, answer = await self._first(
                member.all_node_addresses, lambda address: _renew(address, member, request)
            )
            _check_answer(answer, member.node)
            newer = member.renewed(
                key_pem(key).decode(),
                answer.certificate.decode(),
                answer.trust.anchors.decode(),
                answer.trust.generation,
            )
            await self._keep(newer)
        log.info("certificate renewed node=%s expires_at=%.0f", newer.node, newer.facts.expires_at)

    async def keep_renewed(self) -> None:
        """Renew for ever: in time, and soon after the coordinator requested it."""
        version, due = -1, 0.0
        while True:
            if version != self._version:
                version, due = self._version, self._renewal()
            requested = await self._renewal_was_requested(min(max(due - self._now(), 0.0), LOOK_SECONDS))
            if self._membership is None or not (requested or self._now() >= due):
                continue
            if requested:
                await asyncio.sleep(self._chance.uniform(0, self._spread_seconds))
            if self._membership is None:
                continue
            try:
                await self.renew()
                self._trouble(None)
            except GpushareError as error:
                self._trouble(f"the node's certificate for its pool is not renewed: {error}")
                due = self._now() + RETRY_SECONDS * self._chance.uniform(1, 2)

    def _renewal(self) -> float:
        """Return when the certificate must be renewed."""
        if self._membership is None:
            return self._now() + LOOK_SECONDS
        facts = self._membership.facts
        part = self._chance.uniform(EARLIEST_RENEWAL, LATEST_RENEWAL)
        return facts.issued_at + (facts.expires_at - facts.issued_at) * part

    async def _renewal_was_requested(self, seconds: float) -> bool:
        """Wait, and return True if the coordinator requested a renewal within the time.

        A change of the membership also ends the wait.
        """
        requested = asyncio.create_task(self._renew_now.wait())
        changed = asyncio.create_task(self.changed(self._version))
        try:
            await asyncio.wait({requested, changed}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (requested, changed):
                task.cancel()
            await asyncio.gather(requested, changed, return_exceptions=True)
        was_requested = self._renew_now.is_set()
        self._renew_now.clear()
        return was_requested

    # --- keeping ---------------------------------------------------------------------------------------

    async def _keep(self, membership: Membership) -> None:
        await asyncio.to_thread(self._file.save, membership)
        await self._set(membership)

    async def _set(self, membership: Membership | None) -> None:
        async with self._changed:
            self._membership = membership
            self._version += 1
            self._changed.notify_all()


def make_csr(key: ec.EllipticCurvePrivateKey, assertion_key: Ed25519PrivateKey) -> bytes:
    """Return a request for a node's certificate; only its keys count, the authority chooses the name."""
    raw = assertion_key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    extension = x509.UnrecognizedExtension(ASSERTION_KEY_OID, raw)
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    request = builder.add_extension(extension, critical=False).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def _ed25519_pem(key: Ed25519PrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def _credentials(member: Membership) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        member.anchors.encode(), member.key.encode(), member.certificate.encode()
    )


async def _renew(address: str, member: Membership, request: pool_pb2.RenewRequest) -> pool_pb2.SignAnswer:
    async with _channel(address, _credentials(member), member.pool) as channel:
        return await _call(pool_pb2_grpc.JoinStub(channel).Renew, request, address)


def _channel(address: str, credentials: grpc.ChannelCredentials, pool: str) -> grpc.aio.Channel:
    options = [
        ("grpc.ssl_target_name_override", coordinator_host(pool)),
        # A site's web proxy must not stand between the machines of a pool.
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    return grpc.aio.secure_channel(address, credentials, options)


async def _call(
    call: Callable[..., Awaitable[pool_pb2.SignAnswer]], request: Message, address: str
) -> pool_pb2.SignAnswer:
    try:
        return await call(request, timeout=CALL_SECONDS)
    except grpc.aio.AioRpcError as error:
        raise error_of(error, f"the coordinator at {address}") from error


def _check_answer(answer: pool_pb2.SignAnswer, node: str) -> None:
    """Check that a trusted coordinator answered this request and no other. Raises Unavailable."""
    _check_anchors(answer.trust.anchors)
    signed_node = read_node_certificate(answer.certificate).node
    if signed_node != node:
        raise Unavailable(
            f"the coordinator signed for {signed_node}, not for {node}", hint="are the versions the same?"
        )


def _check_anchors(pem: bytes) -> None:
    try:
        x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        hint = "are the versions the same?"
        raise Unavailable(f"the coordinator's anchors cannot be read: {error}", hint=hint) from error
