"""Define the answers about jobs as typed objects, like ``messages``, by ``proto/gpushare/v1/jobs.proto``."""

from __future__ import annotations

from collections.abc import Mapping

from gpushared.client.messages import Message, Time
from gpushared.light import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import ClassVar

OVER = frozenset({"succeeded", "failed", "cancelled"})


class JobPart(Message):
    """Describe one node's part of the attempt that is under way, or of the last one."""

    node: str = ""
    state: str = ""
    lease_id: str = ""
    rank: int = 0
    reason: str = ""
    exit_code: int | None = None
    silent_since: Time = None


class JobTry(Message):
    """Describe an earlier attempt that ran; the numbers may have gaps."""

    attempt: int = 0
    started_at: Time = None
    ended_at: Time = None
    parts: tuple[JobPart, ...] = ()


class Job(Message):
    """Describe a container that is to run somewhere, sometime."""

    WIRE_NAMES: ClassVar[Mapping[str, str]] = {"job_class": "class"}

    id: str = ""
    state: str = ""
    name: str = ""
    image: str = ""
    owner: str = ""
    project: str = ""
    asks: str = ""
    job_class: str = ""
    submitted_at: float = 0.0
    started_at: Time = None
    ended_at: Time = None
    attempt: int = 0
    parts: tuple[JobPart, ...] = ()
    exit_code: int | None = None
    reason: str = ""
    hint: str = ""
    token: str = ""
    array_id: str = ""
    array_index: int | None = None
    pool: bool = False
    interactive: bool = False
    position: int = 0
    priority: int = 0
    tries: tuple[JobTry, ...] = ()

    @property
    def is_over(self) -> bool:
        return self.state in OVER


class JobStoryEntry(Message):
    """Hold one line of a job's story."""

    at: float = 0.0
    text: str = ""


class JobExplanation(Message):
    """Explain why a job waits or how it ended, with its story."""

    job: Job = Job({})
    reason_code: str = ""
    sentence: str = ""
    hint: str = ""
    story: tuple[JobStoryEntry, ...] = ()
    simulated: bool = False


class SubmitAnswer(Message):
    """Name the jobs that were taken: one, or an array's in the order of their numbers."""

    job_ids: tuple[str, ...] = ()
    array_id: str = ""
    notes: tuple[str, ...] = ()


class DoorAnswer(Message):
    """Name the Docker endpoint that reaches a job: ``host`` is for DOCKER_HOST."""

    host: str = ""
    lease_id: str = ""
    node: str = ""
    here: bool = False


class ReserveAnswer(Message):
    """Describe a job that a client waits for; ``door`` is None while it has no lease."""

    job: Job = Job({})
    notes: tuple[str, ...] = ()
    door: DoorAnswer | None = None


class JobList(Message):
    """Hold a page of jobs; ``notices`` are for the reader.

    ``simulated``: some of the GPUs that these jobs may run on are simulated.
    """

    jobs: tuple[Job, ...] = ()
    next_page_token: str = ""
    notices: tuple[str, ...] = ()
    simulated: bool = False


class PoolGpu(Message):
    """Describe a GPU of the pool, as its node told last."""

    id: str = ""
    index: int = 0
    name: str = ""
    memory_bytes: int = 0
    free_memory_bytes: int = 0
    free_compute_permille: int = 0
    trouble: str = ""
    leases: int = 0


class PoolNode(Message):
    """Describe a node of the pool, and since when the facts hold."""

    name: str = ""
    presence: str = ""
    heard_at: Time = None
    silent_since: Time = None
    drain_reason: str = ""
    drained_by: str = ""
    version: str = ""
    address: str = ""
    simulated: bool = False
    gpus: tuple[PoolGpu, ...] = ()
    waiting: int = 0
    running: int = 0
    enrolled_at: Time = None


class NodeList(Message):
    """Hold the nodes of the pool; ``pool`` is empty if this node is in none."""

    nodes: tuple[PoolNode, ...] = ()
    pool: str = ""
    notices: tuple[str, ...] = ()
