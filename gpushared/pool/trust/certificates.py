"""Read a node's certificate, allow for two machines' clocks, and name the coordinator's addresses."""

from __future__ import annotations

import base64
import functools
import re
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization

from gpushared.domain.jobs.job import NodeName
from gpushared.domain.model.errors import PermissionRefused, RequestError
from gpushared.domain.model.units import shown
from gpushared.pool.trust.people import SCHEME

ASSERTION_KEY_OID = x509.ObjectIdentifier("2.25.3128955938680712431273847370430093104")
"""Identify the extension with the node's Ed25519 public key, 32 bytes. 2.25 is the arc of UUIDs (X.667)."""
ASSERTION_KEY_BYTES = 32
REMEMBERED = 4096
BACKDATED_SECONDS = 24 * 3600
"""Certificates begin this long before they are made. A machine whose clock is behind then gets an answer with
the difference, instead of a failure of TLS, which names no cause."""
_URI = re.compile(rf"{SCHEME}://([^/]+)/(node|realm)/([^/]+)")
TOLERANCE_SECONDS = 120
"""Clocks that are further apart make certificates and assertions of one machine invalid for the other."""
USERS_PORT = 7440
"""Users with tokens and machines that join connect to this port."""
_HOST = re.compile(r"[A-Za-z0-9_.-]{1,253}|\[[0-9a-fA-F:.]{2,45}(?:%[A-Za-z0-9_.-]{1,32})?\]")
_BARE_V6 = re.compile(r"[0-9a-fA-F:.]*:[0-9a-fA-F:.]*:[0-9a-fA-F:.]*")


@dataclass(frozen=True, slots=True)
class NodeCertificate:
    """Hold a node's identity as the pool's authority signed it. Times are seconds since the epoch.

    The node may assert users of ``realms``, besides users of the realm of its own name. ``authority`` is the
    key identifier of the anchor that signed the certificate.
    """

    pool: str
    node: NodeName
    serial: int
    issued_at: float
    expires_at: float
    realms: frozenset[str]
    assertion_key: bytes
    authority: str

    def may_assert(self, realm: str) -> bool:
        """Return True if the node may assert users of this realm."""
        return realm == self.node or realm in self.realms


@functools.lru_cache(maxsize=REMEMBERED)
def read_node_certificate(pem: bytes) -> NodeCertificate:
    """Read a certificate whose signature TLS has checked. Raises PermissionRefused if it is no node's."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        return _read(certificate)
    except (ValueError, x509.ExtensionNotFound, x509.DuplicateExtension, UnsupportedAlgorithm) as error:
        raise PermissionRefused(
            f"the client's certificate is not one of a node of a pool: {error}",
            hint="a node gets its certificate by `gpushare node join`",
        ) from error


def _read(certificate: x509.Certificate) -> NodeCertificate:
    pool, node, realms = _names(certificate)
    key = certificate.extensions.get_extension_for_oid(ASSERTION_KEY_OID).value
    assert isinstance(key, x509.UnrecognizedExtension)
    if len(key.value) != ASSERTION_KEY_BYTES:
        raise ValueError("its key for assertions is none")
    return NodeCertificate(
        pool=pool,
        node=node,
        serial=certificate.serial_number,
        issued_at=certificate.not_valid_before_utc.timestamp() + BACKDATED_SECONDS,
        expires_at=certificate.not_valid_after_utc.timestamp(),
        realms=realms,
        assertion_key=key.value,
        authority=issuer_id(certificate),
    )


def _names(certificate: x509.Certificate) -> tuple[str, NodeName, frozenset[str]]:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    identities = [match.groups() for match in map(_URI.fullmatch, uris) if match]
    nodes = [(pool, name) for pool, kind, name in identities if kind == "node"]
    if len(nodes) != 1:
        raise ValueError("it does not name exactly one node")
    ((pool, node),) = nodes
    realms = frozenset(name for its_pool, kind, name in identities if kind == "realm" and its_pool == pool)
    return pool, NodeName(node), realms


def issuer_id(certificate: x509.Certificate) -> str:
    """Return the key identifier of the certificate's signer in hexadecimal digits (RFC 5280, 4.2.1.1)."""
    identifier = certificate.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    return (identifier.key_identifier or b"").hex()


def own_id(certificate: x509.Certificate) -> str:
    """Return an anchor's key identifier, which the certificates that it signed carry (RFC 5280, 4.2.1.2)."""
    return x509.SubjectKeyIdentifier.from_public_key(certificate.public_key()).digest.hex()


def digest_of(certificate: x509.Certificate) -> str:
    """Return the SHA-256 of a certificate in small letters and digits of base 32; a join token pins it."""
    return base64.b32encode(certificate.fingerprint(hashes.SHA256())).decode().rstrip("=").lower()


def pem_of(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def offset_words(seconds: float) -> str:
    """Return the offset as text, such as ``3600 s ahead of`` or ``90 s behind``."""
    if seconds != seconds:  # noqa: PLR0124 - NaN, which is no offset
        return "no time beside"
    return f"{abs(seconds):.0f} s {'ahead of' if seconds >= 0 else 'behind'}"


def check_clock(whose: str, other_time: float, own_time: float) -> None:
    """Raises PermissionRefused with the measured offset if two clocks are too far apart."""
    if not abs(other_time - own_time) <= TOLERANCE_SECONDS:
        raise PermissionRefused(
            f"the clock of {whose} is {offset_words(other_time - own_time)} the coordinator's; at most "
            f"{TOLERANCE_SECONDS} s are tolerated",
            hint="set the clock that is wrong, best on both machines by NTP: `timedatectl set-ntp true`",
        )


@dataclass(frozen=True, slots=True)
class Address:
    """Hold a host and a port. An IPv6 ``host`` is in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def at(self, port: int) -> Address:
        return Address(self.host, port)


def read_address(text: str, port: int = USERS_PORT) -> Address:
    """Read ``HOST``, ``HOST:PORT``, ``[::1]:PORT`` or ``::1``. Raises RequestError."""
    if _BARE_V6.fullmatch(text):
        text = f"[{text}]"
    host, colon, digits = text.rpartition(":")
    if not colon or host.startswith("[") != host.endswith("]"):
        host, digits = text, str(port)
    if _HOST.fullmatch(host) is None or not digits.isdecimal() or not 0 < int(digits[:6]) < 2**16:
        raise RequestError(f"{shown(text)} is no address", hint="write HOST or HOST:PORT, as dgx:7440")
    return Address(host, int(digits))
