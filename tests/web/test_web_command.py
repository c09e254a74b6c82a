"""``gpushare web`` lets browsers of its user in to a real daemon, and no connection of anybody else."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from gpushared.cli.web import ssh_line
from gpushared.cli.web_forwarder import owner_of
from tests.node.conftest import NewDaemon, lone_daemon, new_daemon
from tests.node.daemon import AS_USER, GPUSHARE, DaemonProcess, make_directory, wait_until

__all__ = ["lone_daemon", "new_daemon"]

ADA, EVE, BOB = 61001, 61002, 61003
SECONDS = 30
LINK = re.compile(r"http://127\.0\.0\.1:(\d+)(/\S*)login#([\w-]+)")
AS_UID = """
import encodings.idna, os, socket, sys
uid, port, data = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode()
os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
with socket.create_connection(("127.0.0.1", port), 20) as browser:
    browser.sendall(data)
    try:
        print(browser.recv(100).decode(errors="replace").partition("\\r")[0])
    except ConnectionResetError:
        print()
"""
"""A program of another user that sends something to a port, and prints the first line of the answer."""


@dataclass
class Forwarder:
    """A running ``gpushare web``, and what it printed."""

    process: subprocess.Popen[str]
    port: int
    base: str
    code: str

    def ask(self, method: str, path: str, message: object = None, **headers: str) -> tuple[int, Any, str]:
        """One request of a browser: the status, the answer's JSON, and the cookie that it sets."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)) as browser:
            own = {"Content-Type": "application/json", "Origin": f"http://127.0.0.1:{self.port}"}
            body = json.dumps(message or {}) if method == "POST" else None
            browser.request(method, self.base + path, body, (own if body else {}) | headers)
            answer = browser.getresponse()
            text = answer.read()
            is_json = answer.headers.get_content_type() == "application/json" and text
            cookie = (answer.getheader("Set-Cookie") or "").partition(";")[0]
            return answer.status, json.loads(text) if is_json else text, cookie

    def log_in(self) -> str:
        status, _, cookie = self.ask("POST", "login", {"code": self.code})
        assert status == 204
        return cookie


@contextmanager
def forwarding(
    daemon: DaemonProcess,
    *words: str,
    uid: int = 0,
    environment: Sequence[tuple[str, str]] = (),
    opens: bool = False,
) -> Iterator[Forwarder]:
    command = [sys.executable, str(AS_USER), str(uid)] if uid else [str(GPUSHARE)]
    inherited = {name: value for name, value in os.environ.items() if name not in {"BROWSER", "DISPLAY"}}
    with subprocess.Popen(
        [*command, "web", *(() if opens else ("--no-browser",)), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**inherited, "GPUSHARE_HOST": f"unix://{daemon.socket}", **dict(environment)},
    ) as process:
        try:
            assert process.stdout is not None
            match = LINK.fullmatch(process.stdout.readline().strip())
            assert match, process.stderr and process.stderr.read()
            yield Forwarder(process, int(match[1]), match[2], match[3])
        finally:
            process.send_signal(signal.SIGTERM)


@pytest.fixture(scope="module")
def page_daemon() -> Iterator[DaemonProcess]:
    """A daemon with two simulated GPUs and no engine, which no test stops."""
    daemon = DaemonProcess(make_directory(), engine="/nonexistent/docker.sock")
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.dispose()


def stranger(uid: int, port: int, data: str) -> str:
    """The first line that a program of this user gets from a port; empty if it was closed."""
    done = subprocess.run(
        [sys.executable, "-c", AS_UID, str(uid), str(port), data],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    return done.stdout.strip()


def test_the_link_lets_a_browser_in_with_the_rights_of_its_user(page_daemon: DaemonProcess) -> None:
    with forwarding(page_daemon, uid=BOB) as ada:
        assert ada.ask("GET", "session")[0] == 401
        cookie = ada.log_in()
        _, session, _ = ada.ask("GET", "session", Cookie=cookie)
        assert (session["uid"], session["trusted"], session["simulated"]) == (BOB, False, True)
        status, answer, _ = ada.ask("POST", "gpushare.v1.Gpus/List", Cookie=cookie)
        assert (status, len(answer["gpus"])) == (200, 2)
        status, refused, _ = ada.ask("POST", "gpushare.v1.Gpus/Drain", {"gpu": "0"}, Cookie=cookie)
        assert (status, refused["code"]) == (403, "permission_denied")
        assert ada.ask("GET", "containers/json", Cookie=cookie)[0] == 404
    expected = {("Web/Link", 200), ("Web/Login", 200), ("Gpus/Drain", 403)}
    wait_until(lambda: told(page_daemon, BOB) >= expected, "the audit has all of it")
    assert told(page_daemon, BOB) == expected


def told(daemon: DaemonProcess, uid: int) -> set[tuple[str, int]]:
    """What the audit has of a user: calls, and the status of their answers."""
    lines = daemon.call("Audit/List")["lines"]
    return {(line["endpoint"], line["status"]) for line in lines if line["uid"] == str(uid)}


def test_what_a_browser_changes_is_its_users(page_daemon: DaemonProcess) -> None:
    lease = page_daemon.request("0.25", uid=EVE)
    with forwarding(page_daemon, uid=ADA) as ada, forwarding(page_daemon, uid=EVE) as eve:
        for browser, status in ((ada, 403), (eve, 200)):
            asked = browser.ask(
                "POST", "gpushare.v1.Leases/Release", {"lease_id": lease["id"]}, Cookie=browser.log_in()
            )
            assert asked[0] == status, asked


def test_a_browsers_session_outlives_the_daemon_and_the_command(lone_daemon: DaemonProcess) -> None:
    with forwarding(lone_daemon, uid=ADA) as first:
        cookie = first.log_in()
        lone_daemon.terminate()
        status, text, _ = first.ask("GET", "session", Cookie=cookie)
        assert status == 503
        assert b"daemon does not answer" in text
        lone_daemon.start()
        assert first.ask("GET", "session", Cookie=cookie)[0] == 200
    with forwarding(lone_daemon, uid=ADA) as second:
        assert second.ask("GET", "session", Cookie=cookie)[1]["uid"] == ADA


def test_a_session_or_a_code_of_another_user_is_refused(page_daemon: DaemonProcess) -> None:
    with forwarding(page_daemon, uid=ADA) as ada, forwarding(page_daemon, uid=EVE) as eve:
        assert eve.ask("GET", "session", Cookie=ada.log_in())[0] == 401
    with forwarding(page_daemon, uid=ADA) as ada, forwarding(page_daemon, uid=EVE) as eve:
        assert eve.ask("POST", "login", {"code": ada.code})[0] == 403
        assert ada.ask("POST", "login", {"code": ada.code})[0] == 401


def test_a_connection_of_another_user_is_closed(page_daemon: DaemonProcess) -> None:
    request = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with forwarding(page_daemon, uid=ADA) as ada:
        assert stranger(EVE, ada.port, request) == ""
        assert stranger(ADA, ada.port, request) == "HTTP/1.1 200"
        assert stranger(0, ada.port, request) == "HTTP/1.1 200"
        ada.process.terminate()
        assert ada.process.stderr is not None
        assert f"a connection of another user (uid {EVE}) was refused" in ada.process.stderr.read()


def test_with_sudo_the_user_who_became_root_may_connect(page_daemon: DaemonProcess) -> None:
    request = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    sudoer = ("SUDO_UID", str(ADA))
    with forwarding(page_daemon, environment=[sudoer]) as root:
        assert stranger(ADA, root.port, request) == "HTTP/1.1 200"
        assert stranger(EVE, root.port, request) == ""
    with forwarding(page_daemon, uid=EVE, environment=[sudoer]) as eve:
        assert stranger(ADA, eve.port, request) == ""


def test_a_socket_that_is_closed_belongs_to_nobody() -> None:
    """The kernel shows the uid 0 for sockets that have no process any more."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        with accepted:
            ends = accepted.getpeername(), accepted.getsockname()
            assert owner_of(ends) == os.getuid()
            client.close()
            assert owner_of(ends) is None


def test_a_client_that_speaks_ipv6_is_known_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_INET6) as client:
        client.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        client.connect(("::ffff:127.0.0.1", server.getsockname()[1]))
        accepted, _ = server.accept()
        with accepted:
            assert owner_of((accepted.getpeername(), accepted.getsockname())) == os.getuid()
            assert owner_of((accepted.getsockname(), accepted.getpeername())) == os.getuid()


def test_a_port_that_is_taken_is_an_error_only_where_it_was_named(page_daemon: DaemonProcess) -> None:
    with forwarding(page_daemon) as first, forwarding(page_daemon) as second:
        assert first.port != second.port
        done = page_daemon.gpushare("web", "--no-browser", "--port", str(first.port))
        assert (done.returncode, done.stdout) == (2, "")
        assert f"port {first.port} cannot be listened on" in done.stderr


def test_a_name_is_served_where_the_user_allows_it(page_daemon: DaemonProcess) -> None:
    with forwarding(page_daemon, "--allow-host", "gpu1.example.org") as browser:
        assert browser.ask("GET", "", Host="gpu1.example.org:8443")[0] == 200
        assert browser.ask("GET", "", Host="gpu2.example.org")[0] == 403


@pytest.mark.parametrize("host", ["a b", "a,b", "a\r\nX: y", "http://a", "ä"])
def test_a_name_that_is_none_is_refused(page_daemon: DaemonProcess, host: str) -> None:
    assert page_daemon.gpushare("web", "--no-browser", "--allow-host", host).returncode == 2


def test_the_page_is_below_the_base_path(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(config='[web]\nbase_path = "/gpus/"\n')
    daemon.start()
    with forwarding(daemon) as browser:
        assert browser.base == "/gpus/"
        cookie = browser.log_in()
        assert browser.ask("GET", "session", Cookie=cookie)[1]["base"] == "/gpus/"
        assert b'<base href="/gpus/">' in browser.ask("GET", "queue")[1]


def test_hours_and_base_path_change_at_a_reload(new_daemon: NewDaemon) -> None:
    daemon = new_daemon()
    daemon.start()
    with forwarding(daemon) as browser:
        daemon.config = '[web]\nbase_path = "/g/"\nsession_hours = 2\n'
        (daemon.directory / "config.toml").write_text(daemon.config)
        daemon.signal(signal.SIGHUP)
        browser.base = "/g/"
        wait_until(lambda: browser.ask("GET", "queue")[0] == 200, "the base path changes")
        with closing(http.client.HTTPConnection("127.0.0.1", browser.port, timeout=SECONDS)) as raw:
            own = {"Content-Type": "application/json", "Origin": f"http://127.0.0.1:{browser.port}"}
            raw.request("POST", "/g/login", json.dumps({"code": browser.code}), own)
            assert "Path=/g/; Max-Age=7200;" in (raw.getresponse().getheader("Set-Cookie") or "")


def test_a_stuck_browser_does_not_keep_others_waiting(page_daemon: DaemonProcess) -> None:
    with forwarding(page_daemon) as browser:
        stuck = [socket.create_connection(("127.0.0.1", browser.port)) for _ in range(20)]
        try:
            for one in stuck:
                one.sendall(b"GET / HTTP/1.1\r\nHost: local")
            assert browser.ask("GET", "")[0] == 200
        finally:
            for one in stuck:
                one.close()


def test_the_daemons_socket_serves_browsers_only_after_an_upgrade(page_daemon: DaemonProcess) -> None:
    for words in ("", "Upgrade: tcp\r\n", "Upgrade: gpushare-browser\r\nContent-Length: 1\r\n"):
        with socket.socket(socket.AF_UNIX) as channel:
            channel.settimeout(SECONDS)
            channel.connect(str(page_daemon.socket))
            head = f"GET /gpushare.web/browser HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n{words}\r\n"
            channel.sendall(head.encode())
            assert channel.recv(100).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    ("connection", "line"),
    [
        ("", ""),
        ("10.0.0.1 5 10.0.0.9 22", "ssh -N -L 8642:127.0.0.1:8642 ada@10.0.0.9"),
        ("10.0.0.1 5 10.0.0.9 2222", "ssh -N -p 2222 -L 8642:127.0.0.1:8642 ada@10.0.0.9"),
        ("broken", ""),
    ],
)
def test_the_line_for_home_follows_the_ssh_session(
    monkeypatch: pytest.MonkeyPatch, connection: str, line: str
) -> None:
    monkeypatch.setenv("SSH_CONNECTION", connection)
    monkeypatch.setenv("USER", "ada")
    assert ssh_line(8642) == line


def test_a_browser_is_opened_where_one_is_named(page_daemon: DaemonProcess, tmp_path: Path) -> None:
    program, told = tmp_path / "browser", tmp_path / "link"
    program.write_text(f'#!/bin/sh\nprintf "%s" "$1" > {told}\n')
    program.chmod(0o755)
    with forwarding(page_daemon, environment=[("BROWSER", str(program))], opens=True) as browser:
        wait_until(lambda: told.exists() and told.read_text(), "a browser is opened")
        assert told.read_text() == f"http://127.0.0.1:{browser.port}/login#{browser.code}"


def test_the_command_ends_at_once_also_while_a_page_is_open(page_daemon: DaemonProcess) -> None:
    with forwarding(page_daemon) as browser, socket.create_connection(("127.0.0.1", browser.port)) as page:
        watch = quote('{"l": ["Leases/List", {}]}')
        head = f"GET /stream?watch={watch} HTTP/1.1\r\nHost: localhost\r\nCookie: {browser.log_in()}\r\n\r\n"
        page.sendall(head.encode())
        page.settimeout(SECONDS)
        assert page.recv(100).startswith(b"HTTP/1.1 200")
        browser.process.send_signal(signal.SIGINT)
        assert browser.process.wait(SECONDS) == 0


def test_the_ssh_line_is_beside_the_link(page_daemon: DaemonProcess) -> None:
    session = ("SSH_CONNECTION", "10.0.0.1 5 10.0.0.9 22")
    with forwarding(page_daemon, "--port", "8791", environment=[session]) as browser:
        browser.process.terminate()
        assert browser.process.stderr is not None
        assert "ssh -N -L 8791:127.0.0.1:8791" in browser.process.stderr.read()
