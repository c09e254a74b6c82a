"""Group GPUs that reach each other fast, by the driver's report: by NVLink, else on one NUMA node."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpushared.gpus.nvml_driver import GPU_AWAY, DriverError, Handle, NvmlDriver

AreJoined = Callable[[Handle, Handle], bool | None]


def link_groups(driver: NvmlDriver, handles: Mapping[int, Handle]) -> dict[int, int]:
    """Return for each GPU (by index) the lowest index of its group, without GPUs that report nothing.

    GPUs without an NVLink to another are grouped by their NUMA nodes. This is read once for each session with
    NVML: neither changes while a machine is up.
    """
    linked = _groups(handles, driver.nvlinked)
    alone = {at: handle for at, handle in handles.items() if linked.get(at) is None or _is_alone(at, linked)}
    near = _groups(alone, driver.same_numa_node)
    return {**linked, **near}


def _groups(handles: Mapping[int, Handle], are_joined: AreJoined) -> dict[int, int]:
    """Return the group of each GPU that reports links: the lowest index of the GPUs joined to it, even indirectly."""
    groups: dict[int, int] = {}
    for at, handle in handles.items():
        for other in [index for index in handles if index < at]:
            answer = _are_joined(are_joined, handle, handles[other])
            if answer is None:
                continue
            groups.setdefault(other, other)
            groups.setdefault(at, at)
            if answer and groups[at] != groups[other]:
                first, second = sorted((groups[at], groups[other]))
                groups = {index: first if group == second else group for index, group in groups.items()}
    return groups


def _are_joined(are_joined: AreJoined, handle: Handle, other: Handle) -> bool | None:
    """Return True if two GPUs are joined; None if the driver does not report it or a GPU is lost.

    The next call to the lost GPU reports the loss.
    """
    try:
        return are_joined(handle, other)
    except DriverError as error:
        if error.code in GPU_AWAY:
            return None
        raise


def _is_alone(at: int, groups: Mapping[int, int]) -> bool:
    return sum(group == groups[at] for group in groups.values()) == 1
