"""The ``filters`` parameter of listings and events: a JSON object in a query string."""

from __future__ import annotations

import json

from gpushared.domain.errors import RequestError
from gpushared.domain.request import Caller
from gpushared.gate.body import parse_object, serialise
from gpushared.ports import LABEL_OWNER


def own_only(raw: str, caller: Caller) -> str:
    """The filters with one more, that only what is the caller's passes; the engine wants all labels to fit.

    Clients write lists (``{"label": ["a=b"]}``) or, the old way, sets (``{"label": {"a=b": true}}``).
    """
    filters = parse_object(raw.encode()) if raw else {}
    said: dict[str, list[str]] = {}
    for name, values in filters.items():
        chosen = [value for value, on in values.items() if on] if isinstance(values, dict) else values
        if not isinstance(chosen, list) or not all(isinstance(value, str) for value in chosen):
            raise RequestError(f"the filter {name} is not a list of strings: {json.dumps(values)}")
        said[name] = chosen
    own = f"{LABEL_OWNER}={caller.uid}"
    return serialise({**said, "label": [*said.get("label", []), own]}).decode()
