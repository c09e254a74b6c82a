"""Three coordinators on an etcd of three, made by the script: the one that leads is killed under what users do."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bed import parts
from tests.quickstart.machines import NODES, PATIENCE_SECONDS, Machines, in_a_terminal, running

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(os.getuid() != 0, reason="only root makes networks"),
]
PARTS = 100
ROLES = ["leader", "standby", "standby"]


@pytest.fixture(scope="module")
def machines(
    docker_cli: Path, docker_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Machines]:
    cache = tmp_path_factory.mktemp("cache")
    (cache / "etcd").symlink_to(parts.need_file("etcd", parts.ETCD).parents[1])
    with running(docker_environment, cache, "--ha") as made:
        yield made


def status_of(machines: Machines, node: str) -> dict[str, Any]:
    """What the coordinator on a machine says of the pool to root; nothing while it starts."""
    socket = machines.run_dir / node / "coordinator/gpushared-pool.sock"
    done = machines.shell(
        f"GPUSHARE_RETRY_SECONDS=0 GPUSHARE_POOL_SOCKET={socket} gpushare pool status -o json"
    )
    return dict(json.loads(done.stdout)["items"][0]) if done.returncode == 0 else {"role": "", "epoch": 0}


def wait_for_roles(machines: Machines, *, above: int = 0) -> dict[str, str]:
    """Each machine's role, when one leads with a later epoch and the others stand by."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        statuses = {node: status_of(machines, node) for node in NODES}
        roles = {node: str(one["role"]) for node, one in statuses.items()}
        if Counter(roles.values()) == Counter(ROLES) and all(
            one["epoch"] > above for one in statuses.values()
        ):
            return roles
        assert time.monotonic() < until, statuses


def kill_leader(machines: Machines) -> int:
    """Kill it, and return its epoch."""
    leader = next(node for node, role in wait_for_roles(machines).items() if role == "leader")
    epoch = int(status_of(machines, leader)["epoch"])
    machines.kill(f"{leader}/coordinator.pid")
    return epoch


def test_a_hundred_jobs_run_once_each_while_the_leader_is_killed(machines: Machines) -> None:
    """Commands on the machines find the leader that comes next."""
    command = "echo part $GPUSHARE_ARRAY_INDEX >>/out/done; sleep 1"
    submit = f"gpushare submit --pool --array 0-{PARTS - 1} --gpu 0.25"
    array = machines.printed(f"{submit} -v $shared:/out busybox sh -c '{command}'").strip()
    machines.wait_for_jobs(array, running=1)
    epoch = kill_leader(machines)
    assert set(machines.nodes()) == set(NODES)
    machines.printed(f"gpushare wait {array}")
    assert machines.done_parts() == Counter(f"part {number}" for number in range(PARTS))
    wait_for_roles(machines, above=epoch)
    for node in NODES:
        machines.wait_for_node(node, "ready")


def test_a_terminal_on_another_machine_outlives_the_leader(machines: Machines) -> None:
    """Words that are typed while nobody leads arrive when somebody does."""
    run = machines.told("gpushare run --pool")
    assert "-it" in run
    output, code = in_a_terminal(
        f"{machines.told('export GPUSHARE_HOST=')}\n{run}",
        "echo still $((6 * 7)); exit 5\n",
        machines.environ,
        before=lambda: kill_leader(machines),
    )
    assert "is on node b" in output
    assert "still 42" in output
    assert code == 5
