"""Browsers from the network and behind proxies: who they are, and what is believed of them."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from gpushared.config.web_settings import WebConfig
from gpushared.daemon.troubles import Troubles
from gpushared.domain.model.errors import PermissionRefused, StateConflict
from gpushared.domain.model.request import Caller
from gpushared.web.browser_site import TRIES_BURST, Access
from gpushared.web.listeners import BrowserListeners, UserLookups, caller_of_account
from gpushared.web.logins import CODE_SECONDS, User
from tests.web.certificates import CertificateMaker, KeyPair
from tests.web.raw_browser import (
    ADA,
    EVE,
    SECONDS,
    USER,
    Answer,
    Connection,
    EchoSite,
    NewSite,
    posted,
    request,
)

NAME = "gpu.example"
PROXY = Caller(os.getuid(), 0, "www-proxy")
ROOT = Caller(0, 0, "root", trusted=True)
OTHER_UID = 61001


class Accounts:
    """The accounts of a machine."""

    def __init__(self) -> None:
        self.callers = {one.name: one for one in (ADA, EVE, PROXY)}

    async def find(self, key: int | str) -> Caller:
        found = (one for one in self.callers.values() if key in {one.uid, one.name})
        if (caller := next(found, None)) is None:
            raise PermissionRefused(f"no account of this machine has {key}")
        return caller


class PublicSite:
    """A page that is served to the network and to proxies."""

    def __init__(self, echo: EchoSite, maker: CertificateMaker, web: WebConfig) -> None:
        self.echo = echo
        self.maker = maker
        self.web = web
        self.accounts = Accounts()
        echo.site = replace(echo.site, caller_of=partial(caller_of_account, self.accounts.find))
        self.troubles = Troubles()
        users = UserLookups(self.accounts.find, self.accounts.find)
        self.listeners = BrowserListeners(lambda: self.web, echo.site, users, self.troubles)

    @asynccontextmanager
    async def by_tls(
        self, client: KeyPair | None = None, source: str = "127.0.0.1"
    ) -> AsyncIterator[Connection]:
        context = ssl.create_default_context(cafile=str(self.maker.path))
        if client is not None:
            context.load_cert_chain(client.certificate, client.key)
        address = self.web.address
        assert address is not None
        connect = partial(
            asyncio.open_connection,
            *address,
            ssl=context,
            server_hostname=NAME,
            local_addr=(source, 0),
        )
        reader, writer = await _once_there(connect)
        try:
            yield Connection(reader, writer)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    @asynccontextmanager
    async def by_socket(self) -> AsyncIterator[Connection]:
        reader, writer = await _once_there(partial(asyncio.open_unix_connection, self.web.proxy_socket))
        try:
            yield Connection(reader, writer)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def ask(self, data: bytes) -> Answer:
        async with self.by_tls() as browser:
            return await browser.ask(data)

    async def log_in(self) -> str:
        answer = await self.ask(
            self.posted("/login", {"code": self.echo.logins.make_code(USER, network=True)})
        )
        assert answer.status == 204, answer
        return answer.cookie

    @property
    def host(self) -> str:
        assert self.web.address is not None
        return f"{NAME}:{self.web.address[1]}"

    def got(self, target: str, host: str = "", cookie: str = "") -> bytes:
        return request("GET", target, cookie=cookie, Host=host or self.host)

    def posted(self, target: str, message: object = None, **words: str | None) -> bytes:
        return posted(target, message, **{"Host": self.host, "Origin": f"https://{self.host}", **words})


async def _once_there(
    connect: Callable[[], object],
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                return await connect()  # type: ignore[misc, no-any-return]
            except (ConnectionRefusedError, FileNotFoundError):
                await asyncio.sleep(0.01)


@pytest.fixture
async def public_site(new_site: NewSite, tmp_path: Path) -> AsyncIterator[PublicSite]:
    maker = CertificateMaker(tmp_path)
    pair = maker.server("server", NAME)
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    web = WebConfig(
        listen=listen,
        certificate=str(pair.certificate),
        key=str(pair.key),
        proxy_ca=str(maker.path),
        proxy_socket=str(tmp_path / "proxy.sock"),
        proxy_users=(PROXY.name,),
    )
    made = PublicSite(new_site(), maker, web)
    running = asyncio.create_task(made.listeners.run())
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


# --- links -----------------------------------------------------------------------------------------------


async def test_a_link_logs_a_browser_of_the_network_in(public_site: PublicSite) -> None:
    code = public_site.echo.logins.make_code(USER, network=True)
    answer = await public_site.ask(public_site.posted("/login", {"code": code}))
    assert answer.status == 204
    assert {"Secure", "HttpOnly", "SameSite=Strict"} <= set(answer.headers["set-cookie"].split("; "))
    session = await public_site.ask(public_site.got("/session", cookie=answer.cookie))
    assert (session.status, session.json["user"], session.json["uid"]) == (200, "ada", ADA.uid)
    assert (await public_site.ask(public_site.posted("/login", {"code": code}))).status == 401


async def test_a_link_ends_after_its_time(public_site: PublicSite) -> None:
    code = public_site.echo.logins.make_code(USER, network=True)
    public_site.echo.now += CODE_SECONDS
    answer = await public_site.ask(public_site.posted("/login", {"code": code}))
    assert (answer.status, answer.json["code"]) == (401, "unauthenticated")


async def test_tries_from_one_address_are_bounded(public_site: PublicSite) -> None:
    async with public_site.by_tls() as browser:
        answers = [
            await browser.ask(public_site.posted("/login", {"code": "x"})) for _ in range(TRIES_BURST + 1)
        ]
    assert [one.status for one in answers] == [401] * TRIES_BURST + [429]
    code = public_site.echo.logins.make_code(USER, network=True)
    async with public_site.by_tls(source="127.0.0.2") as other:
        assert (await other.ask(public_site.posted("/login", {"code": code}))).status == 204


async def test_a_session_has_the_rights_that_the_account_has_now(public_site: PublicSite) -> None:
    cookie = await public_site.log_in()
    async with public_site.by_tls() as browser:
        ask = partial(browser.ask, public_site.got("/session", cookie=cookie))
        assert (await ask()).json["trusted"] is False
        public_site.accounts.callers["ada"] = replace(ADA, trusted=True)
        assert (await ask()).json["trusted"] is True
        del public_site.accounts.callers["ada"]
        gone = await ask()
        assert (gone.status, gone.json["message"]) == (401, f"no account of this machine has {ADA.uid}")
        public_site.accounts.callers["bob"] = replace(ADA, name="bob")
        reused = await ask()
        assert (reused.status, reused.json["message"]) == (401, f"uid {ADA.uid} was ada's and is bob's now")


async def test_the_audit_names_the_address_of_a_login(public_site: PublicSite) -> None:
    await public_site.ask(public_site.posted("/login", {"code": "wrong"}))
    await public_site.log_in()
    async with public_site.by_socket() as proxy:
        await proxy.ask(with_lines(public_site.got("/queue"), HEADER + "mallory"))
    assert [(one.user, one.endpoint, one.refused) for one in public_site.echo.lines] == [
        ("127.0.0.1", "Web/Login", True),
        ("ada", "Web/Login", False),
        ("a proxy", "/queue", True),
    ]
    assert public_site.echo.lines[1].text == "from 127.0.0.1"


@pytest.mark.parametrize("origin", ["http://{host}", "https://evil.example", "https://gpu.example"])
async def test_posts_of_other_pages_are_refused(public_site: PublicSite, origin: str) -> None:
    cookie = await public_site.log_in()
    words = {"cookie": cookie, "Origin": origin.format(host=public_site.host)}
    assert (await public_site.ask(public_site.posted("/gpushare.v1.Leases/Stop", **words))).status == 403
    assert not public_site.echo.calls


async def test_a_name_that_is_not_the_pages_is_refused(public_site: PublicSite) -> None:
    for host in ("evil.example", "10.0.0.1", f"{NAME}.evil.example"):
        assert (await public_site.ask(public_site.got("/", host))).status == 403
    for host in (NAME, f"{NAME}:443", public_site.host, "localhost:9000", socket.gethostname()):
        assert (await public_site.ask(public_site.got("/", host))).status == 200


# --- the header of proxies ----------------------------------------------------------------------------


HEADER = "X-Forwarded-User: "


def with_lines(data: bytes, *lines: str) -> bytes:
    head, _, body = data.partition(b"\r\n\r\n")
    return b"\r\n".join([head, *(line.encode() for line in lines)]) + b"\r\n\r\n" + body


WAYS = ["certificate", "socket"]


@asynccontextmanager
async def proxy_of(public_site: PublicSite, way: str) -> AsyncIterator[Connection]:
    made = (
        public_site.by_tls(public_site.maker.client("proxy"))
        if way == "certificate"
        else public_site.by_socket()
    )
    async with made as connection:
        yield connection


@pytest.mark.parametrize("way", WAYS)
async def test_a_proxy_names_the_user_of_each_request(public_site: PublicSite, way: str) -> None:
    async with proxy_of(public_site, way) as proxy:
        for name in ("ada", "eve", "ada"):
            answer = await proxy.ask(with_lines(public_site.got("/session"), HEADER + name))
            assert (answer.status, answer.json["user"]) == (200, name)
            assert "set-cookie" not in answer.headers
        call = await proxy.ask(
            with_lines(public_site.posted("/gpushare.v1.Leases/List"), "x-forwarded-user: eve")
        )
        assert (call.status, call.json["user"]) == (200, "eve")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "the header X-Forwarded-User is missing"),
        ([HEADER], "which is not one user's name"),
        ([HEADER + "ada", HEADER + "eve"], "'ada, eve', which is not one user's name"),
        ([HEADER + "ada", HEADER + "ada"], "which is not one user's name"),
        ([HEADER + "ada,eve"], "which is not one user's name"),
        ([HEADER + "ada eve"], "which is not one user's name"),
        ([HEADER + "x" * 65], "which is not one user's name"),
        ([HEADER + "\xff"], "no account of this machine has \xff"),
        ([HEADER + "mallory"], "no account of this machine has mallory"),
        ([HEADER + "1000"], "no account of this machine has 1000"),
        ([HEADER + "root"], "a proxy cannot say that its user is root"),
        (["X_Forwarded_User: ada"], "the header X-Forwarded-User is missing"),
        (["X-Forwarded-Email: ada"], "the header X-Forwarded-User is missing"),
    ],
)
async def test_a_header_that_names_nobody_lets_nobody_in(
    public_site: PublicSite, way: str, lines: list[str], words: str
) -> None:
    public_site.accounts.callers["root"] = ROOT
    cookie = await public_site.log_in()
    for data in (public_site.got("/session", cookie=cookie), public_site.posted("/gpushare.v1.Leases/List")):
        async with proxy_of(public_site, way) as proxy:
            answer = await proxy.ask(with_lines(data, *lines))
        assert (answer.status, words in answer.json["message"]) == (403, True), answer
    async with proxy_of(public_site, way) as proxy:
        page = await proxy.ask(with_lines(public_site.got("/queue"), *lines))
    assert (page.status, page.headers["content-type"]) == (403, "text/html; charset=utf-8")
    assert words.replace("'", "&#x27;") in page.body.decode()
    assert not public_site.echo.calls


@pytest.mark.parametrize("way", WAYS)
async def test_behind_a_proxy_nobody_logs_in(public_site: PublicSite, way: str) -> None:
    code = public_site.echo.logins.make_code(USER, network=True)
    async with proxy_of(public_site, way) as proxy:
        answer = await proxy.ask(with_lines(public_site.posted("/login", {"code": code}), HEADER + "eve"))
    assert (answer.status, answer.json["message"]) == (400, "behind this proxy nobody logs in")


async def test_from_anybody_else_the_header_changes_nothing(public_site: PublicSite) -> None:
    assert (await public_site.ask(with_lines(public_site.got("/session"), HEADER + "eve"))).status == 401
    cookie = await public_site.log_in()
    with_cookie = await public_site.ask(
        with_lines(public_site.got("/session", cookie=cookie), HEADER + "eve")
    )
    assert with_cookie.json["user"] == "ada"
    local = await public_site.echo.ask(
        with_lines(request("GET", "/session"), HEADER + "eve"), Access(caller=ADA)
    )
    assert local.status == 401


async def test_the_name_of_the_header_is_a_setting(public_site: PublicSite) -> None:
    public_site.web = replace(public_site.web, proxy_header="Remote-User")
    async with public_site.by_socket() as proxy:
        answer = await proxy.ask(with_lines(public_site.got("/session"), "Remote-User: ada", HEADER + "eve"))
    assert answer.json["user"] == "ada"


@pytest.mark.parametrize(
    ("way", "change"),
    [("certificate", {"proxy_ca": ""}), ("socket", {"proxy_users": ("another",)})],
)
async def test_an_open_connection_is_believed_only_while_the_settings_say_so(
    public_site: PublicSite, way: str, change: dict[str, object]
) -> None:
    async with proxy_of(public_site, way) as proxy:
        data = with_lines(public_site.got("/session"), HEADER + "ada")
        assert (await proxy.ask(data)).status == 200
        public_site.web = replace(public_site.web, **change)  # type: ignore[arg-type]
        answer = await proxy.ask(data)
    assert (answer.status, answer.json["message"]) == (403, "this proxy is not believed any more")


async def test_other_accounts_get_no_connection_at_the_socket_of_proxies(public_site: PublicSite) -> None:
    public_site.accounts.callers[PROXY.name] = replace(PROXY, uid=OTHER_UID)
    async with public_site.by_socket() as stranger:
        await stranger.send(with_lines(public_site.got("/session"), HEADER + "ada"))
        assert await _is_closed(stranger)


async def _is_closed(connection: Connection) -> bool:
    async with asyncio.timeout(SECONDS):
        try:
            return await connection.reader.read() == b""
        except ConnectionResetError:
            return True


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
async def test_the_kernel_says_whose_program_connects_to_the_socket_of_proxies(
    public_site: PublicSite,
) -> None:
    public_site.accounts.callers[PROXY.name] = replace(PROXY, uid=OTHER_UID)
    folder = Path(public_site.web.proxy_socket).parent
    async with public_site.by_socket():
        pass
    for each in (folder, *folder.parents):
        if each.stat().st_uid == 0 and each != Path("/"):
            each.chmod(each.stat().st_mode | 0o011)
    program = (
        "import os, socket, sys; uid = int(sys.argv[1]); data = sys.stdin.buffer.read(); "
        "os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid); "
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[2]); s.sendall(data); print(s.recv(15).decode())"
    )
    ran = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-I", "-c", program, str(OTHER_UID), public_site.web.proxy_socket],
        input=with_lines(public_site.got("/session"), HEADER + "ada"),
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    assert ran.stdout.decode().strip() == "HTTP/1.1 200", ran.stderr


# --- addresses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "url"),
    [
        ({"hosts": ("www.example",)}, "https://www.example:8443/"),
        ({"hosts": ("fe80::1",), "base_path": "/gpus/"}, "https://[fe80::1]:8443/gpus/"),
        ({}, f"https://{NAME}:8443/"),
        ({"certificate": "", "key": "", "proxy_ca": ""}, "http://127.0.0.1:8443/"),
    ],
)
async def test_links_lead_to_the_pages_address(
    public_site: PublicSite, change: dict[str, object], url: str
) -> None:
    async with public_site.by_tls():
        pass  # the certificate has been read
    public_site.web = replace(public_site.web, listen="127.0.0.1:8443", **change)  # type: ignore[arg-type]
    if not public_site.web.certificate:
        public_site.listeners.reload()
        async with asyncio.timeout(SECONDS):
            while public_site.listeners.url() != url:  # noqa: ASYNC110 - the listener has no event for it
                await asyncio.sleep(0.01)
    assert public_site.listeners.url() == url


async def test_a_page_that_is_not_on_the_network_has_no_address(public_site: PublicSite) -> None:
    public_site.web = WebConfig()
    with pytest.raises(StateConflict, match="not served to the network"):
        public_site.listeners.url()


async def test_a_user_of_a_code_is_kept_with_the_name(public_site: PublicSite) -> None:
    code = public_site.echo.logins.make_code(User(0, 0, "root"), network=True)
    answer = await public_site.ask(public_site.posted("/login", {"code": code}))
    assert answer.status == 401, "root has no account in this world"
