"""A pool of three machines on this one whose parts can fail, made by scripts/quickstart under another name.

Several such pools live side by side: each has a number, of which its names and its network are made.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from gpushared.client.api import Client
from gpushared.domain.model.errors import GpushareError
from tests.bed import parts
from tests.bed.cgroups import remove_users, users_of
from tests.chaos.plan import LIVE_RESTORE, NODES

LOCKS: Final = Path("/run/gpushared-chaos")
POOLS: Final = 16
"""So many pools may live on a machine at a time."""
DISK_BYTES: Final = 4 * 1024**3
"""The size of a state directory's file system; memory is taken only for what is written."""
SPARE_BYTES: Final = 256 * 1024
SCRIPT_SECONDS: Final = 300
SERVING_SECONDS: Final = 60.0
REAP_SECONDS: Final = 0.1
ENDING_SECONDS: Final = 90.0
"""A process that was told to end and has not by then is killed."""
SETTINGS: Final = {
    "GPUSHARED_QUEUE__PREEMPTION": "off",
    "GPUSHARED_QUEUE__PREEMPT_NOTICE_SECONDS": "2",
    "GPUSHARED_CLASSES__TRAIN__MIN_RUN_SECONDS": "0",
    "GPUSHARED_POOL_NODES__SETTLE_SECONDS": "20",
    "GPUSHARED_LOG__FORMAT": "json",
    "GPUSHARED_POOL_LOG__FORMAT": "json",
}
"""Of the daemons and the coordinator: shorter waits that would only lengthen a run, and logs with times."""

Json = dict[str, Any]


class HarnessError(RuntimeError):
    """The harness could not do what it must; nothing follows for the product."""


@dataclass(slots=True)
class Service:
    """One process of the pool: a daemon, an engine or the coordinator. ``wanted``: it is meant to run."""

    target: str
    words: list[str]
    environ: dict[str, str]
    namespace: str
    uid: int
    gid: int
    log: Path
    pid_file: Path
    pid: int
    child: subprocess.Popen[bytes] | None = None
    wanted: bool = True
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def runs(self) -> bool:
        if self.child is not None:
            return self.child.poll() is None
        return _is_alive(self.pid)

    def start(self) -> None:
        become = (
            ["setpriv", f"--reuid={self.uid}", f"--regid={self.gid}", "--clear-groups"] if self.uid else []
        )
        with self.log.open("ab") as log:
            self.child = subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{self.namespace}", *become, *self.words],
                env=self.environ, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self.pid = self.child.pid
        self.pid_file.write_text(f"{self.pid}\n")

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.runs:
                os.kill(self.pid, number)


class Machines:
    """The pool. ``start``, ``stop`` and what asks the daemons block: call them from threads."""

    def __init__(self, number: int, cache: Path) -> None:
        self.number = number
        self.name = f"gpchaos{number}"
        self.run_dir = Path(f"/run/{self.name}-pool")
        self.state = Path(f"/var/lib/{self.name}-pool")
        self.shared = self.state / "shared"
        self.services: dict[str, Service] = {}
        self._cache = cache
        path = f"{parts.ROOT}/.venv/bin:{parts.DOCKER.parent}:{os.environ['PATH']}"
        self.environ = {
            "PATH": path,
            "HOME": "/root",
            "LC_ALL": "C.UTF-8",
            "DOCKER_CONFIG": "/nonexistent",
            # This checkout's programs, whichever the environment was made from.
            "PYTHONPATH": str(parts.ROOT),
            "GPUSHARED_CACHE": str(cache),
            "GPUSHARED_QUICKSTART": self.name,
            "GPUSHARED_QUICKSTART_NET": f"10.232.{number}",
            "DOCKER_HOST": f"unix://{parts.PLAIN_SOCKET}",
        }

    # --- the begin and the end

    def start(self) -> None:
        """Three machines, joined to one pool, whose engines keep their containers where they are to."""
        self.clear()
        self._mount_disks()
        tagged = parts.docker(parts.PLAIN_SOCKET, "tag", parts.BUSYBOX_IMAGE, f"{self.name}/busybox:latest")
        if tagged.returncode:
            raise HarnessError(f"no image for the pool: {tagged.stderr.strip()}")
        self._script("--pool", "3", settings=SETTINGS)
        # From here on the run starts again what ended, and knows of it.
        os.kill(int((self.run_dir / "restarter.pid").read_text()), signal.SIGKILL)
        for node in NODES:
            self._take_over(
                f"daemon-{node}",
                self._net(node),
                self.state / node / "gpushared.log",
                self.run_dir / node / "gpushared.pid",
            )
            self._take_over(
                f"engine-{node}",
                self._net(node),
                self.state / node / "dockerd.log",
                self.run_dir / node / "dockerd.pid",
            )
            settings = {"live-restore": node in LIVE_RESTORE}
            (self.state / node / "docker.json").write_text(json.dumps(settings))
            self.services[f"engine-{node}"].signal(signal.SIGHUP)
        self._take_over(
            "coordinator",
            f"{self.name}-pool-hub",
            self.state / "coordinator.log",
            self.run_dir / "coordinator.pid",
        )

    def stop(self) -> None:
        """End all of it; nothing is left, whatever state it was in."""
        is_over = threading.Event()
        reaper = threading.Thread(target=self._reap, args=(is_over,))
        reaper.start()
        try:
            self.clear()
        finally:
            is_over.set()
            reaper.join()
        for service in self.services.values():
            if service.child is not None:
                service.child.wait(ENDING_SECONDS)

    def _reap(self, is_over: threading.Event) -> None:
        """Who waits for a process that we started would take it for alive until we have asked for its end."""
        while not is_over.wait(REAP_SECONDS):
            for service in self.services.values():
                if service.child is not None:
                    service.child.poll()

    def clear(self) -> None:
        """Remove what this run or an earlier one left under this name."""
        if not (
            self.run_dir.exists() or self.state.exists() or list(Path("/run/netns").glob(f"{self.name}-*"))
        ):
            return
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
        for node in NODES:
            if not parts.answers(self.run_dir / node / "docker.sock"):
                self._kill(self._processes(f"{self.name}-pool-{node}", f"{self.run_dir}/{node}/"))
        if (self.state / "nodes").exists() and self.run_dir.exists():
            self._script("--stop", check=False)
        self._kill(self._processes())
        self._script("--stop", check=False)
        for mount in sorted(_mounts(self.state, self.run_dir), reverse=True):
            subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
        for node in NODES:
            remove_users(users_of(self.state / node / "state"))
        shutil.rmtree(self.state, ignore_errors=True)
        shutil.rmtree(self.run_dir, ignore_errors=True)
        # The script does not remove the user while processes of it run that the script did not start.
        subprocess.run(["userdel", self.name], check=False, capture_output=True)
        parts.docker(parts.PLAIN_SOCKET, "rmi", f"{self.name}/busybox:latest")

    def _mount_disks(self) -> None:
        for disk in ("coordinator", *(f"{node}/state" for node in NODES)):
            folder = self.state / disk
            folder.mkdir(parents=True)
            run_command("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0700", "tmpfs", str(folder))

    def _script(self, *words: str, settings: Mapping[str, str] | None = None, check: bool = True) -> None:
        done = subprocess.run(
            [parts.ROOT / "scripts/quickstart", *words],
            env={**self.environ, **(settings or {})}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=SCRIPT_SECONDS, check=False,
            # Ctrl-C is for the run, which ends its machines in order.
            start_new_session=True,
        )  # fmt: skip
        if check and done.returncode:
            raise HarnessError(f"scripts/quickstart {' '.join(words)}: {done.stdout}{done.stderr}")

    def _take_over(self, target: str, namespace: str, log: Path, pid_file: Path) -> None:
        """From here on the process is ours to end and to start, as the script did it."""
        pid = int(pid_file.read_text())
        process = psutil.Process(pid)
        self.services[target] = Service(
            target, process.cmdline(), process.environ(), namespace,
            process.uids().real, process.gids().real, log, pid_file, pid,
        )  # fmt: skip

    def _net(self, node: str) -> str:
        return f"{self.name}-pool-{node}"

    def _processes(self, *words: str) -> list[psutil.Process]:
        """Those whose command line names the pool, or one of ``words``."""
        wanted = words or (f"{self.name}-pool",)
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                line = process.cmdline()
                if process.pid != os.getpid() and any(want in word for word in line for want in wanted):
                    found.append(process)
        return found

    def _kill(self, processes: Iterable[psutil.Process]) -> None:
        doomed: set[psutil.Process] = set()
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                doomed |= {process, *process.children(recursive=True)}
        for process in doomed:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
            _thaw(process.pid)
        psutil.wait_procs(doomed, timeout=20)

    # --- asking

    def socket(self, node: str) -> Path:
        return self.run_dir / node / "gpushared.sock"

    def engine_socket(self, node: str) -> Path:
        return self.run_dir / node / "docker.sock"

    def call(self, node: str, call: str, asked: Mapping[str, object] | None = None) -> Json:
        """A node's daemon, by JSON, as root. Raises the errors of the tree."""
        return Client(f"unix://{self.socket(node)}").call(call, dict(asked or {}))

    def coordinator_socket(self) -> Path:
        return self.run_dir / "coordinator/gpushared-pool.sock"

    def coordinator_call(self, call: str, asked: Mapping[str, object] | None = None) -> Json:
        """The coordinator, as its administrator. Raises the errors of the tree."""
        return Client(f"unix://{self.coordinator_socket()}").call(call, dict(asked or {}))

    def serves(self, target: str) -> bool:
        """Whether a service answers at this moment."""
        if target.startswith("engine-"):
            return parts.answers(self.engine_socket(target[-1]))
        try:
            if target == "coordinator":
                self.coordinator_call("PoolAdmin/Status")
            else:
                self.call(target[-1], "Leases/List")
        except GpushareError:
            return False
        return True

    # --- failing and healing

    async def start_service(self, service: Service) -> None:
        """Start it as systemd does; comes back when it serves, when it ended, or after a minute."""
        if service.target.startswith("engine-"):
            run = self.run_dir / service.target[-1]
            (run / "docker.pid").unlink(missing_ok=True)
            (run / "docker/containerd/containerd.pid").unlink(missing_ok=True)
        service.wanted = True
        service.start()
        await wait_for(lambda: not service.runs or self.serves(service.target), SERVING_SECONDS)

    async def end_service(self, service: Service, number: signal.Signals) -> bool:
        """Returns whether it ended by the signal; else it was killed."""
        service.wanted = False
        own = _children(service.pid) if service.target.startswith("engine-") else []
        service.signal(number)
        ended = await wait_for(lambda: not service.runs, ENDING_SECONDS)
        if not ended:
            service.signal(signal.SIGKILL)
            await wait_for(lambda: not service.runs, ENDING_SECONDS)
        # The next dockerd takes a containerd that is dying for one that works.
        await wait_for(lambda: not any(_is_alive(process.pid) for process in own), SERVING_SECONDS)
        return ended

    def set_cable(self, node: str, state: str) -> None:
        run_command("ip", "-n", f"{self.name}-pool-hub", "link", "set", "dev", node, state)

    def disk(self, target: str) -> Path:
        name = target.removeprefix("disk-")
        return self.state / ("coordinator" if name == "coordinator" else f"{name}/state")

    def fill(self, target: str) -> None:
        """Leave no room on the disk. Its size shrinks to what is used, so that no memory is spent."""
        folder = self.disk(target)
        place = os.statvfs(folder)
        used = (place.f_blocks - place.f_bfree) * place.f_frsize
        run_command("mount", "-o", f"remount,size={used + SPARE_BYTES}", str(folder))
        with contextlib.suppress(OSError), (folder / "ballast").open("wb", buffering=0) as ballast:
            while True:
                ballast.write(bytes(4096))

    def free(self, target: str) -> None:
        folder = self.disk(target)
        run_command("mount", "-o", f"remount,size={DISK_BYTES}", str(folder))
        (folder / "ballast").unlink(missing_ok=True)

    def copy_store(self, to: Path) -> None:
        """As the page on pools says: by SQLite, while it is in use."""
        store = self.state / "coordinator/pool.db"
        with (
            contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as old,
            contextlib.closing(sqlite3.connect(to)) as new,
        ):
            old.backup(new)

    def put_store(self, copy: Path) -> None:
        """As the page on pools says, while the coordinator is stopped."""
        folder = self.state / "coordinator"
        for name in ("pool.db", "pool.db-wal", "pool.db-shm"):
            (folder / name).unlink(missing_ok=True)
        shutil.copyfile(copy, folder / "pool.db")
        service = self.services["coordinator"]
        os.chown(folder / "pool.db", service.uid, service.gid)


async def wait_for(look: Callable[[], bool], seconds: float, every_seconds: float = 0.1) -> bool:
    """Whether it came to be so; ``look`` runs in a thread."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while True:
        if await asyncio.to_thread(look):
            return True
        if loop.time() > until:
            return False
        await asyncio.sleep(every_seconds)


@contextlib.contextmanager
def a_free_number() -> Iterator[int]:
    """A pool's number that nobody else has as long as the block runs, whatever becomes of this process."""
    LOCKS.mkdir(exist_ok=True)
    for number in range(POOLS):
        lock = os.open(LOCKS / str(number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            continue
        try:
            yield number
        finally:
            os.close(lock)
        return
    raise HarnessError(f"{POOLS} chaos runs are under way already")


def sweep(cache: Path, say: Callable[[str], None] = lambda _: None) -> list[str]:
    """Remove the pools of runs that were killed; returns their names."""
    LOCKS.mkdir(exist_ok=True)
    swept = []
    for file in LOCKS.iterdir():
        lock = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left = Machines(int(file.name), cache)
            if left.state.exists() or left.run_dir.exists():
                left.clear()
                swept.append(left.name)
                say(f"removed {left.name}, which a run that was killed had left")
        except BlockingIOError:
            continue  # its run goes on
        finally:
            os.close(lock)
    return swept


def _is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _children(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children())
    except psutil.NoSuchProcess:
        return []


def _thaw(pid: int) -> None:
    """A process in a frozen cgroup does not end even when it is killed."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "freezer":
                Path(f"/sys/fs/cgroup/freezer{path}/freezer.state").write_text("THAWED")
            elif not controllers:
                Path(f"/sys/fs/cgroup{path}/cgroup.freeze").write_text("0")


def _mounts(*folders: Path) -> list[str]:
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [mount for mount in mounts if any(mount.startswith(f"{folder}/") for folder in folders)]


def run_command(*words: str, environ: Mapping[str, str] | None = None) -> None:
    """Raises HarnessError with what it said, where it fails."""
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise HarnessError(f"{' '.join(words)}: {done.stderr.strip()}")
