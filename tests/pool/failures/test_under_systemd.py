"""What an administrator does with systemctl on the machines of a pool, and what its jobs notice."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bed import parts
from tests.pool.failures.booted import ENGINE_PROGRAMS, BootedPool
from tests.pool.failures.machine import wait_until

KILL = ("kill", "--signal=KILL")
PATIENCE_SECONDS = 120.0


@pytest.fixture(scope="module")
def _pool(docker_engine: str, systemd_image: str, docker_cli: Path) -> Iterator[BootedPool]:
    programs = {Path(found): found for name in ENGINE_PROGRAMS if (found := shutil.which(name))}
    if len(programs) < len(ENGINE_PROGRAMS):
        parts.absent("engine", "not all of Docker's programs are on this machine")
    own = {docker_cli.resolve(): "/usr/local/bin/docker", parts.BUSYBOX_TAR: "/busybox.tar"}
    made = BootedPool(docker_engine, programs | own)
    try:
        made.build()
        yield made
    finally:
        made.dispose()


@pytest.fixture
def pool(_pool: BootedPool) -> Iterator[BootedPool]:
    """A pool in which all is well. After the test all its jobs end, and what they did is judged."""
    yield _pool
    _pool.judge()


@pytest.mark.parametrize("deed", [("restart",), KILL], ids=["restarted", "killed"])
def test_a_job_notices_nothing_of_a_new_service_on_its_node(pool: BootedPool, deed: tuple[str, ...]) -> None:
    job, node = pool.running("b"), pool.nodes["b"]
    before = node.main_pid("gpushared")
    node.check("systemctl", *deed, "gpushared")
    node.wait_replaced("gpushared", before)
    pool.wait_presence("b", "ready")
    pool.wait_state(job, "running")
    assert pool.is_alive(job)


@pytest.mark.parametrize("how", ["stopped", "killed with all of its processes"])
def test_a_fenced_job_ends_in_time_without_the_service_and_runs_elsewhere_afterwards(
    pool: BootedPool, how: str
) -> None:
    """Its guard is a unit of its own, which no command for the service reaches; time is real here."""
    job, node = pool.running_somewhere("--stop-after", "30s")
    assert node.show("gpushared-guard", "ActiveState") == "active"
    guard = node.main_pid("gpushared-guard")
    if how != "stopped":
        node.check("systemctl", *KILL, "gpushared")
    node.check("systemctl", "stop", "gpushared.socket", "gpushared")
    pool.wait_presence(node.name, "unknown")
    assert node.main_pid("gpushared-guard") == guard
    wait_until(lambda: pool.diary.runs(job)[0].ended == "stopped", "its guard ends it", PATIENCE_SECONDS)
    assert len(pool.diary.runs(job)) == 1
    wait_until(lambda: len(pool.diary.runs(job)) == 2, "it runs elsewhere", PATIENCE_SECONDS)
    first, second = pool.diary.runs(job)
    assert second.node != node.name
    assert second.began > first.last
    node.check("systemctl", "start", "gpushared.socket", "gpushared")
    pool.wait_presence(node.name, "ready")
    pool.wait_state(job, "running")
    wait_until(
        lambda: node.show("gpushared-guard", "ActiveState") == "inactive", "it has nothing to guard any more"
    )


def test_a_guard_that_is_killed_is_started_again_without_the_service(pool: BootedPool) -> None:
    job, node = pool.running_somewhere("--stop-after", "30s")
    guard = node.main_pid("gpushared-guard")
    node.check("systemctl", "stop", "gpushared.socket", "gpushared")
    node.check("systemctl", *KILL, "gpushared-guard")
    node.wait_replaced("gpushared-guard", guard)
    wait_until(lambda: pool.diary.runs(job)[0].ended == "stopped", "it ends the job", PATIENCE_SECONDS)
    node.check("systemctl", "start", "gpushared.socket", "gpushared")
    pool.wait_presence(node.name, "ready")


def test_a_job_notices_nothing_of_a_restart_of_docker_that_leaves_containers_alone(pool: BootedPool) -> None:
    job, node = pool.running("a"), pool.nodes["a"]
    before = node.main_pid("docker")
    node.check("systemctl", "restart", "docker")
    node.wait_replaced("docker", before)
    late = pool.running("a")
    assert pool.jobs()[job]["state"] == "running"
    assert pool.is_alive(job)
    assert pool.is_alive(late)


def test_jobs_that_end_with_docker_run_again_and_no_others(pool: BootedPool) -> None:
    """It ends containers where live-restore is off; they say nothing of their programs."""
    job, never, other = pool.running("b"), pool.running("b", "--no-requeue"), pool.running("a")
    pool.nodes["b"].check("systemctl", "restart", "docker")
    pool.wait_runs(job, 2)
    failed = pool.wait_state(never, "failed")
    assert "Docker was stopped or restarted" in failed["reason"]
    assert [run.ended for run in pool.diary.runs(never)] == ["stopped"]
    assert pool.is_alive(other)


def test_a_killed_coordinator_is_started_again_and_what_came_meanwhile_is_not_lost(pool: BootedPool) -> None:
    """Nodes go on, take jobs for it, and find it again by themselves."""
    job, at = pool.running("b"), pool.coordinator
    before, epoch = at.main_pid("gpushared-pool"), int(at.call("PoolAdmin/Status")["epoch"])
    at.check("systemctl", *KILL, "gpushared-pool")
    meanwhile = pool.submit("a")
    at.wait_replaced("gpushared-pool", before)
    for node in pool.nodes:
        pool.wait_presence(node, "ready")
    assert int(at.call("PoolAdmin/Status")["epoch"]) == epoch + 1
    pool.wait_runs(meanwhile, 1)
    pool.wait_state(job, "running")
    assert pool.is_alive(job)


@pytest.mark.parametrize("how", ["reboot", "poweroff"])
def test_jobs_of_a_machine_that_is_shut_down_run_again_and_no_others(pool: BootedPool, how: str) -> None:
    """They are lost, not failed: what their containers ended with says nothing of them."""
    job, never = pool.running("b"), pool.running("b", "--no-requeue")
    other, node = pool.running("a"), pool.nodes["b"]
    node.shut_down(how)
    pool.wait_presence("b", "unknown")
    assert pool.is_alive(other)
    assert "b" in pool.nodes["a"].gpushare("why", job)
    node.boot()
    pool.wait_runs(job, 2)
    failed = pool.wait_state(never, "failed")
    assert "shut down" in failed["reason"] or "went down" in failed["reason"]
    assert [run.ended for run in pool.diary.runs(never)] == ["stopped"]
    assert pool.jobs()[other]["state"] == "running"
