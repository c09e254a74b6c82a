"""Where an image came from: what a pull may take the name of, by each way in which engines keep images."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gpushared.gate.docker_gate import Gate
from gpushared.gate.policy.field_rules import pulled_from
from gpushared.ports import EngineFacts
from tests.bed import parts
from tests.bed.engine import UnifiedEngine
from tests.gate.lease_services import FakeLeaseService, facts
from tests.gate.people import people

ID, OTHER = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
HUB, LAB = "docker.io/library/python", "lab.example:5000/team/base"


@pytest.mark.parametrize(
    ("found", "repositories"),
    [
        ({"Id": ID, "RepoDigests": []}, set()),
        ({"Id": ID}, set()),
        ({"Id": ID, "RepoDigests": [f"python@{OTHER}", f"lab.example:5000/team/base@{OTHER}"]}, {HUB, LAB}),
        ({"Id": ID, "RepoDigests": [f"python@{ID}"]}, None),
        ({"Id": ID, "RepoDigests": [f"python@{OTHER}", f"x/y@{ID}"]}, None),
        ({"Id": ID, "RepoDigests": [f"python@{ID}"], "Identity": None}, None),
        (
            {
                "Id": ID,
                "RepoDigests": [f"python@{ID}", f"x/y@{ID}"],
                "Identity": {"Pull": [{"Repository": "docker.io/library/python"}]},
            },
            {HUB},
        ),
        (
            {
                "Id": ID,
                "RepoDigests": [f"python@{ID}"],
                "Identity": {"Build": [{"Ref": "abc", "CreatedAt": "2026-01-01T00:00:00Z"}]},
            },
            set(),
        ),
    ],
)
def test_an_image_came_from_where_the_engine_knows_that_it_was_pulled(
    found: dict[str, Any], repositories: set[str] | None
) -> None:
    assert pulled_from(found) == repositories


class ContainerdStore(UnifiedEngine):
    """One that keeps its images in containerd."""

    def __init__(self) -> None:
        super().__init__()
        file = self.directory / "daemon.json"
        settings = json.loads(file.read_text())
        settings["features"]["containerd-snapshotter"] = True
        file.write_text(json.dumps(settings))


@pytest.fixture
def store(docker_cli: object) -> Iterator[ContainerdStore]:
    parts.need_file("image", parts.BUSYBOX_TAR)
    parts.need_file("cdi-engine", parts.CDI_ROOT)
    engine = ContainerdStore()
    try:
        engine.start()
        engine.load_busybox()
        yield engine
    finally:
        engine.dispose()


@pytest.mark.docker
@pytest.mark.cdi
async def test_an_image_that_was_made_here_keeps_its_name_where_containerd_keeps_images(
    store: ContainerdStore, lease_service: FakeLeaseService
) -> None:
    """There every tag has a digest, as if it had been pulled."""
    shown = json.loads(store.check("image", "inspect", parts.BUSYBOX_IMAGE))[0]
    assert shown["RepoDigests"]
    lease_service.facts = EngineFacts("26.1.5", "1.45", True, facts().gpu_mechanism, 1)
    image, _, tag = parts.BUSYBOX_IMAGE.partition(":")
    async with people(Gate(store.socket, lease_service), parts.BUSYBOX_IMAGE) as both:
        reply = await both.alice.ask("POST", "/images/create", fromImage=image, tag=tag)
        assert (reply.status, "cannot be told whether" in reply.message) == (403, True)
        assert await both.alice.run()
