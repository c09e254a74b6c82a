"""A limit of the pool, and what its nodes give by themselves: a real coordinator, two real nodes.

Each node has two simulated GPUs. The project vision may hold one GPU in the whole pool.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.bed import parts
from tests.node.daemon import GPUSHARE, DaemonProcess, Json, Refused, make_directory
from tests.pool.failures.machine import wait_until
from tests.pool.processes import CoordinatorProcess

LIMIT = """
[users.ada]
principals = ["root@a", "root@b"]

[projects.vision]
users = ["ada"]
limit = 1

[nodes]
beat_seconds = 0.5
"""


class Pool:
    """``coordinator`` may be ended and started again; ``a`` and ``b`` are nodes on which root is ada."""

    def __init__(self, engine: str) -> None:
        self.coordinator = CoordinatorProcess(make_directory(), LIMIT)
        self.a, self.b = (_node(name, engine) for name in "ab")

    def start(self) -> None:
        self.coordinator.start()
        for name, node in (("a", self.a), ("b", self.b)):
            node.start()
            token = self.coordinator.admin.create_join_token(node=name).token
            node.call("Node/Join", {"address": self.coordinator.address, "token": token, "name": name})
        for node in (self.a, self.b):
            wait_until(lambda node=node: share(node), "the node knows of its share")  # type: ignore[misc]

    def dispose(self) -> None:
        for node in (self.a, self.b):
            node.dispose()
        self.coordinator.dispose()


def _node(name: str, engine: str) -> DaemonProcess:
    return DaemonProcess(make_directory(), engine=engine, config=f'[node]\nname = "{name}"\n')


@pytest.fixture
def pool(docker_engine: str) -> Iterator[Pool]:
    made = Pool(docker_engine)
    try:
        made.start()
        yield made
    finally:
        made.dispose()


def share(node: DaemonProcess) -> Json:
    """What a node may give to vision by itself, empty where it does not know."""
    shares = node.call("Projects/List").get("pool_shares", [])
    found: Json = shares[0] if shares else {}
    return found


def trouble(node: DaemonProcess) -> str:
    return str(share(node).get("trouble", ""))


def held(node: DaemonProcess) -> list[str]:
    return sorted(name for name, lease in node.leases().items() if lease["state"] == "reserved")


def why(node: DaemonProcess, lease: str) -> tuple[str, str]:
    waiting = node.lease(lease)["waiting"]
    return str(waiting["reason"]), str(waiting["text"])


def test_nodes_share_a_limit_by_demand_and_wait_for_each_other(pool: Pool) -> None:
    """What one gives back the other may give, and the sentence says what is held and by whose word."""
    first = pool.a.request("0.6")["id"]
    pool.a.wait_lease(first, "reserved")
    second = pool.b.request("0.6")["id"]
    wait_until(lambda: why(pool.b, second)[0] == "pool_allowance", "b may give no more")
    assert "pool lab limits project vision" in why(pool.b, second)[1]
    small = pool.b.request("0.4")["id"]
    pool.a.call("Leases/Release", {"lease_id": first})
    pool.b.wait_lease(second, "reserved")
    pool.b.wait_lease(small, "reserved")
    wait_until(lambda: share(pool.b)["held_permille"] == 1000, "b holds all of the limit")


def test_a_node_that_is_cut_off_gives_what_it_was_allowed_and_no_more(pool: Pool) -> None:
    """Over a restart too; its share is kept for it meanwhile, and when the pool is back it gets more."""
    wait_until(lambda: share(pool.a)["permille"] == share(pool.b)["permille"] == 250, "each has a slice")
    pool.coordinator.end()
    for node in (pool.a, pool.b):
        wait_until(lambda node=node: trouble(node) == "away", "it knows that it is cut off")  # type: ignore[misc]
    pool.a.wait_lease(pool.a.request("0.2")["id"], "reserved")
    with pytest.raises(Refused, match="which could allow more, is away"):
        pool.a.request("0.2", immediate=True)
    pool.a.kill()
    pool.a.start()
    with pytest.raises(Refused, match="which could allow more, is away"):
        pool.a.request("0.2", immediate=True)
    waiting = pool.a.request("0.7")["id"]
    assert why(pool.a, waiting)[0] == "pool_allowance"
    pool.coordinator.start()
    pool.a.wait_lease(waiting, "reserved")
    with pytest.raises(Refused, match="pool lab limits project vision"):
        pool.b.request("0.2", immediate=True)


def test_a_job_of_the_pool_waits_for_what_a_node_gave_by_itself(pool: Pool) -> None:
    given = pool.a.request("0.8")["id"]
    pool.a.wait_lease(given, "reserved")
    wait_until(lambda: share(pool.a)["held_permille"] == 800, "the coordinator knows")
    job = submit(pool.b, "0.5")
    wait_until(lambda: "its limit is 1 GPU" in story(pool.b, job), "the job waits for the limit")
    pool.a.call("Leases/Release", {"lease_id": given})
    wait_until(lambda: "its limit is 1 GPU" not in story(pool.b, job), "the job is placed")


def test_what_a_node_may_give_is_shown_with_the_projects(pool: Pool) -> None:
    wait_until(lambda: share(pool.a)["permille"] == 250, "it has a slice")
    shown = gpushare(pool.a, "project", "ls")
    assert "pool lab: this node may give 0.25 GPU to vision by itself, 0 held, said" in shown
    listed = json.loads(gpushare(pool.a, "project", "ls", "-o", "json"))
    assert [one["project"] for one in listed["pool_shares"]] == ["vision"]


def submit(node: DaemonProcess, gpu: str) -> str:
    return gpushare(node, "submit", "--pool", "--gpu", gpu, "busybox", "true").strip()


def story(node: DaemonProcess, job: str) -> str:
    return gpushare(node, "why", job)


def gpushare(node: DaemonProcess, *words: str) -> str:
    done = subprocess.run(
        [GPUSHARE, *words],
        env={
            **os.environ,
            "GPUSHARE_HOST": f"unix://{node.socket}",
            "PATH": f"{parts.DOCKER.parent}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
