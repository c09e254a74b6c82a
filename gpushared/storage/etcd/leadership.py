"""Lead with a lease of etcd: the leader's key lives as long as its lease is kept alive.

The lease tells others that a leader lives. The epoch's record, which every transaction compares, keeps an
earlier leader from writing, whatever the clocks do.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from gpushared.api.etcd import kv_pb2, rpc_pb2
from gpushared.domain.model.errors import TimedOut
from gpushared.ports.job_store import Deposed, StoreUnavailable
from gpushared.storage.etcd.client import EtcdClient, Member, Metadata, translated
from gpushared.storage.etcd.failures import EtcdFailure, FailureKind
from gpushared.storage.etcd.keys import Keys, StoreFormat, get, has_value, is_at, only, put, read_format

log = logging.getLogger(__name__)

TTL_SECONDS = 10
BEATS = 3
"""Keep the lease alive so often in its time."""
RETRY_SECONDS = 0.5
LOOK_SECONDS = 0.5
"""Look this often if the leader's key is still there. A member of etcd that stood still while it led etcd may end
leases that are alive when it goes on (etcd's issue 15247; rarer since 3.4.31 and 3.5.13)."""
WAIT_SECONDS = 0.5
REVOKE_SECONDS = 2.0
MAX_TRIES = 5


@dataclass(frozen=True, slots=True)
class StoreHead:
    """Hold who leads a store and how it is kept, with the revisions of the three keys."""

    epoch: int
    epoch_at: int
    leader: bytes
    leader_at: int
    format: StoreFormat | None
    format_at: int


async def read_head(client: EtcdClient, keys: Keys) -> StoreHead:
    """Read the three keys at one revision."""
    request = rpc_pb2.TxnRequest(success=[get(keys.epoch), get(keys.leader), get(keys.format)])
    return _head_of(*map(only, (await client.transact(request)).responses))


def _head_of(
    epoch: kv_pb2.KeyValue | None, leader: kv_pb2.KeyValue | None, store_format: kv_pb2.KeyValue | None
) -> StoreHead:
    return StoreHead(
        epoch=_epoch_in(epoch.value) if epoch else 0,
        epoch_at=epoch.mod_revision if epoch else 0,
        leader=leader.value if leader else b"",
        leader_at=leader.mod_revision if leader else 0,
        format=read_format(store_format.value) if store_format else None,
        format_at=store_format.mod_revision if store_format else 0,
    )


class Leadership:
    """Lead one store from this process. What is lost once is lost for good: others may have written since."""

    def __init__(
        self, client: EtcdClient, keys: Keys, *, name: str, ttl_seconds: int, wait_seconds: float
    ) -> None:
        self._client = client
        self._keys = keys
        self._ttl_seconds = ttl_seconds
        self._wait_seconds = wait_seconds
        name = name or socket.gethostname()
        self._name = f"{name} process {os.getpid()} {secrets.token_hex(8)}".encode()
        self._confirmed_at = 0.0
        self._announced: tuple[int, bytes, bytes] | None = None
        self._lease = 0
        self._epoch = 0
        self._keeping: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._leading = asyncio.Lock()
        self._loss: Deposed | None = None
        self._lost = asyncio.Event()

    async def lead(
        self, above: int, first: StoreFormat, check: Callable[[StoreFormat], None]
    ) -> tuple[int, StoreFormat]:
        """Return the new epoch and the store's format, which is ``first`` for a new store.

        ``check`` raises for a store that must not be led.
        """
        clock = asyncio.get_running_loop().time
        ends_at = clock() + self._wait_seconds
        async with self._leading:
            while True:
                try:
                    return await self._lead(above, first, check)
                except Deposed:
                    if self._loss is not None or clock() >= ends_at:
                        raise
                await asyncio.sleep(WAIT_SECONDS)

    def compares(self, epoch: int) -> list[rpc_pb2.Compare]:
        """Return what holds while this process leads with the epoch. Raises Deposed."""
        if self._loss is not None:
            raise self._loss
        if not self._epoch:
            raise Deposed("this coordinator does not lead", hint="it must lead before it writes")
        return [
            has_value(self._keys.epoch, _epoch_value(epoch, self._name)),
            has_value(self._keys.leader, self._name),
        ]

    def refused(
        self, epoch: int, epoch_found: kv_pb2.KeyValue | None, leader_found: kv_pb2.KeyValue | None
    ) -> Deposed | None:
        """Return the error if a transaction with this epoch failed because of who leads."""
        head = _head_of(epoch_found, leader_found, None)
        if head.leader != self._name:
            return self._lose(_loss_reason(head))
        if head.epoch != epoch:
            return Deposed(
                f"this coordinator leads no more with the epoch {epoch}: the store's is {head.epoch}",
                hint="is the same store used twice?",
            )
        return None

    async def lost(self) -> Deposed:
        """Wait until this process must not lead any more, and return why."""
        await self._lost.wait()
        assert self._loss is not None
        return self._loss

    def doubt_seconds(self) -> float:
        """Return how long etcd has not confirmed the lease, once that is longer than the lease lives; else 0."""
        seconds = asyncio.get_running_loop().time() - self._confirmed_at
        return seconds if self._epoch and seconds > self._ttl_seconds else 0.0

    async def end(self) -> None:
        """Let others lead at once, if etcd can be reached."""
        tasks = [task for task in (self._keeping, self._looking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._lease and self._loss is None:
            with suppress(StoreUnavailable, TimedOut):
                await self._client.call(self._revoke, seconds=REVOKE_SECONDS)

    async def announce(self, key: bytes, facts: bytes) -> None:
        """Put a key that goes with this process's lease, unless it is there already."""
        async with self._leading:
            if not self._lease:
                await self._have_lease()
            announcement = (self._lease, key, facts)
            if self._announced == announcement:
                return
            request = rpc_pb2.TxnRequest(success=[put(key, facts, self._lease)])
            await self._client.transact(request)
            self._announced = announcement

    # --- becoming the leader ---------------------------------------------------------------------------

    async def _lead(
        self, above: int, first: StoreFormat, check: Callable[[StoreFormat], None]
    ) -> tuple[int, StoreFormat]:
        if self._loss is not None:
            raise self._loss
        for _ in range(MAX_TRIES):
            head = await read_head(self._client, self._keys)
            if head.leader != self._name:
                if self._epoch:
                    raise self._lose(_loss_reason(head))
                if head.leader:
                    raise _led_by_another(head)
            epoch, store_format = max(head.epoch, above) + 1, head.format or first
            check(store_format)
            await self._have_lease()
            if await self._take(head, epoch, None if head.format else first):
                self._epoch = epoch
                self._looking = self._looking or asyncio.create_task(
                    self._look(), name="leader of etcd's store"
                )
                return epoch, store_format
        raise StoreUnavailable("others lead and end all the time", hint="is the same store used twice?")

    async def _take(self, head: StoreHead, epoch: int, new: StoreFormat | None) -> bool:
        keys = self._keys
        request = rpc_pb2.TxnRequest(
            compare=[
                is_at(keys.epoch, head.epoch_at),
                is_at(keys.leader, head.leader_at),
                is_at(keys.format, head.format_at),
            ],
            success=[
                put(keys.epoch, _epoch_value(epoch, self._name)),
                put(keys.leader, self._name, self._lease),
                *([put(keys.format, new.to_bytes())] if new else []),
            ],
        )
        return (await self._client.transact(request, repeatable=False)).succeeded

    async def _have_lease(self) -> None:
        if self._lease and await self._keep_alive() > 0:
            return

        began = asyncio.get_running_loop().time()

        async def ask(member: Member, metadata: Metadata, seconds: float) -> rpc_pb2.LeaseGrantResponse:
            request = rpc_pb2.LeaseGrantRequest(TTL=self._ttl_seconds)
            return await member.lease.LeaseGrant(request, metadata=metadata, timeout=seconds)

        self._lease = (await self._client.call(ask)).ID
        self._confirmed_at = began
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep(), name="etcd lease")

    # --- staying the leader ----------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Keep the lease alive at whichever member answers, until it is lost."""
        pause = self._ttl_seconds / BEATS
        while self._loss is None:
            await asyncio.sleep(pause)
            pause = self._ttl_seconds / BEATS
            if not self._lease:
                continue
            try:
                remaining_seconds = await self._keep_alive()
                await self._client.renew_certificates()
            except (StoreUnavailable, TimedOut) as error:
                log.warning("etcd did not keep this coordinator's lease alive: %s", error)
                pause = RETRY_SECONDS
            else:
                if remaining_seconds <= 0 and self._epoch:
                    self._lose("its lease at etcd has ended")
                elif remaining_seconds <= 0:
                    self._lease = 0  # nothing but an announcement went with it

    async def _look(self) -> None:
        """Note a lost lease long before the lease's next time, because another coordinator may lead at once."""
        while self._loss is None:
            await asyncio.sleep(LOOK_SECONDS)
            with suppress(StoreUnavailable, TimedOut):
                head = await read_head(self._client, self._keys)
                if head.leader != self._name:
                    self._lose(_loss_reason(head))

    async def _keep_alive(self) -> int:
        """Return the seconds that the lease has now; 0 if it has ended."""
        lease, began = self._lease, asyncio.get_running_loop().time()

        async def ask(member: Member, metadata: Metadata, seconds: float) -> int:
            call = member.lease.LeaseKeepAlive(metadata=metadata, timeout=seconds)
            try:
                await call.write(rpc_pb2.LeaseKeepAliveRequest(ID=lease))
                answer = await call.read()
                if isinstance(answer, rpc_pb2.LeaseKeepAliveResponse):
                    return answer.TTL
                with translated():
                    raise EtcdFailure.of(await call.code(), await call.details())
            finally:
                call.cancel()

        # Another member is asked in time if one does not answer.
        remaining_seconds = await self._client.call(ask, member_seconds=self._ttl_seconds / BEATS / 2)
        if remaining_seconds > 0:
            self._confirmed_at = began
        return remaining_seconds

    async def _revoke(self, member: Member, metadata: Metadata, seconds: float) -> None:
        request = rpc_pb2.LeaseRevokeRequest(ID=self._lease)
        try:
            with translated():
                await member.lease.LeaseRevoke(request, metadata=metadata, timeout=seconds)
        except EtcdFailure as failure:
            if failure.kind is not FailureKind.NO_LEASE:
                raise

    def _lose(self, why: str) -> Deposed:
        if self._loss is None:
            self._loss = Deposed(
                f"this coordinator leads no more: {why}",
                hint="it ends, and begins anew as one that may lead; was it or the network stopped for longer "
                f"than {self._ttl_seconds} s?",
            )
            self._lost.set()
        return self._loss


def _epoch_value(epoch: int, name: bytes) -> bytes:
    return b"%d %s" % (epoch, name)


def _epoch_in(value: bytes) -> int:
    try:
        return int(value.partition(b" ")[0])
    except ValueError as error:
        raise StoreUnavailable(
            "the store in etcd cannot be read: its epoch is damaged", hint="restore a backup"
        ) from error


def leader_name(head: StoreHead) -> str:
    """Return the name of the coordinator that leads, or an empty text."""
    return head.leader.decode(errors="replace").partition(" ")[0]


def _led_by_another(head: StoreHead) -> Deposed:
    leader = head.leader.decode(errors="replace").rpartition(" ")[0]
    return Deposed(
        f"another coordinator leads ({leader})",
        hint="one store serves one coordinator: this one can lead when that one has ended",
    )


def _loss_reason(head: StoreHead) -> str:
    if not head.leader:
        return "its lease at etcd has ended"
    return f"{_led_by_another(head).message} now"
