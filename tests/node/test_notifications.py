"""Notifications of a real daemon: to webhooks that are away for a while, by mail, and over kills of the daemon."""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.node.conftest import NewDaemon
from tests.node.daemon import DaemonProcess, Json, Refused, wait_until

ALICE = 61001


@dataclass
class Hook:
    """A receiver in this process, which can go away and come back on its port."""

    got: list[Json] = field(default_factory=list)
    server: ThreadingHTTPServer | None = None
    port: int = 0

    def open(self) -> None:
        got = self.got

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                got.append(json.loads(body) | {"path": self.path})
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()
        self.server = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def kinds(self, lease: str) -> list[str]:
        return [one["kind"] for one in self.got if one["lease"] == lease]

    def was_told(self, lease: str, kind: str) -> bool:
        return kind in self.kinds(lease)

    def has(self, lease: str, *kinds: str) -> None:
        wait_until(lambda: sorted(self.kinds(lease)) == sorted(kinds), f"{kinds} of {lease} are told", 60)


@pytest.fixture
def hook() -> Iterator[Hook]:
    made = Hook()
    made.open()
    yield made
    made.close()


def test_a_site_is_told_of_a_leases_whole_life(new_daemon: NewDaemon, docker_engine: str, hook: Hook) -> None:
    daemon: DaemonProcess = new_daemon(
        engine=docker_engine, config=f'[notify]\nwebhooks = ["{hook.url}/all"]\n'
    )
    daemon.start()
    lease = daemon.hold("0.5", uid=ALICE)
    daemon.call("Leases/Pause", {"lease_id": lease["id"]})
    daemon.wait_lease(lease["id"], "suspended")
    daemon.call("Leases/Resume", {"lease_id": lease["id"]})
    daemon.wait_lease(lease["id"], "active")
    daemon.call("Leases/Stop", {"lease_id": lease["id"], "grace_seconds": 0})
    hook.has(lease["id"], "granted", "paused", "resumed", "ended")
    last = next(one for one in hook.got if one["kind"] == "ended")
    assert last["outcome"] == "stopped"
    assert (last["simulated"], last["image"], last["container"]) == (True, None, None)
    assert len({one["id"] for one in hook.got}) == len(hook.got)


def test_what_a_kill_of_the_daemon_left_untold_is_told_once_by_the_next(
    new_daemon: NewDaemon, hook: Hook
) -> None:
    daemon = new_daemon(config=f'[notify]\nwebhooks = ["{hook.url}"]\n')
    daemon.start()
    hook.close()
    leases = []
    for _ in range(4):
        leases.append(daemon.request("0.25")["id"])
        daemon.kill()
        daemon.start()
    hook.open()
    for lease in leases:
        wait_until(partial(hook.was_told, lease, "granted"), f"{lease} is told", 60)
    received = Counter((one["lease"], one["kind"]) for one in hook.got)
    assert max(received.values()) == 1


def test_a_receiver_that_is_away_or_hangs_delays_no_lease(new_daemon: NewDaemon, hook: Hook) -> None:
    away = 'webhooks = ["http://127.0.0.1:9/", "http://192.0.2.1/"]'
    daemon = new_daemon(config=f"[notify]\n{away}\n")
    daemon.start()
    for _ in range(20):
        lease = daemon.request("0.5")
        assert lease["state"] == "reserved"
        daemon.call("Leases/Release", {"lease_id": lease["id"]})
    wait_until(
        lambda: "http://127.0.0.1:9: it cannot be reached" in str(daemon.call("Node/Status")), "it is said"
    )


def test_a_run_names_its_own_targets_where_the_site_allows_them(
    new_daemon: NewDaemon, docker_engine: str, hook: Hook
) -> None:
    daemon = new_daemon(engine=docker_engine, config=f'[notify]\nallow = ["{hook.url}/me"]\n')
    daemon.start()
    container = daemon.run_container(
        *("--label", "gpushare.gpu=0.25", "--label", f"gpushare.notify={hook.url}/me/1"), uid=ALICE
    )
    (lease,) = daemon.leases().values()
    hook.has(lease["id"], "granted")
    daemon.check("rm", "-f", container, uid=ALICE)
    hook.has(lease["id"], "granted", "ended")
    assert {(one["path"], one["image"] is None) for one in hook.got} == {("/me/1", False)}
    with pytest.raises(Refused, match="not allowed here") as refused:
        daemon.request("0.25", notify=[f"{hook.url}/other"])
    assert f"{hook.url}/me" in refused.value.hint
    done = daemon.gpushare(
        "run", "--gpu", "0.25", "--notify", f"{hook.url}/other", *daemon.container_options()
    )
    assert done.returncode == 125
    assert "not allowed here" in done.stderr


def test_a_job_tells_its_targets_when_it_begins_and_ends(
    new_daemon: NewDaemon, docker_engine: str, hook: Hook
) -> None:
    daemon = new_daemon(engine=docker_engine, config=f'[notify]\nallow = ["{hook.url}"]\n')
    daemon.start()
    words = ("submit", "--gpu", "0.25", "--notify", f"{hook.url}/job", *daemon.container_options(), "true")
    job = daemon.gpushare_says(*words)
    wait_until(lambda: len(hook.got) == 2, "both are told", 60)
    assert [(one["kind"], one["job"], one["exit_code"]) for one in hook.got] == [
        ("granted", job, None),
        ("ended", job, 0),
    ]
    done = daemon.gpushare(
        "submit", "--gpu", "0.25", "--notify", "http://no/", *daemon.container_options(), "true"
    )
    assert "not allowed here" in done.stderr


def test_an_owner_gets_mail_and_a_site_without_sendmail_says_so(
    new_daemon: NewDaemon, tmp_path: Path
) -> None:
    script, kept = tmp_path / "sendmail", tmp_path / "mails"
    script.write_text(
        f"#!{sys.executable} -I\nimport sys\nopen({str(kept)!r}, 'a').write(sys.stdin.read())\n"
    )
    script.chmod(0o755)
    daemon = new_daemon(config=f'[notify]\nsendmail = "{script}"\nmail_domain = "lab.example"\n')
    daemon.start()
    lease = daemon.request("0.25", notify=["mail"])
    wait_until(lambda: kept.exists() and "To: root@lab.example" in kept.read_text(), "a mail is sent")
    assert lease["id"] in kept.read_text()
    daemon.terminate()
    daemon.config = '[notify]\nsendmail = "/nonexistent"\n'
    daemon.start()
    with pytest.raises(Refused, match="notifications to mail are not allowed here"):
        daemon.request("0.25", notify=["mail"])


def test_a_lease_that_ends_soon_is_told(new_daemon: NewDaemon, docker_engine: str, hook: Hook) -> None:
    daemon = new_daemon(
        engine=docker_engine, config=f'[notify]\nwebhooks = ["{hook.url}"]\nevents = ["ends-soon"]\n'
    )
    daemon.start()
    lease = daemon.request("0.25", time="8s")
    daemon.run_container("--label", f"gpushare.lease={lease['id']}")
    hook.has(lease["id"], "ends-soon")


def test_targets_follow_a_reload(new_daemon: NewDaemon, hook: Hook) -> None:
    import signal

    daemon = new_daemon()
    daemon.start()
    daemon.request("0.25")
    (daemon.directory / "config.toml").write_text(f'[notify]\nwebhooks = ["{hook.url}"]\n')
    daemon.signal(signal.SIGHUP)
    wait_until(lambda: "configuration reloaded" in daemon.text(), "it is reloaded")
    lease = daemon.request("0.25")
    hook.has(lease["id"], "granted")
    assert len(hook.got) == 1
