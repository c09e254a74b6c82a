"""What is served at which listener of a coordinator, and to whom."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from gpushared.api.v1 import jobs_pb2, jobs_pb2_grpc, link_pb2, link_pb2_grpc, pool_pb2, pool_pb2_grpc
from gpushared.config.pool_settings import CoordinatorConfig, load_pool
from gpushared.domain.model.errors import ConfigError
from gpushared.pool.coordinator.app import SOCKET_NAME, PoolDaemon, PoolParts
from gpushared.pool.trust.authority import Authority
from gpushared.pool.trust.people import coordinator_host
from gpushared.pool.trust.trust import CA_FOLDER
from gpushared.storage.audit.audit_file import SqliteAudit
from gpushared.storage.history import SqliteHistory
from gpushared.testing import ManualClock, MemoryStore
from tests.pool.ready import ReadyNotifier, until_ready

SECONDS = 20
CLOSED = {grpc.StatusCode.UNAVAILABLE}


class ServedCoordinator:
    """A coordinator that serves, and channels to its listeners."""

    def __init__(self, daemon: PoolDaemon, runtime: Path, authority: Authority) -> None:
        self.daemon = daemon
        self.authority = authority
        self.local = grpc.aio.insecure_channel(f"unix:{runtime / SOCKET_NAME}")

    def by_tls(self, port: int) -> grpc.aio.Channel:
        """As somebody without a certificate, who knows whom to trust."""
        trusted = grpc.ssl_channel_credentials(root_certificates=self.authority.anchors_pem)
        named = [("grpc.ssl_target_name_override", coordinator_host("lab"))]
        return grpc.aio.secure_channel(f"127.0.0.1:{port}", trusted, options=named)


def configured(folder: Path, **flags: str) -> CoordinatorConfig:
    words = {
        "coordinator.state_dir": str(folder),
        "coordinator.runtime_dir": str(folder / "run"),
        "coordinator.listen": "127.0.0.1:0",
        "coordinator.listen_nodes": "127.0.0.1:0",
    }
    return load_pool(folder / "none.toml", flags=words | flags)


@asynccontextmanager
async def served(
    folder: Path, store: MemoryStore | None = None, **flags: str
) -> AsyncIterator[ServedCoordinator]:
    config = configured(folder, **{name.replace("__", "."): word for name, word in flags.items()})
    authority = Authority.create(folder / CA_FOLDER, "lab", time.time())
    notifier = ReadyNotifier()
    parts = PoolParts(
        store or MemoryStore(),
        ManualClock(time.time()),
        SqliteAudit(folder / "audit.db"),
        SqliteHistory(folder / "history.db"),
    )
    daemon = PoolDaemon(config, parts, notifier)
    running = asyncio.create_task(daemon.run())
    await until_ready(running, notifier, SECONDS)
    coordinator = ServedCoordinator(daemon, folder / "run", authority)
    try:
        yield coordinator
    finally:
        await coordinator.local.close()
        daemon.stop()
        await running


@pytest.fixture
async def coordinator(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServedCoordinator]:
    async with served(tmp_path_factory.mktemp("p")) as made:
        yield made


async def code_of(call: Awaitable[object]) -> grpc.StatusCode:
    """How a call ends that is refused."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await asyncio.wait_for(call, SECONDS)
    return refused.value.code()


async def test_administrators_of_the_machine_are_answered_at_the_unix_socket(
    coordinator: ServedCoordinator,
) -> None:
    status = await pool_pb2_grpc.PoolAdminStub(coordinator.local).Status(pool_pb2.PoolStatusRequest())
    assert (status.pool, status.phase) == ("lab", "normal")


async def test_reflection_is_for_administrators(coordinator: ServedCoordinator) -> None:
    async def services(channel: grpc.aio.Channel) -> set[str]:
        asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        # types-grpcio-reflection knows neither asyncio's channels nor the stub's calls.
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]
        answers = stub.ServerReflectionInfo(asked)
        listed = [answer async for answer in answers]
        return {one.name for one in listed[0].list_services_response.service}

    assert {"gpushare.v1.PoolAdmin", "gpushare.v1.Jobs"} <= await services(coordinator.local)
    async with coordinator.by_tls(coordinator.daemon.users_port) as users:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await services(users)
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_anybody_may_ask_the_users_listener_how_it_is_and_whom_to_trust(
    coordinator: ServedCoordinator,
) -> None:
    async with coordinator.by_tls(coordinator.daemon.users_port) as users:
        asked = health_pb2.HealthCheckRequest(service="gpushare.v1.Jobs")
        stub: Any = health_pb2_grpc.HealthStub(users)  # types-grpcio-health-checking lacks its calls
        health = await stub.Check(asked)
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        trust = await pool_pb2_grpc.JoinStub(users).GetTrust(pool_pb2.GetTrustRequest())
        assert (trust.pool, trust.anchors) == ("lab", coordinator.authority.anchors_pem)


async def test_without_a_token_nothing_else_is_answered_there(coordinator: ServedCoordinator) -> None:
    async with coordinator.by_tls(coordinator.daemon.users_port) as users:
        admin = pool_pb2_grpc.PoolAdminStub(users)
        denied = grpc.StatusCode.PERMISSION_DENIED
        assert await code_of(admin.Status(pool_pb2.PoolStatusRequest())) == denied
        assert await code_of(admin.CreateJoinToken(pool_pb2.JoinTokenRequest())) == denied
        jobs = jobs_pb2_grpc.JobsStub(users)
        assert await code_of(jobs.List(jobs_pb2.ListJobsRequest())) == denied
        link = link_pb2_grpc.NodeLinkStub(users).Connect(iter([link_pb2.Up()]))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await link.read()
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("call", ["Join/GetTrust", "Join/Sign"])
async def test_bytes_that_are_no_message_are_refused_without_a_traceback(
    coordinator: ServedCoordinator, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with coordinator.by_tls(coordinator.daemon.users_port) as users:
        bytes_as_they_are: Any = users.unary_unary(f"/gpushare.v1.{call}")
        assert await code_of(bytes_as_they_are(b"\0")) == grpc.StatusCode.INVALID_ARGUMENT
    assert "Traceback" not in caplog.text


async def test_at_the_nodes_listener_nobody_is_answered_without_a_certificate(
    coordinator: ServedCoordinator,
) -> None:
    async with coordinator.by_tls(coordinator.daemon.nodes_port) as nodes:
        trust = pool_pb2_grpc.JoinStub(nodes).GetTrust(pool_pb2.GetTrustRequest())
        assert await code_of(trust) in CLOSED


async def test_who_expects_another_pool_s_certificate_does_not_talk(
    coordinator: ServedCoordinator, tmp_path: Path
) -> None:
    other = Authority.create(tmp_path / "other", "lab", time.time())
    trusted = grpc.ssl_channel_credentials(root_certificates=other.anchors_pem)
    named = [("grpc.ssl_target_name_override", coordinator_host("lab"))]
    address = f"127.0.0.1:{coordinator.daemon.users_port}"
    async with grpc.aio.secure_channel(address, trusted, options=named) as channel:
        trust = pool_pb2_grpc.JoinStub(channel).GetTrust(pool_pb2.GetTrustRequest())
        assert await code_of(trust) in CLOSED


async def test_an_address_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port} cannot be listened at") as raised:
            async with served(tmp_path, coordinator__listen=f"127.0.0.1:{port}"):
                pass
    assert "ss -ltnp" in raised.value.hint


async def test_a_pool_of_another_name_is_not_served(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"coordinator\.name is vision, and the authority .* is lab's"):
        async with served(tmp_path, coordinator__name="vision"):
            pass


async def test_without_an_authority_it_says_how_to_begin(tmp_path: Path) -> None:
    parts = PoolParts(
        MemoryStore(),
        ManualClock(0.0),
        SqliteAudit(tmp_path / "audit.db"),
        SqliteHistory(tmp_path / "history.db"),
    )
    daemon = PoolDaemon(configured(tmp_path), parts, ReadyNotifier())
    with pytest.raises(ConfigError) as raised:
        await daemon.run()
    assert "gpushare pool init NAME" in raised.value.hint


async def test_a_reload_takes_over_people_and_figures_and_refuses_contradictions(
    coordinator: ServedCoordinator,
) -> None:
    loop = coordinator.daemon._loop
    assert loop is not None
    config = coordinator.daemon._config
    folder = Path(config.coordinator.state_dir)
    file = folder / "pool.toml"
    file.write_text('[queue]\nmax_queued = 3\n[users.ada]\nprincipals = ["ada@lab"]\n')
    coordinator.daemon.reload(load_pool(file))
    assert loop.state.rules.max_queued == 3
    assert coordinator.daemon._people.persons == {"ada@lab": "ada"}
    file.write_text('[users.ada]\nprincipals = ["a@lab"]\n[users.bob]\nprincipals = ["a@lab"]\n')
    with pytest.raises(ConfigError, match="both ada and bob"):
        coordinator.daemon.reload(load_pool(file))
    assert coordinator.daemon._people.persons == {"ada@lab": "ada"}
    assert loop.state.rules.max_queued == 3
