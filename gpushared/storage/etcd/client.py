"""Call etcd's members: one serves until it fails, then the next; certificates and tokens are renewed.

A call that may have been carried out is never sent twice, unless it may be repeated.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import grpc

from gpushared.api.etcd import rpc_pb2, rpc_pb2_grpc
from gpushared.domain.model.errors import GpushareError
from gpushared.ports.job_store import StoreUnavailable
from gpushared.storage.etcd.access import EtcdAccess, FileStamp
from gpushared.storage.etcd.failures import EtcdFailure, FailureKind

log = logging.getLogger(__name__)

T = TypeVar("T")

CALL_SECONDS = 8.0
"""Ask members in turns for this long; an election of etcd takes one to two seconds."""
MEMBER_SECONDS = 2.5
"""Ask another member if one does not answer a call that may be repeated."""
WRITE_SECONDS = 5.0
"""A write that is not answered by then has an unknown outcome."""
CONNECT_SECONDS = 1.5
SLOW_SECONDS = 1.0
"""Prefer another member after an answer that took longer: one slow disk makes only its own member slow."""
PAUSE_SECONDS = 0.2
"""Pause after all members have failed in a row."""
OLD_CHANNEL_SECONDS = 10.0
"""Calls on channels with replaced certificates may go on for this long."""
MAX_ANSWER_BYTES = 32 * 1024 * 1024
QUIET_SECONDS = 5.0
"""Ask a member how far it is after so long without a change: gRPC's own pings did not find a stopped member in
30 s."""
OPTIONS: list[tuple[str, str | int]] = [
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Else an attempt to connect goes on for 20 s.
    ("grpc.min_reconnect_backoff_ms", int(CONNECT_SECONDS * 1000)),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
]
WITH_LEADER = ("hasleader", "true")
"""etcd then refuses a call, and ends a stream, on a member that knows no leader."""
OLDEST = (3, 4)
LOSING_DATA = frozenset({(3, 5, 0), (3, 5, 1), (3, 5, 2)})
"""These versions may lose data when they are killed (https://github.com/etcd-io/etcd/issues/13766)."""
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")

Metadata = tuple[tuple[str, str], ...]
WatchCall = grpc.aio.StreamStreamCall[rpc_pb2.WatchRequest, rpc_pb2.WatchResponse]


class Member:
    """Hold the channel to one member of etcd."""

    def __init__(self, endpoint: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.endpoint = endpoint
        self.channel = (
            grpc.aio.insecure_channel(endpoint, options=OPTIONS)
            if credentials is None
            else grpc.aio.secure_channel(endpoint, credentials, options=OPTIONS)
        )
        self.kv = rpc_pb2_grpc.KVStub(self.channel)
        self.lease = rpc_pb2_grpc.LeaseStub(self.channel)
        self.watch = rpc_pb2_grpc.WatchStub(self.channel)
        self.maintenance = rpc_pb2_grpc.MaintenanceStub(self.channel)
        self.auth = rpc_pb2_grpc.AuthStub(self.channel)
        self.is_checked = False

    async def status(self, token: str) -> rpc_pb2.StatusResponse:
        """Ask the member alone, whether it knows a leader or not. Raises EtcdFailure."""
        with translated(nothing_happened=True):
            return await self.maintenance.Status(
                rpc_pb2.StatusRequest(), metadata=_with_token(token), timeout=MEMBER_SECONDS
            )

    async def connect(self) -> None:
        """Connect if there is no connection. Raises EtcdFailure."""
        state = self.channel.get_state(try_to_connect=True)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                while state is not grpc.ChannelConnectivity.READY:
                    if state is grpc.ChannelConnectivity.SHUTDOWN:
                        raise _unreachable("its channel was closed")
                    if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                        raise _unreachable(f"it cannot be reached: {await self._reason()}")
                    await self.channel.wait_for_state_change(state)
                    state = self.channel.get_state(try_to_connect=True)
        except TimeoutError:
            raise _unreachable("no connection in time") from None
        except grpc.aio.UsageError:
            raise _unreachable("its channel was closed") from None

    async def _reason(self) -> str:
        """Return why there is no connection; only a call says that, which then is not sent."""
        try:
            await self.status("")
        except EtcdFailure as failure:
            return failure.text.rpartition("last error: ")[2].removeprefix("UNKNOWN: ")
        return "it can be by now"


MemberCall = Callable[[Member, Metadata, float], Awaitable[T]]


class EtcdClient:
    """Call etcd. Calls raise the errors of ``JobStore``; with ``TimedOut`` a write may have happened."""

    def __init__(self, access: EtcdAccess, *, call_seconds: float = CALL_SECONDS) -> None:
        self._access = access
        self._call_seconds = call_seconds
        self._members: list[Member] = []
        self._first = 0
        """The index of the member that served last."""
        self._logged_failures: dict[str, str] = {}
        """By endpoint, why the member did not serve; the log has each reason once until the member serves."""
        self._stamps: tuple[FileStamp, ...] = ()
        self._credentials: grpc.ChannelCredentials | None = None
        self._token = ""
        self._cluster = 0
        """The id of the cluster to which the members belong."""
        self._renewing = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def call(
        self,
        ask: MemberCall[T],
        *,
        repeatable: bool = True,
        seconds: float | None = None,
        member_seconds: float | None = None,
    ) -> T:
        """Ask one member after the other until one answers, each for ``member_seconds``."""
        member_seconds = member_seconds or (MEMBER_SECONDS if repeatable else WRITE_SECONDS)
        clock = asyncio.get_running_loop().time
        ends_at = clock() + (seconds or self._call_seconds)
        failures = 0
        while True:
            member = await self._current_member()
            began = clock()
            try:
                answer = await self._ask(member, ask, min(member_seconds, ends_at - began))
            except EtcdFailure as failure:
                failure.nothing_happened |= repeatable
                if failure.kind is FailureKind.MEMBER:
                    self._leave_failed(member, failure)
                    failures += 1
                if (
                    failure.kind is not FailureKind.MEMBER
                    or not failure.nothing_happened
                    or clock() >= ends_at
                ):
                    raise self._error(failure, member) from failure
            else:
                if clock() - began > SLOW_SECONDS:
                    self._leave(member, "it is slow")
                else:
                    self._logged_failures.pop(member.endpoint, None)
                return answer
            if failures % len(self._members) == 0:
                await asyncio.sleep(PAUSE_SECONDS)
                await self.renew_certificates()

    async def transact(self, request: rpc_pb2.TxnRequest, *, repeatable: bool = True) -> rpc_pb2.TxnResponse:
        """Send a transaction, which etcd carries out as a whole or not at all."""

        async def ask(member: Member, metadata: Metadata, seconds: float) -> rpc_pb2.TxnResponse:
            return await member.kv.Txn(request, metadata=metadata, timeout=seconds)

        return await self.call(ask, repeatable=repeatable)

    async def watch(
        self, request: Callable[[], rpc_pb2.WatchRequest]
    ) -> AsyncIterator[rpc_pb2.WatchResponse]:
        """Yield answers to a watch; begin anew with ``request()`` at another member when one fails."""
        clock = asyncio.get_running_loop().time
        ends_at, renewed = clock() + self._call_seconds, False
        while True:
            member = await self._current_member()
            try:
                await member.connect()
                async for response in self._watch_at(member, request()):
                    ends_at, renewed = clock() + self._call_seconds, False
                    yield response
            except EtcdFailure as failure:
                # etcd 3.4 tells a watch with an old token that it is not permitted (v3rpc/watch.go).
                if (
                    failure.kind in {FailureKind.TOKEN, FailureKind.DENIED}
                    and self._access.user
                    and not renewed
                ):
                    renewed, self._token = True, ""
                    continue
                failure.nothing_happened = True
                if failure.kind is FailureKind.MEMBER:
                    self._leave_failed(member, failure)
                if failure.kind is not FailureKind.MEMBER or clock() >= ends_at:
                    raise self._error(failure, member) from failure
                await asyncio.sleep(PAUSE_SECONDS)
                await self.renew_certificates()

    async def statuses(self) -> dict[str, rpc_pb2.StatusResponse | EtcdFailure]:
        """Ask each member for itself; a member that does not answer has its failure.

        A failure of the kind DENIED means that the member serves, and tells its status to others only.
        """
        await self._current_member()

        async def ask(member: Member, _: Metadata, __: float) -> rpc_pb2.StatusResponse:
            return await member.status(self._token)

        async def status(member: Member) -> rpc_pb2.StatusResponse | EtcdFailure:
            try:
                return await self._ask(member, ask, MEMBER_SECONDS)
            except EtcdFailure as failure:
                if failure.is_silence:
                    self._reconnect(member)
                return failure

        members = list(self._members)
        answers = await asyncio.gather(*map(status, members))
        return {member.endpoint: answer for member, answer in zip(members, answers, strict=True)}

    async def renew_certificates(self) -> None:
        """Connect anew if a certificate's file was replaced; keep what works while the files do not."""
        if not self._access.ca_file or not self._members:
            return
        try:
            if await self._access.stamps() != self._stamps:
                await self._connect()
                log.info("etcd's certificates were read again")
        except GpushareError as error:
            log.warning("etcd's certificates are not read again: %s", error)

    async def close(self) -> None:
        """End all calls. Later calls raise StoreUnavailable."""
        self._closed = True
        for task in self._closing:
            task.cancel()
        await asyncio.gather(*(member.channel.close() for member in self._members), return_exceptions=True)
        await asyncio.gather(*self._closing, return_exceptions=True)

    # --- members ---------------------------------------------------------------------------------------

    async def _current_member(self) -> Member:
        if self._closed:
            raise closed()
        if not self._members:
            async with self._renewing:
                if not self._members:
                    await self._connect()
        return self._members[self._first % len(self._members)]

    async def _connect(self) -> None:
        """Make channels with the files' present contents. Raises ConfigError."""
        stamps = await self._access.stamps()
        credentials = await self._access.credentials()
        old = self._members
        self._stamps, self._credentials = stamps, credentials
        self._members = [Member(endpoint, credentials) for endpoint in self._access.endpoints]
        for member in old:
            self._retire(member)

    def _retire(self, member: Member) -> None:
        task = asyncio.create_task(_close_later(member), name="close a replaced channel to etcd")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _reconnect(self, member: Member) -> None:
        """Let later calls have a new connection to a member that was silent.

        The kernel repeats what is not acknowledged after pauses that double: when the network is well again
        after 15 s, an old connection may take as long once more to find that out.
        """
        if member in self._members and not self._closed:
            successor = Member(member.endpoint, self._credentials)
            successor.is_checked = member.is_checked
            self._members[self._members.index(member)] = successor
            self._retire(member)

    def _leave_failed(self, member: Member, failure: EtcdFailure) -> None:
        self._leave(member, failure.text)
        if failure.is_silence:
            self._reconnect(member)

    def _leave(self, member: Member, why: str) -> None:
        """Prefer the next member, unless another call has done so already."""
        if self._members[self._first % len(self._members)] is member:
            self._first = (self._first + 1) % len(self._members)
        if self._logged_failures.get(member.endpoint) != why:
            self._logged_failures[member.endpoint] = why
            log.info("etcd's member %s does not serve: %s", member.endpoint, why)

    def _error(self, failure: EtcdFailure, member: Member) -> GpushareError:
        return closed() if self._closed else failure.error(member.endpoint)

    # --- one call --------------------------------------------------------------------------------------

    async def _ask(self, member: Member, ask: MemberCall[T], seconds: float) -> T:
        await member.connect()
        for attempt in (1, 2):
            token = await self._token_from(member)
            try:
                await self._check_once(member, token)
                with translated():
                    return await ask(member, _metadata(token), max(seconds, 0.1))
            except EtcdFailure as failure:
                if failure.kind is not FailureKind.TOKEN or not self._access.user or attempt > 1:
                    raise
                if self._token == token:
                    self._token = ""
        raise AssertionError("the second attempt returned or raised")

    async def _check_once(self, member: Member, token: str) -> None:
        """Check with the first call of a connection that the member may keep the store. Raises EtcdFailure.

        Versions that tell their status only to etcd's administrators (3.5.30 does) are new enough.
        """
        if member.is_checked:
            return
        try:
            status = await member.status(token)
        except EtcdFailure as failure:
            if failure.kind is FailureKind.OTHER:
                raise _unreachable(f"it does not answer as etcd does: {failure.text}") from failure
            if failure.kind is not FailureKind.DENIED:
                raise
        else:
            check_version(status.version)
            self._cluster = self._cluster or status.header.cluster_id
            if status.header.cluster_id != self._cluster:
                raise _unreachable("it belongs to another cluster of etcd than the others")
        member.is_checked = True

    async def _token_from(self, member: Member) -> str:
        """Return the present token, a new one if there is none; empty without a user. Raises EtcdFailure."""
        if not self._access.user or self._token:
            return self._token
        async with self._renewing:
            if not self._token:
                request = rpc_pb2.AuthenticateRequest(
                    name=self._access.user, password=await self._access.password()
                )
                try:
                    with translated(nothing_happened=True):
                        self._token = (
                            await member.auth.Authenticate(
                                request, metadata=(WITH_LEADER,), timeout=MEMBER_SECONDS
                            )
                        ).token
                except EtcdFailure as failure:
                    if failure.text != "authentication is not enabled":
                        raise
            return self._token

    async def _watch_at(
        self, member: Member, request: rpc_pb2.WatchRequest
    ) -> AsyncIterator[rpc_pb2.WatchResponse]:
        token = await self._token_from(member)
        await self._check_once(member, token)
        call = member.watch.Watch(metadata=_metadata(token))
        try:
            with translated():
                await call.write(request)
            created = False
            while True:
                with translated():
                    response = await _next(call, QUIET_SECONDS if created else 0)
                if not isinstance(response, rpc_pb2.WatchResponse):  # the end of the stream
                    with translated():
                        raise EtcdFailure.of(await call.code(), await call.details())
                if response.canceled:
                    raise _canceled(response)
                created = True
                yield response
        finally:
            call.cancel()


async def _next(call: WatchCall, quiet_seconds: float) -> object:
    """Read the next answer; a member that is quiet must answer a question. Raises EtcdFailure and gRPC's."""
    # A read that is cancelled would end the call: grpc/aio/_call.py.
    reading = asyncio.ensure_future(call.read())
    try:
        if quiet_seconds and not (await asyncio.wait({reading}, timeout=quiet_seconds))[0]:
            async with asyncio.timeout(MEMBER_SECONDS):
                await call.write(rpc_pb2.WatchRequest(progress_request=rpc_pb2.WatchProgressRequest()))
        if not (await asyncio.wait({reading}, timeout=MEMBER_SECONDS))[0]:
            raise EtcdFailure.of(grpc.StatusCode.DEADLINE_EXCEEDED, "")
        return reading.result()
    finally:
        reading.cancel()


@contextmanager
def translated(*, nothing_happened: bool = False) -> Iterator[None]:
    """Raise EtcdFailure for what gRPC raises."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        failure = EtcdFailure.of(error.code(), error.details() or "")
        failure.nothing_happened |= nothing_happened
        raise failure from error
    except TimeoutError:
        raise EtcdFailure.of(grpc.StatusCode.DEADLINE_EXCEEDED, "") from None
    except (grpc.aio.UsageError, asyncio.InvalidStateError) as error:
        raise EtcdFailure.of(grpc.StatusCode.UNAVAILABLE, "its channel was closed") from error
    except asyncio.CancelledError:
        # gRPC raises this also in calls whose channel is closed.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise EtcdFailure.of(grpc.StatusCode.CANCELLED, "its channel was closed") from None


def check_version(version: str) -> None:
    """Raise EtcdFailure for a version of etcd that must not keep a pool."""
    match = _VERSION.match(version)
    numbers = tuple(map(int, match.groups())) if match else (0, 0, 0)
    if numbers in LOSING_DATA:
        raise _unreachable(f"it is of version {version}, which may lose data; 3.5.3 does not")
    if numbers[:2] < OLDEST:
        raise _unreachable(f"it is of version {version}, and the pool's store needs 3.4 or later")


def closed() -> StoreUnavailable:
    return StoreUnavailable("the store is closed", hint="the daemon is stopping")


def _unreachable(text: str) -> EtcdFailure:
    return EtcdFailure(FailureKind.MEMBER, text, nothing_happened=True)


def _canceled(response: rpc_pb2.WatchResponse) -> EtcdFailure:
    if response.compact_revision:
        return EtcdFailure(FailureKind.COMPACTED, "compacted", nothing_happened=True)
    reason = response.cancel_reason.rpartition("desc = ")[2]
    return EtcdFailure.of(grpc.StatusCode.UNAVAILABLE, reason)


def _metadata(token: str) -> Metadata:
    return (WITH_LEADER, *_with_token(token))


def _with_token(token: str) -> Metadata:
    return (("token", token),) if token else ()


async def _close_later(member: Member) -> None:
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(OLD_CHANNEL_SECONDS)
    await member.channel.close()
