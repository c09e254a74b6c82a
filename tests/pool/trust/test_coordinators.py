"""Machines join, and nodes renew their certificates, where several coordinators are and one of them leads."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpushared.api.v1 import link_pb2, pool_pb2, pool_pb2_grpc
from gpushared.domain.model.errors import NotLeader, PermissionRefused, RequestError, Unavailable
from gpushared.net.call_checks import OPTIONS, Context, abort
from gpushared.pool.member.enrolment import MAX_COORDINATORS, Enrolment
from gpushared.pool.member.membership_file import MEMBERSHIP_FILE
from tests.pool.trust.coordinator import Clock, Coordinator, refusal

DEAD = "127.0.0.1:1"


class Standby(pool_pb2_grpc.JoinServicer):
    """Tells whom to trust, as the leader does, and signs nothing."""

    def __init__(self, pool: Coordinator) -> None:
        self._pool = pool
        self.asked = 0

    async def GetTrust(  # noqa: N802 - gRPC's name
        self, _: pool_pb2.GetTrustRequest, __: Context[Any, Any]
    ) -> pool_pb2.Trust:
        authority = self._pool.trust.authority
        return pool_pb2.Trust(
            pool=authority.pool, anchors=authority.anchors_pem, generation=1, now=self._pool.clock()
        )

    async def Sign(  # noqa: N802 - gRPC's name
        self, _: pool_pb2.SignRequest, context: Context[Any, Any]
    ) -> pool_pb2.SignAnswer:
        return await self._refuse(context)

    async def Renew(  # noqa: N802 - gRPC's name
        self, _: pool_pb2.RenewRequest, context: Context[Any, Any]
    ) -> pool_pb2.SignAnswer:
        return await self._refuse(context)

    async def _refuse(self, context: Context[Any, Any]) -> pool_pb2.SignAnswer:
        self.asked += 1
        await abort(context, NotLeader("dgx2 stands by: dgx1 leads the pool lab", hint="ask dgx1"))


@dataclass
class Ports:
    service: Standby
    users: str
    nodes: str


@pytest.fixture
async def standby(pool: Coordinator) -> AsyncIterator[Ports]:
    service = Standby(pool)
    server = grpc.aio.server(options=OPTIONS)
    pool_pb2_grpc.add_JoinServicer_to_server(service, server)
    identity = pool.trust.identity
    users = server.add_secure_port("127.0.0.1:0", identity.for_users())
    nodes = server.add_secure_port("127.0.0.1:0", identity.for_nodes())
    await server.start()
    yield Ports(service, f"127.0.0.1:{users}", f"127.0.0.1:{nodes}")
    await server.stop(grace=None)


def node(tmp_path: Path, name: str) -> Enrolment:
    return Enrolment(tmp_path / name / "pool", Clock())


def welcome(*hosts: str) -> link_pb2.Welcome:
    return link_pb2.Welcome(
        addresses=[f"{host}:7440" for host in hosts], node_addresses=[f"{host}:7441" for host in hosts]
    )


async def test_a_machine_joins_by_the_coordinator_of_its_list_that_signs(
    pool: Coordinator, standby: Ports, tmp_path: Path
) -> None:
    """And keeps the whole list, the one that works first."""
    joining = node(tmp_path, "dgx")
    where = f"{DEAD}, {standby.users}, {pool.address}"
    membership = await joining.join(where, await pool.token(), "dgx")
    assert standby.service.asked == 1
    assert membership.address == f"{pool.address},{DEAD},{standby.users}"
    assert joining.addresses()[0] == f"127.0.0.1:{pool.nodes_port}"


async def test_a_list_of_which_nobody_signs_is_refused_with_what_each_said(
    standby: Ports, pool: Coordinator, tmp_path: Path
) -> None:
    token = await pool.token()
    error = await refusal(node(tmp_path, "dgx").join(f"{DEAD},{standby.users}", token, "dgx"))
    assert isinstance(error, Unavailable)
    assert f"no coordinator of a pool answers at {DEAD}" in error.message
    assert "dgx1 leads the pool lab" in error.message


async def test_a_refusal_of_the_leader_is_asked_of_no_other(
    pool: Coordinator, standby: Ports, tmp_path: Path
) -> None:
    token = await pool.token("somebody")
    error = await refusal(node(tmp_path, "dgx").join(f"{pool.address},{standby.users}", token, "dgx"))
    assert isinstance(error, PermissionRefused)
    assert standby.service.asked == 0


@pytest.mark.parametrize("where", ["", ",", "dgx,a b", "dgx:7440,dgx:x"])
async def test_a_list_with_what_is_no_address_is_refused_before_anybody_is_asked(
    where: str, pool: Coordinator, tmp_path: Path
) -> None:
    error = await refusal(node(tmp_path, "dgx").join(where, await pool.token(), "dgx"))
    assert isinstance(error, RequestError)


async def test_a_certificate_is_renewed_by_whoever_leads_now(
    pool: Coordinator, standby: Ports, tmp_path: Path
) -> None:
    """The node joined at a coordinator that stands by since."""
    joining = node(tmp_path, "dgx")
    joined = await joining.join(pool.address, await pool.token(), "dgx")
    file = tmp_path / "dgx" / "pool" / MEMBERSHIP_FILE
    kept = {
        **json.loads(file.read_bytes()),
        "node_address": standby.nodes,
        "node_addresses": [joined.node_address],
    }
    file.write_text(json.dumps(kept))
    await joining.load()
    await joining.renew()
    assert standby.service.asked == 1
    assert joining.membership is not None
    assert joining.membership.facts.serial != joined.facts.serial


async def test_the_list_is_written_when_it_changes_and_not_else(pool: Coordinator, tmp_path: Path) -> None:
    joining = node(tmp_path, "dgx")
    await joining.join(pool.address, await pool.token(), "dgx")
    await joining.take_coordinators(welcome("a", "b", "c"))
    version = joining.version
    for same in (welcome("a", "b", "c"), welcome()):
        await joining.take_coordinators(same)
    assert joining.version == version
    assert joining.addresses() == (f"127.0.0.1:{pool.nodes_port}", "a:7441", "b:7441", "c:7441")


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(welcome("a", "b c"), id="no address"),
        pytest.param(welcome(*(f"h{number}" for number in range(MAX_COORDINATORS + 1))), id="too many"),
    ],
)
async def test_a_list_that_makes_no_sense_is_not_kept(
    said: link_pb2.Welcome, pool: Coordinator, tmp_path: Path
) -> None:
    joining = node(tmp_path, "dgx")
    await joining.join(pool.address, await pool.token(), "dgx")
    before = joining.membership
    assert isinstance(await refusal(joining.take_coordinators(said)), RequestError | Unavailable)
    assert joining.membership == before


async def test_the_membership_of_a_pool_with_one_coordinator_is_as_earlier_versions_wrote_it(
    pool: Coordinator, tmp_path: Path
) -> None:
    """So that they can read it, and it can be read of them."""
    joining = node(tmp_path, "dgx")
    await joining.join(pool.address, await pool.token(), "dgx")
    kept = json.loads((tmp_path / "dgx" / "pool" / MEMBERSHIP_FILE).read_bytes())
    assert set(kept) == {
        *("pool", "node", "address", "node_address", "joined_at", "generation", "anchors", "certificate"),
        *("key", "assertion_key"),
    }
    before = joining.membership
    await joining.load()
    assert joining.membership == before
