"""Compare a running container with the container that the gate made. Pure.

The policy in force does not matter: a container that was admitted stays right when a site changes its policy.
The checks find settings that no policy ever gives, and differences between the engine's report and the
kernel's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpushared.config.gate_settings import ADDABLE, may_be_passed
from gpushared.domain.model.gpu import GpuId
from gpushared.engine.cdi import KIND as LEASE_KIND
from gpushared.engine.cdi import qualified_name
from gpushared.engine.reality import DRIVER_OF_DISPLAYS
from gpushared.gate.api.site import root_mark
from gpushared.gate.containers.gpu_request import WITHOUT_GPU
from gpushared.gate.containers.inject import GPU_KIND, VISIBLE_DEVICES
from gpushared.gate.mounts.held_mounts import ROOT as PINS
from gpushared.gate.policy.process_rules import ROOT_CAPABILITIES
from gpushared.mountinfo import is_under
from gpushared.ports import DeviceRule, MachineDevices, Reality

CAPABILITY_BITS = {
    "CHOWN": 0,
    "DAC_OVERRIDE": 1,
    "FOWNER": 3,
    "FSETID": 4,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
    "SETPCAP": 8,
    "NET_BIND_SERVICE": 10,
    "NET_RAW": 13,
    "IPC_LOCK": 14,
    "SYS_CHROOT": 18,
    "SYS_PTRACE": 19,
    "SYS_NICE": 23,
    "AUDIT_WRITE": 29,
}
"""Root inside may have these capabilities; the numbers are the kernel's (linux/capability.h)."""
ROOT_CAPABILITY_BITS = sum(1 << CAPABILITY_BITS[name] for name in ROOT_CAPABILITIES | set(ADDABLE))
NVIDIA_GPUS = "nvidia"
FIRST_CONTROL = 254
"""Minors of NVIDIA's from this one on belong to control devices, which are of no GPU."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Describe the container that the gate made, and its lease.

    ``gpus``: the GPUs that the container was ever given; None if they are unknown, as after the loss of a
    journal. ``minors``: the minors of these GPUs, None if they are unknown. ``sources``: the directories that
    it mounts.
    """

    confined: bool
    uid: int
    lease: str = ""
    device_name: str = ""
    gpus: frozenset[GpuId] | None = frozenset()
    minors: frozenset[int] | None = frozenset()
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Deviation:
    """State a fault in a clause after the container's name.

    ``grave``: the container may reach resources that are not its own.
    """

    text: str
    grave: bool = True


def deviations(reality: Reality, expected: Expected) -> tuple[Deviation, ...]:
    """Return all differences; for a trusted caller's container only those about GPUs."""
    checks = (*_GPU_CHECKS, *(_CONFINED_CHECKS if expected.confined else ()))
    return tuple(dict.fromkeys(finding for check in checks for finding in check(reality, expected)))


def unchecked(reality: Reality, expected: Expected) -> tuple[str, ...]:
    """Name the checks that were not possible, in a word or two each."""
    return (
        *(() if reality.rules is not None else ("the device rules of cgroup v2",)),
        *(() if expected.gpus is not None else ("the GPUs of leases that are not known",)),
        *(() if expected.minors is not None else ("which GPU a device node is",)),
        *(("numbers of users, which the engine maps",) if reality.maps_users else ()),
    )


# --- GPUs ----------------------------------------------------------------------------------------------


def _privileged(reality: Reality, _expected: Expected) -> Iterator[Deviation]:
    if reality.described.privileged:
        yield Deviation("is privileged: it has every device of the machine, GPUs too")


def _nodes(reality: Reality, expected: Expected) -> Iterator[Deviation]:
    if reality.described.privileged or expected.gpus is None:
        return  # the fault is reported already, or the GPUs are unknown
    for node in reality.nodes:
        if _is_foreign(reality.machine, node.major, node.minor, expected):
            yield Deviation(f"has {node.path}, a GPU device that {_whose(expected)}")


def _device_rules(reality: Reality, expected: Expected) -> Iterator[Deviation]:
    for rule in reality.rules or ():
        if reality.described.privileged or rule.kind == "b" or not set(rule.access) & set("rw"):
            continue
        if rule.major is None:
            yield Deviation("may use every device by the rules of its cgroup")
        elif expected.gpus is not None and _covers_foreign(reality.machine, rule, expected):
            minor = "*" if rule.minor is None else rule.minor
            yield Deviation(
                f"may use the GPU devices {rule.major}:{minor} by its cgroup: that {_whose(expected)}"
            )


def _covers_foreign(machine: MachineDevices, rule: DeviceRule, expected: Expected) -> bool:
    assert rule.major is not None
    if rule.minor is not None:
        return _is_foreign(machine, rule.major, rule.minor, expected)
    is_nvidia = machine.majors.get(rule.major) == NVIDIA_GPUS
    return _is_foreign(machine, rule.major, 0, Expected(expected.confined, 0)) and (
        not expected.lease or (is_nvidia and expected.minors is not None)
    )


def _is_foreign(machine: MachineDevices, major: int, minor: int, expected: Expected) -> bool:
    """Return True if this is a GPU's device outside the lease."""
    driver = machine.majors.get(major)
    if driver is None or (driver == DRIVER_OF_DISPLAYS and not expected.confined):
        return False  # displays are other vendors' too, and trusted callers may have those
    if not expected.lease:
        return True
    of_one_gpu = driver == NVIDIA_GPUS and minor < FIRST_CONTROL
    return of_one_gpu and expected.minors is not None and minor not in expected.minors


def _whose(expected: Expected) -> str:
    return f"lease {expected.lease} does not give" if expected.lease else "it has no lease for"


def _requests(reality: Reality, expected: Expected) -> Iterator[Deviation]:
    kinds = (f"{GPU_KIND}=", ":", "nvidia:")
    own = {qualified_name(expected.device_name)} if expected.device_name else set()
    own |= {f"{kind}{gpu}" for gpu in expected.gpus or () for kind in kinds}
    for name in reality.described.device_requests:
        if expected.gpus is None and name.startswith(kinds):
            continue
        concerns_gpus = name.startswith((LEASE_KIND, GPU_KIND, ":", "nvidia:"))
        if name not in own and (expected.confined or concerns_gpus):
            yield Deviation(f"was made with the device {name}, which {_whose(expected)}")


def _visible(reality: Reality, expected: Expected) -> Iterator[Deviation]:
    """Check the variable that NVIDIA's runtime follows; a lease device's own variables win over it."""
    if expected.gpus is None or qualified_name(expected.device_name) in reality.described.device_requests:
        return
    for entry in reality.described.env:
        name, _, value = entry.partition("=")
        if (
            name == VISIBLE_DEVICES
            and value not in WITHOUT_GPU
            and not set(value.split(",")) <= expected.gpus
        ):
            yield Deviation(f"has {entry[:200]}, which {_whose(expected)}", grave=expected.confined)


# --- settings that confined callers' containers never have ----------------------------------------------


def _users(reality: Reality, expected: Expected) -> Iterator[Deviation]:
    if _is_root_inside(reality, expected) or reality.maps_users:
        return
    if reality.uids != {expected.uid}:
        yield Deviation(f"runs as uid {_listed(reality.uids)}, not as its owner, {expected.uid}")
    if foreign := reality.gids - reality.described.groups:
        yield Deviation(f"has the groups {_listed(foreign)}, which the gate did not give")


def _privileges(reality: Reality, expected: Expected) -> Iterator[Deviation]:
    root = _is_root_inside(reality, expected)
    if root and expected.lease:
        yield Deviation("is root inside and has a lease, which are never together")
    if reality.capabilities & ~(ROOT_CAPABILITY_BITS if root else 0):
        yield Deviation(f"has the capabilities {reality.capabilities:#x}")
    if not reality.no_new_privileges:
        yield Deviation("could gain privileges by set-uid programs")
    if reality.described.seccomp and not reality.seccomp:
        # An engine can be built or configured without any filter.
        yield Deviation("may make every system call: has the engine no seccomp?", grave=False)


def _namespaces(reality: Reality, _expected: Expected) -> Iterator[Deviation]:
    shared = reality.host_namespaces & {"pid", "mnt", "uts", "ipc", "net"}
    if foreign := shared - (reality.described.host_namespaces & {"ipc", "net"}):
        yield Deviation(f"shares the machine's namespaces {', '.join(sorted(foreign))}")


def _devices(reality: Reality, _expected: Expected) -> Iterator[Deviation]:
    for path in reality.described.devices:
        if not may_be_passed(path):
            yield Deviation(f"was made with the device {path}")
    for rule in reality.described.device_rules:
        yield Deviation(f"was made with the device rule {rule}")


def _mounts(reality: Reality, expected: Expected) -> Iterator[Deviation]:
    for source in reality.described.binds:
        if not any(is_under(source, own) for own in (PINS, *expected.sources)):
            yield Deviation(f"mounts {source}, which the gate did not check")
    for shown in reality.exposed:
        if not any(is_under(shown.path, own) for own in expected.sources):
            yield Deviation(f"sees {shown.path} of the machine at {shown.target}")


def _is_root_inside(reality: Reality, expected: Expected) -> bool:
    return reality.described.mark == root_mark(expected.uid)


def _listed(numbers: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


_Check = Callable[[Reality, Expected], Iterator[Deviation]]
_GPU_CHECKS: tuple[_Check, ...] = (_privileged, _nodes, _device_rules, _requests, _visible)
_CONFINED_CHECKS: tuple[_Check, ...] = (_users, _privileges, _namespaces, _devices, _mounts)
