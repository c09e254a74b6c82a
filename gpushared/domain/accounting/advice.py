"""Say what a lease could have asked for instead: a sentence each, with the option that mends it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from gpushared.domain.accounting.account import Account
from gpushared.domain.accounting.curve import MINUTE_MS
from gpushared.domain.accounting.replay import QueueThen, earlier_ms
from gpushared.domain.model.gpu import MIB
from gpushared.domain.model.units import format_duration, format_memory

LEAST_RUN_MS = 5 * MINUTE_MS
"""A shorter run says nothing about the size of the next one."""
IDLE_AT_END_MS = 30 * MINUTE_MS
MUCH_UNUSED_RATIO = 0.75
"""A request that would still be so large beside what was held is no advice."""
NEAR_LIMIT_RATIO = 0.95
MARGIN_RATIO = 1.1
SHORT_OF_LIMIT_RATIO = 0.25
LEAST_LIMIT_SECONDS = 3600
NICE_STEPS_MIB = ((2 * 1024, 256), (32 * 1024, 1024))
LARGEST_STEP_MIB = 4096
NICE_TIMES_SECONDS = (
    *(minutes * 60 for minutes in (10, 20, 30)),
    *(hours * 3600 for hours in (1, 2, 4, 8, 12, 24, 48)),
)


class NoteKind(StrEnum):
    """Name what a note is about."""

    NO_KERNEL = "no_kernel"
    IDLE_AT_END = "idle_at_end"
    TIME_LIMIT = "time_limit"
    MEMORY_NEAR_LIMIT = "memory_near_limit"
    MEMORY_TOO_BIG = "memory_too_big"


class Note(NamedTuple):
    """Hold a sentence, and what mends it."""

    kind: NoteKind
    text: str
    mend: str = ""


@dataclass(frozen=True, slots=True)
class Course:
    """Describe what a lease asked for and used. Memory is that of all its GPUs."""

    account: Account
    gpu_count: int
    asked_share: bool
    """The lease asked for a part of a GPU instead of memory."""
    is_over: bool
    ended_by_itself: bool
    was_over_limit: bool
    """The lease was ended because it used too much memory. No recorded sample has to show that."""
    ran_ms: int
    idle_at_end_ms: int
    """No kernel was seen to run for so long before the end, or until now."""
    time_limit_seconds: int | None
    peak_mib: int | None
    held_mib: int | None
    queue: QueueThen | None
    """The queue as it was, if the lease waited for room only."""


def notes(course: Course) -> Iterator[Note]:
    """Yield the notes on a lease, the greatest waste first."""
    if course.ran_ms < LEAST_RUN_MS:
        return
    idle = _idle(course)
    if idle is not None:
        yield idle
    size = _memory(course)
    if size is not None and (idle is None or idle.kind is not NoteKind.NO_KERNEL):
        yield size
    limit = course.time_limit_seconds
    if (
        course.ended_by_itself
        and limit is not None
        and limit >= LEAST_LIMIT_SECONDS
        and course.ran_ms < limit * 1000 * SHORT_OF_LIMIT_RATIO
    ):
        nice = _nice_time(course.ran_ms / 1000 * 1.5)
        yield Note(
            NoteKind.TIME_LIMIT,
            f"it asked for {format_duration(limit)} and ran {format_duration(course.ran_ms / 1000)}: a limit "
            "near the truth lets short requests start before long ones",
            f"--time {nice}",
        )


def _idle(course: Course) -> Note | None:
    account = course.account
    seen = account.active_permille_ms + account.idle_permille_ms
    if seen * 2 < account.held_permille_ms:
        return None  # most of the time nobody knows what ran
    if not account.active_permille_ms:
        return Note(
            NoteKind.NO_KERNEL,
            f"no kernel ever ran in {format_duration(course.ran_ms / 1000)}: does the program find the GPU?",
            "gpushare run --rm IMAGE nvidia-smi" if course.is_over else "gpushare stop",
        )
    if course.idle_at_end_ms >= IDLE_AT_END_MS:
        lasted = format_duration(course.idle_at_end_ms / 1000)
        if course.is_over:
            return Note(NoteKind.IDLE_AT_END, f"it held its GPUs idle for the last {lasted}", "gpushare stop")
        return Note(NoteKind.IDLE_AT_END, f"it has held its GPUs idle for {lasted}", "gpushare stop")
    return None


def _memory(course: Course) -> Note | None:
    peak_mib, held_mib, account = course.peak_mib, course.held_mib, course.account
    if not peak_mib or not held_mib or account.memory_seen_mib_ms < held_mib * LEAST_RUN_MS:
        return None
    of_held = f"{format_memory(peak_mib * MIB)} of {format_memory(held_mib * MIB)}"
    if course.was_over_limit or peak_mib > held_mib * NEAR_LIMIT_RATIO:
        more = nice_memory_mib(held_mib / course.gpu_count * MARGIN_RATIO)
        told = f"it used {of_held}: a little more, and it would have been over its limit"
        if course.was_over_limit:
            told = f"it was ended because it used more than {format_memory(held_mib * MIB)}"
        return Note(NoteKind.MEMORY_NEAR_LIMIT, told, f"--gpu-memory {_size(more)}")
    nice = nice_memory_mib(peak_mib / course.gpu_count * MARGIN_RATIO)
    if nice * course.gpu_count > held_mib * MUCH_UNUSED_RATIO:
        return None
    mend = f"--gpu-memory {_size(nice)}"
    earlier = 0 if course.queue is None else earlier_ms(course.queue, nice)
    if earlier >= MINUTE_MS:
        would = f"would have started {format_duration(earlier // MINUTE_MS * 60)} earlier"
    else:
        would = "would have been enough"
    compute = " (compute follows the memory; --gpu-compute sets it)" if course.asked_share else ""
    return Note(NoteKind.MEMORY_TOO_BIG, f"peak {of_held}: `{mend}` {would}{compute}", mend)


def nice_memory_mib(mib: float) -> int:
    """Round up to a size that people type: steps of 256 MiB below 2 GiB, of 1 GiB below 32, else of 4 GiB."""
    step = next((step for most, step in NICE_STEPS_MIB if mib <= most), LARGEST_STEP_MIB)
    return int(-(-mib // step)) * step


def _size(mib: int) -> str:
    return f"{mib // 1024}g" if mib % 1024 == 0 else f"{mib}m"


def _nice_time(seconds: float) -> str:
    return format_duration(next((nice for nice in NICE_TIMES_SECONDS if seconds <= nice), seconds))
