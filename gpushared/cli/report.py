"""Write the bundle of ``gpushare doctor --report``: the facts that a helper needs, and no secrets."""

from __future__ import annotations

import json
import os
import platform
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from gpushared import __version__
from gpushared.cli.caller_checks import CallerFacts, without_user
from gpushared.cli.faults import UsageError
from gpushared.client import Client, DoctorReport, Lease, NodeStatus
from gpushared.domain.model.errors import GpushareError

SCHEMA = "gpushare.report/1"
STORIES = 20
VARIABLES = ("GPUSHARE_HOST", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CONFIG")
LEFT_OUT = "(left out)"
_SECRET = re.compile(r"secret|token|password|passwd|credential|(?:^|[_-])key(?:$|[_-])", re.IGNORECASE)


def refuse_existing(path: str) -> None:
    """Refuse, before any work, a path that exists: nothing is ever written over."""
    if os.path.lexists(path):
        raise UsageError(f"{path} exists", hint="choose another name; a report is never written over a file")


def write_report(path: str, facts: CallerFacts, items: Sequence[dict[str, Any]]) -> None:
    """Write the bundle so that only the caller may read it. Raises UsageError if the write fails."""
    text = json.dumps(_clean(_bundle(facts, items)), indent=2) + "\n"
    try:
        made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(made, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
            file.write(text)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}", hint="choose another place"
        ) from error


def _bundle(facts: CallerFacts, items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    problems: list[str] = []
    report = facts.report if isinstance(facts.report, DoctorReport) else DoctorReport({})
    answers = isinstance(facts.status, NodeStatus)
    if not answers:
        problems.append("the daemon did not answer: its part is missing")
    elif not report.settings:
        problems.append("the daemon tells its settings to trusted callers only")
    return {
        "schema": SCHEMA,
        "simulated": report.simulated,
        "created_at": time.time(),
        "versions": _versions(facts),
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "checks": list(items),
        "node": facts.status.to_json() if isinstance(facts.status, NodeStatus) else None,
        "settings": [one.to_json() for one in report.settings],
        "gpus": _try(problems, lambda: [gpu.to_json() for gpu in _client().gpus().gpus]) if answers else [],
        "leases": _try(problems, lambda: _leases(problems)) if answers else [],
        "problems": problems,
    }


def _client() -> Client:
    """Return a client that does not retry: answers that fail are no part of the bundle."""
    client = Client()
    client.retries = None
    return client


def _versions(facts: CallerFacts) -> dict[str, str | None]:
    return {
        "gpushare": __version__,
        "gpushared": facts.status.version if isinstance(facts.status, NodeStatus) else None,
        "docker_cli": None if isinstance(facts.docker, GpushareError) else facts.docker.says,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "system": _system(),
    }


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""


def _leases(problems: list[str]) -> list[dict[str, Any]]:
    """Return live leases, then the newest ended ones, with the stories that the caller may see."""
    client = _client()
    leases = client.leases(ended=True, limit=STORIES).leases[-2 * STORIES :]
    return [_lease(client, lease, problems) for lease in leases]


def _lease(client: Client, lease: Lease, problems: list[str]) -> dict[str, Any]:
    story = _try(problems, lambda: [entry.to_json() for entry in client.explain(lease.id).story])
    told = {key: value for key, value in lease.to_json().items() if key != "token"}  # of no use to others
    return {**told, "story": story}


def _try(problems: list[str], ask: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the answer; if it fails, name the problem in the bundle instead."""
    try:
        return ask()
    except GpushareError as error:
        problems.append(error.message)
        return []


def _clean(value: Any, name: str = "") -> Any:
    """Return the value without secrets: values with telling names, and users in URLs."""
    if isinstance(value, dict):
        named = value.get("name") if "section" in value else ""
        return {key: _clean(one, str(named) if key == "value" else key) for key, one in value.items()}
    if isinstance(value, list):
        return [_clean(one, name) for one in value]
    if not isinstance(value, str):
        return value
    return LEFT_OUT if _SECRET.search(name) else without_user(value)
