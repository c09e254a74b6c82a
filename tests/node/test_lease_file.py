"""What a container reads of its lease, on engines that give it its device at the create and at each start."""

from __future__ import annotations

import json

import pytest

from tests.bed.fixtures import CdiEngine
from tests.node.conftest import NewDaemon
from tests.node.daemon import DaemonProcess


@pytest.fixture(
    params=[
        pytest.param("docker_engine", marks=pytest.mark.docker),
        pytest.param("cdi_engine", marks=pytest.mark.cdi),
    ]
)
def daemon(new_daemon: NewDaemon, request: pytest.FixtureRequest) -> DaemonProcess:
    engine: str | CdiEngine = request.getfixturevalue(request.param)
    started = new_daemon(engine=engine if isinstance(engine, str) else engine.socket)
    started.start()
    return started


def test_a_container_can_read_its_lease_whoever_it_runs_as(daemon: DaemonProcess) -> None:
    lease = daemon.hold("0.25", "--user", "1234:1234")
    lease_file = json.loads(daemon.check("exec", lease["container_id"], "cat", "/run/gpushare/lease.json"))
    (grant,) = daemon.lease(lease["id"])["grants"]
    assert (lease_file["lease"], lease_file["memory_wall"]) == (
        lease["id"],
        daemon.lease(lease["id"])["memory_wall"],
    )
    assert (lease_file["gpus"][0]["uuid"], lease_file["gpus"][0]["memory_bytes"]) == (
        grant["gpu_uuid"],
        int(grant["memory_bytes"]),
    )
    assert lease_file["simulated"] is True


def test_a_container_started_again_reads_its_new_lease(daemon: DaemonProcess) -> None:
    container = daemon.run_container("--label", "gpushare.gpu=0.25")
    old = daemon.check("exec", container, "cat", "/run/gpushare/lease.json")
    daemon.check("stop", container)
    daemon.check("start", container)
    new = daemon.check("exec", container, "cat", "/run/gpushare/lease.json")
    assert json.loads(new)["lease"] != json.loads(old)["lease"]
    assert json.loads(new)["lease"] in daemon.leases()
