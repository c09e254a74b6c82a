"""Choose the coordinator that a node dials next, and decide if the node waits at a standby."""

from __future__ import annotations

from gpushared.domain.model.coordinator_addresses import AddressRound, CoordinatorAddresses
from gpushared.pool.link import codec


class LeaderSearch:
    """Remember what coordinators answered since this node last had a link.

    Epochs number the leaders of a pool; 0 is no leader.
    """

    def __init__(self, addresses: CoordinatorAddresses) -> None:
        self.dialled = ""
        """Hold the address that was dialled last."""
        self.linked_epoch = 0
        """Hold the epoch of the leader that this node was last linked to."""
        self._addresses = addresses
        self._round = AddressRound(addresses)
        self._may_recover = False
        """Hold True if an address of this round failed in a way that may pass."""
        self._known_epoch = 0
        """Hold the newest epoch that a coordinator has named."""
        self._lost_epoch: int | None = None
        """Hold the epoch of the leader that this node does not reach, once all were asked in vain."""
        self._leader_unknown = False
        """Hold True if a coordinator of this round answered that nobody leads: it may be taking over."""
        self._silent_leader = ""
        """Hold the address of the coordinator that fell silent while it led."""

    def next_address(self) -> str:
        self.dialled = self._addresses.present
        return self.dialled

    def wait_metadata(self, hold_seconds: float) -> tuple[tuple[str, str], ...]:
        """Return the request to wait at a standby, once all have been asked in vain."""
        if self._lost_epoch is None:
            return ()
        return (codec.WAIT_METADATA, str(hold_seconds)), (codec.LOST_METADATA, str(self._lost_epoch))

    def found(self, epoch: int) -> None:
        """Note that this node is linked to the leader of that epoch."""
        self.linked_epoch = self._known_epoch = epoch
        self._lost_epoch, self._silent_leader = None, ""
        self._round.begin_anew()

    def lost(self, *, is_silent: bool) -> None:
        """Note that the link to the leader ended, and if the leader closed it or fell silent."""
        self._silent_leader = self.dialled if is_silent else ""

    def refused(self, epoch: int) -> None:
        """Note the epoch that a coordinator named as it refused the link.

        All are asked anew if there is a newer leader: it may be one that was asked before it led.
        """
        self._leader_unknown |= not epoch
        if epoch > self._known_epoch:
            self._known_epoch, self._lost_epoch, self._leader_unknown = epoch, None, False
            self._round.begin_anew()

    def failed(self, *, may_recover: bool) -> bool:
        """Leave the address that was dialled, and return True if the round is over: all have failed."""
        self._may_recover |= may_recover
        is_over = self._round.failed(self.dialled)
        if self._addresses.present == self._silent_leader:
            # It is passed over once, because it may answer nothing for long.
            is_over = self._pass_over_silent_leader(is_over=is_over)
        if not is_over:
            return False
        # While a leader takes over, others name it already, but it still answers that nobody leads: this node
        # must not wait for the leader after that one.
        self._lost_epoch = self.linked_epoch if self._leader_unknown else self._known_epoch
        self._leader_unknown = False
        return True

    def _pass_over_silent_leader(self, *, is_over: bool) -> bool:
        """Return True if the round is over now. A new round, which a newer epoch began, counts it as failed."""
        silent, self._silent_leader = self._silent_leader, ""
        if not is_over:
            return self._round.failed(silent)
        self._addresses.leave(silent)
        return True

    def end_round(self) -> bool:
        """Return True if a failure of the round may pass by itself, and begin the next round."""
        may_recover, self._may_recover = self._may_recover, False
        return may_recover
