"""Where a job's container is, for commands that become docker."""

from __future__ import annotations

import json
from typing import NamedTuple, NoReturn
from urllib.parse import quote

from gpushared.cli import docker
from gpushared.client import Client
from gpushared.client.job_messages import Job, JobPart
from gpushared.client.jobs import Jobs
from gpushared.domain.errors import NotFound, StateConflict, Unavailable


class Place(NamedTuple):
    """A Docker endpoint, and what the container is called there."""

    host: str
    container: str


def docker_host_for(client: Client, job: Job, rank: int = 0) -> Place:
    """Where docker reaches the container of a job; ``rank`` says which of a gang's.

    Raises StateConflict where there is none (yet, or any more).
    """
    part = next((one for one in job.parts if one.rank == rank), None)
    if part is None or not part.lease_id:
        raise StateConflict(
            f"job {job.id} is {job.state} and has no container" + (f": {job.reason}" if job.reason else ""),
            hint=f"its story: gpushare why {job.id}",
        )
    if job.pool and part.node != client.status().node:
        door = Jobs(client).door(job.id, rank)
        return Place(door.host, _container_elsewhere(Client(door.host), job, part))
    return Place(f"unix://{client.path}", _container(client, job, part))


def _container(client: Client, job: Job, part: JobPart) -> str:
    lease = client.get(part.lease_id)
    if not lease.container_id:
        raise _no_container(job)
    return lease.container_id


def _container_elsewhere(there: Client, job: Job, part: JobPart) -> str:
    """Through the tunnel there is the gate and nothing else, so its label tells."""
    filters = quote(json.dumps({"label": [f"gpushare.lease={part.lease_id}"]}))
    answer = there.docker("GET", f"/containers/json?all=1&filters={filters}")
    if answer.status != docker.OK:
        raise Unavailable(f"node {part.node} does not say what it has: {docker.message_of(answer)}")
    found = json.loads(answer.body)
    if not found:
        raise _no_container(job)
    return str(found[0]["Id"])


def _no_container(job: Job) -> StateConflict:
    return StateConflict(
        f"job {job.id} is {job.state} and has no container yet", hint=f"its story: gpushare why {job.id}"
    )


def container_of(client: Client, job: Job, rank: int = 0) -> Place:
    """As ``docker_host_for``, and the container is there still. Raises StateConflict."""
    place = docker_host_for(client, job, rank)
    if Client(place.host).docker("GET", f"/containers/{place.container}/json").status == docker.MISSING:
        raise StateConflict(
            f"the container of job {job.id} has been removed, and its output with it",
            hint=f"how it ended: gpushare why {job.id}",
        )
    return place


def become(place: Place, *words: str) -> NoReturn:
    """Becomes docker with these words and the container's name, where the container is."""
    program = docker.find_docker()
    try:
        docker.become(program, ["docker", *words, place.container], docker.environment_for(place.host))
    except OSError as error:
        raise NotFound(f"docker cannot be started: {error.strerror}", hint=program) from error
