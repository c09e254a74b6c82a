"""Jobs as users see them: from the coordinator's records to messages of the API."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from gpushared.api.v1 import jobs_pb2
from gpushared.domain.asking import describe
from gpushared.domain.jobs.member import Member
from gpushared.domain.jobs.model import (
    HERE,
    AttemptState,
    Cancelled,
    Cancelling,
    Ended,
    Ending,
    Job,
    JobFailed,
    JobOutcome,
    NodeName,
    Part,
    Placing,
    Queued,
    Running,
    Succeeded,
    Then,
)
from gpushared.domain.shelf import Shelf
from gpushared.domain.units import shown

_OUTCOME_WORDS: dict[type[JobOutcome], str] = {
    Succeeded: "succeeded",
    JobFailed: "failed",
    Cancelled: "cancelled",
}


class Members(Protocol):
    """What views read of the machine's state."""

    @property
    def members(self) -> Shelf[NodeName, Member]: ...


@dataclass(frozen=True, slots=True)
class Why:
    """Why a job waits: a code for programs, a sentence, what helps, and its place (0 = not known)."""

    code: str
    sentence: str
    hint: str = ""
    position: int = 0


class JobViews:
    """Renders jobs from the newest state.

    ``here`` is what the node itself is called where its own book is meant, ``why`` tells of those that wait.
    """

    def __init__(
        self,
        state: Callable[[], Members],
        why: Callable[[Job], Why | None],
        *,
        here: str = "",
        pool: bool,
    ) -> None:
        self._state = state
        self._why = why
        self._here = here
        self._pool = pool

    def job(self, job: Job) -> jobs_pb2.Job:
        """One job, whoever asks: whether they may is the service's question."""
        view = jobs_pb2.Job(
            id=job.id,
            state=self._state_word(job),
            name=job.spec.name or default_name(job.id),
            image=job.spec.image,
            owner=job.spec.owner.principal,
            project=job.project,
            asks=_asks(job),
            submitted_at=job.submitted_at,
            attempt=job.attempts,
            parts=[self._part(part) for part in job.parts],
            array_id=job.spec.array or "",
            pool=self._pool,
            interactive=job.spec.interactive,
            priority=job.priority,
        )
        setattr(view, "class", job.spec.request.lease_class)
        if job.spec.index is not None:
            view.array_index = job.spec.index
        self._add_times(view, job)
        self._add_reason(view, job)
        view.token = token_of(view)
        return view

    def why(self, job: Job) -> Why | None:
        """Why it does not run; None where there is nothing to say."""
        if isinstance(job.state, Ended):
            return _why_over(job)
        silent = self._silent(job.parts)
        if silent is not None:
            return silent
        if job.held_by and isinstance(job.state, Queued):
            return Why("held", f"it is held by {job.held_by}", f"gpushare unhold {job.id}")
        if isinstance(job.state, Cancelling):
            return _why_cancelling(job.state)
        return None if isinstance(job.state, Running) else self._why(job)

    def name_of(self, node: NodeName) -> str:
        return self._here if node == HERE else node

    # --- parts of it -----------------------------------------------------------------------------------

    def _state_word(self, job: Job) -> str:
        match job.state:
            case Queued():
                return "held" if job.held_by else "queued"
            case Placing(parts=parts):
                waits = any(part.state is AttemptState.WAITING for part in parts)
                return "queued" if waits else "placing"
            case Running(parts=parts):
                if self._silent(parts) is not None:
                    return "unknown"
                return "paused" if all(part.state is AttemptState.PAUSED for part in parts) else "running"
            case Cancelling():
                return "cancelling"
            case Ended(outcome=outcome):
                return _OUTCOME_WORDS[type(outcome)]

    def _part(self, part: Part) -> jobs_pb2.JobPart:
        view = jobs_pb2.JobPart(
            node=self.name_of(part.node),
            state=part.state or "",
            lease_id=part.lease or "",
            rank=part.rank,
            silent_since=self._silent_since(part.node) or 0.0,
        )
        if part.ending is not None:
            view.reason = part.ending.reason
            if part.ending.exit_code is not None:
                view.exit_code = part.ending.exit_code
        return view

    def _silent_since(self, node: NodeName) -> float | None:
        member = self._state().members.get(node)
        return None if member is None or member.connected else member.silent_since

    def _silent(self, parts: Iterable[Part]) -> Why | None:
        """What is not known, because its node is silent."""
        silent = [
            part.node
            for part in parts
            if not (part.state and part.state.is_final) and self._silent_since(part.node) is not None
        ]
        if not silent:
            return None
        names = ", ".join(silent)
        return Why(
            "node_silent",
            f"nothing is heard of {names}; what runs there is kept",
            f"is it off for good? An admin says so with `gpushare node forget {silent[0]} --is-off`",
        )

    def _add_times(self, view: jobs_pb2.Job, job: Job) -> None:
        if isinstance(job.state, Running):
            view.started_at = job.state.since
        if isinstance(job.state, Ended):
            view.ended_at = job.state.at
            if (code := exit_code(job.state)) is not None:
                view.exit_code = code

    def _add_reason(self, view: jobs_pb2.Job, job: Job) -> None:
        why = self.why(job)
        if why is not None:
            view.reason, view.hint, view.position = why.sentence, why.hint, why.position


def exit_code(state: Ended) -> int | None:
    """That of the container which decided how the job ended; None where none did."""
    if isinstance(state.outcome, Succeeded):
        return 0
    return state.outcome.exit_code if isinstance(state.outcome, JobFailed) else None


def default_name(job: str) -> str:
    """What the container of a job is called that was given no name."""
    return f"gpushare-{job}"


def token_of(view: jobs_pb2.Job) -> str:
    """Another one whenever the job looks otherwise."""
    return hashlib.sha256(view.SerializeToString(deterministic=True)).hexdigest()[:16]


def _asks(job: Job) -> str:
    words = describe(job.spec.request)
    if job.spec.span:
        return f"{words} over several nodes"
    return words if job.spec.nodes == 1 else f"{job.spec.nodes} nodes x {words}"


def _why_over(job: Job) -> Why | None:
    assert isinstance(job.state, Ended), "asked of those that are over"
    match job.state.outcome:
        case Succeeded():
            return None
        case JobFailed(reason=reason, hint=hint):
            return Why("failed", reason, hint)
        case Cancelled(by=by):
            return Why("cancelled", f"cancelled by {shown(by)}")


def _why_cancelling(state: Cancelling) -> Why:
    after = {
        Then.CANCEL: "it is being ended",
        Then.REQUEUE: "what runs of it is being ended, then it is queued again",
        Then.FAIL: "what still runs of it is being ended",
    }[state.then]
    made = f": {_ending_words(state.ending)}" if state.ending is not None else ""
    return Why("cancelling", f"{after}{made}")


def _ending_words(ending: Ending) -> str:
    return ending.reason or ending.kind
