"""Fill a store in etcd with the records of another: all of them, or the store stays one that nobody may use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpushared.domain.model.errors import StateConflict
from gpushared.ports.job_store import MAX_OPERATIONS, MAX_TRANSACTION_BYTES, Contents, Transaction
from gpushared.storage.etcd.keys import StoreFormat
from gpushared.storage.etcd.store import EtcdStore


async def fill(store: EtcdStore, contents: Contents, *, above: int, replaces: bool) -> tuple[int, int]:
    """Replace the store's records, and return its epoch and its revision, which both are higher than before.

    Raises StateConflict for a store with records, unless ``replaces``, and as ``JobStore`` does. ``store``
    was opened for filling.
    """
    epoch = await store.lead(above)
    store_format = (await store.head()).format or StoreFormat()
    is_in_use = not store_format.filling and not store_format.moved_to
    if is_in_use and not replaces and await store.count():
        raise StateConflict(
            f"there is a store below {store.keys.prefix} in etcd already",
            hint="name another prefix, or add --replace to have its records replaced",
        )
    offset = max(store_format.offset, contents.revision - await store.own_revision())
    await store.write_format(epoch, StoreFormat(offset, filling=True), clears=True)
    for puts in _parts(contents):
        await store.commit(Transaction(epoch, puts))
    await store.write_format(epoch, StoreFormat(offset))
    return epoch, offset + await store.own_revision()


async def mark_as_moved(store: EtcdStore, epoch: int, where: str, host: str = "") -> None:
    """Let nobody use a store that has gone to ``where``, a file on ``host`` if that is set; its records stay."""
    store_format = (await store.head()).format or StoreFormat()
    await store.write_format(epoch, replace(store_format, moved_to=where, moved_host=host))


def _parts(contents: Contents) -> Iterator[dict[str, bytes]]:
    """Cut the records into transactions that etcd takes."""
    part: dict[str, bytes] = {}
    size = 0
    for key, record in contents.records.items():
        if part and (len(part) == MAX_OPERATIONS or size + len(record.value) > MAX_TRANSACTION_BYTES):
            yield part
            part, size = {}, 0
        part[key] = record.value
        size += len(record.value)
    if part:
        yield part
