"""Handle ``docker cp``: copy files out of and into a confined caller's container.

While a container runs, a process with the rights of its user copies. While it does not run, the engine copies
if nobody can lead it astray. Otherwise the daemon reads the engine's export, and the same process writes to
the container's layers.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import h11

from gpushared.domain.model.errors import (
    EngineUnavailable,
    NotFound,
    PermissionRefused,
    RequestError,
    StateConflict,
)
from gpushared.gate.api.routes import Payload, RouteAction
from gpushared.gate.containers.ownership import Container, find_container
from gpushared.gate.copies.copying import Copies, Helper
from gpushared.gate.copies.order import AGAIN, START_HINT, STAT, Deed, Order
from gpushared.gate.copies.reading import MOST_LINKS
from gpushared.gate.handlers.call import Call
from gpushared.gate.handlers.context import Handler, HandlerContext, check_stream
from gpushared.net.socket_wire import Piece

MOUNTS_SAFELY = (29, 5, 1)
"""The first engine that holds the places of its mounts while it copies.

https://github.com/advisories/GHSA-vp62-88p7-qqf5, https://github.com/advisories/GHSA-rg2x-37c3-w2rh
"""
TAR_MAGIC = slice(257, 262)
COMPRESSIONS = (b"BZh", b"\x1f\x8b", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
SKIPPABLE_FRAME = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
"""Zstd may have such a frame before its data."""
BLOCK = 512
OK = 200


class Archives:
    """Handle requests about archives."""

    def __init__(self, handler_context: HandlerContext, copies: Copies | None = None) -> None:
        self._handler_context = handler_context
        self._copies = copies or Copies()

    def for_confined(self) -> dict[RouteAction, Handler]:
        return {RouteAction.ARCHIVE: self._archive}

    async def _archive(self, call: Call) -> None:
        if _is_write(call):
            check_plain(await call.exchange.peek(BLOCK))
        container = await find_container(self._handler_context.engine, call.match.name, call.caller)
        if not container.pid:
            async with self._handler_context.container_locks.of(container.id):
                container = await find_container(self._handler_context.engine, container.id, call.caller)
                if not container.pid and self._is_the_engines(container):
                    await self._handler_context.send(call, call.renamed(container.id))
                    return
                if not container.pid and _is_write(call):
                    await self._by_helper(call, container)
                    return
        await self._by_helper(call, container)

    def _check_numbers(self) -> None:
        """Raise ``PermissionRefused`` if the user has one number in the container and another outside."""
        if self._handler_context.lease_service.engine_facts().maps_users:
            raise PermissionRefused(
                "files are not copied while the container runs: the engine maps the numbers of users",
                hint="`docker exec CONTAINER tar c PATH` copies out, `docker exec -i CONTAINER tar x` in",
            )

    def _is_the_engines(self, container: Container) -> bool:
        """Return True if the engine itself may copy out of a container that does not run, or into it.

        The engine mounts the container's mounts at the places that it finds in the container's files. Until
        ``MOUNTS_SAFELY`` a process that can change these files can put a link to any place of the machine
        there at the right moment. So no process may ever have run in the container: its owner's processes
        outside reach its files by ``/proc/PID/root``, and can change opened files long after the container
        has ended. Nor may another container share a volume with it. An export mounts nothing.
        """
        if container.host_paths:
            return False
        if engine_version(self._handler_context.lease_service.engine_facts().version) >= MOUNTS_SAFELY:
            return True
        return container.is_new and not container.has_volumes

    async def _by_helper(self, call: Call, container: Container) -> None:
        call.renamed(container.id)
        if container.pid:
            self._check_numbers()
        if not (path := call.target.get("path")):
            raise RequestError("bad parameter: 'path' cannot be empty")
        try:
            if not container.pid:
                await self._while_down(call, container)
            elif _is_write(call):
                await self._copy_in(call, _order(call, container, Deed.WRITE))
            else:
                await self._copy_out(
                    call, _order(call, container, Deed.LOOK if _is_look(call) else Deed.READ)
                )
        except NotFound:
            raise NotFound(f"Could not find the file {path} in container {container.id}") from None

    # --- by the helper alone ---

    async def _copy_out(self, call: Call, order: Order) -> None:
        async with self._helper(call, order) as helper:
            await _send_file(call, helper, await helper.answer())

    async def _copy_in(self, call: Call, order: Order) -> None:
        check_stream(call.exchange)
        async with self._helper(call, order) as helper:
            async with helper.answer_to(call.exchange.pieces()):
                pass
            await call.exchange.respond(OK)

    # --- while the container does not run ---

    async def _while_down(self, call: Call, container: Container) -> None:
        if _is_write(call):
            await self._into_layers(call, container)
        elif not (_is_look(call) and await self._has_looked(call, container)):
            await self._out_of_export(call, container)

    async def _into_layers(self, call: Call, container: Container) -> None:
        """Write the archive into the container's layers, while the container's lock is held.

        Raises ``PermissionRefused`` if the layers cannot be mounted.
        """
        layers = await self._layers(container)
        if layers is None:
            raise PermissionRefused(
                "nothing is copied safely into a container that has run or mounts something while it is down",
                hint=START_HINT,
            )
        if not container.is_stopped:
            raise StateConflict(
                "nothing is copied into a container that is about to start again, or to go",
                hint="try again when it runs, or stop it first",
            )
        await self._copy_in(call, _order(call, container, Deed.WRITE) | layers)

    async def _has_looked(self, call: Call, container: Container) -> bool:
        """Look at one file without a full export; return False if the user's rights do not suffice."""
        layers = await self._layers(container)
        if layers is None:
            return False
        try:
            await self._copy_out(call, _order(call, container, Deed.LOOK) | layers)
        except (PermissionRefused, StateConflict):
            return False
        return True

    async def _layers(self, container: Container) -> Order | None:
        """Return the data with which a helper mounts the container's files, None if it cannot."""
        layers = container.layers
        if layers is None or self._handler_context.lease_service.engine_facts().maps_users:
            return None
        engine = await self._handler_context.engine.peer_pid()
        return {
            "layers": {"engine": engine, "lower": layers.lower, "upper": layers.upper},
            "mounts": [*container.mounts, *container.tmpfs],
        }

    async def _out_of_export(self, call: Call, container: Container) -> None:
        """Pick the file out of the engine's export."""
        now = ""
        for _ in range(MOST_LINKS):
            order = _order(call, container, Deed.PICK) | {"now": now, "mounts": container.mounts}
            async with (
                self._helper(call, order) as helper,
                self._export(container) as pieces,
                helper.answer_to(pieces) as answer,
            ):
                if not (now := answer.get(AGAIN, "")):
                    await _send_file(call, helper, answer)
                    return
        raise StateConflict(
            f"{call.target.get('path')} cannot be read: too many links",
            hint="name the file to which the links lead",
        )

    @asynccontextmanager
    async def _export(self, container: Container) -> AsyncIterator[AsyncIterator[Piece]]:
        connection = await self._handler_context.engine.connect()
        try:
            target = f"/containers/{container.id}/export".encode()
            headers = [("Host", "docker"), ("Connection", "close")]
            await connection.send(
                h11.Request(method="GET", target=target, headers=headers), h11.EndOfMessage()
            )
            head = await connection.response()
            if head.status_code != OK:
                raise EngineUnavailable("the Docker engine does not export the container")
            yield connection.pieces()
        finally:
            connection.close()

    @asynccontextmanager
    async def _helper(self, call: Call, order: Order) -> AsyncIterator[Helper]:
        """Yield a helper that has received its order."""
        uid = call.caller.uid
        async with self._copies.helper(uid) as helper:
            await helper.order(
                order | {"cgroups": await self._handler_context.user_containers.join_files(uid)}
            )
            yield helper


def _is_write(call: Call) -> bool:
    return call.match.route.payload is Payload.STREAM


def _is_look(call: Call) -> bool:
    return call.exchange.method == "HEAD"


def _order(call: Call, container: Container, deed: Deed) -> Order:
    """Return the order for a helper, with the rights of the container's user."""
    uid, _, gid = container.user.partition(":")
    target = call.target
    return {
        "deed": deed,
        "pid": container.pid,
        "container": container.id,
        "layers": None,
        "mounts": [],
        "uid": int(uid),
        "gid": int(gid),
        "groups": container.groups,
        "path": target.get("path"),
        "only_look": _is_look(call),
        "keeps_kinds": target.flag("noOverwriteDirNonDir"),
        "keeps_owners": target.flag("copyUIDGID"),
    }


async def _send_file(call: Call, helper: Helper, answer: dict[str, Any]) -> None:
    """Send the file's status as the helper found it, and the archive that the helper makes of the file."""
    status = base64.b64encode(json.dumps(answer[STAT]).encode())
    headers = [(b"X-Docker-Container-Path-Stat", status)]
    if _is_look(call):
        await call.exchange.respond(OK, headers=headers)
        return
    await call.exchange.start(OK, [*headers, (b"Content-Type", b"application/x-tar")])
    async for piece in helper.pieces():
        await helper.moving(call.exchange.send(piece))
    await call.exchange.finish()


def engine_version(text: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version; empty without any, which is less than any version."""
    plain = re.match(r"[0-9]+(\.[0-9]+)*", text)
    return tuple(map(int, plain[0].split("."))) if plain else ()


def check_plain(start: bytes) -> None:
    """Raise ``RequestError`` for an archive that is no plain tar.

    Engines unpack other archives with programs, which some engines look for in the container and run as root
    (https://github.com/advisories/GHSA-x86f-5xw2-fm2r).
    """
    is_tar = start[TAR_MAGIC] == b"ustar" or not start.strip(b"\0")
    if not is_tar or start.startswith(COMPRESSIONS) or SKIPPABLE_FRAME.match(start):
        raise RequestError("the archive is no plain tar", hint="unpack it first, with gunzip for example")
