"""Choose among the addresses of a pool's coordinators: stay with one that works, and go round after failures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence


def divided(text: str) -> tuple[str, ...]:
    """Return the addresses of a list such as ``host1:7440,host2:7440``."""
    return tuple(part for part in map(str.strip, text.split(",")) if part)


def joined(addresses: Iterable[str]) -> str:
    """Return the addresses as a list that ``divided`` reads, each of them once."""
    return ",".join(dict.fromkeys(addresses))


class CoordinatorAddresses:
    """Hold all addresses and the present one. Threads may share an object."""

    def __init__(self, list_addresses: Callable[[], Sequence[str]]) -> None:
        """``list_addresses`` returns at least one address; the list may change with time."""
        self._list_addresses = list_addresses
        self._present = ""
        self._answering = ""

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._list_addresses()))

    @property
    def has_others(self) -> bool:
        """Return True if there is another address to go to."""
        return len(self.all) > 1

    @property
    def present(self) -> str:
        """Return the address to use now."""
        addresses = self.all
        return self._present if self._present in addresses else addresses[0]

    @property
    def answering(self) -> str:
        """Return the address that answered last, even if only with a refusal; at first the present one."""
        return self._answering if self._answering in self.all else self.present

    def answered(self, address: str) -> None:
        """Note that a coordinator answers at the address."""
        self._answering = address

    def leave(self, address: str) -> None:
        """Go on to the next address, unless another caller has left this one already."""
        if address == self.present:
            addresses = self.all
            self._present = addresses[(addresses.index(address) + 1) % len(addresses)]


class AddressRound:
    """Count the failures of one caller, who waits only after each address has failed."""

    def __init__(self, addresses: CoordinatorAddresses) -> None:
        self._addresses = addresses
        self._failures = 0

    def failed(self, address: str) -> bool:
        """Leave the address, and return True if the round is over."""
        self._addresses.leave(address)
        self._failures += 1
        is_over = self._failures >= len(self._addresses.all)
        if is_over:
            self._failures = 0
        return is_over

    def begin_anew(self) -> None:
        """Forget the failures, because a call has succeeded."""
        self._failures = 0
