"""The compute mode of GPUs that are shared: set for leases, put back with the last, also after a crash."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpushared.domain.model.errors import (
    GpushareError,
    GpusUnavailable,
    SharingUnavailable,
    TimedOut,
)
from gpushared.domain.model.gpu import Gpu, GpuId
from gpushared.domain.model.request import Isolation
from gpushared.sharing.compute_mode import (
    DEFAULT,
    EXCLUSIVE_PROCESS,
    LEDGER_NAME,
    PROHIBITED,
    ExclusiveModes,
    read_ledger,
)
from gpushared.sharing.mps import MpsSharing
from gpushared.testing import FakeComputeModes
from tests.sharing.samples import FIRST, GPUS, SECOND, grant, lease, program

ONE, TWO = GPUS[FIRST], GPUS[SECOND]
AWAY = GpusUnavailable("the driver is away")


@pytest.fixture
def driver() -> FakeComputeModes:
    return FakeComputeModes({FIRST: DEFAULT, SECOND: DEFAULT})


@pytest.fixture
def modes_file(tmp_path: Path) -> Path:
    return tmp_path / "state" / LEDGER_NAME


def next_life(modes: ExclusiveModes, driver: FakeComputeModes, modes_file: Path) -> ExclusiveModes:
    """What a crash leaves: the driver's modes, the file, and no lock."""
    modes.close()
    return ExclusiveModes(driver, modes_file)


async def test_the_mode_holds_from_the_first_lease_to_the_last(
    driver: FakeComputeModes, modes_file: Path
) -> None:
    modes = ExclusiveModes(driver, modes_file)
    for name in ("l-1", "l-2", "l-1"):
        await modes.hold(name, ONE)
    await modes.leave("l-1")
    assert driver.modes == {FIRST: EXCLUSIVE_PROCESS, SECOND: DEFAULT}
    await modes.leave("l-2")
    await modes.leave("l-2")
    assert driver.history == [(FIRST, EXCLUSIVE_PROCESS), (FIRST, DEFAULT)]
    assert not modes_file.exists()


async def test_what_was_found_is_on_the_disk_before_anything_is_set(
    driver: FakeComputeModes, modes_file: Path
) -> None:
    class Crash(Exception):
        pass

    async def crash(gpu: GpuId, mode: int) -> None:
        driver.modes[gpu] = mode
        raise Crash

    driver.set_compute_mode = crash  # type: ignore[method-assign]  # the daemon dies in this very moment
    with pytest.raises(Crash):
        await ExclusiveModes(driver, modes_file).hold("l-1", ONE)
    (entry,) = read_ledger(modes_file).values()
    assert (entry.before, entry.leases) == (DEFAULT, frozenset({"l-1"}))


async def test_after_a_crash_the_mode_stays_for_leases_that_live_and_goes_with_those_that_do_not(
    driver: FakeComputeModes, modes_file: Path
) -> None:
    modes = ExclusiveModes(driver, modes_file)
    await modes.hold("l-1", ONE)
    await modes.hold("l-2", TWO)
    modes = next_life(modes, driver, modes_file)
    await modes.restore_unneeded({"l-1"})
    assert driver.modes == {FIRST: EXCLUSIVE_PROCESS, SECOND: DEFAULT}
    modes = next_life(modes, driver, modes_file)
    await modes.hold("l-1", ONE)
    await modes.leave("l-1")
    assert driver.modes == {FIRST: DEFAULT, SECOND: DEFAULT}


async def test_a_mode_that_the_admin_set_is_neither_noted_nor_put_back(
    driver: FakeComputeModes, modes_file: Path
) -> None:
    driver.modes[FIRST] = EXCLUSIVE_PROCESS
    modes = ExclusiveModes(driver, modes_file)
    await modes.hold("l-1", ONE)
    await modes.leave("l-1")
    await modes.free(ONE)
    assert driver.history == []


async def test_a_mode_that_somebody_changed_meanwhile_is_left_as_it_is(
    driver: FakeComputeModes, modes_file: Path
) -> None:
    modes = ExclusiveModes(driver, modes_file)
    await modes.hold("l-1", ONE)
    driver.modes[FIRST] = PROHIBITED
    await modes.leave("l-1")
    assert driver.modes[FIRST] == PROHIBITED
    assert not modes_file.exists()


async def test_a_mode_that_a_boot_took_is_set_again_and_what_was_found_first_is_kept(
    driver: FakeComputeModes, modes_file: Path
) -> None:
    modes = ExclusiveModes(driver, modes_file)
    await modes.hold("l-1", ONE)
    driver.modes[FIRST] = DEFAULT
    modes = next_life(modes, driver, modes_file)
    await modes.hold("l-1", ONE)
    assert driver.modes[FIRST] == EXCLUSIVE_PROCESS
    await modes.leave("l-1")
    assert driver.modes[FIRST] == DEFAULT


@pytest.mark.parametrize("error", [AWAY, TimedOut("the driver hangs")], ids=str)
async def test_a_mode_that_cannot_be_put_back_is_put_back_at_the_next_start(
    driver: FakeComputeModes, modes_file: Path, error: GpushareError
) -> None:
    modes = ExclusiveModes(driver, modes_file)
    await modes.hold("l-1", ONE)
    driver.fail_next(error)
    await modes.leave("l-1")
    (entry,) = read_ledger(modes_file).values()
    assert entry.leases == frozenset()
    modes = next_life(modes, driver, modes_file)
    await modes.restore_unneeded({"l-1"})
    assert driver.modes[FIRST] == DEFAULT


async def test_a_lease_of_the_whole_gpu_finds_it_as_it_was_or_is_told_that_it_does_not(
    driver: FakeComputeModes, modes_file: Path
) -> None:
    modes = ExclusiveModes(driver, modes_file)
    await modes.hold("l-1", ONE)
    driver.fail_next(AWAY)
    with pytest.raises(SharingUnavailable, match="still in the compute mode EXCLUSIVE_PROCESS"):
        await modes.free(ONE)
    await modes.free(ONE)
    assert driver.modes[FIRST] == DEFAULT


@pytest.mark.parametrize(
    ("mode", "sentence"), [(None, "GPU 0 tells no compute mode"), (PROHIBITED, "compute mode PROHIBITED")]
)
async def test_a_gpu_whose_mode_cannot_be_ours_is_refused_with_what_to_do(
    driver: FakeComputeModes, modes_file: Path, mode: int | None, sentence: str
) -> None:
    driver.modes[FIRST] = mode
    with pytest.raises(SharingUnavailable, match=sentence) as refused:
        await ExclusiveModes(driver, modes_file).hold("l-1", ONE)
    assert "exclusive_process" in (refused.value.hint or "")
    assert not modes_file.exists()


async def test_without_the_right_to_set_modes_the_lease_is_refused(
    driver: FakeComputeModes, modes_file: Path
) -> None:
    driver.fail_next(GpusUnavailable("no permission", hint="be root"))
    with pytest.raises(SharingUnavailable, match="cannot be set to EXCLUSIVE_PROCESS: no permission"):
        await ExclusiveModes(driver, modes_file).hold("l-1", ONE)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"GPU-a": {}}', '{"GPU-a": {"before": "x", "leases": []}}'])
async def test_a_file_that_cannot_be_read_is_trouble_and_not_taken_for_an_empty_one(
    driver: FakeComputeModes, modes_file: Path, text: str
) -> None:
    modes_file.parent.mkdir()
    modes_file.write_text(text)
    with pytest.raises(SharingUnavailable, match="cannot be kept in"):
        await ExclusiveModes(driver, modes_file).restore_unneeded(())
    assert modes_file.read_text() == text


async def test_only_one_process_at_a_time_sees_to_the_modes(
    driver: FakeComputeModes, modes_file: Path
) -> None:
    first = ExclusiveModes(driver, modes_file)
    await first.restore_unneeded(())
    with pytest.raises(SharingUnavailable, match="another process"):
        await ExclusiveModes(driver, modes_file).restore_unneeded(())
    first.close()
    await ExclusiveModes(driver, modes_file).restore_unneeded(())


# --- with the sharing ---


@pytest.fixture
async def sharing(
    mps_control_binary: Path, runtime_dir: Path, driver: FakeComputeModes, modes_file: Path
) -> AsyncIterator[MpsSharing]:
    """Over the real program, behind one that knows the flag for several users."""
    newer = program(runtime_dir / "newer", f'exec "{mps_control_binary}" ${{1:+-f}}')
    made = MpsSharing(runtime_dir, binary=newer, modes=ExclusiveModes(driver, modes_file))
    yield made
    await made.close(keep_running=False)


def exclusively(*names: GpuId) -> dict[GpuId, Gpu]:
    return {gpu: replace(GPUS[gpu], exclusive_process=gpu in names) for gpu in GPUS}


async def test_shared_leases_have_the_mode_on_the_gpus_that_are_to_have_it(
    sharing: MpsSharing, driver: FakeComputeModes
) -> None:
    gpus = exclusively(FIRST)
    await sharing.open(lease(1), gpus)
    await sharing.open(lease(2, grant(SECOND)), gpus)
    assert driver.modes == {FIRST: EXCLUSIVE_PROCESS, SECOND: DEFAULT}
    await sharing.close_lease(lease(1).id, "l-1")
    assert driver.modes == {FIRST: DEFAULT, SECOND: DEFAULT}


async def test_a_whole_gpu_is_leased_in_the_mode_that_was_there_before(
    sharing: MpsSharing, driver: FakeComputeModes
) -> None:
    gpus = exclusively(FIRST)
    await sharing.open(lease(1), gpus)
    await sharing.open(lease(2, grant(FIRST, 1000), isolation=Isolation.EXCLUSIVE), gpus)
    assert driver.modes[FIRST] == DEFAULT


async def test_a_stop_leaves_the_mode_to_leases_that_go_on(
    sharing: MpsSharing, driver: FakeComputeModes, modes_file: Path
) -> None:
    await sharing.open(lease(1), exclusively(FIRST))
    await sharing.close(keep_running=True)
    assert driver.modes[FIRST] == EXCLUSIVE_PROCESS
    await ExclusiveModes(driver, modes_file).restore_unneeded({"l-1"})
    assert driver.modes[FIRST] == EXCLUSIVE_PROCESS


async def test_the_clean_up_after_a_crash_puts_back_what_nobody_needs(
    sharing: MpsSharing, driver: FakeComputeModes, modes_file: Path
) -> None:
    before = ExclusiveModes(driver, modes_file)
    await before.hold("l-gone", ONE)
    before.close()
    await sharing.sweep({"l-1"})
    assert driver.modes[FIRST] == DEFAULT


async def test_trouble_with_the_modes_does_not_keep_a_lease_from_ending(
    sharing: MpsSharing, driver: FakeComputeModes, modes_file: Path
) -> None:
    modes_file.parent.mkdir(exist_ok=True)
    modes_file.write_text("{")
    await sharing.open(lease(1), GPUS)
    await sharing.close_lease(lease(1).id, "l-1")
    await sharing.sweep(())
    assert driver.history == []


async def test_an_mps_with_a_server_for_each_user_cannot_have_a_gpu_to_itself(
    mps_control_binary: Path, runtime_dir: Path, driver: FakeComputeModes, modes_file: Path
) -> None:
    older = MpsSharing(runtime_dir, binary=mps_control_binary, modes=ExclusiveModes(driver, modes_file))
    with pytest.raises(SharingUnavailable, match="needs a server for each user") as refused:
        await older.open(lease(1), exclusively(FIRST))
    assert "580" in (refused.value.hint or "")
    assert driver.history == []
    await older.close(keep_running=False)
