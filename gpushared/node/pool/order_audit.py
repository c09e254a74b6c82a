"""Write an audit line for each order of a pool's coordinator, in the name of the person who asked there.

The coordinator repeats its orders until they are answered. An order gets a line if it changed something here
or was refused, and not for each repetition.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gpushared.api.v1 import link_pb2
from gpushared.domain.jobs.job import AttemptState
from gpushared.domain.jobs.protocol import (
    CancelPart,
    Commit,
    GiveBack,
    Order,
    Place,
    Query,
    Report,
    StaleEpoch,
)
from gpushared.domain.model.errors import GpushareError, RequestError, StateConflict
from gpushared.storage.audit.line import NOBODY_HERE, Sink, digest_of, line_now

ORDER = "ORDER"
_NAMES: dict[type[Order], str] = {
    Place: "Place",
    Commit: "Commit",
    CancelPart: "Cancel",
    Query: "Query",
    GiveBack: "GiveBack",
}


class OrderAudit:
    """Write the audit lines. ``pool`` returns the name of the pool that this node is in."""

    def __init__(self, sink: Sink, pool: Callable[[], str]) -> None:
        self._sink = sink
        self._pool = pool
        self._drain = ("", "")

    def answered(self, order: Order, before: Report | None, answer: Report | StaleEpoch) -> None:
        """Write a line for an order that was taken, or whose coordinator no longer leads."""
        if isinstance(answer, StaleEpoch):
            self.refused(order, StateConflict(f"it is of epoch {order.epoch}, and {answer.epoch} was seen"))
        elif before is None and isinstance(order, Place) and answer.state is AttemptState.REFUSED:
            self.refused(order, StateConflict(answer.ending.reason if answer.ending else "refused"))
        elif before is None or before.revision != answer.revision:
            self._write(_NAMES[type(order)], str(order.key), _asker(order), digest=_digest(order))

    def refused(self, order: Order, error: GpushareError) -> None:
        """Write a line for an order that is invalid or does not fit this node now.

        An order that failed because a part is away is not refused, and gets no line.
        """
        if isinstance(error, RequestError | StateConflict):
            name, key = _NAMES[type(order)], str(order.key)
            self._write(name, key, _asker(order), digest=_digest(order), error=error)

    def drained(self, notice: link_pb2.DrainNotice) -> None:
        """Write a line if an administrator's drain of this node changed; each new link repeats the notice."""
        if (now := (notice.by, notice.reason)) != self._drain:
            self._drain = now
            self._write("Drain", "", notice.by, text=notice.reason or "takes work again")

    def tunnel(self, request: link_pb2.OpenTunnel, error: GpushareError | None) -> None:
        """Write a line for a person who reaches the gate as a job's account.

        The gate writes lines for the person's requests.
        """
        self._write("Tunnel", request.job_id, request.person, error=error)

    def trusting(
        self, take: Callable[[link_pb2.NewTrust], Awaitable[int]], generation: Callable[[], int]
    ) -> Callable[[link_pb2.NewTrust], Awaitable[int]]:
        """Return ``take`` with an added line for each change of the trust anchors."""

        async def take_and_note(trust: link_pb2.NewTrust) -> int:
            before = generation()
            now = await take(trust)
            if now != before:
                self._write("Trust", f"generation {now}", "", digest=digest_of(trust.anchors))
            return now

        return take_and_note

    def _write(
        self,
        name: str,
        subject: str,
        user: str,
        *,
        digest: str = "",
        text: str = "",
        error: GpushareError | None = None,
    ) -> None:
        pool = f"pool {self._pool()}"
        reason = text if error is None else error.message
        text = f"{reason}; by {pool}" if reason else f"by {pool}"
        line = line_now(
            NOBODY_HERE, user or pool, ORDER, name, name=subject, digest=digest, text=text, error=error
        )
        self._sink(line)


def _asker(order: Order) -> str:
    """Return the person who asked; empty if the coordinator acts by its own rules."""
    match order:
        case Place(spec=spec):
            return spec.owner.principal
        case CancelPart(by=by):
            return by
    return ""


def _digest(order: Order) -> str:
    return digest_of(order.spec.body.encode("utf-8", "surrogatepass")) if isinstance(order, Place) else ""
