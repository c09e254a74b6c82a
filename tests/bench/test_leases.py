"""Leases for plain processes: opened by gpushared's own sharing, lived in as a container would."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bench.gpu.lab import OTHER_UID, Lab
from bench.gpu.leases import gpu_of, inside, opened, process_environment
from bench.gpu.machine import Machine
from gpushared.domain.model.errors import SharingUnavailable
from gpushared.domain.model.gpu import MIB, GpuId
from gpushared.domain.model.lease import ComputeCap, MemoryWall, Walls
from gpushared.ports import EditMount, Edits
from tests.bench.conftest import ROW

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="mount namespaces need root")


def made_up(mps_control: Path | None) -> Machine:
    return Machine(
        gpu=ROW,
        no_gpu="",
        mps_control=mps_control,
        nvcc=None,
        modules=frozenset(),
        root=True,
        unshare=True,
        cgroup2=False,
    )


@pytest.fixture
async def lab(mps_control_binary: Path, tmp_path: Path) -> AsyncIterator[Lab]:
    made = Lab(made_up(mps_control_binary), tmp_path)
    yield made
    await made.close()


def run_inside(edits: Edits, script: str, uid: int | None = None) -> str:
    words = inside(edits, ["sh", "-c", script], uid=uid)
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.strip()


@pytest.fixture
def edits(tmp_path: Path) -> Edits:
    source = tmp_path / "source"
    source.mkdir()
    (source / "control").touch()
    mounts = (EditMount(str(source), "/run/gpushare/mps"),)
    return Edits(gpus=(), walls=Walls(MemoryWall.NONE, ComputeCap.NONE), mounts=mounts)


@as_root
def test_a_process_finds_a_leases_mounts_where_a_container_does(edits: Edits):
    assert run_inside(edits, "cd /run && find . -type f") == "./gpushare/mps/control"


@as_root
def test_it_cannot_write_there(edits: Edits):
    assert run_inside(edits, "touch /run/gpushare/mps/other 2>/dev/null || echo refused") == "refused"


@as_root
def test_nothing_of_it_is_seen_outside(edits: Edits):
    run_inside(edits, "true")
    assert not Path("/run/gpushare/mps/control").exists()


@as_root
def test_it_can_run_as_another_user(edits: Edits):
    assert run_inside(edits, "id -u; id -G", OTHER_UID).split() == [str(OTHER_UID)] * 2


async def test_the_gpu_of_a_run_is_leasable_less_what_is_used_and_kept_back(lab: Lab):
    gpu = gpu_of(lab)
    assert gpu.memory_total_bytes == 16384 * MIB
    assert gpu.leasable_bytes == (16384 - 300 - 300) * MIB


async def test_leases_are_served_by_real_control_daemons_until_the_end_of_the_block(lab: Lab):
    async with opened(lab, (500, 250, 250)) as leases:
        environments = [process_environment(one) for one in leases]
        shares = [env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] for env in environments]
        sockets = [Path(env["CUDA_MPS_PIPE_DIRECTORY"]) / "control" for env in environments]
        assert shares == ["50", "25", "25"]
        assert all(path.is_socket() for path in sockets)
        assert leases[0].gpus == (GpuId(ROW["uuid"]),)
    assert not any(path.exists() for path in sockets)


async def test_without_mps_there_is_nothing_to_open(tmp_path: Path):
    lab = Lab(made_up(None), tmp_path)
    with pytest.raises(SharingUnavailable):
        async with opened(lab, (500,)):
            pytest.fail("a lease was opened")
    await lab.close()
