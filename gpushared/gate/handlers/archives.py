"""``docker cp``: files that the engine copies as root, out of and into a confined caller's container."""

from __future__ import annotations

import re

from gpushared.domain.errors import PermissionRefused, RequestError
from gpushared.gate.call import Call
from gpushared.gate.containers import Container, find_container
from gpushared.gate.handlers.ground import Ground, Handler
from gpushared.gate.routes import Action, Payload

MOUNTS_SAFELY = (29, 5, 1)
"""The first engine that holds on to the places it mounts at while it copies.

https://github.com/advisories/GHSA-vp62-88p7-qqf5, https://github.com/advisories/GHSA-rg2x-37c3-w2rh
"""
TAR_MAGIC = slice(257, 262)
COMPRESSIONS = (b"BZh", b"\x1f\x8b", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
SKIPPABLE_FRAME = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
"""Of zstd, before its data."""
BLOCK = 512
INSTEAD = "`docker export CONTAINER | tar x PATH` takes out, `docker exec -i CONTAINER tar x` puts in"


class Archives:
    """Handlers of archives."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    def confined(self) -> dict[Action, Handler]:
        return {Action.ARCHIVE: self._archive}

    async def _archive(self, call: Call) -> None:
        if call.match.route.payload is Payload.STREAM:
            check_plain(await call.exchange.peek(BLOCK))
        found = await find_container(self._ground.engine, call.match.name, call.caller)
        async with self._ground.turns.of(found.id):
            container = await find_container(self._ground.engine, found.id, call.caller)
            self._check(container)
            await self._ground.send(call, call.renamed(container.id))

    def _check(self, container: Container) -> None:
        """Raise ``PermissionRefused`` where the container could lead the engine astray.

        The engine mounts what the container has mounted, at the places that it finds in the container's
        files. Until ``MOUNTS_SAFELY`` whoever can change these can put a link to any place of the machine
        there at the right moment. So nothing may ever have run in the container: processes of its owner's
        outside reach its files by ``/proc/PID/root``, and what they have opened there they can change when it
        has long ended. Nor may another container share a volume with it. An export mounts nothing.
        """
        if container.host_paths:
            raise PermissionRefused(
                "files cannot be copied in or out while the container has mounted directories",
                hint="copy in the mounted directory itself",
            )
        if engine_version(self._ground.desk.engine_facts().version) >= MOUNTS_SAFELY:
            return
        if container.has_volumes:
            raise PermissionRefused(
                "this engine copies no files safely while the container has volumes", hint=INSTEAD
            )
        if not container.is_new:
            raise PermissionRefused(
                "this engine copies no files safely while the container runs, or once it has run",
                hint=INSTEAD,
            )


def engine_version(said: str) -> tuple[int, ...]:
    """The numbers in front of an engine's version; empty, which is before all others, without any."""
    plain = re.match(r"[0-9]+(\.[0-9]+)*", said)
    return tuple(map(int, plain[0].split("."))) if plain else ()


def check_plain(start: bytes) -> None:
    """Raise ``RequestError`` for an archive that is no plain tar.

    Engines unpack others with programs that some look for in the container, and run as root
    (https://github.com/advisories/GHSA-x86f-5xw2-fm2r).
    """
    is_tar = start[TAR_MAGIC] == b"ustar" or not start.strip(b"\0")
    if not is_tar or start.startswith(COMPRESSIONS) or SKIPPABLE_FRAME.match(start):
        raise RequestError("the archive is no plain tar", hint="unpack it first, with gunzip for example")
