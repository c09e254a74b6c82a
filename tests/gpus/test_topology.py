"""Which GPUs reach each other fast: what the driver tells of NVLink and NUMA nodes, and what is simulated."""

from __future__ import annotations

import pytest

from gpushared.domain.model.errors import RequestError
from gpushared.gpus.nvml_driver import NvmlCode
from gpushared.gpus.simulated import SimulatedGpus
from gpushared.ports import Gpus
from tests.gpus.drivers import FakeNvmlDriver
from tests.gpus.fake_nvml import FakeGpu


async def groups_of(gpus: Gpus) -> list[int | None]:
    return [gpu.link_group for gpu in await gpus.survey()]


def with_gpus(fake: FakeNvmlDriver, *places: tuple[int | None, int | None]) -> None:
    """GPUs by their group of NVLinks and their NUMA node."""
    made = [FakeGpu(f"GPU-{index}", nvlink=nvlink, numa=numa) for index, (nvlink, numa) in enumerate(places)]
    fake.machine.gpus = made
    fake.machine.write()


@pytest.mark.parametrize(
    ("places", "groups"),
    [
        pytest.param([(7, 0), (7, 0), (9, 1), (9, 1)], [0, 0, 2, 2], id="pairs of NVLink"),
        pytest.param([(7, 0), (9, 0), (7, 1), (9, 1)], [0, 1, 0, 1], id="NVLink before NUMA"),
        pytest.param([(None, 0), (None, 1), (None, 1)], [0, 1, 1], id="NUMA where there is no NVLink"),
        pytest.param([(7, 0), (None, 0), (7, 0), (None, 0)], [0, 1, 0, 1], id="the others by NUMA"),
        pytest.param([(None, None), (None, None)], [None, None], id="a driver that tells neither"),
        pytest.param([(None, 0)], [None], id="a GPU by itself"),
    ],
)
async def test_gpus_are_grouped_by_nvlink_else_by_numa_node(
    fake: FakeNvmlDriver, places: list[tuple[int | None, int | None]], groups: list[int | None]
) -> None:
    with_gpus(fake, *places)
    assert await groups_of(fake.open()) == groups


async def test_a_gpu_that_is_lost_from_the_start_is_in_no_group_and_hinders_nobody(
    fake: FakeNvmlDriver,
) -> None:
    with_gpus(fake, (7, 0), (7, 0), (7, 0))
    fake.machine.gpus[2].lost = True
    fake.machine.write()
    assert await groups_of(fake.open()) == [0, 0, None]


async def test_a_gpu_that_goes_later_stays_in_its_group(fake: FakeNvmlDriver) -> None:
    with_gpus(fake, (7, 0), (7, 0))
    gpus = fake.open()
    assert await groups_of(gpus) == [0, 0]
    fake.machine.gpus[1].lost = True
    fake.machine.write()
    assert await groups_of(gpus) == [0, 0]


async def test_numa_is_asked_where_a_driver_refuses_to_tell_of_nvlink(fake: FakeNvmlDriver) -> None:
    with_gpus(fake, (7, 0), (7, 0), (7, 1))
    for gpu in fake.machine.gpus:
        gpu.errors["nvmlDeviceGetP2PStatus"] = NvmlCode.NOT_SUPPORTED
    fake.machine.write()
    assert await groups_of(fake.open()) == [0, 0, 2]


@pytest.mark.parametrize(
    ("spec", "groups"),
    [("h100:8@4", [0, 0, 0, 0, 4, 4, 4, 4]), ("t4,h100:3@2", [None, 1, 1, 3]), ("h100:2", [None, None])],
)
async def test_simulated_gpus_are_linked_as_they_are_asked_for(spec: str, groups: list[int | None]) -> None:
    gpus = SimulatedGpus.parse(spec)
    assert await groups_of(gpus) == groups
    await gpus.close()


@pytest.mark.parametrize("spec", ["h100:2@0", "h100@", "h100:2@65"])
def test_links_that_make_no_sense_are_refused(spec: str) -> None:
    with pytest.raises(RequestError):
        SimulatedGpus.parse(spec)
