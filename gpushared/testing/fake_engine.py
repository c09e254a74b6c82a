"""Fake a container engine in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Self
from weakref import WeakSet

from gpushared.domain.model.errors import (
    EngineUnavailable,
    NotFound,
    StateConflict,
    TimedOut,
)
from gpushared.domain.model.lease import ContainerId
from gpushared.ports import (
    LABEL_DEVICE,
    LABEL_GATE,
    LABEL_OWNER,
    ContainerFacts,
    ContainerStatus,
    DeviceMechanism,
    Edits,
    EngineFacts,
    Reality,
)
from gpushared.testing.fake_clock import Failing

FAKE_FACTS = EngineFacts(
    version="26.1.5+fake",
    api_version="1.45",
    lease_devices=True,
    gpu_mechanism=DeviceMechanism.PLAIN,
    cgroup_version=2,
)
KILLED = 137
TERMINATED = 143
MAX_PENDING_EVENTS = 10_000

_ALIVE = frozenset({ContainerStatus.RUNNING, ContainerStatus.PAUSED, ContainerStatus.RESTARTING})


@dataclass(frozen=True, slots=True)
class _Gone:
    reason: str


class FakeEngine(Failing):
    """Run containers that live, die and vanish when a test says so: a fake ``Engine``.

    The methods without ``async`` are the test's hands and must be called on the loop's thread; the others are
    the port. As with a real engine that knows CDI, a container with a lease's device does not start before
    its device was written; ``applied`` holds the edits each container got at its last start.
    """

    def __init__(self, facts: EngineFacts = FAKE_FACTS) -> None:
        super().__init__()
        self.facts = facts
        self.devices: dict[str, Edits] = {}
        self.applied: dict[ContainerId, Edits] = {}
        self.stops: list[tuple[ContainerId, int]] = []
        self.signals: list[tuple[ContainerId, str]] = []
        self.closed = False
        self._containers: dict[ContainerId, ContainerFacts] = {}
        self._unstoppable: set[ContainerId] = set()
        self._to_restart: set[ContainerId] = set()
        self._away: str | None = None
        self._streams: WeakSet[_EventStream] = WeakSet()
        self._numbers = count(1)

    # --- the test's hands ------------------------------------------------------------------------------

    def create(
        self,
        device_name: str = "",
        *,
        name: str = "",
        image: str = "fake/image",
        owner_uid: int | None = None,
        restart_policy: str = "no",
        labels: Mapping[str, str] | None = None,
    ) -> ContainerId:
        """Make a new container that does not run.

        Without ``device_name`` the daemon ignores the container.
        """
        number = next(self._numbers)
        container = ContainerId(f"{number:064x}")
        all_labels = dict(labels or {})
        if device_name:
            all_labels[LABEL_DEVICE] = device_name
        if owner_uid is not None:
            all_labels[LABEL_OWNER] = str(owner_uid)
        self._containers[container] = ContainerFacts(
            id=container,
            name=name or f"fake-{number}",
            image=image,
            status=ContainerStatus.CREATED,
            exit_code=0,
            pid=0,
            device_name=device_name,
            owner_uid=owner_uid,
            restart_policy=restart_policy,
            labels=all_labels,
        )
        self._emit(container)
        return container

    def start(self, container: ContainerId) -> None:
        """Let the container run (again). Raises NotFound if its lease's device was not written."""
        self._apply_device(self._existing(container))
        self._set(container, status=ContainerStatus.RUNNING, exit_code=0, pid=10_000 + next(self._numbers))

    def exit(self, container: ContainerId, code: int = 0) -> None:
        """End the main process; if the restart policy says so, the container waits to be restarted."""
        facts = self._alive(container)
        again = facts.restart_policy in {"always", "unless-stopped"} or (
            facts.restart_policy.startswith("on-failure") and code != 0
        )
        status = ContainerStatus.RESTARTING if again else ContainerStatus.EXITED
        self._set(container, status=status, exit_code=code, pid=0)

    def pause(self, container: ContainerId) -> None:
        self._alive(container)
        self._set(container, status=ContainerStatus.PAUSED)

    def unpause(self, container: ContainerId) -> None:
        self._alive(container)
        self._set(container, status=ContainerStatus.RUNNING)

    def remove(self, container: ContainerId) -> None:
        """Remove the container, as ``docker rm -f`` does."""
        self._existing(container)
        was_ours = self._is_ours(container)
        del self._containers[container]
        self.applied.pop(container, None)
        if was_ours:
            self._emit_id(container)

    def make_unstoppable(self, container: ContainerId) -> None:
        """Let ``stop`` time out from now on: a process that hangs in the driver cannot even be killed."""
        self._unstoppable.add(self._existing(container).id)

    def make_stoppable(self, container: ContainerId) -> None:
        self._unstoppable.discard(container)

    def go_away(self, reason: str = "the Docker engine does not answer") -> None:
        """Fail every call of the port and end every event stream; containers live on."""
        self._away = reason
        for stream in list(self._streams):
            stream.push(_Gone(reason))
        self._streams.clear()

    def cut_power(self) -> None:
        """Go away with all processes killed; ``come_back`` then restarts by policy, as at a boot."""
        self.go_away()
        for facts in self._containers.values():
            always = facts.restart_policy == "always"
            if always or (facts.restart_policy == "unless-stopped" and facts.status in _ALIVE):
                self._to_restart.add(facts.id)
        for facts in list(self._containers.values()):
            if facts.status in _ALIVE:
                self._set(facts.id, status=ContainerStatus.EXITED, exit_code=KILLED, pid=0)

    def come_back(self) -> None:
        """Answer again. A container whose device is unknown by then stays down, as with a real engine."""
        self._away = None
        for container in sorted(self._to_restart & self._containers.keys()):
            try:
                self.start(container)
            except NotFound:
                continue
        self._to_restart.clear()

    # --- the port --------------------------------------------------------------------------------------

    async def probe(self) -> EngineFacts:
        self._ready()
        return self.facts

    async def containers(self) -> tuple[ContainerFacts, ...]:
        self._ready()
        return tuple(facts for facts in self._containers.values() if self._is_ours(facts.id))

    async def inspect(self, container: ContainerId) -> ContainerFacts | None:
        self._ready()
        return self._containers.get(container)

    async def reality(self, container: ContainerId, barred: Sequence[str]) -> Reality | None:  # noqa: ARG002 - the port's
        """Return None: the fake's containers have no processes, so there is nothing to look at."""
        self._ready()
        return None

    async def running(self) -> tuple[ContainerId, ...]:
        self._ready()
        alive = (facts for facts in self._containers.values() if facts.status in _ALIVE)
        return tuple(facts.id for facts in alive if LABEL_GATE in facts.labels)

    async def stop(self, container: ContainerId, grace_seconds: int) -> None:
        self._ready()
        self.stops.append((container, grace_seconds))
        if container in self._unstoppable:
            raise TimedOut(f"container {container[:12]} did not stop")
        facts = self._containers.get(container)
        if facts is not None and facts.status in _ALIVE:
            self._set(container, status=ContainerStatus.EXITED, exit_code=TERMINATED, pid=0)

    async def freeze(self, container: ContainerId) -> None:
        self._ready()
        facts = self._containers.get(container)
        if facts is None or facts.status not in _ALIVE:
            raise StateConflict(f"container {container[:12]} does not run")
        self._set(container, status=ContainerStatus.PAUSED)

    async def thaw(self, container: ContainerId) -> None:
        self._ready()
        facts = self._containers.get(container)
        if facts is None or facts.status not in _ALIVE:
            raise StateConflict(f"container {container[:12]} does not run")
        if facts.status is ContainerStatus.PAUSED:
            self._set(container, status=ContainerStatus.RUNNING)

    async def signal(self, container: ContainerId, name: str) -> None:
        self._ready()
        facts = self._containers.get(container)
        if facts is not None and facts.status in _ALIVE:
            self.signals.append((container, name))

    async def start_again(self, container: ContainerId) -> None:
        self._ready()
        if self._existing(container).status not in _ALIVE:
            self.start(container)

    def events(self) -> AsyncIterator[ContainerFacts | ContainerId]:
        stream = _EventStream(self)
        if self._away is None:
            self._streams.add(stream)
        else:
            stream.push(_Gone(self._away))
        return stream

    async def write_device(self, device_name: str, edits: Edits) -> None:
        # A device is a file on disk: writing works while the engine is away, and must, because of reboots.
        self._may_fail()
        self.devices[device_name] = edits

    async def remove_device(self, device_name: str) -> None:
        self._may_fail()
        self.devices.pop(device_name, None)

    async def close(self) -> None:
        self.closed = True

    # --- inside ----------------------------------------------------------------------------------------

    def facts_of(self, container: ContainerId) -> ContainerFacts | None:
        """Return the facts that an inspect would give, also while the engine is away."""
        return self._containers.get(container)

    def _ready(self) -> None:
        self._may_fail()
        if self._away is not None:
            raise EngineUnavailable(self._away, hint="see `systemctl status docker`")

    def _existing(self, container: ContainerId) -> ContainerFacts:
        facts = self._containers.get(container)
        if facts is None:
            raise NotFound(f"no such container: {container}")
        return facts

    def _alive(self, container: ContainerId) -> ContainerFacts:
        facts = self._existing(container)
        if facts.status not in _ALIVE:
            raise StateConflict(f"container {facts.name} is {facts.status}, not running")
        return facts

    def _apply_device(self, facts: ContainerFacts) -> None:
        if not (facts.device_name and self.facts.lease_devices):
            return
        if facts.device_name not in self.devices:
            raise NotFound(f"unresolvable CDI device gpushare.io/lease={facts.device_name}")
        self.applied[facts.id] = self.devices[facts.device_name]

    def _set(
        self,
        container: ContainerId,
        *,
        status: ContainerStatus,
        exit_code: int | None = None,
        pid: int | None = None,
    ) -> None:
        facts = self._containers[container]
        self._containers[container] = replace(
            facts,
            status=status,
            exit_code=facts.exit_code if exit_code is None else exit_code,
            pid=facts.pid if pid is None else pid,
        )
        self._emit(container)

    def _is_ours(self, container: ContainerId) -> bool:
        return LABEL_DEVICE in self._containers[container].labels

    def _emit(self, container: ContainerId) -> None:
        if self._is_ours(container):
            self._emit_id(container)

    def _emit_id(self, container: ContainerId) -> None:
        for stream in list(self._streams):
            stream.push(container)


class _EventStream:
    """Listen from the call of ``events()`` on; each event is what an inspect says when it is read."""

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        self._pending: asyncio.Queue[ContainerId | _Gone] = asyncio.Queue(MAX_PENDING_EVENTS)

    def push(self, event: ContainerId | _Gone) -> None:
        self._pending.put_nowait(event)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ContainerFacts | ContainerId:
        event = await self._pending.get()
        if isinstance(event, _Gone):
            self._pending.put_nowait(event)
            raise EngineUnavailable(event.reason, hint="see `systemctl status docker`")
        return self._engine.facts_of(event) or event
