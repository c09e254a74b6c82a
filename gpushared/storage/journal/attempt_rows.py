"""Store records of attempts, and contacts with coordinators, as rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from gpushared.domain.jobs.attempt_log import Attempt
from gpushared.domain.jobs.node_messages import Contact
from gpushared.ports import JournalWrite
from gpushared.storage.records import from_json, to_json

_PUT_ATTEMPT = """
    INSERT OR REPLACE INTO attempt (coordinator, job, number, final_at, body) VALUES (?, ?, ?, ?, ?)"""
_PUT_CONTACT = "INSERT OR REPLACE INTO contact (coordinator, body) VALUES (?, ?)"


def load_attempts(db: sqlite3.Connection) -> tuple[Attempt, ...]:
    """Return all records that are not forgotten."""
    rows = db.execute("SELECT body FROM attempt ORDER BY coordinator, job, number").fetchall()
    return tuple(from_json(Attempt, body) for (body,) in rows)


def load_contacts(db: sqlite3.Connection) -> dict[str, Contact]:
    """Return the contact with each coordinator."""
    rows = db.execute("SELECT coordinator, body FROM contact ORDER BY coordinator").fetchall()
    return {coordinator: from_json(Contact, body) for coordinator, body in rows}


def save(db: sqlite3.Connection, writes: Sequence[JournalWrite]) -> None:
    """Write the changes, in order."""
    # A record that changes twice in one transaction is written once, as it is at the end.
    attempts = {(one.coordinator, one.key): one for write in writes for one in write.attempts}
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
