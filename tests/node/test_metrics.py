"""Metrics of a real daemon with simulated GPUs: true, on the socket and on TCP, and silent on others' names."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest

from gpushared.net.exposition import Format, Kind
from gpushared.node.services.node_metric_names import NODE_METRICS
from tests.bed import parts
from tests.net.test_exposition import READERS
from tests.node.conftest import NewDaemon
from tests.node.daemon import DaemonProcess, Refused, wait_until
from tests.pool.processes import free_port

MONITORING = parts.ROOT / "monitoring"
ALICE, BOB = 1001, 1002
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(page: str, form: Format = Format.TEXT) -> Series:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in READERS[form](page)
        for sample in family.samples
    }


def of(series: Series, name: str, **labels: str) -> list[float]:
    """The values of the series of this name that have these labels."""
    wanted = set(labels.items())
    return [value for (one, found), value in series.items() if one == name and wanted <= found]


def labels_of(series: Series, name: str, label: str) -> set[str]:
    return {dict(found)[label] for one, found in series if one == name}


def gpu_ids(daemon: DaemonProcess) -> list[str]:
    return [gpu["uuid"] for gpu in daemon.call("Gpus/List")["gpus"]]


def test_a_page_tells_of_gpus_leases_and_the_queue(lone_daemon: DaemonProcess) -> None:
    daemon, (first, _) = lone_daemon, gpu_ids(lone_daemon)
    daemon.call("Simulation/Change", {"gpu_index": 0, "utilization_ratio": 0.5})
    held = daemon.request("2", uid=ALICE)
    daemon.request("1", uid=BOB)
    used = "gpushare_lease_memory_used_bytes"
    wait_until(lambda: len(of(read(daemon.metrics()), used)) == 2, "a sample has the lease")
    series = read(daemon.metrics())
    assert of(series, "gpushare_gpu_compute_leased_ratio") == [1.0, 1.0]
    assert of(series, "gpushare_gpu_utilization_ratio", gpu=first) == [0.5]
    assert of(series, "gpushare_gpu_power_watts", gpu=first) == [385.0]
    assert of(series, "gpushare_gpu_up") == [1.0, 1.0]
    assert labels_of(series, "gpushare_gpu_info", "index") == {"0", "1"}
    assert of(series, "gpushare_lease_info", lease=held["id"], **{"class": "train"}) == [1.0]
    assert of(series, used, lease=held["id"], gpu=first) == [0.0]
    assert of(series, "gpushare_leases", state="reserved") == [1.0]
    assert of(series, "gpushare_queue_length", reason="sharing_mode") == [1.0]
    assert of(series, "gpushare_grants_total", **{"class": "train"}) == [1.0]
    assert of(series, "gpushare_queue_wait_seconds_count", **{"class": "train"}) == [1.0]
    assert of(series, "gpushare_nvml_up") == [1.0]
    assert of(series, "gpushare_engine_up") == [0.0]
    assert "engine" in labels_of(series, "gpushare_trouble", "part")


def test_the_same_page_comes_as_open_metrics(lone_daemon: DaemonProcess) -> None:
    lone_daemon.request("0.5")
    page = lone_daemon.metrics(accept="application/openmetrics-text; version=1.0.0")
    series = read(page, Format.OPEN_METRICS)
    assert {name for name, _ in series} >= {name for name, _ in read(lone_daemon.metrics())}


def test_a_confined_user_finds_the_own_leases_only(lone_daemon: DaemonProcess) -> None:
    daemon = lone_daemon
    alices, bobs = daemon.request("0.5", uid=ALICE), daemon.request("0.25", uid=BOB)
    page = daemon.metrics(uid=BOB)
    series = read(page)
    assert labels_of(series, "gpushare_lease_info", "lease") == {bobs["id"]}
    assert labels_of(series, "gpushare_lease_memory_bytes", "lease") == {bobs["id"]}
    assert labels_of(series, "gpushare_project_held_ratio", "project") == {str(BOB)}
    assert alices["id"] not in page
    assert f'"{ALICE}"' not in page
    everything = read(daemon.metrics())
    assert labels_of(everything, "gpushare_lease_info", "user") == {str(ALICE), str(BOB)}
    assert labels_of(everything, "gpushare_user_gpu_seconds_total", "user") == {str(ALICE), str(BOB)}


def test_gpu_time_and_ends_are_counted(lone_daemon: DaemonProcess) -> None:
    daemon = lone_daemon
    lease = daemon.request("1", uid=ALICE)
    time.sleep(0.2)
    daemon.call("Leases/Release", {"lease_id": lease["id"]}, uid=ALICE)
    series = read(daemon.metrics())
    (held,) = of(series, "gpushare_user_gpu_seconds_total", user=str(ALICE))
    assert held > 0.2
    assert of(series, "gpushare_project_gpu_seconds_total", project=str(ALICE)) == [held]
    assert of(series, "gpushare_lease_duration_seconds_count", outcome="stopped") == [1.0]
    assert of(read(daemon.metrics()), "gpushare_user_gpu_seconds_total", user=str(ALICE)) == [held]


def test_an_error_of_the_driver_and_a_lost_gpu_are_told(lone_daemon: DaemonProcess) -> None:
    daemon, (first, second) = lone_daemon, gpu_ids(lone_daemon)
    daemon.call("Simulation/Change", {"gpu_index": 0, "xids": [31, 31, 43]})
    daemon.call("Simulation/Change", {"gpu_index": 1, "trouble": "it fell off the bus"})
    wait_until(lambda: of(read(daemon.metrics()), "gpushare_gpu_up", gpu=second) == [0.0], "GPU 1 is lost")
    series = read(daemon.metrics())
    assert of(series, "gpushare_gpu_xid_total", gpu=first, xid="31") == [2.0]
    assert of(series, "gpushare_gpu_up", gpu=first) == [1.0]
    assert not of(series, "gpushare_gpu_utilization_ratio", gpu=second), "a lost GPU looked idle"


def test_a_refused_request_is_counted_by_its_error(lone_daemon: DaemonProcess) -> None:
    with pytest.raises(Refused):
        lone_daemon.request("9")
    assert of(read(lone_daemon.metrics()), "gpushare_refusals_total", reason="never_fits") == [1.0]


# --- promtool ------------------------------------------------------------------------------------------


def check_metrics(prometheus: Path, page: bytes) -> None:
    """Promtool reads the page and finds no fault in names, kinds and units."""
    words = [str(prometheus / "promtool"), "check", "metrics"]
    done = subprocess.run(words, input=page, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_promtool_finds_nothing_wrong_and_each_metric_of_a_node_is_there(
    new_daemon: NewDaemon, docker_engine: str, prometheus: Path
) -> None:
    config = """
    [metrics]
    dcgm_job_mapping = "/proc/self"
    [projects.vision]
    guaranteed = 1
    users = ["root"]
    """
    daemon = new_daemon(engine=docker_engine, config=config)
    daemon.start()
    daemon.hold("0.5")
    daemon.call("Leases/Release", {"lease_id": daemon.request("0.5")["id"]})
    daemon.request("2")
    daemon.call("Simulation/Change", {"gpu_index": 0, "xids": [31]})
    with pytest.raises(Refused):
        daemon.request("9")
    assert daemon.post("/v1.41/swarm/init", b"{}", uid=ALICE)[0] == 403
    wanted = {one.name if one.kind is not Kind.HISTOGRAM else f"{one.name}_count" for one in NODE_METRICS}
    wait_until(lambda: {name for name, _ in read(daemon.metrics())} >= wanted, "all metrics are there")
    check_metrics(prometheus, daemon.metrics().encode())


@pytest.mark.parametrize("words", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")])
def test_promtool_finds_nothing_wrong_with_the_alerts(prometheus: Path, words: tuple[str, ...]) -> None:
    command = [str(prometheus / "promtool"), *words]
    done = subprocess.run(command, cwd=MONITORING, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# --- on TCP --------------------------------------------------------------------------------------------


def serving(new_daemon: NewDaemon, more: str = "") -> tuple[DaemonProcess, int]:
    port = free_port()
    daemon = new_daemon(config=f'[metrics]\nlisten = "{port}"\n{more}\n')
    daemon.start()
    wait_until(lambda: _answers(port), "the port serves")
    return daemon, port


def get(port: int, path: str = "/metrics", method: str = "GET") -> tuple[int, str]:
    channel = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    channel.request(method, path)
    answer = channel.getresponse()
    status, text = answer.status, answer.read().decode()
    channel.close()
    return status, text


def test_tcp_names_nobody_unless_it_is_allowed(new_daemon: NewDaemon) -> None:
    daemon, port = serving(new_daemon)
    lease = daemon.request("0.5", uid=ALICE)
    status, page = get(port)
    series = read(page)
    assert status == 200
    assert labels_of(series, "gpushare_lease_info", "lease") == {lease["id"]}
    assert labels_of(series, "gpushare_lease_info", "project") == {"own"}
    assert not {"user", "image"} & {name for _, found in series for name, _ in found}
    assert f'"{ALICE}"' not in page


def test_tcp_names_users_where_the_site_says_so(new_daemon: NewDaemon) -> None:
    daemon, port = serving(new_daemon, 'labels = ["user"]')
    daemon.request("0.5", uid=ALICE)
    series = read(get(port)[1])
    assert labels_of(series, "gpushare_lease_info", "user") == {str(ALICE)}
    assert labels_of(series, "gpushare_project_held_ratio", "project") == {str(ALICE)}
    assert "image" not in {name for _, found in series for name, _ in found}


@pytest.mark.parametrize(
    "path", ["/", "/metrics/x", "/_ping", "/containers/json", "/gpushare.v1.Leases/List"]
)
def test_tcp_serves_metrics_and_nothing_else(new_daemon: NewDaemon, path: str) -> None:
    _, port = serving(new_daemon)
    assert get(port, path)[0] == 404
    assert get(port, method="POST")[0] == 405
    assert get(port)[0] == 200


def test_idle_connections_keep_no_scraper_out(new_daemon: NewDaemon) -> None:
    daemon, port = serving(new_daemon)
    crowd = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
    crowd[-1].sendall(b"GET /metr")
    assert get(port)[0] == 200
    assert daemon.metrics()
    crowd[0].settimeout(10)
    assert crowd[0].recv(1) == b"", "the oldest ones are closed"
    for one in crowd:
        one.close()


def test_the_address_follows_a_reload(new_daemon: NewDaemon) -> None:
    daemon, port = new_daemon(), free_port()
    daemon.start()
    for listen in (str(port), "", f"[::1]:{port}" if socket.has_ipv6 else str(port), f"127.0.0.1:{port}"):
        (daemon.directory / "config.toml").write_text(f'[metrics]\nlisten = "{listen}"\n')
        daemon.signal(signal.SIGHUP)
        is_here = bool(listen) and not listen.startswith("[")
        seen = _answers if is_here else _is_silent
        wait_until(partial(seen, port), f"it listens at {listen!r}")


def _is_silent(port: int) -> bool:
    return not _answers(port)


def _answers(port: int) -> bool:
    try:
        return get(port, "/")[0] == 404  # a page would be kept for a moment
    except OSError:
        return False
    except http.client.HTTPException:
        return False


def test_an_address_that_is_taken_is_a_trouble_and_nothing_else(new_daemon: NewDaemon) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        daemon = new_daemon(config=f'[metrics]\nlisten = "127.0.0.1:{port}"\n')
        daemon.start()
        wait_until(lambda: "metrics" in told_parts(daemon), "the trouble is told")
        assert daemon.request("0.5")["state"] == "reserved"


def told_parts(daemon: DaemonProcess) -> set[str]:
    return labels_of(read(daemon.metrics()), "gpushare_trouble", "part")


# --- the job mapping of dcgm-exporter ------------------------------------------------------------------


def test_the_mapping_names_the_leases_of_each_gpu(new_daemon: NewDaemon, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("mine")
    (tmp_path / "7").write_text("left from an earlier life")
    config = f'[metrics]\ndcgm_job_mapping = "{tmp_path}"\n'
    daemon = new_daemon(config=config, simulate="a100,a100/2x3g.40gb")
    daemon.start()
    half = daemon.request("0.5")
    wait_until(lambda: files(tmp_path) == {"0": f"{half['id']}\n"}, "its file is there")
    part = daemon.request("1", isolation="mig")
    wait_until(lambda: set(files(tmp_path).values()) == {f"{half['id']}\n", f"{part['id']}\n"}, "both")
    assert set(files(tmp_path)) - {"0"} <= {"1.0", "1.1"}
    daemon.call("Leases/Release", {"lease_id": half["id"]})
    wait_until(lambda: "0" not in files(tmp_path), "the GPU is nobody's")
    assert (tmp_path / "other").read_text() == "mine"


def files(folder: Path) -> dict[str, str]:
    return {one.name: one.read_text() for one in folder.iterdir() if one.name[0].isdigit()}


def test_a_folder_that_cannot_be_written_is_a_trouble_and_nothing_else(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(config='[metrics]\ndcgm_job_mapping = "/proc/self"\n')
    daemon.start()
    assert daemon.request("0.5")["state"] == "reserved"
    wait_until(lambda: "dcgm-mapping" in told_parts(daemon), "the trouble is told")
