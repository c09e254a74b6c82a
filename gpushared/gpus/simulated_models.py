"""Define the GPUs that can be simulated: the models, their MIG profiles, and their notation. Pure.

Memory is about what ``nvidia-smi -q`` and ``nvidia-smi mig -lgip`` show.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpushared.domain.model.errors import RequestError

MAX_GPUS = 64
MIG_SLICES = 7
"""A GPU with MIG has this many compute slices."""
MEMORY_SLICES = 8

_MAX_SPEC_LENGTH = 1000
_SPEC_PART = re.compile(
    r"(?P<model>[a-z][a-z0-9-]{0,31})(?P<mig>/(?P<instances>[0-9a-z.+]{1,200}))?(?::(?P<count>[0-9]{1,4}))?"
    r"(?:@(?P<linked>[0-9]{1,4}))?"
)
_INSTANCES = re.compile(r"(?:(?P<count>[0-9]{1,2})x)?(?P<profile>[0-9]g\.[0-9]{1,3}gb)")


@dataclass(frozen=True, slots=True)
class Profile:
    """Describe the part of its GPU that a MIG instance of a profile is."""

    name: str
    compute_slices: int
    memory_slices: int
    total_mib: int


@dataclass(frozen=True, slots=True)
class Model:
    """Describe a GPU model, or that of a MIG instance: total and driver-reserved memory, and power."""

    name: str
    total_mib: int
    reserved_mib: int
    idle_watts: float
    busy_watts: float
    profiles: tuple[Profile, ...] = ()
    """MIG can split the model into these profiles; empty if it has no MIG."""

    def profile(self, name: str) -> Profile | None:
        return next((profile for profile in self.profiles if profile.name == name), None)


def _profiles(one: int, two: int, four: int, all_of_it: int) -> tuple[Profile, ...]:
    """Return the profiles of an 80 GB GPU, given the MiB of one, two, four and all slices of memory."""
    return (
        Profile("1g.10gb", 1, 1, one),
        Profile("1g.20gb", 1, 2, two),
        Profile("2g.20gb", 2, 2, two),
        Profile("3g.40gb", 3, 4, four),
        Profile("4g.40gb", 4, 4, four),
        Profile("7g.80gb", 7, 8, all_of_it),
    )


MODELS: Mapping[str, Model] = {
    "h100": Model("NVIDIA H100 80GB HBM3", 81559, 551, 70.0, 700.0, _profiles(9984, 20096, 40448, 81152)),
    "a100": Model("NVIDIA A100-SXM4-80GB", 81920, 634, 60.0, 400.0, _profiles(9728, 19968, 40192, 80640)),
    "rtx4090": Model("NVIDIA GeForce RTX 4090", 24564, 346, 20.0, 450.0),
    "t4": Model("Tesla T4", 15360, 443, 10.0, 70.0),
}


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    """Name a GPU to simulate: a key of ``MODELS``, and the profiles that MIG splits it into, or None."""

    model: str
    instances: tuple[str, ...] | None = None
    link_group: int | None = None
    """GPUs of one group are joined by NVLink; None for a GPU that reports no group."""


def parse_models(spec: str) -> tuple[SimulatedModel, ...]:
    """Read ``MODEL[/[Nx]PROFILE+...][:COUNT][@LINKED],...``, such as ``h100:8@4,a100/4x1g.10gb+3g.40gb``.

    ``@4``: each four of these are joined by NVLink.

    Errors: ``RequestError``.
    """
    if len(spec) > _MAX_SPEC_LENGTH:
        raise _bad_spec(f"The list of simulated GPUs is {len(spec)} characters long")
    models: tuple[SimulatedModel, ...] = ()
    for part in spec.lower().split(","):
        models += _parse_part(part.strip(), len(models))
    if len(models) > MAX_GPUS:
        raise _bad_spec(f"{len(models)} simulated GPUs are too many")
    return models


def _parse_part(part: str, first: int) -> tuple[SimulatedModel, ...]:
    """Read one part. ``first``: the index of its first GPU, after which its link groups are numbered."""
    match = _SPEC_PART.fullmatch(part)
    if match is None:
        raise _bad_spec(f"{part[:40]!r} does not name simulated GPUs")
    model, count = match["model"], int(match["count"] or 1)
    if model not in MODELS:
        near = difflib.get_close_matches(model, MODELS, n=1, cutoff=0.0)[0]
        raise RequestError(
            f"There is no simulated GPU model {model!r}",
            hint=f"did you mean {near!r}? There are {', '.join(MODELS)}",
        )
    if not 1 <= count <= MAX_GPUS:
        raise _bad_spec(f"{part!r} asks for {count} simulated GPUs")
    instances = _parse_instances(model, match["instances"]) if match["mig"] else None
    linked = int(match["linked"] or 0)
    if match["linked"] and not 1 <= linked <= MAX_GPUS:
        raise _bad_spec(f"{part!r} links {linked} GPUs with each other")
    groups = [first + number // linked * linked if linked else None for number in range(count)]
    return tuple(SimulatedModel(model, instances, group) for group in groups)


def _parse_instances(model: str, text: str) -> tuple[str, ...]:
    profiles: list[Profile] = []
    for item in text.split("+"):
        match = _INSTANCES.fullmatch(item)
        profile = MODELS[model].profile(match["profile"]) if match else None
        if match is None or profile is None:
            names = ", ".join(profile.name for profile in MODELS[model].profiles)
            raise RequestError(
                f"{item[:40]!r} is no MIG profile of a simulated {model}",
                hint=f"there are {names}" if names else "it has no MIG; a100 and h100 do",
            )
        profiles += [profile] * int(match["count"] or 1)
    compute = sum(profile.compute_slices for profile in profiles)
    memory = sum(profile.memory_slices for profile in profiles)
    if not profiles or compute > MIG_SLICES or memory > MEMORY_SLICES:
        raise RequestError(
            f"The MIG instances {text[:40]} do not fit on a {model}",
            hint=f"it has {MIG_SLICES} slices of compute and {MEMORY_SLICES} of memory, "
            f"not {compute} and {memory}",
        )
    return tuple(profile.name for profile in profiles)


def _bad_spec(message: str) -> RequestError:
    return RequestError(
        message, hint=f"write MODEL[:COUNT],... such as h100:2,t4 for 1 to {MAX_GPUS} GPUs in all"
    )
