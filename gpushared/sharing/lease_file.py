"""Write the files in which a container reads its lease and the notice of the lease's end. Pure.

``docs/reference/environment.md`` documents their fields. Within one number of the schema fields are only
added.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from gpushared.domain.leases.explain import bounds, count_bounds
from gpushared.domain.model.gpu import Gpu, GpuId
from gpushared.domain.model.lease import (
    Grant,
    Lease,
    MemoryWall,
    Notice,
    Walls,
)

SCHEMA = "gpushare.lease/1"


def lease_file(
    lease: Lease, grants: Sequence[Grant], gpus: Mapping[GpuId, Gpu], walls: Walls, *, simulated: bool
) -> str:
    """Return the file's text. ``grants`` are in the order in which the container sees its GPUs."""
    fewest, most = count_bounds(lease.request)
    content = {
        "schema": SCHEMA,
        "lease": lease.id,
        "gpus": [_gpu(lease, index, grant, gpus[grant.gpu], walls) for index, grant in enumerate(grants)],
        "gpu_count_min": fewest,
        "gpu_count_max": most,
        "memory_wall": walls.memory_wall,
        "compute_cap": walls.compute_cap,
        "isolation": lease.request.isolation,
        "class": lease.request.lease_class,
        "expires_at": lease.expires_at,
        "simulated": simulated,
    }
    return json.dumps(content, indent=1) + "\n"


def _gpu(lease: Lease, index: int, grant: Grant, gpu: Gpu, walls: Walls) -> dict[str, str | int | float]:
    """Describe one GPU. The total is the one that programs see, which the driver's own limit changes."""
    behind_driver = walls.memory_wall is MemoryWall.DRIVER
    low, high = bounds(lease.request, grant, gpu)
    return {
        "uuid": grant.gpu,
        "index": index,
        "name": gpu.name,
        "memory_bytes": grant.memory_bytes,
        "memory_total_bytes": grant.memory_bytes if behind_driver else gpu.memory_total_bytes,
        "compute_percent": _percent(grant.compute_permille),
        "compute_limit_percent": _percent(grant.ceiling_permille),
        "memory_min_bytes": low.memory_bytes,
        "memory_max_bytes": high.memory_bytes,
        "compute_min_percent": _percent(low.compute_permille),
        "compute_max_percent": _percent(high.compute_permille),
    }


def _percent(permille: int) -> float | int:
    whole, tenths = divmod(permille, 10)
    return permille / 10 if tenths else whole


NOTICE_SCHEMA = "gpushare.notice/1"


def notice_file(notice: Notice) -> str:
    """Return the file's text."""
    ends_at = notice.until if notice.ends else None
    content = {"schema": NOTICE_SCHEMA, "kind": notice.kind, "ends_at": ends_at, "text": notice.text}
    return json.dumps(content, indent=1) + "\n"
