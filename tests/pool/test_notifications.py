"""Notifications of a coordinator in a process of its own: of its jobs and nodes, over a kill."""

from __future__ import annotations

import base64
import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.node.daemon import make_directory, wait_until
from tests.node.test_notifications import Hook
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
    connection = http.client.HTTPConnection("coordinator")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(process.directory / "r/gpushared-pool.sock"))
    connection.request("POST", f"/gpushare.v1.{name}", json.dumps(fields))
    answer: dict[str, Any] = json.loads(connection.getresponse().read())
    connection.close()
    return answer


def submit(process: CoordinatorProcess, *notify: str, array: str = "") -> dict[str, Any]:
    body = base64.b64encode(b'{"Image": "busybox"}').decode()
    lease = {"gpu": "0.1", "notify": list(notify)}
    return call(
        process, "Jobs/Submit", lease=lease, image="busybox", create_body=body, pool=True, array=array
    )


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
    told = {one["path"]: one for one in hook.got}
    assert told.keys() == {"/site", "/run/ada"}
    assert {(one["kind"], one["outcome"], one["job"], one["from"]) for one in hook.got} == {
        ("ended", "cancelled", job, "lab")
    }
    assert (told["/site"]["image"], told["/run/ada"]["image"]) == (None, "busybox")


def test_a_target_that_the_pool_does_not_allow_is_refused(process: CoordinatorProcess, hook: Hook) -> None:
    refused = submit(process, f"{hook.url}/other")
    assert "are not allowed here" in refused["message"]
    assert "are not allowed here" in submit(process, "mail")["message"], (
        "people of a pool have no mailbox here"
    )


def test_an_array_does_not_fill_a_mailbox(process: CoordinatorProcess) -> None:
    assert "would send 2000 mails" in submit(process, "mail", array="0-999")["message"]
