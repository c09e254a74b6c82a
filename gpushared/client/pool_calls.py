"""Call a pool's coordinator as an administrator: JSON on its unix socket, or through a node of the pool."""

from __future__ import annotations

import os
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any

from gpushared.api.v1.admin_messages import (
    ApiToken,
    CoordinatorForgotten,
    JoinToken,
    ListApiTokensResponse,
    ListJoinTokensResponse,
    NodeAnswer,
    PoolStatus,
    Revoked,
    RotateCaAnswer,
    Trust,
)
from gpushared.client.api import MAX_SOCKET_PATH_BYTES, Client
from gpushared.client.http import ConnectionLost
from gpushared.domain.model.errors import ConfigError, DaemonUnavailable, PermissionRefused

POOL_SOCKET_VARIABLE = "GPUSHARE_POOL_SOCKET"
DEFAULT_POOL_SOCKET = "/run/gpushared-pool/gpushared-pool.sock"
ON_NODES = frozenset({"Status", "DrainNode", "ForgetNode"})
"""The nodes of a pool hand these calls on."""


def pool_socket(path: str | None = None) -> str:
    """Return the path given, else in GPUSHARE_POOL_SOCKET, else the system's. Raises ConfigError."""
    path = path or os.environ.get(POOL_SOCKET_VARIABLE) or DEFAULT_POOL_SOCKET
    path = path.removeprefix("unix://")
    if not path.startswith("/") or len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise ConfigError(
            f"{path[:100]!r} is not the path of a unix socket",
            hint=f"export {POOL_SOCKET_VARIABLE}={DEFAULT_POOL_SOCKET}",
        )
    return path


class PoolClient:
    """Call the coordinator on this machine. Raises ``gpushared.domain.model.errors``, as ``Client``.

    If there is none, or it takes the caller for no administrator, the client asks the node on this machine
    for the calls that nodes hand on: the coordinator then judges by its table of users.
    """

    def __init__(self, path: str | None = None, node: str | None = None) -> None:
        self._client = Client(f"unix://{pool_socket(path)}")
        self._node = node

    def status(self) -> PoolStatus:
        return PoolStatus(self._call("Status", {}))

    def create_join_token(
        self, *, node: str = "", realms: Sequence[str] = (), valid_seconds: int = 0
    ) -> JoinToken:
        """Make a token. ``node``: the only name that will do; 0 seconds: an hour."""
        fields = {"node": node, "realms": list(realms), "valid_seconds": valid_seconds}
        return JoinToken(self._call("CreateJoinToken", fields))

    def join_tokens(self) -> tuple[JoinToken, ...]:
        return ListJoinTokensResponse(self._call("ListJoinTokens", {})).tokens

    def create_api_token(
        self, *, person: str, scopes: Sequence[str] = (), valid_seconds: int = 0, description: str = ""
    ) -> ApiToken:
        """Make a token. No scopes: all but ``admin``; 0 seconds: 12 hours."""
        fields = {
            "person": person,
            "scopes": list(scopes),
            "valid_seconds": valid_seconds,
            "description": description,
        }
        return ApiToken(self._call("CreateApiToken", fields))

    def api_tokens(self) -> tuple[ApiToken, ...]:
        return ListApiTokensResponse(self._call("ListApiTokens", {})).tokens

    def revoke_token(self, token_id: str) -> str:
        """Revoke a token, and return a sentence on what was done."""
        return Revoked(self._call("RevokeToken", {"id": token_id})).sentence

    def revoke_node(self, node: str) -> str:
        """Revoke a node's certificates, so that it is cut off; return a sentence on what was done."""
        return Revoked(self._call("RevokeToken", {"node": node})).sentence

    def rotate_ca(self, *, finish: bool = False) -> tuple[str, ...]:
        return RotateCaAnswer(self._call("RotateCa", {"finish": finish})).sentences

    def drain_node(self, node: str, reason: str) -> tuple[str, ...]:
        """Give a node no new work. Return sentences on what was done."""
        return NodeAnswer(self._call("DrainNode", {"node": node, "reason": reason})).sentences

    def undrain_node(self, node: str) -> tuple[str, ...]:
        return NodeAnswer(self._call("DrainNode", {"node": node, "undrain": True})).sentences

    def forget_node(self, node: str, *, is_off: bool = False, only_waive: bool = False) -> tuple[str, ...]:
        """Forget a node. ``is_off``: the caller's word that nothing runs there any more."""
        fields = {"node": node, "is_off": is_off, "only_waive": only_waive}
        return NodeAnswer(self._call("ForgetNode", fields)).sentences

    def forget_coordinator(self, name: str) -> str:
        """Take a retired coordinator out of the list; return a sentence on what was done."""
        return CoordinatorForgotten(self._call("ForgetCoordinator", {"name": name})).sentence

    def anchors(self) -> bytes:
        """Return certificates in PEM, which programs that call the users' port are to trust."""
        return b64decode(Trust(self._call("Anchors", {})).anchors)

    def _call(self, call: str, fields: Mapping[str, object]) -> dict[str, Any]:
        try:
            return self._client.call(f"PoolAdmin/{call}", fields)
        except ConnectionLost:
            raise
        except PermissionRefused:
            if call not in ON_NODES:
                raise
            return self._through_node(call, fields)
        except DaemonUnavailable as error:
            if call in ON_NODES:
                return self._through_node(call, fields)
            raise DaemonUnavailable(
                f"no coordinator of a pool answers on {self._client.path}",
                hint="this is for the machine of the coordinator: see `systemctl status gpushared-pool`; for "
                f"a socket elsewhere: export {POOL_SOCKET_VARIABLE}=PATH",
            ) from error

    def _through_node(self, call: str, fields: Mapping[str, object]) -> dict[str, Any]:
        """Ask the node. Raises its error, or that of the coordinator that it asks."""
        try:
            return Client(self._node).call(f"PoolAdmin/{call}", fields)
        except ConnectionLost:
            raise
        except DaemonUnavailable as error:
            raise DaemonUnavailable(
                f"no coordinator of a pool answers on {self._client.path}, and no node: {error.message}",
                hint="ask on a machine of the pool: see `systemctl status gpushared-pool`, and of gpushared; "
                f"for a coordinator's socket elsewhere: export {POOL_SOCKET_VARIABLE}=PATH",
            ) from error
