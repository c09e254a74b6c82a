"""Serve ``gpushare version``: show the versions of this client, the daemon, and the engine behind it."""

from __future__ import annotations

from gpushared import __version__
from gpushared.cli.errors import report
from gpushared.cli.listing import Listing, Options, Screen
from gpushared.cli.table import Column, Row
from gpushared.client import Client, EngineStatus, NodeStatus
from gpushared.domain.model.errors import GpushareError


def _row(status: NodeStatus, engine: EngineStatus) -> Row:
    return {
        "client": __version__,
        "daemon": status.version,
        "node": status.node,
        "engine": engine.version,
        "api": engine.api_version,
        "gpu-mechanism": engine.gpu_mechanism,
        "cgroup": f"v{engine.cgroup_version}" if engine.cgroup_version else "",
    }


def fetch(client: Client, options: Options) -> Screen:  # noqa: ARG001 - a listing's signature
    """Fetch the versions; without a daemon show only the client's, and tell by the exit code."""
    exit_code = 0
    client.retries = None
    try:
        status = client.status()
    except GpushareError as error:
        exit_code, status = report(error), NodeStatus({})
    engine = status.engine or EngineStatus({})
    troubles = [*status.troubles, *([engine.trouble] if engine.trouble else [])]
    return Screen(
        rows=[_row(status, engine)],
        items=[{"client": __version__, "daemon": status.to_json() if exit_code == 0 else None}],
        ids=[__version__],
        simulated=status.simulated,
        notes=[f"trouble: {trouble}" for trouble in dict.fromkeys(troubles)],
        exit_code=exit_code,
    )


LISTING = Listing(
    name="version",
    details="""`gpushare --version` shows the client's alone and asks nobody.

\b
Examples:
  gpushare version
  gpushare version -o json
""",
    schema="gpushare.version/1",
    columns=(
        Column("client"),
        Column("daemon"),
        Column("node"),
        Column("engine"),
        Column("api"),
        Column("gpu-mechanism"),
        Column("cgroup"),
    ),
    fetch=fetch,
)
