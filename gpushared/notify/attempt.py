"""Define the result of one attempt to deliver a notification."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Delivered:
    """The receiver has the notification."""


@dataclass(frozen=True, slots=True)
class TryAgain:
    """The receiver could not be reached, or cannot take the notification now."""

    reason: str


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The receiver refuses the notification, and would refuse it again."""

    reason: str


Attempt = Delivered | TryAgain | GivenUp
