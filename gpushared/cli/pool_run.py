"""Run ``gpushare run --pool`` and ``--node``: get a lease in the pool, then become docker through a tunnel.

The container is made on the node that has the room, by the ordinary docker CLI here: terminal, signals,
resizes and the exit code are docker's own, as on this machine.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from gpushared.api.v1.messages import DoorAnswer, Job
from gpushared.cli import docker_cli
from gpushared.cli.docker_args import RunArguments, refuse_ways_around
from gpushared.cli.errors import UsageError, say
from gpushared.cli.relay import fork_relay
from gpushared.cli.start import (
    advice_of,
    check_privileges,
    lease_fields,
    max_wait_seconds,
    print_warnings,
    refusal_of,
)
from gpushared.cli.waiting import POLL_SECONDS, Interrupted, MaxWaitReached, Progress, signals_interrupt
from gpushared.client import Client
from gpushared.client.jobs import Jobs
from gpushared.domain.model.errors import GpushareError, NotFound, StateConflict, Unimplemented

if TYPE_CHECKING:
    from gpushared.cli.runs import Run

FIRST_SECONDS = 1.0
"""Most jobs that find room have it sooner; whoever waits longer is told why."""
_NOT_ELSEWHERE = ("result-file", "restart-on-fault", "after", "near", "away-from")


def run_in_pool(args: RunArguments) -> int:
    """Become ``docker run``; return, with the exit code, only if docker does not start."""
    for name in _NOT_ELSEWHERE:
        if name in args.own_options:
            raise UsageError(f"--{name} cannot be used for a container in the pool", hint="leave it out")
    refuse_ways_around(args)
    client = Client()
    check_privileges(client, args)
    reservation = PoolReservation(client, args)
    program = docker_cli.find_docker()
    print_warnings(args)
    try:
        with signals_interrupt():
            code, _ = refusal_of(program, args, client)
            if code:
                return code
            reservation.ask()
            reservation.wait()
            _become(program, reservation, args)
    except Interrupted as error:
        reservation.find()
        reservation.leave()
        say(f"left the queue ({signal.Signals(error.exit_code - 128).name})")
        return error.exit_code
    except GpushareError:
        reservation.leave()
        raise
    except OSError as error:
        reservation.leave()
        raise NotFound(f"docker cannot be started: {error.strerror}", hint=program) from error


def _become(program: str, reservation: PoolReservation, args: RunArguments) -> NoReturn:
    endpoint = reservation.endpoint or reservation.jobs.door(reservation.job.id)
    path = endpoint.host.removeprefix("unix://")
    if not args.is_set("detach"):
        path = fork_relay(reservation.run, path, terminal=args.is_set("tty"))
    docker_cli.become(
        program, docker_cli.run_command(args, endpoint.lease_id), docker_cli.environment_for(f"unix://{path}")
    )


class PoolReservation:
    """Bring a job without a container of its own from the pool's queue to a reserved lease on some node."""

    def __init__(self, client: Client, args: RunArguments) -> None:
        self.jobs = Jobs(client)
        self.job = Job({})
        self.endpoint: DoorAnswer | None = None
        self._fields = _submit_fields(args)
        self._has_asked = False
        self._max_wait = max_wait_seconds(args)
        self._progress = Progress(sys.stderr, advice_of(args))
        self._client = client
        if client.retries is not None:
            client.retries.tell = self._progress.lost

    def ask(self) -> None:
        """Have the job kept by this node, and by the pool if it answers; with a lease if there is room."""
        self._has_asked = True
        seconds = FIRST_SECONDS if self._max_wait is None else min(FIRST_SECONDS, self._max_wait)
        try:
            answer = self.jobs.reserve(timeout_seconds=seconds, **self._fields)
        except Unimplemented:
            self._submit_and_get()
            return
        for note in answer.notes:
            say(note)
        self.job, self.endpoint = answer.job, answer.door

    def _submit_and_get(self) -> None:
        """Submit and then ask for the job, as a daemon of the version before needs it."""
        answer = self.jobs.submit(**self._fields)
        for note in answer.notes:
            say(note)
        self.job = self.jobs.get(answer.job_ids[0])

    def wait(self) -> None:
        """Wait until the job has its lease. Raises StateConflict if it will get none, MaxWaitReached."""
        since = time.monotonic()
        deadline = None if self._max_wait is None else since + self._max_wait
        while not self._is_reserved():
            if not self.job.is_over:  # else its end is said, and only once
                self._progress.job(self.job)
            seconds = POLL_SECONDS if deadline is None else min(POLL_SECONDS, deadline - time.monotonic())
            self._look_again(seconds)
        self._progress.clear()
        waited = f", after {time.monotonic() - since:.0f} s" if self._progress.waited else ""
        say(f"{self.job.id} is on node {self.job.parts[0].node}{waited}")

    def _look_again(self, seconds: float) -> None:
        if self.job.is_over or seconds <= 0:
            self._progress.clear()
        if self.job.is_over:
            raise StateConflict(self.job.reason or f"the job was {self.job.state}", hint=self.job.hint)
        if seconds <= 0:
            raise MaxWaitReached(f"no room in the pool in {self._max_wait} s", hint=self.job.reason)
        self.job = self.jobs.wait(self.job.id, self.job.token, timeout_seconds=seconds)

    def find(self) -> None:
        """Find the job of an interrupted request, which may have been taken, by the same request again."""
        self._client.retries = None
        if not self.job.id and self._has_asked:
            with suppress(GpushareError):
                self.job = self.jobs.get(self.jobs.submit(**self._fields).job_ids[0])

    def leave(self) -> None:
        """Give the job up, as a best effort: a lease that nobody claims goes back by itself."""
        self._client.retries = None
        if self.job.id:
            with suppress(GpushareError):
                self.jobs.cancel(self.job.id, grace_seconds=0)

    def run(self) -> Run:
        """Return the job's run, by which it is looked for after docker's connection to it broke."""
        from gpushared.cli.runs import JobRun

        return JobRun(Client(), self.job.id)

    def _is_reserved(self) -> bool:
        return bool(self.job.parts) and all(
            part.lease_id and part.state in {"reserved", "running"} for part in self.job.parts
        )


def _submit_fields(args: RunArguments) -> dict[str, Any]:
    lease = lease_fields(args)
    lease["class"] = lease.pop("lease_class")
    lease["requeue"] = False  # its client is attached to it
    lease["ends_with_caller"] = True
    return {
        "request_id": os.urandom(16).hex(),
        "lease": lease,
        "name": args.value("name").removeprefix("/"),
        "image": args.image,
        "platform": args.value("platform"),
        "pull": args.value("pull"),
        "pool": True,
        "node": args.own_options.get("node", ""),
        "interactive": True,
        "requeue": False,
    }
