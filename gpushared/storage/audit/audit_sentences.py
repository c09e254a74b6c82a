"""Write a line of the audit for journald and for the ordinary log."""

from __future__ import annotations

from gpushared.storage.audit.folding import WINDOW_SECONDS
from gpushared.storage.audit.line import AuditLine

MESSAGE_ID = "6c2f5c1ad9d84f5db2f0e7d8a1b3c471"
"""`journalctl MESSAGE_ID=` finds all lines by this id."""
NOTICE, INFO = "5", "6"


def sentence(line: AuditLine) -> str:
    """Write the line for people."""
    about = f" name={line.name!r}" if line.name else ""
    about += f" container={line.container[:12]}" if line.container else ""
    said = f"{line.user} (uid {line.uid}, pid {line.origin.pid} {line.origin.executable or '-'})"
    answered = f"refused {line.status} {line.code}" if line.refused else f"{line.status or 'no answer'}"
    text = f": {line.text}" if line.text else ""
    return f"audit {said} {line.method} {line.endpoint}{about} {answered}{text}{more(line)}"


def more(line: AuditLine) -> str:
    """Word the number of other lines that this line stands for."""
    if not line.more:
        return ""
    return f" (and {line.more} more like it by uid {line.uid} within {WINDOW_SECONDS:.0f} s)"


def fields_of(line: AuditLine) -> dict[str, str]:
    """Return the line as journald's fields; an empty field is left out."""
    fields = {
        "MESSAGE": sentence(line),
        "MESSAGE_ID": MESSAGE_ID,
        "PRIORITY": NOTICE if line.refused else INFO,
        "SYSLOG_IDENTIFIER": "gpushared",
        "GPUSHARE_UID": str(line.uid),
        "GPUSHARE_USER": line.user,
        "GPUSHARE_PID": str(line.origin.pid or ""),
        "GPUSHARE_EXE": line.origin.executable,
        "GPUSHARE_METHOD": line.method,
        "GPUSHARE_ENDPOINT": line.endpoint,
        "GPUSHARE_CONTAINER": line.container,
        "GPUSHARE_NAME": line.name,
        "GPUSHARE_DIGEST": line.digest,
        "GPUSHARE_STATUS": str(line.status),
        "GPUSHARE_CODE": line.code,
        "GPUSHARE_TEXT": line.text,
        "GPUSHARE_MORE": str(line.more or ""),
    }
    return {name: value for name, value in fields.items() if value}
