"""Define the answers of the daemon as typed objects.

Fields and their defaults are those of ``proto/gpushare/v1``; the class body is the whole declaration. They
are plain classes instead of dataclasses, because importing ``dataclasses`` costs a listing a fifth of its
time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpushared.domain.model.errors import Unavailable
from gpushared.light import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, ClassVar

Time = float | None
"""Seconds since the epoch, None if the wire says 0 (not set)."""

_SCALARS: dict[str, Callable[[Any], Any]] = {
    "str": str,
    "int": int,  # 64-bit integers arrive as strings in protobuf's JSON
    "float": float,
    "bool": bool,
    "Time": lambda value: float(value) or None,
}


class Message:
    """Read a message from JSON: absent fields have their defaults, unknown ones are ignored."""

    WIRE_NAMES: ClassVar[Mapping[str, str]] = {}
    """Attributes that cannot have the name they have on the wire."""
    _readers: ClassVar[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {}

    def __init_subclass__(cls) -> None:
        _SCALARS[cls.__name__] = cls
        cls._readers = {
            name: (cls.WIRE_NAMES.get(name, name), _reader(kind))
            for name, kind in cls.__annotations__.items()
            if "ClassVar" not in kind
        }

    def __init__(self, data: Mapping[str, Any]) -> None:
        try:
            for name, (wire_name, read) in self._readers.items():
                value = data.get(wire_name)
                if value is not None:
                    setattr(self, name, read(value))
        except (AttributeError, TypeError, ValueError) as error:
            raise Unavailable(
                f"the daemon's answer cannot be read ({type(self).__name__}: {error})",
                hint="does `gpushare version` show the same version for client and daemon?",
            ) from error

    def to_json(self) -> dict[str, Any]:
        """Return all fields by their names on the wire; an empty text is None, as every unknown value."""
        return {wire: _plain(getattr(self, name)) for name, (wire, _) in self._readers.items()}

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]  # compared by value and not frozen

    def __repr__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({said})"


def _reader(kind: str) -> Callable[[Any], Any]:
    name = kind.removesuffix(" | None")
    if name.startswith("tuple["):
        one = _SCALARS[name.removeprefix("tuple[").removesuffix(", ...]")]
        return lambda values: tuple(one(value) for value in values)
    return _SCALARS[name]


def _plain(value: object) -> object:
    if isinstance(value, Message):
        return value.to_json()
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return None if value == "" else value


class Grant(Message):
    """Describe a part of one GPU."""

    gpu_uuid: str = ""
    gpu_index: int = 0
    gpu_name: str = ""
    memory_bytes: int = 0
    compute_permille: int = 0
    gpu_label: str = ""
    compute_limit_permille: int = 0


class Waiting(Message):
    """Tell a queued lease's place, and why it waits."""

    position: int = 0
    queue_length: int = 0
    reason: str = ""
    text: str = ""
    start_from: Time = None
    start_to: Time = None


class Outcome(Message):
    """Tell how a lease ended: ``finished``, ``stopped``, ``expired``, ``never_claimed`` or ``failed``."""

    kind: str = ""
    exit_code: int | None = None
    text: str = ""


class Notice(Message):
    """Hold the notice of a program's end; ``kind``: ``expires``, ``preempted``, ``idle``."""

    kind: str = ""
    ends_at: Time = None
    text: str = ""


class Lease(Message):
    """Describe a lease: the right to use parts of this node's GPUs until a time."""

    WIRE_NAMES: ClassVar[Mapping[str, str]] = {"lease_class": "class"}

    id: str = ""
    state: str = ""
    owner_uid: int = 0
    owner: str = ""
    asks: str = ""
    lease_class: str = ""
    isolation: str = ""
    preset: str = ""
    grants: tuple[Grant, ...] = ()
    memory_used_bytes: int | None = None
    memory_wall: str = ""
    compute_cap: str = ""
    container_id: str = ""
    container_name: str = ""
    image: str = ""
    created_at: float = 0.0
    since: float = 0.0
    expires_at: Time = None
    deadline: Time = None
    waiting: Waiting | None = None
    outcome: Outcome | None = None
    token: str = ""
    simulated: bool = False
    restart_on_fault: int = 0
    restarts: int = 0
    fault: str = ""
    priority: int = 0
    held_by: str = ""
    begin_at: Time = None
    after: tuple[str, ...] = ()
    notice: Notice | None = None
    preempt_step: str = ""
    preempt_why: str = ""
    preemptions: int = 0
    project: str = ""
    idle_since: Time = None
    lowered: bool = False
    models: tuple[str, ...] = ()
    near: tuple[str, ...] = ()
    away_from: tuple[str, ...] = ()
    host_cpu_milli: int = 0
    host_memory_bytes: int = 0
    job_id: str = ""
    job_attempt: int = 0
    job_pool: str = ""


class ResizeAnswer(Message):
    """Hold the answer of ``Leases.Resize``."""

    lease: Lease = Lease({})
    effects: tuple[str, ...] = ()


class UnmanagedProcess(Message):
    """Describe a GPU process without a lease."""

    pid: int = 0
    gpu_uuid: str = ""
    gpu_index: int = 0
    memory_bytes: int | None = None
    user: str = ""
    command: str = ""


class LeaseList(Message):
    """Hold the answer of ``Leases.List``."""

    leases: tuple[Lease, ...] = ()
    unmanaged: tuple[UnmanagedProcess, ...] = ()
    simulated: bool = False
    more: int = 0
    next_page_token: str = ""


class StoryEntry(Message):
    """Hold one line of a lease's story."""

    at: float = 0.0
    state: str = ""
    text: str = ""


class Refusal(Message):
    """Count the GPUs that one reason refused in the newest decision."""

    reason: str = ""
    gpus: int = 0
    text: str = ""


class Kept(Message):
    """Name the GPUs that are kept for a waiting lease, and its latest start."""

    lease_id: str = ""
    gpu_labels: tuple[str, ...] = ()
    start_to: Time = None


class Explanation(Message):
    """Hold the answer of ``Leases.Explain``."""

    lease: Lease = Lease({})
    story: tuple[StoryEntry, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    fits_now: str = ""
    kept: Kept | None = None
    gives_way: str = ""


class GivesWay(Message):
    """Name a lease that would give way; ``step``: ``suspend``, ``requeue`` or ``stop``."""

    lease_id: str = ""
    owner: str = ""
    asks: str = ""
    project: str = ""
    step: str = ""


class OfferAnswer(Message):
    """Hold the answer of ``Leases.Offer``: the fate that a request would have."""

    WIRE_NAMES: ClassVar[Mapping[str, str]] = {"lease_class": "class"}

    asks: str = ""
    lease_class: str = ""
    project: str = ""
    starts_now: bool = False
    grants: tuple[Grant, ...] = ()
    start_to: Time = None
    gives_way: tuple[GivesWay, ...] = ()
    why: str = ""
    waiting: Waiting | None = None
    fits_now: str = ""
    simulated: bool = False


class Drained(Message):
    """Tell why a GPU gets no new leases; ``sick``: the daemon found the fault, and leases there end."""

    reason: str = ""
    since: float = 0.0
    by: str = ""
    sick: bool = False


class Gpu(Message):
    """Describe one GPU, with its used and its free capacity."""

    uuid: str = ""
    index: int = 0
    name: str = ""
    mode: str = ""
    memory_total_bytes: int = 0
    memory_leasable_bytes: int = 0
    memory_used_bytes: int | None = None
    memory_free_bytes: int = 0
    compute_free_permille: int = 0
    utilization_ratio: float | None = None
    temperature_celsius: int | None = None
    power_watts: float | None = None
    leases: int = 0
    memory_unmanaged_bytes: int = 0
    sharing: str = ""
    trouble: str = ""
    sampled_at: Time = None
    drained: Drained | None = None
    parent_uuid: str = ""
    mig_profile: str = ""
    label: str = ""
    link_group: int | None = None


class Quota(Message):
    """Hold amounts of GPUs, in permille; ``model`` is empty for the quota of all models without their own."""

    model: str = ""
    guaranteed_permille: int = 0
    limit_permille: int | None = None
    fixed_permille: int = 0
    held_permille: int = 0


class IdlePolicy(Message):
    """Hold the consequences of idle time for a class, each after so many seconds; 0 = never."""

    WIRE_NAMES: ClassVar[Mapping[str, str]] = {"lease_class": "class"}

    lease_class: str = ""
    warn_seconds: float = 0.0
    lower_seconds: float = 0.0
    action: str = ""
    action_seconds: float = 0.0


class Project(Message):
    """Describe a project: its users, holdings and use. ``origin``: ``config``, ``set`` or ``user``."""

    name: str = ""
    users: tuple[str, ...] = ()
    weight: float = 1.0
    quotas: tuple[Quota, ...] = ()
    held_permille: int = 0
    decayed_gpu_seconds: float = 0.0
    use_ratio: float = 0.0
    origin: str = ""
    holding: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    idle: tuple[IdlePolicy, ...] = ()
    quiet_idle: tuple[IdlePolicy, ...] = ()


class ProjectList(Message):
    """Hold the answer of ``Projects.List``."""

    projects: tuple[Project, ...] = ()
    simulated: bool = False


class DrainAnswer(Message):
    """Hold the answer of ``Gpus.Drain`` and ``Gpus.Undrain``."""

    gpus: tuple[Gpu, ...] = ()


class GpuList(Message):
    """Hold the answer of ``Gpus.List``."""

    gpus: tuple[Gpu, ...] = ()
    simulated: bool = False
    node: str = ""
    troubles: tuple[str, ...] = ()


class EngineStatus(Message):
    """Describe the Docker engine behind the daemon."""

    version: str = ""
    api_version: str = ""
    gpu_mechanism: str = ""
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
    caller_trusted: bool = False
    caller_uid: int = 0


class CheckResult(Message):
    """Hold the finding of one check; ``status`` is ``ok``, ``warning``, ``failed`` or ``skipped``."""

    name: str = ""
    status: str = ""
    detail: str = ""
    fix: str = ""
    blocked_by: str = ""


class Setting(Message):
    """Describe one setting that the daemon runs with; ``value`` is TOML."""

    section: str = ""
    name: str = ""
    value: str = ""


class DoctorReport(Message):
    """Hold the answer of ``Node.Doctor``."""

    checks: tuple[CheckResult, ...] = ()
    simulated: bool = False
    examined_at: float = 0.0
    settings: tuple[Setting, ...] = ()


class PoolMembership(Message):
    """Hold the answer of ``Node.Join``: the node's name, and its pool."""

    pool: str = ""
    node: str = ""
    address: str = ""
    expires_at: float = 0.0
    realms: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class LeftPool(Message):
    """Hold the answer of ``Node.Leave``; empty if the node was in no pool."""

    pool: str = ""
    node: str = ""


class Preset(Message):
    """Describe a request that the admin gave a name."""

    WIRE_NAMES: ClassVar[Mapping[str, str]] = {"lease_class": "class"}

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
