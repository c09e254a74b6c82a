"""A member of etcd that its clients reach and the other members do not: it has no quorum, and serves nobody."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.bed import parts
from tests.bed.etcd import PEER_PORT, EtcdCluster, EtcdMember
from tests.pool.etcd.test_failures import access_first, leads_still, take
from tests.pool.etcd.writers import Writer, opened


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=20)


@dataclass
class Partition:
    """Three members, of which one is in a network namespace of its own."""

    cluster: EtcdCluster
    space: str

    @property
    def apart(self) -> EtcdMember:
        return self.cluster.members[0]

    def cut(self) -> None:
        """Nothing passes between the members' own ports in either direction; clients go on."""
        for chain in ("INPUT", "OUTPUT"):
            for port in ("--sport", "--dport"):
                rule = [chain, "-p", "tcp", port, str(PEER_PORT), "-j", "DROP"]
                run("ip", "netns", "exec", self.space, "iptables", "-A", *rule)

    def let_lead(self) -> None:
        """The member that will be apart leads etcd."""
        leader = self.cluster.leader()
        if leader is not self.apart:
            output = self.cluster.ctl("member", "list")
            (member,) = [line.split(", ")[0] for line in output.splitlines() if self.apart.endpoint in line]
            self.cluster.ctl(f"--endpoints={leader.client_url}", "move-leader", member)

    def let_follow(self) -> None:
        leader = self.cluster.leader()
        if leader is self.apart:
            output = self.cluster.ctl("member", "list")
            member = next(
                line.split(", ")[0] for line in output.splitlines() if self.apart.endpoint not in line
            )
            self.cluster.ctl(f"--endpoints={leader.client_url}", "move-leader", member)


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[Partition]:
    parts.need_file("etcd", parts.ETCD / "etcdctl")
    parts.need_file("engine", Path("/usr/sbin/iptables"))  # engines of Docker need it
    space, near, far = (f"{kind}{secrets.token_hex(4)}" for kind in ("etcd", "ea", "eb"))
    net = f"10.{200 + secrets.randbelow(40)}.{secrets.randbelow(250)}"
    cluster = EtcdCluster(tmp_path, 3, hosts=[f"{net}.{number}" for number in (2, 3, 4)])
    made = Partition(cluster, space)
    made.apart.before = ["ip", "netns", "exec", space]
    run("ip", "netns", "add", space)
    try:
        run("ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", space)
        for host in (1, 3, 4):
            run("ip", "address", "add", f"{net}.{host}/24", "dev", near)
        run("ip", "link", "set", near, "up")
        run("ip", "-n", space, "address", "add", f"{net}.2/24", "dev", far)
        run("ip", "-n", space, "link", "set", far, "up")
        run("ip", "-n", space, "link", "set", "lo", "up")
        cluster.start()
        yield made
    finally:
        cluster.dispose()
        run("ip", "netns", "delete", space)
        # The namespace may live on for a moment with a connection that ends.
        subprocess.run(["ip", "link", "delete", near], check=False, capture_output=True, timeout=20)


@pytest.mark.parametrize("role", [Partition.let_lead, Partition.let_follow])
async def test_a_member_without_a_quorum_that_still_answers_is_left_with_the_lease_and_the_changes(
    partition: Partition, role: Callable[[Partition], None]
) -> None:
    role(partition)
    async with opened(access_first(partition.cluster, partition.apart)) as store:
        writer = Writer(store, await store.lead())
        start = await writer.put("k/0", "0")
        following = asyncio.create_task(take(store.watch("k/", start), 4))
        await writer.put("k/1", "1")
        partition.cut()
        for number in range(2, 5):
            await writer.put_surely(f"k/{number}", str(number))
        assert await leads_still(store, writer.epoch)
        assert [change.key for change in await following] == [f"k/{number}" for number in range(1, 5)]
