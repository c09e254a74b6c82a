"""Define the settings of metrics."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from gpushared.config.kinds import PATH_OR_EMPTY, Text, TextList, setting

LOOPBACK = "127.0.0.1"
NAMES_OF_PEOPLE = ("user", "image")


def metrics_address(text: str) -> tuple[str, int] | None:
    """Return the address and the port of ``9464``, ``127.0.0.1:9464`` or ``[::1]:9464``; None if it is none.

    Host names are not looked up, because a name service that hangs would hang the daemon.
    """
    host, _, port = text.rpartition(":")
    if not (port.isdecimal() and port.isascii() and 0 < int(port) < 2**16):
        return None
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        return (str(ipaddress.ip_address(bare)) if host else LOOPBACK), int(port)
    except ValueError:
        return None


LISTEN = Text("`ADDRESS:PORT`, a port, or empty", lambda text: not text or metrics_address(text) is not None)


@dataclass(frozen=True, slots=True)
class PoolMetricsConfig:
    """[Metrics for Prometheus](../how-to/monitor.md): `GET /metrics` on the coordinator's socket, and on TCP."""

    listen: str = setting(
        "", LISTEN, "Serve them here without TLS; a port alone is on loopback. Empty: on the socket only."
    )


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """[Metrics for Prometheus](../how-to/monitor.md): `GET /metrics` on the daemon's socket, and on TCP."""

    listen: str = setting(
        "", LISTEN, "Serve them here without TLS; a port alone is on loopback. Empty: on the socket only."
    )
    labels: tuple[str, ...] = setting(
        (),
        TextList(Text("`user` or `image`", lambda text: text in NAMES_OF_PEOPLE)),
        "What `listen` tells of people: with `user` the names of users, with `image` those of images. The "
        "socket tells everybody of the own leases only, and administrators of all.",
    )
    dcgm_job_mapping: str = setting(
        "",
        PATH_OR_EMPTY,
        "The folder that NVIDIA's dcgm-exporter reads by `--hpc-job-mapping-dir`: the daemon writes there "
        "which leases hold each GPU.",
    )
