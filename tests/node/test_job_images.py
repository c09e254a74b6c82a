"""A job's image is there before anything is leased for it, and a machine in trouble fails no job."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpushared.domain.jobs.job import AttemptState, Ending, EndKind
from gpushared.domain.jobs.protocol import CancelPart, Place
from gpushared.node.jobs.job_images import name_and_tag
from tests.bed import parts
from tests.bed.engine import PrivateEngine
from tests.disks import disk, full
from tests.node.conftest import NewDaemon
from tests.node.daemon import DaemonProcess, wait_until
from tests.node.registry import Registry, serving
from tests.node.test_attempts import Node, new_node, order
from tests.node.test_jobs import body_of, job, story, submit, wait_job

ENGINES_DISK_MIB = 40


@pytest.fixture
def node(new_daemon: NewDaemon, docker_engine: str) -> Node:
    made = new_node(new_daemon, docker_engine)
    made.daemon.start()
    return made


@pytest.fixture
def registry(docker_engine: str, tmp_path: Path) -> Iterator[Registry]:
    with serving(docker_engine, parts.BUSYBOX_IMAGE, tmp_path) as served:
        yield served


def with_image(place: Place, image: str) -> Place:
    body = json.loads(place.spec.body) | {"Image": image}
    return replace(place, spec=replace(place.spec, image=image, body=json.dumps(body)))


def test_an_image_is_pulled_and_only_then_a_gpu_is_taken(node: Node, registry: Registry) -> None:
    place = with_image(order(node, "echo pulled"), registry.image)
    node.placed(place)
    assert registry.asked.wait(30)
    assert node.reports()[place.key].state is AttemptState.PREPARING
    assert node.daemon.leases() == {}
    registry.let_go.set()
    node.until(place.key, AttemptState.ENDED)
    assert node.logs(place.key.job) == "pulled\n"


def test_a_cancelled_pull_is_given_up(node: Node, registry: Registry) -> None:
    place = with_image(order(node, "true"), registry.image)
    node.placed(place)
    assert registry.asked.wait(30)
    node.take(CancelPart(place.key, 1))
    ended = node.until(place.key, AttemptState.ENDED).ending
    assert ended is not None
    assert ended.kind is EndKind.CANCELLED
    assert node.daemon.leases() == {}


def test_a_pull_that_a_death_cut_off_is_begun_again(node: Node, registry: Registry) -> None:
    place = with_image(order(node, "echo pulled"), registry.image)
    node.placed(place)
    assert registry.asked.wait(30)
    node.daemon.kill()
    registry.let_go.set()
    node.daemon.start()
    node.until(place.key, AttemptState.ENDED)
    assert node.logs(place.key.job) == "pulled\n"


def test_a_registry_that_is_not_there_is_told_of(node: Node) -> None:
    place = with_image(order(node, "true"), "127.0.0.1:1/none:1")
    node.placed(place)
    ended = node.until(place.key, AttemptState.ENDED).ending
    assert ended is not None
    assert "'127.0.0.1:1/none:1' is missing and cannot be pulled: " in ended.reason
    assert "connect" in ended.reason
    assert ended.passing


def test_an_image_that_its_registry_does_not_have_is_not_sought_again(node: Node, registry: Registry) -> None:
    registry.trouble = 404
    ended = refused_pull(node, registry)
    assert (ended.kind, ended.passing) == (EndKind.FAILED, False), ended.reason


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_registry_in_trouble_is_no_reason_to_give_up(node: Node, registry: Registry, status: int) -> None:
    registry.trouble = status
    assert refused_pull(node, registry).passing


def test_the_node_s_own_job_outlasts_its_registry_s_trouble(
    daemon: DaemonProcess, registry: Registry
) -> None:
    """Without --retries, because it has not even begun."""
    registry.trouble = 503
    registry.let_go.set()
    (name,) = submit(
        daemon, "true", image=registry.image, create_body=body_of(daemon, Image=registry.image, Cmd=["true"])
    )
    wait_until(lambda: any("(1 of 12)" in line for line in story(daemon, name)), "the trouble is told")
    waiting = job(daemon, name)
    assert (waiting["state"], "cannot be pulled" in str(waiting["reason"])) == ("queued", True)
    registry.trouble = 0
    assert wait_job(daemon, name)["state"] == "succeeded"


def refused_pull(node: Node, registry: Registry) -> Ending:
    """How the node says that it cannot have the registry's image."""
    place = with_image(order(node, "true"), registry.image)
    node.placed(place)
    ended = node.until(place.key, AttemptState.ENDED).ending
    assert ended is not None
    assert "cannot be pulled" in ended.reason
    return ended


def test_a_job_that_comes_while_the_engine_is_away_begins_when_it_is_back(
    new_daemon: NewDaemon, private_engine: Callable[..., PrivateEngine]
) -> None:
    engine = private_engine("--live-restore")
    node = new_node(new_daemon, engine.socket)
    node.daemon.start()
    engine.stop()
    wait_until(lambda: node.daemon.call("Node/Status")["engine"]["trouble"], "the engine is missed")
    place = order(node, "sleep 1000")
    assert node.placed(place).state is AttemptState.PREPARING
    engine.start()
    node.until(place.key, AttemptState.RUNNING)


def test_a_full_disk_of_the_engine_fails_no_job(
    new_daemon: NewDaemon, private_engine: Callable[..., PrivateEngine], tmp_path: Path
) -> None:
    """Else one machine would fail all that wait, one job after the other, within a minute."""
    with disk(tmp_path, ENGINES_DISK_MIB) as place:
        engine = private_engine("--live-restore", f"--data-root={place}")
        daemon = new_node(new_daemon, engine.socket).daemon
        daemon.start()
        with full(place):
            (name,) = submit(daemon, "true", create_body=body_of(daemon, Cmd=["true"]))
            wait_until(lambda: any("(1 of 12)" in line for line in story(daemon, name)), "the fault is told")
            assert "no space left on device" in str(job(daemon, name)["reason"])
        assert wait_job(daemon, name)["state"] == "succeeded"
        engine.kill()


@pytest.mark.parametrize(
    ("image", "parts_"),
    [
        ("busybox", ("busybox", "latest")),
        ("busybox:1.36", ("busybox", "1.36")),
        ("host:5000/a/b", ("host:5000/a/b", "latest")),
        ("host:5000/a/b:1", ("host:5000/a/b", "1")),
        ("a@sha256:0f", ("a", "sha256:0f")),
        ("host:5000/a:1@sha256:0f", ("host:5000/a", "sha256:0f")),
    ],
)
def test_of_a_name_without_a_tag_only_the_latest_is_pulled(image: str, parts_: tuple[str, str]) -> None:
    assert name_and_tag(image) == parts_
