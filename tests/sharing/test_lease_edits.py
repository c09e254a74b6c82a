"""What a container is given for which lease."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushared.domain.model.errors import SharingUnavailable
from gpushared.domain.model.gpu import MIB, Gpu, GpuId
from gpushared.domain.model.lease import (
    ComputeCap,
    Grant,
    Lease,
    MemoryWall,
    Reserved,
    Walls,
)
from gpushared.domain.model.request import Isolation
from gpushared.domain.model.request_spec import RequestSpec, read_request
from gpushared.ports import EditMount, Edits, Hook
from gpushared.sharing.control import DaemonLimits
from gpushared.sharing.driver_wall import CgroupPlacement
from gpushared.sharing.lease_edits import lease_edits, own_limits
from gpushared.testing.leases import SOME_TIME
from tests.sharing.samples import FIRST, GPUS, SECOND, THIRD, grant, lease

DIRECTORY = "/run/gpushared/leases/l-1"
WHOLE = Walls(MemoryWall.WHOLE_GPU, ComputeCap.WHOLE_GPU)
LIMITED = Walls(MemoryWall.MPS_CLIENT, ComputeCap.MPS_PERCENTAGE)
NOTHING = Walls(MemoryWall.NONE, ComputeCap.NONE)


@dataclass(frozen=True)
class Case:
    says: str
    grants: tuple[Grant, ...]
    walls: Walls
    env: dict[str, str]
    isolation: Isolation = Isolation.SHARED
    mps: bool = True
    absent: tuple[str, ...] = ()
    defaults: dict[str, str] = field(default_factory=dict)


CASES = [
    Case(
        "a quarter of a GPU has a quarter of its memory and compute, and both walls",
        (grant(FIRST),),
        LIMITED,
        {
            "CUDA_VISIBLE_DEVICES": FIRST,
            "NVIDIA_VISIBLE_DEVICES": FIRST,
            "CUDA_MPS_PIPE_DIRECTORY": "/run/gpushare/mps",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=20405M",
            "GPUSHARE_LEASE": "l-1",
            "GPUSHARE_GPU_UUIDS": FIRST,
            "GPUSHARE_MEMORY_BYTES": str(20405 * MIB),
            "GPUSHARE_COMPUTE_PERCENT": "25",
            "GPUSHARE_MEMORY_WALL": "mps-client",
            "GPUSHARE_COMPUTE_CAP": "mps-percentage",
            "GPUSHARE_SIMULATED": "0",
        },
        defaults={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.249", "TF_FORCE_GPU_ALLOW_GROWTH": "true"},
    ),
    Case(
        "a MIG instance is all of what it is, behind MIG's walls and without MPS",
        (Grant(FIRST, GPUS[FIRST].leasable_bytes, 1000),),
        Walls(MemoryWall.MIG, ComputeCap.MIG),
        {
            "CUDA_VISIBLE_DEVICES": FIRST,
            "NVIDIA_VISIBLE_DEVICES": FIRST,
            "CUDA_MPS_PIPE_DIRECTORY": "/tmp/gpushare-mps",
            "GPUSHARE_COMPUTE_PERCENT": "100",
            "GPUSHARE_MEMORY_WALL": "mig",
            "GPUSHARE_COMPUTE_CAP": "mig",
        },
        isolation=Isolation.MIG,
        absent=("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
    ),
    Case(
        "an eighth is 12.5 percent",
        (grant(FIRST, 125),),
        LIMITED,
        {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "12.5", "GPUSHARE_COMPUTE_PERCENT": "12.5"},
        defaults={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.124", "TF_FORCE_GPU_ALLOW_GROWTH": "true"},
    ),
    Case(
        "halves of two GPUs have one limit for each, by the order in which the container sees them",
        (grant(SECOND, 500), grant(FIRST, 500)),
        LIMITED,
        {
            "CUDA_VISIBLE_DEVICES": f"{FIRST},{SECOND}",
            "GPUSHARE_GPU_UUIDS": f"{FIRST},{SECOND}",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=40810M,1=40810M",
        },
        defaults={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.498", "TF_FORCE_GPU_ALLOW_GROWTH": "true"},
    ),
    Case(
        "an exclusive GPU has no MPS and does not find a foreign one",
        (grant(THIRD, 1000),),
        WHOLE,
        {
            "CUDA_VISIBLE_DEVICES": THIRD,
            "CUDA_MPS_PIPE_DIRECTORY": "/tmp/gpushare-mps",
            "GPUSHARE_COMPUTE_PERCENT": "100",
            "GPUSHARE_MEMORY_WALL": "whole-gpu",
            "GPUSHARE_COMPUTE_CAP": "whole-gpu",
        },
        isolation=Isolation.EXCLUSIVE,
        absent=("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
    ),
    Case(
        "a shared lease that fills its GPU stands there alone, too",
        (grant(FIRST, 1000),),
        WHOLE,
        {"GPUSHARE_MEMORY_WALL": "whole-gpu"},
        absent=("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
    ),
    Case(
        "a separate lease has limits that its own server keeps, and the same for the client",
        (grant(SECOND, 125), grant(FIRST)),
        Walls(MemoryWall.MPS_SERVER, ComputeCap.MPS_PERCENTAGE),
        {
            "CUDA_VISIBLE_DEVICES": f"{FIRST},{SECOND}",
            "CUDA_MPS_PIPE_DIRECTORY": "/run/gpushare/mps",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "12.5",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=20405M,1=10202M",
            "GPUSHARE_MEMORY_WALL": "mps-server",
            "GPUSHARE_COMPUTE_CAP": "mps-percentage",
        },
        isolation=Isolation.SEPARATE,
        defaults={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.124", "TF_FORCE_GPU_ALLOW_GROWTH": "true"},
    ),
    Case(
        "a separate lease that fills its GPU stands there alone, without MPS",
        (grant(FIRST, 1000),),
        WHOLE,
        {"GPUSHARE_MEMORY_WALL": "whole-gpu", "CUDA_MPS_PIPE_DIRECTORY": "/tmp/gpushare-mps"},
        isolation=Isolation.SEPARATE,
        absent=("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
    ),
    Case(
        "what may use more than its share is told both, and its processes go up to the ceiling",
        (Grant(FIRST, GPUS[FIRST].memory_of_share(250), 250, 1000),),
        LIMITED,
        {
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100",
            "GPUSHARE_COMPUTE_PERCENT": "25",
            "GPUSHARE_COMPUTE_LIMIT_PERCENT": "100",
        },
        defaults={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.249", "TF_FORCE_GPU_ALLOW_GROWTH": "true"},
    ),
    Case(
        "a plain share is its own ceiling, and its own range",
        (grant(FIRST, 125), grant(SECOND, 125)),
        LIMITED,
        {
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "12.5",
            "GPUSHARE_COMPUTE_LIMIT_PERCENT": "12.5",
            "GPUSHARE_COMPUTE_PERCENT_MIN": "12.5",
            "GPUSHARE_COMPUTE_PERCENT_MAX": "12.5",
            "GPUSHARE_MEMORY_BYTES_MIN": str(10202 * MIB),
            "GPUSHARE_MEMORY_BYTES_MAX": str(10202 * MIB),
            "GPUSHARE_GPU_COUNT": "2",
        },
        defaults={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.124", "TF_FORCE_GPU_ALLOW_GROWTH": "true"},
    ),
    Case(
        "without MPS a separate lease has no walls either and says so",
        (grant(FIRST),),
        NOTHING,
        {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/gpushare-mps", "GPUSHARE_MEMORY_WALL": "none"},
        isolation=Isolation.SEPARATE,
        mps=False,
        absent=("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
        defaults={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.249", "TF_FORCE_GPU_ALLOW_GROWTH": "true"},
    ),
    Case(
        "without MPS a shared lease has no walls and says so",
        (grant(FIRST),),
        NOTHING,
        {
            "CUDA_MPS_PIPE_DIRECTORY": "/tmp/gpushare-mps",
            "GPUSHARE_COMPUTE_PERCENT": "25",
            "GPUSHARE_MEMORY_WALL": "none",
            "GPUSHARE_COMPUTE_CAP": "none",
        },
        mps=False,
        absent=("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
        defaults={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.249", "TF_FORCE_GPU_ALLOW_GROWTH": "true"},
    ),
]


def edits_of(
    of: Lease,
    gpus: Mapping[GpuId, Gpu] = GPUS,
    *,
    mps: bool = True,
    simulated: bool = False,
    mounts: tuple[EditMount, ...] = (),
) -> Edits:
    return lease_edits(of, gpus, directory=DIRECTORY, mps=mps, simulated=simulated, mounts=mounts)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.says)
def test_edits_say(case: Case) -> None:
    """Each case is a sentence, a lease, and what its container gets."""
    edits = edits_of(lease(1, *case.grants, isolation=case.isolation), mps=case.mps)
    assert edits.walls == case.walls
    assert {name: edits.env.get(name) for name in case.env} == case.env
    assert not set(case.absent) & edits.env.keys()
    assert edits.env_defaults == case.defaults


def test_an_elastic_lease_is_told_what_it_has_and_between_what_it_may_be() -> None:
    asked = read_request(RequestSpec(gpu="0.125..0.5"), {})
    env = edits_of(replace(lease(1, grant(FIRST)), request=asked)).env
    share = [env[f"GPUSHARE_COMPUTE_PERCENT{end}"] for end in ("_MIN", "", "_MAX")]
    memory = [int(env[f"GPUSHARE_MEMORY_BYTES{end}"]) // MIB for end in ("_MIN", "", "_MAX")]
    assert (share, memory) == (["12.5", "25", "50"], [10202, 20405, 40810])


def test_a_range_ends_at_what_the_gpu_has() -> None:
    asked = read_request(RequestSpec(gpu_memory="8g..500g"), {})
    env = edits_of(replace(lease(1, grant(FIRST)), request=asked)).env
    assert int(env["GPUSHARE_MEMORY_BYTES_MAX"]) == GPUS[FIRST].leasable_bytes


def test_a_range_of_gpus_is_told_beside_their_number() -> None:
    asked = read_request(RequestSpec(gpu="1..4"), {})
    env = edits_of(replace(lease(1, grant(FIRST, 1000), grant(SECOND, 1000)), request=asked)).env
    assert [env[f"GPUSHARE_GPU_COUNT{end}"] for end in ("_MIN", "", "_MAX")] == ["1", "2", "4"]


def test_a_server_of_ones_own_allows_what_the_ceiling_says() -> None:
    assert own_limits([Grant(FIRST, 20405 * MIB, 250, 1000)]) == DaemonLimits((20405,), 100.0)


@pytest.mark.parametrize("mps", [True, False], ids=["with MPS", "without"])
def test_every_lease_gets_its_own_directory_to_read_and_what_comes_on_top(mps: bool) -> None:
    extra = EditMount("/opt/tools", "/opt/tools")
    edits = edits_of(lease(), mps=mps, mounts=(extra,))
    assert edits.mounts == (EditMount(DIRECTORY, "/run/gpushare", read_only=True), extra)


def test_a_container_on_simulated_gpus_can_tell() -> None:
    assert edits_of(lease(), simulated=True).env["GPUSHARE_SIMULATED"] == "1"


@pytest.mark.parametrize("mps", [True, False], ids=["with MPS", "without"])
def test_every_variable_of_a_container_is_documented(mps: bool) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "environment.md").read_text()
    edits = edits_of(lease(), mps=mps)
    assert not [name for name in (*edits.env, *edits.env_defaults) if f"`{name}` |" not in page]


@pytest.mark.parametrize("grants", [(), (Grant(GpuId("GPU-gone"), MIB, 100),)], ids=["no grant", "lost GPU"])
def test_a_lease_whose_gpus_are_not_there_gets_nothing(grants: tuple[Grant, ...]) -> None:
    state = Reserved(grants, since=SOME_TIME, deadline=SOME_TIME)
    with pytest.raises(SharingUnavailable, match=r"is not there|holds no GPU"):
        edits_of(replace(lease(), state=state))


gpus = st.builds(
    lambda index, total, held: Gpu(
        GpuId(f"GPU-{index}"), index, "any", total * MIB, max(1, total - held) * MIB
    ),
    st.integers(0, 7),
    st.integers(2048, 200_000),
    st.integers(0, 1024),
)


@st.composite
def gpus_and_grants(draw: st.DrawFn) -> tuple[dict[GpuId, Gpu], tuple[Grant, ...]]:
    """Some GPUs, and grants of parts of some of them."""
    there = draw(st.lists(gpus, min_size=1, max_size=8, unique_by=lambda gpu: gpu.id))
    taken = draw(st.lists(st.sampled_from(there), min_size=1, unique_by=lambda gpu: gpu.id))
    grants = tuple(
        Grant(
            gpu.id,
            draw(st.integers(1, gpu.leasable_bytes // MIB)) * MIB,
            draw(st.integers(1, 1000)),
        )
        for gpu in taken
    )
    return {gpu.id: gpu for gpu in there}, grants


@given(drawn=gpus_and_grants())
def test_edits_never_name_a_gpu_that_is_not_granted(
    drawn: tuple[dict[GpuId, Gpu], tuple[Grant, ...]],
) -> None:
    there, grants = drawn
    edits = edits_of(lease(1, *grants), there)
    granted = {grant.gpu for grant in grants}
    assert set(edits.gpus) == granted
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "GPUSHARE_GPU_UUIDS"):
        assert tuple(edits.env[name].split(",")) == edits.gpus
    everything = " ".join((*edits.env.values(), *edits.env_defaults.values())).replace(",", " ").split()
    assert not {gpu for gpu in there if gpu not in granted} & set(everything)


@given(drawn=gpus_and_grants())
def test_memory_limits_are_one_for_each_visible_gpu_and_sum_to_what_is_granted(
    drawn: tuple[dict[GpuId, Gpu], tuple[Grant, ...]],
) -> None:
    there, grants = drawn
    edits = edits_of(lease(1, *grants), there)
    if edits.walls == WHOLE:
        assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in edits.env
        return
    entries = edits.env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"].split(",")
    limits = {int(name): limit for name, limit in (entry.split("=") for entry in entries)}
    assert list(limits) == list(range(len(grants)))
    assert all(limit.endswith("M") and int(limit[:-1]) > 0 for limit in limits.values())
    memory = {grant.gpu: grant.memory_bytes for grant in grants}
    assert [int(limit[:-1]) * MIB for limit in limits.values()] == [memory[gpu] for gpu in edits.gpus]
    share = float(edits.env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"])
    assert share == min(grant.compute_permille for grant in grants) / 10


@given(drawn=gpus_and_grants())
def test_frameworks_are_never_told_of_more_memory_than_leased(
    drawn: tuple[dict[GpuId, Gpu], tuple[Grant, ...]],
) -> None:
    there, grants = drawn
    fraction = edits_of(lease(1, *grants), there).env_defaults.get("XLA_PYTHON_CLIENT_MEM_FRACTION")
    # Below a thousandth the smallest fraction that can be told is more than what is leased.
    for part in grants if fraction and fraction != "0.001" else ():
        assert float(fraction or 0) * there[part.gpu].memory_total_bytes <= part.memory_bytes


@pytest.mark.parametrize(
    ("mps", "cap"), [(True, ComputeCap.MPS_PERCENTAGE), (False, ComputeCap.NONE)], ids=["mps", "without"]
)
def test_the_drivers_limit_is_the_stronger_wall_and_mps_keeps_what_it_had(mps: bool, cap: ComputeCap) -> None:
    """Programs see the lease as the GPU's total then, so nothing tells them to take a part of it."""
    placement = CgroupPlacement("/gpushare/l-1", (Hook("/bin/sh", ("sh",)),))
    own = lease(1)
    made = lease_edits(own, GPUS, directory=DIRECTORY, mps=mps, simulated=False, placement=placement)
    without = lease_edits(own, GPUS, directory=DIRECTORY, mps=mps, simulated=False)
    assert made.walls == Walls(MemoryWall.DRIVER, cap)
    assert (made.cgroup_parent, made.hooks) == (placement.cgroup_parent, placement.hooks)
    assert {**without.env, "GPUSHARE_MEMORY_WALL": "driver"} == made.env
    assert made.env_defaults == {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}


def test_whole_gpus_need_no_limit_of_the_drivers() -> None:
    """Even where one was set for the lease when it was smaller."""
    whole = lease(1, grant(FIRST, 1000))
    placement = CgroupPlacement("/gpushare/l-1", ())
    made = lease_edits(whole, GPUS, directory=DIRECTORY, mps=True, simulated=False, placement=placement)
    assert (made.walls, made.cgroup_parent) == (WHOLE, "")
