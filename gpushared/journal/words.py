"""Name the journal's file in messages."""

from gpushared.domain.model.errors import JournalUnavailable
from gpushared.sqlite.trouble import Words

WORDS = Words(
    noun="the journal",
    program="the daemon",
    error=JournalUnavailable,
    if_busy="is another gpushared running on this node?",
    if_damaged="restore it, or move it away and restart: running containers are found again by their labels",
    if_newer="install the newer gpushared again, or move the journal away to begin an empty one",
)
