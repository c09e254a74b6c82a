"""Where leases go: models, distance, the machine's memory, and policies, with real containers."""

from __future__ import annotations

import psutil
import pytest

from tests.bed.fixtures import CdiEngine
from tests.node.conftest import NewDaemon
from tests.node.daemon import DaemonProcess, Json, Refused, wait_until
from tests.node.test_cli_and_daemon import running

MIB = 1024**2


@pytest.fixture
def mixed(new_daemon: NewDaemon, docker_engine: str) -> DaemonProcess:
    """A daemon with a large GPU and a small one of another model, on the plain engine."""
    started = new_daemon(engine=docker_engine, simulate="h100,t4")
    started.start()
    return started


def much_memory() -> int:
    """Three fifths of what this machine has: once there is room for it, twice there is not."""
    return psutil.virtual_memory().total * 3 // 5 // MIB * MIB


def names_of(lease: Json) -> list[str]:
    return [grant["gpu_name"] for grant in lease["grants"]]


def story_of(daemon: DaemonProcess, *words: str) -> str:
    with running(daemon, *words) as command:
        out, _ = command.communicate(timeout=60)
    return out


@pytest.mark.parametrize(("model", "name"), [("h100", "NVIDIA H100 80GB HBM3"), ("T4", "Tesla T4")])
def test_a_model_picks_the_gpu_that_is_called_so(mixed: DaemonProcess, model: str, name: str) -> None:
    (uuid,) = (gpu["uuid"] for gpu in mixed.call("Gpus/List")["gpus"] if gpu["name"] == name)
    words = ["run", "--gpu", "0.25", "--model", model, "--rm", *mixed.container_options()]
    with running(mixed, *words, "sh", "-c", "echo $CUDA_VISIBLE_DEVICES") as run:
        out, _ = run.communicate(timeout=60)
    assert (run.returncode, out.strip()) == (0, uuid)


def test_leases_of_one_project_share_a_gpu_where_the_configuration_says_so(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(config='[placement]\ntogether = "project"\n')
    daemon.start()
    asks = (("0.5", 61001), ("0.75", 61002), ("0.25", 61001), ("0.25", 61002))
    leases = [daemon.request(gpu, uid=uid) for gpu, uid in asks]
    assert [lease["grants"][0]["gpu_index"] for lease in leases] == [0, 1, 0, 1]


def test_a_model_that_the_node_has_not_is_refused_with_those_that_it_has(mixed: DaemonProcess) -> None:
    words = ["run", "--gpu", "0.25", "--model", "b200", "--rm", *mixed.container_options(), "true"]
    with running(mixed, *words) as run:
        _, err = run.communicate(timeout=60)
    assert run.returncode == 125
    assert "no GPU of this node is a 'b200'" in err
    assert "its models: NVIDIA H100 80GB HBM3, Tesla T4" in err


def test_a_label_names_a_model_for_compose_and_the_sdks(mixed: DaemonProcess) -> None:
    mixed.run_container("--label", "gpushare.gpu=0.25", "--label", "gpushare.model=h100")
    (lease,) = mixed.leases().values()
    assert names_of(lease) == lease["models"] == ["NVIDIA H100 80GB HBM3"]


def test_a_lease_keeps_away_from_another(daemon: DaemonProcess) -> None:
    first = daemon.hold("0.25")
    beside, away = daemon.request("0.25"), daemon.request("0.25", away_from=[first["id"]])
    gpus = [lease["grants"][0]["gpu_index"] for lease in (first, beside, away)]
    assert gpus == [0, 0, 1]
    waits = daemon.request("0.25", away_from=[first["id"], away["id"]])
    assert waits["waiting"]["reason"] == "away_from"
    assert away["id"] in waits["waiting"]["text"]
    daemon.call("Leases/Release", {"lease_id": away["id"]})
    assert names_of(daemon.wait_lease(waits["id"], "reserved")) == ["NVIDIA H100 80GB HBM3"]


def test_a_lease_that_nobody_knows_cannot_be_kept_away_from(daemon: DaemonProcess) -> None:
    with pytest.raises(Refused, match="there is no lease"):
        daemon.request("0.25", away_from=["l-zzzz"])


def test_the_machine_s_memory_holds_a_lease_back_and_it_says_so(daemon: DaemonProcess) -> None:
    memory = str(much_memory())
    holder = daemon.run_container("--label", "gpushare.gpu=0.25", "--memory", memory)
    (first,) = daemon.leases().values()
    assert first["host_memory_bytes"] == memory
    words = ["run", "--gpu", "0.25", "--rm", "-m", memory, "--cpus", "0.5", *daemon.container_options()]
    with running(daemon, *words, "true") as run:
        wait_until(lambda: len(daemon.leases()) == 2, "the second waits")
        (second,) = (one for one in daemon.leases().values() if one["id"] != first["id"])
        assert (second["waiting"]["reason"], second["host_cpu_milli"]) == ("host_resources", "500")
        story = story_of(daemon, "why", second["id"])
        assert "of the host's memory" in story
        assert "(host_resources)" in story
        assert "0.5 CPUs" in story
        daemon.request("0.25")  # who says nothing of the machine is not held back
        daemon.check("rm", "-f", holder)
        assert run.wait(60) == 0


def test_more_memory_than_the_machine_has_is_refused_at_once(daemon: DaemonProcess) -> None:
    with pytest.raises(Refused, match="this machine has not got") as refused:
        daemon.request("0.25", host_memory_bytes=2 * psutil.virtual_memory().total)
    assert "give a smaller --memory" in refused.value.hint


def test_a_container_that_gets_its_lease_at_its_start_brings_its_limits(
    new_daemon: NewDaemon, cdi_engine: CdiEngine
) -> None:
    daemon = new_daemon(engine=cdi_engine.socket)
    daemon.start()
    daemon.run_container("--label", "gpushare.gpu=0.25", "--memory", "64m", "--cpu-quota", "150000")
    (lease,) = daemon.leases().values()
    assert (lease["host_memory_bytes"], lease["host_cpu_milli"]) == (str(64 * MIB), "1500")


@pytest.mark.parametrize(("policy", "gpus"), [("pack", [0, 0]), ("spread", [0, 1])])
def test_the_policy_of_the_configuration_decides_among_the_gpus(
    new_daemon: NewDaemon, policy: str, gpus: list[int]
) -> None:
    daemon = new_daemon(environment={"GPUSHARED_PLACEMENT__POLICY": policy})
    daemon.start()
    leases = [daemon.request("0.25") for _ in gpus]
    assert [lease["grants"][0]["gpu_index"] for lease in leases] == gpus


def test_two_gpus_that_nvlink_joins_go_together_and_the_listing_shows_them(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(simulate="h100:4@2")
    daemon.start()
    one = daemon.request("1")
    pair = daemon.request("2")
    assert [grant["gpu_index"] for grant in (*one["grants"], *pair["grants"])] == [0, 2, 3]
    table = story_of(daemon, "gpus", "-o", "columns=gpu,linked")
    rows = [line.split() for line in table.splitlines() if line[:1].isspace() or line[:1].isdigit()]
    assert [row for row in rows if row[0].isdigit()] == [["0", "0"], ["1", "0"], ["2", "2"], ["3", "2"]]


def test_the_machine_is_not_counted_where_the_configuration_says_so(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(environment={"GPUSHARED_PLACEMENT__HOST": "off"})
    daemon.start()
    lease = daemon.request("0.25", host_memory_bytes=2 * psutil.virtual_memory().total)
    assert lease["state"] == "reserved"


def test_terms_of_placement_outlive_a_restart(daemon: DaemonProcess) -> None:
    first = daemon.hold("0.25")
    second = daemon.request(
        "0.25", models=["h100"], away_from=[first["id"]], near=[first["id"]], host_cpu_milli=250
    )
    daemon.kill()
    daemon.start()
    again = daemon.lease(second["id"])
    terms = ("models", "near", "away_from", "host_cpu_milli", "host_memory_bytes", "grants")
    assert [again[term] for term in terms] == [second[term] for term in terms]
