"""Administering a pool on one of its nodes: a real node and a real coordinator, each a process."""

from __future__ import annotations

import pwd
from collections.abc import Iterator

import pytest

from gpushared.client.pool import PoolClient
from gpushared.domain.errors import DaemonUnavailable, PermissionRefused
from tests.node.conftest import NewDaemon
from tests.node.daemon import DaemonProcess, Json, Refused, make_directory, wait_until
from tests.pool.processes import CoordinatorProcess

ADMIN, USER = pwd.getpwnam("games").pw_uid, pwd.getpwnam("lp").pw_uid
USERS = """
[users.ada]
principals = ["games@ws1"]
admin = true
"""
CALLS: dict[str, Json] = {
    "PoolAdmin/Status": {},
    "PoolAdmin/DrainNode": {"node": "ws1", "reason": "new fan"},
    "PoolAdmin/ForgetNode": {"node": "ws2", "is_off": True},
}


@pytest.fixture
def coordinator() -> Iterator[CoordinatorProcess]:
    made = CoordinatorProcess(make_directory(), config=USERS)
    made.start()
    yield made
    made.dispose()


@pytest.fixture
def member(new_daemon: NewDaemon, coordinator: CoordinatorProcess) -> DaemonProcess:
    """A node of the pool, which has no Docker engine."""
    node = new_daemon(config='[node]\nname = "ws1"\n')
    node.start()
    token = coordinator.admin.create_join_token(node="ws1").token
    node.call("Node/Join", {"address": coordinator.address, "token": token, "name": "ws1"})
    wait_until(lambda: presence(node) == "ready", "the node is connected")
    return node


def presence(node: DaemonProcess) -> str:
    try:
        (one,) = node.call("Jobs/Nodes")["nodes"]
    except Refused:
        return "away"
    return str(one["presence"])


def test_a_persons_right_is_judged_by_the_coordinators_table_of_users(
    member: DaemonProcess, coordinator: CoordinatorProcess
) -> None:
    """Root of a node is nobody special in the pool."""
    for uid in (0, USER):
        for call, asked in CALLS.items():
            with pytest.raises(Refused, match="permission_denied") as refused:
                member.call(call, asked, uid=uid)
            assert "only admins of the pool may do that" in refused.value.message
            assert "admin = true" in refused.value.hint
    drained = member.call("PoolAdmin/DrainNode", CALLS["PoolAdmin/DrainNode"], uid=ADMIN)
    assert "gets no new work" in drained["sentences"][0]
    assert presence(member) == "drained"
    member.call("PoolAdmin/DrainNode", {"node": "ws1", "undrain": True}, uid=ADMIN)
    assert presence(member) == "ready"
    assert member.call("PoolAdmin/Status", uid=ADMIN)["pool"] == "lab"
    coordinator.end()
    with pytest.raises(Refused) as away:
        member.call("PoolAdmin/Status", uid=ADMIN)
    assert away.value.code in {"unavailable", "deadline_exceeded"}


def test_the_command_asks_the_coordinator_here_and_else_the_node(
    member: DaemonProcess, coordinator: CoordinatorProcess
) -> None:
    """Of what is not for nodes it is said that it is for the coordinator's machine."""
    node = f"unix://{member.socket}"
    with pytest.raises(PermissionRefused, match="root@ws1 is none here"):
        PoolClient("/nonexistent/pool.sock", node=node).drain_node("ws1", "why")
    with pytest.raises(DaemonUnavailable, match="no coordinator of a pool answers"):
        PoolClient("/nonexistent/pool.sock", node=node).create_join_token(node="ws2")
    with pytest.raises(DaemonUnavailable, match="and no node"):
        PoolClient("/nonexistent/pool.sock", node="unix:///nonexistent/node.sock").status()
    assert "gets no new work" in coordinator.admin.drain_node("ws1", "why")[0]


def test_a_node_that_is_in_no_pool_says_so(lone_daemon: DaemonProcess) -> None:
    with pytest.raises(Refused, match="in no pool") as refused:
        lone_daemon.call("PoolAdmin/Status")
    assert "gpushare node join" in refused.value.hint
