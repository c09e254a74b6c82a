"""Make one attempt's container through the gate as its account, and remove old containers of jobs."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import quote, urlencode

import psutil

from gpushared.daemon.tasks import within
from gpushared.domain.jobs.attempt_log import Attempt
from gpushared.domain.jobs.job import Ending, EndKind, JobSpec
from gpushared.domain.jobs.protocol import Gang
from gpushared.domain.leases.job_attempts import start_failure
from gpushared.domain.model.errors import GpushareError, RequestError, StateConflict, TimedOut, Unavailable
from gpushared.domain.model.lease import AttemptKey, ContainerId, JobId, Lease, LeaseId
from gpushared.domain.model.request import Caller
from gpushared.domain.model.units import shown
from gpushared.gate.api.body import HOST_NETWORK, Body, parse_object, section, serialise
from gpushared.gate.containers.create import CREATE_SECONDS
from gpushared.gate.containers.ownership import inspect, own_containers
from gpushared.jobs.job_requests import RequestedJobs
from gpushared.net.http_client import EngineAnswer, EngineSocket
from gpushared.net.loopback import LoopbackGate
from gpushared.node.jobs.job_images import check_away, message_of
from gpushared.node.runtime.loop import Loop
from gpushared.ports import (
    LABEL_ATTEMPT,
    LABEL_DEVICE,
    LABEL_JOB,
    LABEL_LEASE,
    ContainerStatus,
    Engine,
)

CREATED = 201
STARTED = (204, 304)
NOT_FOUND, CONFLICT, LIMIT_REACHED = 404, 409, 429
START_SECONDS = 120.0
MAX_EXIT_CODE = 255
OK = 200
LIST_SECONDS = 10.0
_ROOT = Caller(0, 0, "root", trusted=True)
log = logging.getLogger(__name__)

LOOK_SECONDS = 60.0
RETRY_SECONDS = 2.0
"""The wait before the next try if a due container could not be removed.

This happens while the engine or the gate is not up yet.
"""
OVER = (ContainerStatus.CREATED, ContainerStatus.EXITED, ContainerStatus.DEAD)
DAEMON = Caller(0, 0, "the daemon", trusted=True)
REMOVED = (204, 404)


class AttemptRefused(Exception):
    """Report that the attempt will never run here in this form; the ending states why."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.reason)
        self.ending = ending


class JobContainers:
    """Create and start an attempt's container.

    Errors besides ``AttemptRefused`` may pass: ``Unavailable``, ``TimedOut``.
    """

    def __init__(self, gate: EngineSocket, attempt: Attempt, kept_containers: KeptContainers) -> None:
        assert attempt.spec is not None, "only tombstones have none"
        self._gate = gate
        self._attempt = attempt
        self._kept_containers = kept_containers
        self._spec: JobSpec = attempt.spec

    async def create(self, lease: Lease) -> ContainerId:
        """Create the container in its lease; a container that an earlier try made is found by its name."""
        body = self._body(lease)
        self._check_port(body)
        create = partial(self._create, body)
        answer = await create()
        if answer.status == LIMIT_REACHED:
            assert self._attempt.account is not None, "refused without one"
            answer = await self._kept_containers.make_room(self._attempt.account, create)
        if answer.status == CONFLICT:
            holder = await self._holder_of_name()
            if holder is not None and _device_of(holder) == lease.device_name:
                return ContainerId(holder["Id"])
            if holder is not None and await self._rename_earlier(holder):
                answer = await self._create(body)
        if answer.status != CREATED:
            raise self._refusal_of(answer)
        return ContainerId(answer.json()["Id"])

    async def start(self, container: ContainerId) -> None:
        """Start the container; a container that already runs is no error."""
        target = f"/containers/{container}/start".encode()
        answer = await self._gate.call("POST", target, timeout_seconds=START_SECONDS)
        if answer.status in STARTED:
            return
        ending = self._refusal_of(answer).ending
        raise AttemptRefused(replace(ending, exit_code=await self._exit_code(container)))

    @property
    def name(self) -> str:
        """Return the container's name: the submitter's choice, else a name made from the job's id."""
        return self._spec.name or f"job-{self._attempt.key.job}"

    def _body(self, lease: Lease) -> Body:
        try:
            body = parse_object(self._spec.body.encode())
            labels = section(body, "Labels")
        except RequestError as error:
            raise AttemptRefused(Ending(EndKind.FAILED, error.message, hint=error.hint)) from error
        body["Labels"] = {**labels, LABEL_LEASE: str(lease.id)}
        if self._spec.image:
            body["Image"] = self._spec.image
        # As with docker run -d, an input that the user asked for stays open for anybody who attaches.
        for stream in ("AttachStdin", "AttachStdout", "AttachStderr", "StdinOnce"):
            body[stream] = False
        return body

    def _check_port(self, body: Body) -> None:
        """Raise AttemptRefused if a program uses the gang's port.

        The gang's next attempt has another port.
        """
        gang, network = self._attempt.facts, section(body, "HostConfig").get("NetworkMode")
        if gang is None or gang.rank or network != HOST_NETWORK or is_free(gang.port):
            return
        raise AttemptRefused(Ending(EndKind.NO_ROOM, f"port {gang.port} of this node is in use"))

    async def _create(self, body: Body) -> EngineAnswer:
        query = {"name": self.name} | ({"platform": self._spec.platform} if self._spec.platform else {})
        target = f"/containers/create?{urlencode(query)}".encode()
        return await self._gate.call("POST", target, serialise(body), timeout_seconds=CREATE_SECONDS)

    async def _holder_of_name(self) -> Body | None:
        """Return the container of this name, if the account owns it."""
        return await inspect(self._gate, "containers", self.name, suffix="/json")

    async def _rename_earlier(self, container: Body) -> bool:
        """Rename an earlier attempt's container, which keeps its logs; return False if it is none."""
        labels = section(section(container, "Config"), "Labels")
        number = str(labels.get(LABEL_ATTEMPT) or "")
        if labels.get(LABEL_JOB) != self._attempt.key.job or number == str(self._attempt.key.number):
            return False
        new = quote(f"{self.name}.{number}", safe="")
        answer = await self._gate.call("POST", f"/containers/{container['Id']}/rename?name={new}".encode())
        return answer.status in STARTED

    async def _exit_code(self, container: ContainerId) -> int | None:
        """Return the engine's exit code for a start that failed, such as 127 for a missing program."""
        details = await inspect(self._gate, "containers", container, suffix="/json")
        code = section(details or {}, "State").get("ExitCode")
        return code if isinstance(code, int) and 0 < code <= MAX_EXIT_CODE else None

    def _refusal_of(self, answer: EngineAnswer) -> AttemptRefused:
        """Return the refusal in the words of the gate or the engine.

        Raises an error that may pass as ``Unavailable`` or ``TimedOut``.
        """
        check_away(answer.status, answer.body)
        text = message_of(answer.status, answer.body)
        if answer.status == CONFLICT:
            hint = "end or remove that one, or submit it with another --name"
            return AttemptRefused(Ending(EndKind.FAILED, f"{text} (on this node)", hint=hint))
        if answer.status == NOT_FOUND and "image" in text.lower():
            text = f"image {shown(self._spec.image)} is not on this node any more: {text}"
        failure = start_failure(text)
        # Other containers of the user may end: without the wait a job at the limit, and then all that follow
        # it, would fail within seconds.
        return AttemptRefused(replace(failure, passing=failure.passing or answer.status == LIMIT_REACHED))


def is_free(port: int) -> bool:
    """Return True if no program listens on a TCP port of this machine, on any address."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            with socket.socket(family) as probe:
                # Servers set this option too: the remains of closed connections do not count.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
    return True


def _device_of(details: Body) -> object:
    return section(section(details, "Config"), "Labels").get(LABEL_DEVICE)


async def check_names(
    loopback_gate: LoopbackGate, requested: RequestedJobs, is_live: Callable[[JobId], bool]
) -> None:
    """Raise StateConflict if a container that belongs to no live job has the name of a requested job.

    ``is_live`` returns True if a job is not over; the job store guards the names of live jobs. If the
    engine does not answer, nothing is refused here: the engine reports the conflict when the job runs.
    """
    names = {spec.name for _, spec in requested.jobs if spec.name}
    job_ids = {job for job, _ in requested.jobs}
    if not names:
        return
    for name, job in (await _containers(loopback_gate)).items():
        if name in names and job not in job_ids and not is_live(job):
            raise StateConflict(
                f"a container on this node is called {shown(name)} already",
                hint=f"use another --name, or, if it is yours and over: docker rm {name}",
            )


async def _containers(loopback_gate: LoopbackGate) -> dict[str, JobId]:
    """Return the names of all containers, running or not, each with its job's id, empty for no job."""
    with suppress(Unavailable, TimedOut):
        gate = loopback_gate.gate_as(_ROOT)
        answer = await gate.call("GET", b"/containers/json?all=1", timeout_seconds=LIST_SECONDS)
        if answer.status == OK:
            return {
                name.removeprefix("/"): JobId((container.get("Labels") or {}).get(LABEL_JOB, ""))
                for container in answer.json()
                for name in container.get("Names") or ()
            }
    return {}


def labels_of(attempt: Attempt) -> dict[str, str]:
    """Return the labels of an attempt's container."""
    return {LABEL_JOB: attempt.key.job, LABEL_ATTEMPT: str(attempt.key.number)}


def environment_of(attempt: Attempt) -> dict[str, str]:
    """Return the variables of an attempt's container, with the gang's variables if it is part of one."""
    env = {"GPUSHARE_JOB_ID": str(attempt.key.job), "GPUSHARE_ATTEMPT": str(attempt.key.number)}
    spec = attempt.spec
    if spec is not None and spec.index is not None:
        env |= {"GPUSHARE_ARRAY_ID": str(spec.array or ""), "GPUSHARE_ARRAY_INDEX": str(spec.index)}
    return env if attempt.facts is None else {**env, **_of_gang(attempt.facts)}


def _of_gang(gang: Gang) -> Mapping[str, str]:
    """Return the gang's variables by the names that programs look for.

    ``torch.distributed`` takes its rendezvous from the first two. ``WORLD_SIZE`` counts GPUs, for one process
    on each GPU; launchers that count themselves set the variable anew.
    """
    return {
        "MASTER_ADDR": gang.hosts[0],
        "MASTER_PORT": str(gang.port),
        "NODE_RANK": str(gang.rank),
        "WORLD_SIZE": str(sum(gang.gpus)),
        "GPUSHARE_HOSTS": ",".join(gang.hosts),
        "GPUSHARE_NNODES": str(len(gang.hosts)),
        "GPUSHARE_GPUS_BY_NODE": ",".join(map(str, gang.gpus)),
    }


def launcher_defaults(attempt: Attempt) -> dict[str, str]:
    """Return the variables for launchers; a value of the user wins over each.

    ``torchrun`` reads its arguments from ``PET_`` and the argument's name, so that ``torchrun train.py``
    needs no arguments. An argument on its command line wins.
    """
    gang = attempt.facts
    if gang is None:
        return {}
    host = gang.hosts[gang.rank]
    # With one GPU, and so one process, on each node the rank is known: ``init_process_group`` needs no
    # launcher.
    rank = {"RANK": str(gang.rank)} if set(gang.gpus) == {1} else {}
    return {
        **rank,
        "PET_NNODES": str(len(gang.hosts)),
        "PET_NODE_RANK": str(gang.rank),
        "PET_NPROC_PER_NODE": str(gang.gpus[gang.rank]),
        "PET_MASTER_ADDR": gang.hosts[0],
        "PET_MASTER_PORT": str(gang.port),
        "PET_LOCAL_ADDR": host,
        **(_interface(host) if _is_on_host_network(attempt) else {}),
    }


def _interface(address: str) -> Mapping[str, str]:
    """Return the variable for Gloo's interface.

    Gloo would take the interface of the machine's own name, which on many systems is the loopback's.
    """
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in addresses):
            return {"GLOO_SOCKET_IFNAME": name}
    return {}


def _is_on_host_network(attempt: Attempt) -> bool:
    assert attempt.spec is not None, "only tombstones have none"
    host = section(parse_object(attempt.spec.body.encode()), "HostConfig")
    return host.get("NetworkMode") == HOST_NETWORK


@dataclass(frozen=True, slots=True)
class ContainerRetention:
    """Hold how long containers stay, and how many of each user; the oldest are removed first.

    ``user_limit`` bounds all containers of a user, kept ones too; 0 is no limit.
    """

    seconds: float
    most: int
    user_limit: int = 0


class KeptContainers:
    """Remove containers when they are due. Users own, and remove, the containers of interactive jobs."""

    def __init__(
        self, loop: Loop, engine: Engine, loopback_gate: LoopbackGate, retention: ContainerRetention
    ) -> None:
        self.retention = retention
        self._loop = loop
        self._engine = engine
        self._loopback_gate = loopback_gate
        self._gone: set[LeaseId] = set()
        """Leases whose containers are known to be gone."""
        self._is_due = asyncio.Event()
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def run(self) -> None:
        """Remove due containers, for ever."""
        while True:
            try:
                all_removed = await self.remove_due()
            except GpushareError as error:
                log.debug("containers of ended jobs not looked at: %s", error)
                all_removed = False
            await within(self._is_due, LOOK_SECONDS if all_removed else RETRY_SECONDS)
            self._is_due.clear()

    def attempt_changed(self, coordinator: str, key: AttemptKey) -> None:
        """Look at once if the changed attempt is over and its container must not be kept."""
        attempt_log = self._loop.state.attempts.get(coordinator)
        record = attempt_log.get(key) if attempt_log is not None else None
        if record is not None and record.state.is_final and record.spec is not None and record.spec.remove:
            self._is_due.set()

    async def remove_due(self) -> bool:
        """Remove the due containers, and return True if all are gone.

        The engine is called only if a container is due.
        """
        records = {record.lease: record for record in self._over() if record.lease is not None}
        self._gone &= records.keys()
        present = sorted(
            (record for lease, record in records.items() if lease not in self._gone),
            key=lambda record: record.at,
        )
        due = due_of(present, self.retention, self._loop.now())
        return not due or await self._remove({record.lease for record in due if record.lease is not None})

    def _over(self) -> Iterable[Attempt]:
        for attempt_log in self._loop.state.attempts.values():
            for record in attempt_log.records.values():
                if record.state.is_final and record.spec is not None and not record.spec.interactive:
                    yield record

    async def make_room(self, account: Caller, create: Callable[[], Awaitable[EngineAnswer]]) -> EngineAnswer:
        """Remove kept containers of the account, the oldest first, until ``create`` passes the user's limit.

        A job must not fail because of containers that only the daemon keeps. Jobs of an account are created
        one by one here, because creates at the same time count against each other.
        """
        async with self._locks[account.uid]:
            answer = await create()
            while answer.status == LIMIT_REACHED and await self._remove_oldest(account):
                answer = await create()
            return answer

    async def _remove_oldest(self, account: Caller) -> bool:
        """Remove the account's oldest kept container.

        Return False if there is none, or if another limit than that on containers was reached.
        """
        gate = self._loopback_gate.gate_as(DAEMON)
        containers = await own_containers(gate, account)
        if not self.retention.user_limit or len(containers) < self.retention.user_limit:
            return False
        ended_at = {record.lease: record.at for record in self._over() if record.lease is not None}
        kept = {
            ended_at[lease]: ContainerId(container["Id"])
            for container in containers
            if (lease := LeaseId((labels := container["Labels"]).get(LABEL_DEVICE, ""))) in ended_at
            and self._is_over(lease, labels, container["State"])
        }
        return bool(kept) and await _remove_container(kept[min(kept)], gate)

    async def _remove(self, due: set[LeaseId]) -> bool:
        gate = self._loopback_gate.gate_as(DAEMON)
        remaining: set[LeaseId] = set()
        for facts in await self._engine.containers():
            lease = LeaseId(facts.device_name)
            is_due = lease in due and self._is_over(lease, facts.labels, facts.status)
            if is_due and not await _remove_container(facts.id, gate):
                remaining.add(lease)
        self._gone |= due - remaining
        return not remaining

    def _is_over(self, lease: LeaseId, labels: Mapping[str, str], status: str) -> bool:
        """Return True for a job's container that ended and was not started again under another lease."""
        is_leased = self._loop.state.of_device(lease) is not None
        return bool(labels.get(LABEL_JOB)) and status in OVER and not is_leased


def due_of(over: Sequence[Attempt], retention: ContainerRetention, now: float) -> list[Attempt]:
    """Return the attempts whose containers must go. ``over``: finished attempts, the oldest first.

    Each user's containers are counted alone, so that no user pushes out the logs of others.
    """
    counts = Counter(_uid_of(record) for record in over)
    due = []
    for record in over:
        uid = _uid_of(record)
        if counts[uid] > retention.most or record.at <= now - retention.seconds or _is_removed(record):
            due.append(record)
            counts[uid] -= 1
    return due


def _uid_of(record: Attempt) -> int | None:
    """Return the uid of the attempt's account, None for an attempt that never ran."""
    return None if record.account is None else record.account.uid


def _is_removed(record: Attempt) -> bool:
    return record.spec is not None and record.spec.remove


async def _remove_container(container: ContainerId, gate: EngineSocket) -> bool:
    answer = await gate.call("DELETE", f"/containers/{container}?v=1".encode())
    return answer.status in REMOVED
