"""Find a job's container, for commands that become docker."""

from __future__ import annotations

import json
from urllib.parse import quote

from gpushared.api.v1.messages import Job
from gpushared.cli import docker_cli
from gpushared.client import Client
from gpushared.client.jobs import Jobs
from gpushared.domain.model.errors import DaemonUnavailable, NotFound, StateConflict, TimedOut, Unavailable
from gpushared.light import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import NoReturn


class DockerEndpoint(NamedTuple):
    """Hold a Docker endpoint, and the container's name there."""

    host: str
    container: str


def docker_host_for(client: Client, job: Job, rank: int = 0, attempt: int = 0) -> DockerEndpoint:
    """Return the endpoint at which docker reaches a job's container, by attempt and by part of a gang.

    Without ``attempt`` return the present one. Raises StateConflict if there is none (yet, or any more).
    """
    is_earlier = any(past.attempt == attempt for past in job.tries)
    door = Jobs(client).door(job.id, rank, attempt if is_earlier or attempt != job.attempt else 0)
    container = _container(Client(door.host), job, attempt or job.attempt, "" if door.here else door.node)
    if container:
        return DockerEndpoint(door.host, container)
    if job.is_over or is_earlier:
        whose = f"attempt {attempt} of job {job.id}" if is_earlier else f"job {job.id}"
        raise StateConflict(
            f"the container of {whose} has been removed, and its output with it",
            hint=f"how it ended: gpushare why {job.id}",
        )
    raise StateConflict(
        f"job {job.id} is {job.state} and has no container yet", hint=f"its story: gpushare why {job.id}"
    )


def newest_output(job: Job) -> int:
    """Return the newest attempt that has run; 0 if none has."""
    if job.started_at is not None or not job.tries:
        return job.attempt
    return job.tries[-1].attempt


def _container(node_client: Client, job: Job, attempt: int, node: str) -> str:
    """Return a container's id by the labels that the gate gives a job's container; empty for none.

    ``node``: the name of another node that has the container; empty for this node.
    """
    labels = [f"gpushare.job={job.id}", f"gpushare.attempt={attempt}"]
    filters = quote(json.dumps({"label": labels}))
    try:
        answer = node_client.docker("GET", f"/containers/json?all=1&filters={filters}")
    except (DaemonUnavailable, TimedOut) as error:
        if not node:
            raise
        # The error itself names a socket of this machine's daemon, which is well.
        why = "no answer came in time" if isinstance(error, TimedOut) else "the connection was lost"
        raise Unavailable(
            f"node {node}, where job {job.id} is, cannot be reached: {why}",
            hint="`gpushare nodes` tells when it was last heard of",
        ) from error
    if answer.status != docker_cli.OK:
        node_name = f"node {node}" if node else "this node"
        raise Unavailable(f"{node_name} does not say what it has: {docker_cli.message_of(answer)}")
    containers = json.loads(answer.body)
    return str(containers[0]["Id"]) if containers else ""


def has_terminal(endpoint: DockerEndpoint) -> bool:
    """Return True if the container has a terminal. Raises Unavailable where the engine does not say so."""
    answer = Client(endpoint.host).docker("GET", f"/containers/{endpoint.container}/json")
    if answer.status != docker_cli.OK:
        raise Unavailable(docker_cli.message_of(answer))
    return bool(json.loads(answer.body)["Config"]["Tty"])


def become(endpoint: DockerEndpoint, *args: str) -> NoReturn:
    """Become docker with these arguments and the container's name, at the container's endpoint."""
    program = docker_cli.find_docker()
    try:
        docker_cli.become(
            program, ["docker", *args, endpoint.container], docker_cli.environment_for(endpoint.host)
        )
    except OSError as error:
        raise NotFound(f"docker cannot be started: {error.strerror}", hint=program) from error
