"""All of a coordinator's trust in one piece, for whoever puts the coordinator together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from gpushared.domain.jobs.job import NodeName
from gpushared.domain.model.errors import GpushareError, StateConflict
from gpushared.net.call_audit import CallAudit
from gpushared.net.call_checks import CallAuthenticator
from gpushared.pool.trust.api_tokens import ApiTokens
from gpushared.pool.trust.authority import NODE_SECONDS, Authority
from gpushared.pool.trust.callers import Callers
from gpushared.pool.trust.certificate_status import CertificateStatus
from gpushared.pool.trust.join_tokens import JoinTokens
from gpushared.pool.trust.link_guard import LinkGuard
from gpushared.pool.trust.node_enrolment import Enlisting, Enrolled
from gpushared.pool.trust.people import People
from gpushared.pool.trust.server_identity import ServerIdentity
from gpushared.pool.trust.signature_log import LEDGER_FILE, LedgerMember, SignatureLog
from gpushared.ports.job_store import JobStore

log = logging.getLogger(__name__)

CA_FOLDER = "ca"
LOOK_SECONDS = 10.0
SHOWN = 5


async def nobody_told(_: NodeName, __: tuple[str, ...]) -> None:
    """Ignore new members, if nobody needs to know of them."""


class PoolTrust:
    """``people`` is asked at each call, so that a reload counts at once.

    ``store``: where tokens are kept; ``epoch``: of the coordinator, which must lead before ``load``.
    """

    def __init__(
        self,
        state_dir: Path,
        store: JobStore,
        *,
        epoch: Callable[[], int],
        people: Callable[[], People],
        now: Callable[[], float],
        hosts: Sequence[str] = (),
        enrolled: Enrolled = nobody_told,
        doors: CallAuthenticator | None = None,
        audit: CallAudit | None = None,
        node_seconds: int = NODE_SECONDS,
    ) -> None:
        """Raises ConfigError where there is no authority, or it cannot be read."""
        folder = state_dir / CA_FOLDER
        self.now = now
        self.people = people
        self.authority = Authority.load(folder, node_seconds)
        self.ledger = SignatureLog(folder / LEDGER_FILE)
        self.standing = CertificateStatus(self.authority, self.ledger)
        self.join_tokens = JoinTokens(store, epoch, self.pool, lambda: self.authority.digest)
        self.api_tokens = ApiTokens(store, epoch)
        self.callers = Callers(
            pool=self.pool,
            standing=self.standing,
            tokens=self.api_tokens,
            people=people,
            now=now,
            doors=doors,
            audit=audit,
        )
        self.guard = LinkGuard(self.authority, self.ledger, self.standing, self.callers, now)
        self.enlisting = Enlisting(
            self.authority,
            self.ledger,
            self.standing,
            self.join_tokens,
            now,
            enrolled,
            lambda: people().named_realms,
        )
        self.identity = ServerIdentity(self.authority, hosts, now())
        self.anchors_changed: Callable[[], None] = lambda: None
        """Told when nodes are to be told whom to trust (``guard.trust``)."""

    def on_fall(self, tell: Callable[[NodeName, GpushareError], None]) -> None:
        """Have a node's stream ended (``LinkService.drop``) when its certificate no longer counts."""
        self.standing.fallen = tell

    @property
    def pool(self) -> str:
        return self.authority.pool

    def members(self) -> dict[NodeName, LedgerMember]:
        """All nodes that were enrolled and not shut out since, also where the store has forgotten them."""
        return self.ledger.members()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Tokens are known, and what time makes old is made anew, as long as the block runs."""
        await self.api_tokens.load()
        keeper = asyncio.create_task(self._keep())
        try:
            yield
        finally:
            keeper.cancel()
            with suppress(asyncio.CancelledError):
                await keeper
            with suppress(GpushareError):
                await self.api_tokens.note_use()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = self.now()
            self.standing.look_again(now)
            self.identity.refresh(now)
            try:
                await self.api_tokens.note_use()
            except GpushareError as error:
                log.warning("the last use of tokens is not written down: %s", error)

    # --- replacing the authority -----------------------------------------------------------------------

    async def begin_rotation(self) -> tuple[str, ...]:
        """Trust a new anchor beside the old one, and have all nodes get certificates of it."""
        await self.enlisting.change_anchors(self.authority.begin_rotation)
        self._tell_anchors()
        members = self.members()
        return (
            "a new authority is trusted beside the old one",
            f"{len(members)} nodes get new certificates as they are connected",
            "when all have one: gpushare pool rotate-ca --finish",
        )

    async def finish_rotation(self) -> tuple[str, ...]:
        """Drop the old anchor. Raises StateConflict while members have certificates of it."""
        behind = self.nodes_behind()
        if self.authority.rotating and behind:
            more = f" and {len(behind) - SHOWN} more" if len(behind) > SHOWN else ""
            raise StateConflict(
                f"nodes without a certificate of the new authority: {', '.join(behind[:SHOWN])}{more}",
                hint="they get one when they are connected; for a node that will not come back: "
                f"gpushare node forget {behind[0]} --is-off",
            )
        await self.enlisting.change_anchors(lambda _: self.authority.finish_rotation())
        self._tell_anchors()
        return ("the old authority is no longer trusted, and join tokens made before are void",)

    def nodes_behind(self) -> list[NodeName]:
        """The members whose newest certificate is of an anchor that is being dropped."""
        signing = self.authority.signing
        return sorted(node for node, one in self.members().items() if one.authority != signing)

    def _tell_anchors(self) -> None:
        self.identity.replace(self.now())
        self.anchors_changed()
