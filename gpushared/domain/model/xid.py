"""Classify XIDs: the numbers under which NVIDIA's driver reports errors of a GPU.

The numbers and NVIDIA's advice are in its catalogue
(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html). NVML reports the errors that the
driver calls critical; an unknown number therefore counts as a sickness. Every number for which NVIDIA advises
to restart the program is known here: otherwise one user's program could take a GPU from all users.
"""

from __future__ import annotations

from enum import Enum


class XidKind(Enum):
    """Say how an XID affects its GPU."""

    APPLICATION = 0
    """A program met an error; the GPU is fine."""
    RECORD = 1
    """The GPU dealt with an error by itself and goes on."""
    SICKNESS = 2
    """The GPU must not be used before an admin has checked it."""


_COPY_ENGINES = (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136))
_MEDIA_ENGINES = (60, 68, 82, 83, 84, 86, 88, 89, *range(96, 106), 139)
"""These engines code and decode video and images, compare frames, and encrypt."""
_COMMANDS = (11, 25, 32, 69, 80)
_NOTED = (37, 38, 44, 66, 67, 93, 121, 141, 157, 160, 161)
"""NVIDIA advises to ignore these."""

_KNOWN: dict[int, tuple[XidKind, str]] = {
    **dict.fromkeys(_COPY_ENGINES, (XidKind.APPLICATION, "a copy of a program's failed")),
    **dict.fromkeys(_MEDIA_ENGINES, (XidKind.APPLICATION, "a program met an error of a media engine")),
    **dict.fromkeys(_COMMANDS, (XidKind.APPLICATION, "a program's commands to the GPU were broken")),
    **dict.fromkeys(_NOTED, (XidKind.RECORD, "the GPU met an error and goes on")),
    8: (XidKind.APPLICATION, "a program did not end its work in time"),
    13: (XidKind.APPLICATION, "a program made the GPU do what it cannot do"),
    31: (XidKind.APPLICATION, "a program used GPU memory that it does not have"),
    43: (XidKind.APPLICATION, "the GPU stopped working for a program"),
    45: (XidKind.APPLICATION, "the driver cleared away what a program that ended had on the GPU"),
    48: (XidKind.SICKNESS, "met a memory error that it cannot correct"),
    61: (XidKind.SICKNESS, "has a microcontroller that stopped"),
    62: (XidKind.SICKNESS, "has a microcontroller that halted"),
    63: (XidKind.RECORD, "the GPU noted a bad part of its memory, to leave it out after the next reset"),
    64: (XidKind.SICKNESS, "cannot leave out a bad part of its memory"),
    74: (XidKind.SICKNESS, "met an NVLink error"),
    79: (XidKind.SICKNESS, "fell off the bus"),
    92: (XidKind.RECORD, "the GPU corrects many memory errors"),
    94: (XidKind.APPLICATION, "a program met a memory error that hit nobody else"),
    95: (XidKind.SICKNESS, "met a memory error that may have hit every program"),
    109: (XidKind.APPLICATION, "a program could not be switched off the GPU in time"),
    119: (XidKind.SICKNESS, "has a system processor (GSP) that does not answer"),
    120: (XidKind.SICKNESS, "has a system processor (GSP) that failed"),
    137: (XidKind.APPLICATION, "a program reached over NVLink for memory that it does not have"),
    140: (XidKind.SICKNESS, "met a memory error that it did not recover from"),
    143: (XidKind.SICKNESS, "could not be initialised"),
    154: (XidKind.RECORD, "the driver changed its advice on how to recover the GPU"),
}

_THROUGH_MPS = frozenset({13, 31})
"""MPS reports these errors of one client to all clients on the GPU."""


def kind(number: int) -> XidKind:
    return _KNOWN[number][0] if number in _KNOWN else XidKind.SICKNESS


def hits_every_client(number: int) -> bool:
    """Return True if the error of one MPS client ends the work of all on the GPU."""
    return number in _THROUGH_MPS


def describe(number: int) -> str:
    """Return the GPU's failure for a sickness (``fell off the bus (XID 79)``), else a whole clause."""
    text = _KNOWN[number][1] if number in _KNOWN else "reported an error that its driver calls critical"
    return f"{text} (XID {number})"
