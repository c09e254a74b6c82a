"""Name the keys of a pool's store below its prefix, and make requests on them.

``format`` says how the store is kept. ``epoch`` holds the newest epoch and who leads with it. ``leader``
exists while a leader lives: it goes with the leader's lease. ``coordinator/NAME`` describes a coordinator that
runs, and goes with its lease. ``record/KEY`` are the records.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import takewhile

from gpushared.api.etcd import kv_pb2, rpc_pb2
from gpushared.domain.model.errors import ConfigError
from gpushared.ports.job_store import Record, StoreUnavailable

VERSION = 1


@dataclass(frozen=True, slots=True)
class StoreFormat:
    """Hold how a store is kept.

    A revision of the store is etcd's own plus ``offset``, so that revisions go on where a store that moved
    into etcd had got to. ``filling`` is True until such a move is complete; ``moved_to`` says where the store
    went when it moved away. ``moved_host`` names the host if it went into a file there.
    """

    offset: int = 0
    filling: bool = False
    moved_to: str = ""
    moved_host: str = ""

    def to_bytes(self) -> bytes:
        others = {"filling": self.filling, "moved_to": self.moved_to, "moved_host": self.moved_host}
        facts = {"version": VERSION, "offset": self.offset}
        return json.dumps(facts | {name: value for name, value in others.items() if value}).encode()

    def check(self) -> None:
        """Raise ConfigError for a store that no coordinator may use."""
        if self.filling:
            raise ConfigError(
                "the store in etcd is not complete: a migration or a restore was interrupted",
                hint="run it again",
            )
        if self.moved_host:
            raise ConfigError(
                f"the store has moved to a file on {self.moved_host}; only the coordinator there can serve it",
                hint=f"systemctl disable --now gpushared-pool, on all hosts but {self.moved_host}; there, take "
                "[store] url out",
            )
        if self.moved_to:
            raise ConfigError(
                f"the store has moved to {self.moved_to}", hint="set [store] url to that, or migrate it back"
            )


def read_format(value: bytes) -> StoreFormat:
    """Raises ConfigError for a newer version, StoreUnavailable for what is no format."""
    try:
        facts = json.loads(value)
        version, offset = int(facts["version"]), int(facts["offset"])
        moved_to, moved_host = (str(facts.get(name, "")) for name in ("moved_to", "moved_host"))
        store_format = StoreFormat(offset, bool(facts.get("filling", False)), moved_to, moved_host)
    except (ValueError, KeyError, TypeError) as error:
        raise StoreUnavailable(
            "the store in etcd cannot be read: its format record is damaged", hint="restore a backup"
        ) from error
    if version > VERSION:
        raise ConfigError(
            f"the store in etcd has version {version}, this program knows up to {VERSION}",
            hint="install the newer gpushared again",
        )
    return store_format


@dataclass(frozen=True, slots=True)
class Keys:
    """Make the keys of one store; ``prefix`` ends with a slash."""

    prefix: str

    @property
    def format(self) -> bytes:
        return f"{self.prefix}format".encode()

    @property
    def epoch(self) -> bytes:
        return f"{self.prefix}epoch".encode()

    @property
    def leader(self) -> bytes:
        return f"{self.prefix}leader".encode()

    def coordinator(self, name: str) -> bytes:
        return f"{self.prefix}coordinator/{name}".encode()

    def record(self, key: str) -> bytes:
        return f"{self.prefix}record/{key}".encode()

    def text(self, key: bytes) -> str:
        """Return a record's own key."""
        return key[len(self.record("")) :].decode(errors="replace")  # others may write here, too

    def below(self, prefix: str) -> tuple[bytes, bytes]:
        """Return the first key of the records with this prefix, and the key after the last."""
        return range_of(self.record(prefix))


def range_of(first: bytes) -> tuple[bytes, bytes]:
    """Return the first key that begins with these bytes, and the key after the last."""
    return first, first[:-1] + bytes([first[-1] + 1])  # UTF-8 has no byte 0xff


def get(key: bytes) -> rpc_pb2.RequestOp:
    return rpc_pb2.RequestOp(request_range=rpc_pb2.RangeRequest(key=key))


def put(key: bytes, value: bytes, lease: int = 0) -> rpc_pb2.RequestOp:
    return rpc_pb2.RequestOp(request_put=rpc_pb2.PutRequest(key=key, value=value, lease=lease))


def delete(key: bytes, range_end: bytes = b"") -> rpc_pb2.RequestOp:
    return rpc_pb2.RequestOp(request_delete_range=rpc_pb2.DeleteRangeRequest(key=key, range_end=range_end))


def has_value(key: bytes, value: bytes) -> rpc_pb2.Compare:
    return rpc_pb2.Compare(result=rpc_pb2.Compare.EQUAL, target=rpc_pb2.Compare.VALUE, key=key, value=value)


def is_at(key: bytes, mod_revision: int) -> rpc_pb2.Compare:
    """Compare the revision of a key's last change; 0 means that there is no key."""
    return rpc_pb2.Compare(
        result=rpc_pb2.Compare.EQUAL, target=rpc_pb2.Compare.MOD, key=key, mod_revision=mod_revision
    )


def only(response: rpc_pb2.ResponseOp) -> kv_pb2.KeyValue | None:
    """Return the one key that was asked for, or None if it does not exist."""
    pairs = response.response_range.kvs
    return pairs[0] if pairs else None


def record_of(pair: kv_pb2.KeyValue, offset: int) -> Record:
    return Record(pair.value, pair.mod_revision + offset)


class KeyHalves:
    """Halve a range of keys again and again, by the bytes after what both its ends begin with."""

    WIDTH = 40

    def __init__(self, first: bytes, end: bytes) -> None:
        self.first = first
        """The first key of the part that is left."""
        same = (a == b for a, b in zip(first, end, strict=False))
        self._shared = first[: len(list(takewhile(bool, same)))]
        self._low, self._high = self._number(first), self._number(end)

    def middle(self) -> bytes | None:
        """Return the key in the middle of the part that is left, or None if the part is too small."""
        middle = (self._low + self._high) // 2
        if middle == self._low:
            return None
        return self._shared + middle.to_bytes(self.WIDTH, "big").rstrip(b"\0")

    def go_on(self, *, after: bool) -> None:
        """Keep the part after the middle, or the part before it."""
        middle = self.middle()
        assert middle is not None, "a part that is too small is not halved"
        if after:
            self.first, self._low = middle, (self._low + self._high) // 2
        else:
            self._high = (self._low + self._high) // 2

    def _number(self, key: bytes) -> int:
        return int.from_bytes(key[len(self._shared) :][: self.WIDTH].ljust(self.WIDTH, b"\0"), "big")
