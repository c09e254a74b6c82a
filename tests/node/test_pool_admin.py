"""Administering a pool on one of its nodes: a real node and a real coordinator, each a process."""

from __future__ import annotations

import base64
import hashlib
import json
import pwd
from collections.abc import Iterator

import pytest

from gpushared.client.pipeline import JobRequest, Pool
from gpushared.client.pool_calls import PoolClient
from gpushared.domain.model.errors import DaemonUnavailable, PermissionRefused
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
BODY = b'{"Image":"busybox","HostConfig":{}}'
SUBMITTED: Json = {
    "lease": {"gpu": "0.25"},
    "image": "busybox",
    "create_body": base64.b64encode(BODY).decode(),
    "pool": True,
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
    config = '[node]\nname = "ws1"\n[pool.accounts]\n"games@ws1" = "games"\n'
    node = new_daemon(config=config)
    node.start()
    token = coordinator.admin.create_join_token(node="ws1").token
    node.call("Node/Join", {"address": coordinator.address, "token": token, "name": "ws1"})
    wait_until(lambda: presence(node) == "ready", "the node is connected")
    return node


def presence(node: DaemonProcess) -> str:
    try:
        answer = node.call("Jobs/Nodes")
    except Refused:
        return "away"
    (one,) = answer["nodes"]
    return str(one["presence"]) if answer["pool"] else "in no pool"


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


def test_an_administrator_of_the_pool_sees_the_jobs_of_others_from_a_node(
    member: DaemonProcess, coordinator: CoordinatorProcess
) -> None:
    """Though the person is nobody special on the node. Who is so in neither is refused."""
    token = coordinator.token_file("eve", "submit")
    with Pool(coordinator.address, ca_file=coordinator.anchors_file, token_file=token) as program:
        job = program.submit(JobRequest("busybox", ["true"], gpu="0.25"))
    own = member.call("Jobs/Submit", {**SUBMITTED, "pool": False}, uid=USER)["job_ids"][0]
    shown = [one["id"] for one in member.call("Jobs/List", {"all": True, "ended": True}, uid=ADMIN)["jobs"]]
    assert shown == [job]
    with pytest.raises(Refused, match="only administrators see the jobs of others"):
        member.call("Jobs/List", {"all": True}, uid=USER)
    assert [one["id"] for one in member.call("Jobs/List", {}, uid=USER)["jobs"]] == [own]
    coordinator.end()
    wait_until(lambda: presence(member) == "away", "the link is gone")
    with pytest.raises(Refused, match="does not answer"):
        member.call("Jobs/List", {"all": True}, uid=ADMIN)


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


# --- the audit of both ends -----------------------------------------------------------------------------


def orders(node: DaemonProcess) -> list[Json]:
    found = node.call("Audit/List", {"limit": 1000})["lines"]
    return [line for line in found if line["method"] == "ORDER"]


def of_coordinator(coordinator: CoordinatorProcess) -> list[Json]:
    found: list[Json] = json.loads(coordinator.gpushare("audit", "--pool", "--json"))["items"]
    return found


def test_what_the_coordinator_orders_leaves_lines_on_the_node_with_who_asked_it(
    member: DaemonProcess, coordinator: CoordinatorProcess
) -> None:
    """A job, its end, and a drain; each once, though orders are said again."""
    (job,) = member.call("Jobs/Submit", SUBMITTED, uid=ADMIN)["job_ids"]
    wait_until(lambda: orders(member) != [], "the job is placed")
    member.call("Jobs/Cancel", {"job_id": job}, uid=ADMIN)
    wait_until(lambda: len(orders(member)) > 1, "its end is ordered")
    member.call("PoolAdmin/DrainNode", CALLS["PoolAdmin/DrainNode"], uid=ADMIN)
    wait_until(lambda: len(orders(member)) > 2, "the node hears of its drain")
    place, cancel, drain = orders(member)
    assert [one["endpoint"] for one in (place, cancel, drain)] == ["Place", "Cancel", "Drain"]
    for one in (place, cancel, drain):
        assert (one["uid"], one["user"], one["status"], one["code"]) == ("-1", "games@ws1", 200, "")
        assert one["text"].endswith("by pool lab")
    assert place["name"] == cancel["name"] != ""
    assert place["digest"] == hashlib.sha256(BODY).hexdigest()
    assert drain["text"] == "new fan; by pool lab"


def test_an_order_for_somebody_without_an_account_leaves_the_refusal(
    member: DaemonProcess, coordinator: CoordinatorProcess
) -> None:
    token = coordinator.token_file("eve", "submit")
    with Pool(coordinator.address, ca_file=coordinator.anchors_file, token_file=token) as program:
        program.submit(JobRequest("busybox", ["true"], gpu="0.25"))
    wait_until(lambda: orders(member) != [], "the job is refused")
    refused = orders(member)[0]
    assert (refused["endpoint"], refused["user"], refused["code"]) == (
        *("Place", "eve@lab", "failed_precondition"),
    )
    assert "account" in refused["text"]


def test_the_coordinator_s_own_lines_name_the_person_and_the_node(
    member: DaemonProcess, coordinator: CoordinatorProcess
) -> None:
    member.call("PoolAdmin/DrainNode", CALLS["PoolAdmin/DrainNode"], uid=ADMIN)
    with pytest.raises(Refused):
        member.call("PoolAdmin/ForgetNode", CALLS["PoolAdmin/ForgetNode"], uid=USER)
    made, joined, drained, refused = of_coordinator(coordinator)
    assert (made["user"], made["endpoint"]) == ("root", "PoolAdmin/CreateJoinToken")
    assert (joined["endpoint"], joined["name"], joined["status"]) == ("Join/Sign", "ws1", 200)
    assert joined["text"] == f"with the token {made['text'].removeprefix('made ')}"
    for one, user, code in ((drained, "games@ws1", None), (refused, "lp@ws1", "permission_denied")):
        assert (one["uid"], one["user"], one["code"]) == (-1, user, code)
        assert "by node ws1" in one["text"]


def test_a_node_that_is_in_no_pool_says_so(lone_daemon: DaemonProcess) -> None:
    with pytest.raises(Refused, match="in no pool") as refused:
        lone_daemon.call("PoolAdmin/Status")
    assert "gpushare node join" in refused.value.hint
