"""Whose is it? Names and ids resolved by the engine, and owners read from labels.

A name is resolved once, by an inspect, and the full id is used from then on: a container may be named like
another one's short id. What is not the caller's does not exist for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from gpushared.domain.errors import EngineUnavailable, NotFound, RequestError
from gpushared.domain.lease import ContainerId
from gpushared.domain.request import Caller
from gpushared.gate.body import section
from gpushared.gate.engine import EngineSocket
from gpushared.ports import LABEL_DEVICE, LABEL_OWNER

LABEL_HOST_PATHS = "gpushare.host-paths"
"""Set on containers of confined callers that have mounts of their own; the lease's mounts do not count."""
OK = 200
NOT_FOUND = 404


@dataclass(frozen=True, slots=True)
class Container:
    """One container as the gate needs it."""

    id: ContainerId
    name: str
    labels: Mapping[str, str]

    @property
    def has_host_paths(self) -> bool:
        """Whether its creator mounted files of the host into it."""
        return LABEL_HOST_PATHS in self.labels

    @property
    def device_name(self) -> str:
        """The name of its lease's device, empty without one."""
        return self.labels.get(LABEL_DEVICE, "")


def owns(caller: Caller, labels: Mapping[str, str]) -> bool:
    """Whether something with these labels is the caller's to use."""
    return caller.trusted or labels.get(LABEL_OWNER) == str(caller.uid)


async def find_container(engine: EngineSocket, name: str, caller: Caller) -> Container:
    """The caller's container; raises ``NotFound`` in the engine's words, also for another's."""
    found = await inspect(engine, "containers", name, suffix="/json")
    if found is None:
        raise NotFound(f"No such container: {name}")
    labels = section(section(found, "Config"), "Labels")
    container = Container(ContainerId(found["Id"]), str(found.get("Name", "")).lstrip("/"), labels)
    if not owns(caller, container.labels):
        raise NotFound(f"No such container: {name}")
    return container


async def find_exec(engine: EngineSocket, name: str, caller: Caller) -> str:
    """The full id of an exec instance in one of the caller's containers."""
    found = await inspect(engine, "exec", name, suffix="/json")
    if found is not None:
        try:
            await find_container(engine, str(found["ContainerID"]), caller)
        except NotFound:
            found = None
    if found is None:
        raise NotFound(f"No such exec instance: {name}")
    return str(found["ID"])


async def find_owned(engine: EngineSocket, kind: str, name: str, caller: Caller) -> dict[str, Any]:
    """A network or volume of the caller's; ``kind`` is the first word of its path."""
    found = await inspect(engine, kind, name)
    if found is None or not owns(caller, section(found, "Labels")):
        raise NotFound(f"No such {kind.removesuffix('s')}: {name}")
    return found


async def inspect(engine: EngineSocket, kind: str, name: str, suffix: str = "") -> dict[str, Any] | None:
    """What the engine says of one thing, None when there is none."""
    answer = await engine.call("GET", f"/{kind}/{quote(name, safe='')}{suffix}".encode())
    if answer.status == NOT_FOUND:
        return None
    found = answer.json()
    if not isinstance(found, dict):
        raise EngineUnavailable(f"the Docker engine described {name} in an unknown way")
    if answer.status != OK:
        raise RequestError(str(found.get("message", f"the Docker engine refused {name}")))
    return found
