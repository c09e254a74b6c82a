"""Leases of MIG instances: real containers on simulated ones, and a driver whose instances come and go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bed import parts
from tests.bed.fixtures import CdiEngine
from tests.gpus.fake_nvml import FakeGpu, FakeInstance, FakeMachine, fake_nvml_library
from tests.node.conftest import NewDaemon
from tests.node.daemon import DaemonProcess, Json, Refused, wait_until

GIB = 1024**3


@pytest.fixture
def daemon(new_daemon: NewDaemon, docker_engine: str) -> DaemonProcess:
    """One GPU that is split into three instances, and one that is not."""
    started = new_daemon(engine=docker_engine, simulate="a100/2x1g.10gb+3g.40gb,t4")
    started.start()
    return started


def ask(daemon: DaemonProcess, **size: Any) -> Json:
    return daemon.call("Leases/Request", {"isolation": "mig", **size})


def label_of(lease: Json) -> str:
    (grant,) = lease["grants"]
    return str(grant["gpu_label"])


def env_of(daemon: DaemonProcess, container: str) -> dict[str, str]:
    return dict(entry.split("=", 1) for entry in daemon.container(container)["Config"]["Env"])


def gpus(daemon: DaemonProcess) -> dict[str, Json]:
    return {gpu["label"]: gpu for gpu in daemon.call("Gpus/List")["gpus"]}


def test_a_container_gets_a_whole_instance_with_its_walls_and_without_mps(daemon: DaemonProcess) -> None:
    lease = ask(daemon, gpu_memory="8g")
    container = daemon.run_container("--label", f"gpushare.lease={lease['id']}")
    lease = daemon.wait_lease(lease["id"], "active")
    (grant,) = lease["grants"]
    assert (grant["gpu_label"], grant["compute_permille"]) == ("0:0", 1000)
    assert grant["gpu_name"] == "NVIDIA A100-SXM4-80GB MIG 1g.10gb"
    wait_until(lambda: daemon.lease(lease["id"]).get("memory_wall") == "mig", "its walls are known")
    assert daemon.lease(lease["id"])["compute_cap"] == "mig"
    env = env_of(daemon, container)
    assert env["CUDA_VISIBLE_DEVICES"] == env["NVIDIA_VISIBLE_DEVICES"] == grant["gpu_uuid"]
    assert grant["gpu_uuid"].startswith("MIG-")
    assert env["GPUSHARE_MEMORY_BYTES"] == grant["memory_bytes"] == str(9728 * 1024**2)
    assert not {name for name in env if name.startswith("CUDA_MPS_PINNED")}


def test_each_request_gets_the_smallest_that_is_enough_and_the_next_waits(daemon: DaemonProcess) -> None:
    leases = [
        ask(daemon, gpu="1"),
        ask(daemon, gpu_memory="20g"),
        ask(daemon, gpu="0.125"),
        ask(daemon, gpu="1"),
    ]
    assert [label_of(lease) for lease in leases[:3]] == ["0:0", "0:2", "0:1"]
    assert leases[3]["state"] == "queued"
    assert leases[3]["waiting"]["reason"] == "sharing_mode"
    assert daemon.request("0.5")["grants"][0]["gpu_label"] == "1", "who asks for no instance gets none"
    daemon.call("Leases/Release", {"lease_id": leases[1]["id"]})
    assert label_of(daemon.wait_lease(leases[3]["id"], "reserved")) == "0:2"


def test_what_no_instance_has_is_refused_with_the_largest(daemon: DaemonProcess) -> None:
    with pytest.raises(Refused) as refused:
        ask(daemon, gpu_memory="50g")
    assert refused.value.message == "a MIG instance with at least 50 GiB never fits on this node"
    assert "a 3g.40gb with 39.2 GiB" in refused.value.hint


def test_memory_in_an_instance_is_shown_with_its_lease_and_nobody_ends_it(daemon: DaemonProcess) -> None:
    lease = ask(daemon, gpu="1")
    container = daemon.run_container(
        "--label", f"gpushare.lease={lease['id']}", "--name", daemon.directory.name
    )
    daemon.wait_lease(lease["id"], "active")
    done = daemon.gpushare("simulate", "--gpu", "0:0", "--container", daemon.directory.name, "--memory", "9g")
    assert done.returncode == 0, done.stderr
    seen: Callable[[], bool] = lambda: daemon.lease(lease["id"]).get("memory_used_bytes") == str(9 * GIB)  # noqa: E731
    wait_until(seen, "the use is seen")
    assert gpus(daemon)["0:0"]["memory_used_bytes"] == gpus(daemon)["0"]["memory_used_bytes"] == str(9 * GIB)
    assert daemon.container(container)["State"]["Running"]


def test_its_size_cannot_be_changed(daemon: DaemonProcess) -> None:
    lease = ask(daemon, gpu="1")
    with pytest.raises(Refused, match="whose sizes the admin made"):
        daemon.call("Leases/Resize", {"lease_id": lease["id"], "gpu_memory": "20g"})


def test_a_restarted_daemon_has_the_leases_on_the_same_instances(daemon: DaemonProcess) -> None:
    lease = ask(daemon, gpu="1")
    daemon.run_container("--label", f"gpushare.lease={lease['id']}")
    daemon.wait_lease(lease["id"], "active")
    daemon.kill()
    daemon.start()
    assert label_of(daemon.lease(lease["id"])) == "0:0"
    assert label_of(ask(daemon, gpu="1")) == "0:1"


def test_a_stopped_container_starts_again_on_an_instance(daemon: DaemonProcess) -> None:
    """On an engine without CDI its settings name the instance, so that it gets the same one."""
    container = daemon.run_container("--label", "gpushare.gpu-memory=8g", "--label", "gpushare.isolation=mig")
    uuid = env_of(daemon, container)["CUDA_VISIBLE_DEVICES"]
    daemon.check("stop", container)
    wait_until(lambda: not daemon.leases(), "its lease is over")
    daemon.check("start", container)
    (lease,) = daemon.leases().values()
    assert [grant["gpu_uuid"] for grant in lease["grants"]] == [uuid]


def test_an_instance_is_taken_at_the_start_where_the_engine_applies_lease_devices(
    new_daemon: NewDaemon, cdi_engine: CdiEngine
) -> None:
    daemon = new_daemon(engine=cdi_engine.socket, simulate="a100/2x1g.10gb")
    daemon.start()
    gpu_request = ("--label", "gpushare.gpu=1", "--label", "gpushare.isolation=mig")
    container = daemon.create_container(*gpu_request)
    assert daemon.leases() == {}
    daemon.check("start", container)
    (lease,) = daemon.leases().values()
    environ = Path(f"/proc/{daemon.pid_of(container)}/environ").read_bytes().decode().split("\0")
    assert f"CUDA_VISIBLE_DEVICES={lease['grants'][0]['gpu_uuid']}" in environ
    assert "GPUSHARE_MEMORY_WALL=mig" in environ


def test_a_drained_instance_is_leased_to_nobody_and_its_neighbour_is(daemon: DaemonProcess) -> None:
    done = daemon.gpushare("drain", "0:0", "--reason", "for a demonstration")
    assert done.returncode == 0, done.stderr
    assert [gpus(daemon)[label]["mode"] for label in ("0", "0:0", "0:1")] == ["mig", "drained", "free"]
    assert label_of(ask(daemon, gpu="1")) == "0:1"
    assert daemon.gpushare("drain", "0", "--reason", "all of it").returncode == 0
    assert ask(daemon, gpu="1")["waiting"]["reason"] == "gpu_unhealthy"


def test_all_gpus_are_those_that_can_be_had_whole(daemon: DaemonProcess) -> None:
    """``--gpus all`` counts neither instances nor the GPU that is split into them."""
    container = daemon.run_container("--gpus", "all")
    lease = daemon.wait_lease(next(iter(daemon.leases())), "active")
    assert (label_of(lease), lease["container_id"]) == ("1", container)


def test_the_table_shows_the_instances_after_their_gpu(daemon: DaemonProcess) -> None:
    ask(daemon, gpu="1")
    done = daemon.gpushare("gpus", "-o", "columns=gpu,name,mode,leases,free", "--no-headers")
    rows = [" ".join(line.split()) for line in done.stdout.splitlines() if line.strip()]
    assert rows == [
        "0 NVIDIA A100-SXM4-80GB mig 0 -",
        "0:0 NVIDIA A100-SXM4-80GB MIG 1g.10gb exclusive 1 0, 0 MiB",
        "0:1 NVIDIA A100-SXM4-80GB MIG 1g.10gb free 0 1, 9.5 GiB",
        "0:2 NVIDIA A100-SXM4-80GB MIG 3g.40gb free 0 1, 39.2 GiB",
        "1 Tesla T4 free 0 1, 14.3 GiB",
    ]
    instance = gpus(daemon)["0:1"]
    assert instance["mig_profile"] == "1g.10gb"
    assert instance["parent_uuid"] == gpus(daemon)["0"]["uuid"]


def test_run_takes_an_instance_and_says_which(daemon: DaemonProcess) -> None:
    done = daemon.gpushare(
        *(
            "run",
            "--isolation",
            "mig",
            "--rm",
            "--network",
            "none",
            "--label",
            f"gpushared-test={daemon.directory.name}",
        ),
        *(parts.BUSYBOX_IMAGE, "sh", "-c", "echo $GPUSHARE_MEMORY_WALL"),
    )
    assert (done.stdout, done.returncode) == ("mig\n", 0), done.stderr


# --- instances that come and go ------------------------------------------------------------------------


@pytest.fixture
def on_driver(new_daemon: NewDaemon, docker_engine: str, tmp_path: Path) -> tuple[DaemonProcess, FakeMachine]:
    """A daemon, not started yet, on a driver with one GPU split into two instances."""
    library = fake_nvml_library(tmp_path / "nvml", named=True)
    instances = [FakeInstance(0, "MIG-a"), FakeInstance(1, "MIG-b")]
    machine = FakeMachine(tmp_path / "state", gpus=[FakeGpu("GPU-a", mig=1, instances=instances)])
    daemon = new_daemon(
        engine=docker_engine,
        simulate="",
        environment=machine.environment(library),
        config='[gpus]\nsample_seconds = 0.2\n[sharing]\nmps = "off"\n',
    )
    return daemon, machine


def test_instances_that_the_admin_makes_and_destroys_are_followed(
    on_driver: tuple[DaemonProcess, FakeMachine],
) -> None:
    """A lease on one that is destroyed ends and says why; who waits gets one that is made."""
    daemon, machine = on_driver
    daemon.start()
    first, second, waiting = (ask(daemon, gpu="1") for _ in range(3))
    assert [label_of(first), label_of(second), waiting["state"]] == ["0:0", "0:1", "queued"]
    machine.gpus[0].instances[0] = FakeInstance(4, "MIG-c")
    machine.write()
    ended = daemon.wait_lease(first["id"], "ended")
    assert ended["outcome"]["kind"] == "failed"
    assert ended["outcome"]["text"].startswith("its MIG instance was destroyed; ask for another one")
    assert label_of(daemon.wait_lease(waiting["id"], "reserved")) == "0:4"
    assert daemon.lease(second["id"])["state"] == "reserved"


def test_mig_without_instances_is_a_trouble_that_says_what_to_do(
    on_driver: tuple[DaemonProcess, FakeMachine],
) -> None:
    daemon, machine = on_driver
    machine.gpus[0].instances = []
    machine.write()
    daemon.start()
    assert "nvidia-smi mig -i 0 -cgi PROFILE -C" in gpus(daemon)["0"]["trouble"]
    with pytest.raises(Refused, match="never fits") as refused:
        ask(daemon, gpu="1")
    assert "`gpushare gpus` says how the admin makes some" in refused.value.hint
    machine.gpus[0].instances = [FakeInstance(0, "MIG-a")]
    machine.write()
    wait_until(lambda: "0:0" in gpus(daemon), "the new instance is seen")
    assert label_of(ask(daemon, gpu="1")) == "0:0"
