"""From the words of a user to a checked request."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import TypeVar

from gpushared.domain.errors import NotFound, RequestError
from gpushared.domain.gpu import WHOLE_PERMILLE
from gpushared.domain.instances import in_words
from gpushared.domain.request import Isolation, LeaseClass, Request
from gpushared.domain.units import (
    MAX_TEXT,
    format_memory,
    format_percent,
    format_share,
    parse_duration,
    parse_gpu,
    parse_memory,
    parse_percent,
    shown,
)

MAX_RESTARTS = 100


@dataclass(frozen=True, slots=True)
class Ask:
    """What a user typed; empty = not said. A preset is an Ask that the admin typed."""

    gpu: str = ""
    gpu_memory: str = ""
    gpu_compute: str = ""
    preset: str = ""
    isolation: str = ""
    lease_class: str = ""
    time: str = ""
    after: str = ""
    priority: str = ""
    notice_signal: str = ""
    restart_on_fault: str = ""


def read_request(ask: Ask, presets: Mapping[str, Ask]) -> Request:
    """The checked request; what the user typed wins over the preset. Raises RequestError or NotFound."""
    ask = _fill_from_preset(ask, presets)
    if not (ask.gpu or ask.gpu_memory or ask.gpu_compute):
        raise RequestError("no GPU was asked for", hint="say --gpu 0.25, --gpu-memory 8g or --preset NAME")
    size = parse_gpu(ask.gpu) if ask.gpu else None
    memory = parse_memory(ask.gpu_memory) if ask.gpu_memory else None
    compute = parse_percent(ask.gpu_compute) if ask.gpu_compute else (size.permille if size else None)
    whole = size is not None and size.permille == WHOLE_PERMILLE and memory is None and not ask.gpu_compute
    request = Request(
        gpu_count=size.count if size else 1,
        compute_permille=compute,
        memory_bytes=memory,
        memory_permille=_memory_permille(ask, size.permille if size else None),
        isolation=_isolation(ask, whole=whole, parts=(size.permille if size else None, compute)),
        lease_class=_word(LeaseClass, ask.lease_class, "class") or LeaseClass.TRAIN,
        time_limit_seconds=parse_duration(ask.time) if ask.time else None,
        preset=ask.preset or None,
        priority=_priority(ask.priority),
        after=_leases(ask.after),
        notice_signal=_signal(ask.notice_signal),
        restart_on_fault=_restarts(ask.restart_on_fault),
    )
    counts = size is not None and size.permille == WHOLE_PERMILLE
    return _counted(request, ask) if counts and request.isolation is Isolation.MIG else request


def _counted(request: Request, ask: Ask) -> Request:
    """Of MIG instances, a whole number counts them, of any size: one that is a whole GPU is hardly meant."""
    compute = request.compute_permille if ask.gpu_compute else None
    return replace(request, compute_permille=compute, memory_permille=None)


@dataclass(frozen=True, slots=True)
class NewSize:
    """What a lease is to have of each of its GPUs from now on; None = not said."""

    gpu_count: int = 1
    compute_permille: int | None = None
    memory_bytes: int | None = None
    memory_permille: int | None = None


def read_size(*, gpu: str = "", gpu_memory: str = "", gpu_compute: str = "") -> NewSize:
    """The checked new size of a lease. Raises RequestError."""
    if not (gpu or gpu_memory or gpu_compute):
        raise RequestError(
            "no new size was said", hint="say --gpu 0.5, --gpu-memory 12g or --gpu-compute 50%"
        )
    size = parse_gpu(gpu) if gpu else None
    share = size.permille if size else None
    return NewSize(
        gpu_count=size.count if size else 1,
        compute_permille=parse_percent(gpu_compute) if gpu_compute else share,
        memory_bytes=parse_memory(gpu_memory) if gpu_memory else None,
        memory_permille=None if gpu_memory else share,
    )


def _memory_permille(ask: Ask, share: int | None) -> int | None:
    """The memory share that stands beside a compute share, unless the memory is said in bytes."""
    if ask.gpu_memory:
        return None
    return share if share is not None else parse_percent(ask.gpu_compute)


def _fill_from_preset(ask: Ask, presets: Mapping[str, Ask]) -> Ask:
    if not ask.preset:
        return ask
    if ask.preset not in presets:
        near = difflib.get_close_matches(ask.preset[:MAX_TEXT], presets, n=1)
        names = ", ".join(sorted(presets)) or "this node has none"
        hint = f"did you mean {near[0]}?" if near else f"presets: {names}"
        raise NotFound(f"there is no preset {shown(ask.preset)}", hint=hint)
    preset = presets[ask.preset]
    said = {f.name: getattr(ask, f.name) for f in fields(ask) if getattr(ask, f.name)}
    return replace(preset, **said)


def _isolation(ask: Ask, *, whole: bool, parts: tuple[int | None, ...]) -> Isolation:
    said = _word(Isolation, ask.isolation, "isolation")
    if said is Isolation.EXCLUSIVE and any(part not in (None, WHOLE_PERMILLE) for part in parts):
        raise RequestError(
            "exclusive means whole GPUs, not a part of one", hint="ask for --gpu 1, or leave --isolation out"
        )
    return said or (Isolation.EXCLUSIVE if whole else Isolation.SHARED)


NOTICE_SIGNALS = ("SIGHUP", "SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2")
"""Those that programs catch to save their work; the others end them or stop them."""


def _restarts(text: str) -> int:
    if not text:
        return 0
    if not (
        text.isascii()
        and text.isdigit()
        and len(text) <= len(str(MAX_RESTARTS))
        and int(text) <= MAX_RESTARTS
    ):
        raise RequestError(f"{shown(text)} is not how often to start again", hint=f"give 0 to {MAX_RESTARTS}")
    return int(text)


def _signal(text: str) -> str:
    name = text.upper()
    name = name if not name or name.startswith("SIG") else f"SIG{name}"
    if name and name not in NOTICE_SIGNALS:
        raise RequestError(
            f"{shown(text)} is not a signal for a notice", hint="choose one of " + ", ".join(NOTICE_SIGNALS)
        )
    return name


MAX_AFTER = 100


def _leases(text: str) -> tuple[str, ...]:
    if len(text) > MAX_AFTER * MAX_TEXT:
        raise RequestError(
            f"{len(text)} characters are no list of leases", hint="name them with commas: l-7f3k,l-8g4m"
        )
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if len(names) > MAX_AFTER:
        raise RequestError(f"{len(names)} leases are too many to wait for", hint=f"name at most {MAX_AFTER}")
    return names


def _priority(text: str) -> int:
    if not text:
        return 0
    if re.fullmatch(r"[+-]?\d{1,9}", text, re.ASCII) is None:
        raise RequestError(f"{shown(text)} is not a priority", hint="give a whole number, such as 10 or -10")
    return int(text)


_Words = TypeVar("_Words", bound=StrEnum)


def _word(words: type[_Words], text: str, what: str) -> _Words | None:
    if not text:
        return None
    try:
        return words(text)
    except ValueError:
        raise RequestError(
            f"{shown(text)} is not a known {what}", hint="choose one of " + ", ".join(words)
        ) from None


def describe(request: Request) -> str:
    """The request as one would type it: ``0.25``, ``2x0.5``, ``0.25 with 8 GiB``."""
    if request.isolation is Isolation.MIG:
        return in_words(request)
    share = request.compute_permille
    if request.memory_bytes is not None and share is None:
        text = format_memory(request.memory_bytes)
        return text if request.gpu_count == 1 else f"{request.gpu_count}x{text}"
    size = _size_words(request)
    if request.memory_bytes is not None:
        return f"{size} with {format_memory(request.memory_bytes)}"
    if request.memory_permille != share and share is not None:
        return f"{size} with {format_percent(share)}% compute"
    return size


def _size_words(request: Request) -> str:
    share = request.memory_permille or request.compute_permille or WHOLE_PERMILLE
    if share == WHOLE_PERMILLE:
        return str(request.gpu_count)
    words = format_share(share)
    return words if request.gpu_count == 1 else f"{request.gpu_count}x{words}"
