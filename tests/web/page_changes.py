"""Apply changes of answers as the page does."""

from __future__ import annotations

from typing import Any

from gpushared.web.changes import Json


def applied(old: Json, change: Json) -> dict[str, Any]:
    """The answer after the change."""
    new = {**old, **change.get("set", {})}
    for name, list_change in change.get("lists", {}).items():
        items = {item[list_change["key"]]: item for item in (*old[name], *list_change["set"])}
        order = list_change.get("order", [item[list_change["key"]] for item in old[name]])
        new[name] = [items[key] for key in order]
    return {name: value for name, value in new.items() if value is not None}
