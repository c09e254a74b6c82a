"""Three coordinators on one etcd, all real processes: one leads, the others stand by and take over."""

from __future__ import annotations

import secrets
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpushared.client.pipeline import JobRequest
from gpushared.client.pipeline import Pool as PoolOfPrograms
from gpushared.domain.model.errors import PermissionRefused
from tests.bed.etcd import EtcdCluster
from tests.node.daemon import make_directory
from tests.pool import json_calls
from tests.pool.json_calls import BUSYBOX, RefusedError
from tests.pool.processes import CoordinatorProcess

SECONDS = 60
NAMES = ("c1", "c2", "c3")


class Coordinator(CoordinatorProcess):
    """One of several coordinators."""

    def call(self, call: str, **fields: Any) -> tuple[dict[str, Any], str]:
        """The answer, and how old it is as its header says. Raises RefusedError."""
        return json_calls.call(self.socket, call, **fields)

    def submit(self, request_id: str) -> str:
        answer, _ = self.call("Jobs/Submit", request_id=request_id, **BUSYBOX)
        return str(answer["job_ids"][0])

    def jobs(self) -> dict[str, str]:
        answer, _ = self.call("Jobs/List", ended=True, all=True, limit=1000)
        return {job["id"]: job["state"] for job in answer["jobs"]}

    def log(self) -> str:
        return (self.directory / "log").read_text()


class Pool:
    """Its coordinators, and the etcd that they share."""

    def __init__(self, cluster: EtcdCluster) -> None:
        url, prefix = f"etcd://{','.join(cluster.endpoints)}", f"/pools/{secrets.token_hex(6)}/"
        self.all = [self._made(name, url, prefix) for name in NAMES]
        first, *others = self.all
        first.start()
        for one in others:
            shutil.copytree(first.directory / "s/ca", one.directory / "s/ca")
            one.start()

    @staticmethod
    def _made(name: str, url: str, prefix: str) -> Coordinator:
        config = f'advertise = "{name}"\n[store]\nurl = "{url}"\nprefix = "{prefix}"\n'
        return Coordinator(make_directory(), config, leads=False)

    @property
    def running(self) -> list[Coordinator]:
        return [one for one in self.all if one.running]

    def role(self, one: Coordinator) -> str:
        return one.admin.status().role

    def leader(self) -> Coordinator:
        """The only one that leads, as soon as one does."""
        found: list[Coordinator] = []

        def one_leads() -> bool:
            found[:] = [one for one in self.running if self.role(one) == "leader"]
            return len(found) == 1

        eventually(one_leads)
        return found[0]

    def standbys(self) -> list[Coordinator]:
        leader = self.leader()
        return [one for one in self.running if one is not leader]

    def dispose(self) -> None:
        for one in self.all:
            one.dispose()


def eventually(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < until, "it never became true"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EtcdCluster]:
    made = EtcdCluster(make_directory(), count=3).start()
    yield made
    made.dispose()


@pytest.fixture
def pool(cluster: EtcdCluster) -> Iterator[Pool]:
    made = Pool(cluster)
    yield made
    made.dispose()


def test_one_leads_and_every_one_tells_who_is_there(pool: Pool) -> None:
    leader = pool.leader()
    name = NAMES[pool.all.index(leader)]
    for one in pool.all:
        status = one.admin.status()
        assert [each.name for each in status.coordinators if each.runs] == list(NAMES)
        assert [each.name for each in status.coordinators if each.leads] == [name]
        assert status.store == "etcd"
        assert len(status.store_members) == 3
        assert all(member.healthy for member in status.store_members)
    assert f"leads    {name}" in pool.standbys()[0].gpushare("pool", "status")


def test_a_standby_answers_reads_with_their_age_and_refuses_the_rest(pool: Pool) -> None:
    leader, (standby, _) = pool.leader(), pool.standbys()
    job = leader.submit("one")
    eventually(lambda: job in standby.jobs())
    answer, age = standby.call("Jobs/List", all=True)
    assert float(age) >= 0
    assert "stands by" in answer["notices"][0]
    _, age = leader.call("Jobs/List", all=True)
    assert age == ""
    name = NAMES[pool.all.index(leader)]
    for call, fields in (
        ("Jobs/Cancel", {"job_id": job}),
        ("PoolAdmin/CreateJoinToken", {}),
        ("Leases/List", {}),
    ):
        with pytest.raises(RefusedError, match=f"stands by, and {name} leads"):
            standby.call(call, **fields)


def test_a_program_with_a_token_reads_at_a_standby(pool: Pool) -> None:
    """The token was made by the leader, and the standby proves itself by the same authority."""
    leader, (standby, _) = pool.leader(), pool.standbys()
    token, anchors = leader.token_file(), leader.anchors_file
    with PoolOfPrograms(leader.address, token_file=token, ca_file=anchors) as program:
        job = program.submit(JobRequest("busybox", gpu="0.1"))

    def reads() -> bool:
        with PoolOfPrograms(
            standby.address, token_file=token, ca_file=anchors, patience_seconds=0
        ) as program:
            try:
                return job in {one.id for one in program.jobs()}
            except PermissionRefused:
                return False  # the standby has not heard of the token yet

    eventually(reads)


def test_another_leads_when_the_leader_is_killed_and_has_all_that_was_accepted(pool: Pool) -> None:
    leader = pool.leader()
    jobs = {leader.submit(str(number)) for number in range(20)}
    cancelled = leader.submit("cancelled")
    leader.call("Jobs/Cancel", job_id=cancelled)
    epoch = leader.admin.status().epoch
    leader.end(signal.SIGKILL)
    heir = pool.leader()
    status = heir.admin.status()
    assert status.epoch > epoch
    assert status.phase == "normal"  # nothing waits for nodes: the store knows what they were told
    assert heir.jobs() == {**dict.fromkeys(jobs, "queued"), cancelled: "cancelled"}
    assert heir.submit("0") in jobs  # the same request again
    leader.start()
    assert pool.role(leader) == "standby"


def test_a_leader_that_ends_cleanly_hands_over(pool: Pool) -> None:
    leader = pool.leader()
    job = leader.submit("one")
    leader.end(signal.SIGTERM)
    assert job in pool.leader().jobs()


def test_a_leader_that_was_stopped_for_long_ends_when_it_goes_on(pool: Pool) -> None:
    leader, others = pool.leader(), pool.standbys()
    job = leader.submit("one")
    assert leader.process is not None
    leader.process.send_signal(signal.SIGSTOP)
    eventually(lambda: "leader" in {pool.role(one) for one in others})
    leader.process.send_signal(signal.SIGCONT)
    assert leader.process.wait(SECONDS) != 0
    assert "leads no more" in leader.log()
    leader.start()
    assert pool.role(leader) == "standby"
    assert job in pool.leader().jobs()


def test_a_coordinator_without_the_key_of_the_others_does_not_start(pool: Pool) -> None:
    standby = pool.standbys()[0]
    standby.end(signal.SIGTERM)
    key = standby.directory / "s/ca/store.key"
    key.write_bytes(secrets.token_bytes(32))
    with pytest.raises(AssertionError, match=r"store\.key is not the key of the pool in the store"):
        standby.start()
