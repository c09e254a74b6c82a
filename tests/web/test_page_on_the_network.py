"""A real daemon serves its page to the network: ``gpushare web --link``, and settings that change."""

from __future__ import annotations

import http.client
import json
import os
import pwd
import re
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.node.conftest import lone_daemon, new_daemon
from tests.node.daemon import DaemonProcess, wait_until
from tests.web.certificates import CertificateMaker

__all__ = ["lone_daemon", "new_daemon"]

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
SECONDS = 30
LINK = re.compile(r"https://localhost:(\d+)/login#([\w-]+)")
REFUSED = "gpushare: the page is not served to the network"


class NetworkPage:
    """The page of a daemon on the network, and what sets it up."""

    def __init__(self, daemon: DaemonProcess, folder: Path) -> None:
        self.daemon = daemon
        self.maker = CertificateMaker(folder)
        self.pair = self.maker.server("server", "localhost")
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            self.port: int = free.getsockname()[1]

    def set(self, *, listens: bool) -> None:
        """Change the settings, and let the daemon read them."""
        listen = f'listen = "127.0.0.1:{self.port}"\n' if listens else ""
        files = f'certificate = "{self.pair.certificate}"\nkey = "{self.pair.key}"\n'
        self.daemon.config = f"[web]\n{listen}{files}"
        (self.daemon.directory / "config.toml").write_text(self.daemon.config)
        self.daemon.signal(signal.SIGHUP)
        wait_until(lambda: self.listens() is listens, f"the page listens: {listens}")

    def listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    @contextmanager
    def browser(self) -> Iterator[http.client.HTTPSConnection]:
        context = ssl.create_default_context(cafile=str(self.maker.path))
        with closing(
            http.client.HTTPSConnection("localhost", self.port, timeout=SECONDS, context=context)
        ) as made:
            yield made

    def log_in(self, uid: int) -> str:
        """Log a browser in by a link of this user; return its cookie."""
        done = self.daemon.gpushare("web", "--link", uid=uid)
        match = LINK.fullmatch(done.stdout.strip())
        assert match, done
        assert done.stderr.strip() == "gpushare: the link works once, within 5m"
        with self.browser() as browser:
            status, _, cookie = ask(browser, "POST", "/login", {"code": match[2]})
        assert status == 204
        return cookie.partition(";")[0]


def ask(
    browser: http.client.HTTPSConnection, method: str, path: str, message: object = None, cookie: str = ""
) -> tuple[int, Any, str]:
    headers = {"Origin": f"https://localhost:{browser.port}", "Content-Type": "application/json"}
    body = json.dumps(message or {}) if method == "POST" else None
    browser.request(method, path, body, headers | {"Cookie": cookie})
    answer = browser.getresponse()
    text = answer.read()
    return answer.status, json.loads(text) if text else None, answer.getheader("Set-Cookie") or ""


@pytest.fixture
def page(lone_daemon: DaemonProcess, tmp_path: Path) -> NetworkPage:
    return NetworkPage(lone_daemon, tmp_path)


def test_the_page_is_on_the_network_as_long_as_the_settings_say_so(page: NetworkPage) -> None:
    refused = page.daemon.gpushare("web", "--link")
    assert refused.returncode != 0
    assert refused.stderr.startswith(REFUSED)
    page.set(listens=True)
    account = pwd.getpwnam("nobody")
    cookie = page.log_in(account.pw_uid)
    with page.browser() as browser:
        session = ask(browser, "GET", "/session", cookie=cookie)[1]
        assert (session["user"], session["uid"], session["trusted"]) == ("nobody", account.pw_uid, False)
        assert len(ask(browser, "POST", "/gpushare.v1.Gpus/List", cookie=cookie)[1]["gpus"]) == 2
        status, refusal, _ = ask(browser, "POST", "/gpushare.v1.Gpus/Drain", {"gpu": "0"}, cookie)
        assert (status, refusal["code"]) == (403, "permission_denied")
        assert ask(browser, "GET", "/containers/json", cookie=cookie)[0] == 404
    page.daemon.restart()
    wait_until(page.listens, "the page is back")
    with page.browser() as browser:
        assert ask(browser, "GET", "/session", cookie=cookie)[1]["user"] == "nobody"
    page.set(listens=False)


def test_root_has_its_rights_on_the_network_too(page: NetworkPage) -> None:
    page.set(listens=True)
    cookie = page.log_in(0)
    with page.browser() as browser:
        assert ask(browser, "GET", "/session", cookie=cookie)[1]["trusted"] is True
        assert ask(browser, "POST", "/gpushare.v1.Audit/List", cookie=cookie)[0] == 200


def test_a_certificate_that_cannot_be_used_is_a_trouble_of_the_node(page: NetworkPage) -> None:
    page.set(listens=True)
    page.pair.key.chmod(0o644)
    page.daemon.signal(signal.SIGHUP)
    told = f"the page's certificate: the private key {page.pair.key} may be used by others (mode 0644)"
    wait_until(lambda: told in str(page.daemon.call("Node/Status")), "the trouble is told")
    assert page.log_in(0), "the page is served with the old one"


@pytest.mark.parametrize("words", [("--port", "8700"), ("--allow-host", "gpu1")])
def test_a_link_to_the_network_needs_no_port_here(page: NetworkPage, words: tuple[str, ...]) -> None:
    done = page.daemon.gpushare("web", "--link", *words)
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        2,
        "gpushare: --link needs no --port and no --allow-host",
    )
