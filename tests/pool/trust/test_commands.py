"""`gpushare pool` and `gpushare node` as processes, against a real coordinator and a node's real front."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from cryptography import x509

from gpushared.api.v1 import jobs_pb2, jobs_pb2_grpc, leases_pb2
from gpushared.config.job_settings import PoolConfig
from gpushared.config.pool_settings import CoordinatorConfig, CoordinatorSection
from gpushared.config.queue_rules import UserConfig
from gpushared.domain.model.errors import GpushareError, PermissionRefused
from gpushared.domain.model.request import Caller
from gpushared.net.front import Front, listen
from gpushared.net.http_server import Exchange, Routes
from gpushared.net.identity import Identities, Peer
from gpushared.net.unary_json import JsonApi, Unary
from gpushared.node.pool.membership_service import Memberships
from gpushared.pool.coordinator.app import PoolDaemon, real_pool_parts
from gpushared.pool.member.enrolment import Enrolment
from gpushared.pool.trust.callers import unless
from gpushared.pool.trust.people import coordinator_host
from gpushared.pool.trust.pool_init import found_pool
from tests.pool.ready import ReadyNotifier, until_ready
from tests.pool.trust.coordinator import refusal, within

GPUSHARE = [sys.executable, "-c", "import sys; from gpushared.cli.main import main; sys.exit(main())"]


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    err: str


@dataclass
class World:
    """A coordinator, and a machine that may join it."""

    folder: Path
    coordinator: PoolDaemon
    enrolment: Enrolment
    leases: list[leases_pb2.Lease] = field(default_factory=list)
    """The leases of the node."""

    async def __call__(self, *words: str, stdin: str = "", **environ: str) -> CommandResult:
        process = await asyncio.create_subprocess_exec(
            *GPUSHARE,
            *words,
            env={
                **os.environ,
                "GPUSHARE_POOL_SOCKET": str(self.folder / "run" / "gpushared-pool.sock"),
                "GPUSHARE_HOST": f"unix://{self.folder / 'node.sock'}",
                "COLUMNS": "100",
                **environ,
            },
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await within(process.communicate(stdin.encode()), 60)
        assert process.returncode is not None
        return CommandResult(process.returncode, out.decode(), err.decode())

    async def token(self, *words: str) -> str:
        result = await self("pool", "token", "-q", *words)
        assert result.code == 0, result.err
        return result.out.strip()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.coordinator.users_port}"


class _Everybody(Identities):
    """Takes whoever connects for one caller."""

    def __init__(self, caller: Caller) -> None:
        super().__init__(())
        self._one = caller

    async def caller(self, peer: Peer) -> Caller:
        return self._one


async def _no_docker(_: Exchange) -> None:
    raise AssertionError


@asynccontextmanager
async def a_world(folder: Path, node_caller: Caller) -> AsyncIterator[World]:
    found_pool(folder / "state", "lab", time.time())
    section = CoordinatorSection(
        listen="127.0.0.1:0",
        listen_nodes="127.0.0.1:0",
        state_dir=str(folder / "state"),
        runtime_dir=str(folder / "run"),
    )
    config = CoordinatorConfig(section, users={"ada": UserConfig(("ada@ws3",), admin=True)})
    notifier = ReadyNotifier()
    daemon = PoolDaemon(config, real_pool_parts(config), notifier)
    enrolment = Enrolment(folder / "node" / "pool", time.time)
    memberships = Memberships(enrolment, lambda: PoolConfig(realm="cluster"), "ws3")
    async with AsyncExitStack() as stack:
        task = asyncio.create_task(daemon.run())
        stack.push_async_callback(_ended, daemon, task)
        await until_ready(task, notifier)
        listener = stack.enter_context(listen(folder / "node.sock", 0o600))
        world = World(folder, daemon, enrolment)

        async def list_leases(_: leases_pb2.ListLeasesRequest, __: Caller) -> leases_pb2.ListLeasesResponse:
            return leases_pb2.ListLeasesResponse(leases=world.leases)

        calls = {
            **memberships.calls(),
            "gpushare.v1.Leases/List": Unary(leases_pb2.ListLeasesRequest, list_leases),
        }
        routes = Routes(json=JsonApi(calls).answer, docker=_no_docker)
        front = Front(folder / "unused", _Everybody(node_caller), routes)
        await stack.enter_async_context(front.serving(listener))
        yield world


async def _ended(daemon: PoolDaemon, task: asyncio.Task[None]) -> None:
    daemon.stop()
    await within(task)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with a_world(tmp_path, Caller(0, 0, "root", trusted=True)) as made:
        yield made


async def test_a_pool_is_begun_and_the_next_step_is_told(tmp_path: Path) -> None:
    world = World(tmp_path, None, None)  # type: ignore[arg-type]  # no daemon is needed
    result = await world("pool", "init", "lab", "--state-dir", str(tmp_path / "state"))
    assert result.code == 0, result.err
    assert "pool lab begins" in result.out
    assert "gpushare pool token" in result.out
    again = await world("pool", "init", "lab", "--state-dir", str(tmp_path / "state"))
    assert again.code == 125
    assert "there is a certificate authority" in again.err
    wrong = await world("pool", "init", "LAB!", "--state-dir", str(tmp_path / "other"))
    assert "cannot be a pool's name" in wrong.err
    assert not (tmp_path / "other" / "ca").exists()


async def test_a_machine_joins_and_leaves_by_its_daemon(world: World) -> None:
    file = world.folder / "token"
    file.write_text(await world.token("--node", "ws3", "--realm", "cluster") + "\n")
    result = await world("node", "join", world.address, "--token-file", str(file))
    assert result.code == 0, result.err
    assert "this machine is node ws3 of the pool lab, and speaks for users of cluster" in result.out
    assert "note:" not in result.out
    assert world.enrolment.membership is not None
    status = json.loads((await world("pool", "status", "-o", "json")).out)["items"][0]
    assert (status["pool"], status["nodes"]) == ("lab", 1)
    left = await world("node", "leave")
    assert "has left the pool lab, where it was node ws3" in left.out
    assert left.out.endswith("\non the coordinator's machine: gpushare node forget ws3 --is-off\n")
    assert world.enrolment.membership is None
    assert (await world("node", "leave")).out == "this machine is in no pool\n"


async def test_whoever_leaves_with_jobs_of_the_pool_is_told_to_forget_the_node_only_later(
    world: World,
) -> None:
    await world(
        "node", "join", world.address, "--token-file", "-", "--name", "ws7", stdin=await world.token()
    )
    world.leases += [
        leases_pb2.Lease(id="l-1", job_id="a", job_pool="lab"),
        leases_pb2.Lease(id="l-2", job_id="b", job_pool="lab"),
        leases_pb2.Lease(id="l-3", job_id="c"),
        leases_pb2.Lease(id="l-4"),
    ]
    left = await world("node", "leave")
    assert "jobs of the pool that are still here: 2 " in left.out
    assert "forget ws7 only when they are over, or they run twice\nthen, on the coord" in left.out


async def test_a_node_is_cut_off_by_its_name(world: World) -> None:
    token = await world.token()
    await world("node", "join", world.address, "--token-file", "-", "--name", "ws7", stdin=token)
    assert "node ws7 are revoked" in (await world("pool", "revoke", "--node", "ws7")).out
    error = await refusal(world.enrolment.renew())
    assert error.message == "the certificate of node ws7 was revoked"
    assert "no node 'ws7' has a certificate" in (await world("pool", "revoke", "--node", "ws7")).err


async def test_the_token_may_come_by_standard_input_and_never_on_the_command_line(world: World) -> None:
    token = await world.token()
    wrong = await world("node", "join", world.address, "--token-file", token)
    assert wrong.code == 2
    assert token not in wrong.err
    result = await world("node", "join", world.address, "--token-file", "-", "--name", "ws7", stdin=token)
    assert result.code == 0, result.err
    assert "node ws7" in result.out
    assert "note: users of this node are USER@cluster, for whom node ws7 may not speak" in result.out


async def test_who_is_not_trusted_joins_nothing(tmp_path: Path) -> None:
    async with a_world(tmp_path, Caller(1000, 1000, "eve")) as world:
        token = await world.token()
        result = await world("node", "join", world.address, "--token-file", "-", stdin=token)
        assert result.code == 125
        assert "only trusted callers may let this node join a pool" in result.err
        assert (await world("node", "leave")).code == 125


@pytest.mark.parametrize(
    ("content", "words"), [(None, "cannot be read"), (b"\xff\xfe", "is not a text file")]
)
async def test_a_token_file_that_holds_none_is_told(
    tmp_path: Path, content: bytes | None, words: str
) -> None:
    world, file = World(tmp_path, None, None), tmp_path / "token"  # type: ignore[arg-type]
    if content is not None:
        file.write_bytes(content)
    result = await world("node", "join", "dgx", "--token-file", str(file))
    assert words in result.err
    assert "hint:" in result.err


async def test_tokens_are_listed_without_their_secrets_and_revoked(world: World) -> None:
    join = await world.token("--node", "ws3", "--valid", "2h")
    made = await world("pool", "api-token", "--person", "ada", "--scope", "read,submit", "--scope", "admin")
    api = made.out.strip()
    assert "it speaks for ada (admin, read, submit) until" in made.err
    listed = await world("pool", "tokens")
    assert join.split("-")[-1] not in listed.out
    assert api.split("_")[-1] not in listed.out
    lines = {line.split()[0]: line for line in listed.out.splitlines()}
    assert "1h59m left" in lines[join.split("-")[-2]]
    assert "admin,read,submit" in lines[api.split("_")[1]]
    for token_id in (join.split("-")[-2], api.split("_")[1]):
        assert "is revoked" in (await world("pool", "revoke", token_id)).out
    items = json.loads((await world("pool", "tokens", "-o", "json")).out)["items"]
    assert [(item["kind"], item["revoked"]) for item in items] == [("join", True), ("api", True)]
    assert all(item["token"] is None for item in items)
    assert "name a token, or a node" in (await world("pool", "revoke")).err
    unknown = await world("pool", "revoke", "nothing")
    assert "there is no token 'nothing'" in unknown.err


async def test_the_authority_is_replaced_by_two_commands(world: World) -> None:
    early = await world("pool", "rotate-ca", "--finish")
    assert "nothing is being replaced" in early.err
    first = await world("pool", "rotate-ca")
    assert "a new authority is trusted beside the old one" in first.out
    second = await world("pool", "rotate-ca", "--finish")
    assert "the old authority is no longer trusted" in second.out


async def test_whom_programs_are_to_trust_is_printed(world: World) -> None:
    before = await world("pool", "anchors")
    assert x509.load_pem_x509_certificates(before.out.encode())
    await world("pool", "rotate-ca")
    after = await world("pool", "anchors")
    assert len(x509.load_pem_x509_certificates(after.out.encode())) == 2
    assert after.out.startswith(before.out)


async def test_what_a_stolen_token_opened_ends_when_it_is_revoked(world: World) -> None:
    """A stream that shows a job's changes, of which there are none."""
    token = (await world("pool", "api-token", "--person", "bob", "-q")).out.strip()
    anchors = (await world("pool", "anchors")).out.encode()
    metadata = (("authorization", f"Bearer {token}"),)
    options = [("grpc.ssl_target_name_override", coordinator_host("lab"))]
    credentials = grpc.ssl_channel_credentials(anchors)
    async with grpc.aio.secure_channel(world.address, credentials, options) as channel:
        jobs = jobs_pb2_grpc.JobsStub(channel)
        asked = jobs_pb2.SubmitRequest(
            request_id="1",
            lease=leases_pb2.LeaseRequest(gpu="1"),
            create_body=b'{"Image": "busybox"}',
            image="busybox",
            pool=True,
        )
        job = (await within(jobs.Submit(asked, metadata=metadata))).job_ids[0]
        stream = jobs.Watch(jobs_pb2.JobRef(job_id=job), metadata=metadata)
        assert (await within(stream.read())).owner == "bob@lab"
        assert "is revoked" in (await world("pool", "revoke", token.split("_")[1])).out
        error = await refusal(stream.read())
    assert error.message == f"the API token {token.split('_')[1]} was revoked"


@pytest.mark.parametrize("ends", [True, False])
async def test_work_for_a_caller_ends_by_itself_or_with_what_let_them_in(ends: bool) -> None:
    gone: asyncio.Future[GpushareError] = asyncio.get_running_loop().create_future()
    begun, ended = asyncio.Event(), []

    async def work() -> str:
        begun.set()
        try:
            await (asyncio.sleep(0) if ends else asyncio.Event().wait())
        finally:
            ended.append(True)
        return "done"

    task = asyncio.create_task(unless(gone, work()))
    await within(begun.wait())
    if ends:
        assert await within(task) == "done"
    else:
        gone.set_result(PermissionRefused("the token was revoked"))
        with pytest.raises(PermissionRefused, match="was revoked"):
            await within(task)
    assert ended == [True]


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (("pool", "token", "--valid", "8d"), 125, "cannot be valid for"),
        (("pool", "token", "--valid", "x"), 2, "is not a duration"),
        (("pool", "token", "--node", "a b"), 125, "cannot be a node's name"),
        (("pool", "token", "--realm", "@"), 125, "cannot be a realm's name"),
        (("pool", "api-token", "--person", "bob", "--scope", "admin"), 125, "bob is no admin of the pool"),
        (("pool", "api-token", "--person", "bob", "--scope", "all"), 125, "there is no such scope"),
        (("pool", "api-token", "--person", "bob", "--valid", "400d"), 2, "is not a duration"),
    ],
)
async def test_what_cannot_be_is_refused_with_a_hint(
    world: World, words: tuple[str, ...], code: int, complaint: str
) -> None:
    result = await world(*words)
    assert result.code == code
    assert complaint in result.err
    assert "hint:" in result.err
    assert result.out == ""


async def test_without_a_coordinator_here_it_is_said_where_to_look(tmp_path: Path) -> None:
    world = World(tmp_path, None, None)  # type: ignore[arg-type]
    result = await world("pool", "status")
    assert result.code == 125
    assert "no coordinator of a pool answers" in result.err
    assert "gpushared-pool" in result.err


async def test_the_frequent_commands_do_without_certificates(tmp_path: Path) -> None:
    """Their library takes longer to import than they take in all."""
    names = ["main", "ps", "gpus", "queue", "start", "submit", "jobs"]
    program = (
        f"import sys, {', '.join(f'gpushared.cli.{name}' for name in names)}; "
        "sys.exit(not {'cryptography', 'grpc'}.isdisjoint(sys.modules))"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    assert await within(process.wait(), 60) == 0
