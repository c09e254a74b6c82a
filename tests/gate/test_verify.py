"""What a container is, against what the gate made: cases as data, and honest ones of every kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushared.domain.model.gpu import GpuId
from gpushared.domain.model.lease import ContainerId
from gpushared.gate.api.site import root_mark
from gpushared.gate.containers.verify import ROOT_CAPABILITY_BITS, Expected, deviations, unchecked
from gpushared.ports import DeviceNode, DeviceRule, EngineDescription, Exposure, MachineDevices, Reality

OWNER = 1001
GPU, OTHER = GpuId("GPU-1"), GpuId("GPU-2")
MAJORS = {195: "nvidia", 226: "drm", 510: "nvidia-uvm", 235: "kfd"}
MACHINE = MachineDevices(MAJORS, {GPU: 3, OTHER: 4})
PLAIN_NODES = (DeviceNode("/dev/null", 1, 3), DeviceNode("/dev/tty", 5, 0))
PLAIN_RULES = (
    DeviceRule("c", None, None, "m"),
    DeviceRule("b", None, None, "m"),
    DeviceRule("c", 1, 3, "rwm"),
    DeviceRule("c", 136, None, "rwm"),
)
LEASED_NODES = (
    DeviceNode("/dev/nvidia3", 195, 3),
    DeviceNode("/dev/nvidiactl", 195, 255),
    DeviceNode("/dev/nvidia-uvm", 510, 0),
    DeviceNode("/dev/dri/renderD128", 226, 128),
)
HELD_PATH = "/run/gpushare-pins/abc-1/0"
LEASE_DIRECTORY = "/run/gpushare/leases/l-1"
DESCRIPTION = EngineDescription({}, groups=frozenset({1001, 20}), binds=(HELD_PATH,))
PLAIN = Reality(
    ContainerId("c" * 64), "box", 100, 5, DESCRIPTION, MACHINE, frozenset({OWNER}), frozenset({1001, 20}), 0,
    no_new_privileges=True, seccomp=True, maps_users=False, host_namespaces=frozenset({"user", "cgroup"}),
    nodes=PLAIN_NODES, rules=PLAIN_RULES, exposed=(),
)  # fmt: skip
LEASED = replace(
    PLAIN,
    described=replace(
        DESCRIPTION,
        device_requests=("gpushare.io/lease=l-1", "nvidia.com/gpu=GPU-1"),
        binds=(HELD_PATH, LEASE_DIRECTORY),
    ),
    nodes=(*PLAIN_NODES, *LEASED_NODES),
    rules=(*PLAIN_RULES, DeviceRule("c", 195, 3, "rw"), DeviceRule("c", 510, None, "rw")),
    exposed=(Exposure("/run/gpushare", LEASE_DIRECTORY),),
)
CONFINED = Expected(confined=True, uid=OWNER)
HOLDER = Expected(True, OWNER, "l-1", "l-1", frozenset({GPU}), frozenset({3}), (LEASE_DIRECTORY,))
TRUSTED = Expected(confined=False, uid=0)
UNKNOWN = Expected(True, OWNER, "", "l-1", None, None, (LEASE_DIRECTORY,))


def described(reality: Reality, **fields: Any) -> Reality:
    return replace(reality, described=replace(reality.described, **fields))


def node(path: str, major: int, minor: int) -> tuple[DeviceNode, ...]:
    return (*PLAIN_NODES, DeviceNode(path, major, minor))


ROOT_INSIDE = replace(
    described(PLAIN, mark=root_mark(OWNER), binds=()),
    uids=frozenset({0}),
    gids=frozenset({0}),
    capabilities=ROOT_CAPABILITY_BITS,
)
HONEST = {
    "plain": (PLAIN, CONFINED),
    "with a lease": (LEASED, HOLDER),
    "with a lease and cgroup v2": (replace(LEASED, rules=None), HOLDER),
    "root inside": (ROOT_INSIDE, CONFINED),
    "its user's numbers are mapped": (replace(PLAIN, uids=frozenset({101_001}), maps_users=True), CONFINED),
    "host's IPC that was asked for": (
        replace(
            described(PLAIN, host_namespaces=frozenset({"ipc"})), host_namespaces=frozenset({"ipc", "user"})
        ),
        CONFINED,
    ),
    "every system call, as asked for": (replace(described(PLAIN, seccomp=False), seccomp=False), CONFINED),
    "GPUs by device request": (described(LEASED, device_requests=(":GPU-1",)), HOLDER),
    "GPUs of a lease that nobody knows": (
        described(LEASED, env=("NVIDIA_VISIBLE_DEVICES=GPU-1",), device_requests=("nvidia.com/gpu=GPU-1",)),
        UNKNOWN,
    ),
    "no GPUs by NVIDIA's runtime": (described(PLAIN, env=("NVIDIA_VISIBLE_DEVICES=void",)), CONFINED),
    "its GPUs by NVIDIA's runtime": (described(LEASED, env=("NVIDIA_VISIBLE_DEVICES=GPU-1",)), HOLDER),
    "a trusted caller's, root with the machine's network and Docker's socket": (
        replace(
            described(PLAIN, host_namespaces=frozenset({"net", "pid"}), binds=("/",)),
            uids=frozenset({0}),
            gids=frozenset({0}),
            capabilities=2**40 - 1,
            no_new_privileges=False,
            host_namespaces=frozenset({"net", "pid"}),
            exposed=(Exposure("/s", "/run/docker.sock"),),
            nodes=node("/dev/dri/card0", 226, 0),
        ),
        TRUSTED,
    ),
}
WRONG = {
    "privileged": (described(PLAIN, privileged=True), CONFINED, "is privileged"),
    "privileged, trusted": (described(PLAIN, privileged=True), TRUSTED, "is privileged"),
    "a GPU without a lease": (
        replace(PLAIN, nodes=node("/dev/x", 195, 0)),
        CONFINED,
        "has /dev/x, a GPU device that it has no lease for",
    ),
    "a GPU without a lease, trusted": (replace(PLAIN, nodes=node("/dev/x", 195, 0)), TRUSTED, "has /dev/x"),
    "another vendor's GPU": (replace(PLAIN, nodes=node("/dev/kfd", 235, 0)), CONFINED, "has /dev/kfd"),
    "a display": (replace(PLAIN, nodes=node("/dev/dri/card0", 226, 0)), CONFINED, "has /dev/dri/card0"),
    "another's GPU": (
        replace(LEASED, nodes=node("/dev/nvidia0", 195, 4)),
        HOLDER,
        "has /dev/nvidia0, a GPU device that lease l-1 does not give",
    ),
    "rules for all devices": (
        replace(PLAIN, rules=(DeviceRule("a", None, None, "rwm"),)),
        CONFINED,
        "may use every device",
    ),
    "rules for all GPUs": (
        replace(LEASED, rules=(DeviceRule("c", 195, None, "rw"),)),
        HOLDER,
        "may use the GPU devices 195:*",
    ),
    "a rule for a GPU without a lease": (
        replace(PLAIN, rules=(DeviceRule("c", 195, 0, "r"),)),
        CONFINED,
        "may use the GPU devices 195:0",
    ),
    "another lease's device": (
        described(LEASED, device_requests=("gpushare.io/lease=l-2",)),
        HOLDER,
        "was made with the device gpushare.io/lease=l-2",
    ),
    "all of NVIDIA's devices": (
        described(PLAIN, device_requests=("nvidia.com/gpu=all",)),
        TRUSTED,
        "was made with the device nvidia.com/gpu=all",
    ),
    "a driver that nobody knows": (
        described(PLAIN, device_requests=("amd:0",)),
        CONFINED,
        "the device amd:0",
    ),
    "an image's variable": (
        described(PLAIN, env=("NVIDIA_VISIBLE_DEVICES=all",)),
        CONFINED,
        "has NVIDIA_VISIBLE_DEVICES=all",
    ),
    "another user": (replace(PLAIN, uids=frozenset({0, OWNER})), CONFINED, "runs as uid 0, 1001"),
    "a foreign group": (replace(PLAIN, gids=frozenset({6})), CONFINED, "has the groups 6"),
    "a capability": (replace(PLAIN, capabilities=1 << 21), CONFINED, "has the capabilities 0x200000"),
    "too many for root inside": (
        replace(ROOT_INSIDE, capabilities=1 << 21),
        CONFINED,
        "has the capabilities 0x200000",
    ),
    "root inside with a lease": (replace(ROOT_INSIDE), HOLDER, "is root inside and has a lease"),
    "a mark for somebody else": (described(ROOT_INSIDE, mark=root_mark(7)), CONFINED, "runs as uid 0"),
    "new privileges": (replace(PLAIN, no_new_privileges=False), CONFINED, "could gain privileges"),
    "the machine's processes": (
        replace(
            described(PLAIN, host_namespaces=frozenset({"pid"})), host_namespaces=frozenset({"pid", "user"})
        ),
        CONFINED,
        "shares the machine's namespaces pid",
    ),
    "a disk": (described(PLAIN, devices=("/dev/sda",)), CONFINED, "was made with the device /dev/sda"),
    "device rules": (
        described(PLAIN, device_rules=("c 1:1 rwm",)),
        CONFINED,
        "was made with the device rule c 1:1 rwm",
    ),
    "a path nobody checked": (described(PLAIN, binds=("/etc",)), CONFINED, "mounts /etc"),
    "another's lease directory": (
        replace(LEASED, exposed=(Exposure("/x", "/run/gpushare/leases/l-2"),)),
        HOLDER,
        "sees /run/gpushare/leases/l-2 of the machine at /x",
    ),
    "another lease's device where its own is not known": (
        described(LEASED, device_requests=("gpushare.io/lease=l-2",)),
        UNKNOWN,
        "was made with the device gpushare.io/lease=l-2",
    ),
    "a privilege where its lease is not known": (
        replace(LEASED, capabilities=1 << 21),
        UNKNOWN,
        "has the capabilities 0x200000",
    ),
    "Docker's socket": (
        replace(PLAIN, exposed=(Exposure("/s", "/run/docker.sock"),)),
        CONFINED,
        "sees /run/docker.sock",
    ),
}


@pytest.mark.parametrize("case", HONEST)
def test_nothing_is_found_at_honest_containers(case: str) -> None:
    seen, expected = HONEST[case]
    assert deviations(seen, expected) == ()


@pytest.mark.parametrize("case", WRONG)
def test_what_no_gate_gives_is_found_and_named(case: str) -> None:
    seen, expected, told = WRONG[case]
    found = deviations(seen, expected)
    assert any(told in each.text for each in found), found
    assert all(each.grave for each in found)


def test_an_engine_without_seccomp_is_told_and_ends_nobodys_container() -> None:
    (found,) = deviations(replace(PLAIN, seccomp=False), CONFINED)
    assert not found.grave


def test_what_cannot_be_looked_at_is_named() -> None:
    seen, expected = replace(LEASED, rules=None), replace(HOLDER, minors=None)
    assert unchecked(seen, expected) == ("the device rules of cgroup v2", "which GPU a device node is")
    assert "the GPUs of leases that are not known" in unchecked(LEASED, UNKNOWN)
    assert deviations(seen, expected) == ()


nodes = st.builds(DeviceNode, st.just("/dev/x"), st.sampled_from([1, 5, 195, 226, 510]), st.integers(0, 255))


@given(st.lists(nodes), st.sampled_from([CONFINED, HOLDER, TRUSTED]))
def test_a_container_passes_exactly_where_each_of_its_devices_does(
    found: list[DeviceNode], expected: Expected
) -> None:
    """No device hides another, and none is held against a container because of another."""
    base = LEASED if expected is HOLDER else PLAIN
    alone = [bool(deviations(replace(base, nodes=(each,)), expected)) for each in found]
    assert bool(deviations(replace(base, nodes=tuple(found)), expected)) == any(alone)


@given(st.integers(0, 253))
def test_of_gpus_only_the_leases_own_may_be_there(minor: int) -> None:
    seen = replace(LEASED, nodes=(DeviceNode("/dev/g", 195, minor),))
    assert bool(deviations(seen, HOLDER)) == (minor != 3)
