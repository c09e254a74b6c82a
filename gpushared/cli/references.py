"""Find the lease, the job, or the container of one of them that a reference names, for all commands alike.

A whole id means exactly its lease or job. A name means a live lease or job before one that is over. A reference
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
    from gpushared.cli.job_endpoints import DockerEndpoint

LEASE = "l-"
_SHOWN = 80
_Result = TypeVar("_Result")
_JOB = re.compile(r"(?:[0-9a-hjkmnp-tv-z]{13}|[0-9a-hjkmnp-tv-z]{10})(?:_\d{1,6})?")
"""Crockford's base 32, as the daemon makes ids; tests hold the two together."""


def is_job_id(reference: str) -> bool:
    """Return True if the reference looks like a job's whole id; names of containers may look so too."""
    return _JOB.fullmatch(reference) is not None


def may_be_array(reference: str) -> bool:
    return is_job_id(reference) and "_" not in reference


def first_found(
    client: Client, reference: str, of_lease: Callable[[str], _Result], of_job: Callable[[str], _Result]
) -> _Result:
    """Return the function's result for the lease or the job of that id or name.

    A reference that begins as a lease's id or looks like a job's is passed on as it is: the daemon knows names
    too. Raises NotFound, RequestError.
    """
    if reference.startswith(LEASE):
        return of_lease(reference)
    if is_job_id(reference):
        with suppress(NotFound):
            return of_job(reference)
    match = _find_by_name(client, reference)
    return of_lease(match.id) if isinstance(match, Lease) else of_job(match.id)


def jobs_of_array(client: Client, reference: str) -> list[Job]:
    """Return all jobs of the array of that id or name, over or not; none if there is no such array."""
    if not (may_be_array(reference) or _means_several(client, reference)):
        return []
    return [job for page in Jobs(client).pages(array_id=reference, ended=True) for job in page.jobs]


def _means_several(client: Client, reference: str) -> bool:
    """Return True if the daemon refuses to take the reference for one job, as it does for an array's name."""
    if reference.startswith(LEASE) or is_job_id(reference):
        return False
    try:
        _find_by_name(client, reference)
    except RequestError:
        return True
    except GpushareError:  # the next call that uses the reference reports the error
        return False
    return False


def _find_by_name(client: Client, reference: str) -> Lease | Job:
    lease = _lease_if_any(client, reference)
    if lease is None:
        return _job_named(client, reference)
    if lease.job_id and lease.state != "ended":
        return lease
    other = _job_if_known(client, reference)
    return lease if other is None else _choose(reference, lease, other)


def _choose(reference: str, lease: Lease, job: Job) -> Lease | Job:
    """Choose between a lease and a job that have the same name."""
    lease_is_over = lease.state == "ended"
    if lease_is_over and job.is_over:
        return lease if lease.created_at >= job.submitted_at else job
    if lease_is_over:
        return job
    if job.is_over:
        return lease
    raise RequestError(
        f"{reference[:_SHOWN]!r} is a lease and a job",
        hint=f"say which: {lease.id} ({lease.state}, {lease.owner}), {job.id} ({job.state}, {job.owner})",
    )


def _lease_if_any(client: Client, reference: str) -> Lease | None:
    with suppress(NotFound):
        return client.get(reference)
    return None


def _job_if_any(client: Client, reference: str) -> Job | None:
    with suppress(NotFound):
        return Jobs(client).get(reference)
    return None


def _job_if_known(client: Client, reference: str) -> Job | None:
    """Look for a job without retries: a pool that is away must not hold up work on this node."""
    retries, client.retries = client.retries, None
    try:
        return _job_if_any(client, reference)
    except (Unavailable, TimedOut):
        return None
    finally:
        client.retries = retries


def _job_named(client: Client, reference: str) -> Job:
    job = _job_if_any(client, reference)
    if job is None:
        raise NotFound(
            f"there is no job, lease or container {reference[:_SHOWN]!r}",
            hint="`gpushare jobs` and `gpushare ps` list them",
        )
    return job


def lease_id(client: Client, reference: str) -> str:
    """Return the id of a lease, or of a job's lease on this node. Raises NotFound, StateConflict."""
    return first_found(
        client, reference, lambda name: name, lambda name: _lease_of(client, Jobs(client).get(name)).id
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


def job_id(client: Client, reference: str) -> str:
    """Return the id of a job, or of a lease's job; empty for a lease without a job."""
    return first_found(client, reference, lambda name: client.get(name).job_id, lambda name: name)


def container_named(
    client: Client,
    reference: str,
    rank: int = 0,
    attempt_of: Callable[[Job], int] = lambda job: job.attempt,
) -> DockerEndpoint:
    """Return the endpoint of the container of a job or of a lease. Raises NotFound, StateConflict.

    ``attempt_of`` chooses the attempt at the job, and may refuse.
    """
    # Most commands need no container, and docker's modules take time to import.
    from gpushared.cli.job_endpoints import docker_host_for

    jobs = Jobs(client)

    def of_job(name: str) -> DockerEndpoint:
        job = jobs.get(name)
        return docker_host_for(client, job, rank, attempt_of(job))

    return first_found(
        client, reference, lambda name: _of_lease(client, client.get(name), attempt_of), of_job
    )


def _of_lease(client: Client, lease: Lease, attempt_of: Callable[[Job], int]) -> DockerEndpoint:
    from gpushared.cli.job_endpoints import DockerEndpoint, docker_host_for

    if not lease.container_id and lease.job_id:
        job = Jobs(client).get(lease.job_id)
        return docker_host_for(client, job, attempt=attempt_of(job))
    if not lease.container_id:
        raise StateConflict(
            f"lease {lease.id} is {lease.state} and shows you no container",
            hint=f"its story: gpushare why {lease.id}",
        )
    return DockerEndpoint(f"unix://{client.path}", lease.container_id)


def set_held(client: Client, reference: str, *, held: bool) -> str:
    """Hold a lease or a job, or let it go; return its id. Raises NotFound, StateConflict."""
    return first_found(
        client,
        reference,
        lambda name: client.hold(name, held=held).id,
        lambda name: Jobs(client).hold(name, held=held).id,
    )


def set_priority(client: Client, reference: str, priority: int) -> Lease | Job:
    """Give a waiting lease or job another priority. Raises NotFound, StateConflict."""

    def of_lease(name: str) -> Lease | Job:
        lease = client.set_priority(name, priority)
        is_own_jobs = lease.job_id and not lease.job_pool  # which keeps the priority for later attempts
        return Jobs(client).set_priority(lease.job_id, priority) if is_own_jobs else lease

    return first_found(client, reference, of_lease, lambda name: Jobs(client).set_priority(name, priority))
