"""Give new volumes to the confined caller that made them, before a container can run with them.

The engine makes a volume root's, and the first container with it copies the image's directory in, owner and
all. Programs of a confined caller run as the caller: without this they could write to no volume.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpushared.domain.model.errors import EngineUnavailable, TimedOut, Unavailable
from gpushared.domain.model.request import Caller
from gpushared.gate.api.body import Body, objects
from gpushared.gate.containers.lease_port import LeasePort
from gpushared.gate.containers.ownership import find_owned, inspect
from gpushared.gate.mounts.helper_process import run_helper
from gpushared.net.http_client import EngineSocket

log = logging.getLogger(__name__)

GIVING_SECONDS = 120.0
"""An image's directory can have some hundred thousand files."""


class NewVolumes:
    """Find new volumes, and give them to their maker."""

    def __init__(self, engine: EngineSocket, desk: LeasePort) -> None:
        self._engine = engine
        self._desk = desk

    async def used(self, volumes: Iterable[Body]) -> frozenset[str]:
        """Return the names of the volumes that have files already; the engine leaves these as they are."""
        looked = _places(volumes)
        if not looked or not (found := await self._help("empty-volumes", looked)):
            return frozenset(each["name"] for each in looked)
        return frozenset(each["name"] for each in looked) - {*found["empty"]}

    async def give(self, container: str, caller: Caller, used: frozenset[str]) -> None:
        """Make the container's volumes the caller's, but for the used. Raises ``NotFound`` for another's."""
        found = await inspect(self._engine, "containers", container, suffix="/json") or {}
        names = [str(each["Name"]) for each in objects(found, "Mounts") if each.get("Type") == "volume"]
        volumes = [await find_owned(self._engine, "volumes", name, caller) for name in names]
        if places := _places(each for each in volumes if each["Name"] not in used):
            await self._help("give-volumes", places, uid=caller.uid, gid=caller.gid)

    async def _help(self, deed: str, places: Sequence[Mapping[str, str]], **more: int) -> dict[str, Any]:
        """Return the helper's answer, empty if nothing can be done: then the volumes stay root's."""
        try:
            if self._desk.engine_facts().maps_users:
                return {}
            engine = await self._engine.peer_pid()
            order = {"deed": deed, "volumes": places, "engine": engine, **more}
            return await run_helper(order, seconds=GIVING_SECONDS)
        except (EngineUnavailable, TimedOut, Unavailable) as error:
            log.warning("new volumes stay root's: %s", error)
            return {}


def _places(volumes: Iterable[Body]) -> list[Mapping[str, str]]:
    """Return the volumes that are the engine's own directories: options can lead a volume anywhere."""
    return [
        {"name": str(each["Name"]), "path": str(each["Mountpoint"])}
        for each in volumes
        if each.get("Driver") == "local" and not each.get("Options")
    ]
