"""From a process to its container."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpushared.domain.model.lease import ContainerId
from gpushared.engine.docker_engine import DockerEngine
from gpushared.engine.processes import (
    ProcessHandles,
    ProcessTable,
    containers_of_cgroup,
    place_of,
    start_ticks_of_stat,
)
from tests.engine.containers import DockerContainers, facts, unique_name

A = ContainerId("3f" * 32)
B = ContainerId("c0" * 32)

STAT = (
    "4242 (a) b (c)) S 1 4242 4242 0 -1 4194560 1193 0 0 0 3 1 0 0 20 0 1 0 {start} 5214208 824 "
    "18446744073709551615 1 1 0 0 0 0 0 16781312 65538 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
)

CGROUPS = {
    "v1, cgroupfs, hybrid": (
        f"9:name=systemd:/docker/{A}\n4:memory:/docker/{A}\n1:cpu:/docker/{A}\n0::/\n",
        [A],
    ),
    "v1, systemd": (
        f"11:devices:/system.slice/docker-{A}.scope\n1:name=systemd:/system.slice/docker-{A}.scope\n",
        [A],
    ),
    "v2, cgroupfs": (f"0::/docker/{A}\n", [A]),
    "v2, systemd": (f"0::/system.slice/docker-{A}.scope\n", [A]),
    "v2, systemd inside the container": (f"0::/system.slice/docker-{A}.scope/init.scope\n", [A]),
    "v2, a user's slice": (
        f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/docker-{A}.scope\n",
        [A],
    ),
    "a cgroup parent of the user's": (f"0::/lab/{A}\n", [A]),
    "an engine inside a container": (f"0::/docker/{A}/docker/{B}\n", [A, B]),
    "v1, only some controllers nested": (
        f"4:memory:/docker/{A}\n2:pids:/docker/{A}/docker/{B}\n0::/\n",
        [A, B],
    ),
    "a named hierarchy with a colon": (f"1:name=a:/x:y/{A}\n", [A]),
    "the host, v2": ("0::/user.slice/user-0.slice/session-1.scope\n", []),
    "the host, v1": ("4:memory:/process_api/00b0232f7fd440540a90a1311be96787\n0::/\n", []),
    "more digits than an id has": (f"0::/docker/{A}0\n", []),
    "fewer digits than an id has": (f"0::/docker/{A[1:]}\n", []),
    "nothing": ("", []),
}


@pytest.mark.parametrize(("text", "containers"), CGROUPS.values(), ids=CGROUPS)
def test_a_cgroup_file_names_the_containers_around_a_process(
    text: str, containers: list[ContainerId]
) -> None:
    """In all forms that engines write, outermost first."""
    assert containers_of_cgroup(text) == tuple(containers)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (f"0::/gpushare/l-1/{A}\n", f"/gpushare/l-1/{A}"),
        (
            f"9:name=systemd:/docker/{A}\n0::/system.slice/docker-{A}.scope\n",
            f"/system.slice/docker-{A}.scope",
        ),
        (f"9:name=systemd:/docker/{A}\n0::/\n", None),
        (f"0::/docker/{B}\n", None),
        ("", None),
    ],
    ids=["cgroupfs", "systemd", "v1", "somebody else's by now", "nothing"],
)
def test_the_cgroup_of_a_container_is_found_in_the_tree_of_v2(
    tmp_path: Path, text: str, place: str | None
) -> None:
    """Only if it is the container's: a PID may have changed hands."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(text)
    assert place_of(7, A, tmp_path) == place
    assert place_of(8, A, tmp_path) is None


def test_the_start_time_is_found_behind_a_command_with_brackets() -> None:
    """A process may call itself anything."""
    assert start_ticks_of_stat(STAT.format(start=987654)) == 987654


class Proc:
    """A `/proc` as files, in which PIDs change hands on request."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, pid: int, start: int, container: ContainerId) -> None:
        (self.root / str(pid)).mkdir(exist_ok=True)
        (self.root / str(pid) / "stat").write_text(STAT.format(start=start))
        (self.root / str(pid) / "cgroup").write_text(f"0::/docker/{container}\n")


def test_a_pid_that_changed_hands_is_looked_up_anew(tmp_path: Path) -> None:
    """The same PID with another start time is another process."""
    proc, table = Proc(tmp_path), ProcessTable(tmp_path)
    proc.put(7, start=100, container=A)
    assert table.look_up([7])[7].container == A
    proc.put(7, start=200, container=B)
    found = table.look_up([7])[7]
    assert (found.container, found.start_ticks) == (B, 200)


REUSE = """
import os, sys, time
from pathlib import Path
from gpushared.engine.processes import ProcessHandles
from gpushared.engine.processes import ProcessTable

def spawn(pid):
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
    child = os.fork()
    if child == 0:
        os.read(int(sys.argv[1]), 1)  # nobody writes
    return child

table = ProcessTable(handles=ProcessHandles() if sys.argv[2] == "True" else None)
first = table.look_up([spawn(777)])[777]
os.kill(777, 9)
os.waitpid(777, 0)
died_at = os.times().elapsed
while os.times().elapsed - died_at < 0.03:  # start times are told in clock ticks, of another phase
    pass
second = table.look_up([spawn(777)])[777]
print(first.pid == second.pid, second is not first and first.start_ticks < second.start_ticks)
os.kill(777, 9)
"""


APART = ("unshare", "--pid", "--fork", "--mount-proc")


@pytest.mark.skipif(os.getuid() != 0, reason="only root chooses PIDs")
@pytest.mark.parametrize("handles", [True, False])
def test_a_real_pid_that_changed_hands_is_another_process(handles: bool) -> None:
    """The kernel is made to give the same PID again, in a PID namespace of its own."""
    nobody, held = os.pipe()
    done = subprocess.run(
        [
            "unshare",
            "--pid",
            "--fork",
            "--mount-proc",
            sys.executable,
            "-c",
            REUSE,
            str(nobody),
            str(handles),
        ],
        pass_fds=[nobody],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(nobody)
    os.close(held)
    assert done.stdout == "True True\n", done.stderr


def test_a_process_that_stays_costs_no_second_look_at_its_cgroup(tmp_path: Path) -> None:
    """Its container is remembered as long as it is asked for, and not longer."""
    proc, table = Proc(tmp_path), ProcessTable(tmp_path)
    proc.put(7, start=100, container=A)
    table.look_up([7])
    (tmp_path / "7" / "cgroup").unlink()
    assert table.look_up([7])[7].container == A
    assert table.look_up([]) == {}
    assert table.look_up([7]) == {}


def test_what_a_container_makes_up_below_its_own_cgroup_does_not_count(tmp_path: Path) -> None:
    """A privileged container can name a cgroup after somebody else's container; it stays inside its own."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(STAT.format(start=1))
    (tmp_path / "7" / "cgroup").write_text(f"0::/docker/{A}/docker/{B}\n")
    process = ProcessTable(tmp_path).look_up([7])[7]
    assert process.container_among({A, B}) == A
    assert process.container_among({B}) == B
    assert process.container_among({}) is None
    assert process.container == B


def test_a_process_of_the_host_has_no_container() -> None:
    """This test's own process lives, and is told even so."""
    process = ProcessTable().look_up([os.getpid()])[os.getpid()]
    assert process.container_among({A}) is None


def _pidfds() -> set[str]:
    """By number: other tests of this process may have left some."""
    return {link.name for link in Path("/proc/self/fd").iterdir() if "pidfd" in _target(link)}


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except FileNotFoundError:
        return ""


def test_a_process_with_a_handle_is_not_read_again_until_it_ends() -> None:
    """And its handle goes with it, or when nobody asks for it any more."""
    before = _pidfds()
    handles = ProcessHandles()
    table = ProcessTable(handles=handles)
    children = [subprocess.Popen(["sleep", "100"]) for _ in range(2)]
    first, second = (child.pid for child in children)
    found = table.look_up([first, second])
    assert len(_pidfds()) == len(before) + 2
    assert table.look_up([first, second])[first] is found[first]
    children[0].kill()
    children[0].wait()
    assert list(table.look_up([first, second])) == [second]
    assert first not in handles
    table.look_up([])
    assert _pidfds() <= before
    children[1].kill()
    children[1].wait()


def test_not_more_handles_are_taken_than_a_service_can_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those beyond are read each time."""
    monkeypatch.setattr("gpushared.engine.processes.MAX_HANDLES", 1)
    handles = ProcessHandles()
    table = ProcessTable(handles=handles)
    pids = [os.getpid(), os.getppid()]
    assert set(table.look_up(pids)) == set(pids)
    assert [pid in handles for pid in pids] == [True, False]
    assert set(table.look_up(pids)) == set(pids)
    table.look_up([])


@pytest.mark.parametrize("handles", [True, False])
async def test_processes_of_a_real_container_are_found_until_they_end(
    engine: DockerEngine, containers: DockerContainers, handles: bool
) -> None:
    """The main process by its host PID; gone with the container; PIDs that never were are not told."""
    container = containers.create(unique_name())
    containers.start(container)
    pid = (await facts(engine, container)).pid
    table = ProcessTable(handles=ProcessHandles() if handles else None)
    found = table.look_up([pid, 2**22 + 1])
    assert list(found) == [pid]
    assert found[pid].container_among({container}) == container
    await engine.stop(container, 5)
    assert table.look_up([pid]) == {}
