"""Decide who calls the coordinator and for what. No other module decides this; other calls are refused.

- On the nodes' port each connection has a node's certificate. Calls of the link are the node's own; calls of
  `Jobs` carry the node's signed assertion for the user who asks.
- On the users' port no connection has a certificate; a call carries an API token, or is one of `Join`.
- On the unix socket the kernel names the caller; root and the trusted groups are the pool's admins.
- A browser's user has logged in with an API token, or is named by a proxy that the configuration trusts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, TypeVar

from google.protobuf.message import Message

from gpushared.domain.jobs.job import ROOT, NodeName, Owner
from gpushared.domain.model.errors import GpushareError, NotLeader, PermissionRefused, RequestError
from gpushared.domain.model.request import Caller
from gpushared.jobs.standby import Standby
from gpushared.net.call_audit import Asker, CallAudit
from gpushared.net.call_checks import CallAuthenticator, Context, abort
from gpushared.net.intake import Admitted, CallsUnderWay
from gpushared.net.limits import host_of
from gpushared.pool.trust.api_tokens import ApiTokens
from gpushared.pool.trust.assertions import ASSERTION_METADATA, AssertionCheck, request_digest
from gpushared.pool.trust.certificate_status import CertificateStatus, ProofCheck
from gpushared.pool.trust.certificates import NodeCertificate, read_node_certificate
from gpushared.pool.trust.people import People, split_principal
from gpushared.pool.trust.token_records import ApiRecord, Scope, read_api_token
from gpushared.storage.audit.line import NOBODY_HERE

AUTHORIZATION = "authorization"
BEARER = "Bearer "
ALL_SCOPES = frozenset(Scope)
OPEN_TO_STRANGERS = ("/gpushare.v1.Join/", "/grpc.health.v1.Health/")
AGE_METADATA = "gpushare-age-seconds"
"""A coordinator that stands by adds to each answer how old the answer is."""
ANSWERED_BY_ALL = frozenset(
    {
        *("Jobs/Get", "Jobs/List", "Jobs/Wait", "Jobs/Explain", "Jobs/Nodes", "Jobs/Watch"),
        *("PoolAdmin/Status", "PoolAdmin/Anchors", "Audit/List"),
    }
)
"""A coordinator that stands by answers these calls; only the leader answers all others."""
MAX_AGE_SECONDS = 300.0
SHARE_OF_A_NODE = 4
"""A node gets a larger share because it calls for all of its users."""
CALLS_OF_A_PRINCIPAL = 1024
"""Bound a principal's calls under way over all nodes and tokens; a node bounds its own users likewise."""

_Request = TypeVar("_Request", bound=Message)
_Answer = TypeVar("_Answer")


def _always(_: float) -> GpushareError | None:
    """Return no fault: the kernel's statement about the caller stays valid."""
    return None


@dataclass(frozen=True, slots=True)
class PoolCaller:
    """Hold the caller of a request. ``node`` asserts the caller; None means a token or the unix socket.

    ``owner.admin`` is ``is_admin``: a token without the scope admin makes nobody an admin.
    """

    owner: Owner
    node: NodeName | None
    scopes: frozenset[Scope]
    is_admin: bool
    groups: tuple[str, ...] = ()
    proof_check: ProofCheck = field(default=_always, compare=False, repr=False)
    """Return later if the caller's certificate or token has become invalid."""

    def require(self, scope: Scope) -> None:
        """Raises PermissionRefused if the caller's token lacks this scope."""
        if scope not in self.scopes and not self.is_admin:
            scopes = ",".join(each for each in Scope if each in self.scopes or each is scope)
            raise PermissionRefused(
                f"this token of {self.owner.person} is not for that: it lacks the scope {scope}",
                hint=f"gpushare pool api-token --person {self.owner.person} --scope {scopes}",
            )

    def require_admin(self) -> None:
        """Raises PermissionRefused if the caller is no admin."""
        if not self.is_admin:
            raise PermissionRefused(
                f"only admins of the pool may do that, and {self.owner.person} is none here",
                hint="on the coordinator's machine root may; others: [users.NAME] admin = true, and for a "
                "token --scope admin",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonCaller(Caller):
    """Identify a browser's user, a person of the pool, who needs no account on this machine.

    ``token`` is the id of the API token with which the browser logged in; a proxy's user has none.
    """

    token: str = ""


class Callers:
    """Identify callers.

    ``people`` and ``now`` are called anew each time; ``authenticator`` serves the unix socket.
    """

    def __init__(
        self,
        *,
        pool: str,
        certificate_status: CertificateStatus,
        tokens: ApiTokens,
        people: Callable[[], People],
        now: Callable[[], float],
        authenticator: CallAuthenticator | None = None,
        audit: CallAudit | None = None,
    ) -> None:
        self._audit = audit or CallAudit()
        self._pool = pool
        self._certificate_status = certificate_status
        self._tokens = tokens
        self._people = people
        self._now = now
        self._authenticator = authenticator
        self._assertions = AssertionCheck(pool)
        self._calls = CallsUnderWay(CALLS_OF_A_PRINCIPAL)
        self.standby: Callable[[], Standby | None] = lambda: None
        """Return how the coordinator stands by, or None while it leads."""
        self.note_admitted: Callable[[str, str], None] = lambda _, __: None
        """This is called for each call of a token or a node, with the peer's address and the caller's counted name."""

    async def caller_of(self, context: Context[Any, Any], message: Message) -> PoolCaller:
        """Return the caller of this request, by a node's assertion, a token, or the kernel's statement.

        Raises PermissionRefused. ``message`` is the request, or the first message of a stream.
        """
        if _first(context.auth_context(), "x509_pem_cert"):
            node = self.node_of(context)
            signed = _metadata(context, ASSERTION_METADATA)
            if not isinstance(signed, bytes):
                raise PermissionRefused(
                    f"node {node.node} asks without saying for which of its users",
                    hint="ask the node's own daemon; it adds its signed word",
                )
            return self.asserted(node, signed, request_digest(message))
        if _is_remote(context):
            return self._bearer(_metadata(context, AUTHORIZATION))
        if self._authenticator is None:
            raise PermissionRefused(
                "the caller of this connection cannot be identified", hint="use TLS, or the unix socket"
            )
        return self.local(await self._authenticator.caller_of(context))

    def admitted(self, name: str, context: Context[Any, Any]) -> Admitted:
        """Return the caller as known before the message is read. Raises PermissionRefused.

        A call that is open to strangers needs no certificate or token.
        """
        if name.startswith(OPEN_TO_STRANGERS):
            return Admitted(host_of(context.peer()))
        auth = context.auth_context()
        if _first(auth, "x509_pem_cert"):
            caller = Admitted(f"node {self.node_of(context).node}", share=SHARE_OF_A_NODE)
        else:
            caller = Admitted(f"API token {self._recognised(_metadata(context, AUTHORIZATION)).id}")
        self.note_admitted(context.peer(), caller.name)
        return caller

    def node_of(self, context: Context[Any, Any]) -> NodeCertificate:
        """Return the node whose certificate the connection has, if the certificate is valid now.

        Raises PermissionRefused if the certificate is missing, of another pool, expired, revoked, or of a
        dropped authority.
        """
        return self.certificate_of(context.auth_context())

    def certificate_of(self, auth: Mapping[str, Iterable[bytes]]) -> NodeCertificate:
        """Return the node's certificate from the TLS facts of the connection (grpc's ``auth_context``).

        Raises PermissionRefused like ``node_of``.
        """
        pem = _first(auth, "x509_pem_cert")
        if not pem:
            raise PermissionRefused(
                "only nodes of the pool may do that, and this connection has no certificate of one",
                hint="nodes dial the nodes' port, with what `gpushare node join` gave them",
            )
        node = read_node_certificate(pem)
        self._certificate_status.check(node, self._now())
        return node

    def asserted(self, node: NodeCertificate, signed: bytes, digest: bytes) -> PoolCaller:
        """Return the user whom a node asserts, for a request of that digest.

        Raises PermissionRefused, LimitReached.
        """
        assertion = self._assertions.believe(signed, node, digest, self._now())
        owner = self._people().owner(assertion.principal)
        if owner.name == ROOT:
            owner = replace(owner, root_of=node.node)
        proof_check = self._certificate_status.proof_check(node)
        return PoolCaller(owner, node.node, ALL_SCOPES, owner.admin, assertion.groups, proof_check)

    def owner_named(self, principal: str) -> Owner:
        """Return the owner of a job by the name alone, which makes nobody an admin. Raises RequestError."""
        user, realm = split_principal(principal)
        people = self._people()
        if realm == self._pool and principal not in people.persons:
            return Owner(principal, user)
        return replace(people.owner(principal), admin=False)

    def local(self, caller: Caller) -> PoolCaller:
        """Return the caller for a user of the coordinator's unix socket. Raises PermissionRefused."""
        if not caller.trusted:
            raise PermissionRefused(
                f"{caller.name} may not administer the pool",
                hint="root may, and members of the groups in coordinator.trusted_groups; jobs are submitted "
                "on a node, or with an API token",
            )
        principal = f"{caller.name}@{self._pool}"
        return PoolCaller(Owner(principal, caller.name, admin=True), None, ALL_SCOPES, is_admin=True)

    # --- browsers

    def logged_in(self, secret: str) -> PersonCaller:
        """Return the user of an API token's secret words. Raises PermissionRefused."""
        return self.token_caller(self._tokens.recognise(read_api_token(secret), self._now()).id)

    def token_caller(self, token: str) -> PersonCaller:
        """Return the user of a token that logged in before. Raises PermissionRefused if it counts no more."""
        caller = self._speaking_for(self._tokens.record(token, self._now()))
        return _person_caller(caller, token)

    def named_caller(self, name: str) -> PersonCaller:
        """Return the user whom a proxy names. Raises PermissionRefused."""
        return _person_caller(self._named(name))

    def of_json(self, caller: Caller) -> PoolCaller:
        """Return the caller of a call in JSON: a browser's user, or one of the unix socket.

        Raises PermissionRefused.
        """
        if not isinstance(caller, PersonCaller):
            return self.local(caller)
        if caller.token:
            return self._speaking_for(self._tokens.record(caller.token, self._now()))
        return self._named(caller.name)

    def _named(self, name: str) -> PoolCaller:
        if name.partition("@")[0] == ROOT:
            raise PermissionRefused(
                "a proxy cannot say that its user is root", hint="root sees the page by `gpushare web --pool`"
            )
        try:
            owner = self._owner(name)
        except RequestError as error:
            raise PermissionRefused(error.message, hint=error.hint) from error
        return PoolCaller(owner, None, ALL_SCOPES, owner.admin)

    # --- tokens

    def _bearer(self, header: str | bytes | None) -> PoolCaller:
        return self._speaking_for(self._recognised(header))

    def _recognised(self, header: str | bytes | None) -> ApiRecord:
        if not isinstance(header, str) or not header.startswith(BEARER):
            raise PermissionRefused(
                "this call has no API token",
                hint="send the metadata authorization: Bearer gsp_...; `gpushare pool api-token` makes one",
            )
        return self._tokens.recognise(read_api_token(header.removeprefix(BEARER)), self._now())

    def _speaking_for(self, record: ApiRecord) -> PoolCaller:
        """Return the caller for a token. A person without a realm belongs to the pool's own realm.

        A node asserts users of that realm only if its join token gave it the realm.
        """
        owner = self._owner(record.person)
        is_admin = owner.admin and Scope.ADMIN in record.scopes
        return PoolCaller(
            replace(owner, admin=is_admin),
            None,
            frozenset(record.scopes),
            is_admin,
            proof_check=lambda now: self._tokens.problem(record.id, now),
        )

    def _owner(self, person: str) -> Owner:
        """Return a person as the owner of jobs. Raises RequestError if the text is no person."""
        people = self._people()
        if "@" in person:
            return people.owner(person)
        return Owner(f"{person}@{self._pool}", person, person in people.admins)

    async def unary(
        self,
        call: Callable[[_Request, PoolCaller], Awaitable[_Answer]],
        message: _Request,
        context: Context[Any, Any],
        name: str = "",
    ) -> _Answer:
        """Answer a call together with its caller; an error of the tree becomes the gRPC status.

        ``name`` leaves out the API's name. A call may wait for long; it ends when the caller's token or
        certificate becomes invalid.
        """
        caller: PoolCaller | None = None
        try:
            caller = await self.caller_of(context, message)
            self.check_answers(name, is_remote=_is_remote(context))
            with self.watching(caller) as gone:
                answer = await unless(gone, call(message, caller))
        except NotLeader as error:
            await abort(context, error)
        except GpushareError as error:
            await self.refuse(name, message, caller, context, error)
        self._audit.answered(name, message, await self._asker(caller, context), answer)
        if (standby := self.standby()) is not None:
            context.set_trailing_metadata(((AGE_METADATA, f"{standby.age_seconds():.1f}"),))
        return answer

    def check_answers(self, name: str, *, is_remote: bool = False) -> None:
        """Raises NotLeader if only the leader answers this call, and this coordinator stands by.

        Callers with tokens and certificates are refused, too, once this coordinator may long not have heard
        that these were revoked.
        """
        standby = self.standby()
        if standby is None:
            return
        if name not in ANSWERED_BY_ALL or (is_remote and standby.age_seconds() > MAX_AGE_SECONDS):
            raise standby.refusal()

    async def refuse(
        self,
        name: str,
        message: Message | None,
        caller: PoolCaller | None,
        context: Context[Any, Any],
        error: GpushareError,
    ) -> NoReturn:
        """End a call with an error of the tree, and write it to the audit.

        ``caller`` is None for an unknown caller.
        """
        self._audit.refused(name, message, await self._asker(caller, context), error)
        await abort(context, error)

    async def refuse_unread(self, path: str, context: Context[Any, Any], error: GpushareError) -> NoReturn:
        """End a call whose message was not read. ``path`` is gRPC's, as ``/gpushare.v1.Jobs/Get``."""
        await self.refuse(path.rpartition(".")[2], None, None, context, error)

    async def _asker(self, caller: PoolCaller | None, context: Context[Any, Any]) -> Asker:
        """Return the name for the audit. An unidentified caller gets the name of its node or address."""
        if not _is_remote(context):
            return (
                Asker(NOBODY_HERE, "")
                if self._authenticator is None
                else await self._authenticator.asker_of(context)
            )
        host, auth = host_of(context.peer()), context.auth_context()
        if _first(auth, "x509_pem_cert"):
            node = _node_in(auth) or host
            return Asker(NOBODY_HERE, caller.owner.principal if caller else node, note=f"by {node}")
        if caller is None:
            return Asker(NOBODY_HERE, host)
        return Asker(NOBODY_HERE, caller.owner.principal, note=f"by an API token, from {host}")

    async def stream(
        self,
        call: Callable[[_Request, PoolCaller], AsyncIterator[_Answer]],
        message: _Request,
        context: Context[Any, Any],
        name: str = "",
    ) -> AsyncGenerator[_Answer, None]:
        """Answer a call with a stream, which ends when the caller's token or certificate becomes invalid.

        An error of the tree becomes the gRPC status, as in ``unary``.
        """
        caller: PoolCaller | None = None
        try:
            caller = await self.caller_of(context, message)
            self.check_answers(name, is_remote=_is_remote(context))
            with self.watching(caller) as gone:
                async with contextlib.aclosing(until(gone, call(message, caller))) as answers:
                    async for answer in answers:
                        yield answer
        except NotLeader as error:
            await abort(context, error)
        except GpushareError as error:
            await self.refuse(name, message, caller, context, error)

    @contextlib.contextmanager
    def watching(self, caller: PoolCaller) -> Iterator[asyncio.Future[GpushareError]]:
        """Count and watch an open call of the caller; the future gets the reason to close the call.

        Raises LimitReached if the caller has too many calls.
        """
        with (
            self._calls.of(caller.owner.principal),
            self._certificate_status.watching(caller.proof_check) as gone,
        ):
            yield gone


def _person_caller(caller: PoolCaller, token: str = "") -> PersonCaller:
    return PersonCaller(NOBODY_HERE, NOBODY_HERE, caller.owner.person, trusted=caller.is_admin, token=token)


async def unless(gone: asyncio.Future[GpushareError], work: Awaitable[_Answer]) -> _Answer:
    """Return the result of the work, or raise the error in ``gone`` if that comes first."""
    task = asyncio.ensure_future(work)
    both: set[asyncio.Future[Any]] = {task, gone}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            raise gone.result()
        return task.result()
    finally:
        await _over(task)


async def until(
    gone: asyncio.Future[GpushareError], answers: AsyncIterator[_Answer]
) -> AsyncGenerator[_Answer, None]:
    """Yield the answers until they end, or raise the error in ``gone`` if that comes first."""
    while True:
        following = asyncio.ensure_future(anext(answers))
        both: set[asyncio.Future[Any]] = {following, gone}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                raise gone.result()
            yield following.result()
        except StopAsyncIteration:
            return
        finally:
            await _over(following)


async def _over(work: asyncio.Future[Any]) -> None:
    """Cancel the work and retrieve its error, because no other code does so after the caller has gone."""
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


def _is_remote(context: Context[Any, Any]) -> bool:
    return _first(context.auth_context(), "transport_security_type") == b"ssl"


def _first(auth: Mapping[str, Iterable[bytes]], name: str) -> bytes:
    """Return a property of a connection, or empty bytes if the connection does not have the property."""
    return next(iter(auth.get(name, ())), b"")


def _node_in(auth: Mapping[str, Iterable[bytes]]) -> str:
    """Return ``node ws1`` from the connection's certificate, or an empty string if there is none."""
    try:
        return f"node {read_node_certificate(_first(auth, 'x509_pem_cert')).node}"
    except GpushareError:
        return ""


def _metadata(context: Context[Any, Any], name: str) -> str | bytes | None:
    """Return the value that a call has exactly once; a value given twice counts as none."""
    values = [value for key, value in context.invocation_metadata() or () if key == name]
    return values[0] if len(values) == 1 else None
