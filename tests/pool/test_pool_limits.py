"""Where limits count: a real coordinator and two real nodes, each with two simulated GPUs.

The project vision has a limit of one GPU in the pool, and of one GPU on node b.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.bed import parts
from tests.node.daemon import GPUSHARE, DaemonProcess, make_directory
from tests.pool.failures.machine import wait_until
from tests.pool.processes import CoordinatorProcess

IN_THE_POOL = """
[users.ada]
principals = ["root@a", "root@b"]

[projects.vision]
users = ["ada"]
limit = 1

[nodes]
beat_seconds = 0.5
"""
ON_NODE_B = '\n[projects.vision]\nusers = ["root", "nobody"]\nlimit = 1\n'
ACCOUNTS = '\n[pool.accounts]\n"root@a" = "nobody"\n'


class Pool:
    """``coordinator`` may be ended and started again; ``a`` and ``b`` are nodes on which root is ada."""

    def __init__(self, engine: str) -> None:
        self.coordinator = CoordinatorProcess(make_directory(), IN_THE_POOL)
        self.a, self.b = _node("a", engine), _node("b", engine, ON_NODE_B)

    def start(self) -> None:
        self.coordinator.start()
        for name, node in (("a", self.a), ("b", self.b)):
            node.start()
            token = self.coordinator.admin.create_join_token(node=name).token
            node.call("Node/Join", {"address": self.coordinator.address, "token": token, "name": name})

    def dispose(self) -> None:
        for node in (self.a, self.b):
            node.dispose()
        self.coordinator.dispose()


def _node(name: str, engine: str, config: str = "") -> DaemonProcess:
    return DaemonProcess(
        make_directory(), engine=engine, config=f'[node]\nname = "{name}"\n{config}{ACCOUNTS}'
    )


@pytest.fixture
def pool(docker_engine: str) -> Iterator[Pool]:
    made = Pool(docker_engine)
    try:
        made.start()
        yield made
    finally:
        made.dispose()


def test_a_limit_of_the_pool_counts_its_jobs_and_not_what_nodes_give_their_users(pool: Pool) -> None:
    """Nor does a node without its coordinator, which kept shares of limits as older versions did, refuse."""
    for _ in range(2):
        pool.a.wait_lease(pool.a.request("0.8")["id"], "reserved")
    first, second = submit(pool.a, "0.8"), submit(pool.a, "0.8")
    wait_until(pool.b.leases, "the pool's job is on the node that has room")
    wait_until(lambda: "its limit is 1 GPU" in story(pool.a, second), "the other job waits for the limit")
    assert "its limit is 1 GPU" not in story(pool.a, first)
    gpushare(pool.a, "cancel", "--all")
    pool.coordinator.end()
    pool.a.kill()
    shares = '{"pool":"lab","revision":3,"shares":[{"project":"vision","model":"","permille":0}],"users":{}}'
    (membership,) = pool.a.state_dir.rglob("membership.json")
    membership.with_name("allowance.json").write_text(shares)
    pool.a.start()
    pool.a.wait_lease(pool.a.request("0.1")["id"], "reserved")


def test_a_limit_of_a_node_counts_all_that_starts_there(pool: Pool) -> None:
    """The pool's jobs too, which go to another node then."""
    pool.b.wait_lease(pool.b.request("0.8")["id"], "reserved")
    waits = pool.b.request("0.8")["id"]
    assert pool.b.lease(waits)["waiting"]["reason"] == "project_limit"
    submit(pool.a, "0.8")
    wait_until(pool.a.leases, "the pool's job is on the node without a limit")
    gpushare(pool.a, "cancel", "--all")


def submit(node: DaemonProcess, gpu: str) -> str:
    return gpushare(node, "submit", "--pool", "--gpu", gpu, parts.BUSYBOX_IMAGE, "sleep", "60").strip()


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
