"""Say what a failed call to etcd means: is it certain that nothing happened, and may another member do better?

The texts are those of etcd's ``rpctypes/error.go``, the same from 3.4 to 3.6.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, auto
from typing import assert_never

import grpc

from gpushared.domain.model.errors import GpushareError, RequestError, TimedOut
from gpushared.ports.job_store import Conflict, StoreUnavailable


class FailureKind(StrEnum):
    """Name the kinds of failures that callers tell apart."""

    MEMBER = auto()
    """This member cannot serve now; another one may."""
    TOKEN = auto()
    """The call's token is missing or too old."""
    DENIED = auto()
    COMPACTED = auto()
    """The revision is too old: etcd has compacted it."""
    NO_SPACE = auto()
    TOO_LARGE = auto()
    NO_LEASE = auto()
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class _Meaning:
    kind: FailureKind
    nothing_happened: bool = True


_MEANINGS = {
    "etcdserver: no leader": _Meaning(FailureKind.MEMBER),
    "etcdserver: not capable": _Meaning(FailureKind.MEMBER),
    "etcdserver: rpc not supported for learner": _Meaning(FailureKind.MEMBER),
    "etcdserver: too many requests": _Meaning(FailureKind.MEMBER),
    "etcdserver: invalid auth token": _Meaning(FailureKind.TOKEN),
    "etcdserver: revision of auth store is old": _Meaning(FailureKind.TOKEN),
    "etcdserver: user name is empty": _Meaning(FailureKind.TOKEN),
    "etcdserver: permission denied": _Meaning(FailureKind.DENIED),
    "etcdserver: user name not found": _Meaning(FailureKind.DENIED),
    "etcdserver: authentication failed, invalid user ID or password": _Meaning(FailureKind.DENIED),
    "etcdserver: mvcc: required revision has been compacted": _Meaning(FailureKind.COMPACTED),
    # A transaction that goes over the quota while it is applied is applied, and answered with this error
    # (etcd 3.4, etcdserver/apply.go, quotaApplierV3.Txn).
    "etcdserver: mvcc: database space exceeded": _Meaning(FailureKind.NO_SPACE, nothing_happened=False),
    "etcdserver: corrupt cluster": _Meaning(FailureKind.OTHER),
    "etcdserver: request is too large": _Meaning(FailureKind.TOO_LARGE),
    "etcdserver: requested lease not found": _Meaning(FailureKind.NO_LEASE),
}
_TOO_LARGE_TO_READ = "received message larger than max"
"""gRPC says so itself, here of an answer and in etcd of a request, which etcd then has not seen."""
_UNKNOWN_OUTCOMES = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.DATA_LOSS,
    }
)
MAX_TEXT = 200
QUORUM_HINT = "has etcd a quorum? see `etcdctl endpoint status --cluster`"
NO_SPACE_HINT = (
    "compact and defragment etcd or raise its --quota-backend-bytes, then run `etcdctl alarm disarm`"
)


class EtcdFailure(Exception):
    """A call to one member failed. ``nothing_happened`` is False if the call may have been carried out.

    ``is_silence`` is True if no answer came in time, and nothing else is known.
    """

    def __init__(
        self, kind: FailureKind, text: str, *, nothing_happened: bool, is_silence: bool = False
    ) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.nothing_happened = nothing_happened
        self.is_silence = is_silence

    @classmethod
    def of(cls, code: grpc.StatusCode, details: str) -> EtcdFailure:
        """Return the failure that a status of gRPC means."""
        meaning = _MEANINGS.get(details)
        if meaning is None and _TOO_LARGE_TO_READ in details.lower():
            meaning = _Meaning(FailureKind.TOO_LARGE)
        if meaning is None:
            unknown = code in _UNKNOWN_OUTCOMES
            meaning = _Meaning(FailureKind.MEMBER if unknown else FailureKind.OTHER, not unknown)
        text = details.removeprefix("etcdserver: ")[:MAX_TEXT] or code.name.lower()
        is_silence = code is grpc.StatusCode.DEADLINE_EXCEEDED
        if is_silence:
            text = "it does not answer in time"
        return cls(meaning.kind, text, nothing_happened=meaning.nothing_happened, is_silence=is_silence)

    def error(self, member: str) -> GpushareError:
        """Return the error of the tree that callers of the store get."""
        match self.kind:
            case FailureKind.NO_SPACE:
                return no_space()
            case FailureKind.TOO_LARGE:
                return RequestError(
                    "etcd refuses a transaction as too large", hint="has etcd a smaller --max-request-bytes?"
                )
            case FailureKind.COMPACTED:
                return Conflict("etcd has compacted changes that old", hint="load again")
            case FailureKind.DENIED | FailureKind.TOKEN:
                return StoreUnavailable(
                    f"etcd's member {member} refuses this coordinator: {self.text}",
                    hint="see [store] for user, password_file and cert_file, and give the user a role for "
                    "the store's prefix",
                )
            case FailureKind.MEMBER | FailureKind.NO_LEASE | FailureKind.OTHER:
                if not self.nothing_happened:
                    return TimedOut(
                        f"etcd's member {member} did not say if it has written: {self.text}",
                        hint=QUORUM_HINT,
                    )
                return StoreUnavailable(
                    f"etcd does not serve: {member}: {self.text}",
                    hint=QUORUM_HINT,
                )
            case _:
                assert_never(self.kind)


def no_space() -> StoreUnavailable:
    return StoreUnavailable(
        "etcd's database is full (alarm NOSPACE), and takes no writes", hint=NO_SPACE_HINT
    )
