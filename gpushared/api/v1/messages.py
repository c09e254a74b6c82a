"""Generated from proto/ by scripts/proto; do not edit."""

from __future__ import annotations

from gpushared.api.message import JobMessage, Message, Time


class Drained(Message):
    """A drained GPU gets no new leases, for this reason, until it is undrained."""

    # This tells what a sick GPU did ("fell off the bus (XID 79)"), or is an admin's reason.
    reason: str = ""
    since: float = 0.0
    # The admin's name, or "gpushared".
    by: str = ""
    # The daemon found that the GPU must not be used: leases there end too.
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
    # Shares are shares of this: the total less what the driver and the MPS server hold, in whole MiB.
    memory_leasable_bytes: int = 0
    memory_used_bytes: int | None = None
    memory_free_bytes: int = 0
    compute_free_permille: int = 0
    utilization_ratio: float | None = None
    temperature_celsius: int | None = None
    power_watts: float | None = None
    leases: int = 0
    # Processes without a lease hold so much GPU memory.
    memory_unmanaged_bytes: int = 0
    # mps, none
    sharing: str = ""
    # The GPU takes no new leases, or its sharing fails, for this reason; empty = healthy.
    trouble: str = ""
    # The figures were read then.
    sampled_at: Time = None
    # It is unset if the GPU is not drained.
    drained: Drained | None = None
    # A MIG instance has its GPU and its profile here, such as 1g.10gb; both are empty for a GPU.
    parent_uuid: str = ""
    mig_profile: str = ""
    # People read this label: 0, and 0:1 for a MIG instance.
    label: str = ""
    # GPUs of one group reach each other fast, by NVLink or else on one NUMA node; this is the lowest index
    # among them. It is unset if the driver does not tell.
    link_group: int | None = None
    # In an answer for the pool, the GPU is on this node.
    node: str = ""


class GpuList(Message):
    """Hold the answer of ``Gpus.List``."""

    gpus: tuple[Gpu, ...] = ()
    simulated: bool = False
    node: str = ""
    # A sentence tells what is wrong now with each part that the daemon needs.
    troubles: tuple[str, ...] = ()
    # Sentences on nodes of the pool that did not answer now.
    notices: tuple[str, ...] = ()


class DrainAnswer(Message):
    """Hold the answer of ``Gpus.Drain``."""

    # These are the named GPUs as they are now.
    gpus: tuple[Gpu, ...] = ()


class Grant(Message):
    """A grant is a part of one GPU."""

    gpu_uuid: str = ""
    gpu_index: int = 0
    gpu_name: str = ""
    memory_bytes: int = 0
    compute_permille: int = 0
    # People read this label: 0, and 0:1 for a MIG instance. It is empty if the GPU is gone.
    gpu_label: str = ""
    # Processes may use up to this limit of what others leave; 0 = their share is the limit.
    compute_limit_permille: int = 0


class Waiting(Message):
    """A queued lease has this place, and waits for this reason."""

    position: int = 0
    queue_length: int = 0
    # The reason is a code for programs, and the text a sentence for people.
    reason: str = ""
    text: str = ""
    # These are the earliest and the latest start, in seconds since the epoch; 0 = unknown.
    start_from: Time = None
    start_to: Time = None


class Outcome(Message):
    """An outcome tells how a lease ended."""

    # finished, stopped, expired, never_claimed, over_limit, failed
    kind: str = ""
    # This is set only for `finished`.
    exit_code: int | None = None
    text: str = ""


class Notice(Message):
    """A notice was sent to the program in a container before its end."""

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
    # This is the request as one would type it: "0.25", "2x0.5", "8GiB", "0.25..1".
    asks: str = ""
    lease_class: str = ""
    isolation: str = ""
    preset: str = ""
    grants: tuple[Grant, ...] = ()
    # It is unset if the driver does not tell.
    memory_used_bytes: int | None = None
    # This mechanism really limits the memory; empty = not known yet.
    memory_wall: str = ""
    compute_cap: str = ""
    # Container facts are shown to the owner and to trusted callers.
    container_id: str = ""
    container_name: str = ""
    image: str = ""
    created_at: float = 0.0
    since: float = 0.0
    expires_at: Time = None
    # A reservation must be claimed until this time.
    deadline: Time = None
    waiting: Waiting | None = None
    outcome: Outcome | None = None
    # The token changes whenever anything changes that a waiting user is shown; pass it to Wait.
    token: str = ""
    simulated: bool = False
    restart_on_fault: int = 0
    # The container was started again so often already.
    restarts: int = 0
    # This fault ended the container, and it has not been started again since.
    fault: str = ""
    # So much of its time is left when a suspended lease is back; 0 = it is not suspended, or has no time
    # limit.
    left_seconds: float = 0.0
    priority: int = 0
    # This user keeps the lease from starting.
    held_by: str = ""
    begin_at: Time = None
    after: tuple[str, ...] = ()
    notice: Notice | None = None
    # This happens when the lease has to give way: suspend, requeue, stop.
    preempt_step: str = ""
    # This is the reason if that is not suspend.
    preempt_why: str = ""
    # The lease had to give way so often.
    preemptions: int = 0
    # The lease counts against this project's quota; it is the user's name if the user is in no project.
    project: str = ""
    # None of its processes has done anything on its GPUs since then; 0 = one does, or nobody knows.
    idle_since: Time = None
    # It has been idle for so long that it is not protected from giving way any more.
    lowered: bool = False
    # These are as in LeaseRequest, with the full names of models.
    models: tuple[str, ...] = ()
    near: tuple[str, ...] = ()
    away_from: tuple[str, ...] = ()
    host_cpu_milli: int = 0
    host_memory_bytes: int = 0
    # The lease is for this attempt at this job; empty = for none.
    job_id: str = ""
    job_attempt: int = 0
    # This pool ordered it; empty = the job is the node's own.
    job_pool: str = ""
    # In an answer for the pool, the lease is on this node; empty = it waits for one.
    node: str = ""


class ResizeAnswer(Message):
    """Hold the answer of ``Leases.Resize``."""

    lease: Lease = Lease({})
    # Sentences tell people which part of the new size holds when. There is at least one.
    effects: tuple[str, ...] = ()


class UnmanagedProcess(Message):
    """An unmanaged process uses a GPU without a lease."""

    pid: int = 0
    gpu_uuid: str = ""
    gpu_index: int = 0
    memory_bytes: int | None = None
    user: str = ""
    command: str = ""
    # In an answer for the pool, the process is on this node.
    node: str = ""


class LeaseList(Message):
    """Hold the answer of ``Leases.List``."""

    leases: tuple[Lease, ...] = ()
    # These GPU processes have no lease.
    unmanaged: tuple[UnmanagedProcess, ...] = ()
    simulated: bool = False
    # So many more leases that are over match, and come after those in this answer.
    more: int = 0
    # This leads to the next page; empty = there is none.
    next_page_token: str = ""
    # Sentences on nodes of the pool that did not answer now.
    notices: tuple[str, ...] = ()


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
    # People read these labels: 0, 0:1.
    gpu_labels: tuple[str, ...] = ()
    # The lease for which they are kept starts at the latest then; 0 = unknown.
    start_to: Time = None


class Explanation(Message):
    """An explanation tells why a lease waits, what becomes of it, and its story."""

    lease: Lease = Lease({})
    story: tuple[StoryEntry, ...] = ()
    # Each reason refused so many GPUs in the newest decision, largest first.
    refusals: tuple[Refusal, ...] = ()
    # This sentence tells what would be granted at once instead; empty = nothing.
    fits_now: str = ""
    # These GPUs are kept, for this lease or for the one that it waits behind.
    kept: Kept | None = None
    # This sentence tells what happens when others need its GPUs, or to whom it gave way and why, or, while it
    # waits, whose work would be lost if they gave way to it.
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

    # This is the request as one would type it.
    asks: str = ""
    lease_class: str = ""
    project: str = ""
    # The request would be granted at once, on `grants`.
    starts_now: bool = False
    # It would start there; empty = nobody knows.
    grants: tuple[Grant, ...] = ()
    # It would start at the latest then, if every lease uses its whole time limit; 0 = unknown.
    start_to: Time = None
    # These leases would give way to it, for this reason.
    gives_way: tuple[GivesWay, ...] = ()
    why: str = ""
    # It would wait for this reason; unset = it starts at once.
    waiting: Waiting | None = None
    # This sentence tells what would be granted at once instead; empty = nothing.
    fits_now: str = ""
    simulated: bool = False


class SubmitAnswer(Message):
    """The jobs that were taken have these ids."""

    # There is one id, or those of an array in the order of their numbers.
    job_ids: tuple[str, ...] = ()
    # This is the array's own id; empty = it is a single job.
    array_id: str = ""
    # Sentences tell people where the job is kept, and what to expect.
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
    # The node has been silent since then; 0 = it is not.
    silent_since: Time = None


class JobTry(Message):
    """A try is an attempt that ran, and that is over."""

    # This is the number of the attempt. Attempts that no node took have numbers too, so there may be gaps.
    attempt: int = 0
    started_at: Time = None
    ended_at: Time = None
    # The parts tell where it ran, and how it ended there.
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
    # This is the request for GPUs in words: "1 x 0.5".
    asks: str = ""
    job_class: str = ""
    submitted_at: float = 0.0
    # The running attempt, or else the last one, began and ended then; 0 = it did not.
    started_at: Time = None
    ended_at: Time = None
    attempt: int = 0
    parts: tuple[JobPart, ...] = ()
    # It is set if the job is over and its container had one.
    exit_code: int | None = None
    # The job waits, is in an unknown state, or failed for this reason.
    reason: str = ""
    hint: str = ""
    token: str = ""
    array_id: str = ""
    array_index: int | None = None
    pool: bool = False
    interactive: bool = False
    # The job has this place in its queue, 1 = next; 0 = it does not wait, or nobody knows.
    position: int = 0
    priority: int = 0
    # These earlier attempts ran, the newest last. Of many only the newest are kept.
    tries: tuple[JobTry, ...] = ()


class JobList(Message):
    """Hold the answer of ``Jobs.List``."""

    jobs: tuple[Job, ...] = ()
    next_page_token: str = ""
    # Sentences tell the reader of a pool that does not answer, or a recovery that is under way.
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

    # This is for DOCKER_HOST: unix:///...
    host: str = ""
    # The job has this lease on its node, which its container claims or has.
    lease_id: str = ""
    node: str = ""
    here: bool = False


class ReserveAnswer(Message):
    """A client waits for this job's lease."""

    # This is the job as it is now.
    job: Job = Job({})
    # These are as in SubmitAnswer.
    notes: tuple[str, ...] = ()
    # It is unset while the job has no lease.
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
    # The node last reported then, and has been silent since then; 0 = it is not.
    heard_at: Time = None
    silent_since: Time = None
    drain_reason: str = ""
    drained_by: str = ""
    version: str = ""
    address: str = ""
    simulated: bool = False
    gpus: tuple[PoolGpu, ...] = ()
    # So many leases wait in the node's own queue.
    waiting: int = 0
    running: int = 0
    enrolled_at: Time = None


class NodeList(Message):
    """Hold the answer of ``Jobs.Nodes``."""

    nodes: tuple[PoolNode, ...] = ()
    # The nodes are of this pool; empty = the node is in none.
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
    # The daemon takes the caller for this user.
    caller_uid: int = 0
    # The caller is trusted with the whole engine (root, docker group).
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
    # This check has failed, and the skipped one depends on it.
    blocked_by: str = ""


class Setting(Message):
    """The daemon runs with this setting."""

    section: str = ""
    name: str = ""
    # As TOML.
    value: str = ""


class DoctorReport(Message):
    """Hold the answer of ``Node.Doctor``."""

    # The checks are in the order in which they are made.
    checks: tuple[CheckResult, ...] = ()
    simulated: bool = False
    examined_at: float = 0.0
    # The daemon runs with these settings; only trusted callers see them.
    settings: tuple[Setting, ...] = ()


class PoolMembership(Message):
    """Hold the answer of ``Node.Join``."""

    pool: str = ""
    node: str = ""
    address: str = ""
    # The node's certificate expires then; it is renewed long before.
    expires_at: float = 0.0
    # The node may speak for the users of these realms, besides those of its own name.
    realms: tuple[str, ...] = ()
    # Sentences tell people what in the node's configuration does not fit the pool.
    notes: tuple[str, ...] = ()


class LeftPool(Message):
    """Hold the answer of ``Node.Leave``."""

    # The node has left this pool; empty = it was in none.
    pool: str = ""
    node: str = ""


class Quota(Message):
    """GPUs are in permille: 1000 are one."""

    # The quota is for this GPU model; empty = it is the general one.
    model: str = ""
    # The project gets so much whenever it asks; it is lent to others meanwhile.
    guaranteed_permille: int = 0
    # The project never exceeds this; unset = no limit.
    limit_permille: int | None = None
    # So much besides is kept free for its build work, and never lent.
    fixed_permille: int = 0
    # The project holds so much of this now.
    held_permille: int = 0


class IdlePolicy(Message):
    """Leases that do nothing on their GPUs have these consequences after so many seconds; 0 = never."""

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
    # The project holds so much now, of all models.
    held_permille: int = 0
    # The project used so much; older use counts less: half after queue.half_life_seconds.
    decayed_gpu_seconds: float = 0.0
    # This is its part of what all together used; 0 to 1.
    use_ratio: float = 0.0
    # "set" at run time, "config", or "user": nobody named it, it is a user's own.
    origin: str = ""
    # These leases hold something, and these wait.
    holding: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    # The configuration has these policies for leases of each class.
    idle: tuple[IdlePolicy, ...] = ()
    # These hold instead in quiet times, for the classes for which they differ; empty = there are none.
    quiet_idle: tuple[IdlePolicy, ...] = ()


class ProjectList(Message):
    """Hold the answer of ``Projects.List``."""

    # By name.
    projects: tuple[Project, ...] = ()
    simulated: bool = False
