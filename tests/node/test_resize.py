"""Leases that get another size while their containers run, on a real engine and simulated GPUs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.bed.fixtures import CdiEngine
from tests.node.conftest import NewDaemon
from tests.node.daemon import DaemonProcess, Json, Refused, name, wait_until
from tests.node.grpc_client import ask

GIB = 1024**3
ALICE, BOB = 61001, 61002
"""Users that no system has: they have no groups and no home, so they are confined."""


def resize(daemon: DaemonProcess, lease: Json, /, uid: int = 0, **size: str) -> Json:
    return daemon.call("Leases/Resize", {"lease_id": lease["id"], **size}, uid=uid)


def use(daemon: DaemonProcess, lease: Json, memory_bytes: int) -> None:
    """Its main process holds so much on GPU 0, and the daemon has seen it."""
    process = {"pid": daemon.pid_of(lease["container_id"]), "memory_bytes": str(memory_bytes)}
    daemon.call("Simulation/Change", {"gpu_index": 0, "processes": [process]})
    seen = lambda: int(daemon.lease(lease["id"]).get("memory_used_bytes", 0)) == memory_bytes  # noqa: E731
    wait_until(seen, f"{lease['id']} was seen with {memory_bytes} bytes")


def held(daemon: DaemonProcess, lease: Json) -> tuple[int, int]:
    """Whole GiB and permille."""
    (grant,) = daemon.lease(lease["id"])["grants"]
    return round(int(grant["memory_bytes"]) / GIB), grant["compute_permille"]


def env_of(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def test_a_running_lease_is_raised_and_the_watchdog_follows_at_once(daemon: DaemonProcess) -> None:
    lease = daemon.hold("0.25")
    answer = resize(daemon, lease, gpu="0.5")
    assert answer["lease"]["asks"] == "0.5"
    assert answer["effects"][0] == "booked now: 39.4 GiB and 50% of the compute on GPU 0"
    assert answer["effects"][1].startswith("watchdog now: ends the container beyond 39.4 GiB")
    use(daemon, lease, 30 * GIB)
    assert daemon.lease(lease["id"])["state"] == "active"
    assert daemon.free_permille() == [500, 1000]
    assert "root resized it from 0.25 to 0.5" in daemon.story(lease["id"])


def test_a_lease_that_was_lowered_is_ended_beyond_its_new_size(daemon: DaemonProcess) -> None:
    lease = daemon.hold("0.5")
    use(daemon, lease, 10 * GIB)
    resize(daemon, lease, gpu_memory="12g")
    assert held(daemon, lease) == (12, 500)
    process = {"pid": daemon.pid_of(lease["container_id"]), "memory_bytes": str(20 * GIB)}
    daemon.call("Simulation/Change", {"gpu_index": 0, "processes": [process]})
    outcome = daemon.wait_lease(lease["id"], "ended")["outcome"]
    assert (outcome["kind"], outcome["text"]) == ("over_limit", "used 20 GiB of its 12 GiB on GPU 0")


def test_memory_in_use_is_not_taken_away(daemon: DaemonProcess) -> None:
    lease = daemon.hold("0.5")
    use(daemon, lease, 30 * GIB)
    with pytest.raises(Refused, match="uses 30 GiB on GPU 0") as refused:
        resize(daemon, lease, gpu_memory="30g")
    assert (refused.value.code, bool(refused.value.hint)) == ("failed_precondition", True)
    assert held(daemon, lease) == (39, 500)


def test_nothing_is_sold_twice_and_what_is_freed_goes_to_the_queue_at_once(daemon: DaemonProcess) -> None:
    first, _ = daemon.hold("0.75"), daemon.hold("0.9")
    third = daemon.hold("0.2")
    with pytest.raises(Refused, match="more would be needed") as refused:
        resize(daemon, third, gpu="0.3")
    assert refused.value.code == "resource_exhausted"
    waits = daemon.request("0.5")
    resize(daemon, third, gpu="0.1")
    with pytest.raises(Refused, match=f"kept for {waits['id']}") as refused:
        resize(daemon, third, gpu="0.15")
    assert refused.value.code == "resource_exhausted"
    resize(daemon, first, gpu="0.25")
    granted = daemon.lease(waits["id"])
    assert granted["state"] == "reserved"
    assert granted["grants"][0]["gpu_uuid"] == first["grants"][0]["gpu_uuid"]


def test_a_queued_request_changes_and_keeps_its_place(daemon: DaemonProcess) -> None:
    daemon.hold("0.75")
    daemon.hold("0.75")
    first, second = daemon.request("0.5"), daemon.request("0.4")
    answer = resize(daemon, first, gpu="0.6")
    assert answer["effects"] == ["asked for now: 0.6; it keeps its place in the queue"]
    assert [daemon.lease(one["id"])["waiting"]["position"] for one in (first, second)] == [1, 2]


def test_strangers_change_nothing_and_the_owner_may(daemon: DaemonProcess) -> None:
    lease = daemon.hold("0.25", "--name", name(), uid=ALICE)
    with pytest.raises(Refused) as refused:
        resize(daemon, lease, uid=BOB, gpu="0.5")
    assert refused.value.code == "permission_denied"
    message = {"lease_id": lease["id"], "gpu": "0.5"}
    (answer,) = ask(daemon.socket, [("Leases/Resize", message)], uid=BOB)
    assert answer["code"] == "permission_denied"
    assert resize(daemon, lease, uid=ALICE, gpu="0.5")["lease"]["asks"] == "0.5"
    assert resize(daemon, lease, uid=ALICE, gpu="0.5")["effects"] == [
        "nothing changed: it has this size already"
    ]


@pytest.mark.parametrize("size", [{}, {"gpu": "2x0.5"}, {"gpu_memory": "much"}])
def test_a_size_that_makes_no_sense_is_refused(daemon: DaemonProcess, size: dict[str, str]) -> None:
    lease = daemon.request("0.25")
    with pytest.raises(Refused) as refused:
        daemon.call("Leases/Resize", {"lease_id": lease["id"], **size})
    assert (refused.value.code, bool(refused.value.hint)) == ("invalid_argument", True)


def test_a_killed_daemon_comes_back_with_the_new_size(daemon: DaemonProcess) -> None:
    lease = daemon.hold("0.25")
    resize(daemon, lease, gpu="0.6")
    daemon.kill()
    daemon.start()
    assert held(daemon, lease) == (47, 600)
    assert daemon.lease(lease["id"])["asks"] == "0.6"
    env = env_of(daemon.check("exec", lease["container_id"], "env"))
    assert env["GPUSHARE_COMPUTE_PERCENT"] == "60"


def test_without_cdi_a_restart_brings_the_old_settings_and_exec_the_new_ones(daemon: DaemonProcess) -> None:
    """As the answer of resize and the documentation say."""
    lease = daemon.hold("0.25")
    container = lease["container_id"]
    resize(daemon, lease, gpu="0.5")
    assert env_of(daemon.check("exec", container, "env"))["GPUSHARE_COMPUTE_PERCENT"] == "50"
    daemon.check("restart", container)
    daemon.wait_lease(lease["id"], "active")
    assert held(daemon, lease) == (39, 500)
    own = Path(f"/proc/{daemon.pid_of(container)}/environ").read_text().replace("\0", "\n")
    assert env_of(own)["GPUSHARE_COMPUTE_PERCENT"] == "25"
    daemon.check("stop", container)
    daemon.wait_lease(lease["id"], "ended")
    daemon.check("start", container)
    (again,) = daemon.leases().values()
    assert held(daemon, again) == (20, 250)


@pytest.fixture
def cdi_daemon(new_daemon: NewDaemon, cdi_engine: CdiEngine, mps_control_binary: Path) -> DaemonProcess:
    started = new_daemon(engine=cdi_engine.socket, config=f'[sharing]\nmps_binary = "{mps_control_binary}"\n')
    started.start()
    return started


def test_with_cdi_and_mps_each_part_takes_effect_when_the_answer_says(cdi_daemon: DaemonProcess) -> None:
    daemon = cdi_daemon
    lease = daemon.hold("0.5")
    container = lease["container_id"]
    answer = resize(daemon, lease, gpu="0.25")
    assert [effect.partition(":")[0] for effect in answer["effects"]] == [
        *("booked now", "watchdog now", "MPS memory limit", "thread percentage", "walls now"),
    ]
    assert all("so does the container when it is restarted" in one for one in answer["effects"][2:4])
    assert answer["effects"][4] == "walls now: watchdog for memory, none for compute"
    env = env_of(daemon.check("exec", container, "env"))
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    lease_file = json.loads(daemon.check("exec", container, "cat", "/run/gpushare/lease.json"))
    assert lease_file["gpus"][0]["compute_percent"] == 25
    daemon.check("restart", container)
    daemon.wait_lease(lease["id"], "active")
    own = Path(f"/proc/{daemon.pid_of(container)}/environ").read_text().replace("\0", "\n")
    assert env_of(own)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert env_of(own)["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={int(env['GPUSHARE_MEMORY_BYTES']) >> 20}M"
    wait_until(
        lambda: walls(daemon, lease) == ("mps-client", "mps-percentage"), "its new limits are its walls"
    )


def walls(daemon: DaemonProcess, lease: Json) -> tuple[str, str]:
    now = daemon.lease(lease["id"])
    return now["memory_wall"], now["compute_cap"]


def limits_of(daemon: DaemonProcess, binary: Path) -> list[str]:
    """What the lease's own control daemon allows: memory and percentage, by its own words.

    Nothing while it listens to somebody else, which it does to one caller at a time.
    """
    (pipe,) = (daemon.runtime_dir / "mps").glob("l-*/pipe")
    asked = "get_default_device_pinned_mem_limit 0\nget_default_active_thread_percentage\n"
    reply = subprocess.run(
        [binary],
        input=asked,
        env={"CUDA_MPS_PIPE_DIRECTORY": str(pipe)},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    return reply.stdout.split()


def test_a_separate_lease_is_resized_with_its_own_control_daemon(
    cdi_daemon: DaemonProcess, mps_control_binary: Path
) -> None:
    """The daemon stays and takes the new limits for servers to come; nothing claims more than holds now."""
    daemon = cdi_daemon
    container = daemon.run_container(
        "--label", "gpushare.isolation=separate", "--label", "gpushare.gpu=0.25", command=("sleep", "1000")
    )
    (lease,) = daemon.leases().values()
    daemon.wait_lease(lease["id"], "active")
    assert walls(daemon, lease) == ("mps-server", "mps-percentage")
    effects = resize(daemon, lease, gpu_memory="40g", gpu_compute="50%")["effects"]
    assert any(effect.startswith("MPS server: one that runs keeps the limits") for effect in effects)
    wait_until(lambda: limits_of(daemon, mps_control_binary) == ["40G", "50.0"], "it has the raised limits")
    assert walls(daemon, lease) == ("mps-server", "mps-percentage")
    resize(daemon, lease, gpu_memory="8g", gpu_compute="10%")
    wait_until(lambda: limits_of(daemon, mps_control_binary) == ["8G", "10.0"], "it has the lowered limits")
    assert walls(daemon, lease) == ("watchdog", "none")
    daemon.check("restart", container)
    daemon.wait_lease(lease["id"], "active")
    wait_until(
        lambda: walls(daemon, lease) == ("mps-client", "mps-percentage"), "its new limits are its walls"
    )
    process = {"pid": daemon.pid_of(container), "memory_bytes": str(9 * GIB)}
    daemon.call("Simulation/Change", {"gpu_index": 0, "processes": [process]})
    assert daemon.wait_lease(lease["id"], "ended")["outcome"]["text"] == "used 9 GiB of its 8 GiB on GPU 0"
    wait_until(lambda: not list((daemon.runtime_dir / "mps").glob("l-*")), "its control daemon goes with it")


def test_the_command_prints_what_holds_when(daemon: DaemonProcess) -> None:
    lease = daemon.hold("0.25", "--name", name())
    output = daemon.gpushare_says("resize", lease["container_name"], "--gpu-compute", "50%")
    first, second, *_ = output.splitlines()
    assert first == f"{lease['id']}: 0.25 with 50% compute"
    assert second == "  booked now: 19.7 GiB and 50% of the compute on GPU 0"
