"""Find the lease, the job, or the container of one of them that a word names, for all commands alike.

A whole id means exactly its lease or job. A name means a live lease or job before one that is over. A word
that fits both a lease and a job that is not the lease's own is an error that names them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from gpushared.api.v1.messages import Job
from gpushared.client import Client, Lease
from gpushared.client.jobs import Jobs
from gpushared.domain.model.errors import (
    GpushareError,
    NotFound,
    RequestError,
    StateConflict,
    TimedOut,
    Unavailable,
)

if TYPE_CHECKING:
    from gpushared.cli.job_places import DockerEndpoint

LEASE = "l-"
_SHOWN = 80
_Found = TypeVar("_Found")
_JOB = re.compile(r"(?:[0-9a-hjkmnp-tv-z]{13}|[0-9a-hjkmnp-tv-z]{10})(?:_\d{1,6})?")
"""Crockford's base 32, as the daemon makes ids; tests hold the two together."""


def is_job_id(word: str) -> bool:
    """Return True if the word looks like a job's whole id; names of containers may look so too."""
    return _JOB.fullmatch(word) is not None


def may_be_array(word: str) -> bool:
    return is_job_id(word) and "_" not in word


def first_found(
    client: Client, word: str, of_lease: Callable[[str], _Found], of_job: Callable[[str], _Found]
) -> _Found:
    """Return the function's result for the lease or the job of that id or name.

    A word that begins as a lease's id or looks like a job's is passed on as it is: the daemon knows names
    too. Raises NotFound, RequestError.
    """
    if word.startswith(LEASE):
        return of_lease(word)
    if is_job_id(word):
        with suppress(NotFound):
            return of_job(word)
    found = _find_by_name(client, word)
    return of_lease(found.id) if isinstance(found, Lease) else of_job(found.id)


def jobs_of_array(client: Client, word: str) -> list[Job]:
    """Return all jobs of the array of that id or name, over or not; none if there is no such array."""
    if not (may_be_array(word) or _means_several(client, word)):
        return []
    return [job for page in Jobs(client).pages(array_id=word, ended=True) for job in page.jobs]


def _means_several(client: Client, word: str) -> bool:
    """Return True if the daemon refuses to take the word for one job, as it does for an array's name."""
    if word.startswith(LEASE) or is_job_id(word):
        return False
    try:
        _find_by_name(client, word)
    except RequestError:
        return True
    except GpushareError:  # whoever uses the word is told
        return False
    return False


def _find_by_name(client: Client, word: str) -> Lease | Job:
    lease = _lease_if_any(client, word)
    if lease is None:
        return _job_named(client, word)
    if lease.job_id and lease.state != "ended":
        return lease
    other = _job_if_known(client, word)
    return lease if other is None else _choose(word, lease, other)


def _choose(word: str, lease: Lease, job: Job) -> Lease | Job:
    """Choose between a lease and a job that have the same name."""
    lease_is_over = lease.state == "ended"
    if lease_is_over and job.is_over:
        return lease if lease.created_at >= job.submitted_at else job
    if lease_is_over:
        return job
    if job.is_over:
        return lease
    raise RequestError(
        f"{word[:_SHOWN]!r} is a lease and a job",
        hint=f"say which: {lease.id} ({lease.state}, {lease.owner}), {job.id} ({job.state}, {job.owner})",
    )


def _lease_if_any(client: Client, word: str) -> Lease | None:
    with suppress(NotFound):
        return client.get(word)
    return None


def _job_if_any(client: Client, word: str) -> Job | None:
    with suppress(NotFound):
        return Jobs(client).get(word)
    return None


def _job_if_known(client: Client, word: str) -> Job | None:
    """Look for a job without retries: a pool that is away must not hold up work on this node."""
    retries, client.retries = client.retries, None
    try:
        return _job_if_any(client, word)
    except (Unavailable, TimedOut):
        return None
    finally:
        client.retries = retries


def _job_named(client: Client, word: str) -> Job:
    job = _job_if_any(client, word)
    if job is None:
        raise NotFound(
            f"there is no job, lease or container {word[:_SHOWN]!r}",
            hint="`gpushare jobs` and `gpushare ps` list them",
        )
    return job


def lease_id(client: Client, word: str) -> str:
    """Return the id of a lease, or of a job's lease on this node. Raises NotFound, StateConflict."""
    return first_found(
        client, word, lambda name: name, lambda name: _lease_of(client, Jobs(client).get(name)).id
    )


def lease_if_here(client: Client, job: Job) -> Lease | None:
    """Return the job's lease on this node."""
    leases = (_lease_if_any(client, part.lease_id) for part in job.parts if part.lease_id)
    # Each node counts its leases for itself, so the id of another node's may be known here.
    return next((lease for lease in leases if lease is not None and lease.job_id == job.id), None)


def _lease_of(client: Client, job: Job) -> Lease:
    lease = lease_if_here(client, job)
    if lease is not None:
        return lease
    nodes = ", ".join(part.node for part in job.parts if part.lease_id)
    if nodes:
        raise StateConflict(f"job {job.id} has its lease on {nodes}", hint="use this command there")
    raise StateConflict(
        f"job {job.id} is {job.state} and has no lease", hint=f"its story: gpushare why {job.id}"
    )


def job_id(client: Client, word: str) -> str:
    """Return the id of a job, or of a lease's job; empty for a lease without a job."""
    return first_found(client, word, lambda name: client.get(name).job_id, lambda name: name)


def container_named(
    client: Client,
    word: str,
    rank: int = 0,
    attempt_of: Callable[[Job], int] = lambda job: job.attempt,
) -> DockerEndpoint:
    """Return the place of the container of a job or of a lease. Raises NotFound, StateConflict.

    ``attempt_of`` chooses the attempt at the job, and may refuse.
    """
    # Most commands need no container, and docker's modules take time to import.
    from gpushared.cli.job_places import docker_host_for

    jobs = Jobs(client)

    def of_job(name: str) -> DockerEndpoint:
        job = jobs.get(name)
        return docker_host_for(client, job, rank, attempt_of(job))

    return first_found(client, word, lambda name: _of_lease(client, client.get(name), attempt_of), of_job)


def _of_lease(client: Client, lease: Lease, attempt_of: Callable[[Job], int]) -> DockerEndpoint:
    from gpushared.cli.job_places import DockerEndpoint, docker_host_for

    if not lease.container_id and lease.job_id:
        job = Jobs(client).get(lease.job_id)
        return docker_host_for(client, job, attempt=attempt_of(job))
    if not lease.container_id:
        raise StateConflict(
            f"lease {lease.id} is {lease.state} and shows you no container",
            hint=f"its story: gpushare why {lease.id}",
        )
    return DockerEndpoint(f"unix://{client.path}", lease.container_id)


def set_held(client: Client, word: str, *, held: bool) -> str:
    """Hold a lease or a job, or let it go; return its id. Raises NotFound, StateConflict."""
    return first_found(
        client,
        word,
        lambda name: client.hold(name, held=held).id,
        lambda name: Jobs(client).hold(name, held=held).id,
    )


def set_priority(client: Client, word: str, priority: int) -> Lease | Job:
    """Give a waiting lease or job another priority. Raises NotFound, StateConflict."""

    def of_lease(name: str) -> Lease | Job:
        lease = client.set_priority(name, priority)
        is_own_jobs = lease.job_id and not lease.job_pool  # which keeps the priority for later attempts
        return Jobs(client).set_priority(lease.job_id, priority) if is_own_jobs else lease

    return first_found(client, word, of_lease, lambda name: Jobs(client).set_priority(name, priority))
