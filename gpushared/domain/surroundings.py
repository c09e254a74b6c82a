"""Check a request's needs besides GPUs: CPU and memory of the host, a model, distance from other leases."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from gpushared.domain.errors import NeverFits
from gpushared.domain.gpu import Gpu
from gpushared.domain.host import HostSize
from gpushared.domain.lease import LeaseId, Suspended
from gpushared.domain.placement import Rooms
from gpushared.domain.request import Request
from gpushared.domain.state import NodeState
from gpushared.domain.units import format_cores, format_memory, shown


def total_of_host(state: NodeState) -> HostSize:
    """Return the machine's CPU and memory, as far as they are known and counted."""
    return state.host if state.rules.counts_host else HostSize()


def size_of_host(state: NodeState) -> HostSize:
    """Return the CPU and memory for leases that hold GPUs.

    The memory of a suspended container stays on the host, with its GPU memory beside it.
    """
    host = total_of_host(state)
    if host.memory_bytes is None:
        return host
    kept = (one.request for one in state.leases.values() if isinstance(one.state, Suspended))
    return replace(host, memory_bytes=host.memory_bytes - sum(one.host_memory_bytes or 0 for one in kept))


def free_of_host(state: NodeState) -> HostSize:
    """Return the CPU and memory that no lease has taken yet; less than nothing if the machine shrank."""
    size = size_of_host(state)
    held = [lease.request for lease in state.holders()]
    cpu = None if size.cpu_milli is None else size.cpu_milli - sum(one.host_cpu_milli or 0 for one in held)
    memory = size.memory_bytes
    if memory is not None:
        memory -= sum(one.host_memory_bytes or 0 for one in held)
    return HostSize(cpu, memory)


def lack_of_host(request: Request, state: NodeState) -> str:
    """Return a sentence on the host's CPU or memory if too little is free now, else an empty text."""
    free, size = free_of_host(state), total_of_host(state)
    cpu, memory = request.host_cpu_milli or 0, request.host_memory_bytes or 0
    if free.cpu_milli is not None and cpu > free.cpu_milli:
        left, all_of_it = format_cores(max(0, free.cpu_milli)), format_cores(size.cpu_milli or 0)
        return f"needs {format_cores(cpu)} CPUs of the host; {left} of {all_of_it} are not taken by leases"
    if free.memory_bytes is not None and memory > free.memory_bytes:
        left = format_memory(max(0, free.memory_bytes))
        of_all = format_memory(size.memory_bytes or 0)
        return (
            f"needs {format_memory(memory)} of the host's memory; {left} of {of_all} are not taken by leases"
        )
    return ""


def check_host(request: Request, size: HostSize) -> None:
    """Raise NeverFits for more than the machine has."""
    cpu, memory = request.host_cpu_milli or 0, request.host_memory_bytes or 0
    if size.cpu_milli is not None and cpu > size.cpu_milli:
        has = format_cores(size.cpu_milli)
        raise NeverFits(
            f"this machine has not got {format_cores(cpu)} CPUs",
            hint=f"it has {has}: give --cpus {has} or less",
        )
    if size.memory_bytes is not None and memory > size.memory_bytes:
        raise NeverFits(
            f"this machine has not got {format_memory(memory)} of memory",
            hint=f"it has {format_memory(size.memory_bytes)}: give a smaller --memory",
        )


# --- other leases --------------------------------------------------------------------------------------


def rooms_for(request: Request, rooms: Rooms, state: NodeState) -> Rooms:
    """Return the rooms with the leases that this request keeps away from."""
    if not request.away_from:
        return rooms
    rooms = dict(rooms)
    for name in request.away_from:
        lease = state.leases.get(LeaseId(name))
        for grant in lease.grants if lease is not None else ():
            if grant.gpu in rooms:
                rooms[grant.gpu] = replace(rooms[grant.gpu], apart_from=name)
    return rooms


# --- models --------------------------------------------------------------------------------------------


def models_named(words: Collection[str], gpus: Iterable[Gpu]) -> tuple[str, ...]:
    """Return the names of the GPUs that hold one of the words, in small or capital letters.

    A whole name counts as no part of another name. Raises NeverFits for a word that is in no name.
    """
    names = tuple(dict.fromkeys(gpu.name for gpu in gpus))
    for word in words:
        if not any(is_called(name, word) for name in names):
            raise NeverFits(
                f"no GPU of this node is a {shown(word)}", hint=f"its models: {', '.join(names) or 'none'}"
            )
    return tuple(name for name in names if any(_means(word, name, names) for word in words))


def _means(word: str, name: str, names: Collection[str]) -> bool:
    return word == name if word in names else is_called(name, word)


def is_called(name: str, word: str) -> bool:
    """Return True if a GPU's name holds the word, spaces and dashes aside (``rtx4090``, ``RTX-4090``)."""
    return _plain(word) in _plain(name)


def _plain(text: str) -> str:
    return "".join(c for c in text.casefold() if c.isalnum())
