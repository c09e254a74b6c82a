"""Containers that start with what is there, and compute that others leave, on a real engine."""

from __future__ import annotations

import json
import re
import shlex
from argparse import REMAINDER, ArgumentParser, Namespace
from pathlib import Path

import pytest

from tests.bed.fixtures import CdiEngine
from tests.node.conftest import NewDaemon
from tests.node.daemon import DaemonProcess, Json, Refused, wait_until

GIB = 1024**3
HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "elastic.md"


def env_of(daemon: DaemonProcess, container: str) -> dict[str, str]:
    """Of its main process, as the engine started it."""
    text = Path(f"/proc/{daemon.pid_of(container)}/environ").read_text()
    return dict(line.split("=", 1) for line in text.split("\0") if "=" in line)


def share_of(daemon: DaemonProcess, container: str) -> list[str]:
    """The least, the granted and the largest share of the compute, as its main process was told."""
    env = env_of(daemon, container)
    return [env[f"GPUSHARE_COMPUTE_PERCENT{end}"] for end in ("_MIN", "", "_MAX")]


def fill(daemon: DaemonProcess, *sizes: str) -> list[Json]:
    return [daemon.request(size) for size in sizes]


def test_a_range_starts_large_where_there_is_much(daemon: DaemonProcess) -> None:
    lease = daemon.hold("0.25..1")
    assert lease["asks"] == "0.25..1"
    assert share_of(daemon, lease["container_id"]) == ["25", "100", "100"]
    assert sorted(daemon.free_permille()) == [0, 1000]


def test_a_range_starts_small_where_there_is_little(daemon: DaemonProcess) -> None:
    fill(daemon, "0.9", "0.6")
    lease = daemon.hold("0.25..1")
    container = lease["container_id"]
    assert share_of(daemon, container) == ["25", "40", "100"]
    env = env_of(daemon, container)
    (grant,) = lease["grants"]
    assert env["GPUSHARE_MEMORY_BYTES"] == grant["memory_bytes"]
    assert round(int(env["GPUSHARE_MEMORY_BYTES_MIN"]) / GIB) == 20
    lease_file = json.loads(daemon.check("exec", container, "cat", "/run/gpushare/lease.json"))["gpus"][0]
    assert [lease_file[f"compute_{end}percent"] for end in ("min_", "", "max_")] == [25, 40, 100]
    granted = re.compile(r"granted on GPU \d: 31.5 GiB and 0.4 of the compute")
    assert any(map(granted.search, daemon.story(lease["id"])))


def test_a_range_waits_for_its_least(daemon: DaemonProcess) -> None:
    full, _ = fill(daemon, "0.9", "0.9")
    waits = daemon.request("0.25..1")
    assert waits["waiting"]["text"].startswith("needs at least 19.7 GiB and 0.25 of the compute on one GPU")
    daemon.call("Leases/Release", {"lease_id": full["id"]})
    assert daemon.lease(waits["id"])["grants"][0]["compute_permille"] == 1000


def test_a_label_is_a_range_too(daemon: DaemonProcess) -> None:
    fill(daemon, "0.5", "0.75")
    container = daemon.run_container("--label", "gpushare.gpu-memory=8g..60g", "--label", "gpushare.gpu=0.1")
    env = env_of(daemon, container)
    assert round(int(env["GPUSHARE_MEMORY_BYTES"]) / GIB) == 39
    assert (env["GPUSHARE_COMPUTE_PERCENT"], int(env["GPUSHARE_MEMORY_BYTES_MIN"])) == ("10", 8 * GIB)


def test_a_container_grows_at_its_next_start_where_settings_are_given_anew(
    new_daemon: NewDaemon, cdi_engine: CdiEngine
) -> None:
    daemon = new_daemon(engine=str(cdi_engine.socket))
    daemon.start()
    others = fill(daemon, "0.75", "0.75")
    container = daemon.run_container("--label", "gpushare.gpu=0.25..1")
    wait_until(lambda: daemon.pid_of(container), "it runs")
    assert share_of(daemon, container) == ["25", "25", "100"]
    daemon.call("Leases/Release", {"lease_id": others[0]["id"]})
    assert share_of(daemon, container) == ["25", "25", "100"]
    daemon.check("stop", container)
    daemon.check("start", container)
    assert share_of(daemon, container) == ["25", "100", "100"]


def test_without_cdi_it_starts_again_with_the_size_that_it_was_created_with(daemon: DaemonProcess) -> None:
    others = fill(daemon, "0.75", "0.75")
    lease = daemon.hold("0.25..1")
    daemon.call("Leases/Release", {"lease_id": others[0]["id"]})
    daemon.check("stop", lease["container_id"])
    daemon.wait_lease(lease["id"], "ended")
    daemon.check("start", lease["container_id"])
    (again,) = [one for one in daemon.leases().values() if one.get("container_id")]
    assert again["grants"][0]["compute_permille"] == 250
    assert share_of(daemon, lease["container_id"]) == ["25", "25", "100"]


def test_a_resize_to_a_range_gets_what_is_free_now(daemon: DaemonProcess) -> None:
    lease = daemon.hold("0.25..0.5")

    def resized(size: str) -> Json:
        return daemon.call("Leases/Resize", {"lease_id": lease["id"], "gpu": size})

    daemon.request("0.25")
    answer = resized("0.25..1")
    assert answer["effects"][0] == "booked now: 59.1 GiB and 75% of the compute on GPU 0"
    assert (answer["lease"]["asks"], resized("0.3")["lease"]["asks"]) == ("0.25..1", "0.3")
    with pytest.raises(Refused, match="keeps this number of GPUs"):
        resized("1..4")


# --- compute that others leave -------------------------------------------------------------------------


def test_compute_that_others_leave_is_told_and_not_booked(
    new_daemon: NewDaemon, docker_engine: str, mps_control_binary: Path
) -> None:
    config = f'[sharing]\nmps_binary = "{mps_control_binary}"\n'
    daemon = new_daemon(engine=docker_engine, config=config)
    daemon.start()
    container = daemon.run_container("--label", "gpushare.gpu-compute=25%..100%")
    env = env_of(daemon, container)
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "100"
    assert (env["GPUSHARE_COMPUTE_PERCENT"], env["GPUSHARE_COMPUTE_LIMIT_PERCENT"]) == ("25", "100")
    assert sorted(daemon.free_permille()) == [750, 1000]
    assert daemon.gpushare_says("ps", "--no-headers", "-o", "columns=share,asks").splitlines()[
        -1
    ].split() == [
        *("25..100%", "0.25", "with", "25..100%", "compute"),
    ]
    lease, *_ = daemon.leases()
    done = daemon.gpushare_says("resize", lease, "--gpu-compute", "50%..80%")
    assert "50% of the compute (and up to 80% where it is free)" in done
    assert "gets 80%" in done


# --- whole GPUs and launchers --------------------------------------------------------------------------


def documented() -> list[list[str]]:
    """The words of the how-to's command lines that start torchrun."""
    lines = re.findall(r"^\$ (gpushare run .*torchrun.*)$", HOW_TO.read_text(), re.MULTILINE)
    assert len(lines) == 2
    return [shlex.split(line) for line in lines]


def torchrun() -> ArgumentParser:
    """What https://docs.pytorch.org/docs/stable/elastic/run.html says that torchrun takes."""
    parser = ArgumentParser("torchrun", exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--standalone", action="store_true")
    parser.add_argument("--nnodes", type=nodes)
    parser.add_argument("--nproc-per-node", type=int)
    parser.add_argument("--max-restarts", type=int)
    for name in ("--rdzv-id", "--rdzv-backend", "--rdzv-endpoint"):
        parser.add_argument(name)
    parser.add_argument("script")
    parser.add_argument("rest", nargs=REMAINDER)
    return parser


def nodes(text: str) -> tuple[int, int]:
    """``N`` or ``MIN:MAX``."""
    low, _, high = text.partition(":")
    return int(low), int(high or low)


def started(daemon: DaemonProcess, words: list[str]) -> tuple[Namespace, Json]:
    """What torchrun would be given by a documented command line in a container here, and its lease."""
    gpu, script = words[words.index("--gpu") + 1], words[-1]
    assert words[-3:-1] == ["sh", "-c"]
    lease = daemon.hold(gpu, command=("sh", "-c", f"echo {script}; sleep 1000"))
    wait_until(lambda: daemon.check("logs", lease["container_id"]), "it has said its words")
    program, *options = shlex.split(daemon.check("logs", lease["container_id"]))
    assert program == "torchrun"
    return torchrun().parse_args(options), lease


def test_torchrun_starts_a_process_for_each_gpu_that_there_is(
    new_daemon: NewDaemon, docker_engine: str
) -> None:
    """The first command line of the how-to, with five GPUs of which three are free, then one."""
    daemon = new_daemon(engine=docker_engine, simulate="h100:5")
    daemon.start()
    fill(daemon, "1", "0.5")
    one, _ = documented()
    said, lease = started(daemon, one)
    assert (said.nproc_per_node, said.nnodes, said.standalone) == (3, (1, 1), True)
    assert (said.script, said.rest) == ("train.py", ["--epochs", "10"])
    env = env_of(daemon, lease["container_id"])
    assert [env[f"GPUSHARE_GPU_COUNT{end}"] for end in ("_MIN", "", "_MAX")] == ["1", "3", "4"]
    assert len(env["CUDA_VISIBLE_DEVICES"].split(",")) == 3
    assert env["GPUSHARE_MEMORY_WALL"] == "whole-gpu"


def test_torchrun_as_one_node_of_several_takes_the_gpus_of_its_container(
    new_daemon: NewDaemon, docker_engine: str
) -> None:
    daemon = new_daemon(engine=docker_engine, simulate="h100:5")
    daemon.start()
    _, many = documented()
    first, _ = started(daemon, many)
    second, _ = started(daemon, many)
    assert [one.nproc_per_node for one in (first, second)] == [4, 1]
    assert (first.nnodes, first.max_restarts, first.script) == ((1, 4), 3, "train.py")
    assert (first.rdzv_backend, first.rdzv_endpoint) == ("c10d", "node1:29400")
