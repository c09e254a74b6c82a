"""What a container can read of its lease."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushared.domain.model.gpu import MIB
from gpushared.domain.model.lease import ComputeCap, MemoryWall, Walls
from gpushared.domain.model.request_spec import RequestSpec, read_request
from gpushared.sharing.lease_file import lease_file
from gpushared.testing.leases import SOME_TIME
from tests.sharing.samples import FIRST, GPUS, SECOND, grant, lease

DOCS = Path(__file__).parents[2] / "docs"
LIMITED = Walls(MemoryWall.MPS_CLIENT, ComputeCap.MPS_PERCENTAGE)


def test_the_file_says_which_parts_of_which_gpus_are_leased_how_and_until_when() -> None:
    until = replace(lease(1), expires_at=SOME_TIME + 3600)
    text = lease_file(until, (grant(FIRST),), GPUS, LIMITED, simulated=False)
    assert json.loads(text) == {
        "schema": "gpushare.lease/1",
        "lease": "l-1",
        "gpus": [
            {
                "uuid": FIRST,
                "index": 0,
                "name": GPUS[FIRST].name,
                "memory_bytes": 20405 * MIB,
                "memory_total_bytes": GPUS[FIRST].memory_total_bytes,
                "compute_percent": 25,
                "compute_limit_percent": 25,
                "memory_min_bytes": 20405 * MIB,
                "memory_max_bytes": 20405 * MIB,
                "compute_min_percent": 25,
                "compute_max_percent": 25,
            }
        ],
        "gpu_count_min": 1,
        "gpu_count_max": 1,
        "memory_wall": "mps-client",
        "compute_cap": "mps-percentage",
        "isolation": "shared",
        "class": "train",
        "expires_at": SOME_TIME + 3600,
        "simulated": False,
    }


def test_an_elastic_lease_reads_what_it_has_and_between_what_it_may_be() -> None:
    asked = read_request(RequestSpec(gpu="0.1..0.5", gpu_compute="10%..100%"), {})
    has = replace(grant(FIRST), compute_permille=100, compute_limit_permille=1000)
    text = lease_file(replace(lease(1), request=asked), (has,), GPUS, LIMITED, simulated=False)
    [gpu] = json.loads(text)["gpus"]
    memory = [gpu[f"memory_{end}bytes"] // MIB for end in ("min_", "", "max_")]
    assert memory == [8162, 20405, 40810]
    assert [gpu[f"compute_{end}percent"] for end in ("min_", "", "max_", "limit_")] == [10, 10, 10, 100]


def test_a_lease_of_a_range_of_gpus_reads_its_ends() -> None:
    asked = read_request(RequestSpec(gpu="1..4"), {})
    whole = (grant(FIRST, 1000), grant(SECOND, 1000))
    content = json.loads(lease_file(replace(lease(1), request=asked), whole, GPUS, LIMITED, simulated=False))
    assert (content["gpu_count_min"], len(content["gpus"]), content["gpu_count_max"]) == (1, 2, 4)


def test_gpus_are_counted_as_the_container_sees_them_and_not_as_the_machine_does() -> None:
    text = lease_file(lease(1), (grant(SECOND, 125),), GPUS, LIMITED, simulated=True)
    (gpu,) = json.loads(text)["gpus"]
    assert (gpu["uuid"], gpu["index"], gpu["compute_percent"]) == (SECOND, 0, 12.5)
    assert (json.loads(text)["simulated"], json.loads(text)["expires_at"]) == (True, None)


@pytest.fixture
def lease_size() -> dict[str, Any]:
    """The module that the how-to tells to put beside one's program."""
    page = (DOCS / "how-to" / "frameworks.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {"__name__": "lease_size"}
    exec(code, names)  # our own page, run as its readers run it
    return names


@pytest.mark.parametrize(("processes", "part"), [(1, 0.236), (2, 0.118), (16, 0.009)])
def test_the_snippet_for_frameworks_stays_below_the_lease(
    lease_size: dict[str, Any], tmp_path: Path, processes: int, part: float
) -> None:
    path = tmp_path / "lease.json"
    path.write_text(lease_file(lease(1), (grant(FIRST),), GPUS, LIMITED, simulated=False))
    fraction = lease_size["fraction"](0, path, processes)
    assert fraction == part
    assert fraction * processes * GPUS[FIRST].memory_total_bytes < grant(FIRST).memory_bytes


def test_the_snippet_for_frameworks_gives_up_where_nothing_is_left(
    lease_size: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "lease.json"
    path.write_text(lease_file(lease(1), (grant(FIRST),), GPUS, LIMITED, simulated=False))
    with pytest.raises(SystemExit, match="too small for so many processes"):
        lease_size["fraction"](0, path, 40)


def test_behind_the_drivers_limit_the_lease_is_the_total_that_programs_see() -> None:
    """Otherwise they would take a quarter of their quarter."""
    walls = Walls(MemoryWall.DRIVER, ComputeCap.MPS_PERCENTAGE)
    text = lease_file(lease(1), (grant(FIRST),), GPUS, walls, simulated=False)
    [gpu] = json.loads(text)["gpus"]
    assert gpu["memory_total_bytes"] == gpu["memory_bytes"] == grant(FIRST).memory_bytes


def test_every_field_of_the_file_is_documented() -> None:
    page = (DOCS / "reference" / "environment.md").read_text()
    content = json.loads(lease_file(lease(1), (grant(FIRST),), GPUS, LIMITED, simulated=False))
    fields = [*content, *(f"gpus[].{name}" for name in content["gpus"][0])]
    assert not [name for name in fields if f"| `{name}` |" not in page]
