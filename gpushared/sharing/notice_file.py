"""Write the file in which a container can read that its lease will end. Pure.

``docs/reference/environment.md`` documents its fields. Within one number of the schema fields are only added.
"""

from __future__ import annotations

import json

from gpushared.domain.model.lease import Notice

SCHEMA = "gpushare.notice/1"


def notice_file(notice: Notice) -> str:
    """Return the file's text."""
    ends_at = notice.until if notice.ends else None
    content = {"schema": SCHEMA, "kind": notice.kind, "ends_at": ends_at, "text": notice.text}
    return json.dumps(content, indent=1) + "\n"
