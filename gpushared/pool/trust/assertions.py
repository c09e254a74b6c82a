"""Sign and check assertions: a node states which of its users sends exactly this request, within a minute.

The coordinator knows nodes by their certificates, and knows users only by the assertions of nodes. A node may
assert users of its own realms only. A machine whose root is not trusted can therefore impersonate its own
users, and nobody else.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from google.protobuf.message import Message

from gpushared.domain.jobs.job import NodeName
from gpushared.domain.model.errors import LimitReached, PermissionRefused, RequestError
from gpushared.domain.model.units import shown
from gpushared.pool.trust.certificates import TOLERANCE_SECONDS, NodeCertificate, offset_words
from gpushared.pool.trust.people import split_principal

ASSERTION_METADATA = "gpushare-assertion-bin"
VALID_SECONDS = 60
MAX_BYTES = 4096
"""Stay within the 8 KiB of metadata that gRPC accepts in all by default."""
MAX_GROUPS = 64
MAX_GROUPS_BYTES = 2048
SIGNATURE_BYTES = 64
NONCE_BYTES = 16
NONCES_PER_NODE = 60_000
NONCES = 300_000
_CONTEXT = b"gpushare assertion 1\0"
"""Prefix the signed bytes, so that no other signature of the key can pass for an assertion."""


@dataclass(frozen=True, slots=True)
class Assertion:
    """Hold the signed facts; times are epoch seconds.

    ``audience`` is the pool. ``digest`` is the request's digest in hexadecimal digits.
    """

    principal: str
    groups: tuple[str, ...]
    audience: str
    digest: str
    issued_at: float
    expires_at: float
    nonce: str


def request_digest(message: Message) -> bytes:
    """Return the digest of a request as protobuf: the digest covers the type and the fields.

    The fields are serialized again in the order of their numbers, so that the digest also covers fields which
    only the other side knows.
    """
    fields = message.SerializeToString(deterministic=True)
    return hashlib.sha256(message.DESCRIPTOR.full_name.encode() + b"\0" + fields).digest()


class Asserter:
    """Sign assertions for the users of this node."""

    def __init__(self, key: Ed25519PrivateKey, pool: str) -> None:
        self._key = key
        self._pool = pool

    def sign(self, principal: str, groups: Sequence[str], digest: bytes, now: float) -> bytes:
        """Return the bytes to send: the signature, then the signed JSON.

        The coordinator accepts them once.
        """
        assertion = {
            "principal": principal,
            "groups": _fitting(groups),
            "audience": self._pool,
            "digest": digest.hex(),
            "issued_at": now,
            "expires_at": now + VALID_SECONDS,
            "nonce": secrets.token_hex(NONCE_BYTES),
        }
        text = json.dumps(assertion, separators=(",", ":")).encode()
        return self._key.sign(_CONTEXT + text) + text


def _fitting(groups: Sequence[str]) -> list[str]:
    """Return as many groups as fit into the assertion; being in fewer groups never allows more."""
    remaining_bytes, fitting = MAX_GROUPS_BYTES, []
    for group in groups[:MAX_GROUPS]:
        remaining_bytes -= len(json.dumps(group)) + 1
        if remaining_bytes >= 0:
            fitting.append(group)
    return fitting


class AssertionCheck:
    """Accept each assertion once. A coordinator has one ``AssertionCheck``."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._nonces = Nonces()

    def believe(self, signed: bytes, node: NodeCertificate, digest: bytes, now: float) -> Assertion:
        """Return the assertion if the node may make it for this request now, and has not used it before.

        Raises PermissionRefused, and LimitReached if the node uses more assertions than the check can
        remember.
        """
        assertion = _read(_verified(signed, node), node)
        if assertion.audience != self._pool:
            raise _refusal(node, f"it is for the pool {shown(assertion.audience)}, and this is {self._pool}")
        _check_times(assertion, node, now)
        if assertion.digest != digest.hex():
            raise _refusal(node, "it is for another request")
        _check_realm(assertion.principal, node)
        self._nonces.use(node.node, assertion.nonce, assertion.expires_at + TOLERANCE_SECONDS, now)
        return assertion


def _verified(signed: bytes, node: NodeCertificate) -> bytes:
    signature, text = signed[:SIGNATURE_BYTES], signed[SIGNATURE_BYTES:]
    if len(signed) > MAX_BYTES:
        raise _refusal(node, f"it is longer than {MAX_BYTES} bytes")
    try:
        Ed25519PublicKey.from_public_bytes(node.assertion_key).verify(signature, _CONTEXT + text)
    except (InvalidSignature, ValueError) as error:
        raise _refusal(node, "its signature is not that of the node's key") from error
    return text


def _read(text: bytes, node: NodeCertificate) -> Assertion:
    try:
        data = json.loads(text)
        return Assertion(
            principal=str(data["principal"]),
            groups=tuple(str(group) for group in data["groups"]),
            audience=str(data["audience"]),
            digest=str(data["digest"]),
            issued_at=float(data["issued_at"]),
            expires_at=float(data["expires_at"]),
            nonce=str(data["nonce"]),
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise _refusal(node, f"it cannot be read: {type(error).__name__}") from error


def _check_times(assertion: Assertion, node: NodeCertificate, now: float) -> None:
    """Refuse an assertion outside its period. The comparisons also refuse NaN. Raises PermissionRefused."""
    issued, expires = assertion.issued_at, assertion.expires_at
    lives = 0 < expires - issued <= VALID_SECONDS
    if not (lives and issued - TOLERANCE_SECONDS <= now < expires + TOLERANCE_SECONDS):
        ahead = offset_words(issued - now)
        raise PermissionRefused(
            f"the word of node {node.node} for its user is not valid now: it was given at a time that is "
            f"{ahead} the coordinator's",
            hint=f"it is valid for {VALID_SECONDS} s; set the clock of {node.node} (`timedatectl`), and ask "
            "again",
        )


def _check_realm(principal: str, node: NodeCertificate) -> None:
    try:
        _, realm = split_principal(principal)
    except RequestError as error:
        raise _refusal(node, error.message) from error
    if not node.may_assert(realm):
        own = ", ".join(sorted({node.node, *node.realms}))
        raise PermissionRefused(
            f"node {node.node} may not speak for {shown(principal)}: its realms are {own}",
            hint="a realm is given to a node with its join token: gpushare pool token --node "
            f"{node.node} --realm {realm}",
        )


def _refusal(node: NodeCertificate, why: str) -> PermissionRefused:
    return PermissionRefused(
        f"the word of node {node.node} for its user is refused: {why}",
        hint=f"do gpushared on {node.node} and the coordinator have the same version (`gpushare version`)?",
    )


class Nonces:
    """Remember the nonces of assertions that could still be used again.

    When the memory is full, accept no further assertion.
    """

    def __init__(self, per_node: int = NONCES_PER_NODE, in_all: int = NONCES) -> None:
        self._per_node = per_node
        self._in_all = in_all
        self._until: dict[NodeName, dict[str, float]] = defaultdict(dict)
        self._count = 0
        self._swept_at = 0.0

    def use(self, node: NodeName, nonce: str, until: float, now: float) -> None:
        """Record a nonce.

        Raises PermissionRefused for a nonce used before, LimitReached for too many nonces.
        """
        if len(nonce) != 2 * NONCE_BYTES:
            raise PermissionRefused(
                f"the word of node {node} for its user is refused: its nonce is none", hint="ask again"
            )
        nonces = self._until[node]
        if len(nonces) >= self._per_node or self._count >= self._in_all:
            self._sweep(now)
            nonces = self._until[node]
        if nonce in nonces:
            raise PermissionRefused(
                f"the word of node {node} for its user was used before", hint="each is good for one request"
            )
        if len(nonces) >= self._per_node or self._count >= self._in_all:
            raise LimitReached(
                f"node {node} speaks for its users too often", hint="ask again in a minute or two"
            )
        nonces[nonce] = until
        self._count += 1

    def _sweep(self, now: float) -> None:
        """Delete expired nonces, at most once a second because the sweep reads all nonces."""
        if abs(now - self._swept_at) < 1:
            return
        self._swept_at = now
        for node in list(self._until):
            unexpired = {nonce: until for nonce, until in self._until[node].items() if until > now}
            self._until[node] = unexpired
            if not unexpired:
                del self._until[node]
        self._count = sum(map(len, self._until.values()))
