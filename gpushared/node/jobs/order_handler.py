"""Serve the node's end of the placement protocol, for any coordinator: orders in, reports out.

Other parts use these methods:

``await order_handler.take(order, coordinator)`` -> ``Report | StaleEpoch``: answer an order when it is durable.
``order_handler.reports(coordinator)`` -> ``tuple[Report, ...]``: report all attempts, for a registration.
``order_handler.report(coordinator, key)`` -> ``Report | None``: report one attempt.
``order_handler.subscribe(coordinator, callback)``: call ``callback(key)`` after each change of a record that no
answer reported; the returned function ends that. The callback runs in the event loop and must not wait.
``order_handler.newest_contact(coordinator)`` -> ``Contact``: return the coordinator's highest epoch and revision that
this node knows.
``await order_handler.contact(coordinator, sent_at, ...)``: note that the coordinator acknowledged a message that was
sent at ``boottime()`` ``sent_at``.
``await order_handler.check_fences()``: end the attempts that waited for contact too long; due before the node sends
anything again.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable

from gpushared.daemon.clocks import boottime
from gpushared.domain.jobs.attempt_log import AttemptLog, fenced, report_of, reports
from gpushared.domain.jobs.job import Ending, EndKind, Owner
from gpushared.domain.jobs.node_messages import Contact, ContactMade, FencesLooked, OrderTaken
from gpushared.domain.jobs.protocol import Order, Place, Report, StaleEpoch, moved
from gpushared.domain.leases.job_attempts import due_containers
from gpushared.domain.model.errors import GpushareError, NotFound, PermissionRefused, RequestError
from gpushared.domain.model.lease import AttemptKey, ContainerId
from gpushared.domain.model.request import Caller
from gpushared.domain.model.units import shown
from gpushared.gate.api.body import parse_object, section, text
from gpushared.gate.api.site import SitePolicy
from gpushared.gate.policy.network_rules import check_gang_network
from gpushared.node.runtime.loop import Loop

log = logging.getLogger(__name__)

AccountOf = Callable[[Owner, str], Awaitable[Caller]]
"""Find the account for an owner's containers under a coordinator's orders.

Raises NotFound, PermissionRefused if the owner has no account here.
"""
Callback = Callable[[AttemptKey], None]

_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""A job's id becomes part of a container's name, and may have only the characters that fit there."""
MAX_NUMBER = 1 << 31
FENCE_SECONDS = 1.0


class OrderHandler:
    """Take orders, and report the state of attempts."""

    def __init__(self, loop: Loop, account_of: AccountOf, boot: str) -> None:
        self._loop = loop
        self._account_of = account_of
        self._boot_id = boot
        self._subscribers: dict[str, list[Callback]] = {}
        self.policy = SitePolicy()
        """The gate's policy. An order that the gate is sure to refuse is refused here."""
        self.on_change: Callable[[str, AttemptKey], None] = lambda _coordinator, _key: None
        """This function is called with each change under any coordinator."""
        self.inspect_first: Callable[[tuple[ContainerId, ...]], Awaitable[None]] = _not_inspected
        """This function reports ends of these containers to the core, which may not know them yet."""

    async def take(self, order: Order, coordinator: str) -> Report | StaleEpoch:
        """Answer an order; the same order gets the same answer again.

        ``coordinator`` is the pool's name, empty for the node's own jobs. An error of the tree means that
        nothing was decided: the coordinator must send the order again.
        """
        if _JOB_ID.fullmatch(order.key.job) is None or not 0 < order.key.number < MAX_NUMBER:
            raise RequestError(f"{shown(str(order.key))} is no attempt to run a job")
        step = await self._loop.take(await self._event(order, coordinator))
        assert step.report is not None, "orders are answered"
        return self._in_day_time(step.report) if isinstance(step.report, Report) else step.report

    def reports(self, coordinator: str) -> tuple[Report, ...]:
        """Report all attempts of a coordinator, the oldest change first."""
        return tuple(self._in_day_time(report) for report in reports(self._attempt_log(coordinator)))

    def report(self, coordinator: str, key: AttemptKey) -> Report | None:
        """Report one attempt; return None if this node never saw it."""
        record = self._attempt_log(coordinator).get(key)
        return None if record is None else self._in_day_time(report_of(record))

    def newest_contact(self, coordinator: str) -> Contact:
        """Return the newest contact with a coordinator; an empty one if there was none."""
        return self._loop.state.contacts.get(coordinator, Contact())

    def subscribe(self, coordinator: str, callback: Callback) -> Callable[[], None]:
        """Call the callback with the key of each attempt that changed; return a function that ends this."""
        callbacks = self._subscribers.setdefault(coordinator, [])
        callbacks.append(callback)
        return lambda: callbacks.remove(callback)

    def notify_subscribers(self, coordinator: str, key: AttemptKey) -> None:
        """Notify the subscribers that an attempt's record changed and is durable."""
        self.on_change(coordinator, key)
        for callback in list(self._subscribers.get(coordinator, ())):
            callback(key)

    async def contact(self, coordinator: str, sent_at: float, *, epoch: int = 0, revision: int = 0) -> None:
        """Note that the coordinator acknowledged a message sent at ``sent_at``, by ``boottime()`` or earlier.

        An attempt that had already waited too long for contact is ended first, and this contact does not
        bring it back.
        """
        await self._inspect_due(sent_at)
        await self._loop.send(ContactMade(coordinator, self._boot_id, sent_at, epoch, revision))

    async def check_fences(self) -> None:
        """End the attempts whose coordinator may take them for dead by now."""
        if any(map(fenced, self._loop.state.attempts.values())):
            at = boottime()
            await self._inspect_due(at)
            await self._loop.send(FencesLooked(self._boot_id, at))

    async def _inspect_due(self, at: float) -> None:
        """Look first at the containers of attempts that are due.

        After a freeze of this daemon its clock goes on at once, while the engine's events are still unread.
        """
        if containers := due_containers(self._loop.state, self._boot_id, at):
            await self.inspect_first(containers)

    async def watch_fences(self) -> None:
        """Check the fences every second, for ever."""
        while True:
            try:
                await self.check_fences()
            except GpushareError as error:
                log.debug("fences not looked at: %s", error)
            await asyncio.sleep(FENCE_SECONDS)

    def _in_day_time(self, report: Report) -> Report:
        """Return the report with times of day: other machines do not know this machine's clock."""
        return moved(report, self._loop.state.day)

    def _attempt_log(self, coordinator: str) -> AttemptLog:
        return self._loop.state.attempts.get(coordinator, AttemptLog())

    async def _event(self, order: Order, coordinator: str) -> OrderTaken:
        if not isinstance(order, Place) or self._attempt_log(coordinator).get(order.key) is not None:
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


async def _not_inspected(containers: tuple[ContainerId, ...]) -> None:
    """Do nothing, because no look is possible before the parts are wired."""
    log.debug("not looked at before their fences: %s", containers)


def _check_texts(order: Place) -> None:
    """Raise RequestError for half a surrogate pair, which JSON lets through and no engine may get."""
    spec = order.spec
    try:
        f"{spec.name}{spec.image}{spec.platform}{spec.body}{spec.owner.principal}".encode()
    except UnicodeEncodeError as error:
        raise RequestError("the job's texts are no UTF-8") from error


def _check_network(order: Place, policy: SitePolicy) -> None:
    """Refuse a gang's network before its other parts start, so that the gang goes to nodes that allow it."""
    host = section(parse_object(order.spec.body.encode()), "HostConfig")
    check_gang_network(text(host, "NetworkMode"), policy)
