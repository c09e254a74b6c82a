"""What a daemon finds when it starts: its journal against Docker's labels against processes on GPUs."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import psutil
import pytest

from tests.bed import parts
from tests.bed.engine import PrivateEngine
from tests.node.conftest import NewDaemon
from tests.node.daemon import DaemonProcess, end_processes_naming, wait_until

GIB = 2**30


def test_a_running_container_is_taken_over_as_it_is(daemon: DaemonProcess) -> None:
    """After a stop and after a crash: the same lease, the same process."""
    lease = daemon.hold("0.25")
    pid = daemon.pid_of(lease["container_id"])
    for end in (daemon.terminate, daemon.kill):
        end()
        assert psutil.pid_exists(pid)
        daemon.start()
        again = daemon.lease(lease["id"])
        # What is seen of its processes begins anew.
        fresh = {"token": "", "idle_since": 0.0}
        assert {**again, **fresh} == {**lease, **fresh}
        assert daemon.pid_of(lease["container_id"]) == pid
    assert daemon.free_permille() == [750, 1000]


def test_what_happened_while_the_daemon_was_away_is_found_out(daemon: DaemonProcess) -> None:
    """One container ended, one was removed, one was paused, one lives."""
    ended, removed, paused, lives = (daemon.hold("0.25") for _ in range(4))
    daemon.kill()
    psutil.Process(daemon.pid_of(ended["container_id"])).kill()
    direct(daemon, "rm", "--force", removed["container_id"])
    direct(daemon, "pause", paused["container_id"])
    daemon.start()
    outcome = daemon.wait_lease(ended["id"], "ended")["outcome"]
    assert (outcome["kind"], outcome["exit_code"]) == ("finished", 137)
    assert daemon.wait_lease(removed["id"], "ended")["outcome"]["kind"] == "stopped"
    states = {one: found["state"] for one, found in daemon.leases().items()}
    assert states == {paused["id"]: "paused", lives["id"]: "active"}
    direct(daemon, "unpause", paused["container_id"])
    daemon.wait_lease(paused["id"], "active")


def direct(daemon: DaemonProcess, *words: str) -> str:
    """The docker CLI at the engine itself, not through the daemon."""
    done = parts.docker(daemon.engine, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_container_that_was_created_but_not_noted_is_found_by_its_label(daemon: DaemonProcess) -> None:
    """As when the daemon dies between the engine's answer and the write of it."""
    lease = daemon.request("0.25")
    daemon.kill()
    words = daemon.container_options("--label", f"gpushare.device={lease['id']}")
    container = direct(daemon, "run", "--detach", *words, "sleep", "1000")
    daemon.start()
    found = daemon.wait_lease(lease["id"], "active")
    assert found["container_id"] == container
    assert daemon.free_permille() == [750, 1000]


def test_containers_of_another_journal_do_not_pass_for_ours(
    daemon: DaemonProcess, new_daemon: NewDaemon
) -> None:
    """After a lost journal, and for two daemons on one engine: ids must not come again."""
    theirs = [daemon.hold("0.25") for _ in range(3)]
    other = new_daemon(engine=daemon.engine)
    other.start()
    ours = [other.request("0.25") for _ in range(3)]
    other.restart()
    assert {one["state"] for one in other.leases().values()} == {"reserved"}
    assert not {one["id"] for one in theirs} & {one["id"] for one in ours}


def test_processes_without_a_lease_are_listed_and_their_memory_is_taken(daemon: DaemonProcess) -> None:
    """A process of the host, and one of a container that got no lease."""
    container = daemon.run_container()
    leased = daemon.hold("0.25")
    mine, theirs = psutil.Process().pid, daemon.pid_of(container)
    inside = daemon.pid_of(leased["container_id"])
    processes = [
        {"pid": mine, "memory_bytes": 10 * GIB},
        {"pid": theirs, "memory_bytes": 20 * GIB},
        {"pid": inside, "memory_bytes": 5 * GIB},
    ]
    daemon.call("Simulation/Change", {"gpu_index": 0, "processes": processes})
    wait_until(lambda: daemon.call("Leases/List")["unmanaged"], "they are seen")
    rows = daemon.call("Leases/List")["unmanaged"]
    assert {row["pid"]: row["memory_bytes"] for row in rows} == {mine: str(10 * GIB), theirs: str(20 * GIB)}
    gpu = daemon.call("Gpus/List")["gpus"][0]
    assert gpu["memory_unmanaged_bytes"] == str(30 * GIB)
    leasable, granted = int(gpu["memory_leasable_bytes"]), int(leased["grants"][0]["memory_bytes"])
    assert int(gpu["memory_free_bytes"]) == leasable - granted - 30 * GIB
    assert daemon.lease(leased["id"])["memory_used_bytes"] == str(5 * GIB)
    assert [grant["gpu_index"] for grant in daemon.request("0.5")["grants"]] == [1]


@pytest.fixture
def engine(private_engine: Callable[..., PrivateEngine]) -> PrivateEngine:
    return private_engine()


@pytest.mark.mps
def test_after_a_reboot_leases_of_restart_policies_are_there_before_the_engine_is(
    new_daemon: NewDaemon, engine: PrivateEngine, mps_control_binary: object
) -> None:
    """The daemon starts first, on an empty runtime directory; the engine then restarts its containers."""
    daemon = new_daemon(engine=engine.socket, config=f'[sharing]\nmps_binary = "{mps_control_binary}"\n')
    daemon.start()
    serving = daemon.hold("0.25", "--restart", "always")
    batch = daemon.hold("0.25")
    queued = daemon.request("2")
    assert serving["memory_wall"] == "mps-client"
    daemon.kill()
    engine.stop()
    end_processes_naming(daemon.runtime_dir)
    shutil.rmtree(daemon.runtime_dir)
    daemon.start()
    mounted = daemon.runtime_dir / "leases" / serving["id"] / "mps/control"
    assert mounted.is_socket()
    assert daemon.lease(serving["id"])["state"] in {"starting", "active"}
    assert daemon.lease(queued["id"])["state"] == "queued"
    engine.start()
    again = daemon.wait_lease(serving["id"], "active")
    assert again["grants"] == serving["grants"]
    assert daemon.container(serving["container_id"])["State"]["Running"]
    assert daemon.wait_lease(batch["id"], "ended")["outcome"]["kind"] == "finished"
    daemon.call("Leases/Stop", {"lease_id": serving["id"], "grace_seconds": 0})
    daemon.wait_lease(queued["id"], "reserved")


def test_the_walls_of_a_container_are_those_it_was_created_with(
    new_daemon: NewDaemon, docker_engine: str, mps_control_binary: object
) -> None:
    """A daemon that later finds MPS does not promise walls that the container never got."""
    daemon = new_daemon(engine=docker_engine, config='[sharing]\nmps = "off"\n')
    daemon.start()
    lease = daemon.hold("0.25")
    assert (lease["memory_wall"] != "mps-client", lease["compute_cap"]) == (True, "none")
    daemon.terminate()
    daemon.config = f'[sharing]\nmps_binary = "{mps_control_binary}"\n'
    daemon.start()
    assert daemon.hold("0.25")["memory_wall"] == "mps-client"
    assert daemon.lease(lease["id"])["memory_wall"] == lease["memory_wall"]
