"""Containers looked at when they have started: real engine, real daemon, and whoever goes past the gate."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushared.node.parts import JOURNAL_NAME
from tests.bed import parts
from tests.bed.engine import UnifiedEngine
from tests.node.conftest import NewDaemon
from tests.node.daemon import OWN_LABEL, DaemonProcess, wait_until

pytestmark = [pytest.mark.docker, pytest.mark.skipif(os.getuid() != 0, reason="acts as other users")]
ALICE = 61031


@pytest.fixture
def gpu_node(tmp_path: Path) -> Iterator[Path]:
    """A device node of a GPU that is not there: the kernel's number is what counts."""
    path = tmp_path / "innocent"
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(195, 0))
    yield path
    path.unlink()


def past_the_gate(daemon: DaemonProcess, like: str, *options: str, user: str = "0:0") -> str:
    """A container made as root on the engine itself, with all the labels of another."""
    labels = daemon.container(like)["Config"]["Labels"]
    words = [word for name, value in labels.items() for word in ("--label", f"{name}={value}")]
    made = parts.docker(
        daemon.engine, "run", "-d", "--network", "none", "--user", user, *words, *options,
        parts.BUSYBOX_IMAGE, "sleep", "1000",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def status(daemon: DaemonProcess, container: str) -> str:
    return str(daemon.container(container)["State"]["Status"])


def wait_trouble(daemon: DaemonProcess, *words: str) -> None:
    wait_until(lambda: all(word in daemon.troubles() for word in words), f"it is said: {words}")


def test_honest_containers_run_on_with_a_lease_and_without(daemon: DaemonProcess) -> None:
    """A look at a forged one that started after them shows that theirs are over."""
    held = daemon.hold("0.25", uid=ALICE)
    plain = daemon.run_container(uid=ALICE)
    roots = daemon.run_container("--pid", "host", "-v", "/tmp:/t")
    tty = daemon.run_container("-t", "--init", uid=ALICE)
    forged = past_the_gate(daemon, plain, "--pid", "host")
    wait_until(lambda: status(daemon, forged) == "exited", "the forged one was ended")
    honest = (held["container_id"], plain, roots, tty)
    assert [status(daemon, each) for each in honest] == ["running"] * 4
    assert daemon.lease(held["id"])["state"] == "active"
    found = [line for line in daemon.text().splitlines() if "verifier: mismatch" in line]
    assert len(found) == 1, found


def test_honest_containers_run_on_where_the_engine_has_cgroup_v2_and_lease_devices(
    new_daemon: NewDaemon, unified_engine: UnifiedEngine
) -> None:
    """The machine has rules of v1 for all else."""
    daemon = new_daemon(engine=unified_engine.socket)
    daemon.start()
    early = daemon.hold("0.25", uid=ALICE)["container_id"]
    late = daemon.run_container("--gpus", "1", uid=ALICE)
    plain = daemon.run_container(uid=ALICE)
    forged = past_the_gate(daemon, plain, "--pid", "host")
    wait_until(lambda: status(daemon, forged) == "exited", "the forged one was ended")
    assert [status(daemon, each) for each in (early, late, plain)] == ["running"] * 3


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--pid", "host"), "shares the machine's namespaces pid"),
        (("--cap-drop", "ALL", "--cap-add", "KILL"), "has the capabilities 0x20"),
        (("-v", "/etc:/x"), "mounts /etc"),
        (("-v", "/var/run:/x"), "of the machine at /x"),
    ],
)
def test_one_made_past_the_gate_with_its_labels_is_ended_and_told_of(
    daemon: DaemonProcess, options: tuple[str, ...], told: str
) -> None:
    plain = daemon.run_container(uid=ALICE)
    forged = past_the_gate(daemon, plain, *options)
    wait_until(lambda: status(daemon, forged) == "exited", "the forged one was ended")
    wait_trouble(daemon, told, "it was ended")
    assert status(daemon, plain) == "running"


def test_a_gpu_device_by_whatever_name_ends_a_container_that_has_no_lease_for_it(
    daemon: DaemonProcess, gpu_node: Path
) -> None:
    plain = daemon.run_container(uid=ALICE)
    forged = past_the_gate(daemon, plain, "--device", f"{gpu_node}:/dev/sound", user=f"{ALICE}:{ALICE}")
    wait_until(lambda: status(daemon, forged) == "exited", "the forged one was ended")
    wait_trouble(daemon, "/dev/sound, a GPU device that it has no lease for")


def test_the_settings_of_anothers_lease_are_found_on_whoever_wears_them(daemon: DaemonProcess) -> None:
    held = daemon.hold("0.25", uid=ALICE)
    forged = past_the_gate(daemon, held["container_id"], user=f"{ALICE}:{ALICE}")
    wait_until(lambda: status(daemon, forged) == "exited", "the forged one was ended")
    wait_trouble(daemon, f"has the settings of lease {held['id']}, which is another container's")
    assert daemon.lease(held["id"])["state"] == "active"


def test_one_that_the_engine_starts_after_its_lease_is_ended(daemon: DaemonProcess) -> None:
    """Past the gate it gets no lease: what it computes with would be sold twice."""
    held = daemon.hold("0.25", uid=ALICE)
    container = held["container_id"]
    daemon.check("stop", container, uid=ALICE)
    daemon.wait_lease(held["id"], "ended")
    # The engine misses the lease's directory, which goes with the lease, unless somebody makes one.
    directory = (
        daemon.runtime_dir / "leases" / daemon.container(container)["Config"]["Labels"]["gpushare.device"]
    )
    wait_until(lambda: not directory.exists(), "its directory is gone")
    directory.mkdir()
    started = parts.docker(daemon.engine, "start", container)
    assert started.returncode == 0, started.stderr
    wait_until(lambda: status(daemon, container) == "exited", "it was ended")
    wait_trouble(daemon, "has the settings of a lease that is over")


def test_one_whose_lease_was_lost_with_the_journal_is_told_of_and_goes_on(daemon: DaemonProcess) -> None:
    """What it was given is not known any more, which is not to say that it was given nothing."""
    lost = daemon.hold("0.25", uid=ALICE)["container_id"]
    daemon.kill()
    for file in daemon.state_dir.glob(f"{JOURNAL_NAME}*"):
        file.unlink()
    daemon.start()
    wait_trouble(
        daemon, daemon.container(lost)["Name"].strip("/"), "the settings of a lease that is not known"
    )
    assert "it was ended" not in daemon.troubles()
    later = daemon.run_container(uid=ALICE)
    forged = past_the_gate(daemon, later, "--pid", "host")
    wait_until(lambda: status(daemon, forged) == "exited", "the forged one was ended")
    assert [status(daemon, each) for each in (lost, later)] == ["running"] * 2


def test_a_trusted_callers_container_with_a_gpu_goes_on_and_is_told_of(
    daemon: DaemonProcess, gpu_node: Path
) -> None:
    roots = daemon.run_container()
    forged = past_the_gate(daemon, roots, "--device", f"{gpu_node}:/dev/x")
    wait_trouble(daemon, "has /dev/x, a GPU device")
    assert status(daemon, forged) == "running"
    parts.docker(daemon.engine, "rm", "-f", forged)
    wait_until(lambda: "/dev/x" not in daemon.troubles(), "it is not said any more")


def test_a_lease_ends_with_the_reason_where_its_own_container_is_more_than_was_made(
    daemon: DaemonProcess,
) -> None:
    """A container that bears the label of a reservation is taken for the one that was made for it."""
    plain = daemon.run_container(uid=ALICE)
    lease = daemon.request("0.25", uid=ALICE)["id"]
    past_the_gate(daemon, plain, "--pid", "host", "--label", f"gpushare.device={lease}")
    ended = daemon.wait_lease(lease, "ended")
    sentence = "shares the machine's namespaces pid"
    assert sentence in json.dumps(ended)
    assert sentence in daemon.gpushare_says("why", lease)
    assert sentence in daemon.gpushare_says("audit")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--device", "{node}:/dev/x"), "would be a GPU without a lease"),
        (("--device", "{link}:/dev/x"), "would be a GPU without a lease"),
        (("--device", "{folder}:/dev/x"), "would be a GPU without a lease"),
        (("--device", "/proc/self/root{node}:/dev/x"), "would be a GPU without a lease"),
        (("--device-cgroup-rule", "c 195:* rmw"), "would be a GPU without a lease"),
        (("--device-cgroup-rule", "a *:* rwm"), "would be a GPU without a lease"),
        (("--runtime", "nvidia-legacy"), "would give GPUs without a lease"),
        (("-e", "NVIDIA_VISIBLE_DEVICES=all"), "would give GPUs without a lease"),
        (("-v", "/dev/null:/var/run/nvidia-container-devices/all"), "would give GPUs past the lease"),
    ],
)
def test_no_spelling_of_a_gpu_gets_a_trusted_caller_round_the_lease(
    daemon: DaemonProcess, gpu_node: Path, options: tuple[str, ...], told: str
) -> None:
    link = gpu_node.parent / "link"
    link.symlink_to(gpu_node)
    words = [word.format(node=gpu_node, link=link, folder=gpu_node.parent) for word in options]
    done: subprocess.CompletedProcess[str] = daemon.docker(
        "create", "--label", f"{OWN_LABEL}={daemon.directory.name}", *words, parts.BUSYBOX_IMAGE
    )
    assert done.returncode != 0
    assert told in done.stderr
