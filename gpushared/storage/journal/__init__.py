"""Keep the durable memory of a node: leases and their stories in SQLite."""

from gpushared.storage.journal.journal_file import SqliteJournal

__all__ = ["SqliteJournal"]
