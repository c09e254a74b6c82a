"""List the words by which a lease or a job is asked for, once for the command line, programs and the API.

Each word has a name on the command line, one in a program's ``JobRequest``, and one in the API's messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpushared.api.message import WIRE_NAMES
from gpushared.light import TYPE_CHECKING, NamedTuple, TypedDict

if TYPE_CHECKING:
    from typing import Final


class SubmitWord(NamedTuple):
    """Name one word. ``option``: of ``gpushare submit``, without dashes. ``argument``: of ``JobRequest``.

    ``field``: of the API's LeaseRequest or SubmitRequest, by the table that the word is in.
    """

    option: str
    argument: str
    field: str
    is_switch: bool = False

    @property
    def python_name(self) -> str:
        """Return the name in ``LeaseArguments``: that of the field, unless Python keeps the word for itself."""
        return "lease_class" if self.field == "class" else self.field


LEASE_WORDS: Final = (
    SubmitWord("gpu", "gpu", "gpu"),
    SubmitWord("gpu-memory", "gpu_memory", "gpu_memory"),
    SubmitWord("gpu-compute", "gpu_compute", "gpu_compute"),
    SubmitWord("preset", "preset", "preset"),
    SubmitWord("class", "lease_class", "class"),
    SubmitWord("time", "time", "time"),
    SubmitWord("isolation", "isolation", "isolation"),
    SubmitWord("model", "models", "models"),
    SubmitWord("near", "near", "near"),
    SubmitWord("away-from", "away_from", "away_from"),
    SubmitWord("begin", "begin", "begin_at"),
    SubmitWord("hold", "held", "held", is_switch=True),
    SubmitWord("project", "project", "project"),
    SubmitWord("priority", "priority", "priority"),
    SubmitWord("restart-on-fault", "restart_on_fault", "restart_on_fault"),
    SubmitWord("notice-signal", "notice_signal", "notice_signal"),
    SubmitWord("notify", "notify", "notify"),
    SubmitWord("immediate", "immediate", "immediate", is_switch=True),
)
"""These words ask for GPUs, and say when."""

JOB_WORDS: Final = (
    SubmitWord("pool", "pool", "pool", is_switch=True),
    SubmitWord("node", "node", "node"),
    SubmitWord("array", "array", "array"),
    SubmitWord("after", "after", "after"),
    SubmitWord("after-ok", "after_ok", "after"),
    SubmitWord("retries", "retries", "retries"),
    SubmitWord("requeue", "requeue", "requeue", is_switch=True),
    SubmitWord("no-requeue", "requeue", "requeue", is_switch=True),
    SubmitWord("stop-after", "stop_after_seconds", "stop_after_seconds"),
    SubmitWord("nodes", "nodes", "nodes"),
    SubmitWord("span", "span", "span", is_switch=True),
)
"""These words say where the job runs, after what, and how often. ``array`` is an argument of
``submit_array``."""

SUBMIT_WORDS: Final = (*LEASE_WORDS, *JOB_WORDS)


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
