"""Define a notification: one event that users and sites are told, with the words for people and programs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from gpushared.domain.model.errors import PermissionRefused, RequestError
from gpushared.domain.model.units import shown

MAIL = "mail"
"""A run names this word to tell its owner by mail; a run's other targets are URLs."""
MAX_TARGETS = 4
MAX_URL = 1000
MAX_PORT = 65535
_URL = re.compile(r"(?P<site>https?://[A-Za-z0-9.-]+(?P<port>:[0-9]{1,5})?)(?P<path>/[!-~]*)?", re.ASCII)
_STEPS = re.compile(r"(^|/)\.{1,2}(/|$)")
_ENCODED = re.compile(r"%(2[ef]|5c)", re.IGNORECASE)
"""Servers read these steps of a path, and these signs in it, as a way out of the folder that the site allowed."""
_AMBIGUOUS = frozenset("%;\\")
"""Servers and proxies differ in how they read these signs in a path, so that users' paths have none of them."""


class NotificationKind(StrEnum):
    """Name the kind of an event."""

    GRANTED = "granted"
    ENDS_SOON = "ends-soon"
    GIVES_WAY = "gives-way"
    PAUSED = "paused"
    RESUMED = "resumed"
    ENDED = "ended"
    OVER_LIMIT = "over-limit"
    IDLE = "idle"
    GPU_UNHEALTHY = "gpu-unhealthy"
    NODE_SILENT = "node-silent"
    NODE_BACK = "node-back"
    DIGEST = "digest"
    """A week is over; its use, waste and waits are told to receivers that want them."""


KnownEvents = Collection[tuple[NotificationKind, str]]
"""The kinds and occasions of one subject's events that were sent before."""


@dataclass(frozen=True, slots=True)
class GpuPart:
    """Name a part of a GPU in a notification; ``gpu`` is the label that people know."""

    gpu: str
    memory_bytes: int
    compute_permille: int


@dataclass(frozen=True, slots=True)
class Notification:
    """Describe one event.

    ``subject`` and ``occasion`` identify the event among those of its kind: an event is told once. ``at`` is
    on the clock that counts time. ``text`` names no lease, request or person but those of the event itself.
    """

    kind: NotificationKind
    subject: str
    occasion: str
    at: float
    text: str
    lease: str = ""
    job: str = ""
    owner: str = ""
    owner_uid: int | None = None
    """None for an event that concerns no user of this machine."""
    project: str = ""
    lease_class: str = ""
    gpus: tuple[GpuPart, ...] = ()
    outcome: str = ""
    exit_code: int | None = None
    ends_at: float | None = None
    node: str = ""
    """The node that an event of a pool is about."""
    container: str = ""
    """Only the owner is told the names of container and image."""
    image: str = ""
    lines: tuple[str, ...] = ()
    """Further sentences."""
    targets: tuple[str, ...] = ()
    """The targets that the request of the lease or the job named."""

    @property
    def key(self) -> str:
        """Return the identity of the event on its node."""
        return f"{self.subject}/{self.kind}/{self.occasion}"


def read_targets(text: str) -> tuple[str, ...]:
    """Return the targets in a list with commas: ``mail`` or URLs. Raises RequestError."""
    if len(text) > MAX_TARGETS * (MAX_URL + 1):
        raise RequestError(f"{len(text)} characters are no list of targets", hint="say mail or a URL")
    targets = tuple(dict.fromkeys(target.strip() for target in text.split(",") if target.strip()))
    check_targets(targets)
    return targets


def check_targets(targets: tuple[str, ...]) -> None:
    """Raise RequestError for targets that cannot be notified anywhere."""
    if len(targets) > MAX_TARGETS:
        raise RequestError(f"{len(targets)} targets are too many", hint=f"name at most {MAX_TARGETS}")
    for target in targets:
        if target != MAIL and not is_url(target):
            raise RequestError(
                f"{shown(target)} is not a target of notifications",
                hint="say mail, or a URL such as https://hooks.example.org/me",
            )


def is_url(text: str) -> bool:
    """Return True for a URL without a user, a fragment, or steps that leave a folder."""
    match = _URL.fullmatch(text)
    if match is None or len(text) > MAX_URL:
        return False
    path = (match["path"] or "").partition("?")[0]
    if int((match["port"] or ":0")[1:]) > MAX_PORT:
        return False
    return not set(text) & set("#\\") and not _ENCODED.search(path) and not _STEPS.search(path)


def is_allowed(target: str, allowed: Iterable[str]) -> bool:
    """Return True if a site that allows ``allowed``, mail and beginnings of URLs, allows the target.

    A beginning counts by whole parts: ``https://a.example/x`` allows ``https://a.example/x/y``, but neither
    ``https://a.example/xy`` nor ``https://a.example.org/x``. Below it the path has no ``%``, ``;`` or backslash.
    """
    if target == MAIL:
        return MAIL in allowed
    return is_url(target) and any(_is_below(target, beginning) for beginning in allowed if beginning != MAIL)


def _is_below(url: str, beginning: str) -> bool:
    site, path = _parts(url)
    allowed_site, folder = _parts(beginning)
    if site.lower() != allowed_site.lower():
        return False
    if path == folder:
        return True
    folder = folder if folder.endswith("/") else f"{folder}/"
    below = path.removeprefix(folder).partition("?")[0]
    return path.startswith(folder) and _AMBIGUOUS.isdisjoint(below)


def _parts(url: str) -> tuple[str, str]:
    match = _URL.fullmatch(url)
    return ("", "") if match is None else (match["site"], match["path"] or "/")


def check_allowed(targets: Iterable[str], allowed: tuple[str, ...]) -> None:
    """Raise PermissionRefused for a target that the site does not allow."""
    for target in targets:
        if not is_allowed(target, allowed):
            names = ", ".join(allowed) or "none"
            raise PermissionRefused(
                f"notifications to {target[:80]} are not allowed here",
                hint=f"allowed targets: {names}; paths below them hold no % and no ;",
            )
