"""Define the tables of the history, which node and coordinator share."""

from __future__ import annotations

from gpushared.domain.model.errors import HistoryUnavailable
from gpushared.storage.sqlite.file import FileSchema, FileTexts

TEXTS = FileTexts(
    noun="the history",
    program="the daemon",
    error=HistoryUnavailable,
    if_busy="is another gpushared running on this node?",
    if_damaged="move it away and restart: a new one begins, and no lease depends on it",
    if_newer="install the newer gpushared again, or move the history away to begin an empty one",
)
APPLICATION_ID = 0x67706869
"""The number is ``gphi`` in ASCII."""

_MIGRATIONS: tuple[tuple[str, ...], ...] = (
    # 1: sources, GPUs, leases, spans, waits, hours
    (
        # A source is a node with one journal: a new journal counts leases and spans anew. Times are of the
        # node's clock that counts time; the time of day is ahead of that by ahead_ms.
        """CREATE TABLE source (
            number INTEGER PRIMARY KEY,
            node TEXT NOT NULL,
            journal INTEGER NOT NULL,
            seen_ms INTEGER NOT NULL,
            ahead_ms INTEGER NOT NULL,
            batch INTEGER NOT NULL DEFAULT 0,
            UNIQUE (node, journal)
        )""",
        """CREATE TABLE gpu (
            source INTEGER NOT NULL,
            id TEXT NOT NULL,
            label TEXT NOT NULL,
            model TEXT NOT NULL,
            memory_mib INTEGER NOT NULL,
            PRIMARY KEY (source, id)
        ) WITHOUT ROWID""",
        """CREATE TABLE lease (
            source INTEGER NOT NULL,
            lease TEXT NOT NULL,
            owner_uid INTEGER NOT NULL,
            owner TEXT NOT NULL,
            project TEXT NOT NULL,
            lease_class TEXT NOT NULL,
            image TEXT NOT NULL,
            container_name TEXT NOT NULL,
            job TEXT NOT NULL,
            attempt INTEGER NOT NULL,
            pool TEXT NOT NULL,
            gpu_count INTEGER NOT NULL,
            memory_bytes INTEGER,
            memory_permille INTEGER,
            compute_permille INTEGER,
            models TEXT NOT NULL,
            isolation TEXT NOT NULL,
            priority INTEGER NOT NULL,
            time_limit_seconds INTEGER,
            created_at REAL NOT NULL,
            ended_at REAL,
            outcome TEXT NOT NULL,
            outcome_text TEXT NOT NULL,
            exit_code INTEGER,
            preemptions INTEGER NOT NULL,
            begun_anew INTEGER NOT NULL,
            restarts INTEGER NOT NULL,
            PRIMARY KEY (source, lease)
        ) WITHOUT ROWID""",
        "CREATE INDEX lease_ended ON lease (source, ended_at)",
        "CREATE INDEX lease_job ON lease (job) WHERE job != ''",
        # gpu is NULL for a wait; open ones are those of leases that still hold or wait.
        """CREATE TABLE span (
            source INTEGER NOT NULL,
            number INTEGER NOT NULL,
            lease TEXT NOT NULL,
            project TEXT NOT NULL,
            start_ms INTEGER NOT NULL,
            end_ms INTEGER NOT NULL,
            gpu TEXT,
            permille INTEGER NOT NULL,
            memory_mib INTEGER NOT NULL,
            PRIMARY KEY (source, number)
        ) WITHOUT ROWID""",
        "CREATE INDEX span_end ON span (end_ms)",
        "CREATE INDEX span_lease ON span (source, lease)",
        """CREATE TABLE open_span (
            source INTEGER NOT NULL,
            lease TEXT NOT NULL,
            project TEXT NOT NULL,
            start_ms INTEGER NOT NULL,
            end_ms INTEGER NOT NULL,
            gpu TEXT,
            permille INTEGER NOT NULL,
            memory_mib INTEGER NOT NULL
        )""",
        "CREATE INDEX open_span_source ON open_span (source)",
        """CREATE TABLE wait (
            source INTEGER NOT NULL,
            lease TEXT NOT NULL,
            reason TEXT NOT NULL,
            ms INTEGER NOT NULL,
            PRIMARY KEY (source, lease, reason)
        ) WITHOUT ROWID""",
        # lease is empty for the GPU as a whole; peak_mib is NULL until the memory was seen.
        """CREATE TABLE series (
            number INTEGER PRIMARY KEY,
            source INTEGER NOT NULL,
            lease TEXT NOT NULL,
            gpu TEXT NOT NULL,
            peak_mib INTEGER,
            UNIQUE (source, lease, gpu)
        )""",
        """CREATE TABLE use_hour (
            hour INTEGER NOT NULL,
            series INTEGER NOT NULL,
            seen_permille_ms INTEGER NOT NULL,
            active_permille_ms INTEGER NOT NULL,
            idle_permille_ms INTEGER NOT NULL,
            used_permille_ms INTEGER NOT NULL,
            use_max_permille INTEGER NOT NULL,
            memory_seen_mib_ms INTEGER NOT NULL,
            memory_used_mib_ms INTEGER NOT NULL,
            memory_ms INTEGER NOT NULL,
            memory_max_mib INTEGER NOT NULL,
            energy_mj INTEGER NOT NULL,
            minutes BLOB NOT NULL,
            PRIMARY KEY (hour, series)
        ) WITHOUT ROWID""",
        "CREATE INDEX use_hour_series ON use_hour (series, hour)",
        # The jobs of the coordinator that keeps this file: the pool's, or the node's own. Their times are of its
        # clock that counts time; the time of day is ahead of that by ahead_ms of the only row of job_clock.
        """CREATE TABLE job (
            job TEXT PRIMARY KEY,
            owner_uid INTEGER NOT NULL,
            owner TEXT NOT NULL,
            project TEXT NOT NULL,
            lease_class TEXT NOT NULL,
            name TEXT NOT NULL,
            image TEXT NOT NULL,
            node_count INTEGER NOT NULL,
            gpu_count INTEGER NOT NULL,
            memory_bytes INTEGER,
            memory_permille INTEGER,
            compute_permille INTEGER,
            time_limit_seconds INTEGER,
            submitted_at REAL NOT NULL,
            started_at REAL,
            ended_at REAL,
            outcome TEXT NOT NULL,
            outcome_text TEXT NOT NULL,
            exit_code INTEGER,
            attempts INTEGER NOT NULL,
            preemptions INTEGER NOT NULL,
            nodes TEXT NOT NULL,
            waited_ms INTEGER NOT NULL,
            queued_since REAL
        ) WITHOUT ROWID""",
        "CREATE INDEX job_ended ON job (ended_at)",
        "CREATE TABLE job_clock (at_ms INTEGER NOT NULL, ahead_ms INTEGER NOT NULL)",
        "INSERT INTO job_clock VALUES (0, 0)",
        """CREATE TABLE job_wait (
            job TEXT NOT NULL,
            reason TEXT NOT NULL,
            ms INTEGER NOT NULL,
            PRIMARY KEY (job, reason)
        ) WITHOUT ROWID""",
        # Hours before this one were dropped.
        "CREATE TABLE kept (first_hour INTEGER NOT NULL)",
        "INSERT INTO kept VALUES (0)",
        # The sums of the hours that were too old to be kept: a lease's figures stay for ever.
        """CREATE TABLE dropped_hours (
            series INTEGER PRIMARY KEY,
            seen_permille_ms INTEGER NOT NULL,
            active_permille_ms INTEGER NOT NULL,
            idle_permille_ms INTEGER NOT NULL,
            used_permille_ms INTEGER NOT NULL,
            use_max_permille INTEGER NOT NULL,
            memory_seen_mib_ms INTEGER NOT NULL,
            memory_used_mib_ms INTEGER NOT NULL
        )""",
    ),
)
SCHEMA = FileSchema(APPLICATION_ID, _MIGRATIONS)
