"""Track how much of a job a program has seen, so that a new connection goes on from there."""

from __future__ import annotations

from gpushared.api.v1.messages import Job
from gpushared.domain.model.errors import GpushareError, StateConflict

RUNNING = frozenset({"running", "paused", "unknown", "cancelling"})


class JobWatch:
    """Tell one job's changes, each once, over however many connections."""

    def __init__(self) -> None:
        self._token = ""

    def news(self, job: Job) -> bool:
        """Return True if the job looks otherwise than the last time."""
        if job.token and job.token == self._token:
            return False
        self._token = job.token
        return True


class Position:
    """Count the output of one of a job's attempts that was handed on."""

    def __init__(self, job: Job, tail: int) -> None:
        self._attempt = job.attempt
        self._tail = tail
        self._bytes = 0
        self._skip = 0

    def resume(self, job: Job) -> None:
        """Prepare for a new connection, which gives all output from the beginning.

        Raises StateConflict if nobody knows how much was read. A job that was run again meanwhile has another
        container, whose output is read from its beginning.
        """
        if job.attempt != self._attempt:
            self._attempt, self._bytes = job.attempt, 0
        elif self._tail and self._bytes:
            raise StateConflict(
                f"the connection was lost while the last lines of job {job.id} were read",
                hint="read the output from its beginning (tail=0), which goes on by itself",
            )
        self._skip = self._bytes

    def news(self, data: bytes) -> bytes:
        """Return the part of the data that was not handed on yet."""
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        self._bytes += len(data) - skipped
        return data[skipped:]

    def is_complete(self, job: Job) -> bool:
        """Return True if output that ended in order is all of it; ``job`` is its state after that end.

        A daemon on its way down ends an answer, too. A container's end is known a moment after its output's.
        """
        return job.attempt != self._attempt or job.state not in RUNNING

    def all_was_read(self, job: Job, error: GpushareError) -> bool:
        """Return True if there is no more output because the container was removed after its end."""
        return bool(self._bytes) and isinstance(error, StateConflict) and job.is_over
