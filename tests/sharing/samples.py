"""GPUs and leases for the tests of sharing, and programs that stand in for a broken daemon."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpushared.domain.model.gpu import MIB, Gpu, GpuId
from gpushared.domain.model.lease import Grant, Lease, Reserved
from gpushared.domain.model.request import Isolation, Request
from gpushared.testing.fake_gpus import fake_gpu
from gpushared.testing.leases import SOME_TIME, fake_lease

GPUS: dict[GpuId, Gpu] = {gpu.id: gpu for gpu in (fake_gpu(0), fake_gpu(1), fake_gpu(2))}
FIRST, SECOND, THIRD = GPUS
QUARTER = 250


def grant(gpu: GpuId, permille: int = QUARTER) -> Grant:
    return Grant(gpu, GPUS[gpu].memory_of_share(permille), permille)


def lease(
    number: int = 1,
    *grants: Grant,
    isolation: Isolation = Isolation.SHARED,
    owner_uid: int = 1000,
    device_name: str | None = None,
) -> Lease:
    """A reserved lease, by default a quarter of the first GPU."""
    state = Reserved(grants or (grant(FIRST),), since=SOME_TIME, deadline=SOME_TIME + 60)
    made = fake_lease(number, state, request=Request(isolation=isolation), owner_uid=owner_uid)
    return made if device_name is None else replace(made, device_name=device_name)


def program(path: Path, body: str) -> Path:
    """A shell script in place of the control program."""
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


_SCRIPT = """
here={here}
if [ "$1" = -f ]; then
  echo $$ > "$here/pid"
  touch "$CUDA_MPS_PIPE_DIRECTORY/control"
  exec sleep 1000
fi
while read -r command argument rest; do
  echo "$command $argument" >> "$here/asked"
  case $command in
    *_thread_percentage) echo 100.0 ;;
    get_default_device_pinned_mem_limit) echo 20G ;;
    get_server_list) ls "$here/servers" ;;
    get_client_list) cat "$here/servers/$argument" 2>/dev/null || echo "Server $argument not found" ;;
    quit) kill "$(cat "$here/pid")" ;;
  esac
done
"""


class ScriptedControl:
    """A control program whose servers and clients the test says: the real one has none without a GPU."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._servers = directory / "servers"
        self._servers.mkdir(parents=True)
        self.binary = program(directory / "nvidia-cuda-mps-control", _SCRIPT.format(here=directory))

    def serve(self, server: int, clients: str) -> None:
        """A server with these lines as its clients."""
        (self._servers / str(server)).write_text(clients)

    def asked(self, command: str) -> int:
        """How often it was asked this."""
        log = self.directory / "asked"
        return log.read_text().count(f"{command} ") if log.exists() else 0


def leasable_gib(gpu: GpuId) -> int:
    return GPUS[gpu].leasable_bytes // MIB // 1024
