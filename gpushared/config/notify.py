"""Define the settings of notifications: who is told of which events, and how."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpushared.config.kinds import (
    HOUR_SECONDS,
    PATH_OR_EMPTY,
    Seconds,
    Text,
    TextList,
    Whole,
    YesOrNo,
    setting,
)
from gpushared.domain.model.notification import MAIL, NotificationKind, is_url

NOTIFY = "notify"
_ALL = tuple(kind.value for kind in NotificationKind if kind is not NotificationKind.DIGEST)
_FOR_PEOPLE = (
    NotificationKind.GPU_UNHEALTHY.value,
    NotificationKind.NODE_SILENT.value,
    NotificationKind.NODE_BACK.value,
)
_ADDRESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}(@[A-Za-z0-9][A-Za-z0-9.-]{0,200})?")
_DOMAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,200}")


def is_address(text: str) -> bool:
    """Return True for a mail address that needs no quoting, or the name of a local mailbox."""
    return _ADDRESS.fullmatch(text) is not None


_URLS = TextList(Text("a URL that begins with `https://` or `http://`", is_url))
_EVENTS = TextList(Text("an event", lambda text: text in _ALL, f"events: {', '.join(_ALL)}"))
_ADDRESSES = TextList(Text("a mail address", is_address))
_EVENTS_TEXT = "Of which [events](notifications.md#events) the webhooks are told; empty: of all."
_DIGEST_TEXT = (
    "Each Monday all of these get [the digest](notifications.md#the-weekly-digest) of the week before."
)
_KEY_TEXT = (
    "The file with the key of the webhooks' signatures, readable by root only; empty: they are not signed."
)


@dataclass(frozen=True, slots=True)
class ReceiversConfig:
    """Set who is told of events."""

    webhooks: tuple[str, ...] = setting((), _URLS, "Each gets a POST with JSON for every event.")
    secret_file: str = setting("", PATH_OR_EMPTY, _KEY_TEXT)
    events: tuple[str, ...] = setting((), _EVENTS, _EVENTS_TEXT)
    mail: tuple[str, ...] = setting((), _ADDRESSES, "Each gets a mail for every event of `mail_events`.")
    mail_events: tuple[str, ...] = setting(
        (NotificationKind.ENDED.value,), _EVENTS, "Of which events a mail is sent."
    )


@dataclass(frozen=True, slots=True)
class ProjectNotifyConfig(ReceiversConfig):
    """Set who is told of the leases of a project."""

    digest: bool = setting(False, YesOrNo(), _DIGEST_TEXT)


@dataclass(frozen=True, slots=True)
class PoolNotifyConfig(ReceiversConfig):
    """Set who is told what happens, and by which ways."""

    mail_events: tuple[str, ...] = setting(_FOR_PEOPLE, _EVENTS, "Of which events a mail is sent.")
    allow: tuple[str, ...] = setting(
        (MAIL,),
        TextList(Text("`mail`, or the beginning of a URL", lambda text: text == MAIL or is_url(text))),
        "What users may name by `--notify`: `mail` where there is a `sendmail`, and URLs that begin like "
        "these, by whole parts of the path.",
    )
    sendmail: str = setting(
        "",
        PATH_OR_EMPTY,
        "The program that takes mails; empty: `sendmail` in `/usr/sbin`, `/usr/lib` or the daemon's PATH.",
    )
    mail_from: str = setting(
        "",
        Text("a mail address, or empty", lambda text: not text or is_address(text)),
        "The sender of mails.",
    )
    mail_domain: str = setting(
        "",
        Text("a domain, or empty", lambda text: not text or _DOMAIN.fullmatch(text) is not None),
        "Users have the address `NAME@DOMAIN`; empty: their mailbox on this machine.",
    )
    keep_seconds: int = setting(
        24 * HOUR_SECONDS,
        Seconds(60, 7 * 24 * HOUR_SECONDS),
        "A notification that cannot be delivered for so long is dropped.",
        key="keep",
    )
    max_waiting: int = setting(
        10_000,
        Whole(10, 1_000_000),
        "How many notifications may wait; beyond that the oldest of the user with the most are dropped.",
    )


@dataclass(frozen=True, slots=True)
class NotifyConfig(PoolNotifyConfig):
    """Set who is told what happens to leases and GPUs, and by which ways."""

    digest: bool = setting(False, YesOrNo(), _DIGEST_TEXT)
    command: tuple[str, ...] = setting(
        (),
        TextList(Text("a word")),
        "A program and its words, run without a shell for every event of `events` as the user whom it "
        "concerns, with the JSON on its standard input.",
    )
    command_seconds: int = setting(30, Seconds(1, HOUR_SECONDS), "How long the command may run.")
    ends_soon_seconds: int = setting(
        600,
        Seconds(0, 24 * HOUR_SECONDS),
        "How long before its time limit the end of a lease is told, at most half of the limit; 0: never.",
        key="ends_soon",
    )
