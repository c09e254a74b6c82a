"""Keep the history: what leases held and used, minute by minute, and a summary of each lease for ever."""

from gpushared.storage.history.history_file import HistoryFile, SqliteHistory

__all__ = ["HistoryFile", "SqliteHistory"]
