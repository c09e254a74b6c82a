"""Make the Grafana dashboards: ``python monitoring/dashboards.py`` writes ``monitoring/grafana/*.json``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "grafana"
COLUMNS = 24
HEIGHT = 8
INDEX = "* on(instance, gpu) group_left(index) gpushare_gpu_info"
OWNER = "* on(instance, lease) group_left(project, class) gpushare_lease_info"
HERE = '{instance=~"$instance"}'
SOURCE = {"type": "prometheus", "uid": "${datasource}"}

Json = dict[str, Any]


@dataclass(frozen=True)
class Panel:
    """Describe a panel; ``queries`` are pairs of an expression and a legend."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "none"
    kind: str = "timeseries"
    width: int = 12
    stacked: bool = False


def lines(title: str, *queries: tuple[str, str], unit: str = "none", stacked: bool = False) -> Panel:
    return Panel(title, queries, unit, stacked=stacked)


def number(title: str, expression: str, unit: str = "none") -> Panel:
    return Panel(title, ((expression, ""),), unit, "stat", 6)


def bars(title: str, *queries: tuple[str, str], unit: str = "none") -> Panel:
    return Panel(title, queries, unit, "bargauge")


def quantile(part: float, name: str, by: str = "") -> str:
    """Return the expression of a quantile of a histogram, over the interval of the panel."""
    kept = ", ".join(one for one in ("le", by) if one)
    return f"histogram_quantile({part}, sum by ({kept}) (rate({name}_bucket{HERE}[$__rate_interval])))"


def _of_range(name: str) -> str:
    return f"sum by (user) (increase({name}{HERE}[$__range]))"


MACHINE = (
    number("GPUs that work", f"sum(gpushare_gpu_up{HERE})"),
    number("Leases", f"sum(gpushare_leases{HERE})"),
    number("Waiting requests", 'sum(gpushare_leases{instance=~"$instance", state="queued"})'),
    number("Oldest wait", f"max(gpushare_queue_oldest_wait_seconds{HERE})", "s"),
    lines(
        "Use of the GPUs",
        (f"gpushare_gpu_utilization_ratio{HERE} {INDEX}", "GPU {{index}}"),
        unit="percentunit",
    ),
    lines(
        "Compute that leases hold",
        (f"gpushare_gpu_compute_leased_ratio{HERE} {INDEX}", "GPU {{index}}"),
        unit="percentunit",
    ),
    lines("Memory in use", (f"gpushare_gpu_memory_used_bytes{HERE} {INDEX}", "GPU {{index}}"), unit="bytes"),
    lines(
        "Memory that leases hold, and memory there is",
        (f"gpushare_gpu_memory_leased_bytes{HERE} {INDEX}", "GPU {{index}} held"),
        (f"gpushare_gpu_memory_bytes{HERE} {INDEX}", "GPU {{index}}"),
        unit="bytes",
    ),
    lines("Power", (f"gpushare_gpu_power_watts{HERE} {INDEX}", "GPU {{index}}"), unit="watt"),
    lines(
        "Energy",
        (f"increase(gpushare_gpu_energy_joules_total{HERE}[1h]) {INDEX}", "GPU {{index}} in an hour"),
        unit="joule",
    ),
    lines(
        "Temperature", (f"gpushare_gpu_temperature_celsius{HERE} {INDEX}", "GPU {{index}}"), unit="celsius"
    ),
    lines(
        "Drained GPUs and errors of the driver",
        (f"gpushare_gpu_drained{HERE} {INDEX}", "GPU {{index}} drained"),
        (f"increase(gpushare_gpu_xid_total{HERE}[$__rate_interval]) {INDEX}", "GPU {{index}} XID {{xid}}"),
        (f"gpushare_unmanaged_gpu_processes{HERE}", "processes without a lease"),
    ),
    lines(
        "Memory of leases: in use",
        (f"gpushare_lease_memory_used_bytes{HERE} {OWNER}", "{{lease}} {{project}}"),
        unit="bytes",
    ),
    lines(
        "Memory of leases: held",
        (f"gpushare_lease_memory_bytes{HERE} {OWNER}", "{{lease}} {{project}}"),
        unit="bytes",
    ),
    lines(
        "Use by leases",
        (f"gpushare_lease_utilization_ratio{HERE} {OWNER}", "{{lease}} {{project}}"),
        (f"gpushare_lease_compute_ratio{HERE} {OWNER}", "{{lease}} {{project}} held"),
        unit="percentunit",
    ),
    bars("Idle leases", (f"gpushare_lease_idle_seconds{HERE} {OWNER}", "{{lease}} {{project}}"), unit="s"),
    lines(
        "Queue by the reason for the wait",
        (f"sum by (reason) (gpushare_queue_length{HERE})", "{{reason}}"),
        stacked=True,
    ),
    lines("Leases by state", (f"sum by (state) (gpushare_leases{HERE})", "{{state}}"), stacked=True),
    lines(
        "The daemon's own times, 99 of 100",
        (quantile(0.99, "gpushare_pass_seconds"), "an event with its pass"),
        (quantile(0.99, "gpushare_journal_commit_seconds"), "a write to the journal"),
        (quantile(0.99, "gpushare_loop_lag_seconds"), "the event loop is late"),
        (f"max(gpushare_sample_age_seconds{HERE})", "age of the newest sample"),
        unit="s",
    ),
    lines(
        "Parts that do not work",
        (f"gpushare_trouble{HERE}", "{{part}}"),
        (f"1 - gpushare_engine_up{HERE}", "no engine"),
        (f"1 - gpushare_nvml_up{HERE}", "no driver"),
        (f"increase(gpushare_audit_lost_total{HERE}[$__rate_interval])", "lost lines of the audit"),
    ),
    lines("Versions", (f"gpushare_build_info{HERE}", "{{instance}} {{version}}")),
)

POOL = (
    number("Nodes connected", f"sum(gpushare_pool_member_up{HERE})"),
    number("Nodes", f"sum(gpushare_pool_members{HERE})"),
    number("Jobs queued", 'sum(gpushare_pool_jobs{instance=~"$instance", state="queued"})'),
    number("Oldest wait", f"max(gpushare_pool_queue_oldest_wait_seconds{HERE})", "s"),
    lines("Jobs", (f"sum by (state) (gpushare_pool_jobs{HERE})", "{{state}}"), stacked=True),
    lines("Queue", (f"sum by (class) (gpushare_pool_queue_length{HERE})", "{{class}}"), stacked=True),
    lines("Time since the last message", (f"gpushare_pool_member_heard_seconds{HERE}", "{{node}}"), unit="s"),
    lines(
        "Nodes that are away or drained",
        (f"1 - gpushare_pool_member_up{HERE}", "{{node}} away"),
        (f"gpushare_pool_member_drained{HERE}", "{{node}} drained"),
    ),
    lines("GPUs", (f"gpushare_pool_member_gpus{HERE}", "{{node}}"), stacked=True),
    lines("Leases", (f"gpushare_pool_member_leases{HERE}", "{{node}}"), stacked=True),
    lines(
        "The coordinator's own times, 99 of 100",
        (quantile(0.99, "gpushare_pool_placement_seconds"), "a pass over the queue"),
        (quantile(0.99, "gpushare_pool_store_commit_seconds"), "a write to the store"),
        (quantile(0.99, "gpushare_pool_loop_lag_seconds"), "the event loop is late"),
        unit="s",
    ),
    lines(
        "Leader and troubles",
        (f"gpushare_pool_leader{HERE}", "leads"),
        (f"gpushare_pool_epoch{HERE}", "epoch"),
        (f"gpushare_pool_settled{HERE}", "settled"),
        (f"gpushare_pool_trouble{HERE}", "{{part}}"),
        (f"increase(gpushare_pool_audit_lost_total{HERE}[$__rate_interval])", "lost lines of the audit"),
    ),
    lines("Versions", (f"gpushare_pool_build_info{HERE}", "{{instance}} {{version}}")),
)

USE = (
    bars(
        "GPU hours by project",
        (
            f"sum by (project) (increase(gpushare_project_gpu_seconds_total{HERE}[$__range])) / 3600",
            "{{project}}",
        ),
        unit="h",
    ),
    bars(
        "GPU hours by user, where users are named",
        (f"sum by (user) (increase(gpushare_user_gpu_seconds_total{HERE}[$__range])) / 3600", "{{user}}"),
        unit="h",
    ),
    lines(
        "GPUs held by project",
        (f"sum by (project) (gpushare_project_held_ratio{HERE})", "{{project}}"),
        stacked=True,
    ),
    lines(
        "Quotas, in GPUs",
        (
            f"sum by (project, quota, model) (gpushare_project_quota_ratio{HERE})",
            "{{project}} {{quota}} {{model}}",
        ),
    ),
    bars(
        "Part of the held GPU time without work, by user",
        (
            f"{_of_range('gpushare_user_idle_gpu_seconds_total')} / "
            + _of_range("gpushare_user_gpu_seconds_total"),
            "{{user}}",
        ),
        unit="percentunit",
    ),
    lines(
        "Waits of granted requests",
        (quantile(0.5, "gpushare_queue_wait_seconds", "class"), "{{class}}, half"),
        (quantile(0.9, "gpushare_queue_wait_seconds", "class"), "{{class}}, 9 of 10"),
        unit="s",
    ),
    lines(
        "Ended leases by outcome",
        (
            f"sum by (outcome) (increase(gpushare_lease_duration_seconds_count{HERE}[$__rate_interval]))",
            "{{outcome}}",
        ),
        stacked=True,
    ),
    lines(
        "Granted and refused requests",
        (f"sum(increase(gpushare_grants_total{HERE}[$__rate_interval]))", "granted"),
        (f"sum by (reason) (increase(gpushare_refusals_total{HERE}[$__rate_interval]))", "{{reason}}"),
        (f"sum by (code) (increase(gpushare_gate_refusals_total{HERE}[$__rate_interval]))", "gate: {{code}}"),
    ),
    lines(
        "Leases that gave way, or used too much",
        (f"sum by (step) (increase(gpushare_preemptions_total{HERE}[$__rate_interval]))", "{{step}}"),
        (f"sum(increase(gpushare_over_limit_total{HERE}[$__rate_interval]))", "over their limit"),
    ),
)

DASHBOARDS = {
    "machine": ("gpushared: machines", "gpushare_build_info", MACHINE),
    "pool": ("gpushared: pool", "gpushare_pool_build_info", POOL),
    "use": ("gpushared: use by project", "gpushare_build_info", USE),
}


def dashboard(name: str) -> Json:
    """Return a dashboard as Grafana imports it."""
    title, instances, panels = DASHBOARDS[name]
    return {
        "uid": f"gpushared-{name}",
        "title": title,
        "tags": ["gpushared"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_source(), _instance(instances)]},
        "panels": _placed(panels),
    }


def _placed(panels: tuple[Panel, ...]) -> list[Json]:
    placed, column, row = [], 0, 0
    for number_of, panel in enumerate(panels, start=1):
        if column + panel.width > COLUMNS:
            column, row = 0, row + HEIGHT
        place = {"x": column, "y": row, "w": panel.width, "h": HEIGHT}
        placed.append({"id": number_of, "gridPos": place, **_panel(panel)})
        column += panel.width
    return placed


def _panel(panel: Panel) -> Json:
    custom = {"stacking": {"mode": "normal"}, "fillOpacity": 30} if panel.stacked else {}
    is_now = panel.kind != "timeseries"
    return {
        "title": panel.title,
        "type": panel.kind,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + place), "expr": expression, "legendFormat": legend, "instant": is_now}
            for place, (expression, legend) in enumerate(panel.queries)
        ],
    }


def _source() -> Json:
    return {"name": "datasource", "type": "datasource", "query": "prometheus"}


def _instance(metric: str) -> Json:
    return {
        "name": "instance",
        "type": "query",
        "datasource": SOURCE,
        "query": f"label_values({metric}, instance)",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
    }


if __name__ == "__main__":
    for each in DASHBOARDS:
        (FOLDER / f"{each}.json").write_text(json.dumps(dashboard(each), indent=1) + "\n")
