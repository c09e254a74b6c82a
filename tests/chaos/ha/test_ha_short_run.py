"""A few rounds against three coordinators on a real etcd of three keep every promise.

The long ones are made by hand: ``scripts/chaos --ha``.
"""

from __future__ import annotations

import os

import pytest

from tests.bed import parts
from tests.chaos.ha.run import carry_out_rounds
from tests.chaos.main import summarize_rounds

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(os.getuid() != 0, reason="only root makes networks"),
    pytest.mark.usefixtures("docker_engine", "docker_cli"),
]
SEED, ROUNDS, SECONDS = 3104, 4, 600.0
"""Who leads is cut off, slow and killed, a standby is slow, etcd's leader is killed, nodes are cut off and stopped."""


async def test_a_pool_whose_coordinators_and_etcd_fail_keeps_every_promise() -> None:
    parts.need_file("etcd", parts.ETCD / "etcdctl")
    folder = parts.CACHE / "chaos" / f"test-ha-{os.getpid()}"
    run, record, runs, found = await carry_out_rounds(SEED, ROUNDS, SECONDS, folder, parts.CACHE, print)
    summary = summarize_rounds(run, SEED, record, runs, found, folder)
    assert found == [], summary
    assert run.rounds_done == ROUNDS
    assert run.take_overs, summary
    assert len(runs) > ROUNDS, summary
