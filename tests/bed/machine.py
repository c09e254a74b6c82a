"""A container in which a real systemd is the first process: a small machine to install things on."""

from __future__ import annotations

import subprocess
import time
from typing import Final

from tests.bed import parts

_BOOT_SECONDS: Final = 60

# --privileged asks for CAP_SYS_RESOURCE, which the machine that runs the tests may lack itself.
_BOOT_FLAGS: Final = (
    *("--cap-add", "SYS_ADMIN", "--cap-add", "NET_ADMIN", "--cap-add", "SYS_PTRACE"),
    *("--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined"),
    *("--cgroupns", "host", "--volume", "/sys/fs/cgroup:/sys/fs/cgroup"),
    *("--tmpfs", "/run", "--tmpfs", "/run/lock", "--tmpfs", "/tmp:exec"),
)


class MachineFailed(RuntimeError):
    """The container did not boot, or a command in it failed; the message has its output."""


class Machine:
    """One booted machine; `docker_flags` go to `docker run`, such as a mount of a checkout or a socket."""

    def __init__(self, socket: str, *docker_flags: str) -> None:
        self._socket = socket
        created = parts.docker(
            socket, "create", *_BOOT_FLAGS, *docker_flags, parts.SYSTEMD_IMAGE, "/sbin/init"
        )
        if created.returncode:
            raise MachineFailed(created.stderr.strip())
        self.container_id: Final = created.stdout.strip()
        try:
            self.start()
        except MachineFailed:
            self.remove()
            raise

    def start(self) -> None:
        """Begin to boot it, at first and after it was shut down."""
        started = parts.docker(self._socket, "start", self.container_id)
        if started.returncode:
            raise MachineFailed(started.stderr.strip())

    def wait_until_booted(self) -> None:
        deadline = time.monotonic() + _BOOT_SECONDS
        while True:
            # The bus comes up during the boot; before, the question itself fails.
            answer = self.run("systemctl", "is-system-running", "--wait")
            if (state := answer.stdout.strip()) in {"running", "degraded"}:
                return
            if time.monotonic() > deadline:
                raise MachineFailed(f"systemd is {state or answer.stderr.strip()} after {_BOOT_SECONDS} s")
            time.sleep(0.1)

    def run(self, *words: str, timeout_seconds: float = 120) -> subprocess.CompletedProcess[str]:
        """Runs a command as root in the machine; the caller judges the exit status."""
        return parts.docker(self._socket, "exec", self.container_id, *words, timeout_seconds=timeout_seconds)

    def check(self, *words: str, timeout_seconds: float = 120) -> str:
        """What a command in the machine printed, stripped; raises `MachineFailed` where it failed."""
        answer = self.run(*words, timeout_seconds=timeout_seconds)
        if answer.returncode:
            raise MachineFailed(
                f"{' '.join(words)}: exit {answer.returncode}\n{answer.stdout}{answer.stderr}"
            )
        return answer.stdout.strip()

    def remove(self) -> None:
        parts.docker(self._socket, "rm", "--force", "--volumes", self.container_id)
