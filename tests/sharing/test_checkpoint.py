"""CUDA checkpoints through the real bindings, over a fake driver library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpushared.domain.model.errors import SharingUnavailable
from gpushared.sharing.checkpoint import CudaCheckpoints

SOURCE = Path(__file__).with_name("fake_checkpoint.c")
WORDS = [sys.executable, "-I", "-m", "gpushared.sharing.checkpoint_worker"]


class FakeCuda:
    """A directory in which each fake CUDA process has a file with its state."""

    def __init__(self, directory: Path, library: Path) -> None:
        self.directory = directory
        self.environ = {"LD_LIBRARY_PATH": str(library), "FAKE_CUDA": str(directory)}

    def run(self, *pids: int, state: str = "running") -> None:
        for pid in pids:
            (self.directory / str(pid)).write_text(state)

    def refuse(self, pid: int) -> None:
        (self.directory / f"{pid}.refuse").touch()

    def state(self, pid: int) -> str:
        return (self.directory / str(pid)).read_text()

    @property
    def calls(self) -> list[str]:
        return (self.directory / "calls").read_text().splitlines()

    def checkpoints(self, **environ: str) -> CudaCheckpoints:
        return CudaCheckpoints({**self.environ, **environ})


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a FAKE libcuda.so.1."""
    directory = tmp_path_factory.mktemp("cuda")
    words = ["gcc", "-shared", "-fPIC", "-w", "-o", str(directory / "libcuda.so.1"), str(SOURCE)]
    subprocess.run(words, check=True, timeout=60)
    return directory


@pytest.fixture
def fake_cuda(tmp_path: Path, library: Path) -> FakeCuda:
    return FakeCuda(tmp_path, library)


async def test_a_driver_that_can_is_found_by_asking_it(fake_cuda: FakeCuda) -> None:
    assert await fake_cuda.checkpoints().trouble() == ""


async def test_an_older_driver_is_told_of(fake_cuda: FakeCuda) -> None:
    assert "580" in await fake_cuda.checkpoints(FAKE_CUDA_VERSION="12080").trouble()


async def test_a_machine_without_the_driver_is_told_of() -> None:
    assert "cannot be loaded" in await CudaCheckpoints().trouble()


async def test_all_are_locked_before_the_first_is_saved_and_others_are_left_alone(
    fake_cuda: FakeCuda,
) -> None:
    fake_cuda.run(11, 12)
    await fake_cuda.checkpoints().save([12, 11, 99])
    assert fake_cuda.calls == ["lock 11", "lock 12", "checkpoint 11", "checkpoint 12"]
    assert (fake_cuda.state(11), fake_cuda.state(12)) == ("checkpointed", "checkpointed")


async def test_what_was_saved_goes_on_where_it_was(fake_cuda: FakeCuda) -> None:
    fake_cuda.run(11)
    await fake_cuda.checkpoints().save([11])
    await fake_cuda.checkpoints().restore([11, 99])
    assert fake_cuda.calls[-2:] == ["restore 11", "unlock 11"]
    assert fake_cuda.state(11) == "running"


async def test_one_that_cannot_be_saved_leaves_all_of_them_running(fake_cuda: FakeCuda) -> None:
    fake_cuda.run(11, 12)
    fake_cuda.refuse(12)
    with pytest.raises(SharingUnavailable, match="save process 12: CUDA_ERROR_NOT_SUPPORTED"):
        await fake_cuda.checkpoints().save([11, 12])
    assert (fake_cuda.state(11), fake_cuda.state(12)) == ("running", "running")


async def test_what_was_not_saved_is_not_restored(fake_cuda: FakeCuda) -> None:
    fake_cuda.run(11)
    await fake_cuda.checkpoints().restore([11])
    assert not (fake_cuda.directory / "calls").exists()


async def test_saving_twice_is_harmless(fake_cuda: FakeCuda) -> None:
    fake_cuda.run(11)
    for _ in range(2):
        await fake_cuda.checkpoints().save([11])
    assert fake_cuda.calls == ["lock 11", "checkpoint 11"]


async def test_nothing_to_save_asks_nobody(fake_cuda: FakeCuda) -> None:
    await fake_cuda.checkpoints().save([])
    assert not (fake_cuda.directory / "calls").exists()


async def test_a_worker_that_fails_is_told_of(fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "gpushared.sharing.checkpoint._PROGRAM", (sys.executable, "-c", "raise SystemExit('oh')")
    )
    with pytest.raises(SharingUnavailable, match="oh"):
        await fake_cuda.checkpoints().save([1])


def test_without_the_bindings_it_says_what_to_install(tmp_path: Path) -> None:
    program = tmp_path / "worker.py"
    program.write_text(
        "import sys; sys.modules['cuda'] = None\n"
        "from gpushared.sharing.checkpoint_worker import main\nmain(['probe'])\n"
    )
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=True, timeout=60
    )
    assert "pip install 'gpushared[checkpoint]'" in done.stdout
