"""Define every error that a caller may see, in one tree.

    GpushareError
    ├── RequestError              what was asked makes no sense        invalid_argument     125
    │   └── NeverFits             this node could never grant it       failed_precondition  125
    ├── NotFound                  no such lease, container, preset     not_found            125
    ├── NotLoggedIn               a browser without a session          unauthenticated      125
    ├── PermissionRefused         somebody else's, or not allowed      permission_denied    125
    │   └── WrongCoordinator      no coordinator of this node's pool   permission_denied    125
    ├── StateConflict             right thing, wrong moment            failed_precondition  125
    ├── LimitReached              a bound of the daemon is reached     resource_exhausted   125
    │   └── NoRoom                it would wait, and is not to         resource_exhausted   125
    ├── Unavailable               a part outside the daemon is away    unavailable          125
    │   ├── AuditUnavailable
    │   ├── DaemonUnavailable
    │   ├── EngineUnavailable
    │   ├── GpusUnavailable
    │   ├── HistoryUnavailable
    │   ├── JournalUnavailable
    │   ├── NotLeader
    │   ├── OutboxUnavailable
    │   └── SharingUnavailable
    ├── TimedOut                  no answer in time                    deadline_exceeded    125
    ├── Unimplemented             another version has no such call     unimplemented        125
    ├── ConfigError               the configuration is wrong           invalid_argument     2
    └── InvalidTransition         a bug of ours, with the story        internal             125

Adapters translate foreign exceptions into this tree at their edge. The codes are the names of gRPC's
status codes as the Connect protocol spells them in JSON.
"""

from __future__ import annotations

from enum import StrEnum

from gpushared.light import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import ClassVar


class Code(StrEnum):
    """Name the status codes shared by gRPC and unary JSON.

    Source: https://connectrpc.com/docs/protocol#error-codes.
    """

    INVALID_ARGUMENT = "invalid_argument"
    FAILED_PRECONDITION = "failed_precondition"
    NOT_FOUND = "not_found"
    PERMISSION_DENIED = "permission_denied"
    UNAUTHENTICATED = "unauthenticated"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    UNAVAILABLE = "unavailable"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    UNIMPLEMENTED = "unimplemented"
    INTERNAL = "internal"


class GpushareError(Exception):
    """Carry a sentence that says what is wrong, and a hint that says what the user can do.

    All errors of the tree build on this.
    """

    code: ClassVar[Code] = Code.INTERNAL
    exit_code: ClassVar[int] = 125

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class RequestError(GpushareError):
    """The request makes no sense on any machine."""

    code = Code.INVALID_ARGUMENT


class NeverFits(RequestError):
    """The request makes sense, but this node could not grant it even when empty."""

    code = Code.FAILED_PRECONDITION


class NotFound(GpushareError):
    """The named thing does not exist, or the caller may not see it."""

    code = Code.NOT_FOUND


class NotLoggedIn(GpushareError):
    """The browser has no session, or one that is over."""

    code = Code.UNAUTHENTICATED


class PermissionRefused(GpushareError):
    """The caller may not do this."""

    code = Code.PERMISSION_DENIED


class WrongCoordinator(PermissionRefused):
    """The program at a coordinator's address is no coordinator of this pool."""


class StateConflict(GpushareError):
    """The thing exists, but is not in a state that allows this."""

    code = Code.FAILED_PRECONDITION


class LeasedAlready(StateConflict):
    """The container has a lease, or waits for one, by another request."""


class LimitReached(GpushareError):
    """A bound of the daemon is reached; try again later."""

    code = Code.RESOURCE_EXHAUSTED


class NoRoom(LimitReached):
    """The request would have to wait, and its owner wants it at once or not at all."""


class Unavailable(GpushareError):
    """A part outside the daemon does not answer."""

    code = Code.UNAVAILABLE


class DaemonUnavailable(Unavailable):
    """Nothing answers on the daemon's socket; clients see this error."""


class AuditUnavailable(Unavailable):
    """The audit cannot be written or read; nothing else depends on it."""


class EngineUnavailable(Unavailable):
    """The Docker engine does not answer."""


class EngineGone(EngineUnavailable):
    """The Docker engine has ended: nothing listens for it, or it broke a connection off.

    An engine that hangs is not gone.
    """


class HistoryUnavailable(Unavailable):
    """The history cannot be written or read; no lease depends on it."""


class GpusUnavailable(Unavailable):
    """The driver or a GPU does not answer."""


class JournalUnavailable(Unavailable):
    """The journal cannot be written, so nothing may be granted."""


class OutboxUnavailable(Unavailable):
    """The notifications that wait cannot be written or read; nothing else depends on them."""


class SharingUnavailable(Unavailable):
    """MPS or another means of sharing does not answer."""


class NotLeader(Unavailable):
    """This coordinator stands by: another one leads the pool, or none does yet.

    ``leader`` is the name of the one that leads, and ``epoch`` its epoch, 0 if unknown.
    """

    def __init__(self, message: str, *, hint: str = "", leader: str = "", epoch: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.leader = leader
        self.epoch = epoch


class TimedOut(GpushareError):
    """No answer came in time."""

    code = Code.DEADLINE_EXCEEDED


class Unimplemented(GpushareError):
    """The other side is of a version that has no such call."""

    code = Code.UNIMPLEMENTED


class ConfigError(GpushareError):
    """The configuration is wrong."""

    code = Code.INVALID_ARGUMENT
    exit_code = 2


class InvalidTransition(GpushareError):
    """A lease was to be moved where no rule leads, which is a bug of ours.

    The error carries the lease's story.
    """

    code = Code.INTERNAL

    def __init__(self, message: str, *, story: tuple[object, ...]) -> None:
        super().__init__(message, hint="please report this with the output of `gpushare why LEASE`")
        self.story = story

    def __str__(self) -> str:
        lines = "".join(f"\n  {entry}" for entry in self.story)
        return f"{super().__str__()}{lines}"


_OF_CODE: dict[str, type[GpushareError]] = {
    kind.code: kind
    for kind in (
        RequestError,
        StateConflict,
        NotFound,
        NotLoggedIn,
        PermissionRefused,
        LimitReached,
        Unavailable,
        TimedOut,
        Unimplemented,
    )
}


def kind_of_code(code: str, default: type[GpushareError] = GpushareError) -> type[GpushareError]:
    """Return the class of error that a peer raised, by its status code; ``default`` for unknown codes."""
    return _OF_CODE.get(code, default)


_HTTP_STATUS = {
    Code.INVALID_ARGUMENT: 400,
    Code.FAILED_PRECONDITION: 409,
    Code.NOT_FOUND: 404,
    Code.PERMISSION_DENIED: 403,
    Code.UNAUTHENTICATED: 401,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.UNAVAILABLE: 503,
    Code.DEADLINE_EXCEEDED: 504,
    Code.UNIMPLEMENTED: 501,
    Code.INTERNAL: 500,
}


def http_status(error: GpushareError) -> int:
    """Return the HTTP status that Docker clients and Connect clients both understand best."""
    return _HTTP_STATUS[error.code]
