"""Turn a call's messages into versions of its answer, each with the change from the version before it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Any

from google.protobuf.message import Message

from gpushared.net.message_json import as_json
from gpushared.web.changes import change_of

DIGEST_BYTES = 6
ITEMS_KEPT = 2048
"""Keep this many items of lists as JSON, for all users: most of them see the same of most leases."""


@dataclass(frozen=True)
class Answer:
    """Hold one version of an answer.

    ``digest`` identifies the call, its request and the answer, also over a restart of the daemon.
    """

    digest: str
    revision: str
    content: Mapping[str, Any]
    before: str = ""
    """The digest of the version before this one; empty for the first."""
    change: str = field(default="", repr=False)
    """The JSON of the members of the change from there, without braces."""

    @cached_property
    def state_members(self) -> str:
        """Return the JSON of the members of the whole answer, without braces."""
        return f'"answer": {json.dumps(self.content)}'

    def change_members(self, digest: str, has: Answer | None) -> str | None:
        """Return the JSON of the members of the change for a page with that version, without braces.

        None means that nothing is known of the page's version but its digest.
        """
        if digest and digest == self.before:
            return self.change
        return None if has is None else _members(change_of(has.content, self.content))


class AnswerVersions:
    """Make the versions of one call's answer. What did not change is neither written as JSON nor compared."""

    def __init__(self, call: str, request: Message) -> None:
        self.newest: Answer | None = None
        self._salt = call.encode() + b"\0" + _bytes(request) + b"\0"
        self._written = b""

    def take(self, message: Message, revision: str) -> bool:
        """Take a new answer; return False if it is the same as the newest version."""
        written = _bytes(message)
        old = self.newest
        if old is not None and written == self._written:
            return False
        self._written = written
        digest = blake2b(self._salt + written, digest_size=DIGEST_BYTES).hexdigest()
        content = self._content(message)
        if old is None:
            self.newest = Answer(digest, revision, content)
        else:
            change = _members(change_of(old.content, content))
            self.newest = Answer(digest, revision, content, old.digest, change)
        return True

    def _content(self, message: Message) -> dict[str, Any]:
        lists = [each for each in message.DESCRIPTOR.fields if _is_list(each)]
        rest = type(message)()
        rest.CopyFrom(message)
        for list_field in lists:
            rest.ClearField(list_field.name)
        content = as_json(rest)
        for list_field in lists:
            items: Sequence[Message] = getattr(message, list_field.name)
            content[list_field.name] = [
                # typeshed's Message.__hash__ hides that the class itself can be hashed
                _item(type(item), _bytes(item))  # type: ignore[arg-type]
                for item in items
            ]
        return content


@lru_cache(maxsize=ITEMS_KEPT)
def _item(kind: type[Message], written: bytes) -> Mapping[str, Any]:
    """Return an item as JSON. The same object for the same item makes the comparison of lists cheap."""
    return as_json(kind.FromString(written))


def _members(change: Mapping[str, Any]) -> str:
    return json.dumps(change)[1:-1]


def _bytes(message: Message) -> bytes:
    return message.SerializeToString(deterministic=True)


def _is_list(descriptor: Any) -> bool:
    """Return True if a field's descriptor is of a list of messages. For protobuf a map is one too."""
    is_repeated: bool = descriptor.message_type is not None and descriptor.is_repeated
    return is_repeated and not descriptor.message_type.GetOptions().map_entry
