"""A Docker engine that belongs to one test, which may stop, kill and start it as it likes."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import psutil

from tests.bed import parts

_PREFIX: Final = "gpushared-engine-"
_START_SECONDS: Final = 30
_STOP_SECONDS: Final = 30


class EngineFailed(RuntimeError):
    """A private engine did not do what the test bed asked of it; the end of its log is in the message."""


class PrivateEngine:
    """A `dockerd` with a data root, sockets and containerd of its own, in an empty network namespace.

    Use `--network none` in it. Its state survives `stop` and `kill`, as after a crash.
    """

    def __init__(self, *flags: str) -> None:
        # The name is a containerd namespace too, which admits no underscore at the end, as mkdtemp may give.
        self.directory: Final = Path(f"/tmp/{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}")
        self.directory.mkdir(mode=0o700)
        self.socket: Final = str(self.directory / "docker.sock")
        self.log: Final = self.directory / "dockerd.log"
        # The machine's own settings must not reach this engine, least of all a second `hosts`.
        (self.directory / "daemon.json").write_text("{}")
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts the engine and returns when it answers.

        Raises:
            EngineFailed: it ended, or did not answer in 30 seconds.
        """
        if self.running:
            raise EngineFailed("the engine runs already")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self.answers():
            if not self.running or time.monotonic() > deadline:
                raise EngineFailed(f"dockerd does not answer:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.05)

    def answers(self) -> bool:
        return parts.answers(self.socket)

    def load_busybox(self) -> str:
        self.check("import", "--change", 'CMD ["/bin/sh"]', str(parts.BUSYBOX_TAR), parts.BUSYBOX_IMAGE)
        return parts.BUSYBOX_IMAGE

    def stop(self) -> None:
        """Ends the engine in order, as a service manager does; containers stay only with `--live-restore`."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the engine by SIGKILL: its containers run on, and nobody watches them."""
        self._end(signal.SIGKILL)

    def docker(self, *words: str) -> subprocess.CompletedProcess[str]:
        return parts.docker(self.socket, *words)

    def check(self, *words: str) -> str:
        """What the docker CLI printed, stripped; raises `EngineFailed` with its complaint otherwise."""
        answer = self.docker(*words)
        if answer.returncode:
            raise EngineFailed(f"docker {' '.join(words)}: {answer.stderr.strip()}")
        return answer.stdout.strip()

    def dispose(self) -> None:
        """Ends everything that the engine started, and deletes its files."""
        if self.running:
            self.kill()
        dispose_of(self.directory)

    def _command(self) -> list[str]:
        return [*self._enter(), *self._words()]

    def _enter(self) -> list[str]:
        # In the machine's network namespace even an engine without a bridge deletes the other one's docker0.
        return ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec dockerd "$@"', "dockerd"]

    def _words(self) -> list[str]:
        # The containerd namespaces matter only where a containerd of the system serves all engines.
        own = self.directory.name
        return [
            f"--host={self.url}",
            f"--data-root={self.directory}/data",
            f"--exec-root={self.directory}/run",
            f"--pidfile={self.directory}/pid",
            f"--containerd-namespace={own}",
            f"--containerd-plugins-namespace={own}-plugins",
            f"--config-file={self.directory}/daemon.json",
            "--bridge=none",
            "--iptables=false",
            *self._flags,
        ]

    def _end(self, how: signal.Signals) -> None:
        if self._process is None or self._process.poll() is not None:
            raise EngineFailed("the engine does not run")
        own_containerd = psutil.Process(self._process.pid).children()
        self._process.send_signal(how)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired as slow:
            self._process.kill()
            self._process.wait()
            raise EngineFailed(f"dockerd did not end:\n{self.log.read_text()[-2000:]}") from slow
        # The next dockerd takes a containerd that is dying, or dead and not yet reaped, for one that works.
        _wait_until_gone(own_containerd)
        (self.directory / "run/containerd/containerd.pid").unlink(missing_ok=True)


class UnifiedEngine(PrivateEngine):
    """One that knows CDI and has cgroup v2, on a machine that may have booted with v1.

    It is the CDI engine's program, in a root file system and mount namespace of its own in which the kernel's
    v2 tree lies at ``/sys/fs/cgroup``. Where the machine has v1, that tree has no controllers: cgroups are
    made and processes put into them, and nothing is accounted.
    """

    def __init__(self, *flags: str) -> None:
        super().__init__(*flags)
        self.spec_dir: Final = self.directory / "specs"
        self.spec_dir.mkdir()
        (self.directory / "shims").mkdir()
        settings = {"features": {"cdi": True}, "cdi-spec-dirs": [str(self.spec_dir)], "ip6tables": False}
        (self.directory / "daemon.json").write_text(json.dumps(settings))

    def _enter(self) -> list[str]:
        # Its next life has a mount namespace of its own, and is to find the sockets of the containers' shims.
        shims = f"mkdir -p /run/containerd && mount --bind {self.directory}/shims /run/containerd"
        cgroups = "umount -R /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup"
        mount = f"{shims} && {{ {cgroups}; }} && exec dockerd"
        return [
            *("unshare", "--mount", "--net", str(parts.ENTER_ROOT), str(parts.CDI_ROOT), "/tmp", "--"),
            *("sh", "-c", f'{mount} "$@"', "dockerd"),
        ]


def dispose_of(directory: Path) -> None:
    """Ends what names the engine's directory in its command line, and all descendants; deletes its files.

    What is gone already is no error.
    """
    doomed: set[psutil.Process] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess):
            if any(directory.name in word for word in process.cmdline()):
                doomed |= {process, *process.children(recursive=True)}
    for process in doomed:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    _wait_until_gone(doomed)
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in sorted((m for m in mounts if m.startswith(f"{directory}/")), reverse=True):
        subprocess.run(["umount", "--lazy", mount], check=True)
    if directory.exists():
        shutil.rmtree(directory)


def _wait_until_gone(processes: Iterable[psutil.Process]) -> None:
    """Waits until nothing of them runs; a zombie counts as gone, as not every first process reaps at once."""
    deadline = time.monotonic() + _STOP_SECONDS
    while any(process.is_running() and _status(process) != psutil.STATUS_ZOMBIE for process in processes):
        if time.monotonic() > deadline:
            raise EngineFailed(f"still running after SIGKILL: {processes}")
        time.sleep(0.01)


def _status(process: psutil.Process) -> str:
    try:
        return process.status()
    except psutil.NoSuchProcess:
        return psutil.STATUS_ZOMBIE


def sweep() -> None:
    """Disposes of engines whose test run was killed before it could do so itself."""
    for directory in Path("/tmp").glob(f"{_PREFIX}*-*"):
        if not psutil.pid_exists(int(directory.name.removeprefix(_PREFIX).split("-")[0])):
            dispose_of(directory)
