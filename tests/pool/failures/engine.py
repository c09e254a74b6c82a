"""The Docker engine of a machine: its containers run on without it, as administrators often set it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any, Final

import psutil

from tests.bed import parts
from tests.pool.failures.machine import WAIT_SECONDS, BrokenBed, Machine, Program, wait_until

JOB_LABEL: Final = "gpushare.job"


class Engine:
    """``kill`` ends the engine and its containerd; containers stay."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._program: Program | None = None
        self.socket = machine.runtime / "docker.sock"
        self._disk = machine.directory / "docker"
        self._settings = machine.directory / "docker.json"
        self._settings.write_text("{}")

    def start(self) -> None:
        """Come back when it answers, with the image."""
        for name in ("docker.pid", "docker/containerd/containerd.pid"):
            (self._machine.runtime / name).unlink(missing_ok=True)
        self._program = self._machine.start(*self._words(), log="dockerd.log")
        wait_until(self._answers, "the engine answers")
        if parts.docker(self.socket, "image", "inspect", parts.BUSYBOX_IMAGE).returncode:
            self.check("import", "--change", 'CMD ["/bin/sh"]', str(parts.BUSYBOX_TAR), parts.BUSYBOX_IMAGE)

    def _answers(self) -> bool:
        assert self._program is not None
        if not self._program.running:
            raise BrokenBed(f"dockerd ended:\n{self._program.tail()}")
        return parts.answers(self.socket)

    def stop(self) -> None:
        """As ``systemctl stop docker``."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """A signal to the engine and its containerd, such as SIGSTOP, which freezes both."""
        assert self._program is not None
        if number is signal.SIGKILL:
            self.kill()
            return
        self._program.send(number)
        for process in psutil.Process(self._program.pid).children():
            process.send_signal(number)

    def _end(self, how: signal.Signals) -> None:
        assert self._program is not None
        own_containerd = psutil.Process(self._program.pid).children()
        self._program.end(how)
        # The next dockerd takes a containerd that is dying for one that works.
        psutil.wait_procs(own_containerd, WAIT_SECONDS)

    def check(self, *words: str) -> str:
        done = parts.docker(self.socket, *words)
        if done.returncode:
            raise BrokenBed(f"docker {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def running(self) -> set[str]:
        """The jobs whose containers run, as the engine says."""
        return {job for job in self._listed("ps") if job}

    def containers(self, job: str) -> list[dict[str, Any]]:
        ids = self.check("ps", "-aq", "--filter", f"label={JOB_LABEL}={job}").split()
        return list(json.loads(self.check("inspect", *ids))) if ids else []

    def _listed(self, *words: str) -> list[str]:
        listed = self.check(
            *words, "--filter", f"label={JOB_LABEL}", "--format", f'{{{{.Label "{JOB_LABEL}"}}}}'
        ).splitlines()
        assert len(set(listed)) == len(listed), (
            f"two containers of a job run on {self._machine.name}: {listed}"
        )
        return listed

    def _words(self) -> list[str]:
        run, own = self._machine.runtime, f"gpf-{self._machine.name}"
        return [
            "dockerd",
            f"--host=unix://{self.socket}",
            f"--data-root={self._disk}",
            f"--exec-root={run}/docker",
            f"--pidfile={run}/docker.pid",
            f"--containerd-namespace={own}",
            f"--containerd-plugins-namespace={own}-plugins",
            f"--config-file={self._settings}",
            f"--cgroup-parent=/{self.cgroup}",
            *("--bridge=none", "--iptables=false", "--live-restore"),
        ]

    @property
    def cgroup(self) -> str:
        """Below which all its containers are, so that what a power cut leaves of them is found."""
        return f"{self._machine.directory.parent.name}-{self._machine.name}"

    def sweep(self) -> None:
        """Remove the cgroups of containers that died with their machine."""
        remove_cgroups(self.cgroup)


def remove_cgroups(name: str) -> None:
    # Those of other engines' containers go meanwhile, which a walk takes for what it is, and a glob does not.
    roots = [Path(folder, name) for folder, below, _ in os.walk("/sys/fs/cgroup") if name in below]
    for root in roots:
        subprocess.run(
            ["find", str(root), "-depth", "-type", "d", "-exec", "rmdir", "{}", ";"],
            check=False,
            capture_output=True,
        )
