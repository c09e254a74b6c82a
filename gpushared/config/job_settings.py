"""Define the settings of jobs, of the pool that a node is in, and of the audit."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpushared.config.kinds import HOUR_SECONDS, Seconds, Table, Text, TextList, Whole, is_absolute, setting
from gpushared.domain.leases.project_settings import is_user_name

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,62}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class AuditConfig:
    """The audit records who changed what, and who was refused what: `gpushare audit`."""

    keep_days: int = setting(90, Whole(1, 3650), "Older lines are forgotten.")
    max_rows: int = setting(
        500_000,
        Whole(1000, 50_000_000),
        "Of more lines, the oldest of whoever has the most are forgotten; 500000 are about 250 MB.",
    )


def is_realm(text: str) -> bool:
    """Return True if a realm, and with it a node, may have this name; the names are like those of hosts."""
    return _NAME.fullmatch(text) is not None


def _is_address(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    return bool(host and colon) and not set(host) & set(" /@") and port.isdecimal() and 0 < int(port) < 2**16


def _are_addresses(text: str) -> bool:
    return not text or all(map(_is_address, text.split(",")))


def _is_owner(text: str) -> bool:
    name, at, realm = text.partition("@")
    return is_user_name(name) and (not at or is_realm(realm))


def _is_account(text: str) -> bool:
    return is_user_name(text) and text not in {"root", "0"}


_OWNER = Text("a person such as `ada`, or a principal such as `ada@lab`", _is_owner)
_ACCOUNT = Text("the name of a local account that is not root's", _is_account)


@dataclass(frozen=True, slots=True)
class JobsConfig:
    """Containers that the node itself creates: those of jobs."""

    keep_containers_seconds: int = setting(
        24 * HOUR_SECONDS,
        Seconds(0, 30 * 24 * HOUR_SECONDS),
        "How long the container of an ended job stays, with its logs.",
        key="keep_containers",
    )
    max_kept_containers: int = setting(
        200,
        Whole(0, 100_000),
        "How many of them of each user may stay, at most half of `containers_per_user`; the oldest go first, "
        "and sooner where a new job needs the place.",
    )
    max_pulls: int = setting(2, Whole(1, 64), "How many images are pulled for jobs at a time.", at_start=True)
    pull_seconds: int = setting(
        HOUR_SECONDS,
        Seconds(1, 7 * 24 * HOUR_SECONDS),
        "How long a job's pull may take, its wait for others' included.",
        key="pull_timeout",
        at_start=True,
    )


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """The pool that this node is in; `gpushare node join` makes it a member."""

    coordinator: str = setting(
        "",
        Text("`HOST:PORT`, several with commas between, or empty", _are_addresses),
        "The pool's coordinators, and no others; empty: as the node was told when it joined, and by them since.",
    )
    state_dir: str = setting(
        "",
        Text("an absolute path, or empty", lambda text: not text or is_absolute(text)),
        "The node's key, certificate and trust anchors; empty: `pool` in `node.state_dir`.",
        at_start=True,
    )
    realm: str = setting(
        "",
        Text("the name of a realm, or empty", lambda text: not text or is_realm(text)),
        "Whose accounts the node's users have; nodes with the same accounts may share a realm. Empty: the "
        "node's name.",
    )
    trusted_realms: tuple[str, ...] = setting(
        (),
        TextList(Text("the name of a realm", is_realm)),
        "Other realms whose users are the local accounts of the same names.",
    )
    accounts: tuple[tuple[str, str], ...] = setting(
        (),
        Table(_OWNER, _ACCOUNT),
        'Local accounts of people of the pool, one a line below `[pool.accounts]`: `"ada@lab" = '
        "\"ada\"`. A principal's line wins over its person's. Who has no account here runs no job here. "
        "System accounts (below UID_MIN of /etc/login.defs) need such a line.",
    )
