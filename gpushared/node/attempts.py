"""The node's end of the placement protocol: orders in, reports out, whoever the coordinator is.

What others use of it:

``await desk.take(order, coordinator)`` -> ``Report | StaleEpoch``: the answer, when it is durable.
``desk.reports(coordinator)`` -> ``tuple[Report, ...]``: of all attempts, for a hello.
``desk.report(coordinator, key)`` -> ``Report | None``: how one stands.
``desk.subscribe(coordinator, callback)``: ``callback(key)`` after each change of a record that no answer
told of; the returned function ends it. It is called in the event loop and must not wait.
``desk.seen(coordinator)`` -> ``Contact``: the highest epoch and revision of it that this node knows of.
``await desk.contact(coordinator, sent_at, ...)``: it acknowledged what was sent at ``boottime()`` then.
``await desk.check_fences()``: ends what waited for contact too long; due before anything is sent again.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable

from gpushared.domain.attempts import due_containers
from gpushared.domain.errors import GpushareError, NotFound, PermissionRefused, RequestError
from gpushared.domain.jobs.attempts import Attempts, report_of, reports
from gpushared.domain.jobs.contact import Contact
from gpushared.domain.jobs.key import AttemptKey
from gpushared.domain.jobs.model import Ending, EndKind, Owner
from gpushared.domain.jobs.node_messages import ContactMade, FencesLooked, OrderTaken
from gpushared.domain.jobs.protocol import Order, Place, Report, StaleEpoch, moved
from gpushared.domain.lease import ContainerId
from gpushared.domain.request import Caller
from gpushared.domain.units import shown
from gpushared.gate.body import parse_object, section, text
from gpushared.gate.policy.judge import check_gang_network
from gpushared.gate.policy.site import Policy
from gpushared.node.loop import Loop
from gpushared.serving.clock import boottime

log = logging.getLogger(__name__)

AccountOf = Callable[[Owner, str], Awaitable[Caller]]
"""As whom an owner's containers run here, by whose order. Raises NotFound, PermissionRefused for nobody."""
Callback = Callable[[AttemptKey], None]

_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""What may stand in the name of a container."""
MAX_NUMBER = 1 << 31
FENCE_SECONDS = 1.0


class AttemptDesk:
    """Takes orders, and tells how attempts stand."""

    def __init__(self, loop: Loop, account_of: AccountOf, boot: str) -> None:
        self._loop = loop
        self._account_of = account_of
        self._boot_id = boot
        self._subscribers: dict[str, list[Callback]] = {}
        self.policy = Policy()
        """The gate's, by which it will judge; what it is sure to refuse is not taken here."""
        self.on_change: Callable[[str, AttemptKey], None] = lambda _coordinator, _key: None
        """Called with each change, whoever the coordinator is."""
        self.look_first: Callable[[tuple[ContainerId, ...]], Awaitable[None]] = _not_looked
        """Has the core told of ends of these containers that it may not know yet."""

    async def take(self, order: Order, coordinator: str) -> Report | StaleEpoch:
        """What this node says to an order; asked again it says the same.

        ``coordinator`` is the pool's name, empty for the node's own book. An error of the tree means that
        nothing was decided: the order is to be said again.
        """
        if _JOB_ID.fullmatch(order.key.job) is None or not 0 < order.key.number < MAX_NUMBER:
            raise RequestError(f"{shown(str(order.key))} is no attempt to run a job")
        step = await self._loop.take(await self._event(order, coordinator))
        assert step.report is not None, "orders are answered"
        return self._told(step.report) if isinstance(step.report, Report) else step.report

    def reports(self, coordinator: str) -> tuple[Report, ...]:
        """All attempts of a coordinator, the oldest change first."""
        return tuple(self._told(report) for report in reports(self._book(coordinator)))

    def report(self, coordinator: str, key: AttemptKey) -> Report | None:
        """How one attempt stands, None where this node never heard of it."""
        record = self._book(coordinator).get(key)
        return None if record is None else self._told(report_of(record))

    def seen(self, coordinator: str) -> Contact:
        """What is known of a coordinator from before."""
        return self._loop.state.contacts.get(coordinator, Contact())

    def subscribe(self, coordinator: str, callback: Callback) -> Callable[[], None]:
        """Have the callback called with the key of each attempt that changed; returns what ends that."""
        callbacks = self._subscribers.setdefault(coordinator, [])
        callbacks.append(callback)
        return lambda: callbacks.remove(callback)

    def tell(self, coordinator: str, key: AttemptKey) -> None:
        """An attempt's record changed and is durable."""
        self.on_change(coordinator, key)
        for callback in list(self._subscribers.get(coordinator, ())):
            callback(key)

    async def contact(self, coordinator: str, sent_at: float, *, epoch: int = 0, revision: int = 0) -> None:
        """The coordinator acknowledged what was sent at ``sent_at``, by ``boottime()`` and never later.

        Whoever had waited too long for that before is ended first, and does not come back by it.
        """
        await self._look_at_due(sent_at)
        await self._loop.send(ContactMade(coordinator, self._boot_id, sent_at, epoch, revision))

    async def check_fences(self) -> None:
        """End the attempts whose coordinator may take them for dead by now."""
        if any(_is_fenced(book) for book in self._loop.state.attempts.values()):
            at = boottime()
            await self._look_at_due(at)
            await self._loop.send(FencesLooked(self._boot_id, at))

    async def _look_at_due(self, at: float) -> None:
        """After a freeze of this daemon its clock goes first, and the engine's news only wait to be read."""
        if containers := due_containers(self._loop.state, self._boot_id, at):
            await self.look_first(containers)

    async def watch_fences(self) -> None:
        """Check them every second, for ever."""
        while True:
            try:
                await self.check_fences()
            except GpushareError as error:
                log.debug("fences not looked at: %s", error)
            await asyncio.sleep(FENCE_SECONDS)

    def _told(self, report: Report) -> Report:
        """In the time of day: others do not know this machine's clock."""
        return moved(report, self._loop.state.day)

    def _book(self, coordinator: str) -> Attempts:
        return self._loop.state.attempts.get(coordinator, Attempts())

    async def _event(self, order: Order, coordinator: str) -> OrderTaken:
        if not isinstance(order, Place) or self._book(coordinator).get(order.key) is not None:
            return OrderTaken(order, coordinator)
        try:
            _check_texts(order)
            account = await self._account_of(order.spec.owner, coordinator)
            if order.gang:
                _check_network(order, self.policy)
        except (NotFound, PermissionRefused, RequestError) as error:
            refusal = Ending(EndKind.FAILED, error.message, hint=error.hint)
            return OrderTaken(order, coordinator, refusal=refusal)
        return OrderTaken(order, coordinator, account)


async def _not_looked(containers: tuple[ContainerId, ...]) -> None:
    """Nobody can look before the parts are wired."""
    log.debug("not looked at before their fences: %s", containers)


def _check_texts(order: Place) -> None:
    """JSON lets half a surrogate pair through, which no engine is told."""
    spec = order.spec
    try:
        f"{spec.name}{spec.image}{spec.platform}{spec.body}{spec.owner.principal}".encode()
    except UnicodeEncodeError as error:
        raise RequestError("the job's texts are no UTF-8") from error


def _check_network(order: Place, policy: Policy) -> None:
    """Before the others of its gang have started, so that it goes to nodes that let them meet."""
    host = section(parse_object(order.spec.body.encode()), "HostConfig")
    check_gang_network(text(host, "NetworkMode"), policy)


def _is_fenced(book: Attempts) -> bool:
    return any(record.spec is not None and record.spec.stop_after_seconds for record in book.live.values())
