"""Create a container, and put its lease into it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from gpushared.daemon.tasks import TaskSet
from gpushared.domain.model.errors import (
    EngineUnavailable,
    GpushareError,
    RequestError,
    TimedOut,
    Unavailable,
)
from gpushared.domain.model.lease import ContainerId, LeaseId
from gpushared.domain.model.request import Caller
from gpushared.domain.model.request_spec import RequestSpec
from gpushared.gate.api.body import Body, objects, section, serialise, strings
from gpushared.gate.api.routes import Target
from gpushared.gate.containers.gpu_request import (
    REQUEST_LABELS,
    GpuRequest,
    LeaseClaim,
    hints_for_docker,
    labels_of,
    with_count,
)
from gpushared.gate.containers.inject import (
    NO_DEVICES,
    VISIBLE_DEVICES,
    binds_late,
    default_env,
    inject,
    merge_env,
)
from gpushared.gate.containers.lease_port import Claim, LeasePort
from gpushared.gate.containers.ownership import (
    CONFLICT,
    ENGINE_NAME,
    NOT_FOUND,
    NamedLocks,
    find_owned,
    find_volume,
    inspect,
)
from gpushared.gate.mounts.helper_process import run_helper
from gpushared.gate.policy.mount_rules import volumes_of
from gpushared.net.error_answers import docker_error
from gpushared.net.http_client import EngineAnswer, EngineSocket, message_of
from gpushared.ports import LABEL_ATTEMPT, LABEL_DEVICE, LABEL_GATE, LABEL_JOB, LABEL_OWNER
from gpushared.storage.audit.line import CallRecord, digest_of

log = logging.getLogger(__name__)

CREATED = 201
ROOT_USER = "0:0"
"""The judge writes root's user in this form."""
NO_IMAGE = "No such image: "
MIN_MEMORY_BYTES = 6 << 20
"""The engine gives no container less."""
CREATE_SECONDS = 600.0
"""A first container of a big image can take minutes on a slow disk."""
NO_GATE_LABELS = dict.fromkeys((LABEL_DEVICE, LABEL_JOB, LABEL_ATTEMPT), "")
"""An image that was committed from a leased container carries such labels, which the gate would trust."""
NO_REQUEST_LABELS = dict.fromkeys(REQUEST_LABELS, "")
"""An image may carry such labels too: a container that gets its lease by its labels has only the gate's."""

GIVING_SECONDS = 120.0
"""An image's directory can have some hundred thousand files."""


@dataclass(frozen=True, slots=True)
class CreateOrder:
    """Hold one create: the judged body is complete but for the lease and the labels."""

    target: Target
    body: Body
    caller: Caller
    record: CallRecord = field(default_factory=CallRecord)
    confined: bool = False
    """True if the body was judged."""

    @property
    def name(self) -> str:
        """Return the container's future name, empty if the engine is to choose one."""
        return self.target.get("name").removeprefix("/")


class Creator:
    """Create containers. A create that has got a lease is finished even if its client goes away."""

    def __init__(
        self,
        engine: EngineSocket,
        lease_service: LeasePort,
        gate: str = "",
        volume_locks: NamedLocks | None = None,
    ) -> None:
        self._engine = engine
        self._lease_service = lease_service
        self._gate = gate
        self._volume_locks = volume_locks or NamedLocks()
        self._new_volumes = NewVolumes(engine, lease_service)
        self._under_way = TaskSet()

    async def create(self, order: CreateOrder, gpu_request: GpuRequest | None) -> EngineAnswer:
        """Create a container and return the engine's answer. Raises ``GpushareError`` if it was not asked."""
        match gpu_request:
            case None:
                return await self._create_plain(order)
            case LeaseClaim(lease):
                claim = await self._lease_service.claim(lease, order.caller)
                return await self._finish(self._create_leased(order, claim, self._lease_service.unclaim))
            case RequestSpec():
                return await self._create_with_request(order, gpu_request)

    async def forgo(self, gpu_request: GpuRequest | None, caller: Caller) -> None:
        """End the caller's lease, which no container will use: the create was refused before its claim."""
        if isinstance(gpu_request, LeaseClaim):
            with contextlib.suppress(GpushareError):
                claim = await self._lease_service.claim(gpu_request.lease, caller)
                await self._lease_service.release(claim.lease)

    async def close(self) -> None:
        """Wait for the creates under way."""
        await self._under_way.wait()

    async def _create_plain(self, order: CreateOrder) -> EngineAnswer:
        # An image may carry variables that give GPUs, if the engine's runtime reads them.
        if order.confined or self._gives_by_variable():
            order.body["Env"] = merge_env(strings(order.body, "Env"), {VISIBLE_DEVICES: NO_DEVICES})
        return await self._post(order, {})

    def _gives_by_variable(self) -> bool:
        try:
            return self._lease_service.engine_facts().nvidia_by_default
        except EngineUnavailable:
            return True  # the engine has not described itself yet

    async def _create_with_request(self, order: CreateOrder, gpu_request: RequestSpec) -> EngineAnswer:
        facts = self._lease_service.engine_facts()
        _check_restarts(order.body, restarts_on_fault=gpu_request.restart_on_fault not in {"", "0"})
        gpu_request = with_count(gpu_request, await self._lease_service.gpu_count())
        if binds_late(facts):
            device_name = f"c-{secrets.token_hex(6)}"
            inject(order.body, device_name, None, facts)
            return await self._post(
                order, {**NO_REQUEST_LABELS, LABEL_DEVICE: device_name, **labels_of(gpu_request)}
            )
        _check_before_wait(order)
        refusal = await self._taken_name(order) or await self._missing_image(order)
        if refusal is not None:
            return refusal
        image = str(order.body.get("Image") or "")
        with hints_for_docker():
            claim = await self._lease_service.acquire(gpu_request, order.caller, order.name, image)
        return await self._finish(
            self._create_leased(order, claim, self._lease_service.release, labels_of(gpu_request))
        )

    async def _taken_name(self, order: CreateOrder) -> EngineAnswer | None:
        """Return the engine's answer if a container has the name now, before the request waits."""
        if not order.name:
            return None
        # The name may be the beginning of several ids.
        with contextlib.suppress(RequestError):
            holder = await inspect(self._engine, "containers", order.name, suffix="/json")
            if holder is not None and holder.get("Name") == f"/{order.name}":
                words = (
                    f'Conflict. The container name "/{order.name}" is already in use by container '
                    f'"{holder["Id"]}". You have to remove (or rename) that container to be able to reuse '
                    "that name."
                )
                return EngineAnswer(CONFLICT, (), docker_error(words))
        return None

    async def _missing_image(self, order: CreateOrder) -> EngineAnswer | None:
        """Return the engine's answer if it lacks the image: no request may hold a GPU during an image pull.

        Engine 20.10 writes the words twice when it looks at an image, and once in a create.
        """
        image = quote(str(order.body.get("Image") or ""), safe="")
        answer = await self._engine.call("GET", f"/images/{image}/json".encode())
        if answer.status != NOT_FOUND:
            return None
        _, missing, name = message_of(answer).rpartition(NO_IMAGE)
        return replace(answer, body=docker_error(missing + name)) if missing else answer

    async def _finish(self, work: Coroutine[None, None, EngineAnswer]) -> EngineAnswer:
        task = self._under_way.start(work)
        task.add_done_callback(_log_refusal)
        return await asyncio.shield(task)

    async def _create_leased(
        self,
        order: CreateOrder,
        claim: Claim,
        give_back: Callable[[LeaseId], Awaitable[None]],
        labels: dict[str, str] | None = None,
    ) -> EngineAnswer:
        try:
            _check_restarts(order.body, restarts_on_fault=claim.restart_on_fault > 0)
            inject(order.body, claim.device_name, claim.edits, self._lease_service.engine_facts())
            env = default_env(strings(order.body, "Env"), claim.env_defaults)
            order.body["Env"] = merge_env(env, claim.env)
            own = {
                **(NO_REQUEST_LABELS | labels if labels else {}),
                **claim.labels,
                LABEL_DEVICE: claim.device_name,
            }
            answer = await self._post(order, own)
        except GpushareError as error:
            await (self._lease_service.release if isinstance(error, RequestError) else give_back)(claim.lease)
            raise
        if answer.status != CREATED:
            # Clients come back once they have pulled a missing image; after other refusals people come back,
            # with another lease.
            await (give_back if answer.status == NOT_FOUND else self._lease_service.release)(claim.lease)
            return answer
        await self._report(order, claim, ContainerId(answer.json()["Id"]))
        return answer

    async def _report(self, order: CreateOrder, claim: Claim, container: ContainerId) -> None:
        """Report the container to the node; a container that the node cannot record must not stay."""
        try:
            description = await inspect(self._engine, "containers", container, suffix="/json")
            name = str((description or {}).get("Name", "")).lstrip("/")
            image = str(order.body.get("Image") or "")
            await self._lease_service.created(claim.lease, container, name, image, stays=_stays(order.body))
        except GpushareError:
            with contextlib.suppress(GpushareError):
                await self._engine.call("DELETE", f"/containers/{container}?force=1&v=1".encode())
            raise

    async def _post(self, order: CreateOrder, labels: Mapping[str, str]) -> EngineAnswer:
        gate = f"{self._gate}/{'confined' if order.confined else 'trusted'}"
        own = {**NO_GATE_LABELS, **labels, LABEL_OWNER: str(order.caller.uid), LABEL_GATE: gate}
        body = {**order.body, "Labels": {**section(order.body, "Labels"), **own}}
        target, sent = order.target.encode(), serialise(body)
        order.record.digest = digest_of(sent)
        async with self._own_volumes(order) as used:
            answer = await self._engine.call("POST", target, sent, timeout_seconds=CREATE_SECONDS)
            if answer.status == CREATED:
                order.record.container = str(answer.json()["Id"])
                await self._give_volumes(order, used)
        return answer

    @asynccontextmanager
    async def _own_volumes(self, order: CreateOrder) -> AsyncIterator[frozenset[str]]:
        """Keep the owners of a container's volumes the same while the block creates the container.

        A volume may have become another user's during the wait for the lease. Yields the names of the volumes
        that have files.
        """
        names = volumes_of(_mounts_of(order)) if order.confined else []
        async with self._volume_locks.of_all(names):
            volumes = [await find_volume(self._engine, name, order.caller) for name in names]
            yield await self._new_volumes.used(filter(None, volumes))

    async def _give_volumes(self, order: CreateOrder, used: frozenset[str]) -> None:
        """Give new volumes to the caller. For root inside the container, the image decides on the owners."""
        has_volumes = any(mount["Type"] == "volume" for mount in _mounts_of(order))
        if not order.confined or not has_volumes or order.body["User"] == ROOT_USER:
            return
        try:
            await self._new_volumes.give(order.record.container, order.caller, used)
        except GpushareError:
            # A volume was made past the gate in the meantime and belongs to another user.
            with contextlib.suppress(GpushareError):
                await self._engine.call("DELETE", f"/containers/{order.record.container}?v=1".encode())
            raise


def _log_refusal(task: asyncio.Task[EngineAnswer]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.info("create refused: %s", error)


def _check_before_wait(order: CreateOrder) -> None:
    """Raise RequestError, in the engine's words, for a create that it would refuse after the wait."""
    if order.name and not ENGINE_NAME.fullmatch(order.name):
        raise RequestError(
            f"Invalid container name ({order.name}), only [a-zA-Z0-9][a-zA-Z0-9_.-] are allowed"
        )
    memory_bytes = section(order.body, "HostConfig").get("Memory")
    if isinstance(memory_bytes, int) and 0 < memory_bytes < MIN_MEMORY_BYTES:
        raise RequestError("Minimum memory limit allowed is 6MB")


def _mounts_of(order: CreateOrder) -> list[Body]:
    return objects(section(order.body, "HostConfig"), "Mounts")


def _stays(body: Body) -> bool:
    """Return True if the container can be started again later without a client that misses its output."""
    attached = any(body.get(stream) for stream in ("AttachStdin", "AttachStdout", "AttachStderr"))
    return not attached and not section(body, "HostConfig").get("AutoRemove")


def _check_restarts(body: Body, *, restarts_on_fault: bool) -> None:
    """Raise RequestError if the engine would remove the container, or start it again, by itself."""
    host = section(body, "HostConfig")
    if restarts_on_fault and host.get("AutoRemove"):
        raise RequestError(
            "a container that is removed at its end cannot be started again after a fault",
            hint="leave out --rm or the restarts on a fault",
        )
    if restarts_on_fault and section(host, "RestartPolicy").get("Name") not in {None, "", "no"}:
        raise RequestError(
            "Docker's restart policy and restarts on a fault exclude each other",
            hint="the policy starts the container again after faults too: leave out one of them",
        )


class NewVolumes:
    """Find new volumes, and give them to the confined caller that made them, before a container runs with them.

    The engine makes a volume root's, and the first container with it copies the image's directory in, owner
    and all. Programs of a confined caller run as the caller, and could write to no volume otherwise.
    """

    def __init__(self, engine: EngineSocket, lease_service: LeasePort) -> None:
        self._engine = engine
        self._lease_service = lease_service

    async def used(self, volumes: Iterable[Body]) -> frozenset[str]:
        """Return the names of the volumes that already have files.

        The engine leaves these volumes as they are.
        """
        directories = _own_directories(volumes)
        answer = await self._help("empty-volumes", directories) if directories else {}
        return frozenset(each["name"] for each in directories) - {*answer.get("empty", ())}

    async def give(self, container: str, caller: Caller, used: frozenset[str]) -> None:
        """Give the container's unused volumes to the caller.

        Raises ``NotFound`` for another user's volume.
        """
        description = await inspect(self._engine, "containers", container, suffix="/json") or {}
        names = [str(each["Name"]) for each in objects(description, "Mounts") if each.get("Type") == "volume"]
        volumes = [await find_owned(self._engine, "volumes", name, caller) for name in names]
        if directories := _own_directories(each for each in volumes if each["Name"] not in used):
            await self._help("give-volumes", directories, uid=caller.uid, gid=caller.gid)

    async def _help(self, deed: str, directories: Sequence[Mapping[str, str]], **more: int) -> dict[str, Any]:
        """Return the helper's answer, empty if the helper can do nothing: then the volumes stay root's."""
        try:
            if self._lease_service.engine_facts().maps_users:
                return {}
            engine = await self._engine.peer_pid()
            order = {"deed": deed, "volumes": directories, "engine": engine, **more}
            return await run_helper(order, seconds=GIVING_SECONDS)
        except (EngineUnavailable, TimedOut, Unavailable) as error:
            log.warning("new volumes stay root's: %s", error)
            return {}


def _own_directories(volumes: Iterable[Body]) -> list[Mapping[str, str]]:
    """Return the volumes that are the engine's own directories: options can lead a volume anywhere."""
    return [
        {"name": str(each["Name"]), "path": str(each["Mountpoint"])}
        for each in volumes
        if each.get("Driver") == "local" and not each.get("Options")
    ]
