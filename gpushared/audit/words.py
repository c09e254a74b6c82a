"""Name the audit's file in messages."""

from gpushared.domain.model.errors import AuditUnavailable
from gpushared.sqlite.trouble import Words

WORDS = Words(
    noun="the audit",
    program="the daemon",
    error=AuditUnavailable,
    if_busy="is another gpushared running on this node?",
    if_damaged="move it away and restart: a new one is begun",
    if_newer="install the newer gpushared again, or move the audit away to begin an empty one",
)
