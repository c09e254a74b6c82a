"""Docker clients that wait in the queue: how they are kept there, how long, and what they hear at the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import docker as sdk
import pytest
from docker.errors import APIError

from tests.bed import parts
from tests.bed.fixtures import CdiEngine
from tests.node.conftest import NewDaemon
from tests.node.daemon import OWN_LABEL, DaemonProcess, Json, connected, name, wait_until

ALICE, BOB = 61001, 61002
FREQUENT_INTERIM = (sys.executable, "-m", "tests.node.frequent_interim")
ONE_GPU = "gpushare.gpu"
MAX_WAIT = "gpushare.max-wait"
TOO_MANY, BAD = 429, 400
IMPATIENT_SECONDS = 8


@pytest.fixture(params=["create waits", "start waits"])
def node(request: pytest.FixtureRequest, new_daemon: NewDaemon) -> DaemonProcess:
    """A daemon with one simulated GPU; where the wait is, is the engine's matter."""
    engine = "docker_engine" if request.param == "create waits" else "cdi_engine"
    found: str | CdiEngine = request.getfixturevalue(engine)
    socket = found if isinstance(found, str) else found.socket
    daemon = new_daemon(engine=socket, simulate="h100", command=FREQUENT_INTERIM)
    daemon.start()
    return daemon


def queued(daemon: DaemonProcess) -> list[Json]:
    return [lease for lease in daemon.leases().values() if lease["state"] == "queued"]


def run(daemon: DaemonProcess, *, timeout: float = 60, **labels: str) -> str:
    """A container that the docker SDK makes and starts; raises what the SDK raises."""
    client = sdk.DockerClient(f"unix://{daemon.socket}", timeout=timeout)  # type: ignore[arg-type]
    try:
        words = {name.replace("_", "-"): value for name, value in labels.items()}
        all_labels = {f"gpushare.{name}": value for name, value in {"gpu": "1", **words}.items()}
        container = client.containers.run(
            parts.BUSYBOX_IMAGE,
            ["sleep", "1000"],
            detach=True,
            network_mode="none",
            labels={**all_labels, OWN_LABEL: daemon.directory.name},
        )
        return str(container.id)
    finally:
        client.close()


def refusal(work: Callable[[], object]) -> APIError:
    with pytest.raises(APIError) as caught:
        work()
    return caught.value


def status_of(error: APIError) -> int:
    return int(error.response.status_code)  # type: ignore[union-attr]


def test_the_sdk_waits_longer_than_its_timeout_and_has_its_container(node: DaemonProcess) -> None:
    holder = node.request("1", time="1h")
    made: list[str] = []
    waiting = threading.Thread(target=lambda: made.append(run(node, timeout=IMPATIENT_SECONDS)))
    waiting.start()
    wait_until(lambda: queued(node), "it waits")
    time.sleep(2 * IMPATIENT_SECONDS)
    assert len(queued(node)) == 1, "its request is still there"
    node.call("Leases/Release", {"lease_id": holder["id"]})
    waiting.join(60)
    (lease,) = node.leases().values()
    assert [lease["container_id"]] == made


CLIENTS = {
    "aiodocker": (sys.executable, "with_aiodocker.py"),
    "dockerode": ("node", "with_dockerode.js"),
}


@pytest.mark.parametrize(
    ("node", "client"), [("create waits", "aiodocker"), ("start waits", "dockerode")], indirect=["node"]
)
def test_other_clients_wait_longer_than_they_bear_silence(
    node: DaemonProcess, programs: Path, client: str
) -> None:
    holder = node.request("1", time="1h")
    labels = {ONE_GPU: "1", OWN_LABEL: node.directory.name}
    host = {"NetworkMode": "none"}
    config = {"Image": parts.BUSYBOX_IMAGE, "Cmd": ["sleep", "1000"], "Labels": labels, "HostConfig": host}
    process = subprocess.Popen(
        [*CLIENTS[client], f"unix://{node.socket}", json.dumps(config), str(IMPATIENT_SECONDS)],
        cwd=Path(__file__).parent / "programs",
        env={**os.environ, "NODE_PATH": str(programs / "node_modules")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: queued(node), "it waits")
    time.sleep(2 * IMPATIENT_SECONDS)
    node.call("Leases/Release", {"lease_id": holder["id"]})
    out, error = process.communicate(timeout=60)
    (lease,) = node.leases().values()
    assert out.strip() == lease["container_id"], error


@pytest.mark.parametrize("node", ["create waits"], indirect=True)
def test_the_docker_cli_waits_as_ever(node: DaemonProcess) -> None:
    """Go's client takes five interim answers, and ends at the sixth."""
    holder = node.request("1", time="1h")
    command = [str(parts.DOCKER), "-H", f"unix://{node.socket}", "run", "-d", "--label", f"{ONE_GPU}=1"]
    process = subprocess.Popen(
        [*command, *node.container_options(), "sleep", "1000"], stdout=subprocess.PIPE, text=True
    )
    wait_until(lambda: queued(node), "it waits")
    time.sleep(5)
    node.call("Leases/Release", {"lease_id": holder["id"]})
    out, _ = process.communicate(timeout=60)
    (lease,) = node.leases().values()
    assert (process.returncode, out.strip()) == (0, lease["container_id"])


def test_a_client_that_is_killed_leaves_the_queue(node: DaemonProcess) -> None:
    node.request("1")
    program = "import sys; from tests.node import test_waiting_clients as t; t.run_at(*sys.argv[1:])"
    words = [sys.executable, "-c", program, str(node.socket), node.directory.name]
    with subprocess.Popen(words) as process:
        wait_until(lambda: queued(node), "it waits")
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: not queued(node), "its request has left the queue")


def start(daemon: DaemonProcess, name: str) -> subprocess.Popen[str]:
    """``docker start`` in a process of its own."""
    command = [str(parts.DOCKER), "-H", f"unix://{daemon.socket}", "start", name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("node", ["start waits"], indirect=True)
def test_a_start_whose_container_is_removed_while_it_waits_ends_and_leaves_the_queue(
    node: DaemonProcess,
) -> None:
    node.request("1")
    container = name()
    node.create_container("--name", container, "--label", f"{ONE_GPU}=1")
    waiting = start(node, container)
    wait_until(lambda: queued(node), "it waits")
    node.check("rm", container)
    _, error = waiting.communicate(timeout=30)
    assert (waiting.returncode, f"No such container: {container}" in error) == (1, True), error
    wait_until(lambda: not queued(node), "its request has left the queue")


@pytest.mark.parametrize("node", ["start waits"], indirect=True)
def test_a_second_start_of_a_container_that_waits_is_refused_and_takes_nothing_from_the_first(
    node: DaemonProcess,
) -> None:
    holder = node.request("1")
    container = name()
    node.create_container("--rm", "--name", container, "--label", f"{ONE_GPU}=1")
    first = start(node, container)
    wait_until(lambda: queued(node), "it waits")
    (lease,) = queued(node)
    second = node.docker("start", container)
    assert second.returncode == 1
    words = f"{container} waits for a GPU already ({lease['id']}) (`gpushare why {lease['id']}`"
    assert words in second.stderr, second.stderr
    node.call("Leases/Release", {"lease_id": holder["id"]})
    out, error = first.communicate(timeout=60)
    assert (first.returncode, out.strip()) == (0, container), error
    assert node.wait_lease(lease["id"], "active")["container_name"] == container


@pytest.mark.parametrize("node", ["create waits"], indirect=True)
def test_a_create_that_the_engine_cannot_take_is_refused_before_it_waits(node: DaemonProcess) -> None:
    node.request("1")
    taken = name()
    node.run_container("--name", taken)
    cases = [
        (0, ("--name", "y"), "Invalid container name (y), only [a-zA-Z0-9][a-zA-Z0-9_.-] are allowed"),
        (0, ("--name", taken), f'The container name "/{taken}" is already in use by container'),
        (ALICE, ("--name", taken), f"The container name {taken} is taken by somebody else's container"),
        (0, ("--memory", "1m"), "Minimum memory limit allowed is 6MB"),
    ]
    for uid, words, sentence in cases:
        options = node.container_options("--label", f"{ONE_GPU}=1", *words)
        done = node.docker("run", *options, uid=uid, timeout_seconds=20)
        assert (done.returncode, sentence in done.stderr) == (125, True), done.stderr
    assert queued(node) == []


def run_at(socket: str, mark: str) -> None:
    """What is killed above."""
    client = sdk.DockerClient(f"unix://{socket}", timeout=IMPATIENT_SECONDS)
    labels = {ONE_GPU: "1", OWN_LABEL: mark}
    client.containers.run(parts.BUSYBOX_IMAGE, "true", network_mode="none", labels=labels)


def test_who_does_not_wait_is_refused_at_once_with_place_and_time(node: DaemonProcess) -> None:
    node.request("1", time="1h")
    error = refusal(lambda: run(node, max_wait="0s"))
    assert status_of(error) == TOO_MANY
    explanation = str(error.explanation)
    assert explanation.startswith("there is no room now: position 1 of 1 in the queue, start by ")
    assert "needs 1 whole GPU; 0 of 1 are free (root holds " in explanation
    assert explanation.endswith(f"(the label {MAX_WAIT} says how long it waits)")
    assert queued(node) == []


def test_a_container_that_removes_itself_is_gone_when_its_start_is_refused(node: DaemonProcess) -> None:
    """Docker's client waits for that."""
    node.request("1")
    labels = ("--label", f"{ONE_GPU}=1", "--label", f"{MAX_WAIT}=0s")
    done = node.docker("run", "--rm", *node.container_options(*labels), "true")
    assert (done.returncode, "there is no room now" in done.stderr) == (125, True)
    mark = f"label={OWN_LABEL}={node.directory.name}"
    assert node.check("ps", "--all", "--quiet", "--filter", mark) == ""


def test_who_does_not_wait_makes_nobody_give_way(new_daemon: NewDaemon, docker_engine: str) -> None:
    rules = '[projects.lab]\nguaranteed = 1\nusers = ["root"]\n[classes.train]\nmin_run_seconds = 0\n'
    daemon = new_daemon(engine=docker_engine, simulate="h100", config=rules)
    daemon.start()
    holder = daemon.hold("1", uid=ALICE)
    refusal(lambda: run(daemon, max_wait="0s"))
    assert daemon.lease(holder["id"])["state"] == "active"
    run(daemon, max_wait="1m")
    assert daemon.lease(holder["id"])["state"] == "suspended", "who waits has the holder give way"


def test_who_waits_for_a_while_is_refused_after_it(node: DaemonProcess) -> None:
    node.request("1")
    error = refusal(lambda: run(node, max_wait="1s"))
    assert status_of(error) == TOO_MANY
    explanation = str(error.explanation)
    assert explanation.startswith("there was no room in 1s: position 1 of 1 in the queue, start by ")
    assert "needs 1 whole GPU" in explanation
    wait_until(lambda: not queued(node), "its request has left the queue")


@pytest.mark.parametrize("node", ["create waits"], indirect=True)
def test_who_has_room_does_not_mind_how_long_it_would_have_waited(node: DaemonProcess) -> None:
    container = run(node, max_wait="0s")
    (lease,) = node.leases().values()
    assert lease["container_id"] == container


@pytest.mark.parametrize("node", ["create waits"], indirect=True)
def test_a_wait_that_is_none_is_refused(node: DaemonProcess) -> None:
    error = refusal(lambda: run(node, max_wait="soon"))
    assert (status_of(error), "'soon' is not a duration" in str(error.explanation)) == (BAD, True)


DEFAULTS = """
[projects.vision]
users = ["root"]
[gate.max_wait]
{name} = "0s"
"""


@pytest.mark.parametrize("name", ["root", "vision"])
def test_a_site_says_for_a_user_or_a_project_how_long_clients_wait_that_do_not_say(
    new_daemon: NewDaemon, docker_engine: str, name: str
) -> None:
    daemon = new_daemon(engine=docker_engine, simulate="h100", config=DEFAULTS.format(name=name))
    daemon.start()
    daemon.request("1")
    error = refusal(lambda: run(daemon))
    assert f"this machine lets containers of {name} wait so long" in str(error.explanation)
    assert "there was no room in 1s" in str(refusal(lambda: run(daemon, max_wait="1s")).explanation)
    assert daemon.request("1")["state"] == "queued", "who asks otherwise than by docker waits"


def test_a_user_s_line_wins_over_a_project_s_and_a_reload_takes_them_over(
    new_daemon: NewDaemon, docker_engine: str
) -> None:
    daemon = new_daemon(engine=docker_engine, simulate="h100", config=DEFAULTS.format(name="vision"))
    daemon.start()
    daemon.request("1")
    assert "no room now" in str(refusal(lambda: run(daemon)).explanation)
    (daemon.directory / "config.toml").write_text(DEFAULTS.format(name="vision") + 'root = "1s"\n')
    daemon.signal(signal.SIGHUP)
    wait_until(lambda: "configuration reloaded" in daemon.text(), "it is taken over")
    assert "no room in 1s" in str(refusal(lambda: run(daemon)).explanation)


def test_a_start_does_not_wait_for_a_lease_that_gave_way_longer_than_its_label_says(
    new_daemon: NewDaemon, docker_engine: str
) -> None:
    settings = {"GPUSHARED_QUEUE__PREEMPT_NOTICE_SECONDS": "1", "GPUSHARED_GPUS__CHECKPOINTS": "off"}
    daemon = new_daemon(engine=docker_engine, simulate="h100", environment=settings)
    daemon.start()
    container = run(daemon, max_wait="0s")
    (lease,) = daemon.leases().values()
    daemon.request("1", uid=ALICE, time="1h")
    daemon.call("Leases/Preempt", {"lease_id": lease["id"]})
    daemon.wait_lease(lease["id"], "requeued")
    client = sdk.DockerClient(f"unix://{daemon.socket}")
    explanation = str(refusal(client.containers.get(container).start).explanation)
    assert explanation.startswith("there is no room now: position 1 of 1 in the queue, start by ")
    assert daemon.lease(lease["id"])["state"] == "requeued"
    client.close()


def test_users_hear_of_their_own_place_only(new_daemon: NewDaemon, docker_engine: str) -> None:
    """Also who is not trusted: the body is judged, and the sentence is the same."""
    daemon = new_daemon(engine=docker_engine, simulate="h100")
    daemon.start()
    daemon.request("1", uid=BOB)
    labels = {ONE_GPU: "1", MAX_WAIT: "0s"}
    body = json.dumps({"Image": parts.BUSYBOX_IMAGE, "Labels": labels}).encode()
    with connected(daemon.socket, ALICE) as channel:
        head = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        channel.sendall(b"POST /containers/create HTTP/1.1\r\nHost: x\r\n" + head.encode() + body)
        answer = b"".join(iter(lambda: channel.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 429 ")
    assert b"position 1 of 1" in answer
