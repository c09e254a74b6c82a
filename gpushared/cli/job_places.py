"""Where a job's container is, for commands that become docker."""

from __future__ import annotations

import json
from typing import NamedTuple, NoReturn
from urllib.parse import quote

from gpushared.cli import docker
from gpushared.client import Client
from gpushared.client.job_messages import Job
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
    door = Jobs(client).door(job.id, rank)
    container = _container(Client(door.host), job, door.node)
    if container:
        return Place(door.host, container)
    if job.is_over:
        raise StateConflict(
            f"the container of job {job.id} has been removed, and its output with it",
            hint=f"how it ended: gpushare why {job.id}",
        )
    raise StateConflict(
        f"job {job.id} is {job.state} and has no container yet", hint=f"its story: gpushare why {job.id}"
    )


def _container(there: Client, job: Job, node: str) -> str:
    """Its id, by the labels that the gate gives a job's container, however it is called; empty for none."""
    labels = [f"gpushare.job={job.id}", f"gpushare.attempt={job.attempt}"]
    filters = quote(json.dumps({"label": labels}))
    answer = there.docker("GET", f"/containers/json?all=1&filters={filters}")
    if answer.status != docker.OK:
        raise Unavailable(f"node {node} does not say what it has: {docker.message_of(answer)}")
    found = json.loads(answer.body)
    return str(found[0]["Id"]) if found else ""


def become(place: Place, *words: str) -> NoReturn:
    """Becomes docker with these words and the container's name, where the container is."""
    program = docker.find_docker()
    try:
        docker.become(program, ["docker", *words, place.container], docker.environment_for(place.host))
    except OSError as error:
        raise NotFound(f"docker cannot be started: {error.strerror}", hint=program) from error
