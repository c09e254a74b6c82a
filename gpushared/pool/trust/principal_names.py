"""The names in a pool, and how certificates carry them: URIs in the subject's alternative names.

``gpushare://lab/node/ws3`` is a node, ``gpushare://lab/coordinator`` the coordinator, and
``gpushare://lab/realm/vision`` a realm for whose users a node may speak.
"""

from __future__ import annotations

import re

from gpushared.config.job_settings import is_realm
from gpushared.domain.jobs.job import NodeName
from gpushared.domain.leases.project_settings import is_user_name
from gpushared.domain.model.errors import RequestError
from gpushared.domain.model.units import shown

SCHEME = "gpushare"
_POOL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")


def pool_name(text: str) -> str:
    """A pool's name, which is a part of host names too. Raises RequestError."""
    if _POOL.fullmatch(text) is None:
        hint = "use up to 32 small letters, digits and dashes, with a letter or digit at both ends"
        raise RequestError(f"{shown(text)} cannot be a pool's name", hint=hint)
    return text


def node_name(text: str) -> NodeName:
    """A node's name, which is a realm's too. Raises RequestError."""
    return NodeName(realm_name(text, "a node's"))


def realm_name(text: str, whose: str = "a realm's") -> str:
    """A realm's name. Raises RequestError."""
    if not is_realm(text):
        hint = "use up to 64 letters, digits and . _ - with a letter or digit at both ends"
        raise RequestError(f"{shown(text)} cannot be {whose} name", hint=hint)
    return text


def split_principal(text: str) -> tuple[str, str]:
    """``ada@lab`` as ``("ada", "lab")``. Raises RequestError."""
    user, _, realm = text.partition("@")
    if user == "*" or not is_user_name(user) or not is_realm(realm):
        raise RequestError(f"{shown(text)} is not a principal", hint="write USER@REALM, as ada@lab")
    return user, realm


def coordinator_uri(pool: str) -> str:
    return f"{SCHEME}://{pool}/coordinator"


def node_uri(pool: str, node: str) -> str:
    return f"{SCHEME}://{pool}/node/{node}"


def realm_uri(pool: str, realm: str) -> str:
    return f"{SCHEME}://{pool}/realm/{realm}"


def coordinator_host(pool: str) -> str:
    """The host name that every server certificate of the pool holds, whatever address it is reached at.

    Clients that know the pool's anchors ask for it; ``.internal`` is set aside for private use by ICANN.
    """
    return f"coordinator.{pool}.gpushare.internal"
