"""Programs that use ``gpushared.client.pipeline`` on a node, which is in no pool or in one."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from gpushared.client.pipeline import AsyncPool, JobRequest, JobWarning, NeverFits, Pool
from gpushared.domain.model.errors import GpushareError, NotFound, StateConflict
from tests.bed import parts
from tests.node.conftest import NewDaemon
from tests.node.daemon import OWN_LABEL, DaemonProcess, Refused, make_directory, wait_until
from tests.pool.processes import CoordinatorProcess

SECONDS = 60.0
NO_NODE = "waits until a node joins that could take it"

Ask = Callable[[Callable[[Any], Any]], Any]
"""Has a client do something, and gives what came of it."""


def by_pool(address: str) -> Ask:
    def ask(do: Callable[[Any], Any]) -> Any:
        with Pool(address) as pool:
            found = do(pool)
            return list(found) if isinstance(found, Iterator) else found

    return ask


def by_async_pool(address: str) -> Ask:
    async def asked(do: Callable[[Any], Any]) -> Any:
        async with AsyncPool(address) as pool:
            found = do(pool)
            return await found if isinstance(found, Awaitable) else [one async for one in found]

    return lambda do: asyncio.run(asked(do))


BOTH = pytest.mark.parametrize("client", [by_pool, by_async_pool], ids=["sync", "async"])


def request_on(daemon: DaemonProcess, *command: str, **words: Any) -> JobRequest:
    body = {
        "Image": parts.BUSYBOX_IMAGE,
        "Cmd": list(command),
        "Labels": {OWN_LABEL: daemon.directory.name},
        "HostConfig": {"NetworkMode": "none"},
    }
    return JobRequest(body=body, **words)


@BOTH
@pytest.mark.docker
def test_a_node_in_no_pool_runs_the_jobs_of_a_program(
    client: Callable[[str], Ask], daemon: DaemonProcess
) -> None:
    ask = client(f"unix://{daemon.socket}")
    job = ask(lambda pool: pool.submit(request_on(daemon, "echo", "hello", gpu="0.25")))
    assert b"".join(ask(lambda pool: pool.logs(job, follow=True))) == b"hello\n"
    over = ask(lambda pool: pool.wait(job, timeout_seconds=SECONDS))
    assert (over.state, over.pool) == ("succeeded", False)
    nodes = ask(lambda pool: pool.nodes())
    (node,) = nodes.nodes
    assert (nodes.pool, node.presence, node.simulated) == ("", "ready", True)
    assert [gpu.free_compute_permille for gpu in node.gpus] == [1000, 1000]


@BOTH
def test_each_word_of_a_program_reaches_the_node(
    client: Callable[[str], Ask], lone_daemon: DaemonProcess
) -> None:
    ask = client(f"unix://{lone_daemon.socket}")
    words = {"begin": "+2h", "isolation": "separate", "notice_signal": "USR1", "restart_on_fault": 2}
    job = ask(lambda pool: pool.submit(request_on(lone_daemon, "true", gpu="0.25", **words)))
    assert ask(lambda pool: pool.explain(job)).reason_code == "begin_time"
    held = ask(lambda pool: pool.submit(request_on(lone_daemon, "true", gpu="0.25", held=True)))
    assert ask(lambda pool: pool.hold(held, held=False)).state != "held"


@BOTH
@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        pytest.param({"gpu": 99}, GpushareError, "99", id="more than the node has"),
        pytest.param({"pool": True}, StateConflict, "in no pool", id="the pool"),
        pytest.param({"node": "elsewhere"}, StateConflict, "in no pool", id="another node"),
        pytest.param({"away_from": ["l-0000"]}, GpushareError, "l-0000", id="away from no lease"),
        pytest.param({"near": ["l-0000"]}, GpushareError, "l-0000", id="near no lease"),
        pytest.param({"isolation": "alone"}, GpushareError, "alone", id="no such isolation"),
        pytest.param({"span": True}, GpushareError, "one node cannot be several", id="several nodes"),
    ],
)
def test_a_refusal_is_one_exception_without_grpcs_own(
    client: Callable[[str], Ask],
    lone_daemon: DaemonProcess,
    words: dict[str, Any],
    kind: type[GpushareError],
    said: str,
) -> None:
    ask = client(f"unix://{lone_daemon.socket}")
    with pytest.raises(kind, match=said) as refused:
        ask(lambda pool: pool.submit(request_on(lone_daemon, "true", **{"gpu": 1, **words})))
    assert (refused.value.__cause__, refused.value.__context__) == (None, None)
    for stream in (lambda pool: pool.watch("nothing000"), lambda pool: pool.logs("nothing000", follow=True)):
        with pytest.raises(NotFound) as missing:
            ask(stream)
        assert (missing.value.__cause__, missing.value.__context__) == (None, None)


# --- in a pool


@pytest.fixture
def coordinator() -> Iterator[CoordinatorProcess]:
    made = CoordinatorProcess(make_directory())
    made.start()
    yield made
    made.dispose()


@pytest.fixture
def member(new_daemon: NewDaemon, coordinator: CoordinatorProcess) -> DaemonProcess:
    node = new_daemon(config='[node]\nname = "ws1"\n')
    node.start()
    token = coordinator.admin.create_join_token(node="ws1").token
    node.call("Node/Join", {"address": coordinator.address, "token": token, "name": "ws1"})
    wait_until(lambda: is_connected(node), "the node is connected")
    return node


def is_connected(node: DaemonProcess) -> bool:
    with suppress(Refused):  # the pool does not answer yet
        return bool(node.call("Jobs/Nodes")["pool"])
    return False


@BOTH
def test_what_no_node_of_the_pool_could_take_is_warned_of_and_not_waited_for(
    client: Callable[[str], Ask], member: DaemonProcess
) -> None:
    ask = client(f"unix://{member.socket}")
    with pytest.warns(JobWarning, match=NO_NODE):
        job = ask(lambda pool: pool.submit(request_on(member, "true", gpu=99)))
    for wait in (lambda pool: pool.wait(job), lambda pool: pool.wait_all([job])):
        with pytest.raises(NeverFits, match=NO_NODE):
            ask(wait)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fits = ask(lambda pool: pool.submit(request_on(member, "true", gpu=1, held=True)))
    assert ask(lambda pool: pool.get(fits)).pool
