"""What users mount through the whole daemon's crashes, restarts and the machine's reboots."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushared.gate.api.site import SitePolicy
from gpushared.gate.mounts.held_mounts import HeldMounts
from gpushared.net.http_client import EngineSocket
from tests.bed import parts
from tests.gate.mounting import lose, names
from tests.gate.serving import ALICE
from tests.node.daemon import DaemonProcess, make_directory, wait_until

pytestmark = pytest.mark.docker


class DaemonWithMounts:
    """A daemon, and what there is of its held mounts."""

    def __init__(self, daemon: DaemonProcess, source: Path) -> None:
        self.daemon = daemon
        self.source = source
        self.engine = EngineSocket(daemon.engine)
        self._held_mounts = HeldMounts(self.engine, SitePolicy, owner=str(daemon.runtime_dir))

    def names(self) -> list[str]:
        return asyncio.run(names(self.engine, self._held_mounts))

    def reboot(self) -> None:
        """Of the mounts only: containers of the machine's engine go on."""
        asyncio.run(lose(self.engine, *self.names()))

    def run(self, *words: str) -> tuple[str, str]:
        """A container of alice's with a mount: its id and the name of what is held for it."""
        before = set(self.names())
        show = ("sh", "-c", "cat /x/file; echo; exec sleep 600")
        options = ("--init", "-v", f"{self.source}:/x", *words)
        made = self.daemon.run_container(*options, command=show, uid=ALICE.uid)
        [held] = set(self.names()) - before
        return made, held

    def said(self, container: str) -> int:
        """How often it has read its file."""
        return self.engine_does("logs", container).split().count("mine")

    def engine_does(self, *words: str) -> str:
        done = parts.docker(self.daemon.engine, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def node(docker_engine: str, home: Path, busybox_image: str) -> Iterator[DaemonWithMounts]:
    del busybox_image
    config = f'[gate]\nmount_prefixes = ["{home}"]\n'
    daemon = DaemonProcess(make_directory(), engine=docker_engine, config=config)
    made = DaemonWithMounts(daemon, home / "own" / "d")
    try:
        daemon.start()
        yield made
    finally:
        daemon.dispose()
        made.reboot()


def test_a_killed_daemon_comes_back_to_the_mounts_that_containers_have_and_drops_the_others(
    node: DaemonWithMounts,
) -> None:
    """Meanwhile the engine removed one of the containers, and started the other again by its own policy."""
    staying, kept = node.run("--restart", "always")
    going, dropped = node.run()
    node.daemon.kill()
    node.engine_does("rm", "--force", "--volumes", going)
    os.kill(node.daemon.pid_of(staying), signal.SIGKILL)
    wait_until(lambda: node.said(staying) == 2, "the engine started it again")
    assert node.names() == sorted([kept, dropped])
    node.daemon.start()
    wait_until(lambda: node.names() == [kept], "the mount that nobody has is dropped")
    node.engine_does("restart", "--time", "0", staying)
    wait_until(lambda: node.said(staying) == 3, "it has its files again")


def test_mounts_that_a_reboot_took_are_there_again_when_the_daemon_says_that_it_is_ready(
    node: DaemonWithMounts,
) -> None:
    """The engine, which systemd starts after it, finds them for what it starts at once."""
    staying, kept = node.run("--restart", "always")
    going, _ = node.run()
    node.daemon.kill()
    node.reboot()
    node.engine_does("rm", "--force", "--volumes", going)
    node.daemon.start()
    assert kept in node.names()
    node.engine_does("restart", "--time", "0", staying)
    wait_until(lambda: node.said(staying) == 2, "it has its files again")
    wait_until(lambda: node.names() == [kept], "the mount that nobody has is dropped")
