"""The page of a pool: a coordinator and two machines, of which one is cut off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.node.daemon import DaemonProcess, make_directory, wait_until
from tests.pool.processes import CoordinatorProcess
from tests.web.browser.busy_machine import ADMIN, ALICE
from tests.web.browser.conftest import NewVisitor
from tests.web.browser.forwarder import Forwarder
from tests.web.browser.test_for_everybody import THEMES
from tests.web.browser.visitor import Visitor, too_wide, violations

GPUS = {"a": "h100:2", "b": "t4:1"}


class Pool:
    def __init__(self) -> None:
        self.coordinator = CoordinatorProcess(make_directory())
        self.nodes = {
            name: DaemonProcess(
                make_directory(),
                engine="/nonexistent/docker.sock",
                simulate=gpus,
                config=f'[node]\nname = "{name}"\n',
            )
            for name, gpus in GPUS.items()
        }

    def start(self) -> None:
        self.coordinator.start()
        for name, node in self.nodes.items():
            node.start()
            token = self.coordinator.admin.create_join_token(node=name).token
            node.call("Node/Join", {"address": self.coordinator.address, "token": token, "name": name})
        wait_until(lambda: self.presences() == {"a": "ready", "b": "ready"}, "both nodes are in the pool")

    def presences(self) -> dict[str, str]:
        answer = self.nodes["a"].call("Jobs/Nodes", {})
        return {node["name"]: node["presence"] for node in answer["nodes"]}

    def dispose(self) -> None:
        for node in self.nodes.values():
            node.dispose()
        self.coordinator.dispose()


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool()
    try:
        made.start()
        yield made
    finally:
        made.dispose()


@pytest.fixture(scope="module")
def way_to_a(
    pool: Pool, network: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Forwarder]:
    forwarder = Forwarder(pool.nodes["a"], ADMIN, tmp_path_factory.mktemp("web") / "a", network=network)
    yield forwarder
    forwarder.end()


@pytest.fixture(scope="module")
def way_to_pool(
    pool: Pool, network: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Forwarder]:
    socket = str(pool.coordinator.directory / "r/gpushared-pool.sock")
    forwarder = Forwarder(
        pool.nodes["a"], ADMIN, tmp_path_factory.mktemp("web") / "pool", network=network, pool_socket=socket
    )
    yield forwarder
    forwarder.end()


async def test_a_switch_leads_from_the_machine_to_the_pool(
    pool: Pool, way_to_a: Forwarder, new_visitor: NewVisitor
) -> None:
    lease = pool.nodes["b"].request("0.5", uid=ALICE)
    visitor = await new_visitor(way_to_a)
    await expect(visitor.main).not_to_contain_text(lease["id"])
    await visitor.page.get_by_role("button", name="Pool").click()
    await expect(visitor.main).to_contain_text(lease["id"])
    await expect(visitor.main).to_contain_text("Tesla T4")
    pool.nodes["b"].call("Leases/Release", {"lease_id": lease["id"]}, uid=ALICE)


async def test_a_machine_that_is_cut_off_is_seen_at_once_and_can_be_read_by_everybody(
    pool: Pool, way_to_a: Forwarder, new_visitor: NewVisitor, axe: Path
) -> None:
    visitor = await new_visitor(way_to_a)
    await visitor.go("nodes")
    card = visitor.main.get_by_role("region", name="node b")
    await expect(card).to_contain_text("ready")
    pool.nodes["b"].kill()
    wait_until(lambda: pool.presences()["b"] != "ready", "the coordinator misses the node")
    await expect(card).to_contain_text("silent")
    await check_for_everybody(visitor, axe)
    pool.nodes["b"].start()
    await expect(card).to_contain_text("ready")


async def test_the_coordinator_serves_a_page_of_its_own(
    pool: Pool, way_to_pool: Forwarder, new_visitor: NewVisitor, axe: Path
) -> None:
    visitor = await new_visitor(way_to_pool, link=way_to_pool.first_link)
    await visitor.go("nodes")
    for node in GPUS:
        await expect(visitor.main.get_by_role("region", name=f"node {node}")).to_be_visible()
    await check_for_everybody(visitor, axe)


async def check_for_everybody(visitor: Visitor, axe: Path) -> None:
    for theme in THEMES:
        await visitor.page.emulate_media(color_scheme=theme)
        assert await violations(visitor.page, axe) == []
    await visitor.page.set_viewport_size({"width": 360, "height": 740})
    assert await too_wide(visitor.page) == []
