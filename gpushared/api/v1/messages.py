"""Generated from proto/ by scripts/proto; do not edit."""

from __future__ import annotations

from gpushared.api.message import JobMessage, Message, Time


class Drained(Message):
    """Why a GPU gets no new leases until it is undrained."""

    # What a sick GPU did ("fell off the bus (XID 79)"), or an admin's reason.
    reason: str = ""
    since: float = 0.0
    # The admin's name, or "gpushared".
    by: str = ""
    # The daemon found that it must not be used: leases there end too.
    sick: bool = False


class Gpu(Message):
    """A GPU has these used and free capacities."""

    uuid: str = ""
    index: int = 0
    name: str = ""
    # free, shared, exclusive; mig for a GPU that is split by MIG, whose instances follow it; drained or
    # unhealthy where it gets no new leases
    mode: str = ""
    memory_total_bytes: int = 0
    # What shares are shares of: the total less what driver and MPS server hold, in whole MiB.
    memory_leasable_bytes: int = 0
    memory_used_bytes: int | None = None
    memory_free_bytes: int = 0
    compute_free_permille: int = 0
    utilization_ratio: float | None = None
    temperature_celsius: int | None = None
    power_watts: float | None = None
    leases: int = 0
    # GPU memory of processes without a lease.
    memory_unmanaged_bytes: int = 0
    # mps, none
    sharing: str = ""
    # Why it takes no new leases, or what is wrong with its sharing; empty = healthy.
    trouble: str = ""
    # When the figures were read.
    sampled_at: Time = None
    # Unset where it is not drained.
    drained: Drained | None = None
    # Of a MIG instance: its GPU, and its profile, such as 1g.10gb; both empty for a GPU.
    parent_uuid: str = ""
    mig_profile: str = ""
    # For people: 0, and 0:1 for a MIG instance.
    label: str = ""
    # GPUs of one group reach each other fast, by NVLink or else on one NUMA node: the lowest index among
    # them. Unset where the driver does not tell.
    link_group: int | None = None


class GpuList(Message):
    """Hold the answer of ``Gpus.List``."""

    gpus: tuple[Gpu, ...] = ()
    simulated: bool = False
    node: str = ""
    # What is wrong now with a part the daemon needs, a sentence each.
    troubles: tuple[str, ...] = ()


class DrainAnswer(Message):
    """Hold the answer of ``Gpus.Drain``."""

    # The GPUs that were named, as they are now.
    gpus: tuple[Gpu, ...] = ()


class Grant(Message):
    """A grant is a part of one GPU."""

    gpu_uuid: str = ""
    gpu_index: int = 0
    gpu_name: str = ""
    memory_bytes: int = 0
    compute_permille: int = 0
    # For people: 0, and 0:1 for a MIG instance. Empty where the GPU is not there any more.
    gpu_label: str = ""
    # The ceiling of its processes where that is above their share: they may use what others leave. Else 0.
    compute_limit_permille: int = 0


class Waiting(Message):
    """A queued lease has this place, and waits for this reason."""

    position: int = 0
    queue_length: int = 0
    # A reason code, for programs, and a sentence, for people.
    reason: str = ""
    text: str = ""
    # Earliest and latest start, seconds since the epoch; 0 = unknown.
    start_from: Time = None
    start_to: Time = None


class Outcome(Message):
    """An outcome tells how a lease ended."""

    # finished, stopped, expired, never_claimed, over_limit, failed
    kind: str = ""
    # Only for `finished`.
    exit_code: int | None = None
    text: str = ""


class Notice(Message):
    """What the program in a container was told of its end."""

    # expires, preempted, idle
    kind: str = ""
    ends_at: Time = None
    text: str = ""


class Lease(Message):
    """A lease is the right to use parts of this node's GPUs until a time."""

    id: str = ""
    state: str = ""
    owner_uid: int = 0
    owner: str = ""
    # What was asked, as one would type it: "0.25", "2x0.5", "8GiB", "0.25..1".
    asks: str = ""
    lease_class: str = ""
    isolation: str = ""
    preset: str = ""
    grants: tuple[Grant, ...] = ()
    # Unset where the driver does not tell.
    memory_used_bytes: int | None = None
    # The wall that really holds the memory, empty until known.
    memory_wall: str = ""
    compute_cap: str = ""
    # Container facts are shown to the owner and to trusted callers.
    container_id: str = ""
    container_name: str = ""
    image: str = ""
    created_at: float = 0.0
    since: float = 0.0
    expires_at: Time = None
    # Until when a reservation must be claimed.
    deadline: Time = None
    waiting: Waiting | None = None
    outcome: Outcome | None = None
    # Changes whenever anything a waiting user is shown changes; pass it to Wait.
    token: str = ""
    simulated: bool = False
    restart_on_fault: int = 0
    # How often it was started again already.
    restarts: int = 0
    # What broke under it, where it has not been started again since.
    fault: str = ""
    priority: int = 0
    # Who keeps it from starting.
    held_by: str = ""
    begin_at: Time = None
    after: tuple[str, ...] = ()
    notice: Notice | None = None
    # What happens when it has to give way: suspend, requeue, stop.
    preempt_step: str = ""
    # Why it is not suspended, where it is not.
    preempt_why: str = ""
    # How often it had to.
    preemptions: int = 0
    # Whose quota it counts against; a user's name where that is in no project.
    project: str = ""
    # Since when none of its processes has done anything on its GPUs; 0 while they do, or where nobody knows.
    idle_since: Time = None
    # It has been so for so long that it is protected from giving way no more.
    lowered: bool = False
    # As in LeaseRequest; models by their full names.
    models: tuple[str, ...] = ()
    near: tuple[str, ...] = ()
    away_from: tuple[str, ...] = ()
    host_cpu_milli: int = 0
    host_memory_bytes: int = 0
    # The job that it is for, and which attempt to run it; empty for none.
    job_id: str = ""
    job_attempt: int = 0
    # The pool by whose order; empty for the node's own jobs.
    job_pool: str = ""


class ResizeAnswer(Message):
    """Hold the answer of ``Leases.Resize``."""

    lease: Lease = Lease({})
    # For people: which part of the new size holds when, a sentence each. Never empty.
    effects: tuple[str, ...] = ()


class UnmanagedProcess(Message):
    """An unmanaged process uses a GPU without a lease."""

    pid: int = 0
    gpu_uuid: str = ""
    gpu_index: int = 0
    memory_bytes: int | None = None
    user: str = ""
    command: str = ""


class LeaseList(Message):
    """Hold the answer of ``Leases.List``."""

    leases: tuple[Lease, ...] = ()
    # GPU processes without a lease.
    unmanaged: tuple[UnmanagedProcess, ...] = ()
    simulated: bool = False
    # How many leases that are over match besides and come after those in this answer.
    more: int = 0
    # For the next page of them; empty where there is none.
    next_page_token: str = ""


class StoryEntry(Message):
    """An entry is one line of a lease's story."""

    at: float = 0.0
    state: str = ""
    text: str = ""


class Refusal(Message):
    """A refusal counts the GPUs that one reason refused in the newest decision."""

    reason: str = ""
    gpus: int = 0
    text: str = ""


class Kept(Message):
    """These GPUs are kept for a waiting lease."""

    lease_id: str = ""
    # For people: 0, 0:1.
    gpu_labels: tuple[str, ...] = ()
    # When the lease for which they are kept starts at the latest; 0 = unknown.
    start_to: Time = None


class Explanation(Message):
    """An explanation tells why a lease waits, what becomes of it, and its story."""

    lease: Lease = Lease({})
    story: tuple[StoryEntry, ...] = ()
    # How often each reason refused a GPU in the newest decision, largest first.
    refusals: tuple[Refusal, ...] = ()
    # What would be granted at once in its place, a sentence; empty for nothing.
    fits_now: str = ""
    # GPUs that are kept: for this lease where it names it, else for the one that it waits behind.
    kept: Kept | None = None
    # What becomes of it when others need its GPUs, or to whom it gave way and why, or, while it waits, whose
    # work would be lost if they gave way to it; a sentence.
    gives_way: str = ""


class GivesWay(Message):
    """This lease would give way to a request."""

    lease_id: str = ""
    owner: str = ""
    asks: str = ""
    project: str = ""
    # suspend, requeue, stop
    step: str = ""


class OfferAnswer(Message):
    """An offer tells the fate that a request would have."""

    # What was asked, as one would type it.
    asks: str = ""
    lease_class: str = ""
    project: str = ""
    # It would be granted at once, on `grants`.
    starts_now: bool = False
    # Where it would start; empty where nobody knows.
    grants: tuple[Grant, ...] = ()
    # When it would start at the latest, if every lease uses its whole time limit; 0 = unknown.
    start_to: Time = None
    # Who would give way to it, and by what right.
    gives_way: tuple[GivesWay, ...] = ()
    why: str = ""
    # Why it would wait; unset where it starts at once.
    waiting: Waiting | None = None
    # What would be granted at once instead, a sentence; empty for nothing.
    fits_now: str = ""
    simulated: bool = False


class SubmitAnswer(Message):
    """The jobs that were taken have these ids."""

    # One, or an array's jobs in the order of their numbers.
    job_ids: tuple[str, ...] = ()
    # The array's own id, empty for a single job.
    array_id: str = ""
    # For people: where it is kept, and what is to be expected.
    notes: tuple[str, ...] = ()


class JobPart(Message):
    """A part is what one node does in the attempt that is under way, or did in the last one."""

    node: str = ""
    # preparing, waiting, reserved, running, paused, ended, refused; empty = not answered yet
    state: str = ""
    lease_id: str = ""
    rank: int = 0
    reason: str = ""
    exit_code: int | None = None
    # Since when the node is silent; 0 = it is not.
    silent_since: Time = None


class JobTry(Message):
    """An attempt that ran, and that is over."""

    # The number of the attempt. Those that no node took have numbers too, so there may be gaps.
    attempt: int = 0
    started_at: Time = None
    ended_at: Time = None
    # Where it ran, and how it ended there.
    parts: tuple[JobPart, ...] = ()


class Job(JobMessage):
    """A job is a container that is to run somewhere, sometime."""

    id: str = ""
    # held, queued, placing, running, paused, unknown, cancelling, succeeded, failed, cancelled
    state: str = ""
    name: str = ""
    image: str = ""
    # ada@lab
    owner: str = ""
    project: str = ""
    # What the GPU request is, in words: "1 x 0.5".
    asks: str = ""
    job_class: str = ""
    submitted_at: float = 0.0
    # When the attempt that runs began, or of one that is over the last; 0 where none ran. When it ended.
    started_at: Time = None
    ended_at: Time = None
    attempt: int = 0
    parts: tuple[JobPart, ...] = ()
    # Set when it is over and there was one.
    exit_code: int | None = None
    # Why it waits, is not known, or failed.
    reason: str = ""
    hint: str = ""
    token: str = ""
    array_id: str = ""
    array_index: int | None = None
    pool: bool = False
    interactive: bool = False
    # Where it stands in its queue, 1 = next; 0 = not waiting or not known.
    position: int = 0
    priority: int = 0
    # Earlier attempts that ran, the newest last. Of many only the newest are kept.
    tries: tuple[JobTry, ...] = ()


class JobList(Message):
    """Hold the answer of ``Jobs.List``."""

    jobs: tuple[Job, ...] = ()
    next_page_token: str = ""
    # What whoever reads this should know: a pool that does not answer, a recovery that is under way.
    notices: tuple[str, ...] = ()
    # Some of the GPUs that these jobs may run on are simulated.
    simulated: bool = False


class JobStoryEntry(Message):
    """An entry is one line of a job's story."""

    at: float = 0.0
    text: str = ""


class JobExplanation(Message):
    """An explanation tells why a job waits or how it ended, with its story."""

    job: Job = Job({})
    reason_code: str = ""
    sentence: str = ""
    hint: str = ""
    story: tuple[JobStoryEntry, ...] = ()
    # Some of the GPUs that the job may run on, runs on or ran on are simulated.
    simulated: bool = False


class DoorAnswer(Message):
    """This Docker endpoint reaches a job."""

    # For DOCKER_HOST: unix:///...
    host: str = ""
    # The lease of the job on its node, which its container claims or has.
    lease_id: str = ""
    node: str = ""
    here: bool = False


class ReserveAnswer(Message):
    """A client waits for this job's lease."""

    # As it is now.
    job: Job = Job({})
    # As of SubmitAnswer.
    notes: tuple[str, ...] = ()
    # Unset while it has no lease.
    door: DoorAnswer | None = None


class PoolGpu(Message):
    """A GPU of the pool is described as its node reported it last."""

    id: str = ""
    index: int = 0
    name: str = ""
    memory_bytes: int = 0
    free_memory_bytes: int = 0
    free_compute_permille: int = 0
    trouble: str = ""
    leases: int = 0


class PoolNode(Message):
    """A node of the pool is described as the coordinator knows it."""

    name: str = ""
    # ready, suspect, unknown, drained, never-seen
    presence: str = ""
    # When it was last heard of, and since when it is silent.
    heard_at: Time = None
    silent_since: Time = None
    drain_reason: str = ""
    drained_by: str = ""
    version: str = ""
    address: str = ""
    simulated: bool = False
    gpus: tuple[PoolGpu, ...] = ()
    # In the node's own queue.
    waiting: int = 0
    running: int = 0
    enrolled_at: Time = None


class NodeList(Message):
    """Hold the answer of ``Jobs.Nodes``."""

    nodes: tuple[PoolNode, ...] = ()
    # Of this pool; empty where the node is in none.
    pool: str = ""
    notices: tuple[str, ...] = ()


class EngineStatus(Message):
    """The Docker engine behind the daemon is in this state."""

    version: str = ""
    api_version: str = ""
    # cdi, device-request, nvidia-runtime, plain
    gpu_mechanism: str = ""
    # The engine applies a lease's settings anew at every start (CDI).
    lease_devices: bool = False
    cgroup_version: int = 0
    trouble: str = ""


class NodeStatus(Message):
    """Hold the answer of ``Node.Status``."""

    version: str = ""
    node: str = ""
    simulated: bool = False
    engine: EngineStatus | None = None
    troubles: tuple[str, ...] = ()
    started_at: float = 0.0
    # Who the daemon takes the caller for.
    caller_uid: int = 0
    # Whether the caller is trusted with the whole engine (root, docker group).
    caller_trusted: bool = False


class Preset(Message):
    """A preset is a request that the administrator gave a name."""

    name: str = ""
    gpu: str = ""
    gpu_memory: str = ""
    gpu_compute: str = ""
    lease_class: str = ""
    time: str = ""
    description: str = ""
    priority: str = ""
    project: str = ""
    model: str = ""


class PresetList(Message):
    """Hold the answer of ``Node.Presets``."""

    presets: tuple[Preset, ...] = ()


class CheckResult(Message):
    """A check has this result."""

    name: str = ""
    # ok, warning, failed, skipped
    status: str = ""
    detail: str = ""
    fix: str = ""
    # The check that said it already, for one that was skipped because of it.
    blocked_by: str = ""


class Setting(Message):
    """The daemon runs with this setting."""

    section: str = ""
    name: str = ""
    # As TOML.
    value: str = ""


class DoctorReport(Message):
    """Hold the answer of ``Node.Doctor``."""

    # In the order in which they are made.
    checks: tuple[CheckResult, ...] = ()
    simulated: bool = False
    examined_at: float = 0.0
    # The settings that the daemon runs with; only for trusted callers.
    settings: tuple[Setting, ...] = ()


class PoolMembership(Message):
    """Hold the answer of ``Node.Join``."""

    pool: str = ""
    node: str = ""
    address: str = ""
    # Of the node's certificate, which is renewed long before.
    expires_at: float = 0.0
    # For whose users the node may speak, besides those of its own name.
    realms: tuple[str, ...] = ()
    # What in the node's configuration does not go with it, for people.
    notes: tuple[str, ...] = ()


class LeftPool(Message):
    """Hold the answer of ``Node.Leave``."""

    # Empty where it was in none.
    pool: str = ""
    node: str = ""


class Quota(Message):
    """GPUs are in permille: 1000 are one."""

    # The GPU model that it holds for; empty for the general one.
    model: str = ""
    # What the project gets whenever it asks; lent to others meanwhile.
    guaranteed_permille: int = 0
    # What it never exceeds; unset = no limit.
    limit_permille: int | None = None
    # Besides, kept free for its build work and never lent.
    fixed_permille: int = 0
    # What it holds of this now.
    held_permille: int = 0


class IdlePolicy(Message):
    """What becomes of leases that do nothing on their GPUs, after so many seconds of it; 0 = never."""

    lease_class: str = ""
    warn_seconds: float = 0.0
    lower_seconds: float = 0.0
    # "none", "suspend" or "stop".
    action: str = ""
    action_seconds: float = 0.0


class Project(Message):
    """A project shares its quotas among its users."""

    name: str = ""
    users: tuple[str, ...] = ()
    weight: float = 0.0
    # The general one first, then those of models by name.
    quotas: tuple[Quota, ...] = ()
    # All that it holds now, of all models.
    held_permille: int = 0
    # What it used, older use counting less: half after queue.half_life_seconds.
    decayed_gpu_seconds: float = 0.0
    # That as a part of what all together used; 0 to 1.
    use_ratio: float = 0.0
    # "set" at run time, "config", or "user": nobody named it, it is a user's own.
    origin: str = ""
    # Leases that hold something, and leases that wait.
    holding: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    # For leases of each class, by the configuration.
    idle: tuple[IdlePolicy, ...] = ()
    # What holds instead in quiet times, for the classes for which it differs then; empty where there are
    # none.
    quiet_idle: tuple[IdlePolicy, ...] = ()


class ProjectList(Message):
    """Hold the answer of ``Projects.List``."""

    # By name.
    projects: tuple[Project, ...] = ()
    simulated: bool = False
