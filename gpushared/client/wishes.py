"""What may be asked of a lease, as keywords."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpushared.light import TypedDict

_ON_THE_WIRE = {"lease_class": "class"}
"""Words of the API that Python keeps for itself."""


class LeaseWish(TypedDict, total=False):
    """The fields of a LeaseRequest; what is left out is as the node has it. Times are in seconds."""

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


def fields_of(wish: Mapping[str, object]) -> dict[str, object]:
    """As the wire has it. Raises TypeError for what is no such wish."""
    if unknown := wish.keys() - LeaseWish.__annotations__:
        raise TypeError(f"a lease has no {', '.join(sorted(unknown))}")
    return {_ON_THE_WIRE.get(name, name): value for name, value in wish.items() if value is not None}
