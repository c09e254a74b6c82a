"""The page of a pool: who may log in at its coordinator, by what, and for how long."""

from __future__ import annotations

import asyncio
import os
import pwd
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from gpushared.api.v1 import pool_pb2, pool_pb2_grpc
from gpushared.pool.coordinator.app import SOCKET_NAME
from tests.node.daemon import GPUSHARE
from tests.pool.test_listeners import ServedCoordinator, served
from tests.web.certificates import CertificateMaker
from tests.web.raw_browser import SECONDS, Answer, Connection, posted, request

NAME = "pool.example"
LIST = "/gpushare.v1.Jobs/List"
STATUS = "/gpushare.v1.PoolAdmin/Status"
UPGRADE = b"GET /gpushare.web/browser HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: gpushare-browser\r\n\r\n"


class Site:
    """The page of a coordinator, its administrator, and ways in."""

    def __init__(self, coordinator: ServedCoordinator, folder: Path, port: int, trusted: Path) -> None:
        self.admin = pool_pb2_grpc.PoolAdminStub(coordinator.local)
        self.port = port
        self.folder = folder
        self._trusted = trusted

    @property
    def host(self) -> str:
        return f"{NAME}:{self.port}"

    async def listens(self) -> bool:
        """Return True once the coordinator lets browsers in by all ways."""
        try:
            async with self.by_tls(), self.by_socket("proxy.sock"):
                return True
        except (ConnectionRefusedError, FileNotFoundError):
            return False

    async def token(self, person: str, *scopes: str) -> tuple[str, str]:
        """Make an API token; return its words and its id."""
        made = await self.admin.CreateApiToken(
            pool_pb2.ApiTokenRequest(person=person, scopes=scopes or ("read",))
        )
        return made.token, made.id

    @asynccontextmanager
    async def by_tls(self) -> AsyncIterator[Connection]:
        context = ssl.create_default_context(cafile=str(self._trusted))
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=context, server_hostname=NAME
        )
        try:
            yield Connection(reader, writer)
        finally:
            writer.close()

    @asynccontextmanager
    async def by_socket(self, name: str) -> AsyncIterator[Connection]:
        reader, writer = await asyncio.open_unix_connection(str(self.folder / "run" / name))
        try:
            yield Connection(reader, writer)
        finally:
            writer.close()

    async def got(self, target: str, cookie: str = "") -> Answer:
        async with self.by_tls() as browser:
            return await browser.ask(request("GET", target, cookie=cookie, Host=self.host))

    async def posted(self, target: str, message: object = None, cookie: str = "") -> Answer:
        async with self.by_tls() as browser:
            words = {"Host": self.host, "Origin": f"https://{self.host}"}
            return await browser.ask(posted(target, message, cookie=cookie, **words))

    async def log_in(self, words: str) -> str:
        answer = await self.posted("/login", {"token": words})
        assert answer.status == 204, answer
        return answer.cookie


@pytest.fixture
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    folder = tmp_path_factory.mktemp("p")
    maker = CertificateMaker(folder)
    pair = maker.server("server", NAME)
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    account = pwd.getpwuid(os.getuid()).pw_name
    (folder / "none.toml").write_text(
        f'[web]\nlisten = "{port}"\ncertificate = "{pair.certificate}"\nkey = "{pair.key}"\n'
        f'proxy_socket = "{folder}/run/proxy.sock"\nproxy_users = ["{account}"]\n'
        '[users.ada]\nadmin = true\nprincipals = ["ada@ws1"]\n'
    )
    async with served(folder) as coordinator:
        made = Site(coordinator, folder, port, maker.path)
        async with asyncio.timeout(SECONDS):
            while not await made.listens():  # noqa: ASYNC110 - another task opens the ports
                await asyncio.sleep(0.01)
        yield made


async def test_a_browser_logs_in_with_an_api_token(site: Site) -> None:
    words, _ = await site.token("eve")
    cookie = await site.log_in(words)
    session = (await site.got("/session", cookie)).json
    assert {name: session[name] for name in ("user", "trusted", "node", "pool")} == {
        "user": "eve",
        "trusted": False,
        "node": "",
        "pool": "lab",
    }
    jobs = await site.posted(LIST, cookie=cookie)
    assert (jobs.status, jobs.json["jobs"]) == (200, [])
    assert "gpushare-revision" in jobs.headers


@pytest.mark.parametrize(
    ("person", "scopes", "statuses"),
    [
        ("eve", ("read",), {LIST: 200, STATUS: 403}),
        ("eve", ("submit",), {LIST: 403, STATUS: 403}),
        ("ada", ("read",), {LIST: 200, STATUS: 403}),
        ("ada", ("admin",), {LIST: 200, STATUS: 200}),
        ("ada@ws1", ("read",), {LIST: 200, STATUS: 403}),
    ],
)
async def test_a_session_has_the_rights_of_its_token(
    site: Site, person: str, scopes: tuple[str, ...], statuses: dict[str, int]
) -> None:
    cookie = await site.log_in((await site.token(person, *scopes))[0])
    assert {call: (await site.posted(call, cookie=cookie)).status for call in statuses} == statuses
    assert (await site.got("/session", cookie)).json["trusted"] is (scopes == ("admin",))


async def test_a_session_is_over_with_the_request_after_its_tokens_end(site: Site) -> None:
    words, token = await site.token("eve")
    cookie = await site.log_in(words)
    other = await site.log_in((await site.token("eve"))[0])
    await site.admin.RevokeToken(pool_pb2.TokenRef(id=token))
    answer = await site.posted(LIST, cookie=cookie)
    assert (answer.status, answer.json["message"]) == (401, f"the API token {token} was revoked")
    assert (await site.got("/session", cookie)).status == 401
    assert (await site.posted(LIST, cookie=other)).status == 200, "another token of the same person"


async def test_a_stream_ends_with_the_token(site: Site) -> None:
    words, token = await site.token("eve", "read")
    cookie = await site.log_in(words)
    watch = request("GET", '/stream?watch={"jobs":["Jobs/List",{}]}', cookie=cookie, Host=site.host)
    async with site.by_tls() as browser:
        await browser.send(watch)
        async with asyncio.timeout(SECONDS):
            assert b"200" in await browser.reader.readline()
            await browser.reader.readuntil(b"event: state")
            await site.admin.RevokeToken(pool_pb2.TokenRef(id=token))
            while await browser.reader.read(4096):
                pass
    assert (await site.got("/stream?watch={}", cookie)).status == 401


@pytest.mark.parametrize("words", ["", "gsp_aaaaaaaa_" + "a" * 52, "GSJ1-lab", "x" * 900])
async def test_words_that_are_no_token_let_nobody_in(site: Site, words: str) -> None:
    answer = await site.posted("/login", {"token": words})
    assert (answer.status, answer.json["code"]) == (401, "unauthenticated")


# --- administrators of the machine -----------------------------------------------------------------------


async def test_an_administrator_of_the_machine_logs_in_by_a_link(site: Site) -> None:
    async with site.by_socket(SOCKET_NAME) as client:
        link = (await client.ask(posted("/gpushare.v1.Web/Link", {"network": True}))).json
    assert link["url"] == f"https://{NAME}:{site.port}/"
    answer = await site.posted("/login", {"code": link["code"]})
    assert answer.status == 204
    assert (await site.posted(STATUS, cookie=answer.cookie)).json["pool"] == "lab"


async def test_the_command_makes_links_to_the_page_of_the_pool(site: Site) -> None:
    done = await asyncio.to_thread(
        subprocess.run,
        [str(GPUSHARE), "web", "--pool", "--link"],
        env={**os.environ, "GPUSHARE_POOL_SOCKET": str(site.folder / "run" / SOCKET_NAME)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    url, _, code = done.stdout.strip().partition("login#")
    assert url == f"https://{NAME}:{site.port}/", done.stderr
    assert (await site.posted("/login", {"code": code})).status == 204


async def test_the_socket_serves_its_own_callers_sessions_only(site: Site) -> None:
    cookie = await site.log_in((await site.token("eve"))[0])
    async with site.by_socket(SOCKET_NAME) as browser:
        await browser.send(UPGRADE)
        assert b"101" in await browser.reader.readuntil(b"\r\n\r\n")
        answer = await browser.ask(request("GET", "/session", cookie=cookie))
        assert (answer.status, answer.json["message"]) == (
            401,
            "this browser is logged in as another user, or at another address of the page",
        )


# --- proxies -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "status", "told"),
    [
        ("eve", 200, ("eve", False)),
        ("ada", 200, ("ada", True)),
        ("ada@ws1", 200, ("ada", True)),
        ("eve@ws1", 200, ("eve@ws1", False)),
        ("root", 403, "a proxy cannot say that its user is root"),
        ("root@ws1", 403, "a proxy cannot say that its user is root"),
        ("eve@", 403, "'eve@' is not a principal"),
        ("*@ws1", 403, "'*@ws1' is not a principal"),
    ],
)
async def test_a_proxy_names_a_person_of_the_pool(site: Site, name: str, status: int, told: object) -> None:
    async with site.by_socket("proxy.sock") as proxy:
        data = request("GET", "/session", Host=NAME, X_Forwarded_User=name)
        answer = await proxy.ask(data)
    found = answer.json
    shown = (found["user"], found["trusted"]) if status == 200 else found["message"]
    assert (answer.status, shown) == (status, told)
