"""Notifications of a coordinator in a process of its own: of its jobs and nodes, over a kill."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.bed.parts import BUSYBOX_IMAGE
from tests.node.daemon import DaemonProcess, make_directory, wait_until
from tests.node.test_notifications import Hook
from tests.pool import json_calls
from tests.pool.json_calls import BUSYBOX
from tests.pool.processes import CoordinatorProcess


@pytest.fixture
def hook() -> Iterator[Hook]:
    made = Hook()
    made.open()
    yield made
    made.close()


@pytest.fixture
def process(hook: Hook) -> Iterator[CoordinatorProcess]:
    config = f'[notify]\nwebhooks = ["{hook.url}/site"]\nallow = ["mail", "{hook.url}/run"]\n'
    made = CoordinatorProcess(make_directory(), config=config)
    made.start()
    yield made
    made.dispose()


def call(process: CoordinatorProcess, name: str, **fields: Any) -> dict[str, Any]:
    return json_calls.post(process.socket, name, **fields)[0]


def submit(process: CoordinatorProcess, *notify: str, array: str = "") -> dict[str, Any]:
    lease = {"gpu": "0.1", "notify": list(notify)}
    return call(process, "Jobs/Submit", **BUSYBOX | {"lease": lease, "array": array})


def test_the_end_of_a_job_is_told_to_its_targets_and_the_site_once(
    process: CoordinatorProcess, hook: Hook
) -> None:
    (job,) = submit(process, f"{hook.url}/run/ada")["job_ids"]
    hook.close()
    call(process, "Jobs/Cancel", job_id=job)
    process.end()
    hook.open()
    process.start()
    wait_until(lambda: len(hook.got) == 2, "both are told", 60)
    received = {one["path"]: one for one in hook.got}
    assert received.keys() == {"/site", "/run/ada"}
    assert {(one["kind"], one["outcome"], one["job"], one["from"]) for one in hook.got} == {
        ("ended", "cancelled", job, "lab")
    }
    assert (received["/site"]["image"], received["/run/ada"]["image"]) == (None, "busybox")


def test_a_target_that_the_pool_does_not_allow_is_refused(process: CoordinatorProcess, hook: Hook) -> None:
    refused = submit(process, f"{hook.url}/other")
    assert "are not allowed here" in refused["message"]
    assert "are not allowed here" in submit(process, "mail")["message"], (
        "people of a pool have no mailbox here"
    )


def test_an_array_does_not_fill_a_mailbox(process: CoordinatorProcess) -> None:
    assert "would send 2000 mails" in submit(process, "mail", array="0-999")["message"]


def test_a_pool_tells_once_of_its_job_and_of_a_node_that_is_cut_off(docker_engine: str, hook: Hook) -> None:
    targets = f'[notify]\nwebhooks = ["{hook.url}/pool"]\nallow = ["{hook.url}/run"]\n'
    coordinator = CoordinatorProcess(make_directory(), f"{targets}[nodes]\nbeat_seconds = 0.5\n")
    accounts = '[pool.accounts]\n"root@a" = "nobody"\n'
    allowed = f'[notify]\nallow = ["{hook.url}/run"]\n'
    node = DaemonProcess(
        make_directory(), engine=docker_engine, config=f'[node]\nname = "a"\n{allowed}{accounts}'
    )
    try:
        coordinator.start()
        node.start()
        token = coordinator.admin.create_join_token(node="a").token
        node.call("Node/Join", {"address": coordinator.address, "token": token, "name": "a"})
        words = ("--pool", "--gpu", "0.25", "--notify", f"{hook.url}/run", BUSYBOX_IMAGE, "true")
        job = node.gpushare_says("submit", *words)
        wait_until(lambda: len(hook.got) >= 4, "run and site are told of both", 20)
        received = sorted((one["path"], one["kind"], one["job"], one["from"]) for one in hook.got)
        expected = [(path, kind, job, "lab") for path in ("/pool", "/run") for kind in ("ended", "granted")]
        assert received == expected, "the node leaves the beginning and the end to the coordinator"
        assert {one["exit_code"] for one in hook.got if one["kind"] == "ended"} == {0}
        node.kill()
        wait_until(lambda: hook.got[-1]["kind"] == "node-silent", "the silence is told", 60)
        node.start()
        wait_until(lambda: hook.got[-1]["kind"] == "node-back", "the return is told", 60)
        assert [one["node"] for one in hook.got[4:]] == ["a", "a"]
    finally:
        node.dispose()
        coordinator.dispose()
