"""Every call of the API is documented."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushared.api.v1 import (
    audit_pb2,
    gpus_pb2,
    jobs_pb2,
    leases_pb2,
    node_pb2,
    policy_pb2,
    pool_pb2,
    projects_pb2,
)
from gpushared.domain.model.errors import Code

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "api.md"
CALLS = [
    f"{service.full_name}/{method.name}"
    for module in (leases_pb2, gpus_pb2, projects_pb2, node_pb2, audit_pb2, jobs_pb2, policy_pb2, pool_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


@pytest.mark.parametrize("call", CALLS)
def test_the_reference_names_the_call(call: str) -> None:
    assert f"`{call}`" in DOCS.read_text()


@pytest.mark.parametrize("code", sorted(set(Code) - {Code.INTERNAL, Code.UNIMPLEMENTED}))
def test_the_reference_names_the_code(code: Code) -> None:
    assert f"`{code}`" in DOCS.read_text()
