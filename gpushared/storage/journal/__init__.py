"""Keep the durable memory of a node: leases and their stories in SQLite."""

from gpushared.storage.journal.sqlite_journal import SqliteJournal

__all__ = ["SqliteJournal"]
