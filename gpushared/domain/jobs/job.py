"""Define a job: a container that is to run once, with a record of each attempt to run it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NewType

from gpushared.domain.model.lease import (
    JobId,
    LeaseId,
)
from gpushared.domain.model.request import Request

NodeName = NewType("NodeName", str)
HERE = NodeName("")
"""The node itself, among its own jobs."""

STORY_KEPT = 50
"""A job's story keeps this many of its newest entries."""
AFTER_BYTES = 100
"""Each awaited job takes this much, in the spec and in the list of the jobs still awaited."""
NAME_BYTES = 64
"""Each name in a list takes this much memory besides its characters."""
MAX_TEXT = 400
"""Texts about a job have at most this many characters. Docker's own messages quote whole command lines."""


def cut_short(text: str) -> str:
    """Shorten a text, so that a record can always hold it."""
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


class Pull(StrEnum):
    """Name when the executing node pulls the image, in docker's words."""

    MISSING = "missing"
    ALWAYS = "always"
    NEVER = "never"


class AfterKind(StrEnum):
    """Name the end that a job must have had before another may start."""

    ANY = "any"
    OK = "ok"


@dataclass(frozen=True, slots=True)
class After:
    job: JobId
    kind: AfterKind = AfterKind.ANY


@dataclass(frozen=True, slots=True)
class Owner:
    """Name the person for whom a job runs.

    ``principal``: ``ada@lab``, the name in the realm that vouches for the person. ``person``: the person's
    name in the pool, for quotas and ownership. ``admin``: the owner may see and end all jobs.
    """

    principal: str
    person: str
    admin: bool = False
    root_of: NodeName = field(default=HERE, compare=False, metadata={"recorded": False})
    """The owner is root of this node, who asks through it; empty for all others."""

    @property
    def name(self) -> str:
        return self.principal.partition("@")[0]

    @property
    def realm(self) -> str:
        """Return the realm that vouches for the principal."""
        return self.principal.partition("@")[2]

    def may_see_jobs_of(self, other: Owner) -> bool:
        """Return True if this owner may see and change each job of the other owner.

        To an owner who may not, the job does not exist.
        """
        return self.admin or self.person == other.person


ROOT = "root"


@dataclass(frozen=True, slots=True)
class JobSpec:
    """Describe the work of a job. The spec is immutable: later decisions about the work stand in the job.

    ``body``: the JSON body of a captured ``POST /containers/create``. It is empty for an ``interactive`` job,
    whose client creates the container through the node's gate. ``platform`` is docker's.
    """

    request: Request
    owner: Owner
    image: str = ""
    body: str = ""
    platform: str = ""
    name: str = ""
    pull: Pull = Pull.MISSING
    interactive: bool = False
    immediate: bool = False
    """Refuse rather than wait."""
    target: NodeName = HERE
    """Only this node will do; empty allows any node."""
    nodes: int = 1
    """The job runs on this many nodes at once, each with ``request``: a gang."""
    span: bool = False
    """The GPUs of ``request`` may be spread over several nodes, as few as possible."""
    retries: int = 0
    """The job is run again this many times after failures of its own."""
    requeue: bool = True
    """The job is run again after its node was lost, or after it had to give way."""
    stop_after_seconds: int | None = None
    """The job's node stops the job when the node has received nothing from the coordinator for this long;
    None means that the node keeps the job."""
    after: tuple[After, ...] = ()
    array: JobId | None = None
    index: int | None = None
    array_limit: int | None = None
    """At most this many jobs of the array run at once; None sets no limit."""
    origin: NodeName = HERE
    """The job came in through this node, which keeps it until it is over; empty for none."""
    request_id: str = ""
    remove: bool = False
    """The job's container is removed once its end is known, and not kept for its output."""

    @property
    def size_bytes(self) -> int:
        """Return about how many bytes the texts in the job's description take."""
        # Each job is counted several times in its life, so this loops over few things.
        texts = len(self.body) + len(self.image) + len(self.platform) + len(self.name) + len(self.request_id)
        return texts + names_bytes(self.request) + AFTER_BYTES * len(self.after)


def names_bytes(request: Request) -> int:
    """Return about how many bytes the names in a request take."""
    names = (
        *request.models,
        *request.gpus,
        *request.near,
        *request.away_from,
        *request.after,
        *request.notify,
    )
    return NAME_BYTES * len(names) + sum(map(len, names))


# --- outcomes ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Succeeded:
    """Record that the main processes of the job's containers ended with 0."""


@dataclass(frozen=True, slots=True)
class JobFailed:
    """Record that the job failed and no attempt is left. ``exit_code`` is None if there was none."""

    reason: str
    exit_code: int | None = None
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The job was cancelled ``by`` somebody, or ended on its node for ``reason`` and is not run again."""

    by: str = ""
    reason: str = ""


JobOutcome = Succeeded | JobFailed | Cancelled
OUTCOME_WORDS: dict[type[JobOutcome], str] = {
    Succeeded: "succeeded",
    JobFailed: "failed",
    Cancelled: "cancelled",
}


def outcome_word(outcome: JobOutcome) -> str:
    """Return the word of a finished job's state."""
    return OUTCOME_WORDS[type(outcome)]


def exit_code_of(outcome: JobOutcome) -> int | None:
    """Return the exit code of the container that decided how the job ended, or None if there was none."""
    if isinstance(outcome, Succeeded):
        return 0
    return outcome.exit_code if isinstance(outcome, JobFailed) else None


# --- the parts of an attempt, as the coordinator knows them --------------------------------------------


class AttemptState(StrEnum):
    """Name the state of an attempt's part on its node. ``ENDED`` and ``REFUSED`` are final."""

    PREPARING = "preparing"
    """The node pulls the image; nothing is leased yet."""
    WAITING = "waiting"
    """The part is in the node's own queue (only if the order to place it had ``wait``)."""
    RESERVED = "reserved"
    """The part has its lease, and no container yet."""
    RUNNING = "running"
    PAUSED = "paused"
    """The part's container exists but does not run: it is paused, suspended, or stopped for others for a
    time."""
    ENDED = "ended"
    REFUSED = "refused"

    @property
    def is_final(self) -> bool:
        return self in _FINAL


_FINAL = (AttemptState.ENDED, AttemptState.REFUSED)
"""A tuple: ``in`` finds a member of an enum there by its identity, without Python's slow hash of enums."""


class EndKind(StrEnum):
    """Name an attempt's kind of end, as far as the kind matters to the job."""

    EXITED = "exited"
    """The container ended by itself; the exit code says how."""
    CANCELLED = "cancelled"
    """The coordinator ended the attempt."""
    STOPPED = "stopped"
    """Somebody stopped the container on the node."""
    EXPIRED = "expired"
    PREEMPTED = "preempted"
    """The attempt gave way, and its node does not bring it back."""
    FENCED = "fenced"
    """The node had received nothing from the coordinator for too long."""
    LOST = "lost"
    """The node went down, or lost the container."""
    FAILED = "failed"
    """The attempt could not be started, or broke a rule; ``reason`` says which. A node that refuses with
    this kind will not take the job, whatever is free there."""
    NO_ROOM = "no-room"
    """The node refused the attempt because the node had no room at that moment."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Describe an attempt's end on a node.

    ``refused`` attempts have one too: a reason without an exit code.
    """

    kind: EndKind
    reason: str = ""
    exit_code: int | None = None
    hint: str = ""
    passing: bool = False
    """The attempt could not begin for a reason that may pass soon, such as a registry that does not
    answer; or it is lost because a GPU failed under it, which may be its program's doing."""

    @property
    def is_gpu_loss(self) -> bool:
        return self.passing and self.kind is EndKind.LOST

    def cut_short(self) -> Ending:
        """Return the ending with texts that a record can always hold."""
        if len(self.reason) <= MAX_TEXT and len(self.hint) <= MAX_TEXT:
            return self
        return replace(self, reason=cut_short(self.reason), hint=cut_short(self.hint))


@dataclass(frozen=True, slots=True)
class Part:
    """Hold the coordinator's view of one node's part of an attempt.

    ``state`` is None before the first report.

    ``rank`` is the part's number in the gang. ``revision`` is that of the newest report, so that the
    coordinator recognises an older report that comes late.
    """

    node: NodeName
    request: Request
    rank: int = 0
    state: AttemptState | None = None
    lease: LeaseId | None = None
    ending: Ending | None = None
    revision: int = 0
    address: str = ""
    """The other parts of a gang reach this part here."""
    port: int = 0
    """All parts of a gang meet at this port of the gang's first part."""
    started_at: float | None = None
    """The time at which the part's container began, by its node's clock, but not before the job was submitted
    or after the report was received."""
    ended_at: float | None = None
    guarded: bool = False
    """The part's node said that a guard ends the part for want of contact, also without the node's daemon."""


# --- states --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Queued:
    """Record that the job waits. ``not_before`` delays the next attempt after a failure."""

    since: float
    not_before: float = 0.0


@dataclass(frozen=True, slots=True)
class Placing:
    """Record that an attempt is under way, with parts still missing.

    ``committed``: a gang's parts may start.
    """

    attempt: int
    parts: tuple[Part, ...]
    since: float
    committed: bool = False


@dataclass(frozen=True, slots=True)
class Running:
    """Record that the attempt runs.

    ``granted_at`` is the time at which it got its places; 0 means unknown.
    """

    attempt: int
    parts: tuple[Part, ...]
    since: float
    granted_at: float = 0.0


class Then(StrEnum):
    """Name the job's next state after its attempt is taken down."""

    CANCEL = "cancel"
    REQUEUE = "requeue"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Cancelling:
    """Record that all nodes take the attempt down; ``then`` takes effect when the last has confirmed that."""

    attempt: int
    parts: tuple[Part, ...]
    since: float
    then: Then
    by: str = ""
    ending: Ending | None = None
    """The failed part of a gang ended like this, so the other parts are taken down."""
    grace_seconds: int = 10


@dataclass(frozen=True, slots=True)
class Ended:
    at: float
    outcome: JobOutcome
    parts: tuple[Part, ...] = ()
    """The parts of the last attempt, kept so that the attempt's logs are found."""


JobState = Queued | Placing | Running | Cancelling | Ended


@dataclass(frozen=True, slots=True)
class TryPart:
    """Record the node on which a part of an attempt ran, and the part's end there."""

    node: NodeName
    lease: LeaseId | None = None
    rank: int = 0
    exit_code: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Try:
    """Record a finished attempt of a job that went on to another one.

    The record lets users find the attempt's output.
    """

    number: int
    parts: tuple[TryPart, ...]
    started_at: float
    ended_at: float


@dataclass(frozen=True, slots=True)
class JobStoryEntry:
    """Hold one line of a job's story."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Job:
    """Hold a job as its coordinator keeps it.

    ``submitted_at`` is when it came to the coordinator. ``attempts`` counts the begun ones; ``failures`` count
    as retries.
    """

    id: JobId
    sequence: int
    spec: JobSpec
    submitted_at: float
    state: JobState
    project: str = ""
    attempts: int = 0
    failures: int = 0
    troubles: int = 0
    """The job could not begin for a passing reason this many times in a row."""
    held_by: str = ""
    priority: int = 0
    awaits: tuple[After, ...] = ()
    """The unfinished jobs of ``spec.after``."""
    refused_by: tuple[NodeName, ...] = ()
    """Nodes that refuse the job, whatever is free there."""
    refusals: tuple[Ending, ...] = ()
    """The reasons of the nodes in ``refused_by``, in the same order."""
    told_by: NodeName = HERE
    """The node whose report is the only source of the job, where the node may not speak for the job's owner;
    else empty. Such a job runs on no other node until its owner submits it."""
    story: tuple[JobStoryEntry, ...] = field(default=())
    tries: tuple[Try, ...] = ()
    """Earlier attempts that ran, the newest last."""
    preemptions: int = 0
    """The job had to give way this many times, which loses its work."""
    gpu_losses: int = 0
    """A GPU failed under the job this many times."""
    presumed: Part | None = None
    """The only part of the newest attempt, as its node last reported it. It is set when the attempt was
    presumed over without a report from its node, and no other attempt was begun since."""
    kept_since: float | None = None
    """Since this time its node had kept it for the coordinator, or had an attempt at it that the coordinator
    had forgotten, as the node says; None if it came at once."""

    @property
    def asked_at(self) -> float:
        """Return when its owner submitted it, for people only: a node's word makes no job older than others."""
        return self.submitted_at if self.kept_since is None else self.kept_since

    def note(self, at: float, text: str) -> Job:
        """Return the job with one more line in its story."""
        return replace(self, story=(*self.story, JobStoryEntry(at, cut_short(text)))[-STORY_KEPT:])

    @property
    def not_on(self) -> tuple[NodeName, ...]:
        """Return the nodes to which the job does not go.

        The node of a presumed end must first report how the attempt ended.
        """
        if self.presumed is None or self.presumed.node in self.refused_by:
            return self.refused_by
        return (*self.refused_by, self.presumed.node)

    @property
    def nodes(self) -> frozenset[NodeName]:
        """Return the nodes of all attempts that are remembered."""
        tried = (part.node for attempt in self.tries for part in attempt.parts)
        return frozenset((*tried, *(part.node for part in self.parts)))

    @property
    def starts_again(self) -> bool:
        """Return True if the job waits again after it had to give way."""
        return self.spec.requeue and not self.spec.interactive

    @property
    def served_seconds(self) -> float:
        """Return how long the job's earlier attempts ran."""
        return sum(max(0.0, attempt.ended_at - attempt.started_at) for attempt in self.tries)

    @property
    def parts(self) -> tuple[Part, ...]:
        """Return the parts of the current or the last attempt."""
        return () if isinstance(self.state, Queued) else self.state.parts
