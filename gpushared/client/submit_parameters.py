"""List the parameters of a request for a lease or a job, once for the command line, programs and the API.

Each has a name on the command line, one in a program's ``JobRequest``, and one in the API's messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpushared.api.message import WIRE_NAMES
from gpushared.light import TYPE_CHECKING, NamedTuple, TypedDict

if TYPE_CHECKING:
    from typing import Final


class SubmitParameter(NamedTuple):
    """Name a parameter. ``option``: of ``gpushare submit``, without dashes. ``argument``: of ``JobRequest``.

    ``field``: of the API's LeaseRequest or SubmitRequest, by the table that the parameter is in.
    """

    option: str
    argument: str
    field: str
    is_switch: bool = False

    @property
    def python_name(self) -> str:
        """Return the name in ``LeaseArguments``: that of the field, or another one for a keyword of Python."""
        return "lease_class" if self.field == "class" else self.field


LEASE_PARAMETERS: Final = (
    SubmitParameter("gpu", "gpu", "gpu"),
    SubmitParameter("gpu-memory", "gpu_memory", "gpu_memory"),
    SubmitParameter("gpu-compute", "gpu_compute", "gpu_compute"),
    SubmitParameter("preset", "preset", "preset"),
    SubmitParameter("class", "lease_class", "class"),
    SubmitParameter("time", "time", "time"),
    SubmitParameter("isolation", "isolation", "isolation"),
    SubmitParameter("model", "models", "models"),
    SubmitParameter("near", "near", "near"),
    SubmitParameter("away-from", "away_from", "away_from"),
    SubmitParameter("begin", "begin", "begin_at"),
    SubmitParameter("hold", "held", "held", is_switch=True),
    SubmitParameter("project", "project", "project"),
    SubmitParameter("priority", "priority", "priority"),
    SubmitParameter("restart-on-fault", "restart_on_fault", "restart_on_fault"),
    SubmitParameter("notice-signal", "notice_signal", "notice_signal"),
    SubmitParameter("notify", "notify", "notify"),
    SubmitParameter("immediate", "immediate", "immediate", is_switch=True),
)
"""These parameters ask for GPUs, and say when."""

JOB_PARAMETERS: Final = (
    SubmitParameter("pool", "pool", "pool", is_switch=True),
    SubmitParameter("node", "node", "node"),
    SubmitParameter("array", "array", "array"),
    SubmitParameter("after", "after", "after"),
    SubmitParameter("after-ok", "after_ok", "after"),
    SubmitParameter("retries", "retries", "retries"),
    SubmitParameter("requeue", "requeue", "requeue", is_switch=True),
    SubmitParameter("no-requeue", "requeue", "requeue", is_switch=True),
    SubmitParameter("stop-after", "stop_after_seconds", "stop_after_seconds"),
    SubmitParameter("nodes", "nodes", "nodes"),
    SubmitParameter("span", "span", "span", is_switch=True),
)
"""These parameters say where the job runs, after which jobs, and how often. ``array`` is an argument of
``submit_array``."""

SUBMIT_PARAMETERS: Final = (*LEASE_PARAMETERS, *JOB_PARAMETERS)


class LeaseArguments(TypedDict, total=False):
    """Declare the fields of a LeaseRequest; a field left out has the node's default. Times are in seconds."""

    gpu: str
    gpu_memory: str
    gpu_compute: str
    preset: str
    isolation: str
    lease_class: str
    time: str
    immediate: bool
    begin_at: float
    after: Sequence[str]
    priority: int
    project: str
    notice_signal: str
    restart_on_fault: int
    notify: Sequence[str]
    held: bool
    requeue: bool | None
    models: Sequence[str]
    near: Sequence[str]
    away_from: Sequence[str]
    host_cpu_milli: int
    host_memory_bytes: int
    ends_with_caller: bool
    container_name: str
    image: str


def fields_of(arguments: Mapping[str, object]) -> dict[str, object]:
    """Return the fields as the wire has them. Raises TypeError for an unknown field."""
    if unknown := arguments.keys() - LeaseArguments.__annotations__:
        raise TypeError(f"a lease has no {', '.join(sorted(unknown))}")
    return {WIRE_NAMES.get(name, name): value for name, value in arguments.items() if value is not None}
