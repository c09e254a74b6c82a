"""What becomes of a lease as its container is stopped, restarted, started again, or never starts."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.bed import parts
from tests.node.conftest import NewDaemon
from tests.node.daemon import DaemonProcess, name, wait_until

FREE = [1000, 1000]


def crash(daemon: DaemonProcess, container: str) -> None:
    """Ends the first process as a crash does; a ``docker kill`` would count as a wish to stop."""
    os.kill(daemon.pid_of(container), signal.SIGKILL)


def runs_again(daemon: DaemonProcess, container: str, earlier_pid: int) -> bool:
    return daemon.pid_of(container) not in (0, earlier_pid)


def test_a_container_gets_its_part_and_gives_it_back_with_its_exit_code(daemon: DaemonProcess) -> None:
    lease = daemon.hold("0.25", command=("sh", "-c", "trap 'exit 3' TERM; sleep 1000 & wait"))
    assert daemon.free_permille() == [750, 1000]
    env = daemon.container(lease["container_id"])["Config"]["Env"]
    assert [one for one in env if one.startswith("NVIDIA_VISIBLE_DEVICES=")] == [
        f"NVIDIA_VISIBLE_DEVICES={lease['grants'][0]['gpu_uuid']}"
    ]
    parts.docker(daemon.engine, "stop", "--time", "10", lease["container_id"])
    ended = daemon.wait_lease(lease["id"], "ended")
    assert (ended["outcome"]["kind"], ended["outcome"]["exit_code"]) == ("finished", 3)
    assert daemon.free_permille() == FREE


@pytest.mark.parametrize("policy", ["always", "unless-stopped", "on-failure:5"])
def test_a_restart_policy_keeps_the_lease_between_runs_until_a_stop_gives_it_back(
    daemon: DaemonProcess, policy: str
) -> None:
    lease = daemon.hold("0.5", "--restart", policy)
    container, pid = lease["container_id"], daemon.pid_of(lease["container_id"])
    crash(daemon, container)
    wait_until(lambda: runs_again(daemon, container, pid), "the engine starts it again")
    again = daemon.wait_lease(lease["id"], "active")
    assert (again["container_id"], again["grants"]) == (container, lease["grants"])
    assert daemon.free_permille() == [500, 1000]
    daemon.check("stop", container)
    assert daemon.wait_lease(lease["id"], "ended")["outcome"]["kind"] == "finished"
    assert daemon.free_permille() == FREE


def test_a_policy_that_gives_up_gives_the_lease_back_with_the_last_exit_code(daemon: DaemonProcess) -> None:
    lease = daemon.request("0.5")
    container = daemon.run_container(
        *("--label", f"gpushare.lease={lease['id']}", "--restart", "on-failure:2"),
        command=("sh", "-c", "sleep 0.2; exit 7"),
    )
    ended = daemon.wait_lease(lease["id"], "ended")
    assert ended["outcome"]["exit_code"] == 7
    assert daemon.container(container)["RestartCount"] == 2


def test_between_two_runs_of_a_policy_the_capacity_stays_booked(daemon: DaemonProcess) -> None:
    """The engine's pauses grow to seconds; nobody may take the place meanwhile."""
    lease = daemon.request("1")
    container = daemon.run_container(
        "--label", f"gpushare.lease={lease['id']}", "--restart", "always", command=("false",)
    )
    wait_until(lambda: daemon.container(container)["RestartCount"] >= 3, "it was restarted three times")
    assert daemon.free_permille()[0] == 0
    assert daemon.lease(lease["id"])["state"] in {"starting", "active"}
    daemon.call("Leases/Stop", {"lease_id": lease["id"], "grace_seconds": 0})
    daemon.wait_lease(lease["id"], "ended")
    assert not daemon.container(container)["State"]["Restarting"]


def test_a_restart_through_the_gate_keeps_the_lease(daemon: DaemonProcess) -> None:
    lease = daemon.hold("0.25")
    pid = daemon.pid_of(lease["container_id"])
    daemon.check("restart", "--time", "0", lease["container_id"])
    assert runs_again(daemon, lease["container_id"], pid)
    assert daemon.wait_lease(lease["id"], "active")["container_id"] == lease["container_id"]
    assert list(daemon.leases()) == [lease["id"]]


def test_a_stopped_container_that_is_started_gets_a_lease_on_the_same_gpu(daemon: DaemonProcess) -> None:
    """Its settings were fixed when it was created, so only the same part of the same GPU will do."""
    whole = daemon.hold("1")
    lease = daemon.hold("0.25")
    container = lease["container_id"]
    daemon.check("stop", container)
    daemon.wait_lease(lease["id"], "ended")
    daemon.call("Leases/Stop", {"lease_id": whole["id"], "grace_seconds": 0})
    daemon.wait_lease(whole["id"], "ended")
    daemon.check("start", container)
    (again,) = daemon.leases().values()
    assert again["id"] != lease["id"]
    assert (again["container_id"], again["grants"]) == (container, lease["grants"])
    daemon.wait_lease(again["id"], "active")


def test_a_start_waits_in_the_queue_when_somebody_has_taken_the_place(daemon: DaemonProcess) -> None:
    lease = daemon.hold("1")
    container = lease["container_id"]
    daemon.check("stop", container)
    daemon.wait_lease(lease["id"], "ended")
    other, third = daemon.hold("1"), daemon.hold("1")
    start = subprocess.Popen([str(parts.DOCKER), "-H", f"unix://{daemon.socket}", "start", container])
    wait_until(lambda: len(daemon.leases()) == 3, "the start asked for a lease")
    (waiting,) = (one for one in daemon.leases().values() if one["state"] == "queued")
    daemon.call("Leases/Stop", {"lease_id": third["id"], "grace_seconds": 0})
    daemon.wait_lease(third["id"], "ended")
    before = {one["grants"][0]["gpu_uuid"]: one for one in (lease, other, third)}
    if before[lease["grants"][0]["gpu_uuid"]] is other:
        daemon.call("Leases/Stop", {"lease_id": other["id"], "grace_seconds": 0})
    assert start.wait(30) == 0
    assert daemon.wait_lease(waiting["id"], "active")["grants"] == lease["grants"]


def test_a_client_that_gives_up_its_start_leaves_the_queue(daemon: DaemonProcess) -> None:
    lease = daemon.hold("1")
    daemon.check("stop", lease["container_id"])
    daemon.wait_lease(lease["id"], "ended")
    daemon.hold("1"), daemon.hold("1")
    command = [str(parts.DOCKER), "-H", f"unix://{daemon.socket}", "start", lease["container_id"]]
    start = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    wait_until(lambda: len(daemon.leases()) == 3, "the start asked for a lease")
    start.kill()
    start.wait()
    wait_until(lambda: len(daemon.leases()) == 2, "its request left the queue")


@pytest.mark.parametrize("options", [(), ("--rm",)])
def test_a_container_that_cannot_start_gives_back(daemon: DaemonProcess, options: tuple[str, ...]) -> None:
    lease = daemon.request("0.5")
    words = daemon.container_options("--label", f"gpushare.lease={lease['id']}", *options)
    assert daemon.docker("run", *words, "/no/such/program").returncode == 127
    assert daemon.wait_lease(lease["id"], "ended")["outcome"]["kind"] in {"finished", "stopped"}
    assert daemon.free_permille() == FREE


def test_the_exit_code_of_a_container_that_removes_itself_is_kept(daemon: DaemonProcess) -> None:
    lease = daemon.request("0.5")
    words = daemon.container_options("--label", f"gpushare.lease={lease['id']}", "--rm")
    assert daemon.docker("run", *words, "sh", "-c", "exit 42").returncode == 42
    outcome = daemon.wait_lease(lease["id"], "ended")["outcome"]
    assert (outcome["kind"], outcome["exit_code"]) == ("finished", 42)


def test_a_create_that_fails_leaves_the_reservation_to_be_claimed_again(daemon: DaemonProcess) -> None:
    lease = daemon.request("0.5")
    label = f"gpushare.lease={lease['id']}"
    failed = daemon.docker("create", "--label", label, "--pull", "never", "no-such-image:1")
    assert failed.returncode != 0
    assert daemon.lease(lease["id"])["state"] == "reserved"
    daemon.run_container("--label", label)
    daemon.wait_lease(lease["id"], "active")


def test_a_lease_is_claimed_once(daemon: DaemonProcess) -> None:
    lease = daemon.hold("0.5")
    words = daemon.container_options("--label", f"gpushare.lease={lease['id']}")
    second = daemon.docker("create", *words)
    assert second.returncode == 1
    assert "cannot be claimed" in second.stderr


def test_a_removed_container_gives_back(daemon: DaemonProcess) -> None:
    lease = daemon.hold("0.5")
    daemon.check("rm", "--force", lease["container_id"])
    assert daemon.wait_lease(lease["id"], "ended")["outcome"]["kind"] in {"finished", "stopped"}
    assert daemon.free_permille() == FREE


def test_memory_that_is_not_back_holds_the_lease(daemon: DaemonProcess) -> None:
    """Draining ends with what the GPU shows, not with the container."""
    lease = daemon.hold("0.5")
    pid = daemon.pid_of(lease["container_id"])
    daemon.call("Simulation/Change", {"processes": [{"pid": pid, "memory_bytes": 2**30}]})
    wait_until(lambda: daemon.lease(lease["id"]).get("memory_used_bytes") == str(2**30), "its memory shows")
    assert daemon.call("Leases/List")["unmanaged"] == []
    daemon.call("Simulation/Change", {"hang_seconds": 3600})
    daemon.call("Leases/Stop", {"lease_id": lease["id"], "grace_seconds": 0})
    wait_until(lambda: not daemon.container(lease["container_id"])["State"]["Running"], "it is stopped")
    assert daemon.lease(lease["id"])["state"] == "draining"
    assert daemon.free_permille() == [500, 1000]
    daemon.call("Simulation/Change", {"hang_seconds": 0})
    daemon.wait_lease(lease["id"], "ended")
    assert daemon.free_permille() == FREE


def test_a_container_that_nobody_starts_gives_back(new_daemon: NewDaemon, docker_engine: str) -> None:
    """Its name and its files stay; only the place on the GPU goes to the next."""
    daemon = new_daemon(engine=docker_engine, config="[queue]\nclaim_seconds = 5\n")
    daemon.start()
    unclaimed = daemon.request("0.25")
    assert daemon.wait_lease(unclaimed["id"], "ended")["outcome"]["kind"] == "never_claimed"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("--gpus", "3"),
            "this node has 2 GPUs: --gpus 2 is the most; --label gpushare.gpu=0.25 asks for a part of one",
        ),
        (("--label", "gpushare.gpu-memory=100g"), "the most that fits is --label gpushare.gpu-memory="),
    ],
)
@pytest.mark.parametrize("kind", ["docker_engine", pytest.param("cdi_engine", marks=pytest.mark.cdi)])
def test_a_docker_run_that_asks_for_too_much_is_told_how_to_ask_for_less(
    new_daemon: NewDaemon, request: pytest.FixtureRequest, kind: str, words: tuple[str, ...], told: str
) -> None:
    """In words that docker takes; the engine that binds late creates the container, and refuses its start."""
    found = request.getfixturevalue(kind)
    daemon = new_daemon(engine=found if kind == "docker_engine" else found.socket)
    daemon.start()
    refused = daemon.docker("run", "-d", *daemon.container_options(*words), "true")
    assert refused.returncode == 125
    assert "never fits on this node" in refused.stderr
    assert told in refused.stderr


def test_a_plain_docker_run_with_gpus_is_a_lease_of_whole_gpus(daemon: DaemonProcess) -> None:
    container = daemon.run_container("--gpus", "1", "--name", name())
    (lease,) = daemon.leases().values()
    assert (lease["asks"], lease["isolation"]) == ("1", "exclusive")
    assert daemon.wait_lease(lease["id"], "active")["container_id"] == container
    assert sorted(daemon.free_permille()) == [0, 1000]


def test_stopped_and_started_at_once_a_container_has_its_mps_socket_each_time(
    new_daemon: NewDaemon, docker_engine: str, mps_control_binary: Path
) -> None:
    """What is taken away of the old lease must not be taken from the new one, which has the same device."""
    daemon = new_daemon(engine=docker_engine, config=f'[sharing]\nmps_binary = "{mps_control_binary}"\n')
    daemon.start()
    container = daemon.hold("0.25")["container_id"]
    for _ in range(5):
        daemon.check("stop", container)
        daemon.check("start", container)
        (lease,) = (one for one in daemon.leases().values() if one["state"] != "draining")
        daemon.wait_lease(lease["id"], "active")
        directory = Path(f"/proc/{daemon.pid_of(container)}/root/run/gpushare/mps")
        assert (directory / "control").is_socket()
        assert daemon.lease(lease["id"])["memory_wall"] == "mps-client"


def test_a_lease_that_is_given_back_while_its_settings_are_made_leaves_nothing_behind(
    new_daemon: NewDaemon, mps_control_binary: Path
) -> None:
    daemon = new_daemon(config=f'[sharing]\nmps_binary = "{mps_control_binary}"\n')
    daemon.start()
    for _ in range(5):
        daemon.call("Leases/Release", {"lease_id": daemon.request("0.25")["id"]})
    last = daemon.request("0.25")
    wait_until(lambda: daemon.lease(last["id"])["memory_wall"], "its settings are made")
    directories = daemon.runtime_dir / "leases"
    wait_until(lambda: [one.name for one in directories.iterdir()] == [last["id"]], "the others are gone")


def test_a_container_whose_lease_expires_is_stopped_and_gives_back(daemon: DaemonProcess) -> None:
    lease = daemon.request("0.5", time="2s")
    container = daemon.run_container(
        "--label",
        f"gpushare.lease={lease['id']}",
        command=("sh", "-c", "trap 'exit 0' TERM; sleep 1000 & wait"),
    )
    assert daemon.wait_lease(lease["id"], "ended")["outcome"]["kind"] == "expired"
    assert not daemon.container(container)["State"]["Running"]


def test_a_stop_leaves_containers_running_and_the_end_of_one_is_seen_afterwards(
    daemon: DaemonProcess,
) -> None:
    lease = daemon.hold("0.5", command=("sh", "-c", "trap 'exit 5' TERM; sleep 1000 & wait"))
    assert daemon.terminate() == 0
    assert daemon.container(lease["container_id"])["State"]["Running"]
    daemon.start()
    parts.docker(daemon.engine, "stop", lease["container_id"])
    assert daemon.wait_lease(lease["id"], "ended")["outcome"]["exit_code"] == 5


def test_a_renamed_container_is_found_by_its_new_name(daemon: DaemonProcess) -> None:
    lease = daemon.hold("0.25", "--name", "gpd-old-name")
    daemon.check("rename", "gpd-old-name", "gpd-new-name")
    wait_until(lambda: daemon.lease(lease["id"])["container_name"] == "gpd-new-name", "it is renamed")
    assert daemon.lease("gpd-new-name")["id"] == lease["id"]


@pytest.mark.docker
def test_a_second_daemon_leaves_what_the_first_one_made(daemon: DaemonProcess, new_daemon: NewDaemon) -> None:
    """Its journal knows none of those leases: it would clear their directories and MPS daemons away."""
    theirs = daemon.runtime_dir / "leases" / "l-first" / "mps"
    theirs.mkdir(parents=True)
    second = new_daemon(engine=daemon.engine)
    second.runtime_dir = daemon.runtime_dir
    second.launch()
    assert second.wait() == 2
    assert f"another gpushared serves {daemon.socket}" in second.text()
    assert theirs.is_dir()
    assert daemon.call("Node/Status")["version"]
