"""Turn a user's words into a checked request."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import TypeVar

from gpushared.domain.model.errors import NotFound, RequestError
from gpushared.domain.model.gpu import WHOLE_PERMILLE
from gpushared.domain.model.instances import describe_instances
from gpushared.domain.model.lease import Grant
from gpushared.domain.model.notification import read_targets
from gpushared.domain.model.ranges import (
    TO,
    Range,
    parse_gpu_range,
    parse_memory_range,
    parse_percent_range,
)
from gpushared.domain.model.request import Isolation, LeaseClass, Request
from gpushared.domain.model.units import (
    MAX_MEMORY_BYTES,
    MAX_TEXT,
    format_memory,
    format_percent,
    format_share,
    parse_duration,
    shown,
)

MAX_RESTARTS = 100


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """Hold the words that a user typed; empty means not typed.

    A preset is a RequestSpec that the admin typed.
    """

    gpu: str = ""
    gpu_memory: str = ""
    gpu_compute: str = ""
    preset: str = ""
    isolation: str = ""
    lease_class: str = ""
    time: str = ""
    after: str = ""
    priority: str = ""
    project: str = ""
    notice_signal: str = ""
    restart_on_fault: str = ""
    models: str = ""
    """GPU models with commas, by any part of their names."""
    near: str = ""
    away_from: str = ""
    notify: str = ""
    host_cpu_milli: str = ""
    host_memory_bytes: str = ""
    max_wait: str = ""
    """The client waits this long in the queue. The value is checked with the other words, but is no part of
    the request."""


_OPTIONS = {"lease_class": "class", "models": "model"}
"""The other options have the names of their fields."""


def option_of(field: str) -> str:
    """Return the name of a request's field in options and labels."""
    return _OPTIONS.get(field, field.replace("_", "-"))


def read_request(spec: RequestSpec, presets: Mapping[str, RequestSpec]) -> Request:
    """Return the checked request; a typed word wins over the preset's. Raises RequestError or NotFound."""
    spec = _fill_from_preset(spec, presets)
    if not (spec.gpu or spec.gpu_memory or spec.gpu_compute):
        raise RequestError("no GPU was asked for", hint="say --gpu 0.25, --gpu-memory 8g or --preset NAME")
    size = read_size(gpu=spec.gpu, gpu_memory=spec.gpu_memory, gpu_compute=spec.gpu_compute)
    share = parse_gpu_range(spec.gpu).permille.low if spec.gpu else None
    counted = share == WHOLE_PERMILLE
    whole = counted and not (spec.gpu_memory or spec.gpu_compute)
    isolation = _isolation(spec, whole=whole, parts=(share, size.compute_permille))
    check_ranges(size, isolation, whole=whole)
    if spec.max_wait:
        parse_duration(spec.max_wait, least=0)
    request = Request(
        gpu_count=size.gpu_count,
        compute_permille=size.compute_permille,
        memory_bytes=size.memory_bytes,
        memory_permille=size.compute_permille if _is_compute_alone(spec) else size.memory_permille,
        isolation=isolation,
        lease_class=_choice(LeaseClass, spec.lease_class, "class") or LeaseClass.TRAIN,
        time_limit_seconds=parse_duration(spec.time) if spec.time else None,
        preset=spec.preset or None,
        priority=_priority(spec.priority),
        project=_project(spec.project),
        after=_leases(spec.after),
        notice_signal=_signal(spec.notice_signal),
        notify=read_targets(spec.notify) if spec.notify else (),
        restart_on_fault=_restarts(spec.restart_on_fault),
        models=_models(spec.models),
        near=_leases(spec.near),
        away_from=_leases(spec.away_from),
        host_cpu_milli=_host(spec.host_cpu_milli, MAX_HOST_CPU_MILLI, "thousandths of a CPU"),
        host_memory_bytes=_host(spec.host_memory_bytes, MAX_MEMORY_BYTES, "bytes of memory"),
        max_gpu_count=size.max_gpu_count,
        max_compute_permille=size.max_compute_permille,
        max_memory_bytes=size.max_memory_bytes,
        max_memory_permille=size.max_memory_permille,
        compute_limit_permille=size.compute_limit_permille,
    )
    return _counted(request, spec) if counted and isolation is Isolation.MIG else request


def _is_compute_alone(spec: RequestSpec) -> bool:
    """Return True if the user named compute alone; the request then gets the same share of the memory."""
    return not (spec.gpu or spec.gpu_memory)


def _counted(request: Request, spec: RequestSpec) -> Request:
    """Drop the shares of a request for whole MIG instances.

    A whole number counts instances of any size, because hardly any user who types 1 wants an instance that is
    a whole GPU.
    """
    compute = request.compute_permille if spec.gpu_compute else None
    return replace(request, compute_permille=compute, memory_permille=None)


@dataclass(frozen=True, slots=True)
class NewSize:
    """Describe the new size of a lease on each of its GPUs.

    None means that the user did not name the figure.
    """

    gpu_count: int = 1
    compute_permille: int | None = None
    memory_bytes: int | None = None
    memory_permille: int | None = None
    max_gpu_count: int | None = None
    max_compute_permille: int | None = None
    max_memory_bytes: int | None = None
    max_memory_permille: int | None = None
    compute_limit_permille: int | None = None


def read_size(*, gpu: str = "", gpu_memory: str = "", gpu_compute: str = "") -> NewSize:
    """Return the checked new size of a lease. Raises RequestError."""
    if not (gpu or gpu_memory or gpu_compute):
        raise RequestError(
            "no new size was said", hint="say --gpu 0.5, --gpu-memory 12g or --gpu-compute 50%"
        )
    size = parse_gpu_range(gpu) if gpu else None
    share = size.permille if size else None
    memory = parse_memory_range(gpu_memory) if gpu_memory else None
    burst = parse_percent_range(gpu_compute) if gpu_compute else None
    return NewSize(
        gpu_count=size.count.low if size else 1,
        compute_permille=_low(burst or share),
        memory_bytes=_low(memory),
        memory_permille=None if memory else _low(share),
        max_gpu_count=_most(size.count if size else None),
        max_compute_permille=None if burst else _most(share),
        max_memory_bytes=_most(memory),
        max_memory_permille=None if memory else _most(share),
        compute_limit_permille=_most(burst),
    )


def _low(size_range: Range | None) -> int | None:
    return size_range.low if size_range else None


def _most(size_range: Range | None) -> int | None:
    return size_range.most if size_range else None


def check_ranges(size: NewSize, isolation: Isolation, *, whole: bool) -> None:
    """Raise RequestError for ranges that contradict the rest of the request."""
    shares = size.max_memory_bytes or size.max_memory_permille or size.max_compute_permille
    if isolation is Isolation.MIG and (shares or size.max_gpu_count or size.compute_limit_permille):
        raise RequestError(
            "MIG instances have the sizes that the admin made, so they take no ranges",
            hint="ask for the least that will do; the smallest instance that is enough is given",
        )
    if isolation is Isolation.EXCLUSIVE and shares:
        raise RequestError(
            "exclusive is all of a GPU's memory and compute, which leaves no range",
            hint="leave --isolation out, or ask for whole GPUs: --gpu 1..4",
        )
    if size.max_gpu_count and not (whole and isolation is Isolation.EXCLUSIVE):
        raise RequestError(
            "a range of GPUs is one of whole GPUs, which are not shared",
            hint="ask for --gpu 1..4 by itself, or for a part of each of so many: --gpu 2x0.25..0.5",
        )


def _fill_from_preset(spec: RequestSpec, presets: Mapping[str, RequestSpec]) -> RequestSpec:
    if not spec.preset:
        return spec
    if spec.preset not in presets:
        near = difflib.get_close_matches(spec.preset[:MAX_TEXT], presets, n=1)
        names = ", ".join(sorted(presets)) or "none are configured here"
        hint = f"did you mean {near[0]}?" if near else f"presets: {names}"
        raise NotFound(f"there is no preset {shown(spec.preset)}", hint=hint)
    preset = presets[spec.preset]
    typed = {f.name: getattr(spec, f.name) for f in fields(spec) if getattr(spec, f.name)}
    return replace(preset, **typed)


def _isolation(spec: RequestSpec, *, whole: bool, parts: tuple[int | None, ...]) -> Isolation:
    isolation = _choice(Isolation, spec.isolation, "isolation")
    if isolation is Isolation.EXCLUSIVE and any(part not in (None, WHOLE_PERMILLE) for part in parts):
        raise RequestError(
            "exclusive means whole GPUs, not a part of one", hint="ask for --gpu 1, or leave --isolation out"
        )
    return isolation or (Isolation.EXCLUSIVE if whole else Isolation.SHARED)


NOTICE_SIGNALS = ("SIGHUP", "SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2")
"""Programs catch these signals to save their work; other signals end or stop programs."""


def _restarts(text: str) -> int:
    if not text:
        return 0
    if re.fullmatch(r"\d{1,3}", text, re.ASCII) is None or int(text) > MAX_RESTARTS:
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
        raise RequestError(f"{len(names)} leases are too many to name", hint=f"name at most {MAX_AFTER}")
    return names


MAX_MODELS = 16
MAX_MODEL_LENGTH = 100


def _models(text: str) -> tuple[str, ...]:
    if len(text) > MAX_MODELS * MAX_MODEL_LENGTH:
        raise RequestError(
            f"{len(text)} characters are no list of GPU models", hint="name them with commas: h100,a100"
        )
    models = tuple(dict.fromkeys(model.strip() for model in text.split(",") if model.strip()))
    for model in models:
        if not any(c.isalnum() for c in model):
            raise RequestError(f"{shown(model)} is no GPU model", hint="`gpushare gpus` shows their names")
    return models


MAX_HOST_CPU_MILLI = 10**9


def _host(text: str, most: int, noun: str) -> int | None:
    """Return the CPU or memory of the host that a container may use; None if docker named none.

    Any number in docker's own range passes.
    """
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(most)) and 0 < int(text) <= most):
        raise RequestError(f"{shown(text)} {noun} of the host cannot be had", hint=f"give 1 to {most}")
    return int(text)


MAX_PROJECT = 64
"""A project's name may be as long as a user's name, because each user has a project of that name."""


def _project(text: str) -> str:
    if len(text) > MAX_PROJECT:
        raise RequestError(f"{shown(text)} is no project", hint="`gpushare project ls` lists them")
    return text


def _priority(text: str) -> int:
    if not text:
        return 0
    if re.fullmatch(r"[+-]?\d{1,9}", text, re.ASCII) is None:
        raise RequestError(f"{shown(text)} is not a priority", hint="give a whole number, such as 10 or -10")
    return int(text)


_Choice = TypeVar("_Choice", bound=StrEnum)


def _choice(choices: type[_Choice], text: str, noun: str) -> _Choice | None:
    if not text:
        return None
    try:
        return choices(text)
    except ValueError:
        raise RequestError(
            f"{shown(text)} is not a known {noun}", hint="choose one of " + ", ".join(choices)
        ) from None


def describe(request: Request) -> str:
    """Write the request as a user would type it: ``0.25``, ``2x0.5``, ``0.25 with 8 GiB``."""
    if request.isolation is Isolation.MIG:
        return describe_instances(request)
    share = request.compute_permille
    if request.memory_bytes is not None and share is None:
        text = _memory_text(request)
        return text if request.gpu_count == 1 else f"{request.gpu_count}x{text}"
    parts = [_memory_text(request)] if request.memory_bytes is not None else []
    other_compute = request.memory_bytes is None and share not in (None, request.memory_permille)
    if share is not None and (other_compute or request.compute_limit_permille is not None):
        parts.append(f"{_range_text(share, request.compute_limit_permille, format_percent)}% compute")
    size = _size_text(request)
    return f"{size} with {' and '.join(parts)}" if parts else size


def _memory_text(request: Request) -> str:
    return _range_text(request.memory_bytes or 0, request.max_memory_bytes, format_memory)


def _size_text(request: Request) -> str:
    by_memory = request.memory_permille is not None
    share = request.memory_permille or request.compute_permille or WHOLE_PERMILLE
    most = request.max_memory_permille if by_memory else request.max_compute_permille
    if share == WHOLE_PERMILLE:
        return _range_text(request.gpu_count, request.max_gpu_count, str)
    size = _range_text(share, most, format_share)
    return size if request.gpu_count == 1 else f"{request.gpu_count}x{size}"


def _range_text(low: int, high: int | None, format_figure: Callable[[int], str]) -> str:
    return format_figure(low) if high is None else f"{format_figure(low)}{TO}{format_figure(high)}"


def size_of(grants: Sequence[Grant]) -> str:
    """Write how much the grants give of each GPU: ``39.4 GiB and 0.5 of the compute``."""
    memory = " and ".join(dict.fromkeys(format_memory(grant.memory_bytes) for grant in grants))
    share = format_share(min(grant.compute_permille for grant in grants))
    each = " on each" if len(grants) > 1 else ""
    return f"{memory} and {share} of the compute{each}"
