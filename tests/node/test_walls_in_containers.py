"""Programs in real containers that hold GPU memory, by every way there is, and a driver that shows it.

The daemon believes in its GPUs: it learns from NVML (a fake library) who is on them by host PIDs, and its
engine gives them to containers, by CDI where it knows that.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.bed import parts
from tests.bed.fixtures import CdiEngine
from tests.node.conftest import NewDaemon
from tests.node.daemon import DaemonProcess, Json, name, wait_until
from tests.node.fake_driver import PROGRAM, FakeDriver, known_to_engine, make_driver

QUARTER = ("--label", "gpushare.gpu=0.25")
OVER = {"over_limit", "outside_mps"}
"""What ends a process that takes too much without MPS: whichever of the two faults is seen first."""


@dataclass(frozen=True)
class Node:
    """A daemon, its engine and its driver."""

    daemon: DaemonProcess
    driver: FakeDriver
    options: tuple[str, ...]

    def run(self, *options: str, command: tuple[str, ...]) -> Json:
        """A container with a quarter of the GPU; its lease."""
        container = self.daemon.run_container(*QUARTER, *self.options, *options, command=command)
        return self.lease_of(container)

    def lease_of(self, container: str) -> Json:
        """Also of one that is over already, which has no container any more, but its name."""
        called = self.daemon.container(container)["Name"].removeprefix("/")
        found: list[Json] = []

        def look() -> bool:
            leases = [one for ended in (False, True) for one in self._leases(ended=ended)]
            found[:] = [
                {**one, "container_id": container} for one in leases if one["container_name"] == called
            ]
            return bool(found)

        wait_until(look, f"container {container} has a lease")
        return found[0]

    def _leases(self, *, ended: bool) -> list[Json]:
        leases: list[Json] = self.daemon.call("Leases/List", {"ended": ended})["leases"]
        return leases

    def texts(self, lease: Json) -> list[str]:
        return self.daemon.story(lease["id"])

    def output(self, lease: Json) -> str:
        return parts.docker(self.daemon.engine, "logs", lease["container_id"]).stdout.strip()

    def status(self, lease: Json) -> str:
        status: str = self.daemon.container(lease["container_id"])["State"]["Status"]
        return status


@pytest.fixture
def driver() -> Iterator[FakeDriver]:
    with contextlib.closing(make_driver()) as made:
        yield made


@pytest.fixture
def plain_node(
    new_daemon: NewDaemon, docker_engine: str, mps_control_binary: Path, driver: FakeDriver
) -> Node:
    config = f'[sharing]\nmps_binary = "{mps_control_binary}"\n'
    daemon = new_daemon(simulate="", engine=docker_engine, config=config, environment=driver.environment)
    daemon.start()
    return Node(daemon, driver, tuple(driver.options))


@pytest.fixture
def cdi_node(
    new_daemon: NewDaemon, cdi_engine: CdiEngine, mps_control_binary: Path, driver: FakeDriver
) -> Iterator[Node]:
    config = f'[sharing]\nmps_binary = "{mps_control_binary}"\n'
    daemon = new_daemon(simulate="", engine=cdi_engine.socket, config=config, environment=driver.environment)
    with known_to_engine(driver, cdi_engine.spec_dir):
        daemon.start()
        yield Node(daemon, driver, ())


@pytest.fixture(params=["plain", "cdi"])
def node(request: pytest.FixtureRequest) -> Node:
    made: Node = request.getfixturevalue(f"{request.param}_node")
    return made


def work(script: str) -> tuple[str, ...]:
    """A shell that ends when it is told to, with the program as ``w``."""
    return ("sh", "-c", f"trap 'exit 0' TERM\nw() {{ {PROGRAM} \"$@\"; }}\n{script}\nsleep 1000 & wait")


# An environment without limits: what a program can do to its own.
FREE = f"env -u CUDA_MPS_PINNED_DEVICE_MEM_LIMIT {PROGRAM}"
ALONE = f"env -u CUDA_MPS_PIPE_DIRECTORY {PROGRAM}"

TOO_MUCH = {
    "one process that took its limit off": f"{FREE} hold 40g &",
    "two processes that are each inside the limit": "w hold 15g & w hold 16g &",
    "a child, after it became another program": f"sh -c 'exec {FREE} hold 40g' &",
    "a daemon that left its parents behind": f"{FREE} daemon 40g",
    "a limit for a GPU that is not there, which drops all limits": (
        f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G,1=1G {PROGRAM} hold 40g &"
    ),
}


@pytest.mark.parametrize("script", TOO_MUCH.values(), ids=TOO_MUCH)
def test_whatever_way_a_container_takes_too_much_it_is_ended_and_its_neighbours_hold_what_they_have(
    cdi_node: Node, script: str
) -> None:
    """The user sees the outcome and the sentence, the story and the log have both, the container is ended."""
    node = cdi_node
    neighbours = [node.run(command=(PROGRAM, "hold", "10g")) for _ in range(3)]
    others = node.driver.wait_held(3)
    greedy = node.run(command=work(script))
    outcome = node.daemon.wait_lease(greedy["id"], "ended")["outcome"]
    assert outcome["kind"] == "over_limit"
    used = "31 GiB" if "15g" in script else "40 GiB"
    assert outcome["text"].startswith(f"used {used} of its 19.8 GiB on GPU 0")
    assert f"uses {used} of its 19.8 GiB on GPU 0" in node.texts(greedy)
    assert node.status(greedy) == "exited"
    wait_until(lambda: node.driver.held() == others, "only the neighbours hold memory")
    assert [node.daemon.lease(one["id"])["state"] for one in neighbours] == ["active"] * 3
    assert f"lease={greedy['id']}" in node.daemon.text()


def test_what_came_by_exec_counts_for_the_container(node: Node) -> None:
    lease = node.run(command=work("w hold 10g &"))
    node.driver.wait_held(1)
    node.daemon.check("exec", "-d", lease["container_id"], PROGRAM, "hold", "15g")
    assert node.daemon.wait_lease(lease["id"], "ended")["outcome"]["kind"] == "over_limit"
    assert node.status(lease) == "exited"
    node.driver.wait_held(0)


def test_a_restart_policy_does_not_bring_back_what_was_ended_for_its_memory(plain_node: Node) -> None:
    node = plain_node
    lease = node.run("--restart", "always", command=work(f"{FREE} hold 40g &"))
    assert node.daemon.wait_lease(lease["id"], "ended")["outcome"]["kind"] == "over_limit"
    assert (node.status(lease), node.daemon.leases()) == ("exited", {})
    container = node.daemon.container(lease["container_id"])
    assert (container["RestartCount"], node.driver.held()) == (0, {})


FORGED = {
    "a higher limit": ("-e", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=70G"),
    "a limit that drops all limits": ("-e", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G,1=1G"),
    "no limit": ("-e", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="),
    "a pipe directory that is none": ("-e", "CUDA_MPS_PIPE_DIRECTORY=/nowhere"),
    "all GPUs": ("-e", "NVIDIA_VISIBLE_DEVICES=all", "-e", "CUDA_VISIBLE_DEVICES=0,1,2"),
    "names that only look alike": ("-e", "CUDA_MPS_PIPE_DIRECTORY", "-e", "cuda_mps_pipe_directory=/x"),
}


def test_what_a_user_writes_into_the_environment_takes_nothing_away_from_the_limit(node: Node) -> None:
    """The program is refused the memory beyond its lease, and the container ends by itself."""
    refusal = f"out of memory: {limit_mib(node)} MiB is the limit"
    for case, options in FORGED.items():
        lease = node.run(*options, command=(PROGRAM, "hold", "30g"))
        outcome = node.daemon.wait_lease(lease["id"], "ended")["outcome"]
        assert (outcome["kind"], outcome["exit_code"], node.output(lease)) == ("finished", 2, refusal), case


def limit_mib(node: Node) -> int:
    (gpu,) = node.daemon.call("Gpus/List")["gpus"]
    return int(gpu["memory_leasable_bytes"]) // 4 // 2**20


@pytest.fixture
def image(request: pytest.FixtureRequest) -> Iterator[str]:
    """An image that brings variables of its own, against the lease's."""
    fixture = "cdi_node" if "cdi_node" in request.fixturenames else "node"
    node: Node = request.getfixturevalue(fixture)
    yield from committed(
        node,
        "ENV CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=70G,1=70G CUDA_MPS_PIPE_DIRECTORY=/nowhere",
        "ENV NVIDIA_VISIBLE_DEVICES=all CUDA_VISIBLE_DEVICES=0 CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100",
        "ENV GPUSHARE_MEMORY_BYTES=1 NVIDIA_DRIVER_CAPABILITIES=all",
    )


def committed(node: Node, *changes: str) -> Iterator[str]:
    """An image with these changes (``docker commit --change``), until the test is over."""
    engine, made, box = node.daemon.engine, name(), name()
    words = [word for change in changes for word in ("--change", change)]
    assert not parts.docker(engine, "create", "--name", box, parts.BUSYBOX_IMAGE, "sh").returncode
    done = parts.docker(engine, "commit", *words, box, made)
    assert not done.returncode, done.stderr
    yield made
    parts.docker(engine, "rm", "--force", box)
    parts.docker(engine, "rmi", "--force", made)


def run_image(node: Node, image: str, *command: str) -> Json:
    options = node.daemon.container_options(*QUARTER, *node.options)[:-1]
    return node.lease_of(node.daemon.check("run", "-d", *options, image, *command))


def test_what_an_image_brings_in_its_environment_takes_nothing_away_from_the_limit(
    node: Node, image: str
) -> None:
    lease = run_image(node, image, PROGRAM, "hold", "30g")
    assert node.daemon.wait_lease(lease["id"], "ended")["outcome"]["exit_code"] == 2
    assert node.output(lease) == f"out of memory: {limit_mib(node)} MiB is the limit"


def test_the_driver_s_capabilities_are_the_user_s_or_else_the_image_s(node: Node, image: str) -> None:
    named, plain = "NVIDIA_DRIVER_CAPABILITIES", parts.BUSYBOX_IMAGE
    cases = {
        (image,): "all",
        (plain,): "compute,utility",
        ("-e", f"{named}=compute,video", image): "compute,video",
        ("-e", named, image): "compute,utility",
        ("--gpus", '"capabilities=video,utility"', image): "video,utility",
    }
    for words, value in cases.items():
        script = ("sh", "-c", f"echo ${named}")
        done = node.daemon.docker("run", "--rm", *QUARTER, *node.options, *words, *script)
        assert (done.stdout.strip(), done.returncode) == (value, 0), (words, done.stderr)


def test_a_container_without_a_lease_gets_no_gpu_by_its_image(cdi_node: Node, image: str) -> None:
    """Where GPUs come by the engine's devices, a variable opens nothing."""
    options = cdi_node.daemon.container_options()[:-1]
    container = cdi_node.daemon.check("run", "-d", *options, image, "sh", "-c", "ls /dev; env")
    parts.docker(cdi_node.daemon.engine, "wait", container)
    shown = parts.docker(cdi_node.daemon.engine, "logs", container).stdout
    assert "NVIDIA_VISIBLE_DEVICES=all" in shown
    assert "fake-nvidia" not in shown


HIDING = (
    ("-v", "/tmp:/run/gpushare"),
    ("-v", "/tmp:/run/gpushare/mps"),
    ("-v", "/tmp:/run/x/..//gpushare/mps/"),
    ("--tmpfs", "/run/gpushare/mps"),
    ("--mount", "type=tmpfs,dst=/run/gpushare"),
    ("-v", "/run/gpushare"),
)


def test_a_mount_that_would_hide_the_way_to_mps_is_refused(node: Node) -> None:
    for hiding in HIDING:
        options = node.daemon.container_options(*QUARTER, *node.options, *hiding)
        done = node.daemon.docker("run", "-d", *options, "sleep", "1")
        assert done.returncode == 125, hiding
        assert "would hide the lease's at /run/gpushare" in done.stderr, hiding
    wait_until(lambda: node.daemon.free_permille() == [1000], "nothing stays leased")


@pytest.mark.parametrize("options", [("--tmpfs", "/run"), ("-v", "/tmp:/run"), ("-v", "/run")])
def test_a_mount_around_the_way_to_mps_does_not_hide_it(node: Node, options: tuple[str, ...]) -> None:
    lease = node.run(*options, command=(PROGRAM, "hold", "10g"))
    node.driver.wait_held(1)
    assert node.driver.machine.gpus[0].mps, node.output(lease)


@pytest.fixture
def image_with_volume(node: Node) -> Iterator[str]:
    """As images made for an init system have."""
    yield from committed(node, "VOLUME /run")


def test_a_volume_of_the_image_around_the_way_to_mps_does_not_hide_it(
    node: Node, image_with_volume: str
) -> None:
    lease = run_image(node, image_with_volume, PROGRAM, "hold", "10g")
    node.driver.wait_held(1)
    assert node.driver.machine.gpus[0].mps, node.output(lease)


def test_a_program_that_leaves_mps_and_takes_too_much_is_ended(node: Node) -> None:
    """Nothing refuses it the memory, so that the watchdog is the wall."""
    lease = node.run(command=work(f"{ALONE} hold 40g &"))
    ended = node.daemon.wait_lease(lease["id"], "ended")
    assert ended["outcome"]["kind"] in OVER
    node.driver.wait_held(0)


def test_who_holds_the_line_to_mps_is_ended_for_too_much_memory_all_the_same(cdi_node: Node) -> None:
    """The control daemon serves one caller at a time, and any client can be the one that says nothing.

    New leases have to wait for it, what runs goes on, and the line is free again when its holder has ended.
    """
    node = cdi_node
    neighbour = node.run(command=(PROGRAM, "hold", "10g"))
    others = node.driver.wait_held(1)
    holder = node.run(command=work("w wedge &"))
    wait_until(lambda: node.output(holder) == "connected", "the line is held")
    node.daemon.check("exec", "-d", holder["container_id"], "sh", "-c", f"{FREE} hold 40g")
    assert node.daemon.wait_lease(holder["id"], "ended")["outcome"]["kind"] == "over_limit"
    wait_until(lambda: node.driver.held() == others, "the neighbour holds what it has, and nobody else")
    assert node.daemon.lease(neighbour["id"])["state"] == "active"
    again = node.run(command=(PROGRAM, "hold", "10g"))
    assert node.daemon.wait_lease(again["id"], "active")["memory_wall"] == "mps-client"


def test_a_lease_over_its_memory_is_found_also_after_the_driver_was_late(cdi_node: Node) -> None:
    """Late is not blind: nothing is said, and what was taken meanwhile is found at the next answer."""
    node = cdi_node
    lease = node.run(command=work("sleep 0"))
    node.daemon.wait_lease(lease["id"], "active")
    with node.driver.changing() as machine:
        machine.hang = "nvmlDeviceGetComputeRunningProcesses_v3"
    node.daemon.check("exec", "-d", lease["container_id"], "sh", "-c", f"{FREE} hold 40g")
    node.driver.wait_held(1)
    assert node.daemon.call("Gpus/List")["troubles"] == []
    assert node.daemon.lease(lease["id"])["state"] == "active"
    with node.driver.changing() as machine:
        machine.hang = None
    assert node.daemon.wait_lease(lease["id"], "ended")["outcome"]["kind"] == "over_limit"


def test_a_driver_that_does_not_answer_makes_the_watchdog_blind_and_it_says_since_when(
    cdi_node: Node,
) -> None:
    """Leases keep what they have; the story of one that took too much meanwhile begins when sight is back."""
    node = cdi_node
    lease = node.run(command=work("w hold 10g &"))
    node.driver.wait_held(1)
    with node.driver.changing() as machine:
        machine.hang = "nvmlDeviceGetMPSComputeRunningProcesses_v3"

    def troubles() -> list[str]:
        troubles: list[str] = node.daemon.call("Gpus/List")["troubles"]
        return troubles

    wait_until(troubles, "the watchdog says that it is blind")
    assert "the use of GPU memory is not seen since" in troubles()[0]
    (check,) = (one for one in doctor(node) if one["status"] == "failed")
    assert "hangs" in check["detail"] or "answer" in check["detail"], check
    node.daemon.check("exec", "-d", lease["container_id"], PROGRAM, "hold", "15g")
    node.driver.wait_held(2)
    assert node.daemon.lease(lease["id"])["state"] == "active"
    with node.driver.changing() as machine:
        machine.hang = None
    assert node.daemon.wait_lease(lease["id"], "ended")["outcome"]["kind"] == "over_limit"
    wait_until(lambda: not troubles(), "it sees again")


def test_memory_that_the_driver_does_not_tell_makes_the_watchdog_blind_there(cdi_node: Node) -> None:
    """A process that is listed without its memory holds nothing by any sum."""
    node = cdi_node
    lease = node.run(command=(PROGRAM, "hold", "10g"))
    ((pid, held),) = node.driver.wait_held(1).items()
    with node.driver.changing() as machine:
        machine.gpus[0].mps[pid] = None
    wait_until(lambda: node.daemon.call("Gpus/List")["troubles"], "it says that it is blind")
    (trouble,) = node.daemon.call("Gpus/List")["troubles"]
    assert f"does not tell what process {pid} of lease {lease['id']} holds on GPU 0" in trouble
    assert "blind there since" in trouble
    assert {one["name"]: one["status"] for one in doctor(node)}["memory-figures"] == "warning"
    with node.driver.changing() as machine:
        machine.gpus[0].mps[pid] = held
    wait_until(lambda: not node.daemon.call("Gpus/List")["troubles"], "it sees again")


def doctor(node: Node) -> list[Json]:
    checks: list[Json] = node.daemon.call("Node/Doctor")["checks"]
    return checks


@pytest.mark.parametrize("controller", ["memory", "cpu"])
def test_a_process_in_a_cgroup_below_its_containers_counts(plain_node: Node, controller: str) -> None:
    """As when an init system in a container sorts its services."""
    node = plain_node
    lease = node.run(command=work(f"{FREE} hold 15g &"))
    (pid,) = node.driver.wait_held(1)
    wait_until(lambda: node.daemon.lease(lease["id"]).get("memory_used_bytes"), "it is counted")
    own = Path(f"/proc/{pid}/cgroup").read_text()
    place = next(row.split(":")[2] for row in own.splitlines() if controller in row.split(":")[1].split(","))
    below = Path(f"/sys/fs/cgroup/{controller}{place}/service")
    if not below.parent.is_dir():
        pytest.skip(f"the controller {controller} is not mounted where v1 has it")
    below.mkdir()
    (below / "cgroup.procs").write_text(str(pid))
    node.daemon.check("exec", "-d", lease["container_id"], "sh", "-c", f"{FREE} hold 15g")
    outcome = node.daemon.wait_lease(lease["id"], "ended")["outcome"]
    assert outcome["text"].startswith("used 30 GiB of its")


@pytest.fixture
def cgroup_parent() -> Iterator[str]:
    """One of the user's own, which the engine makes and leaves behind."""
    parent = name()
    yield f"/{parent}/alice"
    for place in (*Path("/sys/fs/cgroup").glob(f"*/{parent}"), *Path("/sys/fs/cgroup").glob(parent)):
        if not place.is_dir():
            continue  # the same one under another name
        # Only directories can be removed here, the deepest first.
        for below in sorted((one for one in place.rglob("*") if one.is_dir()), reverse=True):
            below.rmdir()
        place.rmdir()


def test_a_container_below_a_cgroup_parent_of_the_users_counts(cgroup_parent: str, plain_node: Node) -> None:
    lease = plain_node.run("--cgroup-parent", cgroup_parent, command=work(f"{FREE} hold 40g &"))
    assert plain_node.daemon.wait_lease(lease["id"], "ended")["outcome"]["kind"] == "over_limit"


def test_the_command_line_tells_the_whole_of_it(node: Node) -> None:
    """Outcome, story and what the doctor finds, in the words that a user reads."""
    box = name()
    lease = node.run("--name", box, command=work(f"{FREE} hold 40g &"))
    node.daemon.wait_lease(lease["id"], "ended")
    output = subprocess.run(
        [parts.ROOT / ".venv/bin/gpushare", "why", lease["id"]],
        env={"GPUSHARE_HOST": f"unix://{node.daemon.socket}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert "over_limit" in output
    assert "uses 40 GiB of its 19.8 GiB on GPU 0" in output
    shown = json.loads(parts.docker(node.daemon.engine, "inspect", lease["container_id"]).stdout)
    assert shown[0]["State"]["Status"] == "exited"
