"""Parts that fail under a running daemon: it says so, keeps what it knows, and recovers by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.bed.engine import PrivateEngine
from tests.disks import full
from tests.gpus.fake_nvml import FakeGpu, FakeMachine, fake_nvml_library
from tests.node.conftest import NewDaemon
from tests.node.daemon import DaemonProcess, Json, Refused, wait_until
from tests.node.test_jobs import job, submit, wait_job

FREE = [1000, 1000]
SOON_SECONDS = 1.0


def gpu_troubles(daemon: DaemonProcess) -> list[str]:
    """What it says is wrong with each GPU."""
    return [gpu["trouble"] for gpu in daemon.call("Gpus/List")["gpus"]]


def says(daemon: DaemonProcess, words: str) -> Callable[[], bool]:
    return lambda: words in daemon.troubles()


# --- the engine ------------------------------------------------------------------------------------------


@pytest.fixture
def engine(private_engine: Callable[..., PrivateEngine]) -> PrivateEngine:
    return private_engine("--live-restore")


@pytest.fixture
def on_engine(new_daemon: NewDaemon, engine: PrivateEngine) -> DaemonProcess:
    daemon = new_daemon(engine=engine.socket)
    daemon.start()
    return daemon


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_an_engine_that_goes_away_and_comes_back_costs_nobody_a_lease(
    on_engine: DaemonProcess, engine: PrivateEngine, end: str
) -> None:
    """Containers live on, requests wait on, and what happened meanwhile is found out."""
    stays, leaves = on_engine.hold("0.5"), on_engine.hold("1")
    waiting = on_engine.request("1")
    pid, leaver = on_engine.pid_of(stays["container_id"]), on_engine.pid_of(leaves["container_id"])
    getattr(engine, end)()
    wait_until(says(on_engine, "engine"), "the engine's end is told")
    assert set(on_engine.leases()) == {stays["id"], leaves["id"], waiting["id"]}
    status = on_engine.call("Node/Status")
    assert status["engine"]["trouble"]
    refused = on_engine.docker("ps")
    assert refused.returncode == 1
    assert "engine" in refused.stderr
    os.kill(leaver, signal.SIGKILL)
    engine.start()
    on_engine.wait_lease(leaves["id"], "ended")
    on_engine.wait_lease(waiting["id"], "reserved")
    wait_until(lambda: not on_engine.troubles(), "all is well again")
    kept = on_engine.lease(stays["id"])
    assert (kept["state"], on_engine.pid_of(stays["container_id"])) == ("active", pid)
    assert kept["since"] == stays["since"], "its container was not restarted"


def test_a_container_that_comes_back_with_its_engine_is_told_to_have_been_restarted(
    new_daemon: NewDaemon, private_engine: Callable[..., PrivateEngine]
) -> None:
    engine = private_engine()
    daemon = new_daemon(engine=engine.socket)
    daemon.start()
    before = daemon.hold("0.5", "--restart", "always")
    engine.kill()
    wait_until(says(daemon, "engine"), "the engine's end is told")
    engine.start()
    wait_until(lambda: not daemon.troubles(), "all is well again")
    daemon.call("Leases/Wait", {"lease_id": before["id"], "token": before["token"], "timeout_seconds": 30})
    assert daemon.story(before["id"])[-1] == "the container was restarted, and nobody saw its end"
    after = daemon.lease(before["id"])
    assert (after["state"], after["since"] > before["since"]) == ("active", True)


def is_at_second_attempt(daemon: DaemonProcess, name: str) -> bool:
    return bool(job(daemon, name)["tries"])


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_jobs_that_docker_s_restart_ends_run_again_and_one_that_failed_before_does_not(
    new_daemon: NewDaemon, private_engine: Callable[..., PrivateEngine], end: str
) -> None:
    """Without live-restore: killed, or ended by SIGTERM with an exit code of their own, 0 too where it was paused."""
    engine = private_engine()
    daemon = new_daemon(engine=engine.socket)
    daemon.start()
    (failed,) = submit(daemon, "sh", "-c", "exit 3")
    assert wait_job(daemon, failed)["reason"] == "exit code 3"
    trap = "trap 'exit 7' TERM; while :; do sleep 0.1; done"
    (killed,), (asked,) = submit(daemon, "sleep", "1000"), submit(daemon, "sh", "-c", trap)
    (paused,) = submit(daemon, "sh", "-c", trap.replace("7", "0"))
    (stays,) = submit(daemon, "sleep", "1000", requeue=False)
    for name in (killed, asked, paused, stays):
        wait_job(daemon, name, "running")
    lease = daemon.lease(job(daemon, paused)["parts"][0]["lease_id"])
    daemon.docker("pause", lease["container_id"])
    daemon.wait_lease(lease["id"], "paused")
    getattr(engine, end)()
    wait_until(says(daemon, "engine"), "the engine's end is told")
    engine.start()
    for name in (killed, asked, paused):
        wait_until(partial(is_at_second_attempt, daemon, name), "its first attempt is over")
        wait_job(daemon, name, "running")
    assert "Docker was stopped or restarted" in wait_job(daemon, stays)["reason"]
    assert job(daemon, failed)["state"] == "failed"


def test_leases_are_granted_and_kept_while_no_engine_answers(lone_daemon: DaemonProcess) -> None:
    lease = lone_daemon.request("0.25")
    assert lease["state"] == "reserved"
    assert "/nonexistent/docker.sock" in lone_daemon.troubles()


def test_an_engine_that_starts_after_the_daemon_is_found(
    new_daemon: NewDaemon, engine: PrivateEngine
) -> None:
    """As at boot."""
    engine.stop()
    daemon = new_daemon(engine=engine.socket)
    daemon.start()
    assert daemon.troubles()
    engine.start()
    wait_until(lambda: not daemon.troubles(), "the engine is found")
    assert daemon.hold("0.5")["state"] == "active"


def test_a_hanging_engine_does_not_hang_the_daemon(on_engine: DaemonProcess, engine: PrivateEngine) -> None:
    """Listings answer, and a stop is done as soon as the engine can."""
    lease = on_engine.hold("0.5")
    dockerd = engine._process
    assert dockerd is not None
    dockerd.send_signal(signal.SIGSTOP)
    try:
        stopping = on_engine.call("Leases/Stop", {"lease_id": lease["id"], "grace_seconds": 0})
        assert stopping["state"] == "draining"
        asked_at = time.monotonic()
        assert on_engine.free_permille() == [500, 1000]
        assert on_engine.leases()[lease["id"]]["state"] == "draining"
        assert time.monotonic() - asked_at < SOON_SECONDS
        wait_until(
            lambda: "stop" in on_engine.text().rpartition("draining")[2], "the stop's failure is logged"
        )
    finally:
        dockerd.send_signal(signal.SIGCONT)
    on_engine.wait_lease(lease["id"], "ended")
    wait_until(lambda: not on_engine.troubles(), "all is well again")


# --- MPS -------------------------------------------------------------------------------------------------


@pytest.fixture
def sharing(new_daemon: NewDaemon, docker_engine: str, mps_control_binary: Path) -> DaemonProcess:
    daemon = new_daemon(engine=docker_engine, config=f'[sharing]\nmps_binary = "{mps_control_binary}"\n')
    daemon.start()
    return daemon


def control_daemons(daemon: DaemonProcess) -> dict[str, psutil.Process]:
    """The living ones of this daemon, by their pipe directory."""
    found = {}
    for process in psutil.process_iter():
        try:
            pipe = process.environ().get("CUDA_MPS_PIPE_DIRECTORY", "")
            if process.name().startswith("nvidia-cuda-mps") and pipe.startswith(str(daemon.runtime_dir)):
                found[pipe] = process
        except psutil.Error:
            continue
    return found


def default_limit(binary: Path, pipe: str) -> str:
    """What the control daemon itself says of its memory limit."""
    reply = subprocess.run(
        [binary],
        input="get_default_device_pinned_mem_limit 0\n",
        env={"CUDA_MPS_PIPE_DIRECTORY": pipe},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    return reply.stdout.strip()


def test_a_killed_mps_daemon_is_started_again_with_its_limits_and_its_leases(
    sharing: DaemonProcess, mps_control_binary: Path
) -> None:
    lease = sharing.hold("0.25")
    assert (lease["memory_wall"], lease["compute_cap"]) == ("mps-client", "mps-percentage")
    ((pipe, control),) = control_daemons(sharing).items()
    limit = default_limit(mps_control_binary, pipe)
    link = sharing.runtime_dir / "leases" / lease["id"] / "mps/control"
    before = link.stat().st_ino
    control.kill()
    wait_until(lambda: "MPS control daemon ended" in sharing.text(), "its end is logged")
    wait_until(lambda: link.stat().st_ino != before, "the lease has the new daemon's socket")
    ((again, living),) = control_daemons(sharing).items()
    assert (again, living.pid != control.pid) == (pipe, True)
    assert default_limit(mps_control_binary, pipe) == limit
    wait_until(lambda: gpu_troubles(sharing) == ["", ""], "all is well again")
    assert sharing.lease(lease["id"])["state"] == "active"


def test_mps_outlives_the_daemon_and_is_found_again(sharing: DaemonProcess) -> None:
    """Neither a stop nor a crash of the daemon may take the running programs' server away."""
    lease = sharing.hold("0.25")
    ((pipe, control),) = control_daemons(sharing).items()
    for end in (sharing.terminate, sharing.kill):
        end()
        assert control.is_running()
        sharing.start()
        assert control_daemons(sharing) == {pipe: control}
        assert sharing.lease(lease["id"])["state"] == "active"
        assert sharing.lease(lease["id"])["memory_wall"] == "mps-client"


def test_what_a_daemon_that_died_left_of_ended_leases_is_cleaned_up(sharing: DaemonProcess) -> None:
    """The container ended while nobody looked: its directory goes, and the MPS daemon that served it."""
    lease = sharing.hold("0.25")
    sharing.kill()
    (process,) = control_daemons(sharing).values()
    psutil.Process(int(sharing.pid_of(lease["container_id"]))).kill()
    stray = sharing.runtime_dir / "leases/l-gone/mps"
    stray.mkdir(parents=True)
    (stray / "control").touch()
    sharing.start()
    sharing.wait_lease(lease["id"], "ended")
    wait_until(lambda: not stray.exists(), "what no lease explains is removed")
    wait_until(
        lambda: not (stray.parents[1] / lease["id"]).exists(), "the ended lease's directory is removed"
    )
    assert process.is_running()


def test_separate_leases_have_control_daemons_of_their_own_until_they_end(
    sharing: DaemonProcess, mps_control_binary: Path
) -> None:
    """Across a crash of ours too; and a shared lease beside them has the one for all."""
    shared = sharing.hold("0.25")
    of_others = control_daemons(sharing).keys()
    gpu_request = ("--label", "gpushare.isolation=separate", "--label")
    containers = [sharing.run_container(*gpu_request, f"gpushare.gpu={size}") for size in ("0.25", "0.5")]
    own = {pipe: one for pipe, one in control_daemons(sharing).items() if pipe not in of_others}
    limits = {default_limit(mps_control_binary, pipe) for pipe in own}
    assert (len(own), len(limits)) == (2, 2)
    assert default_limit(mps_control_binary, *of_others) not in limits
    sharing.kill()
    sharing.start()
    leases = {one["container_id"]: one for one in sharing.leases().values()}
    walls = [leases[container]["memory_wall"] for container in containers]
    assert (walls, leases[shared["container_id"]]["memory_wall"]) == (["mps-server"] * 2, "mps-client")
    assert {pipe for pipe in control_daemons(sharing) if pipe not in of_others} == own.keys()
    for container in containers:
        sharing.check("kill", container)
        sharing.wait_lease(leases[container]["id"], "ended")
    wait_until(lambda: control_daemons(sharing).keys() == of_others, "their daemons go with them")
    wait_until(lambda: not any(Path(pipe).exists() for pipe in own), "and what they had on the disk")


# --- the journal's disk ----------------------------------------------------------------------------------


def test_a_full_disk_lets_nothing_be_granted_until_there_is_room_again(
    new_daemon: NewDaemon, small_disk: Path
) -> None:
    daemon = new_daemon()
    daemon.state_dir.symlink_to(small_disk)
    daemon.start()
    held = daemon.request("0.25")
    with full(small_disk):
        refusals = []
        for _ in range(50):
            try:
                daemon.request("0.01")
            except Refused as refused:
                refusals.append(refused)
        assert refusals
        assert {(one.code, one.status) for one in refusals} == {("unavailable", 503)}
        assert "disk is full" in refusals[-1].message
        assert refusals[-1].hint
        known = daemon.leases()
        assert len(known) == 51 - len(refusals)
        assert held["id"] in known
        assert "disk is full" in daemon.troubles()
    wait_until(lambda: not says(daemon, "disk is full")(), "it notices by itself that there is room")
    assert daemon.request("0.25")["state"] == "reserved"
    daemon.kill()
    daemon.start()
    assert known.keys() <= daemon.leases().keys()


@pytest.mark.parametrize("how", [DaemonProcess.terminate, DaemonProcess.kill], ids=["stopped", "killed"])
def test_a_daemon_that_starts_on_a_full_disk_watches_and_shows_and_grants_nothing(
    new_daemon: NewDaemon, docker_engine: str, small_disk: Path, how: Callable[[DaemonProcess], object]
) -> None:
    """With room again it goes on by itself, and finds what ended meanwhile."""
    daemon = new_daemon(engine=docker_engine)
    daemon.state_dir.symlink_to(small_disk)
    daemon.start()
    runs, ends = daemon.hold("0.25"), daemon.hold("0.25")
    how(daemon)
    with full(small_disk):
        daemon.start()
        assert {name: one["state"] for name, one in daemon.leases().items()} == {
            runs["id"]: "active",
            ends["id"]: "active",
        }
        with pytest.raises(Refused, match="disk is full") as refused:
            daemon.request("0.25")
        assert (refused.value.code, refused.value.status) == ("unavailable", 503)
        wait_until(says(daemon, "disk is full"), "it says so")
        daemon.check("kill", ends["container_id"])
        assert "the coordinator" not in daemon.text()
    daemon.wait_lease(ends["id"], "ended")
    wait_until(lambda: not says(daemon, "disk is full")(), "it notices by itself that there is room")
    assert daemon.lease(runs["id"])["state"] == "active"
    assert daemon.request("0.25")["state"] == "reserved"


# --- the driver ------------------------------------------------------------------------------------------


def test_a_hanging_driver_leaves_the_listings_quick_and_the_figures_as_they_were(
    lone_daemon: DaemonProcess,
) -> None:
    lease = lone_daemon.request("0.25")
    lone_daemon.call("Simulation/Change", {"hang_seconds": 3600})
    asked_at = time.monotonic()
    for _ in range(10):
        assert lone_daemon.free_permille() == [750, 1000]
        assert list(lone_daemon.leases()) == [lease["id"]]
    assert time.monotonic() - asked_at < 10 * SOON_SECONDS
    lone_daemon.call("Simulation/Change", {"hang_seconds": 0, "trouble": "it fell off the bus"})
    wait_until(lambda: gpu_troubles(lone_daemon)[0], "the driver is asked again")


def test_a_lost_gpu_takes_no_leases_before_it_answers_and_is_undrained(lone_daemon: DaemonProcess) -> None:
    """A lease that may have a container which nobody noted waits for the engine's word."""
    lease = lone_daemon.request("0.25")
    lone_daemon.call("Simulation/Change", {"gpu_index": 0, "trouble": "it fell off the bus"})
    wait_until(lambda: gpu_troubles(lone_daemon)[0] == "it fell off the bus", "the loss is told")
    elsewhere = lone_daemon.request("0.5")
    assert [grant["gpu_index"] for grant in elsewhere["grants"]] == [1]
    queued = lone_daemon.request("1")
    assert (queued["state"], lone_daemon.lease(lease["id"])["state"]) == ("queued", "reserved")
    lone_daemon.call("Leases/Release", {"lease_id": lease["id"]})
    lone_daemon.call("Simulation/Change", {"gpu_index": 0, "trouble": ""})
    wait_until(lambda: gpu_troubles(lone_daemon)[0] != "it fell off the bus", "it answers again")
    assert lone_daemon.lease(queued["id"])["state"] == "queued"
    lone_daemon.call("Gpus/Undrain", {"gpu": "0"})
    assert lone_daemon.wait_lease(queued["id"], "reserved")["grants"][0]["gpu_index"] == 0


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_nvml_library(tmp_path_factory.mktemp("nvml"), named=True)


@pytest.fixture
def on_driver(new_daemon: NewDaemon, library: Path, tmp_path: Path) -> tuple[DaemonProcess, FakeMachine]:
    """A daemon that thinks its GPUs are real, not started, and the machine that it will find."""
    machine = FakeMachine(tmp_path / "machine", [FakeGpu("GPU-a"), FakeGpu("GPU-b")])
    return new_daemon(simulate="", environment=machine.environment(library)), machine


def test_a_driver_that_is_missing_at_the_start_is_found_later(
    on_driver: tuple[DaemonProcess, FakeMachine],
) -> None:
    daemon, machine = on_driver
    machine.unload_driver()
    daemon.start()
    assert daemon.troubles()
    about_gpus: list[tuple[str, Json]] = [
        ("Leases/Request", {"gpu": "0.25"}),
        ("Gpus/Drain", {"gpu": "0", "reason": "a fan"}),
        ("Gpus/Drain", {"gpu": "all", "reason": "a fan"}),
        ("Projects/Set", {"name": "lab", "model": "H100", "limit": "1"}),
    ]
    for call, asked in about_gpus:  # that it has no such GPU nobody can know
        with pytest.raises(Refused) as refused:
            daemon.call(call, asked)
        assert refused.value.code == "unavailable", refused.value
    machine.write()
    wait_until(lambda: len(daemon.free_permille()) == 2, "the GPUs are found")
    wait_until(lambda: "driver" not in daemon.troubles(), "all is well again")
    assert daemon.request("1")["state"] == "reserved"


def test_a_driver_that_hangs_at_the_start_does_not_keep_the_daemon_from_serving(
    on_driver: tuple[DaemonProcess, FakeMachine],
) -> None:
    """What the journal has stays: reservations are not given up for want of a GPU to see."""
    daemon, machine = on_driver
    daemon.start()
    lease = daemon.request("0.25")
    daemon.kill()
    machine.hang = "nvmlInitWithFlags"
    machine.write()
    daemon.start()
    assert daemon.lease(lease["id"])["state"] == "reserved"
    assert "hangs" in daemon.troubles()
    machine.hang = None
    machine.write()
    wait_until(lambda: sorted(daemon.free_permille()) == [750, 1000], "the GPUs are found")
    wait_until(
        lambda: (now := daemon.lease(lease["id"]))["memory_wall"] or now["state"] == "ended",
        "its settings are made",
    )


def test_a_gpu_that_the_driver_loses_is_told_and_keeps_its_lease(
    on_driver: tuple[DaemonProcess, FakeMachine],
) -> None:
    daemon, machine = on_driver
    daemon.start()
    lease = daemon.request("0.25")
    machine.gpus[0].lost = True
    machine.write()
    wait_until(lambda: gpu_troubles(daemon)[0], "the loss is told")
    assert daemon.lease(lease["id"])["state"] == "reserved"
    assert [grant["gpu_uuid"] for grant in daemon.request("0.25")["grants"]] == ["GPU-b"]


def test_a_gpu_split_by_mig_is_never_leased(on_driver: tuple[DaemonProcess, FakeMachine]) -> None:
    daemon, machine = on_driver
    machine.gpus[0].mig = 1
    machine.write()
    daemon.start()
    first, second = daemon.request("1"), daemon.request("1")
    assert ([grant["gpu_uuid"] for grant in first["grants"]], second["state"]) == (["GPU-b"], "queued")
    assert "MIG" in gpu_troubles(daemon)[0]
    samples = threading.Event()
    samples.wait(2.5)
    assert daemon.lease(second["id"])["state"] == "queued"


def test_memory_of_processes_without_a_lease_is_taken_before_anything_is_granted(
    on_driver: tuple[DaemonProcess, FakeMachine],
) -> None:
    """Also what came while the daemon was away, when a request waits that it would collide with."""
    daemon, machine = on_driver
    daemon.start()
    first = daemon.request("2")
    waiting = daemon.request("1")
    daemon.call("Leases/Release", {"lease_id": first["id"]})
    machine.gpus[0].compute[os.getpid()] = machine.gpus[1].compute[os.getpid()] = 8 * 2**30
    assert daemon.lease(waiting["id"])["state"] == "reserved"
    queued = daemon.request("2")
    daemon.kill()
    machine.write()
    daemon.start()
    assert daemon.lease(queued["id"])["state"] == "queued"
    (mine, _) = strangers = daemon.call("Leases/List")["unmanaged"]
    assert [one["memory_bytes"] for one in strangers] == [str(8 * 2**30)] * 2
    assert mine["pid"] == os.getpid()
    daemon.call("Leases/Release", {"lease_id": waiting["id"]})
    assert daemon.lease(queued["id"])["state"] == "queued"
    assert daemon.call("Leases/Explain", {"lease_id": queued["id"]})["lease"]["waiting"]["reason"]
