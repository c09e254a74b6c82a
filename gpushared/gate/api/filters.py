"""Read and write the ``filters`` parameter of listings and events: a JSON object in a query string."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.request import Caller
from gpushared.gate.api.body import parse_object, serialise
from gpushared.ports import LABEL_OWNER

Filters = dict[str, list[str]]


def parse_filters(raw: str) -> Filters:
    """Clients write lists (``{"label": ["a=b"]}``) or, the old way, sets (``{"label": {"a=b": true}}``)."""
    said: Filters = {}
    for name, values in (parse_object(raw.encode()) if raw else {}).items():
        chosen = [value for value, on in values.items() if on] if isinstance(values, dict) else values
        if not isinstance(chosen, list) or not all(isinstance(value, str) for value in chosen):
            raise RequestError(f"the filter {name} is not a list of strings: {json.dumps(values)}")
        said[name] = chosen
    return said


def own_only(raw: str, caller: Caller) -> str:
    """Add a filter that only the caller's things pass; the engine wants all labels to fit."""
    return write_filters(with_own(parse_filters(raw), caller))


def with_own(filters: Mapping[str, Sequence[str]], caller: Caller) -> Filters:
    own = f"{LABEL_OWNER}={caller.uid}"
    said = {name: list(values) for name, values in filters.items()}
    return {**said, "label": [*filters.get("label", ()), own]}


def write_filters(filters: Mapping[str, Sequence[str]]) -> str:
    return serialise(filters).decode()
