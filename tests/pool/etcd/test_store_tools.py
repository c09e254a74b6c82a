"""A coordinator on etcd, and its store moved there and back, copied, put back and checked: real processes."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bed.etcd import EtcdCluster
from tests.node import fork_server
from tests.node.daemon import make_directory
from tests.pool import json_calls
from tests.pool.json_calls import BUSYBOX
from tests.pool.processes import GPUSHARED_POOL, CoordinatorProcess

SECONDS = 60


class Pool:
    """A coordinator whose store may be in either place."""

    def __init__(self, cluster: EtcdCluster) -> None:
        self.cluster = cluster
        self.process = CoordinatorProcess(make_directory())
        self.url = f"etcd://{','.join(cluster.endpoints)}"
        self.prefix = f"/pools/{secrets.token_hex(6)}/"
        self.is_in(self.url)

    def is_in(self, url: str) -> None:
        self.process.config = f'[store]\nurl = "{url}"\nprefix = "{self.prefix}"\n'
        (self.process.directory / "pool.toml").write_text(self.process._config())

    def call(self, call: str, **fields: Any) -> dict[str, Any]:
        return json_calls.call(self.process.socket, call, **fields)[0]

    def submit(self, request_id: str) -> str:
        return str(self.call("Jobs/Submit", request_id=request_id, **BUSYBOX)["job_ids"][0])

    def jobs(self) -> set[str]:
        return {job["id"] for job in self.call("Jobs/List", ended=True, all=True, limit=1000)["jobs"]}

    def status(self) -> dict[str, Any]:
        return self.call("PoolAdmin/Status")

    def store(self, *words: str) -> str:
        """What ``gpushared-pool store`` prints, or its complaint."""
        config = str(self.process.directory / "pool.toml")
        command = [str(GPUSHARED_POOL), "--config", config, "store", *words]
        with tempfile.TemporaryFile("a+b") as output:
            fork_server.start(command, os.environ, output).wait(SECONDS)
            output.seek(0)
            return output.read().decode()

    def position(self) -> tuple[int, int]:
        """Epoch and revision, of a store without a problem."""
        output = self.store("check")
        assert "problem" not in output, output
        found = re.search(r"epoch (\d+), revision (\d+)", output)
        assert found is not None, output
        return int(found[1]), int(found[2])

    def stop(self) -> None:
        self.process.end(signal.SIGTERM)


@pytest.fixture
def pool(etcd_member: EtcdCluster) -> Iterator[Pool]:
    made = Pool(etcd_member)
    yield made
    made.process.dispose()


def test_a_coordinator_on_etcd_keeps_its_jobs_through_a_kill_and_a_clean_end(pool: Pool) -> None:
    pool.process.start()
    jobs = {pool.submit("one")}
    epoch = int(pool.status()["epoch"])
    pool.process.end(signal.SIGKILL)
    pool.process.start()  # it waits for the end of its own earlier lease
    assert pool.jobs() == jobs
    jobs.add(pool.submit("two"))
    pool.stop()
    pool.process.start()
    assert pool.jobs() == jobs
    assert int(pool.status()["epoch"]) > epoch + 1
    assert pool.status()["phase"] == "normal"


def test_a_coordinator_whose_lease_is_gone_ends_with_a_sentence(pool: Pool) -> None:
    pool.process.start()
    for line in pool.cluster.ctl("lease", "list").splitlines():
        lease = line.strip()
        if lease.isalnum() and f"{pool.prefix}leader" in pool.cluster.ctl(
            "lease", "timetolive", lease, "--keys"
        ):
            pool.cluster.ctl("lease", "revoke", lease)
    assert pool.process.process is not None
    assert pool.process.process.wait(SECONDS) == 125
    log = (pool.process.directory / "log").read_text()
    assert "this coordinator leads no more: its lease at etcd has ended" in log


def test_a_store_moves_to_etcd_and_back_with_all_its_records(pool: Pool) -> None:
    pool.is_in("")
    pool.process.start()
    jobs = {pool.submit(str(number)) for number in range(5)}
    assert "another coordinator leads" in pool.store("migrate", "--to", pool.url)
    pool.stop()
    before = pool.position()
    assert "moved" in pool.store("migrate", "--to", pool.url)
    assert "the store has moved away" in pool.store("check")
    pool.is_in(pool.url)
    assert pool.position() >= before
    pool.process.start()
    assert pool.status()["phase"] == "normal"
    assert pool.jobs() == jobs
    jobs.add(pool.submit("in etcd"))
    pool.stop()
    before = pool.position()
    assert "on all other coordinators: systemctl disable" in pool.store("migrate", "--to", "sqlite:")
    said = pool.store("check")
    assert f"moved to a file on {socket.gethostname()}; only the coordinator there can serve it" in said
    assert "systemctl disable --now gpushared-pool, on all hosts but" in said
    pool.is_in("")
    assert pool.position() >= before
    pool.process.start()
    assert pool.status()["phase"] == "normal"
    assert pool.jobs() == jobs


def test_a_copy_that_is_put_back_is_taken_for_old(pool: Pool) -> None:
    """Whichever store it is put into: what nodes have since been told must not be done twice."""
    copy = str(pool.process.directory / "copy.db")
    pool.process.start()
    kept = pool.submit("one")
    assert "copied" in pool.store("backup", copy)  # while it runs
    assert "exists already" in pool.store("backup", copy)
    pool.submit("two")
    assert "another coordinator leads" in pool.store("restore", copy, "--replace")
    pool.stop()
    assert "there is a store below" in pool.store("restore", copy)
    assert "put back" in pool.store("restore", copy, "--replace")
    pool.process.start()
    assert pool.jobs() == {kept}
    assert pool.status()["phase"] == "recovering"


def test_the_record_of_signatures_moves_with_the_store(pool: Pool) -> None:
    """What was revoked while the store was in etcd stays revoked, also after a copy from before is put back."""
    pool.is_in("")
    pool.process.start()
    pool.stop()
    signatures, copy = pool.process.directory / "s/ca/issued.jsonl", str(pool.process.directory / "copy.db")
    line = {"what": "issued", "at": 1.0, "node": "n9", "serial": "1f", "expires_at": 4e9, "realms": []}
    signatures.write_text(json.dumps({**line, "authority": "a", "token": ""}) + "\n")
    signatures.chmod(0o600)
    pool.store("migrate", "--to", pool.url)
    pool.is_in(pool.url)
    pool.process.start()
    assert pool.status()["nodes"] == 1
    pool.store("backup", copy)
    pool.call("PoolAdmin/RevokeToken", node="n9")
    assert "revoked" not in signatures.read_text()
    pool.stop()
    assert "put back" in pool.store("restore", copy, "--replace")
    assert "moved" in pool.store("migrate", "--to", "sqlite:")
    assert [json.loads(one)["what"] for one in signatures.read_text().splitlines()] == ["issued", "revoked"]
    pool.is_in("")
    pool.process.start()
    assert pool.process.gpushare("pool", "status")


def test_a_check_finds_what_cannot_be_read(pool: Pool) -> None:
    pool.process.start()
    pool.submit("one")
    pool.stop()
    assert "problem" not in pool.store("check")
    assert "fewer than three members" in pool.store("check")
    pool.cluster.ctl("put", "--", f"{pool.prefix}record/job/j-bad", "no job")
    assert "problem: " in pool.store("check")


def test_a_migration_that_was_interrupted_is_run_again(pool: Pool) -> None:
    pool.is_in("")
    pool.process.start()
    job = pool.submit("one")
    pool.stop()
    half = '{"version": 1, "offset": 0, "filling": true}'
    pool.cluster.ctl("put", "--", f"{pool.prefix}format", half)
    pool.cluster.ctl("put", "--", f"{pool.prefix}record/job/j-half", "half of it")
    pool.is_in(pool.url)
    assert "is not complete" in pool.store("check")
    pool.is_in("")
    assert "moved" in pool.store("migrate", "--to", pool.url)
    pool.is_in(pool.url)
    pool.process.start()
    assert pool.jobs() == {job}


def test_an_etcd_that_was_put_back_from_its_own_snapshot_is_told_to_the_coordinator(
    etcd_cluster: Callable[..., EtcdCluster],
) -> None:
    """Revisions show it no more once others have written to the same etcd: a copy that is put back does."""
    cluster = etcd_cluster(1)
    pool = Pool(cluster)
    snapshot, copy = cluster.folder / "snapshot", str(pool.process.directory / "copy.db")
    try:
        pool.process.start()
        kept = pool.submit("one")
        cluster.ctl("snapshot", "save", str(snapshot))
        pool.submit("two")
        pool.stop()
        restore_snapshot(cluster, snapshot)
        for number in range(50):
            cluster.ctl("put", "another", str(number))
        assert "copied" in pool.store("backup", copy)
        until = time.monotonic() + SECONDS
        while "put back" not in (output := pool.store("restore", copy, "--replace")):
            assert "another coordinator leads" in output  # the snapshot has its lease, too
            assert time.monotonic() < until
        pool.process.start()
        assert pool.jobs() == {kept}
        assert pool.status()["phase"] == "recovering"
    finally:
        pool.process.dispose()


def restore_snapshot(cluster: EtcdCluster, snapshot: Path) -> None:
    (member,) = cluster.members
    member.kill()
    data = cluster.folder / member.name
    shutil.rmtree(data)
    cluster.ctl(
        *("snapshot", "restore", str(snapshot), f"--data-dir={data}", f"--name={member.name}"),
        *(
            f"--initial-cluster={member.name}={member.peer_url}",
            f"--initial-advertise-peer-urls={member.peer_url}",
        ),
    )
    member.start()
    cluster.wait_until_healthy()
