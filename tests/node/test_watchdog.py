"""Containers that take more GPU memory than their lease holds, on a real engine and simulated GPUs."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from tests.node.conftest import NewDaemon
from tests.node.daemon import DaemonProcess, Refused, wait_until

GIB = 1024**3


def use(daemon: DaemonProcess, pid: int, memory_bytes: int, gpu_index: int = 0) -> None:
    """The process holds so much from now on."""
    process = {"pid": pid, "memory_bytes": str(memory_bytes)}
    daemon.call("Simulation/Change", {"gpu_index": gpu_index, "processes": [process]})


def use_in(daemon: DaemonProcess, lease: dict[str, object], memory_bytes: int) -> None:
    use(daemon, daemon.pid_of(str(lease["container_id"])), memory_bytes)


def wait_troubles(daemon: DaemonProcess, wanted: Callable[[list[str]], bool]) -> list[str]:
    """What the daemon says is wrong, once it is as wanted; its samples come four times a second."""
    deadline = time.monotonic() + 20
    while not wanted(troubles := daemon.call("Gpus/List")["troubles"]):
        assert time.monotonic() < deadline, troubles
        time.sleep(0.05)
    return list(troubles)


def status_of(daemon: DaemonProcess, lease: dict[str, object]) -> str:
    status: str = daemon.container(str(lease["container_id"]))["State"]["Status"]
    return status


def test_a_container_that_takes_twice_its_lease_is_ended_and_its_neighbours_run_on(
    daemon: DaemonProcess,
) -> None:
    greedy, *others = [daemon.hold("0.25") for _ in range(4)]
    for other in others:
        use_in(daemon, other, 10 * GIB)
    use_in(daemon, greedy, 40 * GIB)
    ended = daemon.wait_lease(greedy["id"], "ended")
    assert ended["outcome"]["kind"] == "over_limit"
    assert ended["outcome"]["text"] == "used 40 GiB of its 19.7 GiB on GPU 0"
    assert status_of(daemon, greedy) == "exited"
    assert [daemon.lease(other["id"])["state"] for other in others] == ["active"] * 3
    assert [status_of(daemon, other) for other in others] == ["running"] * 3
    assert "uses 40 GiB of its 19.7 GiB on GPU 0" in daemon.story(greedy["id"])


def test_who_watches_such_a_container_reads_why_it_was_ended(daemon: DaemonProcess) -> None:
    lease = daemon.request("0.25")
    options = daemon.container_options("--label", f"gpushare.lease={lease['id']}", "--rm")
    env = {**os.environ, "DOCKER_HOST": f"unix://{daemon.socket}"}
    command, pipe = ["docker", "run", *options, "sleep", "1000"], subprocess.PIPE
    with subprocess.Popen(command, env=env, text=True, stdout=pipe, stderr=pipe) as watched:
        use_in(daemon, daemon.wait_lease(lease["id"], "active"), 40 * GIB)
        _, output = watched.communicate(timeout=60)
    assert watched.returncode == 137
    assert f"gpushare: {lease['id']} over_limit: used 40 GiB of its 19.7 GiB on GPU 0" in output
    assert f"gpushare why {lease['id']}" in output


def test_all_processes_of_a_container_count_together_also_those_that_came_by_exec(
    daemon: DaemonProcess,
) -> None:
    lease = daemon.hold("0.25")
    daemon.check("exec", "-d", lease["container_id"], "sleep", "1001")
    first = daemon.pid_of(lease["container_id"])
    children = daemon.check("top", lease["container_id"], "-o", "pid").split()[1:]
    second = next(int(pid) for pid in children if int(pid) != first)
    use(daemon, first, 15 * GIB)
    assert daemon.lease(lease["id"])["state"] == "active"
    use(daemon, second, 15 * GIB)
    assert daemon.wait_lease(lease["id"], "ended")["outcome"]["kind"] == "over_limit"


def test_a_process_that_left_its_parents_behind_still_counts(daemon: DaemonProcess) -> None:
    """A double fork moves a process to the container's first process, not out of the container."""
    script = "(sleep 1002 &) ; sleep 1000"
    lease = daemon.hold("0.25", command=("sh", "-c", script))
    pids = daemon.check("top", lease["container_id"], "-o", "pid,args").splitlines()[1:]
    orphan = next(int(line.split()[0]) for line in pids if "1002" in line)
    use(daemon, orphan, 40 * GIB)
    assert daemon.wait_lease(lease["id"], "ended")["outcome"]["kind"] == "over_limit"


@pytest.fixture
def warning_daemon(new_daemon: NewDaemon, docker_engine: str) -> DaemonProcess:
    config = '[watchdog]\naction = "warn"\ninfer = "kill"\n'
    started = new_daemon(engine=docker_engine, config=config)
    started.start()
    return started


def test_a_site_may_only_warn_and_may_be_stricter_with_a_class(warning_daemon: DaemonProcess) -> None:
    train = warning_daemon.hold("0.25")
    asked = warning_daemon.call("Leases/Request", {"gpu": "0.25", "class": "infer"})
    container = warning_daemon.run_container("--label", f"gpushare.lease={asked['id']}")
    infer = warning_daemon.wait_lease(asked["id"], "active")
    use_in(warning_daemon, train, 40 * GIB)
    use(warning_daemon, warning_daemon.pid_of(container), 30 * GIB)
    assert warning_daemon.wait_lease(infer["id"], "ended")["outcome"]["kind"] == "over_limit"
    assert warning_daemon.lease(train["id"])["state"] == "active"
    assert warning_daemon.story(train["id"])[-1] == "uses 40 GiB of its 19.7 GiB on GPU 0"


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process of the host, in no container."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process.pid
        process.kill()


def test_a_stranger_that_eats_leased_memory_is_named_and_its_memory_is_not_leased(
    daemon: DaemonProcess, stranger: int
) -> None:
    daemon.hold("0.75")
    use(daemon, stranger, 40 * GIB)
    (trouble,) = wait_troubles(daemon, bool)
    assert f"process {stranger} holds 40 GiB on GPU 0 without a lease" in trouble
    assert daemon.call("Leases/List")["unmanaged"][0]["pid"] == stranger
    lease = daemon.request("0.25")
    assert lease["grants"][0]["gpu_index"] == 1, "GPU 0 has nothing left to trust"
    use(daemon, stranger, 0)
    wait_troubles(daemon, lambda troubles: not troubles)


def test_a_watchdog_that_cannot_see_says_so_and_since_when(daemon: DaemonProcess) -> None:
    daemon.hold("0.25")
    daemon.call("Simulation/Change", {"hang_seconds": 60})
    (trouble,) = wait_troubles(daemon, bool)
    assert "the use of GPU memory is not seen since" in trouble
    daemon.call("Simulation/Change", {"hang_seconds": 0})


def test_the_simulate_command_plays_the_driver_and_refuses_nonsense(daemon: DaemonProcess) -> None:
    lease = daemon.hold("0.25", "--name", f"box-{os.getpid()}")

    def simulate(*words: str) -> subprocess.CompletedProcess[str]:
        return daemon.gpushare("simulate", *words)

    assert simulate("--container", f"box-{os.getpid()}", "--memory", "10g").returncode == 0
    wait_until(lambda: daemon.lease(lease["id"]).get("memory_used_bytes") == str(10 * GIB), "it is seen")
    for words, code in (
        ((), 2),
        (("--memory", "1g"), 2),
        (("--outside-mps",), 2),
        (("--container", "nobody", "--memory", "1g"), 125),
        (("--gpu", "9", "--trouble", "x"), 125),
    ):
        done = simulate(*words)
        assert (done.returncode, done.stderr.count("hint:")) == (code, 1), done.stderr


def test_only_trusted_callers_play_the_driver(daemon: DaemonProcess) -> None:
    with pytest.raises(Refused, match="only trusted callers"):
        daemon.call("Simulation/Change", {"trouble": "gone"}, uid=1001)
