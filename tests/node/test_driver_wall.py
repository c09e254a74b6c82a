"""A whole daemon behind the driver's wall: engine, containers and cgroup v2 are real, the driver is played.

Daemon and engine have the kernel's v2 tree at ``/sys/fs/cgroup``, whatever the machine has booted with.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpushared.ports import CgroupDriver
from tests.bed.engine import UnifiedEngine
from tests.node.conftest import NewDaemon
from tests.node.daemon import GPUSHARED, DaemonProcess, Json, remove_containers, wait_until
from tests.node.fake_driver import FakeDriver, known_to_engine, make_driver
from tests.sharing.cgroups import real_root

ROOT = "/sys/fs/cgroup"
WITH_V2 = (
    "unshare",
    "--mount",
    "sh",
    "-c",
    f'umount -R {ROOT}; mount -t cgroup2 cgroup2 {ROOT} && exec "$@"',
)
CONFIG = '[sharing]\nmps = "off"\n'
QUARTER = ("--label", "gpushare.gpu=0.25")
GIB = 2**30


@dataclass(frozen=True)
class Node:
    daemon: DaemonProcess
    driver: FakeDriver

    @property
    def limits(self) -> dict[str, int]:
        """By place in the tree; there never is a guarantee."""
        found = self.driver.machine.memory_limits()
        assert all(soft == 0 for soft, _ in found.values())
        return {path.removeprefix(ROOT): hard for (_, path), (_, hard) in found.items()}

    def place(self, lease: str) -> str:
        """The lease's own cgroup, in its user's."""
        return self.daemon.users.within(str(os.getuid()), lease).path(CgroupDriver.CGROUPFS)

    def places(self, lease: Json) -> tuple[str, str]:
        """The lease's cgroup, and its container's."""
        parent = self.place(lease["id"])
        return parent, f"{parent}/{lease['container_id']}"

    def run(self) -> Json:
        container = self.daemon.run_container(*QUARTER)
        wait_until(lambda: self._of(container), f"{container} has a lease")
        return self.daemon.wait_lease(self._of(container)[0]["id"], "active")

    def _of(self, container: str) -> list[Json]:
        return [one for one in self.daemon.leases().values() if one["container_id"] == container]

    def wait_limits(self, expected: dict[str, int]) -> None:
        wait_until(lambda: self.limits == expected, f"limits are {expected}: {self.limits}")


@pytest.fixture
def node(new_daemon: NewDaemon, unified_engine: UnifiedEngine) -> Iterator[Node]:
    real_root()
    with contextlib.closing(make_driver()) as driver, known_to_engine(driver, unified_engine.spec_dir):
        driver.machine.driver = "615.71.09"
        driver.machine.cgroups = Path(ROOT)
        driver.machine.write()
        daemon = new_daemon(
            simulate="",
            engine=unified_engine.socket,
            config=CONFIG,
            environment=driver.environment,
            command=(*WITH_V2, "sh", str(GPUSHARED)),
        )
        daemon.start()
        yield Node(daemon, driver)
        # The tree of cgroups is the machine's: what is in it has to go while somebody looks after it.
        left = [real_root() / Node(daemon, driver).place(lease).lstrip("/") for lease in daemon.leases()]
        remove_containers(daemon.engine, unified_engine.check("ps", "--all", "--quiet").split())
        wait_until(lambda: not any(path.exists() for path in left), f"{left} are gone")


def test_a_lease_stands_behind_the_drivers_wall_from_its_container_to_its_end(node: Node) -> None:
    """Limits on the lease's cgroup and the container's own, in real ones; both are gone afterwards."""
    lease = node.run()
    parent, leaf = node.places(lease)
    assert lease["memory_wall"] == "driver"
    size = int(lease["grants"][0]["memory_bytes"])
    node.wait_limits({parent: size, leaf: size})
    assert f"0::{leaf}\n" in Path(f"/proc/{node.daemon.pid_of(lease['container_id'])}/cgroup").read_text()
    node.daemon.check("rm", "--force", lease["container_id"])
    wait_until(lambda: not (real_root() / parent.lstrip("/")).exists(), f"{parent} is gone")
    assert parent not in node.limits


def test_another_size_holds_at_once(node: Node) -> None:
    """For what runs already, and the answer says so."""
    lease = node.run()
    parent, leaf = node.places(lease)
    size = int(lease["grants"][0]["memory_bytes"])
    node.wait_limits({parent: size, leaf: size})
    answer = node.daemon.call("Leases/Resize", {"lease_id": lease["id"], "gpu_memory": "30g"})
    assert any(effect.startswith("driver memory limit now: 30 GiB") for effect in answer["effects"])
    node.wait_limits({parent: 30 * GIB, leaf: 30 * GIB})


def test_after_a_crash_of_the_daemon_the_limits_are_set_again(node: Node) -> None:
    """They hold without it; a driver that was loaded anew has forgotten them."""
    lease = node.run()
    parent, leaf = node.places(lease)
    size = int(lease["grants"][0]["memory_bytes"])
    node.wait_limits({parent: size, leaf: size})
    node.daemon.kill()
    assert node.limits == {parent: size, leaf: size}
    node.driver.machine.state.with_name("state.limits").unlink()
    node.daemon.start()
    node.wait_limits({parent: size, leaf: size})
    assert node.daemon.lease(lease["id"])["memory_wall"] == "driver"


def test_a_cgroup_of_the_callers_own_is_refused(node: Node) -> None:
    """Only trusted callers come so far, and nothing would hold their container there."""
    words = ("run", "-d", *QUARTER, "--cgroup-parent", "/mine", "--network", "none")
    answer = node.daemon.docker(*words, "gpushared-test/busybox")
    assert answer.returncode != 0
    assert "has to be in its lease's cgroup" in answer.stderr
    assert node.daemon.leases() == {}


def test_the_doctor_says_whether_this_machine_has_the_wall(node: Node) -> None:
    """By trial, not by the driver's version alone."""
    found = _check(node)
    assert (found["status"], found["detail"]) == (
        "ok",
        "driver 615.71.09 limits each container's memory as a whole",
    )
    with node.driver.changing() as machine:
        machine.unprivileged = True
    node.daemon.restart()
    found = _check(node)
    assert found["status"] == "warning"
    assert "the driver sets memory limits for root only" in found["detail"]


def _check(node: Node) -> Json:
    checks = node.daemon.call("Node/Doctor")["checks"]
    return next(check for check in checks if check["name"] == "driver-memory-limits")
