"""How often each answer is made, on a node and on a coordinator, and which samples count."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.message import Message

from gpushared.api.v1 import audit_pb2, gpus_pb2, history_pb2, jobs_pb2, leases_pb2, node_pb2
from gpushared.domain.model.gpu import GpuId
from gpushared.net.revisions import Revisions
from gpushared.node.runtime.sampler import Sample
from gpushared.node.services.page_streams import SampleRevisions, node_pace
from gpushared.pool.coordinator.page_streams import pool_pace
from gpushared.ports import GpuReading
from gpushared.web.live_answers import FRESH, LOCAL, PARTLY_LOCAL, POLLED, Pace
from gpushared.web.watches import CallWatch

HERE, IN_POOL = node_pace(lambda: False), node_pace(lambda: True)


@pytest.mark.parametrize(
    ("call", "request_", "here", "in_pool", "coordinator"),
    [
        ("Leases/List", leases_pb2.ListLeasesRequest(), LOCAL, LOCAL, POLLED),
        ("Leases/List", leases_pb2.ListLeasesRequest(pool=True), POLLED, POLLED, POLLED),
        ("Leases/Explain", leases_pb2.LeaseRef(lease_id="l-1"), LOCAL, LOCAL, LOCAL),
        ("Gpus/List", gpus_pb2.ListGpusRequest(), FRESH, FRESH, POLLED),
        ("Gpus/List", gpus_pb2.ListGpusRequest(pool=True), POLLED, POLLED, POLLED),
        ("Node/Status", node_pb2.NodeStatusRequest(), LOCAL, LOCAL, LOCAL),
        ("Jobs/List", jobs_pb2.ListJobsRequest(), LOCAL, PARTLY_LOCAL, LOCAL),
        ("Jobs/Get", jobs_pb2.JobRef(job_id="j-1"), LOCAL, PARTLY_LOCAL, LOCAL),
        ("Jobs/Nodes", jobs_pb2.NodesRequest(), POLLED, POLLED, FRESH),
        ("History/Usage", history_pb2.UsageRequest(), POLLED, POLLED, POLLED),
        ("Audit/List", audit_pb2.ListAuditRequest(), POLLED, POLLED, POLLED),
    ],
)
def test_what_asks_other_machines_or_files_is_polled_and_the_rest_follows_its_changes(
    call: str, request_: Message, here: Pace, in_pool: Pace, coordinator: Pace
) -> None:
    watch = CallWatch("a", f"gpushare.v1.{call}", request_)
    assert (HERE(watch), IN_POOL(watch), pool_pace(watch)) == (here, in_pool, coordinator)


@pytest.mark.parametrize(
    ("change", "counts"),
    [({"at": 2.0}, False), ({"used_bytes": {"l-1": 1}}, True), ({"readings": {}}, True)],
)
def test_only_samples_with_other_figures_make_a_new_revision(change: dict[str, Any], counts: bool) -> None:
    gpu = GpuId("GPU-0")
    first = Sample(1.0, {gpu: GpuReading(gpu, 1, 0.5, 50, 300.0, 1e9)})
    revisions = Revisions()
    observer = SampleRevisions(revisions)
    observer.observe(first)
    before = str(revisions)
    observer.observe(replace(first, **change))
    assert (str(revisions) != before) is counts
