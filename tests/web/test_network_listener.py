"""The listener for browsers on the network: TLS, certificates that change, and bounds on connections."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import pytest

from gpushared.config.web_settings import WebConfig
from gpushared.daemon.troubles import Troubles
from gpushared.domain.model.errors import ConfigError
from gpushared.net.socket_wire import Wire
from gpushared.web import network_listener
from gpushared.web.arrivals import Arrival
from gpushared.web.certificates import PART, CertificateFiles, TlsFiles, load
from gpushared.web.network_listener import NetworkListener
from gpushared.web.open_connections import OpenConnections
from tests.web.certificates import CertificateMaker, KeyPair

SECONDS = 20
LARGE = 3_000_000
"""More than the buffers on the way hold."""


class EchoListener:
    """A listener that answers each line with the way by which the line came."""

    def __init__(self, web: WebConfig) -> None:
        self.web = web
        self.troubles = Troubles()
        self.ended = asyncio.Event()
        self.answer = b""
        self.listener = NetworkListener(lambda: self.web, self._serve, self.troubles, time.time)

    async def _serve(self, wire: Wire, arrival: Arrival) -> None:
        try:
            pending = b""
            while data := await wire.read():
                *lines, pending = (pending + data).split(b"\n")
                if self.answer:
                    await self._give_up(wire)
                    return
                for line in lines:
                    is_proxy = arrival.is_proxy is not None and arrival.is_proxy()
                    words = f"{arrival.address} {arrival.is_secure} {is_proxy}"
                    await wire.write([line, b" ", words.encode(), b"\n"])
        except ConnectionError:
            pass
        finally:
            wire.close()
            self.ended.set()

    async def _give_up(self, wire: Wire) -> None:
        """Answer much, and end as the HTTP server does with a reader that is too slow."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await wire.write([self.answer])

    @property
    def port(self) -> int:
        address = self.web.address
        assert address is not None
        return address[1]

    def context(self, trusted: Path, client: KeyPair | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(trusted))
        if client is not None:
            context.load_cert_chain(client.certificate, client.key)
        return context

    async def connect(
        self, context: ssl.SSLContext | None, source: str = "127.0.0.1"
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with asyncio.timeout(SECONDS):
            while True:
                try:
                    return await asyncio.open_connection(
                        "127.0.0.1", self.port, ssl=context, local_addr=(source, 0)
                    )
                except ConnectionRefusedError:
                    await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(web: WebConfig) -> AsyncIterator[EchoListener]:
    echo_listener = EchoListener(web)
    running = asyncio.create_task(echo_listener.listener.run())
    try:
        yield echo_listener
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def settings(pair: KeyPair | None = None, proxy_ca: str = "") -> WebConfig:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    if pair is None:
        return WebConfig(listen=listen)
    return WebConfig(listen=listen, certificate=str(pair.certificate), key=str(pair.key), proxy_ca=proxy_ca)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    writer.write(b"line\n")
    async with asyncio.timeout(SECONDS):
        return (await reader.readline()).decode().strip()


async def is_refused(echo_listener: EchoListener, context: ssl.SSLContext) -> bool:
    """Try to talk; a client of TLS 1.3 learns of a refused certificate only from its first read."""
    try:
        reader, writer = await echo_listener.connect(context)
        try:
            return await echo(reader, writer) == ""
        finally:
            writer.close()
    except (ssl.SSLError, ConnectionError):
        return True


@pytest.fixture
def maker(tmp_path: Path) -> CertificateMaker:
    return CertificateMaker(tmp_path)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110 - the listener has no event for it
            await asyncio.sleep(0.01)


async def test_a_browser_is_served_by_tls_and_no_client_certificate_makes_it_a_proxy(
    maker: CertificateMaker,
) -> None:
    async with serving(settings(maker.server("server"))) as echo_listener:
        reader, writer = await echo_listener.connect(echo_listener.context(maker.path))
        assert await echo(reader, writer) == "line 127.0.0.1 True False"
        writer.close()
        await asyncio.wait_for(echo_listener.ended.wait(), SECONDS)


async def test_much_is_carried_both_ways(maker: CertificateMaker) -> None:
    async with serving(settings(maker.server("server"))) as echo_listener:
        reader, writer = await echo_listener.connect(echo_listener.context(maker.path))
        lines = LARGE // 100
        sending = asyncio.create_task(_send(writer, b"x" * 99 + b"\n", lines))
        async with asyncio.timeout(SECONDS):
            for _ in range(lines):
                assert (await reader.readline()).startswith(b"x" * 99)
            await sending
        writer.close()


async def _send(writer: asyncio.StreamWriter, line: bytes, count: int) -> None:
    for _ in range(count):
        writer.write(line)
        await writer.drain()


async def test_on_loopback_the_page_may_be_served_without_tls() -> None:
    async with serving(settings()) as echo_listener:
        reader, writer = await echo_listener.connect(None)
        assert await echo(reader, writer) == "line 127.0.0.1 False False"
        writer.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.*is deprecated")
async def test_old_versions_of_tls_are_refused(maker: CertificateMaker, version: ssl.TLSVersion) -> None:
    async with serving(settings(maker.server("server"))) as echo_listener:
        context = echo_listener.context(maker.path)
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = context.maximum_version = version
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await echo_listener.connect(context)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_newer_versions_are_taken(maker: CertificateMaker, version: ssl.TLSVersion) -> None:
    async with serving(settings(maker.server("server"))) as echo_listener:
        context = echo_listener.context(maker.path)
        context.minimum_version = context.maximum_version = version
        reader, writer = await echo_listener.connect(context)
        assert await echo(reader, writer) == "line 127.0.0.1 True False"
        writer.close()


async def test_plain_http_at_the_port_for_tls_gets_no_answer(maker: CertificateMaker) -> None:
    async with serving(settings(maker.server("server"))) as echo_listener:
        reader, writer = await echo_listener.connect(None)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(SECONDS):
            assert b"HTTP" not in await reader.read()
        writer.close()


async def test_a_silent_handshake_ends(maker: CertificateMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_listener, "HANDSHAKE_SECONDS", 0.2)
    async with serving(settings(maker.server("server"))) as echo_listener:
        reader, writer = await echo_listener.connect(None)
        async with asyncio.timeout(SECONDS):
            assert await reader.read() == b""
        writer.close()


async def test_a_browser_that_does_not_read_is_not_waited_for_after_its_server(
    maker: CertificateMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_listener, "LAST_SECONDS", 0.2)
    async with serving(settings(maker.server("server"))) as echo_listener:
        _, writer = await echo_listener.connect(echo_listener.context(maker.path))
        transport = writer.transport
        assert isinstance(transport, asyncio.ReadTransport)
        transport.pause_reading()
        echo_listener.answer = bytes(LARGE)
        writer.write(b"line\n")
        await asyncio.wait_for(echo_listener.ended.wait(), SECONDS)
        await until(lambda: not echo_listener.listener.connections)
        transport.abort()


# --- proxies by their certificates -----------------------------------------------------------------------


async def test_a_certificate_of_the_proxies_authority_makes_a_proxy_until_the_setting_changes(
    maker: CertificateMaker,
) -> None:
    web = settings(maker.server("server"), proxy_ca=str(maker.path))
    async with serving(web) as echo_listener:
        reader, writer = await echo_listener.connect(echo_listener.context(maker.path, maker.client("proxy")))
        assert (await echo(reader, writer)).endswith("True True")
        bare = await echo_listener.connect(echo_listener.context(maker.path))
        assert (await echo(*bare)).endswith("True False")
        echo_listener.web = replace(web, proxy_ca="")
        assert (await echo(reader, writer)).endswith("True False")
        for each in (writer, bare[1]):
            each.close()


async def test_a_certificate_of_another_authority_is_refused(maker: CertificateMaker, tmp_path: Path) -> None:
    stranger = CertificateMaker(tmp_path, "stranger")
    async with serving(settings(maker.server("server"), proxy_ca=str(maker.path))) as echo_listener:
        assert await is_refused(echo_listener, echo_listener.context(maker.path, stranger.client("proxy")))
        assert not echo_listener.ended.is_set()


async def test_a_servers_certificate_of_the_same_authority_makes_no_proxy(maker: CertificateMaker) -> None:
    async with serving(settings(maker.server("server"), proxy_ca=str(maker.path))) as echo_listener:
        assert await is_refused(echo_listener, echo_listener.context(maker.path, maker.server("other")))
        assert not echo_listener.ended.is_set()


# --- certificates that change ----------------------------------------------------------------------------


async def test_new_connections_get_a_new_certificate_and_old_ones_go_on(maker: CertificateMaker) -> None:
    async with serving(settings(maker.server("server", "localhost", "127.0.0.1"))) as echo_listener:
        context = echo_listener.context(maker.path)
        older = await echo_listener.connect(context)
        before = older[1].get_extra_info("peercert")
        maker.server("server", "localhost", "127.0.0.1")
        echo_listener.listener.reload()
        await until(lambda: echo_listener.listener.certificate is not None)
        newer = await _until_another(echo_listener, context, before)
        assert await echo(*older) == "line 127.0.0.1 True False"
        assert await echo(*newer) == "line 127.0.0.1 True False"
        for _, writer in (older, newer):
            writer.close()


async def _until_another(
    echo_listener: EchoListener, context: ssl.SSLContext, before: object
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with asyncio.timeout(SECONDS):
        while True:
            reader, writer = await echo_listener.connect(context)
            if writer.get_extra_info("peercert") != before:
                return reader, writer
            writer.close()


async def test_a_bad_certificate_leaves_the_old_one_and_raises_a_trouble(maker: CertificateMaker) -> None:
    pair = maker.server("server")
    async with serving(settings(pair)) as echo_listener:
        await until(lambda: echo_listener.listener.certificate)
        good = pair.key.read_bytes()
        pair.key.write_text("no key")
        echo_listener.listener.reload()
        await until(lambda: echo_listener.troubles.of(PART))
        assert "cannot be used together" in echo_listener.troubles.of(PART)
        reader, writer = await echo_listener.connect(echo_listener.context(maker.path))
        assert await echo(reader, writer) == "line 127.0.0.1 True False"
        writer.close()
        pair.key.write_bytes(good)
        echo_listener.listener.reload()
        await until(lambda: not echo_listener.troubles.of(PART))


async def test_a_page_without_a_readable_certificate_waits_for_one(
    maker: CertificateMaker, tmp_path: Path
) -> None:
    missing = KeyPair(tmp_path / "later.pem", tmp_path / "later.key")
    async with serving(settings(missing)) as echo_listener:
        await until(lambda: echo_listener.troubles.of(PART))
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", echo_listener.port)
        maker.server("later")
        echo_listener.listener.reload()
        reader, writer = await echo_listener.connect(echo_listener.context(maker.path))
        assert await echo(reader, writer) == "line 127.0.0.1 True False"
        writer.close()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda pair: pair.key.chmod(0o644), "may be used by others (mode 0644)"),
        (lambda pair: pair.key.chmod(0o660), "may be used by others (mode 0660)"),
        (lambda pair: pair.key.unlink(), "cannot be read: No such file"),
        (lambda pair: pair.key.write_text(""), "cannot be used together"),
        (lambda pair: pair.certificate.unlink(), "cannot be read: No such file"),
        (lambda pair: pair.certificate.write_bytes(b"\0"), "has no certificate in PEM"),
        (lambda pair: pair.certificate.write_bytes(bytes(2 << 20)), "is too long"),
    ],
)
def test_files_that_cannot_be_used_are_refused_in_a_sentence(
    maker: CertificateMaker, spoil: Callable[[KeyPair], object], words: str
) -> None:
    pair = maker.server("server")
    spoil(pair)
    with pytest.raises(ConfigError) as refusal:
        load(TlsFiles(str(pair.certificate), str(pair.key)))
    assert words in refusal.value.message
    assert refusal.value.hint


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no certificate in PEM"),
        ("{good}-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "cannot be used"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n{good}", "has no certificate in PEM"),
    ],
)
def test_an_authority_of_proxies_that_cannot_be_used_is_refused_in_a_sentence(
    maker: CertificateMaker, tmp_path: Path, text: str, words: str
) -> None:
    pair, authority = maker.server("server"), tmp_path / "proxies.pem"
    authority.write_text(text.format(good=maker.path.read_text()))
    with pytest.raises(ConfigError, match=words):
        load(TlsFiles(str(pair.certificate), str(pair.key), str(authority)))


def test_a_key_with_a_password_is_refused_without_a_question(maker: CertificateMaker) -> None:
    pair = maker.server("server")
    _protect(pair.key)
    with pytest.raises(ConfigError, match="cannot be used together"):
        load(TlsFiles(str(pair.certificate), str(pair.key)))


def _protect(path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(path.read_bytes(), None)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )


def test_a_key_that_a_group_may_read_is_taken(maker: CertificateMaker) -> None:
    pair = maker.server("server", "gpu.example", "*.example", "10.0.0.5")
    pair.key.chmod(0o640)
    read = load(TlsFiles(str(pair.certificate), str(pair.key)))
    assert read.names == ("gpu.example", "10.0.0.5")


@pytest.mark.parametrize(
    ("life", "words"),
    [(dt.timedelta(days=3), "it expires on "), (dt.timedelta(days=-1), "it has expired on ")],
)
async def test_a_certificate_that_ends_soon_is_used_and_raises_a_trouble(
    maker: CertificateMaker, life: dt.timedelta, words: str
) -> None:
    pair, troubles = maker.server("server", life=life), Troubles()
    files = CertificateFiles(lambda: TlsFiles(str(pair.certificate), str(pair.key)), troubles, time.time)
    await files.look()
    assert files.current is not None
    assert words in troubles.of(PART)


# --- bounds ----------------------------------------------------------------------------------------------


async def test_connections_beyond_an_addresss_bound_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_listener, "OpenConnections", lambda: OpenConnections(8, 2))
    async with serving(settings()) as echo_listener:
        two = [await echo_listener.connect(None) for _ in range(2)]
        for each in two:
            await echo(*each)
        third = await echo_listener.connect(None)
        async with asyncio.timeout(SECONDS):
            assert await third[0].read() == b""
        other = await echo_listener.connect(None, "127.0.0.2")
        assert await echo(*other) == "line 127.0.0.2 False False"
        for _, writer in (*two, third, other):
            writer.close()


async def test_when_all_are_in_use_the_address_that_has_most_loses_its_oldest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(network_listener, "OpenConnections", lambda: OpenConnections(3, 3))
    async with serving(settings()) as echo_listener:
        three = [await echo_listener.connect(None) for _ in range(3)]
        for each in three:
            await echo(*each)
        other = await echo_listener.connect(None, "127.0.0.2")
        assert await echo(*other) == "line 127.0.0.2 False False"
        async with asyncio.timeout(SECONDS):
            assert await three[0][0].read() == b""
        assert await echo(*three[1]) == "line 127.0.0.1 False False"
        for _, writer in (*three, other):
            writer.close()
