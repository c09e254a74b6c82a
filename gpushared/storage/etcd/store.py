"""Keep a pool's store in etcd: a coordinator's ``JobStore``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import NoReturn

from gpushared.api.etcd import kv_pb2, rpc_pb2
from gpushared.domain.model.errors import GpushareError, RequestError, TimedOut
from gpushared.ports.job_store import (
    Conflict,
    Contents,
    Deposed,
    Leader,
    Record,
    StoreChange,
    StoreMember,
    StoreUnavailable,
    Transaction,
)
from gpushared.storage.etcd.access import EtcdAccess
from gpushared.storage.etcd.client import CALL_SECONDS, EtcdClient, Member, Metadata, closed
from gpushared.storage.etcd.failures import QUORUM_HINT, EtcdFailure, FailureKind, no_space
from gpushared.storage.etcd.keys import (
    KeyHalves,
    Keys,
    StoreFormat,
    delete,
    get,
    is_at,
    only,
    put,
    range_of,
    record_of,
)
from gpushared.storage.etcd.leadership import TTL_SECONDS, Leadership, StoreHead, leader_name, read_head

FIRST_PAGE = 512
LAST_PAGE = 4096
PAGE_BYTES = 2 * 1024 * 1024
"""Ask for more keys at once while answers are smaller than this, and for fewer when they are much larger."""
MAX_LOADS = 3
NOT_THERE = -1
"""No key of etcd has this revision."""


class EtcdStore:
    """Keep the store below ``prefix`` in etcd. Readers need not lead.

    Every call also raises ConfigError if this version cannot use the store. With ``wait_seconds`` a ``lead``
    waits so long for another leader's end. A store that was led and is not any more raises Deposed for good.
    """

    def __init__(
        self,
        access: EtcdAccess,
        prefix: str,
        *,
        name: str = "",
        ttl_seconds: int = TTL_SECONDS,
        wait_seconds: float = 0.0,
        call_seconds: float = CALL_SECONDS,
        for_filling: bool = False,
    ) -> None:
        """Take ``name``, by which other coordinators know this one; the default is the host's name.

        Take ``for_filling`` to use also a store that is not complete, or has moved away.
        """
        self.client = EtcdClient(access, call_seconds=call_seconds)
        self.keys = Keys(prefix)
        self._leadership = Leadership(
            self.client, self.keys, name=name, ttl_seconds=ttl_seconds, wait_seconds=wait_seconds
        )
        self._for_filling = for_filling
        self._format: StoreFormat | None = None
        self._newest = 0
        """The newest revision of etcd that this process knows."""
        self.heard_at = 0.0
        self._closed = asyncio.Event()

    async def lead(self, above: int = 0) -> int:
        await self._offset()
        epoch, self._format = await self._leadership.lead(above, StoreFormat(), self._check)
        return epoch

    async def lost(self) -> NoReturn:
        raise await self._leadership.lost()

    async def is_behind(self) -> bool | None:
        """Return False: the members of etcd lose nothing, and ``restore`` says itself that it put back a copy."""
        return False

    async def epoch(self) -> int:
        await self._offset()
        return (await self.head()).epoch

    async def head(self) -> StoreHead:
        """Return who leads, and how the store is kept."""
        self._refuse_closed()
        return await read_head(self.client, self.keys)

    async def load(self, prefix: str = "") -> Contents:
        offset = await self._offset()
        first, end = self.keys.below(prefix)
        for _ in range(MAX_LOADS):
            try:
                pairs, revision = await self._pages(first, end)
            except Conflict:  # compacted meanwhile
                continue
            records = {self.keys.text(pair.key): record_of(pair, offset) for pair in pairs}
            return Contents(revision + offset, records)
        raise StoreUnavailable(
            "etcd is compacted faster than the store is read", hint="see etcd's --auto-compaction-retention"
        )

    async def page(
        self, prefix: str, limit: int, *, after: str = "", reverse: bool = False
    ) -> tuple[tuple[str, Record], ...]:
        offset = await self._offset()
        first, end = self.keys.below(prefix)
        if after and reverse:
            end = min(end, self.keys.record(after))
        elif after:
            first = max(first, self.keys.record(after) + b"\0")
        if limit <= 0 or first >= end:
            return ()
        if reverse:
            pairs = await self._last(first, end, limit)
        else:
            pairs, _ = await self._pages(first, end, limit)
        return tuple((self.keys.text(pair.key), record_of(pair, offset)) for pair in pairs)

    async def count(self, prefix: str = "") -> int:
        await self._offset()
        first, end = self.keys.below(prefix)
        return await self._count(first, end, 0)

    async def commit(self, transaction: Transaction) -> int:
        transaction.check()
        offset, before = await self._offset(), self._newest
        compares = transaction.compares or {}
        request = rpc_pb2.TxnRequest(
            compare=[
                *self._leadership.compares(transaction.epoch),
                *(is_at(self.keys.record(key), _own(at, offset)) for key, at in compares.items()),
            ],
            success=[
                *(put(self.keys.record(key), value) for key, value in transaction.puts.items()),
                *(delete(self.keys.record(key)) for key in transaction.deletes),
            ],
            failure=[get(self.keys.epoch), get(self.keys.leader), *map(self._look, compares)],
        )
        try:
            answer = await self.client.transact(request, repeatable=False)
        except StoreUnavailable as error:
            return await self._settled(error, transaction, before) + offset
        self._newest = max(self._newest, answer.header.revision)
        if not answer.succeeded:
            self._refuse(transaction, answer, offset)
        return answer.header.revision + offset

    async def watch(self, prefix: str, after: int) -> AsyncIterator[StoreChange]:
        offset = await self._offset()
        first, end = self.keys.below(prefix)
        newest, seen = after - offset, set[bytes]()
        """The keys of ``newest`` that were yielded: an answer may end within a revision."""

        def request() -> rpc_pb2.WatchRequest:
            start = newest if seen else newest + 1
            return rpc_pb2.WatchRequest(
                create_request=rpc_pb2.WatchCreateRequest(
                    key=first, range_end=end, start_revision=start, fragment=True
                )
            )

        async for response in self.client.watch(request):
            self.heard_at = asyncio.get_running_loop().time()
            for event in response.events:
                revision = event.kv.mod_revision
                if revision > newest:
                    newest, seen = revision, set()
                elif event.kv.key in seen or revision < newest:
                    continue
                seen.add(event.kv.key)
                value = None if event.type == kv_pb2.Event.DELETE else event.kv.value
                yield StoreChange(self.keys.text(event.kv.key), value, revision + offset)

    # --- several coordinators --------------------------------------------------------------------------

    async def leader(self) -> Leader:
        head = await self.head()
        return Leader(leader_name(head), head.epoch)

    def doubt_seconds(self) -> float:
        return self._leadership.doubt_seconds()

    async def announce(self, name: str, facts: bytes) -> None:
        await self._offset()
        await self._leadership.announce(self.keys.coordinator(name), facts)

    async def announced(self) -> Mapping[str, bytes]:
        first, end = range_of(self.keys.coordinator(""))
        pairs, _ = await self._pages(first, end)
        return {pair.key[len(first) :].decode(errors="replace"): pair.value for pair in pairs}

    async def health(self) -> tuple[StoreMember, ...]:
        self._refuse_closed()
        statuses = await self.client.statuses()
        return tuple(_member_of(endpoint, status) for endpoint, status in statuses.items())

    # --- moving a store --------------------------------------------------------------------------------

    async def own_revision(self) -> int:
        """Return etcd's own revision, without the store's offset."""
        return (await self._range(rpc_pb2.RangeRequest(key=self.keys.epoch))).header.revision

    async def write_format(self, epoch: int, new: StoreFormat, *, clears: bool = False) -> None:
        """Change how the store is kept; with ``clears`` remove all records in the same transaction."""
        request = rpc_pb2.TxnRequest(
            compare=self._leadership.compares(epoch),
            success=[
                put(self.keys.format, new.to_bytes()),
                *([delete(*self.keys.below(""))] if clears else []),
            ],
        )
        if not (await self.client.transact(request, repeatable=False)).succeeded:
            raise Deposed("another coordinator leads now", hint="stop it, and begin again")
        self._format = new

    async def close(self) -> None:
        """End the leadership, so that another coordinator can lead at once, and all calls."""
        if self._closed.is_set():
            return
        self._closed.set()
        await self._leadership.end()
        await self.client.close()

    # --- reading ---------------------------------------------------------------------------------------

    async def _offset(self) -> int:
        """Return the offset of the store's revisions; the first call checks the store's format."""
        self._refuse_closed()
        if self._format is None:
            store_format = (await self.head()).format or StoreFormat()
            self._check(store_format)
            self._format = store_format
        return self._format.offset

    def _check(self, store_format: StoreFormat) -> None:
        if not self._for_filling:
            store_format.check()

    def _refuse_closed(self) -> None:
        if self._closed.is_set():
            raise closed()

    async def _range(self, request: rpc_pb2.RangeRequest) -> rpc_pb2.RangeResponse:
        self._refuse_closed()

        async def ask(member: Member, metadata: Metadata, seconds: float) -> rpc_pb2.RangeResponse:
            return await member.kv.Range(request, metadata=metadata, timeout=seconds)

        answer = await self.client.call(ask)
        self._newest = max(self._newest, answer.header.revision)
        return answer

    async def _count(self, first: bytes, end: bytes, revision: int) -> int:
        request = rpc_pb2.RangeRequest(key=first, range_end=end, revision=revision, count_only=True)
        return (await self._range(request)).count

    async def _last(self, first: bytes, end: bytes, limit: int) -> list[kv_pb2.KeyValue]:
        """Return the last keys of a range, the very last first.

        etcd reads and sorts a whole range before it returns the last keys. Counting is much cheaper, so that
        this method first looks for a later beginning.
        """
        lowest = await self._range(rpc_pb2.RangeRequest(key=first, range_end=end, limit=1, keys_only=True))
        if not lowest.kvs:
            return []
        enough, revision = limit * 2 + FIRST_PAGE, lowest.header.revision
        halves = KeyHalves(lowest.kvs[0].key, end)
        remaining = lowest.count
        while remaining > enough and (middle := halves.middle()) is not None:
            count = await self._count(middle, end, revision)
            if count >= limit:
                remaining = count
            halves.go_on(after=count >= limit)
        pairs, _ = await self._pages(halves.first, end, limit, reverse=True, revision=revision)
        return pairs

    async def _pages(
        self,
        first: bytes,
        end: bytes,
        limit: int | None = None,
        *,
        reverse: bool = False,
        revision: int = 0,
    ) -> tuple[list[kv_pb2.KeyValue], int]:
        """Return the keys of a range at one revision, read in pages that fit messages."""
        pairs: list[kv_pb2.KeyValue] = []
        size = limit if limit is not None and reverse else FIRST_PAGE
        while True:
            page_size = size if limit is None else min(size, limit - len(pairs))
            request = rpc_pb2.RangeRequest(
                key=first,
                range_end=end,
                limit=page_size,
                revision=revision,
                sort_order=rpc_pb2.RangeRequest.DESCEND if reverse else rpc_pb2.RangeRequest.NONE,
            )
            try:
                answer = await self._range(request)
            except RequestError:  # the answer is larger than a message may be
                if page_size == 1:
                    raise
                size = page_size // 2
                continue
            revision = revision or answer.header.revision
            pairs += answer.kvs
            if not answer.more or len(pairs) == limit or not answer.kvs:
                return pairs, revision
            if reverse:
                end = answer.kvs[-1].key
            else:
                first = answer.kvs[-1].key + b"\0"
            size = _next_size(size, answer.ByteSize())

    def _look(self, key: str) -> rpc_pb2.RequestOp:
        return rpc_pb2.RequestOp(
            request_range=rpc_pb2.RangeRequest(key=self.keys.record(key), keys_only=True)
        )

    # --- what became of a transaction ------------------------------------------------------------------

    async def _settled(self, error: GpushareError, transaction: Transaction, before: int) -> int:
        """Return the revision if etcd wrote the transaction and complained nevertheless.

        Only a full database does that; the outcome is final when etcd answers, so that a read finds it.
        """
        cause = error.__cause__
        is_full = isinstance(cause, EtcdFailure) and cause.kind is FailureKind.NO_SPACE
        if not is_full or not transaction.puts:
            raise error
        key = self.keys.record(min(transaction.puts))
        try:
            answer = await self._range(rpc_pb2.RangeRequest(key=key, keys_only=True))
        except GpushareError as failed:
            raise TimedOut(
                "etcd is full, and does not say if it has written a transaction", hint=QUORUM_HINT
            ) from failed
        if not answer.kvs or answer.kvs[0].mod_revision <= before:
            raise no_space() from error
        return answer.kvs[0].mod_revision

    def _refuse(self, transaction: Transaction, answer: rpc_pb2.TxnResponse, offset: int) -> NoReturn:
        """Raise the error for a transaction whose comparisons failed."""
        epoch, leader, *current_pairs = map(only, answer.responses)
        deposed = self._leadership.refused(transaction.epoch, epoch, leader)
        if deposed is not None:
            raise deposed
        for (key, expected), pair in zip((transaction.compares or {}).items(), current_pairs, strict=True):
            at = pair.mod_revision + offset if pair else 0
            if at != expected:
                raise Conflict(
                    f"{key} is at revision {at}, not at {expected}", hint="it was changed; load it again"
                )
        raise StoreUnavailable("etcd refused a transaction that it should have taken", hint="try again")


def _member_of(endpoint: str, status: rpc_pb2.StatusResponse | EtcdFailure) -> StoreMember:
    if isinstance(status, EtcdFailure) and status.kind is FailureKind.DENIED:
        return StoreMember(endpoint)  # it serves, and tells its version to etcd's root only
    if isinstance(status, EtcdFailure):
        return StoreMember(endpoint, problem=f"it does not answer: {status.text}")
    problem = "; ".join(status.errors) or ("" if status.leader else "it knows no leader of etcd")
    leads = status.leader == status.header.member_id
    return StoreMember(endpoint, leads, status.version, status.dbSize, problem)


def _own(expected: int, offset: int) -> int:
    """Return etcd's own revision; a revision that no record can have stays one."""
    if expected == 0:
        return 0
    return expected - offset if expected > offset else NOT_THERE


def _next_size(size: int, answer_bytes: int) -> int:
    if answer_bytes > 2 * PAGE_BYTES:
        return max(1, size // 2)
    return min(LAST_PAGE, size * 2) if answer_bytes < PAGE_BYTES else size
