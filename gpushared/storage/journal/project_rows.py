"""Store projects, their use and their turns, as rows."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from gpushared.domain.scheduling.project_accounts import ProjectAccounts, StandingChange
from gpushared.domain.scheduling.projects import Project, Quota

_PUT_USAGE = """
    INSERT INTO usage (project, bucket, amount) VALUES (?, ?, ?)
    ON CONFLICT (project, bucket) DO UPDATE SET amount = excluded.amount"""
_PUT_TURN = "INSERT OR REPLACE INTO turn (project, at) VALUES (?, ?)"
_PUT_PROJECT = "INSERT INTO project (name, body) VALUES (?, ?)"
_KEPT_BUCKETS = 24 * 400
"""The unit is hours; older use than a year counts for no half-life that anybody chose."""


def load(db: sqlite3.Connection) -> ProjectAccounts:
    """Return the whole standing."""
    usage = db.execute("SELECT project, bucket, amount FROM usage ORDER BY project, bucket").fetchall()
    turns = db.execute("SELECT project, at FROM turn ORDER BY project").fetchall()
    projects = db.execute("SELECT name, body FROM project ORDER BY name").fetchall()
    set_up = {name: project_from_json(name, body) for name, body in projects}
    return ProjectAccounts(tuple(usage), dict(turns), set_up)


def save(db: sqlite3.Connection, changes: Iterable[StandingChange]) -> None:
    """Write the changes, in order."""
    for change in changes:
        db.executemany(_PUT_USAGE, change.usage)
        if change.usage:
            newest = max(bucket for _, bucket, _ in change.usage)
            db.execute("DELETE FROM usage WHERE bucket < ?", (newest - _KEPT_BUCKETS,))
        db.executemany(_PUT_TURN, (change.turns or {}).items())
        if change.projects is not None:
            db.execute("DELETE FROM project")
            rows = [(name, project_to_json(project)) for name, project in change.projects.items()]
            db.executemany(_PUT_PROJECT, rows)


def project_to_json(project: Project) -> str:
    """Return a project without its name."""
    body = {
        "weight": project.weight,
        "users": sorted(project.users),
        "quota": asdict(project.quota),
        "models": {model: asdict(quota) for model, quota in sorted(project.models.items())},
    }
    return json.dumps(body, separators=(",", ":"))


def project_from_json(name: str, text: str) -> Project:
    """Return the project; raises ValueError or KeyError for a text that is none."""
    body: Mapping[str, Any] = json.loads(text)
    models = {model: Quota(**quota) for model, quota in body["models"].items()}
    return Project(name, body["weight"], frozenset(body["users"]), Quota(**body["quota"]), models)
