"""Define where a pool's coordinator keeps its store."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpushared.config.kinds import PATH_OR_EMPTY, Text, setting

ETCD_SCHEME = "etcd://"
_ENDPOINT = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}")
_PREFIX = re.compile(r"(?:/[A-Za-z0-9._-]+)+/")


def is_etcd_url(text: str) -> bool:
    """Return True for ``etcd://HOST:PORT,HOST:PORT``."""
    members = text.removeprefix(ETCD_SCHEME).rstrip("/").split(",")
    return text.startswith(ETCD_SCHEME) and all(_ENDPOINT.fullmatch(member) for member in members)


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """The pool's store: its jobs, nodes, projects and tokens."""

    url: str = setting(
        "",
        Text("`etcd://HOST:PORT,HOST:PORT,...`, or empty", lambda text: not text or is_etcd_url(text)),
        "Empty: the file `pool.db` in `coordinator.state_dir`. Else the members of an etcd (3.4 or later) that "
        "keeps the store; `gpushared-pool store migrate` takes the present one there.",
    )
    prefix: str = setting(
        "",
        Text(
            "a path such as `/gpushare/lab/`, or empty",
            lambda text: not text or _PREFIX.fullmatch(text) is not None,
        ),
        "What the store's keys in etcd begin with, so that others can use the same etcd; empty: "
        "`/gpushare/NAME/` with the pool's name.",
    )
    ca_file: str = setting(
        "",
        PATH_OR_EMPTY,
        "The authority that signed the certificates of etcd's members. Without it TLS is not used, and etcd "
        "must be on this machine.",
    )
    cert_file: str = setting(
        "",
        PATH_OR_EMPTY,
        "This coordinator's certificate for etcd (`--client-cert-auth`). These files are read again when they "
        "are replaced.",
    )
    key_file: str = setting("", PATH_OR_EMPTY, "The key of that certificate.")
    user: str = setting("", Text(), "The user that etcd knows the coordinator as, where etcd has users.")
    password_file: str = setting("", PATH_OR_EMPTY, "A file with that user's password.")
