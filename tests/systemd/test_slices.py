"""The slices of leases under a real systemd; with cgroup v1 their names and lives are the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gpushared.ports import CgroupDriver, DeviceMechanism, EngineFacts
from gpushared.sharing.cgroups import LeaseCgroups
from tests.bed.machine import Machine
from tests.bed.parts import DOCKER, PLAIN_SOCKET

ENGINE = EngineFacts("29.1.3", "1.52", True, DeviceMechanism.CDI, 2, CgroupDriver.SYSTEMD)


async def test_a_leases_slice_lives_as_long_as_the_lease(
    systemd_machine: Callable[..., Machine], tmp_path: Path
) -> None:
    """It is made below the slice of all leases, and forgets it in the end."""
    machine = systemd_machine()
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(
        f'#!/bin/sh\nexec {DOCKER} -H unix://{PLAIN_SOCKET} exec {machine.container_id} systemctl "$@"\n'
    )
    systemctl.chmod(0o755)
    cgroups = LeaseCgroups(tmp_path / "cgroup", systemctl=str(systemctl))
    parent = await cgroups.make("l-7f3k", ENGINE)
    place = machine.check("systemctl", "show", "--property=ControlGroup", "--value", parent.docker_name)
    assert place.strip().endswith(f"/gpushare.slice/{parent.docker_name}")
    assert machine.check("systemctl", "is-active", parent.docker_name).strip() == "active"
    await cgroups.remove("l-7f3k")
    assert machine.run("systemctl", "is-active", parent.docker_name).stdout.strip() == "inactive"
