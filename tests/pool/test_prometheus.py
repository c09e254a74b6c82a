"""A real Prometheus reads a node and a coordinator, and its alerts fire on a played XID and on a silent node."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from monitoring.dashboards import DASHBOARDS
from tests.bed import parts
from tests.node.daemon import DaemonProcess, make_directory, wait_until
from tests.pool.processes import CoordinatorProcess, free_port

NODE = "n1"
ALERTS = parts.ROOT / "monitoring/alerts.yml"
END_SECONDS = 20


@dataclass
class Prometheus:
    """A server that scrapes each second; its alerts fire at once, without the pauses of the rules."""

    program: Path
    folder: Path
    node_port: int
    pool_port: int

    def __post_init__(self) -> None:
        self.port = free_port()
        (self.folder / "alerts.yml").write_text(re.sub(r"\n +for: \S+", "", ALERTS.read_text()))
        (self.folder / "prometheus.yml").write_text(f"""
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [alerts.yml]
scrape_configs:
  - job_name: gpushared
    static_configs: [{{targets: ["127.0.0.1:{self.node_port}"]}}]
  - job_name: gpushared-pool
    static_configs: [{{targets: ["127.0.0.1:{self.pool_port}"]}}]
""")
        self._log = (self.folder / "log").open("wb")
        words = [
            str(self.program / "prometheus"),
            f"--config.file={self.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]
        self._process = subprocess.Popen(words, stdout=self._log, stderr=self._log)

    def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(END_SECONDS)
        self._log.close()

    def ask(self, path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def values(self, expression: str) -> list[float]:
        return [float(one["value"][1]) for one in self.ask("query", query=expression)["result"]]

    def firing(self) -> set[str]:
        alerts = self.ask("alerts")["alerts"]
        return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}

    def serves(self) -> bool:
        assert self._process.poll() is None, (self.folder / "log").read_text()[-3000:]
        try:
            return len(self.values("up")) == 2
        except OSError:
            return False


def check_dashboards(server: Prometheus) -> None:
    """Prometheus takes each expression, and finds no two series where one is meant."""
    words = {"$instance": ".*", "$__rate_interval": "1m", "$__range": "1h"}
    for _, _, panels in DASHBOARDS.values():
        for expression in (query for panel in panels for query, _ in panel.queries):
            for word, meant in words.items():
                expression = expression.replace(word, meant)  # noqa: PLW2901 - one word after the other
            assert isinstance(server.values(expression), list)


@pytest.fixture
def machines() -> Iterator[tuple[DaemonProcess, int, CoordinatorProcess, int]]:
    node_port, pool_port = free_port(), free_port()
    coordinator = CoordinatorProcess(
        make_directory(), config=f'[metrics]\nlisten = "{pool_port}"\n[nodes]\nbeat_seconds = 0.5\n'
    )
    node = DaemonProcess(
        make_directory(), engine="/nonexistent/docker.sock", config=f'[metrics]\nlisten = "{node_port}"\n'
    )
    coordinator.start()
    node.start()
    token = coordinator.gpushare("pool", "token", "--node", NODE, "-q")
    words = ("node", "join", coordinator.address, "--token-file", "-", "--name", NODE)
    joined = node.gpushare(*words, stdin=token)
    assert joined.returncode == 0, joined.stderr
    yield node, node_port, coordinator, pool_port
    node.dispose()
    coordinator.dispose()


def test_prometheus_reads_both_and_its_alerts_fire(
    machines: tuple[DaemonProcess, int, CoordinatorProcess, int], prometheus: Path, tmp_path: Path
) -> None:
    node, node_port, _, pool_port = machines
    server = Prometheus(prometheus, tmp_path, node_port, pool_port)
    try:
        wait_until(server.serves, "Prometheus serves")
        wait_until(lambda: server.values("up") == [1.0, 1.0], "both are up")
        up = f'gpushare_pool_member_up{{node="{NODE}"}}'
        wait_until(lambda: server.values(up) == [1.0], "the node is a member")
        node.request("0.5")
        wait_until(lambda: server.values("sum(gpushare_gpu_compute_leased_ratio)") == [0.5], "a lease")
        check_dashboards(server)
        assert not server.firing() & {"GpushareGpuXid", "GpusharePoolNodeSilent", "GpushareNodeDown"}
        node.call("Simulation/Change", {"gpu_index": 0, "xids": [31]})
        wait_until(lambda: "GpushareGpuXid" in server.firing(), "the XID is told of")
        node.kill()
        silent = {"GpusharePoolNodeSilent", "GpushareNodeDown"}
        wait_until(lambda: server.firing() >= silent, "the silent node is told of")
        assert "GpusharePoolWithoutLeader" not in server.firing()
    finally:
        server.end()
        shutil.rmtree(tmp_path / "data", ignore_errors=True)
