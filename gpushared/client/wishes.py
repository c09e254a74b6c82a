"""Define the fields of a request for a lease, as keywords."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpushared.light import TypedDict

_ON_THE_WIRE = {"lease_class": "class"}
"""Python keeps these words of the API for itself."""


class LeaseWish(TypedDict, total=False):
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
    """Return the fields as the wire has them. Raises TypeError for an unknown field."""
    if unknown := wish.keys() - LeaseWish.__annotations__:
        raise TypeError(f"a lease has no {', '.join(sorted(unknown))}")
    return {_ON_THE_WIRE.get(name, name): value for name, value in wish.items() if value is not None}
