"""A real JupyterHub with its DockerSpawner and proxy, configured as the page says, on simulated GPUs.

One part is a stand-in: the single-user server. The hub starts its container and then asks for its page until
something answers; here busybox's web server does, so that the image need not have Jupyter. It never calls
the hub, as a real one does.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.bed import parts
from tests.node.conftest import NewDaemon
from tests.node.daemon import OWN_LABEL, DaemonProcess, Json, wait_until

PAGE: Final = parts.ROOT / "docs/how-to/jupyterhub.md"
CONFIG: Final = Path(__file__).with_name("hub_config.py")
START_SECONDS: Final = 120
CREATED, ACCEPTED, NOTHING, FAILED = 201, 202, 204, 500
TAKEN = "there was no room in 5s: position 1 of 1 in the queue, start by "


@dataclass
class Hub:
    """Its REST API, as an administrator."""

    process: subprocess.Popen[bytes]
    log: Path
    url: str
    token: str

    def ask(self, method: str, path: str) -> tuple[int, str]:
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(f"{self.url}/hub/api{path}", method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=90) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def add(self, user: str) -> None:
        assert self.ask("POST", f"/users/{user}")[0] == CREATED

    def start(self, user: str) -> tuple[int, str]:
        return self.ask("POST", f"/users/{user}/server")

    def stop(self, user: str) -> None:
        assert self.ask("DELETE", f"/users/{user}/server")[0] in {ACCEPTED, NOTHING}

    def is_ready(self, user: str) -> bool:
        servers = json.loads(self.ask("GET", f"/users/{user}")[1])["servers"]
        return any(server["ready"] for server in servers.values())

    def answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()[-4000:]
        try:
            return self.ask("GET", "/")[0] == 200
        except OSError:
            return False


@pytest.fixture
def daemon(new_daemon: NewDaemon, docker_engine: str) -> DaemonProcess:
    started = new_daemon(engine=docker_engine, simulate="h100:2")
    started.start()
    return started


@pytest.fixture
def hub(daemon: DaemonProcess, programs: Path, busybox_image: str) -> Iterator[Hub]:
    folder = daemon.directory / "hub"
    folder.mkdir()
    ports, token = free_ports(3), secrets.token_hex(16)
    given = {
        "page": page_of(daemon, busybox_image),
        "command": ["httpd", "-f", "-p", "8888", "-h", "/etc"],
        "prefix": daemon.directory.name,
        "labels": {OWN_LABEL: daemon.directory.name},
        "ports": ports,
        "proxy": str(programs / "node_modules/.bin/configurable-http-proxy"),
        "token": token,
    }
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("DOCKER_", "GPUSHARE"))
    }
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [programs / "venv/bin/jupyterhub", "-f", CONFIG],
            env={**inherited, "HUB": json.dumps(given)},
            cwd=folder,
            stdout=output,
            stderr=output,
        )
    started = Hub(process, log, f"http://127.0.0.1:{ports[1]}", token)
    try:
        wait_until(started.answers, "the hub answers", START_SECONDS)
        yield started
    finally:
        process.terminate()  # ends the servers, and the proxy
        process.wait(60)


def page_of(daemon: DaemonProcess, image: str) -> list[str]:
    """The page's configuration, with what is the machine's own put in."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    own = {
        "/run/gpushared/gpushared.sock": str(daemon.socket),
        '"IMAGE"': repr(image),
        "172.17.0.1": "127.0.0.1",
    }
    for theirs, ours in own.items():
        assert theirs in blocks[0]
        blocks[0] = blocks[0].replace(theirs, ours)
    return blocks


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def by_name(daemon: DaemonProcess) -> dict[str, Json]:
    """The leases by the hub's users."""
    leases = daemon.leases().values()
    return {
        lease["container_name"].rpartition("-")[2]: lease for lease in leases if lease.get("container_name")
    }


def gpu_of(lease: Json) -> int:
    (grant,) = lease["grants"]
    return int(grant.get("gpu_index", 0))


def test_each_user_of_a_hub_has_a_gpu_and_the_one_for_whom_none_is_left_hinders_nobody(
    daemon: DaemonProcess, hub: Hub
) -> None:
    for user in ("ada", "bob", "cyd"):
        hub.add(user)
    assert [hub.start(user)[0] for user in ("ada", "bob")] <= [ACCEPTED, ACCEPTED]
    wait_until(lambda: hub.is_ready("ada") and hub.is_ready("bob"), "both servers are ready", START_SECONDS)
    leases = by_name(daemon)
    assert {gpu_of(leases[user]) for user in ("ada", "bob")} == {0, 1}

    third: list[tuple[int, str]] = []
    waiting = threading.Thread(target=lambda: third.append(hub.start("cyd")))
    waiting.start()
    assert hub.is_ready("ada"), "the hub answers meanwhile"
    waiting.join(START_SECONDS)
    wait_until(lambda: TAKEN in hub.log.read_text(), "the hub says why")
    ((status, answer),) = third
    assert (status, json.loads(answer)["message"][: len(TAKEN)]) == (FAILED, TAKEN)
    assert "cyd" not in by_name(daemon)

    hub.stop("ada")
    wait_until(lambda: "ada" not in by_name(daemon), "the GPU is back")
    hub.start("cyd")
    wait_until(lambda: hub.is_ready("cyd"), "the third user has a server", START_SECONDS)
    assert gpu_of(by_name(daemon)["cyd"]) == gpu_of(leases["ada"])
