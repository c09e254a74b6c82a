"""Find the owner of a container by its labels, and lock objects against actions that must not overlap.

A name is resolved once, by an inspect, and the full id is used from then on: a container may have a name that
equals another one's short id. To the caller, another user's containers do not exist.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote
from weakref import WeakValueDictionary

from gpushared.domain.model.errors import EngineUnavailable, NotFound, RequestError, StateConflict
from gpushared.domain.model.lease import ContainerId
from gpushared.domain.model.request import Caller
from gpushared.gate.api.body import CPU_PERIOD_US, OWN_NETWORKS, Body, count_ports, objects, section, strings
from gpushared.gate.api.site import root_mark
from gpushared.gate.mounts.held_mounts import LABEL_PINS, list_labelled
from gpushared.net.error_answers import docker_error
from gpushared.net.http_client import EngineAnswer, EngineSocket, message_of
from gpushared.net.identity import NeededPath
from gpushared.ports import LABEL_DEVICE, LABEL_OWNER

LABEL_HOST_PATHS = "gpushare.host-paths"
"""The paths that a confined caller mounted, resolved, as JSON; the lease's mounts are not among them."""
OK = 200
CREATED = 201
MOVED = 301
NOT_FOUND = 404
CONFLICT = 409
NEVER_STARTED = "created"
STOPPED = frozenset({NEVER_STARTED, "exited"})
"""These are the engine's words for the state of a container."""
ENGINE_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+")
"""The engine takes these names for containers and volumes."""
BEGINNING_OF_ID = re.compile(r"[0-9a-f]{1,64}")
LIKE_AN_ID = re.compile(r"/?[0-9a-f]{12,64}")
LISTINGS = {"containers": b"/containers/json?all=1", "networks": b"/networks"}
"""A name for a container or network could also be an id in one of these listings."""
HOLDER = re.compile(r'container "?([0-9a-f]{64})')


class NotYours(NotFound):
    """Refuse another user's container in the words for a container that does not exist."""


@dataclass(frozen=True, slots=True)
class Layers:
    """Hold the directories of overlay2 that make up a container's files, by the engine's paths."""

    lower: tuple[str, ...]
    """The directories of the image, the topmost one first."""
    upper: str
    """The container's own directory."""


@dataclass(frozen=True, slots=True)
class Container:
    """Hold the facts about one container that the gate needs."""

    id: ContainerId
    name: str
    labels: Mapping[str, str]
    user: str = ""
    """The container's programs run as this user, in the engine's words."""
    networks: frozenset[str] = frozenset()
    """The names by which the container will look for its networks at every start, without
    ``OWN_NETWORKS``."""
    terminal: bool = False
    """The container's output is that of a terminal."""
    is_stopped: bool = False
    """None of the container's processes runs, and the engine is not about to start one."""
    is_new: bool = False
    """None of the container's processes has ever run: it was created, and not started since."""
    pid: int = 0
    """The first process of the container, paused or not; 0 if the container does not run."""
    groups: tuple[int, ...] = ()
    """The container's programs have these groups besides the group in ``user``."""
    has_volumes: bool = False
    """This includes the image's volumes."""
    mounts: tuple[str, ...] = ()
    """The places in the container on which a mount lies."""
    tmpfs: tuple[str, ...] = ()
    """The places where a file system in memory is mounted besides ``mounts``."""
    layers: Layers | None = None
    """None if the engine keeps the container's files in another way."""
    volumes: frozenset[str] = frozenset()
    """The container will look for users' volumes by these names."""
    ports: int = 0
    """The container publishes this many of the machine's ports while it runs."""
    auto_remove: bool = False
    cgroup_parent: str = ""
    cpus: float = 0.0
    """The container may use this many CPUs; 0 sets no limit."""

    @property
    def owner(self) -> int | None:
        """Return the uid of the container's creator; None for a container that was made past every gate."""
        uid = self.labels.get(LABEL_OWNER, "")
        return int(uid) if uid.isdecimal() else None

    @property
    def pin(self) -> str:
        """Return the name of the files held for the container, empty if it mounts the paths themselves."""
        return self.labels.get(LABEL_PINS, "")

    @property
    def host_paths(self) -> list[NeededPath]:
        """Return the files of the host that the container's creator mounted into it."""
        return [NeededPath(**path) for path in json.loads(self.labels.get(LABEL_HOST_PATHS) or "[]")]

    @property
    def device_name(self) -> str:
        """Return the name of the lease's device, empty without a lease."""
        return self.labels.get(LABEL_DEVICE, "")


def owns(caller: Caller, labels: Mapping[str, str]) -> bool:
    """Return True if the caller may use an object with these labels."""
    return caller.trusted or labels.get(LABEL_OWNER) == str(caller.uid)


async def find_container(engine: EngineSocket, name: str, caller: Caller) -> Container:
    """Return the caller's container.

    Raises ``NotFound`` in the engine's words, also for another user's container.
    """
    try:
        return await _find_container(engine, name, caller)
    except (NotFound, RequestError) as error:
        own = None if caller.trusted else await _own_by_id(engine, name, caller)
        if own is not None:
            return await _find_container(engine, own, caller)
        # The error that several ids begin alike would reveal other users' containers.
        raise error if isinstance(error, NotFound) else NotFound(f"No such container: {name}") from error


async def _own_by_id(engine: EngineSocket, beginning: str, caller: Caller) -> str | None:
    """Return the full id of the caller's only container whose id begins so, whatever other users' ids are."""
    if not BEGINNING_OF_ID.fullmatch(beginning):
        return None
    ids = [str(container["Id"]) for container in await own_containers(engine, caller)]
    fitting = [identity for identity in ids if identity.startswith(beginning)]
    return fitting[0] if len(fitting) == 1 else None


async def own_containers(engine: EngineSocket, caller: Caller) -> list[dict[str, Any]]:
    """Return the engine's list of the containers that bear the caller's label, running or not."""
    answer = await list_labelled(engine, f"{LABEL_OWNER}={caller.uid}")
    return list(answer.json()) if answer.status == OK else []


async def _find_container(engine: EngineSocket, name: str, caller: Caller) -> Container:
    description = await inspect(engine, "containers", name, suffix="/json")
    if description is None:
        raise NotFound(f"No such container: {name}")
    labels = section(section(description, "Config"), "Labels")
    if not owns(caller, labels) or not (caller.trusted or _is_confined(description, caller)):
        raise NotYours(f"No such container: {name}")
    config, host, state = (section(description, name) for name in ("Config", "HostConfig", "State"))
    mounts = objects(description, "Mounts")
    return Container(
        ContainerId(description["Id"]),
        str(description.get("Name", "")).lstrip("/"),
        labels,
        str(config.get("User") or ""),
        networks_of(description),
        terminal=bool(config.get("Tty")),
        is_stopped=state.get("Status") in STOPPED,
        is_new=state.get("Status") == NEVER_STARTED,
        pid=int(state.get("Pid") or 0),
        groups=_groups(host),
        has_volumes=any(mount.get("Type") == "volume" for mount in mounts),
        mounts=tuple(str(mount.get("Destination") or "") for mount in mounts),
        tmpfs=tuple(section(host, "Tmpfs")),
        layers=_layers(description),
        volumes=_volumes(host),
        ports=count_ports(host, section(config, "ExposedPorts")),
        auto_remove=bool(host.get("AutoRemove")),
        cgroup_parent=str(host.get("CgroupParent") or ""),
        cpus=_cpus(host),
    )


def _groups(host: Body) -> tuple[int, ...]:
    """Return the numeric groups. Trusted callers may give names, which only the image can resolve."""
    return tuple(int(group) for group in strings(host, "GroupAdd") if group.isdecimal())


def _layers(description: Body) -> Layers | None:
    """Return the layers; None also if the engine gives the files a label of SELinux by mounting them."""
    driver = section(description, "GraphDriver")
    data = section(driver, "Data")
    lower, upper = str(data.get("LowerDir") or ""), str(data.get("UpperDir") or "")
    if driver.get("Name") != "overlay2" or description.get("MountLabel") or not (lower and upper):
        return None
    return Layers(tuple(lower.split(":")), upper)


def _cpus(host: Body) -> float:
    nano, quota = host.get("NanoCpus") or 0, host.get("CpuQuota") or 0
    return nano / 1e9 if nano > 0 else max(0, quota) / (host.get("CpuPeriod") or CPU_PERIOD_US)


def _is_confined(description: Body, caller: Caller) -> bool:
    """Return True if the container runs as a confined caller's containers do.

    Labels alone do not prove that: a trusted user's container has the labels of its image, and one of the
    caller's own may be from a time when the caller was trusted. A caller who may use the container would have
    all its rights.
    """
    host = section(description, "HostConfig")
    is_caller = str(section(description, "Config").get("User")).startswith(f"{caller.uid}:")
    is_caller = is_caller or host.get("ContainerIDFile") == root_mark(caller.uid)
    return is_caller and "ALL" in strings(host, "CapDrop") and not host.get("Privileged")


def networks_of(container: Body) -> frozenset[str]:
    """Return the names by which a container, by inspect or from a listing, looks for its networks."""
    mode = str(section(container, "HostConfig").get("NetworkMode") or "")
    return frozenset({mode, *section(section(container, "NetworkSettings"), "Networks")}) - OWN_NETWORKS


def _volumes(host: Body) -> frozenset[str]:
    mounts = objects(host, "Mounts")
    return frozenset(
        str(each["Source"]) for each in mounts if each["Type"] == "volume" and each.get("Source")
    )


async def find_network(engine: EngineSocket, name: str, caller: Caller) -> dict[str, Any]:
    """Return the caller's network by its whole name or id.

    The beginning of an id may be another network's tomorrow, so it is refused. Raises ``NotFound`` or
    ``RequestError``.
    """
    network = await find_owned(engine, "networks", name, caller)
    if not caller.trusted and name not in {network["Name"], network["Id"]}:
        raise RequestError(f"{name} is only the beginning of an id", hint=f"write {network['Name']}")
    return network


async def check_unused(engine: EngineSocket, network: Mapping[str, Any], caller: Caller) -> None:
    """Raise ``StateConflict`` while a container of the caller's, even a stopped one, is on the network.

    The container would look for the name at its next start, when another user's network could have the name.
    """
    for container in await own_containers(engine, caller):
        if networks_of(container) & {network["Name"], network["Id"]}:
            name = name_in_listing(container)
            raise StateConflict(
                f"the network {network['Name']} is the container {name}'s", hint=f"docker rm {name} first"
            )


def name_in_listing(container: Mapping[str, Any]) -> str:
    """Return a listed container's name, or its id if the engine gives no name."""
    return str((container.get("Names") or [container["Id"]])[0]).lstrip("/")


async def find_exec(engine: EngineSocket, name: str, caller: Caller) -> str:
    """Return the full id of an exec instance in one of the caller's containers.

    Only root may start an exec instance that root made there, with the rights that it was made with.
    """
    missing = f"No such exec instance: {name}"
    instance = await inspect(engine, "exec", name, suffix="/json")
    if instance is None:
        raise NotFound(missing)
    try:
        container = await find_container(engine, str(instance["ContainerID"]), caller)
    except NotFound as error:
        raise type(error)(missing) from None
    if not _has_rights_of(section(instance, "ProcessConfig"), container):
        raise NotYours(missing)
    return str(instance["ID"])


def _has_rights_of(process: Body, container: Container) -> bool:
    return not process.get("privileged") and str(process.get("user") or "") in {"", container.user}


async def find_owned(
    engine: EngineSocket, kind: str, name: str, caller: Caller, *, hint: str = ""
) -> dict[str, Any]:
    """Return a network or volume of the caller's; ``kind`` is the first word of its path.

    Raises ``NotFound``.
    """
    missing = f"No such {kind.removesuffix('s')}: {name}"
    try:
        description = await inspect(engine, kind, name)
    except RequestError as error:
        # The error that several objects match would reveal other users' objects.
        raise error if caller.trusted else NotFound(missing, hint=hint) from error
    if description is None:
        raise NotFound(missing, hint=hint)
    if not owns(caller, section(description, "Labels")):
        raise NotYours(missing, hint=hint)
    return description


async def find_volume(engine: EngineSocket, name: str, caller: Caller) -> dict[str, Any] | None:
    """Return the caller's volume; None if there is none and the engine would make it.

    Raises ``NotYours`` for another user's volume.
    """
    try:
        return await find_owned(engine, "volumes", name, caller)
    except NotYours:
        raise
    except NotFound:
        if not ENGINE_NAME.fullmatch(name):
            raise
        return None


async def find_image(engine: EngineSocket, image: str) -> Body:
    """Return the engine's description of an image; empty if there is no such image."""
    return await inspect(engine, "images", image, suffix="/json") or {}


async def image_config(engine: EngineSocket, image: str) -> Body:
    """Return an image's configuration, empty if there is no such image."""
    return section(await find_image(engine, image), "Config")


async def inspect(engine: EngineSocket, kind: str, name: str, suffix: str = "") -> dict[str, Any] | None:
    """Return the engine's description of one object, or None if there is none."""
    answer = await engine.call("GET", f"/{kind}/{quote(name, safe='')}{suffix}".encode())
    # The engine redirects names with dots and doubled slashes to a path without them.
    if answer.status in {NOT_FOUND, MOVED}:
        return None
    description = answer.json()
    if not isinstance(description, dict):
        raise EngineUnavailable(f"the Docker engine described {name} in an unknown way")
    if answer.status != OK:
        raise RequestError(str(description.get("message", f"the Docker engine refused {name}")))
    return description


class NamedLocks:
    """Hold one lock for each container, or for each volume, that a request works on.

    A container is not started through the gate while files are copied. A volume is neither made nor removed
    while a container with it is being created: until the engine has that container, and keeps the volume for
    it, another user could make a volume of the same name.
    """

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def of(self, container: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(container, asyncio.Lock())
        async with lock:
            yield

    @asynccontextmanager
    async def of_all(self, names: Iterable[str]) -> AsyncIterator[None]:
        """Take the locks one after the other, in one order for all callers, so that there is no deadlock."""
        async with AsyncExitStack() as stack:
            for name in sorted(set(names)):
                await stack.enter_async_context(self.of(name))
            yield


async def check_name(name: str, engine: EngineSocket, caller: Caller) -> None:
    """Raise ``RequestError`` for a name that is another object's id, or the beginning of one in a listing.

    The engine looks for a name before the beginning of an id: the owner of such a name gets the requests that
    other users, root among them, mean for another object. Ids are random, so nobody can take a name before
    the id exists.
    """
    if not LIKE_AN_ID.fullmatch(name):
        return
    for kind, listing in LISTINGS.items():
        answer = await engine.call("GET", listing)
        for entry in answer.json() if answer.status == OK else ():
            is_meant = str(entry["Id"]).startswith(name.lstrip("/"))
            if is_meant and not await _is_own(engine, kind, str(entry["Id"]), caller):
                raise RequestError(
                    f"the name {name} could be taken for an id", hint="choose one with other letters"
                )


async def _is_own(engine: EngineSocket, kind: str, identity: str, caller: Caller) -> bool:
    try:
        if kind == "containers":
            await find_container(engine, identity, caller)
        else:
            await find_owned(engine, kind, identity, caller)
    except NotFound:
        return False
    return True


async def hide_holder(answer: EngineAnswer, name: str, engine: EngineSocket, caller: Caller) -> EngineAnswer:
    """Return the answer to a create or rename, without the id of another user's container of that name."""
    holder = HOLDER.search(message_of(answer)) if answer.status == CONFLICT else None
    if holder is None:
        return answer
    try:
        await find_container(engine, holder[1], caller)
    except NotFound:
        message = (
            f"Conflict. The container name {name} is taken by somebody else's container (choose another)"
        )
        return replace(answer, body=docker_error(message))
    return answer
