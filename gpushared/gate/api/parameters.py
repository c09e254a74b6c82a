"""Check query parameters, filters, and the options of ``ps`` that a confined caller gives."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpushared.domain.model.errors import PermissionRefused, RequestError
from gpushared.domain.model.request import Caller
from gpushared.domain.model.units import shown
from gpushared.gate.api.body import parse_object, serialise
from gpushared.gate.api.routes import Route, RouteAction, Target
from gpushared.ports import LABEL_OWNER

REPEATABLE = frozenset({"names", "platform", "type", "changes"})
FLAG = r"[A-Za-z0-9]{0,8}"
NUMBER = r"-?[0-9]{0,10}"
WORD = r"[A-Za-z0-9+-]{0,64}"
TIME = r"[A-Za-z0-9.:+-]{0,64}"
LINE = r"[ -~]{0,512}"
LONG = r"[^\0]{0,65536}"

_WORDS: Mapping[str, str] = {
    FLAG: "all size stream one-shot v force logs stdin stdout stderr follow timestamps details digests"
    " manifests shared-size identity verbose noOverwriteDirNonDir copyUIDGID statement"
    # The Docker SDK for Python sends these; no engine reads the first two.
    " trunc_cmd only_ids link",
    NUMBER: "limit h w t",
    WORD: "signal condition tail scope",
    TIME: "since until",
    LINE: "name detachKeys ps_args platform fromImage tag names term type fromSrc repo",
    LONG: "filters path message changes",
}
ONLY_NO = frozenset({"link"})
NO = re.compile(r"0|no|false|none|", re.IGNORECASE)
"""The engine takes these words for no."""
FORMS: Mapping[str, re.Pattern[str]] = {
    name: re.compile(form, re.DOTALL) for form, names in _WORDS.items() for name in names.split()
}


def drop_unknown(route: Route, target: Target) -> tuple[Target, list[str]]:
    """Return the target without the parameters that engines do not read, and the names of these.

    A request that only trusted callers may make stays as it is.
    """
    if route.action in {RouteAction.TRUSTED, RouteAction.BUILD}:
        return target, []
    known = route.query | route.closed
    dropped = sorted({name for name, _ in target.query} - known)
    return replace(target, query=tuple(each for each in target.query if each[0] in known)), dropped


def check_parameters(route: Route, target: Target) -> None:
    """Raise for a parameter that is not for confined callers, is given twice, or has a form that none has."""
    seen: set[str] = set()
    for name, value in target.query:
        if name not in route.query or (name in ONLY_NO and not NO.fullmatch(value)):
            raise PermissionRefused(f"the parameter {name} is not for you")
        if name in seen and name not in REPEATABLE:
            raise RequestError("a parameter is given twice")
        seen.add(name)
        if not FORMS[name].fullmatch(value):
            raise RequestError(f"{shown(value)} is no value of the parameter {name}")


COLUMNS = r"pid(,[a-z_%]+)*"
UNIX = r"-[AadefFjlLyTHmcw]+"
BSD = r"[auxfjlvsmcwSH]+"
ARGUMENTS = re.compile(rf"(({UNIX}|{BSD}|-aux|(-[Aae]*o|[ax]*o) ?{COLUMNS})( |$))*")


def check_ps(arguments: str) -> None:
    """Raise ``PermissionRefused`` for options that could show more than the container's own processes."""
    if not ARGUMENTS.fullmatch(arguments):
        raise PermissionRefused(
            f"`ps {arguments}` is not for you",
            hint="try -ef, aux, or -o with pid as its first column and columns without titles",
        )


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
