"""Move a coordinator's store, check it, copy it, put a copy back; the coordinator does not run meanwhile.

A copy is a SQLite file, wherever the store is.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from gpushared.config.pool_settings import CoordinatorConfig
from gpushared.daemon.files import sync_folder, write_private
from gpushared.domain.model.errors import GpushareError, StateConflict
from gpushared.jobs.job_records import ENDED, JOB, MEMBER, RECOVERING, read_job, read_member
from gpushared.pool.coordinator.stores import (
    MOVED,
    SQLITE_SCHEME,
    ca_folder,
    mark_path,
    open_store,
    sqlite_path,
)
from gpushared.pool.trust.authority import Authority
from gpushared.pool.trust.certificate_status import LEDGER_FILE, SignatureLog
from gpushared.pool.trust.shared_trust import LEDGER, TRUST, SharedTrust, make_store_key
from gpushared.ports.job_store import Contents, JobStore, Record, SharedStore
from gpushared.storage.etcd.filling import fill, mark_as_moved
from gpushared.storage.etcd.store import EtcdStore
from gpushared.storage.high_water import HighWater, read_high_water, write_high_water
from gpushared.storage.job_store import SqliteStore, StoreFile

BUSY_SECONDS = 5.0
LEAST_MEMBERS = 3
"""Fewer cannot go on without one of them."""


async def migrate(config: CoordinatorConfig, to: str, *, replaces: bool) -> list[str]:
    """Move the configured store to the address ``to``, and return lines that say so."""
    if to == (config.store.url or SQLITE_SCHEME):
        raise StateConflict(f"the store is in {to} already", hint="--to is where it is to go")
    is_file = to.startswith(SQLITE_SCHEME)
    async with _opened(config, None) as source:
        epoch = await source.lead()
        contents = await source.load()
        await asyncio.to_thread(make_store_key, ca_folder(config))
        if isinstance(source, EtcdStore):
            await _bring_trust_home(config, source)
        contents = _without_trust(contents)
        filled, revision = await _fill(config, to, contents, above=epoch, replaces=replaces)
        mark = await asyncio.to_thread(read_high_water, mark_path(config))
        await _write_mark(config, HighWater(filled, revision, doubted=mark.doubted))
        if isinstance(source, EtcdStore):
            await mark_as_moved(source, epoch, to, _host(config) if is_file else "")
    old_store = "its records stay in etcd, and nobody can use them"
    if not config.store.url:
        old_store = f"the old file is {await asyncio.to_thread(_put_aside, sqlite_path(config, ''), MOVED)}"
    url = "" if is_file else to
    lines = [
        f"moved {len(contents.records)} records to {to} (epoch {filled}, revision {revision}); {old_store}",
        f'set url = "{url}" in [store] of the configuration, then start gpushared-pool',
    ]
    if is_file:
        lines.append("on all other coordinators: systemctl disable --now gpushared-pool")
    return lines


def _host(config: CoordinatorConfig) -> str:
    return config.coordinator.advertise or socket.gethostname()


async def backup(config: CoordinatorConfig, file: Path) -> list[str]:
    """Copy the configured store to a new file. The coordinator may run."""
    if await asyncio.to_thread(file.exists):
        raise StateConflict(f"{file} exists already", hint="name a new file")
    async with _opened(config, None) as source:
        contents, epoch = await source.load(), await source.epoch()
    await asyncio.to_thread(_write_file, file, contents, epoch)
    return [f"copied {len(contents.records)} records (epoch {epoch}, revision {contents.revision}) to {file}"]


async def put_back(config: CoordinatorConfig, file: Path, *, replaces: bool) -> list[str]:
    """Fill the configured store from a copy. The coordinator then asks all nodes what the copy lacks."""
    contents, epoch = await _read_copy(file)
    # A coordinator then asks all nodes, whichever one leads.
    contents = replace(contents, records={**contents.records, RECOVERING: Record(b"", contents.revision)})
    mark = await asyncio.to_thread(read_high_water, mark_path(config))
    if not config.store.url:
        # The doubt is written first: a store that is behind must never be taken for the newest.
        await _write_mark(config, replace(mark, epoch=max(mark.epoch, epoch), doubted=True))
    to = config.store.url or SQLITE_SCHEME
    contents = await _with_present_trust(config, contents)
    filled, _ = await _fill(config, to, contents, above=max(mark.epoch, epoch), replaces=replaces)
    return [
        f"put back {len(contents.records)} records (epoch {filled})",
        "start gpushared-pool: it places nothing old until all nodes have reported what they have",
    ]


async def check(config: CoordinatorConfig) -> tuple[list[str], list[str]]:
    """Read the whole configured store; return lines on it, and its problems."""
    async with _opened(config, None) as store:
        contents, epoch = await store.load(), await store.epoch()
        members, problems = await _members(store)
    kinds = Counter(key.partition("/")[0] for key in contents.records)
    counted = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
    problems += await asyncio.to_thread(lambda: list(_unreadable(contents)))
    mark = await asyncio.to_thread(read_high_water, mark_path(config))
    if epoch < mark.epoch or contents.revision < mark.revision:
        problems.append("the store is behind what this coordinator once had: it is an old copy")
    lines = [
        f"{len(contents.records)} records: {counted or 'none'}",
        f"epoch {epoch}, revision {contents.revision}",
    ]
    return [*lines, *members], problems


async def _fill(
    config: CoordinatorConfig, to: str, contents: Contents, *, above: int, replaces: bool
) -> tuple[int, int]:
    """Write all records to another store; return the epoch and the revision there."""
    if to.startswith(SQLITE_SCHEME):
        path = sqlite_path(config, to)
        if path.exists() and not replaces:
            raise StateConflict(f"there is a store in {path} already", hint="add --replace to put it aside")
        await asyncio.to_thread(_replace_file, path, contents, above + 1)
        return above + 1, contents.revision
    async with _opened(config, to, for_filling=True) as target:
        assert isinstance(target, EtcdStore), "every other address is etcd's"
        return await fill(target, contents, above=above, replaces=replaces)


async def _bring_trust_home(config: CoordinatorConfig, source: JobStore) -> None:
    """Write to the coordinator's folder what several coordinators kept in the store they shared."""
    folder = ca_folder(config)
    ledger = SignatureLog(folder / LEDGER_FILE)
    shared = SharedTrust(folder, Authority.load(folder), ledger, source, lambda: 0)
    await shared.load()
    lines = [record.value for _, record in sorted((await source.load(LEDGER)).records.items())]
    if lines:
        data = b"".join(line + b"\n" for line in lines)
        await asyncio.to_thread(write_private, folder / LEDGER_FILE, data)


def _without_trust(contents: Contents) -> Contents:
    """Leave out the pool's authority, which the folder of the coordinator has."""
    records = {key: record for key, record in contents.records.items() if not key.startswith(TRUST)}
    return replace(contents, records=records)


async def _with_present_trust(config: CoordinatorConfig, contents: Contents) -> Contents:
    """Keep the authority as it is now: a copy does not know which certificates were revoked since."""
    if not config.store.url:
        return _without_trust(contents)
    async with _opened(config, None, for_filling=True) as target:
        present = (await target.load(TRUST)).records
    return replace(contents, records={**_without_trust(contents).records, **present}) if present else contents


@asynccontextmanager
async def _opened(
    config: CoordinatorConfig, url: str | None, *, for_filling: bool = False
) -> AsyncIterator[JobStore]:
    store = open_store(config, url, for_filling=for_filling)
    try:
        yield store
    finally:
        await store.close()


async def _write_mark(config: CoordinatorConfig, mark: HighWater) -> None:
    await asyncio.to_thread(write_high_water, mark_path(config), mark)


async def _read_copy(file: Path) -> tuple[Contents, int]:
    """Read a copy of the copy: opening a store writes to its file."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = Path(await asyncio.to_thread(shutil.copyfile, file, Path(folder, "copy.db")))
        except OSError as error:
            raise StateConflict(f"{file} cannot be read: {error.strerror}", hint="name a copy") from error
        store = SqliteStore(path)
        try:
            return await store.load(), await store.epoch()
        finally:
            await store.close()


def _replace_file(path: Path, contents: Contents, epoch: int) -> None:
    """Write a store's file, and put the present one aside while no coordinator has it."""
    present = StoreFile(path, busy_seconds=BUSY_SECONDS)
    try:
        if path.exists():
            present.lead(0)
            _put_aside(path, ".replaced")
        _write_file(path, contents, epoch)
    finally:
        present.close()


def _write_file(path: Path, contents: Contents, epoch: int) -> None:
    """Write a store's file, whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    file = StoreFile(part, busy_seconds=BUSY_SECONDS)
    try:
        file.fill(contents, epoch)
    finally:
        file.close()
    part.rename(path)
    sync_folder(path.parent)


def _put_aside(path: Path, why: str) -> Path:
    """Rename a store's file to a name that is free."""
    names = (path.with_name(f"{path.name}{why}{number}") for number in ("", *range(1, 1000)))
    aside = next(name for name in names if not name.exists())
    for end in ("", "-wal", "-shm"):
        if (file := Path(f"{path}{end}")).exists():
            file.rename(f"{aside}{end}")
    return aside


async def _members(store: JobStore) -> tuple[list[str], list[str]]:
    """Return a line on each of etcd's members, and what is wrong with them."""
    if not isinstance(store, SharedStore):
        return [], []
    lines, problems = [], []
    members = await store.health()
    for member in members:
        leads = ", leads" if member.leads else ""
        if member.version:
            size = member.size_bytes / 2**20
            lines.append(f"etcd's member {member.endpoint}: {member.version}, {size:.1f} MiB{leads}")
        elif not member.problem:
            lines.append(f"etcd's member {member.endpoint}: serves; its version is not told to this user")
        if member.problem:
            problems.append(f"etcd's member {member.endpoint}: {member.problem}")
    if len(members) < LEAST_MEMBERS:
        lines.append("fewer than three members are named in store.url: the pool stops when one stops")
    return lines, problems


def _unreadable(contents: Contents) -> Iterator[str]:
    for key, record in contents.records.items():
        try:
            if key.startswith(JOB) or (key.startswith(ENDED) and record.value):
                read_job(key, record.value)
            elif key.startswith(MEMBER):
                read_member(key, record.value)
        except GpushareError as error:
            yield str(error)
