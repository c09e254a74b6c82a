"""Check that the names of jobs' containers are still free on this node's engine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from gpushared.domain.model.errors import StateConflict, TimedOut, Unavailable
from gpushared.domain.model.lease import JobId
from gpushared.domain.model.request import Caller
from gpushared.domain.model.units import shown
from gpushared.jobs.job_requests import Wanted
from gpushared.net.loopback import LoopbackGate
from gpushared.ports import LABEL_JOB

OK = 200
LIST_SECONDS = 10.0
_ROOT = Caller(0, 0, "root", trusted=True)


async def check_names(insider: LoopbackGate, wanted: Wanted, is_live: Callable[[JobId], bool]) -> None:
    """Raise StateConflict if a container that belongs to no live job has the name of a wanted job.

    ``is_live`` returns True if a job is not over; the book of jobs guards the names of live jobs. If the
    engine does not answer, nothing is refused here: the engine reports the conflict when the job runs.
    """
    names = {spec.name for _, spec in wanted.jobs if spec.name}
    own = {job for job, _ in wanted.jobs}
    if not names:
        return
    for name, job in (await _containers(insider)).items():
        if name in names and job not in own and not is_live(job):
            raise StateConflict(
                f"a container on this node is called {shown(name)} already",
                hint=f"use another --name, or, if it is yours and over: docker rm {name}",
            )


async def _containers(insider: LoopbackGate) -> dict[str, JobId]:
    """Return the names of all containers, running or not, each with its job's id, empty for no job."""
    with suppress(Unavailable, TimedOut):
        gate = insider.gate_as(_ROOT)
        answer = await gate.call("GET", b"/containers/json?all=1", timeout_seconds=LIST_SECONDS)
        if answer.status == OK:
            return {
                name.removeprefix("/"): JobId((one.get("Labels") or {}).get(LABEL_JOB, ""))
                for one in answer.json()
                for name in one.get("Names") or ()
            }
    return {}
