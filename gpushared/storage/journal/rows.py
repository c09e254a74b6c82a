"""Store projects, records of attempts, and contacts with coordinators, as rows."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gpushared.domain.jobs.attempt_log import Attempt
from gpushared.domain.jobs.node_messages import Contact
from gpushared.domain.scheduling.project_accounts import AccountsChange, ProjectAccounts
from gpushared.domain.scheduling.projects import Project, Quota
from gpushared.ports import JournalWrite
from gpushared.storage.records import from_json, to_json

_PUT_USAGE = """
    INSERT INTO usage (project, bucket, amount) VALUES (?, ?, ?)
    ON CONFLICT (project, bucket) DO UPDATE SET amount = excluded.amount"""
_PUT_TURN = "INSERT OR REPLACE INTO turn (project, at) VALUES (?, ?)"
_PUT_PROJECT = "INSERT INTO project (name, body) VALUES (?, ?)"
_KEPT_BUCKETS = 24 * 400
"""The unit is hours; use older than a year matters for no half-life that anybody chose."""
_PUT_ATTEMPT = """
    INSERT OR REPLACE INTO attempt (coordinator, job, number, final_at, body) VALUES (?, ?, ?, ?, ?)"""
_PUT_CONTACT = "INSERT OR REPLACE INTO contact (coordinator, body) VALUES (?, ?)"


def load_projects(db: sqlite3.Connection) -> ProjectAccounts:
    """Return the accounts of all projects."""
    usage = db.execute("SELECT project, bucket, amount FROM usage ORDER BY project, bucket").fetchall()
    turns = db.execute("SELECT project, at FROM turn ORDER BY project").fetchall()
    projects = db.execute("SELECT name, body FROM project ORDER BY name").fetchall()
    set_up = {name: project_from_json(name, body) for name, body in projects}
    return ProjectAccounts(tuple(usage), dict(turns), set_up)


def save_projects(db: sqlite3.Connection, changes: Iterable[AccountsChange]) -> None:
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


def load_attempts(db: sqlite3.Connection) -> tuple[Attempt, ...]:
    """Return all records that are not forgotten."""
    rows = db.execute("SELECT body FROM attempt ORDER BY coordinator, job, number").fetchall()
    return tuple(from_json(Attempt, body) for (body,) in rows)


def load_contacts(db: sqlite3.Connection) -> dict[str, Contact]:
    """Return the contact with each coordinator."""
    rows = db.execute("SELECT coordinator, body FROM contact ORDER BY coordinator").fetchall()
    return {coordinator: from_json(Contact, body) for coordinator, body in rows}


def save_attempts(db: sqlite3.Connection, writes: Sequence[JournalWrite]) -> None:
    """Write the changes, in order."""
    # A record that changes twice in one transaction is written once, in its last state.
    attempts = {(attempt.coordinator, attempt.key): attempt for write in writes for attempt in write.attempts}
    db.executemany(_PUT_ATTEMPT, map(_row, attempts.values()))
    db.executemany(_PUT_CONTACT, _contact_rows(writes))
    for before in [write.forgotten_before for write in writes if write.forgotten_before is not None]:
        db.execute("DELETE FROM attempt WHERE final_at < ?", (before,))


def _row(attempt: Attempt) -> tuple[str, str, int, float | None, str]:
    final_at = attempt.at if attempt.state.is_final else None
    return attempt.coordinator, attempt.key.job, attempt.key.number, final_at, to_json(Attempt, attempt)


def _contact_rows(writes: Iterable[JournalWrite]) -> Iterable[tuple[str, str]]:
    for write in writes:
        for coordinator, contact in write.contacts.items():
            yield coordinator, to_json(Contact, contact)
