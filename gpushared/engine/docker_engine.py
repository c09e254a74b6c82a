"""Implement the ``Engine`` port with the Docker SDK, and find out the engine's abilities.

Every call runs in a worker thread with a client of its own and under two time-outs: the socket's, which frees
the thread, and the caller's, which holds even if the engine sends a byte now and then. A call that finds the
engine gone fails at once; the next call connects again.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

from docker import APIClient
from docker.errors import APIError
from docker.errors import NotFound as NoSuchContainer

from gpushared.domain.model.errors import EngineUnavailable, NotFound, StateConflict, TimedOut
from gpushared.domain.model.lease import ContainerId
from gpushared.engine import reality
from gpushared.engine.cdi import DEFAULT_SPEC_DIR, LeaseSpecs
from gpushared.engine.engine_events import EventFeed, facts_of_inspect, ids_of_list
from gpushared.engine.reality import memory_used
from gpushared.engine.workers import Connector, Workers, unknown_words
from gpushared.ports import (
    LABEL_DEVICE,
    LABEL_GATE,
    CgroupDriver,
    ContainerFacts,
    ContainerStatus,
    DeviceMechanism,
    Edits,
    EngineFacts,
    Reality,
)

DEFAULT_URL = "unix:///var/run/docker.sock"
CALLS_AT_ONCE = 4
STOPS_AT_ONCE = 64
START_SECONDS = 30.0
"""Runtime hooks run within this time."""

_WRONG_STATE = {HTTPStatus.CONFLICT, HTTPStatus.INTERNAL_SERVER_ERROR}
"""Engines of different ages answer with these codes if a container is not in the state that a call needs."""
NVIDIA_RUNTIME = "nvidia"
DEVICE_REQUEST_HOOK = "nvidia-container-runtime-hook"
"""The Docker engine offers ``--gpus`` if it finds this program on its path at start."""

# Specs are YAML or JSON; two lines of a spec need no parser for both.
_NVIDIA_KIND = re.compile(
    r"""(?:^|[\s{,])["']?kind["']?\s*:\s*["']?nvidia\.com/gpu["']?\s*(?:[,}#]|$)""", re.MULTILINE
)
_UUID = r"(?:GPU|MIG)-[0-9a-f-]+"
_UUID_DEVICE = re.compile(rf"""["']?name["']?\s*:\s*["']?({_UUID})""")
_UUID_DISCOVERED = re.compile(rf"nvidia\.com/gpu=({_UUID})")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class DockerEngine:
    """Talk to one Docker engine.

    ``url``: a path or ``unix://`` URL. ``spec_dir``: the place of lease devices; by default ``/var/run/cdi``
    until ``probe`` learns the engine's directories, so that devices can be written before the engine is up
    (after a boot its restart policies act at once). ``timeout_seconds`` bounds each call.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        simulated_gpus: bool = False,
        spec_dir: Path | None = None,
        timeout_seconds: float = 10.0,
    ) -> None:
        self._connector = Connector(url, timeout_seconds)
        self._calls = Workers(self._connector, "engine-call", CALLS_AT_ONCE)
        # A stop lasts as long as the grace, so stops have threads of their own.
        self._stops = Workers(self._connector, "engine-stop", STOPS_AT_ONCE)
        self._feeds: set[EventFeed] = set()
        self._surveyed_at: float | None = None
        self._simulated_gpus = simulated_gpus
        self._spec_dir_is_given = spec_dir is not None
        self._specs = LeaseSpecs(spec_dir or DEFAULT_SPEC_DIR)
        self._specs_lock = asyncio.Lock()
        self._timeout_seconds = timeout_seconds

    async def probe(self) -> EngineFacts:
        """Return the engine's facts; lease devices written before move to this engine's directory."""

        def work(client: APIClient) -> tuple[EngineFacts, Path | None]:
            info = client.info()
            facts = engine_facts(client.version(), info, simulated_gpus=self._simulated_gpus)
            dirs = spec_dirs(info)
            return facts, runtime_spec_dir(dirs) if dirs else None

        facts, spec_dir = await self._calls.call("describe itself", work, self._timeout_seconds)
        if spec_dir is not None and not self._spec_dir_is_given:
            async with self._specs_lock:
                self._specs = await asyncio.to_thread(self._specs.in_directory, spec_dir)
        return facts

    async def containers(self) -> tuple[ContainerFacts, ...]:
        def work(client: APIClient) -> tuple[ContainerFacts, ...]:
            listed = client.containers(all=True, filters={"label": LABEL_DEVICE})
            inspected = (_inspect(client, container) for container in ids_of_list(listed))
            return tuple(facts for facts in inspected if facts is not None)

        began_at = time.time()
        surveyed = await self._calls.call("list its containers", work, self._timeout_seconds)
        # Where systemd holds the socket, a call of the engine's last life is answered in its next one.
        for feed in self._feeds:
            feed.check()
        self._surveyed_at = began_at
        return surveyed

    async def inspect(self, container: ContainerId) -> ContainerFacts | None:
        return await self._calls.call(
            f"inspect container {container[:12]}",
            lambda client: _inspect(client, container),
            self._timeout_seconds,
        )

    async def reality(self, container: ContainerId, barred: Sequence[str]) -> Reality | None:
        def work(client: APIClient) -> Reality | None:
            try:
                return reality.read(client.inspect_container(container), barred)
            except NoSuchContainer:
                return None

        return await self._calls.call(f"look at container {container[:12]}", work, self._timeout_seconds)

    async def running(self) -> tuple[ContainerId, ...]:
        def work(client: APIClient) -> tuple[ContainerId, ...]:
            listed = client.containers(filters={"label": LABEL_GATE})
            return tuple(ContainerId(each["Id"]) for each in listed)

        return await self._calls.call("list what runs", work, self._timeout_seconds)

    async def stop(self, container: ContainerId, grace_seconds: int) -> None:
        """Stop a container.

        Raises ``TimedOut`` if the container is not gone one call's time-out after the grace.
        """

        def work(client: APIClient) -> None:
            try:
                client.stop(container, timeout=grace_seconds)
            except NoSuchContainer:
                return

        await self._stops.call(
            f"stop container {container[:12]}", work, grace_seconds + self._timeout_seconds
        )

    async def freeze(self, container: ContainerId) -> None:
        def work(client: APIClient) -> None:
            facts = _inspect(client, container)
            if facts is None or facts.status is not ContainerStatus.PAUSED:
                client.pause(container)

        await self._change_state(f"freeze container {container[:12]}", work)

    async def thaw(self, container: ContainerId) -> None:
        def work(client: APIClient) -> None:
            facts = _inspect(client, container)
            if facts is None or facts.status is ContainerStatus.PAUSED:
                client.unpause(container)

        await self._change_state(f"thaw container {container[:12]}", work)

    async def _change_state(self, action: str, work: Callable[[APIClient], None]) -> None:
        def guarded(client: APIClient) -> None:
            try:
                work(client)
            except NoSuchContainer as error:
                raise StateConflict(f"cannot {action}: it is gone") from error
            except APIError as error:
                if error.status_code in _WRONG_STATE:
                    raise StateConflict(f"cannot {action}: {error.explanation}") from error
                raise

        await self._calls.call(action, guarded, self._timeout_seconds)

    async def signal(self, container: ContainerId, name: str) -> None:
        def work(client: APIClient) -> None:
            try:
                client.kill(container, signal=name)
            except NoSuchContainer:
                return
            except APIError as error:
                if error.status_code != HTTPStatus.CONFLICT:  # the container does not run
                    raise

        await self._calls.call(f"signal container {container[:12]}", work, self._timeout_seconds)

    async def start_again(self, container: ContainerId) -> None:
        """Start a container. Raises also ``EngineUnavailable`` in the engine's words if the start fails."""

        def work(client: APIClient) -> None:
            try:
                client.start(container)
            except NoSuchContainer as error:
                raise NotFound(f"there is no container {container[:12]}") from error

        await self._stops.call(f"start container {container[:12]}", work, START_SECONDS)

    def events(self) -> AsyncGenerator[ContainerFacts | ContainerId, None]:
        """Yield the changes since the last ``containers()`` began, or from this call on if there was none.

        So no change is missed between a survey and this stream; a change that the survey saw already may come
        again. The engine keeps its last 256 events for this, none of them over its own restart, after which
        the survey sees the outcome. A container that is gone before it could be inspected after its death
        comes twice: as exited with its exit code, then as gone.
        """
        return self._follow(since=time.time() if self._surveyed_at is None else self._surveyed_at)

    async def write_device(self, device_name: str, edits: Edits) -> None:
        """Make the device known; the engine need not be up.

        The device has no ``edits.env_defaults``: a device's environment always wins over the user's, so
        defaults belong into the container's own environment when it is created.
        """
        async with self._specs_lock:
            await asyncio.to_thread(self._specs.write, device_name, edits)

    async def remove_device(self, device_name: str) -> None:
        async with self._specs_lock:
            await asyncio.to_thread(self._specs.remove, device_name)

    async def close(self) -> None:
        for feed in self._feeds:
            feed.close()
        self._calls.close()
        self._stops.close()

    async def _follow(self, since: float) -> AsyncGenerator[ContainerFacts | ContainerId, None]:
        feed = EventFeed(self._connector, since)
        self._feeds.add(feed)
        try:
            while True:
                change = await feed.next()
                facts = await self.inspect(change.container)
                if facts is not None:
                    feed.check()
                if (facts := facts or change.last_words) is not None:
                    yield facts
                # A container may be gone before its end was reported: the reports are on their way.
                if change.destroyed:
                    yield change.container
        except TimedOut as error:
            feed.check()
            raise EngineUnavailable(error.message, hint=error.hint) from error
        finally:
            feed.close()
            self._feeds.discard(feed)


def _inspect(client: APIClient, container: ContainerId) -> ContainerFacts | None:
    try:
        facts = facts_of_inspect(client.inspect_container(container))
    except NoSuchContainer:
        return None
    memory = facts.memory
    if memory is None or not memory.limit_bytes or not facts.pid:
        return facts
    return replace(facts, memory=replace(memory, used_bytes=memory_used(facts.pid, facts.id)))


def engine_facts(version: Mapping[str, Any], info: Mapping[str, Any], *, simulated_gpus: bool) -> EngineFacts:
    """Return the facts of ``GET /version`` and ``GET /info``. This reads files: call it off the event loop.

    Engines list CDI directories only if CDI is switched on: it is by default since 28.2, and since 25.0 on
    request.
    """
    try:
        uuids = frozenset() if simulated_gpus else _nvidia_uuids(info)
        other = DeviceMechanism.PLAIN if simulated_gpus else _other_mechanism(info)
        return EngineFacts(
            version=version["Version"],
            api_version=version["ApiVersion"],
            lease_devices=bool(spec_dirs(info)),
            gpu_mechanism=DeviceMechanism.CDI if uuids else other,
            # Engines older than 20.10 know v1 only and do not report the version.
            cgroup_version=int(info.get("CgroupVersion") or 1),
            cgroup_driver=_cgroup_driver(info),
            cdi_gpus=uuids,
            other_mechanism=other,
            nvidia_by_default=_nvidia_by_default(info),
            maps_users="name=userns" in (info.get("SecurityOptions") or ()),
            live_restore=bool(info.get("LiveRestoreEnabled")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise unknown_words("describes itself", error) from error


def _cgroup_driver(info: Mapping[str, Any]) -> CgroupDriver:
    """Return the cgroup driver.

    An engine without root may have none, and puts containers into its own cgroup.
    """
    says_systemd = info.get("CgroupDriver") == CgroupDriver.SYSTEMD
    return CgroupDriver.SYSTEMD if says_systemd else CgroupDriver.CGROUPFS


def spec_dirs(info: Mapping[str, Any]) -> tuple[Path, ...]:
    """Return the directories of the engine's CDI specs, the one that wins last; empty without CDI."""
    return tuple(Path(path) for path in info.get("CDISpecDirs") or ())


def runtime_spec_dir(dirs: Sequence[Path]) -> Path:
    """Return the place of specs that need not outlive a boot: on a tmpfs if there is one, else the last."""
    mounts = _mounts()
    return next((path for path in reversed(dirs) if _file_system(path, mounts) == "tmpfs"), dirs[-1])


def _other_mechanism(info: Mapping[str, Any]) -> DeviceMechanism:
    """Return how GPUs come into containers if no CDI spec of NVIDIA's names them."""
    if find_program(DEVICE_REQUEST_HOOK):
        return DeviceMechanism.DEVICE_REQUEST
    if NVIDIA_RUNTIME in (info.get("Runtimes") or {}):
        return DeviceMechanism.NVIDIA_RUNTIME
    return DeviceMechanism.PLAIN


def find_program(name: str) -> str:
    """Return a program's path, as root's shell and the Docker engine would find it; empty without one."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}") or ""


def _nvidia_by_default(info: Mapping[str, Any]) -> bool:
    """Return True if the default runtime is NVIDIA's, by its name or its program's.

    Administrators choose the name freely.
    """
    name = info.get("DefaultRuntime") or ""
    runtime = (info.get("Runtimes") or {}).get(name) or {}
    return any("nvidia" in str(text) for text in (name, runtime.get("path") or ""))


def _nvidia_uuids(info: Mapping[str, Any]) -> frozenset[str]:
    """Return the UUIDs for which ``nvidia.com/gpu=<uuid>`` works: specs may name GPUs by index only."""
    discovered = (
        _UUID_DISCOVERED.fullmatch(device.get("ID", "")) for device in info.get("DiscoveredDevices") or ()
    )
    in_files = (_UUID_DEVICE.findall(text) for text in nvidia_specs(spec_dirs(info)).values())
    return frozenset(match[1] for match in discovered if match).union(*in_files)


def nvidia_specs(dirs: Sequence[Path]) -> dict[Path, str]:
    """Return the CDI specs of NVIDIA's GPUs in these directories, as text, without unreadable files."""
    files = (path for directory in dirs for path in sorted(directory.glob("*")))
    texts = {path: _read(path) for path in files if path.suffix in {".json", ".yaml", ".yml"}}
    return {path: text for path, text in texts.items() if _NVIDIA_KIND.search(text)}


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""  # an engine that cannot read the file either, or a file that was just removed


def _mounts() -> dict[Path, str]:
    """Return mount points and their types, from the machine's own table (proc(5))."""
    rows = (line.split(" ") for line in Path("/proc/self/mounts").read_text().splitlines())
    return {Path(row[1]): row[2] for row in rows}


def _file_system(path: Path, mounts: Mapping[Path, str]) -> str:
    resolved = path.resolve()
    return next((mounts[parent] for parent in (resolved, *resolved.parents) if parent in mounts), "")
