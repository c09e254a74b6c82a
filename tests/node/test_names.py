"""Leases, jobs and containers by their names, in all commands: the real daemon, engine and command."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.bed import parts
from tests.node.daemon import DaemonProcess, Json, Refused, name, wait_until
from tests.node.test_cli_and_daemon import running
from tests.node.test_jobs import job, submit, wait_job


@contextmanager
def waiting_run(daemon: DaemonProcess, called: str) -> Iterator[tuple[Json, subprocess.Popen[str]]]:
    """A ``gpushare run --name`` that waits, because another request has both GPUs."""
    words = ["run", "--gpu", "1", "--rm", "--name", called, *daemon.container_options(), "true"]
    with running(daemon, *words) as run:
        found: list[Json] = []

        def waits() -> bool:
            found[:] = [one for one in daemon.leases().values() if one["container_name"] == called]
            return bool(found)

        wait_until(waits, "the run waits under its name")
        yield found[0], run


@pytest.fixture
def full(daemon: DaemonProcess) -> Json:
    """The request that has both GPUs."""
    return daemon.request("2")


def test_a_waiting_run_is_shown_and_found_by_its_name(daemon: DaemonProcess, full: Json) -> None:
    trainer = name()
    with waiting_run(daemon, trainer) as (lease, run):
        for listing in ("queue", "ps"):
            columns = ("-o", "columns=lease,name,image", "--no-headers")
            assert f"{lease['id']}  {trainer}  {parts.BUSYBOX_IMAGE}" in daemon.gpushare_says(
                listing, *columns
            )
        assert trainer in daemon.gpushare_says("queue")
        why = daemon.gpushare_says("why", trainer)
        assert f"runs     {parts.BUSYBOX_IMAGE}, called {trainer}" in why
        assert daemon.gpushare_says("hold", trainer) == lease["id"]
        assert "is held by root" in daemon.gpushare_says("why", trainer)
        assert daemon.gpushare_says("unhold", trainer) == lease["id"]
        assert daemon.gpushare_says("priority", trainer, "7") == f"{lease['id']}: priority 7"
        assert "priority 7" in daemon.gpushare_says("why", trainer)
        assert daemon.gpushare_says("stop", trainer) == lease["id"]
        assert run.wait(60) == 125


def test_a_run_keeps_its_name_when_it_starts(daemon: DaemonProcess, full: Json) -> None:
    trainer = name()
    with waiting_run(daemon, trainer) as (lease, run):
        daemon.call("Leases/Release", {"lease_id": full["id"]})
        assert run.wait(60) == 0
    assert daemon.lease(lease["id"])["container_name"] == trainer
    assert daemon.gpushare("wait", trainer).returncode == 0


def test_a_name_of_several_is_an_error_that_names_them(daemon: DaemonProcess, full: Json) -> None:
    trainer = name()
    with (
        waiting_run(daemon, trainer) as (first, _),
        running(daemon, *("run", "--gpu", "1", "--name", trainer, *daemon.container_options(), "true")),
    ):
        wait_until(lambda: len(daemon.leases()) == 3, "both wait")
        second = next(one for one in daemon.leases() if one not in {first["id"], full["id"]})
        for words in (("stop",), ("why",), ("hold",), ("logs",), ("extend", trainer, "1h")):
            done = daemon.gpushare(*words, *([] if trainer in words else [trainer]))
            assert done.returncode == 125
            assert done.stderr.splitlines() == [
                f"gpushare: '{trainer}' means 2 leases",
                f"  hint: say which: {first['id']} (queued, root), {second} (queued, root)",
            ]
        assert len(daemon.leases()) == 3


def test_a_lease_and_a_job_of_one_name_are_both_named(daemon: DaemonProcess, full: Json) -> None:
    """What is over gives way to what is not."""
    trainer = name()
    with waiting_run(daemon, trainer) as (lease, run):
        (held,) = submit(daemon, "true", lease={"held": True}, name=trainer)
        done = daemon.gpushare("stop", trainer)
        assert done.stderr.splitlines() == [
            f"gpushare: '{trainer}' is a lease and a job",
            f"  hint: say which: {lease['id']} (queued, root), {held} (held, {job(daemon, held)['owner']})",
        ]
        assert daemon.gpushare_says("stop", lease["id"]) == lease["id"]
        assert run.wait(60) == 125
    assert daemon.gpushare_says("stop", trainer) == held
    assert job(daemon, held)["state"] == "cancelled"


@pytest.mark.parametrize("by_name", [False, True])
def test_a_job_that_waits_is_held_and_moved_on_a_single_node(
    daemon: DaemonProcess, full: Json, by_name: bool
) -> None:
    trainer = name()
    (waits,) = submit(daemon, "true", gpu="1", name=trainer)
    (later,) = submit(daemon, "true", gpu="1")
    wait_job(daemon, waits, "queued")
    lease = wait_job(daemon, later, "queued")["parts"][0]["lease_id"]
    word = trainer if by_name else waits
    daemon.gpushare_says("hold", word)
    assert job(daemon, waits)["state"] == "held"
    assert "held" in daemon.gpushare_says("jobs", "-o", "columns=job,state")
    assert daemon.gpushare_says("priority", later, "5") == f"{later}: priority 5"
    assert daemon.lease(lease)["priority"] == job(daemon, later)["priority"] == 5
    assert "priority 5" in daemon.gpushare_says("why", later)
    shown = daemon.gpushare_says("jobs", "-o", "columns=job,priority", "--no-headers")
    assert sorted(shown.split()) == sorted([waits, "0", later, "5"])
    daemon.call("Leases/Release", {"lease_id": full["id"]})
    assert wait_job(daemon, later)["state"] == "succeeded"
    assert job(daemon, waits)["state"] == "held"
    daemon.gpushare_says("unhold", word)
    assert wait_job(daemon, waits)["state"] == "succeeded"


def test_a_job_is_named_to_the_commands_of_leases(daemon: DaemonProcess) -> None:
    trainer = name()
    (runs,) = submit(daemon, "sleep", "1000", name=trainer, lease={"time": "1h"})
    lease = wait_job(daemon, runs, "running")["parts"][0]["lease_id"]
    for word in (runs, trainer, lease):
        assert daemon.gpushare_says("extend", word, "1h").startswith(f"{lease}: ")
        assert daemon.gpushare_says("door", word) == f"unix://{daemon.socket}"
        assert daemon.gpushare("wait", "--timeout", "1s", word).returncode == 124
    with running(daemon, *("run", "--gpu", "0.25", "--after", trainer, *daemon.container_options(), "true")):
        wait_until(lambda: any(one["after"] == [lease] for one in daemon.leases().values()), "it waits")
    (queued,) = submit(daemon, "true", gpu="2")
    refused = daemon.gpushare("resize", "--gpu", "0.5", "k3m9x0p2qz")
    assert refused.stderr.startswith("gpushare: there is no job, lease or container 'k3m9x0p2qz'")
    assert daemon.gpushare_says("cancel", queued) == queued
    assert daemon.gpushare_says("stop", "--wait", trainer) == runs
    assert job(daemon, runs)["state"] == "cancelled"
    assert lease not in daemon.leases()


@pytest.mark.parametrize(
    "fields",
    [{"container_name": "a b"}, {"container_name": "-x"}, {"image": "x" * 2000}, {"image": "a\x1b[2J"}],
    ids=json.dumps,
)
def test_a_name_that_no_engine_takes_is_refused_before_it_waits(
    lone_daemon: DaemonProcess, fields: Json
) -> None:
    with pytest.raises(Refused) as refused:
        lone_daemon.request("0.25", **fields)
    assert refused.value.code == "invalid_argument"
    assert lone_daemon.leases() == {}


def test_the_name_of_a_waiting_run_is_for_its_owner_and_administrators(daemon: DaemonProcess) -> None:
    lease = daemon.request("0.25", uid=1234, container_name="secret-plan", image="secret/image")["id"]
    assert daemon.call("Leases/Get", {"lease_id": lease}, uid=1235)["container_name"] == ""
    assert daemon.call("Leases/Get", {"lease_id": "secret-plan"}, uid=1234)["id"] == lease
    with pytest.raises(Refused):
        daemon.call("Leases/Get", {"lease_id": "secret-plan"}, uid=1235)
