"""Serve the call ``Audit.List``."""

from __future__ import annotations

import math

from gpushared.api.v1 import audit_pb2
from gpushared.domain.model.errors import PermissionRefused, RequestError
from gpushared.domain.model.request import Caller
from gpushared.net.unary_json import Unary
from gpushared.storage.audit.audit_file import MAX_PAGE, Search
from gpushared.storage.audit.audit_log import AuditLog
from gpushared.storage.audit.line import FACTS, AuditLine

LISTED = 100


class AuditApi:
    """Show trusted callers all lines, and others their own."""

    def __init__(self, audit: AuditLog, *, simulated: bool) -> None:
        self._audit = audit
        self._simulated = simulated

    def calls(self) -> dict[str, Unary]:
        return {"gpushare.v1.Audit/List": Unary(audit_pb2.ListAuditRequest, self.list_lines)}

    async def list_lines(
        self, message: audit_pb2.ListAuditRequest, caller: Caller
    ) -> audit_pb2.ListAuditResponse:
        """Return a page of lines, oldest first."""
        lines = await self._audit.search(_search(message, caller))
        return audit_pb2.ListAuditResponse(
            lines=[_view(number, line) for number, line in lines],
            newest=lines[-1][0] if lines else message.after,
            trouble=self._audit.trouble,
            simulated=self._simulated,
        )


def _search(message: audit_pb2.ListAuditRequest, caller: Caller) -> Search:
    if message.user not in {"", caller.name, str(caller.uid)} and not caller.trusted:
        raise PermissionRefused(
            "you may see your own lines only", hint="root and members of trusted groups see all"
        )
    if not 0 <= message.limit <= MAX_PAGE:
        raise RequestError(f"a page of {message.limit} lines is not possible", hint=f"give 1 to {MAX_PAGE}")
    if math.isnan(message.since):
        raise RequestError("the time to begin at is not a number", hint="give Unix seconds")
    return Search(
        uid=None if caller.trusted else caller.uid,
        user=message.user if caller.trusted else "",
        since=message.since or None,
        refused=message.refused,
        container=message.container,
        after=message.after if message.HasField("after") else None,
        before=message.before or None,
        limit=message.limit or LISTED,
        hides_missing=not caller.trusted,
    )


def _view(number: int, line: AuditLine) -> audit_pb2.AuditLine:
    return audit_pb2.AuditLine(
        number=number,
        at=line.at,
        uid=line.uid,
        user=line.user,
        pid=line.origin.pid,
        executable=line.origin.executable,
        **{name: getattr(line, name) for name in FACTS},
    )
