"""Canaries: small CUDA programs that learn whether new ones get through to an MPS server."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gpushared.domain.leases.node_rules import MpsMode
from gpushared.domain.model.errors import SharingUnavailable
from gpushared.ports import SharingStatus
from gpushared.sharing.canary_watch import CanaryTiming, CanaryWatch
from gpushared.sharing.daemon_pool import MpsTiming
from gpushared.sharing.mps import MpsSharing
from tests.sharing import daemons
from tests.sharing.fake_mps import FakeMps
from tests.sharing.samples import GPUS, lease

SOURCE = Path(__file__).with_name("fake_cuda.c")
OWN = os.getpid()
"""A process that lives and is ours: it stands in for a server."""
PATIENT, QUICK = 60.0, 0.3


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a FAKE libcuda.so.1."""
    directory = tmp_path_factory.mktemp("cuda")
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", directory / "libcuda.so.1", SOURCE], check=True, timeout=60
    )
    return directory


def watch(cuda: Path, does: str, *, timeout_seconds: float = PATIENT, failures: int = 2) -> CanaryWatch:
    env = {"LD_LIBRARY_PATH": str(cuda), "FAKE_CUDA": does}
    timing = CanaryTiming(1.0, timeout_seconds, 0.01, failures)
    return CanaryWatch(Path("/nonexistent"), env, timing)


@pytest.mark.parametrize(
    ("does", "complaint"),
    [
        ("805", "cannot connect to the MPS server (805)"),
        ("806", "lose the MPS server (806)"),
        ("807", "are refused by the MPS server (807)"),
    ],
)
async def test_what_new_programs_suffer_is_said_once_it_happened_in_a_row(
    cuda: Path, does: str, complaint: str
) -> None:
    canaries = watch(cuda, does)
    await canaries.send(OWN)
    assert canaries.complaint is None
    assert canaries.pause_seconds == pytest.approx(0.01)
    await canaries.send(OWN)
    assert canaries.complaint == complaint


@pytest.mark.parametrize("does", ["0", "808", "100", "999"], ids=["well", "full", "no GPU", "anything else"])
async def test_what_is_not_the_servers_fault_is_not_held_against_it(cuda: Path, does: str) -> None:
    canaries = watch(cuda, does, failures=1)
    await canaries.send(OWN)
    assert canaries.complaint is None
    assert canaries.pause_seconds == pytest.approx(1.0)


async def test_a_canary_that_hangs_is_given_up_and_leaves_no_process(cuda: Path) -> None:
    canaries = watch(cuda, "hang", timeout_seconds=QUICK, failures=1)
    sending = asyncio.create_task(canaries.send(OWN))
    await daemons.until(lambda: bool(canaries.pids))
    pids = sorted(canaries.pids)
    await sending
    assert canaries.complaint == "hang for more than 0.3 s"
    assert canaries.pids == frozenset()
    assert await daemons.gone(pids)


async def test_one_that_gets_through_ends_the_complaint(tmp_path: Path) -> None:
    said = tmp_path / "said"
    said.write_text("807")
    canaries = CanaryWatch(Path("/nonexistent"), {}, CanaryTiming(1.0, failures=1), ["/bin/cat", str(said)])
    await canaries.send(OWN)
    assert canaries.complaint is not None
    said.write_text("0")
    await canaries.send(OWN)
    assert canaries.complaint is None


async def test_without_the_cuda_library_nobody_can_tell(tmp_path: Path) -> None:
    canaries = watch(tmp_path, "805", failures=1)
    await canaries.send(OWN)
    assert canaries.complaint is None


async def test_it_runs_as_the_servers_user(cuda: Path, tmp_path: Path) -> None:
    """The daemon would have another user's client wait until the server's own are gone."""
    server = await asyncio.create_subprocess_exec("sleep", "1000", user=65534)
    seen = tmp_path / "seen"
    seen.touch()
    seen.chmod(0o666)
    words = ["sh", "-c", f'id -u > "{seen}"; id -G >> "{seen}"; echo 0']
    tmp_path.chmod(0o777)
    for parent in list(tmp_path.parents)[:2]:
        parent.chmod(0o755)
    try:
        env = {"PATH": os.environ["PATH"]}
        await CanaryWatch(Path("/nonexistent"), env, CanaryTiming(1.0), words).send(server.pid)
    finally:
        server.kill()
        await server.wait()
    assert seen.read_text().split() == ["65534", "65534"]


@pytest.fixture
async def share(runtime_dir: Path, cuda: Path) -> AsyncIterator[Callable[..., MpsSharing]]:
    made: list[MpsSharing] = []

    def make(mps: FakeMps, does: str, *, simulated: bool = False) -> MpsSharing:
        timing = MpsTiming(poll_seconds=0.05, recycle_seconds=0.1, canary=CanaryTiming(0.05, QUICK, 0.05, 2))
        environ = {"LD_LIBRARY_PATH": str(cuda), "FAKE_CUDA": does}
        mode = MpsMode.REQUIRED
        made.append(
            MpsSharing(
                runtime_dir, binary=mps.binary, mode=mode, timing=timing, environ=environ, simulated=simulated
            )
        )
        return made[-1]

    yield make
    for sharing in made:
        await sharing.close(keep_running=False)


async def until(sharing: MpsSharing, condition: Callable[[SharingStatus], object]) -> SharingStatus:
    async with asyncio.timeout(30):
        while not condition(status := (await sharing.status())[0]):  # noqa: ASYNC110 - the port offers a look
            await asyncio.sleep(0.01)
    return status


async def test_a_wedged_server_gets_no_new_leases_and_stays_while_it_has_clients(
    share: Callable[..., MpsSharing], runtime_dir: Path
) -> None:
    mps = FakeMps(runtime_dir / "fake")
    sharing = share(mps, "hang")
    await sharing.open(lease(1), GPUS)
    mps.serve(OWN, 100)
    status = await until(sharing, lambda status: status.trouble)
    assert status.trouble == "new CUDA programs hang for more than 0.3 s"
    with pytest.raises(SharingUnavailable, match="new CUDA programs hang"):
        await sharing.open(lease(2), GPUS)
    assert mps.told("shutdown_server") == []
    mps.serve(OWN)
    await daemons.until(lambda: str(OWN) not in mps.servers())
    assert mps.told("shutdown_server")[0] == f"shutdown_server {OWN}"
    await until(sharing, lambda status: status.trouble is None)
    await sharing.open(lease(2), GPUS)


async def test_a_canary_that_is_out_counts_as_ours(
    share: Callable[..., MpsSharing], runtime_dir: Path
) -> None:
    mps = FakeMps(runtime_dir / "fake")
    sharing = share(mps, "hang")
    await sharing.open(lease(1), GPUS)
    mps.serve(OWN, 100)
    assert len((await until(sharing, lambda status: len(status.pids) > 1)).pids) == 2


async def test_no_canary_is_sent_where_gpus_are_simulated_or_no_server_is_there(
    share: Callable[..., MpsSharing], runtime_dir: Path
) -> None:
    mps = FakeMps(runtime_dir / "fake")
    sharing = share(mps, "hang", simulated=True)
    await sharing.open(lease(1), GPUS)
    mps.serve(OWN, 100)
    await until(sharing, lambda status: status.clients)
    seen = len(mps.told("get_server_list"))
    await daemons.until(lambda: len(mps.told("get_server_list")) > seen + 5)
    assert (await sharing.status())[0].pids == (OWN,)
