"""Keep the durable memory of a node: leases and their stories in SQLite."""

from gpushared.journal.sqlite import SqliteJournal

__all__ = ["SqliteJournal"]
