"""What ``gpushare nodes`` says of nodes that the coordinator does not hear."""

from __future__ import annotations

from tests.cli.process import Gpushare
from tests.cli.standin import StandIn, ok


def test_of_a_node_that_the_new_leader_has_not_heard_nothing_is_said_to_be_free(
    gpushare: Gpushare, standin: StandIn
) -> None:
    gpus = [{"index": 0, "id": "GPU-1", "name": "Tesla T4", "free_compute_permille": 1000}]
    node = {"name": "c", "presence": "never-seen", "running": 10, "gpus": gpus}
    standin.answers["Jobs/Nodes"] = ok({"nodes": [node]})
    done = gpushare("nodes", "--no-headers", "-o", "columns=node,state,free,running")
    assert done.stdout.split() == ["c", "never-seen", "-", "10"]
    shown = gpushare("nodes")
    assert "what ran there is believed to run on" in shown.stdout + shown.stderr
