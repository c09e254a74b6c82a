"""A GPU driver whose users are real processes in real containers, for daemons that believe in their GPUs.

Two halves make it: the fake NVML library, from which the daemon learns who is on a GPU (``tests/gpus``), and
a socket for each GPU, to which ``gpu-work`` connects in a container to allocate. The kernel names the process
behind a connection by its host PID, and hangs up when the process ends: so what NVML shows is held by whoever
holds it, and goes with it, however it came to be there or ended.
"""

from __future__ import annotations

import contextlib
import functools
import json
import secrets
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.gpus.fake_nvml import FakeGpu, FakeMachine, fake_nvml_library
from tests.node.daemon import wait_until

SOURCE: Final = Path(__file__).with_name("gpu_work.c")
DEVICES: Final = "/dev/fake-nvidia"
PROGRAM: Final = "/usr/bin/gpu-work"
_CREDENTIALS: Final = struct.Struct("3i")


class FakeDriver:
    """GPUs, who holds what on them, and how containers get at them."""

    def __init__(self, directory: Path, gpus: Sequence[FakeGpu]) -> None:
        """``directory`` must be one that the engines see under its own path, such as below ``/tmp``."""
        self.directory = directory
        self.library = fake_nvml_library(directory / "lib", named=True)
        self.machine = FakeMachine(directory / "state", list(gpus))
        self.program = directory / "gpu-work"
        self.program.write_bytes(_built())
        self.program.chmod(0o755)
        self._lock = threading.Lock()
        self._sockets = [self._serve(gpu) for gpu in gpus]

    @property
    def environment(self) -> dict[str, str]:
        """For the daemon that shall find these GPUs."""
        return self.machine.environment(self.library)

    @property
    def options(self) -> list[str]:
        """For ``docker run`` on an engine that has no way to give GPUs: all GPUs, and the program."""
        devices = f"{self._devices()}:{DEVICES}"
        return ["-v", devices, "-v", f"{self.program}:{PROGRAM}:ro"]

    def cdi_spec(self) -> str:
        """What NVIDIA's toolkit writes for engines with CDI: a device for each GPU, by its UUID."""
        devices = [
            {"name": gpu.uuid, "containerEdits": {"mounts": [_mount(self._devices() / gpu.uuid, DEVICES)]}}
            for gpu in self.machine.gpus
        ]
        edits = {"mounts": [{**_mount(self.program, ""), "containerPath": PROGRAM}]}
        kind = "nvidia.com/gpu"
        return json.dumps({"cdiVersion": "0.5.0", "kind": kind, "containerEdits": edits, "devices": devices})

    def held(self) -> dict[int, int]:
        """Bytes by host PID, on all GPUs."""
        with self._lock:
            return {
                pid: size or 0 for gpu in self.machine.gpus for pid, size in (gpu.compute | gpu.mps).items()
            }

    def wait_held(self, count: int) -> dict[int, int]:
        """What is held, once so many processes hold something."""
        wait_until(lambda: len(self.held()) == count, f"{count} processes hold memory: {self.held()}")
        return self.held()

    @contextlib.contextmanager
    def changing(self) -> Iterator[FakeMachine]:
        """The machine, to be changed while its processes come and go; written in the end."""
        with self._lock:
            yield self.machine
            self.machine.write()

    def close(self) -> None:
        for listener in self._sockets:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _devices(self) -> Path:
        return self.directory / "dev"

    def _serve(self, gpu: FakeGpu) -> socket.socket:
        self._devices().mkdir(exist_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path = self._devices() / gpu.uuid
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen(64)
        threading.Thread(target=self._accept, args=(listener, gpu), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket, gpu: FakeGpu) -> None:
        while True:
            try:
                channel, _ = listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._allocate, args=(channel, gpu), daemon=True).start()

    def _allocate(self, channel: socket.socket, gpu: FakeGpu) -> None:
        """One allocation, until its process ends."""
        with channel, contextlib.suppress(ConnectionError):
            peer = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            pid: int = _CREDENTIALS.unpack(peer)[0]
            kind, size = channel.recv(256).decode().split()
            with self._lock:
                self._on(gpu, kind)[pid] = int(size)
                self.machine.write()
            channel.sendall(b"held\n")
            channel.recv(1)
            with self._lock, contextlib.suppress(OSError):  # the test may be over
                del self._on(gpu, kind)[pid]
                self.machine.write()

    @staticmethod
    def _on(gpu: FakeGpu, kind: str) -> dict[int, int | None]:
        return gpu.mps if kind == "mps" else gpu.compute


def _mount(source: Path, directory: str) -> dict[str, object]:
    options = ["rw", "nosuid", "nodev", "bind"]
    return {"hostPath": str(source), "containerPath": f"{directory}/{source.name}", "options": options}


@functools.cache
def _built() -> bytes:
    """The program, once for all tests of a run."""
    with tempfile.NamedTemporaryFile() as made:
        words = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-static", "-o", made.name, str(SOURCE)]
        subprocess.run(words, check=True, timeout=60)
        return Path(made.name).read_bytes()


def make_driver(count: int = 1) -> FakeDriver:
    """H100s with UUIDs that no other test uses: a shared engine knows the CDI devices of all tests."""
    gpus = [_h100() for _ in range(count)]
    return FakeDriver(Path(tempfile.mkdtemp(prefix="gpw-", dir="/tmp")), gpus)


def _h100() -> FakeGpu:
    digits = secrets.token_hex(16)
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    uuid = f"GPU-{'-'.join(parts)}"
    return FakeGpu(uuid, "NVIDIA Fake 80GB", total_bytes=80 * 2**30, capability=(9, 0), compute_mode=0)


@contextlib.contextmanager
def known_to_engine(driver: FakeDriver, spec_dir: Path) -> Iterator[None]:
    """An engine with CDI can give these GPUs to containers, for as long as this lasts."""
    name = f"nvidia.com-gpu-{driver.directory.name}.json"
    draft = spec_dir / f".{name}.tmp"
    draft.write_text(driver.cdi_spec())
    spec = draft.rename(spec_dir / name)
    try:
        yield
    finally:
        spec.unlink()
