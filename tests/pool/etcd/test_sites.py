"""A store in an etcd as sites have it: users and roles, names, learners, small limits, wrong addresses."""

from __future__ import annotations

import asyncio
import shlex
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import grpc
import pytest

from gpushared.api.etcd import rpc_pb2
from gpushared.domain.model.errors import RequestError
from gpushared.ports.job_store import MAX_RECORD_BYTES, StoreMember, StoreUnavailable, Transaction
from gpushared.storage.etcd.access import EtcdAccess
from gpushared.storage.etcd.store import EtcdStore
from tests.bed import parts
from tests.bed.etcd import EtcdCluster
from tests.pool.etcd.writers import Writer, opened, values
from tests.pool.processes import free_port
from tests.web.certificates import CertificateMaker

Cluster = Callable[..., EtcdCluster]

PAGE = parts.ROOT / "docs/how-to/high-availability.md"
PASSWORD = "open-sesame"
"""etcdctl reads a line up to its first blank."""


def commands_of_the_page(without: str) -> list[list[str]]:
    """The page's commands for one way in which the pool's user shows who it is."""
    lines = [line.strip() for line in PAGE.read_text().splitlines()]
    chosen = [
        line for line in lines if line.startswith(("etcdctl role", "etcdctl user")) and without not in line
    ]
    return [shlex.split(line, comments=True)[1:] for line in chosen]


def make_user(cluster: EtcdCluster, without: str) -> None:
    for words in commands_of_the_page(without):
        reads_file = "<" in words
        cluster.ctl(
            *(words[: words.index("<")] if reads_file else words), stdin=f"{PASSWORD}\n" if reads_file else ""
        )
    for words in (["user", "add", "root:secret"], ["user", "grant-role", "root", "root"], ["auth", "enable"]):
        cluster.ctl(*words)


async def check_that_the_store_serves(access: EtcdAccess) -> None:
    """All calls that a coordinator makes are permitted below the prefix, and none elsewhere."""
    async with opened(access) as store:
        writer = Writer(store, await store.lead())
        revision = await writer.put("a", "1")
        changes = store.watch("", revision)
        await writer.put("b", "2")
        async with asyncio.timeout(10):
            assert (await anext(changes)).key == "b"
        assert await values(store) == {"a": "1", "b": "2"}
        assert [key for key, _ in await store.page("", 1, reverse=True)] == ["b"]
        assert all(not member.problem for member in await store.health())
    async with opened(access) as store:
        await store.lead()  # at once: the first one gave its lease back
    async with opened(access, "/another/") as store:
        with pytest.raises(StoreUnavailable, match="permission denied"):
            await store.lead()


# --- users of etcd -------------------------------------------------------------------------------------


async def test_the_pages_commands_make_a_user_with_a_password_that_may_do_what_a_coordinator_does(
    etcd_cluster: Cluster,
) -> None:
    cluster = etcd_cluster(1)
    make_user(cluster, without="--no-password")
    file = cluster.folder / "password"
    file.write_text(f"{PASSWORD}\n")
    await check_that_the_store_serves(EtcdAccess(cluster.endpoints, user="gpushare", password_file=str(file)))


async def test_the_pages_commands_make_a_user_whom_the_name_in_its_certificate_shows(
    named: EtcdCluster,
) -> None:
    """Members are named as in DNS, and another certificate of the same authority is refused."""
    make_user(named, without="--interactive")
    port = named.members[0].words[-1].rpartition(":")[2]

    def access(name: str, host: str) -> EtcdAccess:
        files = (str(named.folder / file) for file in ("authority.pem", f"{name}.pem", f"{name}.key"))
        return EtcdAccess((f"{host}:{port}",), *files)

    await check_that_the_store_serves(access("gpushare", "localhost"))
    async with opened(access("other", "localhost"), call_seconds=0.5) as store:
        with pytest.raises(StoreUnavailable, match="refuses this coordinator"):
            await store.lead()
    async with opened(access("gpushare", "127.0.0.1"), call_seconds=0.5) as store:
        with pytest.raises(StoreUnavailable, match=r"cannot be reached: .*127\.0\.0\.1"):
            await store.lead()


@pytest.fixture
def named(tmp_path: Path) -> Iterator[EtcdCluster]:
    """A member that wants clients' certificates, and whose own has only the name ``localhost``."""
    parts.need_file("etcd", parts.ETCD / "etcdctl")
    maker = CertificateMaker(tmp_path)
    maker.server("etcd", "localhost")
    for name in ("gpushare", "root", "other"):
        maker.client(name)
    port, ca = free_port(), f"{tmp_path}/authority.pem"
    own = [f"--cert-file={tmp_path}/etcd.pem", f"--key-file={tmp_path}/etcd.key"]
    cluster = EtcdCluster(tmp_path, scheme="https")
    (member,) = cluster.members
    root = [f"--cert={tmp_path}/root.pem", f"--key={tmp_path}/root.key"]
    cluster.ctl_flags = [f"--cacert={ca}", "--insecure-skip-tls-verify", *root]
    urls = f"--listen-client-urls={member.client_url},https://127.0.0.1:{port}"
    member.words = [*member.words, *own, "--client-cert-auth", f"--trusted-ca-file={ca}", urls]
    try:
        yield cluster.start()
    finally:
        cluster.dispose()


async def test_an_etcd_that_tells_its_status_to_its_administrators_only_is_used(
    etcd_member: EtcdCluster,
) -> None:
    """As 3.5.30 does where it has users."""

    async def denied(_: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "etcdserver: permission denied")

    answers = {"/etcdserverpb.Maintenance/Status": denied}
    async with (
        before(etcd_member.endpoints[0], answers) as endpoint,
        opened(EtcdAccess((endpoint,)), "/hidden/") as store,
    ):
        assert await store.epoch() == 0
        assert await store.health() == (StoreMember(endpoint),)


Answer = Callable[[bytes, "grpc.aio.ServicerContext[bytes, bytes]"], Awaitable[bytes]]


@asynccontextmanager
async def before(endpoint: str, answers: Mapping[str, Answer]) -> AsyncIterator[str]:
    """Serve before a member: some calls are answered otherwise than by it."""

    class Handlers(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
            return grpc.unary_unary_rpc_method_handler(
                answers.get(details.method) or partial(on, details.method)
            )

    async def on(method: str, request: bytes, _: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
        return await call(request)

    async with grpc.aio.insecure_channel(endpoint) as channel:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((Handlers(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await server.stop(None)


# --- addresses that are wrong --------------------------------------------------------------------------


@asynccontextmanager
async def silent() -> AsyncIterator[str]:
    """The kernel takes connections, and nobody says anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@asynccontextmanager
async def no_etcd() -> AsyncIterator[str]:
    """Speaks gRPC, and knows none of etcd's calls."""
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@pytest.mark.parametrize("wrong", ["nowhere.invalid:2379", "127.0.0.1:1", silent, no_etcd])
async def test_one_address_that_is_no_member_does_no_harm(
    etcd_member: EtcdCluster,
    wrong: str | Callable[[], AbstractAsyncContextManager[str]],
    request: pytest.FixtureRequest,
) -> None:
    async with AsyncExitStack() as stack:
        first = wrong if isinstance(wrong, str) else await stack.enter_async_context(wrong())
        store = await stack.enter_async_context(
            opened(EtcdAccess((first, *etcd_member.endpoints)), f"/{request.node.name}/")
        )
        writer = Writer(store, await store.lead())
        changes = store.watch("", await writer.put("a", "1"))
        revision = await writer.put("b", "2")
        async with asyncio.timeout(10):
            assert (await anext(changes)).revision == revision


async def test_a_member_of_another_cluster_is_not_taken_for_one_of_ours(
    etcd_cluster: Cluster, etcd_member: EtcdCluster
) -> None:
    """The same prefix is empty there: the coordinator would begin a second pool."""
    cluster = etcd_cluster(1)
    async with opened(EtcdAccess((*cluster.endpoints, *etcd_member.endpoints)), call_seconds=1) as store:
        writer = Writer(store, await store.lead())
        await writer.put("a", "1")
        cluster.members[0].kill()
        with pytest.raises(StoreUnavailable):
            await store.load()
        _, other = await store.health()
        assert "another cluster of etcd" in other.problem
        cluster.members[0].start()
        await writer.put_surely("a", "2")
    async with opened(EtcdAccess(etcd_member.endpoints)) as store:
        assert await store.epoch() == 0


async def test_a_learner_is_left_for_a_member_that_votes(etcd_cluster: Cluster) -> None:
    cluster = etcd_cluster(1)
    (voter,) = cluster.members
    (learner,) = EtcdCluster(cluster.folder, 1).members
    learner.name = "learner"
    cluster.ctl("member", "add", "learner", "--learner", f"--peer-urls={learner.peer_url}")
    learner.words = [
        f"--initial-cluster=m0={voter.peer_url},learner={learner.peer_url}",
        "--initial-cluster-state=existing",
        *("--heartbeat-interval=50", "--election-timeout=500"),
    ]
    cluster.members.append(learner)
    learner.start()
    async with opened(EtcdAccess((learner.endpoint, voter.endpoint))) as store:
        await until_it_tells_its_status(store, learner.endpoint)
        writer = Writer(store, await store.lead())
        changes = store.watch("", await writer.put("a", "1"))
        revision = await writer.put("b", "2")
        async with asyncio.timeout(10):
            assert (await anext(changes)).revision == revision


async def until_it_tells_its_status(store: EtcdStore, endpoint: str) -> None:
    while True:
        if isinstance((await store.client.statuses())[endpoint], rpc_pb2.StatusResponse):
            return
        await asyncio.sleep(0.1)


# --- limits smaller than etcd's own --------------------------------------------------------------------


@pytest.mark.parametrize("limit_bytes", [512 * 1024, 64 * 1024])
async def test_a_transaction_above_a_smaller_limit_of_etcd_is_refused_and_all_else_goes_on(
    etcd_cluster: Cluster, limit_bytes: int
) -> None:
    """Whether etcd finds it too large or already gRPC in etcd: it is no unknown outcome."""
    cluster = etcd_cluster(1, flags=[f"--max-request-bytes={limit_bytes}"])
    async with opened(EtcdAccess(cluster.endpoints)) as store:
        writer = Writer(store, await store.lead())
        large = {f"k/{number}": bytes(MAX_RECORD_BYTES) for number in range(4)}
        with pytest.raises(RequestError, match=r"too large.*max-request-bytes"):
            await store.commit(Transaction(writer.epoch, large))
        await writer.put("a", "1")
        assert await values(store) == {"a": "1"}


async def test_an_etcd_that_is_full_before_anybody_leads_says_so(etcd_cluster: Cluster) -> None:
    cluster = etcd_cluster(1, flags=["--quota-backend-bytes=20000"])
    async with opened(EtcdAccess(cluster.endpoints)) as store:
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match=r"full \(alarm NOSPACE\)"):
                await store.lead()
