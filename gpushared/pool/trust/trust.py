"""Join all parts of a coordinator's trust: its own certificate, its guard of links, its tokens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc

from gpushared.api.v1 import link_pb2, pool_pb2
from gpushared.domain.jobs.job import NodeName, Owner
from gpushared.domain.model.errors import GpushareError, PermissionRefused, RequestError, StateConflict
from gpushared.domain.model.units import first_few
from gpushared.net.call_audit import CallAudit
from gpushared.net.call_checks import CallAuthenticator
from gpushared.pool.trust.api_tokens import ApiTokens
from gpushared.pool.trust.authority import NODE_SECONDS, Authority, key_pem, new_key
from gpushared.pool.trust.callers import Callers
from gpushared.pool.trust.certificate_status import LEDGER_FILE, CertificateStatus, LedgerMember, SignatureLog
from gpushared.pool.trust.certificates import pem_of
from gpushared.pool.trust.node_enrolment import Enrolled, JoinTokens, NodeEnrolment
from gpushared.pool.trust.people import People
from gpushared.pool.trust.shared_trust import TRUST, SharedTrust
from gpushared.pool.trust.token_records import TOKENS
from gpushared.ports.job_store import JobStore

log = logging.getLogger(__name__)

CA_FOLDER = "ca"
LOOK_SECONDS = 10.0
SHOWN = 5
FOLLOW_SECONDS = 0.2
"""Changes that another coordinator makes within this time are read together."""
REISSUE_SECONDS = 10 * 24 * 3600
"""Reissue the certificate after a third of its life."""


async def ignore_new_member(_: NodeName, __: tuple[str, ...]) -> None:
    """Ignore new members, in tests without a store of members."""


class PoolTrust:
    """Join the parts. Each call reads ``people`` again, so that a reload takes effect at once.

    ``store`` keeps the tokens. ``epoch`` returns the coordinator's epoch; the coordinator must lead before
    ``running`` begins.
    """

    def __init__(
        self,
        state_dir: Path,
        store: JobStore,
        *,
        epoch: Callable[[], int],
        people: Callable[[], People],
        now: Callable[[], float],
        hosts: Sequence[str] = (),
        enrolled: Enrolled = ignore_new_member,
        authenticator: CallAuthenticator | None = None,
        audit: CallAudit | None = None,
        node_seconds: int = NODE_SECONDS,
        is_shared: bool = False,
    ) -> None:
        """Raises ConfigError if the authority is missing or cannot be read.

        With ``is_shared`` the store has the authority for all coordinators.
        """
        folder = state_dir / CA_FOLDER
        self._epoch = epoch
        self.now = now
        self.people = people
        self.authority = Authority.load(folder, node_seconds)
        self.ledger = SignatureLog(folder / LEDGER_FILE)
        self.certificate_status = CertificateStatus(self.authority, self.ledger)
        self.join_tokens = JoinTokens(store, epoch, self.pool, lambda: self.authority.digest)
        self.api_tokens = ApiTokens(store, epoch)
        self.callers = Callers(
            pool=self.pool,
            certificate_status=self.certificate_status,
            tokens=self.api_tokens,
            people=people,
            now=now,
            authenticator=authenticator,
            audit=audit,
        )
        self.guard = LinkGuard(self.authority, self.ledger, self.certificate_status, self.callers, now)
        self.shared = SharedTrust(folder, self.authority, self.ledger, store, epoch) if is_shared else None
        self._must_read_again = asyncio.Event()
        self._reading = asyncio.Lock()
        self._leads = False
        self.enrolment = NodeEnrolment(
            self.authority,
            self.ledger,
            self.certificate_status,
            self.join_tokens,
            now,
            enrolled,
            lambda: people().named_realms,
            self.shared,
        )
        self.identity = ServerIdentity(self.authority, hosts, now())
        self.anchors_changed: Callable[[], None] = lambda: None
        """This is called when nodes must receive the trusted anchors (``guard.trust``)."""

    def on_invalid(self, tell: Callable[[NodeName, GpushareError], None]) -> None:
        """Set the callback (``LinkService.drop``) that ends a node's stream when its certificate becomes invalid."""
        self.certificate_status.on_invalid = tell

    @property
    def pool(self) -> str:
        return self.authority.pool

    def anchors_message(self, now: float) -> pool_pb2.Trust:
        """Return the anchors as ``Join`` and ``PoolAdmin`` answer with them; they are no secret."""
        return pool_pb2.Trust(
            pool=self.pool,
            anchors=self.authority.anchors_pem,
            generation=self.authority.generation,
            now=now,
        )

    def members(self) -> dict[NodeName, LedgerMember]:
        """Return all enrolled nodes that were not expelled, also nodes that the store has forgotten."""
        return self.ledger.members()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Load the tokens, and keep the certificate and the checks current while the block runs."""
        await self.load()
        keepers = [asyncio.create_task(self._keep_current()), asyncio.create_task(self._follow())]
        try:
            yield
        finally:
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)
            with suppress(GpushareError):
                await self._note_use()

    # --- changes of other coordinators -----------------------------------------------------------------

    async def load(self) -> None:
        """Read from the store what another coordinator may have written. Raises the store's errors, ConfigError."""
        async with self._reading:
            await self._load()

    async def _load(self) -> None:
        await self.api_tokens.load()
        if self.shared is not None and await self.shared.load():
            self._tell_anchors()
        self.certificate_status.look_again(self.now())

    async def begin(self, epoch: int) -> None:
        """Read what other coordinators wrote, then store what only this one has. Raises as ``load``.

        From now on only this coordinator writes, and reads no more: reading could undo its own new changes.
        """
        self._leads = True
        await self.load()
        if self.shared is not None:
            await self.shared.begin(epoch)

    def note_change(self, key: str) -> None:
        """Note that another coordinator changed the record of this key; an empty key means any record."""
        if not key or key.startswith((TOKENS, TRUST)):
            self._must_read_again.set()

    async def _follow(self) -> None:
        while True:
            await self._must_read_again.wait()
            self._must_read_again.clear()
            try:
                async with self._reading:
                    if self._leads:
                        return
                    await self._load()
            except GpushareError as error:
                log.warning("tokens and certificates of the pool are not read again: %s", error)
            await asyncio.sleep(FOLLOW_SECONDS)

    async def _note_use(self) -> None:
        if self._epoch():
            await self.api_tokens.note_use()

    async def _keep_current(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = self.now()
            self.certificate_status.look_again(now)
            self.identity.refresh(now)
            try:
                await self._note_use()
            except GpushareError as error:
                log.warning("the last use of tokens is not written down: %s", error)

    # --- replacing the authority -----------------------------------------------------------------------

    async def begin_rotation(self) -> tuple[str, ...]:
        """Trust a new anchor beside the old one, and request that all nodes renew their certificates."""
        await asyncio.shield(self._change_anchors(self.authority.begin_rotation))
        members = self.members()
        return (
            "a new authority is trusted beside the old one",
            f"{len(members)} nodes get new certificates as they are connected",
            "when all have one: gpushare pool rotate-ca --finish",
        )

    async def finish_rotation(self) -> tuple[str, ...]:
        """Drop the old anchor. Raises StateConflict while members have certificates of it."""
        behind = self.nodes_behind()
        if self.authority.rotating and behind:
            raise StateConflict(
                f"nodes without a certificate of the new authority: {first_few(behind, SHOWN)}",
                hint="they get one when they are connected; for a node that will not come back: "
                f"gpushare node forget {behind[0]} --is-off",
            )
        await asyncio.shield(self._change_anchors(lambda _: self.authority.finish_rotation()))
        return ("the old authority is no longer trusted, and join tokens made before are void",)

    def nodes_behind(self) -> list[NodeName]:
        """Return the members whose newest certificate is of an anchor that is being dropped."""
        signing = self.authority.signing
        return sorted(node for node, member in self.members().items() if member.authority != signing)

    async def _change_anchors(self, change: Callable[[float], None]) -> None:
        """Change the anchors and tell all, also if the caller leaves meanwhile."""
        await self.enrolment.change_anchors(change)
        self._tell_anchors()

    def _tell_anchors(self) -> None:
        self.identity.replace(self.now())
        self.anchors_changed()


class LinkGuard:
    """Identify nodes for ``LinkService``; a node counts by the certificate that it presented last."""

    def __init__(
        self,
        authority: Authority,
        ledger: SignatureLog,
        certificate_status: CertificateStatus,
        callers: Callers,
        now: Callable[[], float],
    ) -> None:
        self._authority = authority
        self._ledger = ledger
        self._certificate_status = certificate_status
        self._callers = callers
        self._now = now

    @property
    def pool(self) -> str:
        return self._authority.pool

    def node_of(self, auth: Mapping[str, Iterable[bytes]]) -> NodeName:
        """Return the node that connects. Raises PermissionRefused."""
        certificate = self._callers.certificate_of(auth)
        self._certificate_status.note(certificate)
        return certificate.node

    def owner_of(self, node: NodeName, assertion: bytes, digest: bytes) -> Owner:
        """Return the user whom a connected node asserts. Raises PermissionRefused, LimitReached."""
        certificate = self._certificate_status.noted(node)
        if certificate is None:
            raise PermissionRefused(
                f"node {node} has shown no certificate that counts", hint="it connects anew by itself"
            )
        self._certificate_status.check(certificate, self._now())
        return self._callers.asserted(certificate, assertion, digest).owner

    def owner_named(self, principal: str) -> Owner:
        """Return the user of that name, whom no node has asserted. Raises RequestError."""
        return self._callers.owner_named(principal)

    def local_owner(self, node: NodeName, user: str, realm: str) -> str:
        """Return the person in the pool that a node's own user is, by the realm that the node names.

        A realm for which the node may not speak is taken for the node's own.
        """
        certificate = self._certificate_status.noted(node)
        if certificate is None or not certificate.may_assert(realm):
            realm = node
        principal = f"{user}@{realm}"
        try:
            return self._callers.owner_named(principal).person
        except RequestError:
            return principal  # such a name cannot submit to the pool, and yet may hold a lease

    def newer_trust(self, node: NodeName, generation: int) -> link_pb2.NewTrust | None:
        """Return the newer anchors for a node, and state if the node must renew its certificate now.

        Return None if the node has the newest of both.
        """
        member = self._ledger.member(node)
        outdated = member is None or member.authority != self._authority.signing
        if generation >= self._authority.generation and not outdated:
            return None
        return self.trust(renew_now=outdated)

    def trust(self, *, renew_now: bool) -> link_pb2.NewTrust:
        """Return the message with the anchors to trust now, for ``LinkService.send_trust``."""
        return link_pb2.NewTrust(
            anchors=self._authority.anchors_pem,
            generation=self._authority.generation,
            renew_now=renew_now,
        )


class ServerIdentity:
    """Hold the server's key and certificate. The key never leaves the process.

    The authority is on this machine, so that each start can sign a new certificate.
    """

    def __init__(self, authority: Authority, hosts: Sequence[str], now: float) -> None:
        self._authority = authority
        self._hosts = tuple(hosts)
        self._version = 0
        self._made_at = now
        self._configuration = self._new_configuration(now)

    def refresh(self, now: float) -> None:
        """Replace an old certificate; replace it also if the clock jumped to before its start."""
        if not 0 <= now - self._made_at < REISSUE_SECONDS:
            self.replace(now)

    def replace(self, now: float) -> None:
        """Sign a new certificate, and use it and the now trusted anchors for all new connections."""
        self._configuration = self._new_configuration(now)
        self._made_at = now
        self._version += 1

    def _new_configuration(self, now: float) -> grpc.ServerCertificateConfiguration:
        key = new_key()
        certificate = self._authority.sign_coordinator(key.public_key(), self._hosts, now)
        return grpc.ssl_server_certificate_configuration(
            [(key_pem(key), pem_of(certificate))], root_certificates=self._authority.anchors_pem
        )

    def for_users(self) -> grpc.ServerCredentials:
        """Return credentials for the port of users with tokens and joining nodes, who need no certificate."""
        return self._credentials(asks_clients=False)

    def for_nodes(self) -> grpc.ServerCredentials:
        """Return credentials for the port where clients need a certificate that the pool's authority signed.

        The port is separate, because grpc's servers require a certificate of all clients or of none.
        """
        return self._credentials(asks_clients=True)

    def _credentials(self, *, asks_clients: bool) -> grpc.ServerCredentials:
        return grpc.dynamic_ssl_server_credentials(
            self._configuration,
            self._newer_than_given(),  # type: ignore[arg-type]  # grpc takes None for "as before"
            require_client_authentication=asks_clients,
        )

    def _newer_than_given(self) -> Callable[[], grpc.ServerCertificateConfiguration | None]:
        """Return the function that grpc calls at each handshake in its own thread; None means no change."""
        given_version = self._version

        def newer() -> grpc.ServerCertificateConfiguration | None:
            nonlocal given_version
            if given_version == self._version:
                return None
            given_version = self._version
            return self._configuration

        return newer
