"""Define the audit's messages."""

from __future__ import annotations

from gpushared.client.messages import Message


class AuditLine(Message):
    """Hold one request; ``code`` is empty if the daemon did not refuse it."""

    number: int = 0
    at: float = 0.0
    uid: int = 0
    user: str = ""
    pid: int = 0
    executable: str = ""
    method: str = ""
    endpoint: str = ""
    container: str = ""
    name: str = ""
    digest: str = ""
    status: int = 0
    code: str = ""
    text: str = ""
    more: int = 0


class AuditPage(Message):
    """The answer of ``Audit.List``, oldest line first."""

    lines: tuple[AuditLine, ...] = ()
    newest: int = 0
    trouble: str = ""
    simulated: bool = False
