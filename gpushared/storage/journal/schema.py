"""Define the journal's tables. A journal of each released version is checked in beside the tests."""

from __future__ import annotations

from gpushared.domain.model.errors import JournalUnavailable
from gpushared.storage.sqlite.migrations import FileSchema
from gpushared.storage.sqlite.trouble import FileWords

WORDS = FileWords(
    noun="the journal",
    program="the daemon",
    error=JournalUnavailable,
    if_busy="is another gpushared running on this node?",
    if_damaged="restore it, or move it away and restart: running containers are found again by their labels",
    if_newer="install the newer gpushared again, or move the journal away to begin an empty one",
)


APPLICATION_ID = 0x67707573
"""The number is ``gpus`` in ASCII."""

_MIGRATIONS: tuple[tuple[str, ...], ...] = (
    # 1: leases, their stories, the counter
    (
        """CREATE TABLE lease (
            sequence INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            owner_uid INTEGER NOT NULL,
            state TEXT NOT NULL,
            ended_at REAL,
            body TEXT NOT NULL
        )""",
        "CREATE INDEX lease_open ON lease (sequence) WHERE ended_at IS NULL",
        "CREATE INDEX lease_ended ON lease (ended_at) WHERE ended_at IS NOT NULL",
        """CREATE TABLE story (
            number INTEGER PRIMARY KEY,
            lease INTEGER NOT NULL REFERENCES lease (sequence) ON DELETE CASCADE,
            at REAL NOT NULL,
            state TEXT NOT NULL,
            text TEXT NOT NULL
        )""",
        "CREATE INDEX story_lease ON story (lease)",
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
        "INSERT INTO meta VALUES ('next_sequence', 1)",
    ),
    # 2: drained GPUs
    (
        """CREATE TABLE drained (
            gpu TEXT PRIMARY KEY,
            reason TEXT NOT NULL,
            since REAL NOT NULL,
            by TEXT NOT NULL,
            sick INTEGER NOT NULL
        ) WITHOUT ROWID""",
    ),
    # 3: what projects used, their turns, and those that were set at run time
    (
        """CREATE TABLE usage (
            project TEXT NOT NULL,
            bucket INTEGER NOT NULL,
            amount INTEGER NOT NULL,
            PRIMARY KEY (project, bucket)
        ) WITHOUT ROWID""",
        "CREATE TABLE turn (project TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID",
        "CREATE TABLE project (name TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID",
    ),
    # 4: attempts to run jobs, and the coordinators by whose orders
    (
        """CREATE TABLE attempt (
            coordinator TEXT NOT NULL,
            job TEXT NOT NULL,
            number INTEGER NOT NULL,
            final_at REAL,
            body TEXT NOT NULL,
            PRIMARY KEY (coordinator, job, number)
        )""",
        "CREATE INDEX attempt_final ON attempt (final_at) WHERE final_at IS NOT NULL",
        "CREATE TABLE contact (coordinator TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID",
    ),
)

SCHEMA = FileSchema(APPLICATION_ID, _MIGRATIONS)
VERSION = SCHEMA.version
