"""MPS clients around the ends of their containers, and faults of their servers, on a real engine.

Servers and clients are played (``FakeMps``); containers, signals and the daemon are real.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.bed import parts
from tests.node.conftest import NewDaemon
from tests.node.daemon import GPUSHARED, DaemonProcess, wait_until
from tests.sharing.fake_mps import FakeMps

pytestmark = pytest.mark.docker

SERVER = 4_194_305
"""No process has this number: it is above the kernel's highest."""
LAST_WORD = "touch /out/asked"
GOES_ON = ("sh", "-c", f"trap '{LAST_WORD}' TERM; while :; do sleep 0.05; done")
ENDS_BY_ITSELF = ("sh", "-c", f"trap '{LAST_WORD}; exit 0' TERM; while :; do sleep 0.05; done")


@pytest.fixture
def mps(tmp_path: Path) -> Iterator[FakeMps]:
    """Its control daemons outlive the daemon that started them, as real ones do."""
    made = FakeMps(tmp_path / "fake")
    yield made
    for process in psutil.process_iter(["cmdline"]):
        if str(made.directory) in (process.info["cmdline"] or ()):
            process.kill()


@pytest.fixture
def daemon(new_daemon: NewDaemon, docker_engine: str, mps: FakeMps) -> DaemonProcess:
    started = new_daemon(
        engine=docker_engine,
        config=f'[sharing]\nmps_binary = "{mps.binary}"\n',
        command=(sys.executable, "-m", "tests.node.long_mps_limits"),
        environment={"PYTHONPATH": str(parts.ROOT)},
    )
    started.start()
    return started


@pytest.fixture
def usual_daemon(daemon: DaemonProcess) -> DaemonProcess:
    """Without more patience than it has."""
    daemon.command = (str(GPUSHARED),)
    daemon.restart()
    return daemon


class Client:
    """A container whose main process is a client of the server."""

    def __init__(
        self, daemon: DaemonProcess, mps: FakeMps, *command: str, options: tuple[str, ...] = ()
    ) -> None:
        out = daemon.directory / "out"
        out.mkdir(exist_ok=True)
        self.asked = out / "asked"
        volume = ("-v", f"{out}:/out")
        lease = daemon.hold("0.25", *volume, *options, command=command or ("sleep", "1000"))
        assert lease["memory_wall"] == "mps-client"
        self.lease, self.container = lease["id"], lease["container_id"]
        self.pid = daemon.pid_of(self.container)
        self._daemon = daemon

    def story(self) -> str:
        return "\n".join(self._daemon.story(self.lease))


def stop_by_cli(daemon: DaemonProcess, client: Client) -> None:
    daemon.call("Leases/Stop", {"lease_id": client.lease, "grace_seconds": 0})


def docker(*words: str) -> Callable[[DaemonProcess, Client], None]:
    def end(daemon: DaemonProcess, client: Client) -> None:
        daemon.check(*words, client.container)

    return end


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(stop_by_cli, id="gpushare stop"),
        pytest.param(docker("stop", "-t", "0"), id="docker stop"),
        pytest.param(docker("stop", "-t", "1"), id="docker stop with a grace that the program does not use"),
        pytest.param(docker("kill"), id="docker kill"),
        pytest.param(docker("rm", "-f"), id="docker rm -f"),
        pytest.param(docker("restart", "-t", "0"), id="docker restart"),
    ],
)
def test_a_client_is_taken_off_its_server_while_it_still_lives(
    daemon: DaemonProcess, mps: FakeMps, end: Callable[[DaemonProcess, Client], None]
) -> None:
    client, neighbour = Client(daemon, mps), Client(daemon, mps)
    mps.serve(SERVER, client.pid, neighbour.pid)
    end(daemon, client)
    wait_until(lambda: mps.told("terminated"), "a client is terminated")
    assert mps.told("terminated") == [f"terminated {client.pid} alive"]
    wait_until(lambda: not Path(f"/proc/{client.pid}").exists(), "the container ends")
    assert mps.clients(SERVER) == [neighbour.pid]
    assert daemon.lease(neighbour.lease)["state"] == "active"


def test_a_program_that_catches_the_signal_keeps_its_server_until_just_before_the_kill(
    daemon: DaemonProcess, mps: FakeMps
) -> None:
    client = Client(daemon, mps, *GOES_ON)
    mps.serve(SERVER, client.pid)
    daemon.check("stop", "-t", "2", client.container)
    ((at, line),) = mps.timed("terminated")
    assert line == f"terminated {client.pid} alive"
    assert at > client.asked.stat().st_mtime
    assert "1 process was taken off MPS before the end" in client.story()


@pytest.mark.parametrize("options", [(), ("--init",)], ids=["as the first process", "behind an init"])
def test_a_program_that_ends_by_itself_in_its_grace_is_never_taken_off(
    daemon: DaemonProcess, mps: FakeMps, options: tuple[str, ...]
) -> None:
    client = Client(daemon, mps, *ENDS_BY_ITSELF, options=options)
    mps.serve(SERVER, client.pid)
    daemon.check("stop", "-t", "30", client.container)
    daemon.wait_lease(client.lease, "ended")
    assert client.asked.exists()
    assert mps.told("terminate") == []


def test_a_signal_that_the_program_handles_leaves_its_server_to_it(
    daemon: DaemonProcess, mps: FakeMps
) -> None:
    client = Client(daemon, mps, *GOES_ON)
    mps.serve(SERVER, client.pid)
    daemon.check("kill", "-s", "TERM", client.container)
    wait_until(client.asked.exists, "the program has handled it")
    assert mps.told("terminate") == []
    assert daemon.lease(client.lease)["state"] == "active"


def test_a_control_daemon_that_does_not_answer_keeps_no_container_from_its_end(
    usual_daemon: DaemonProcess, mps: FakeMps
) -> None:
    daemon = usual_daemon
    client = Client(daemon, mps)
    mps.serve(SERVER, client.pid)
    (pipe,) = (one for one in (daemon.runtime_dir / "mps").glob("*/pipe") if one.parent.name != "probe")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.connect(str(pipe / "control"))
        daemon.check("stop", "-t", "0", client.container)
        daemon.wait_lease(client.lease, "ended")
    assert "before the end: MPS did not let go of its clients in 0.5 s" in client.story()


def test_a_fault_is_told_to_all_whom_it_hit_and_to_nobody_else(daemon: DaemonProcess, mps: FakeMps) -> None:
    hit, also_hit, spared = Client(daemon, mps), Client(daemon, mps), Client(daemon, mps)
    mps.serve(SERVER, hit.pid, also_hit.pid, state="FAULT")
    wait_until(lambda: "met a fault" in hit.story(), "the fault is in its story")
    wait_until(lambda: "met a fault" in also_hit.story(), "and in its fellow's")
    assert "fault" not in spared.story()
    troubles = [gpu["trouble"] for gpu in daemon.call("Gpus/List")["gpus"]]
    assert "an MPS server met a fatal fault" in troubles[0]
