"""Hold the pool's certificate authority, a folder on the coordinator's machine, and sign with its anchors.

Usually the pool has one anchor. During a replacement the pool has two: the new anchor signs nodes'
certificates, and the old anchor proves the coordinator to nodes that do not know the new anchor yet.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from gpushared.daemon.files import make_private_folder, read_private, write_private
from gpushared.domain.jobs.job import NodeName
from gpushared.domain.model.errors import ConfigError, RequestError, StateConflict
from gpushared.pool.trust import certificates
from gpushared.pool.trust.certificates import ASSERTION_KEY_BYTES, ASSERTION_KEY_OID, BACKDATED_SECONDS
from gpushared.pool.trust.people import coordinator_host, coordinator_uri, node_uri, pool_name, realm_uri

DAY_SECONDS = 24 * 3600
NODE_SECONDS = 30 * DAY_SECONDS
COORDINATOR_SECONDS = 30 * DAY_SECONDS
ANCHOR_SECONDS = 3653 * DAY_SECONDS
TRUST_FILE = "trust.json"
MAX_CSR_BYTES = 16 * 1024
_NO_CSR = "gpushared makes one by itself: gpushare node join"
_CSR_ERRORS = (
    *(ValueError, UnsupportedAlgorithm, InvalidSignature, x509.InvalidVersion),
    *(x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType),
)
"""The library raises these errors for malformed requests; they have no common class."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """Hold a self-signed certificate with its key."""

    number: int
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def id(self) -> str:
        """Return the key identifier that certificates signed by this anchor carry."""
        return certificates.own_id(self.certificate)


class Authority:
    """Sign certificates for one pool. The methods read and write small files."""

    def __init__(
        self,
        folder: Path,
        pool: str,
        generation: int,
        anchors: Sequence[Anchor],
        node_seconds: int = NODE_SECONDS,
    ) -> None:
        self.pool = pool
        self.generation = generation
        """This number rises with every change of the anchors."""
        self._folder = folder
        self._anchors = tuple(anchors)
        self._node_seconds = node_seconds

    # --- the folder ------------------------------------------------------------------------------------

    @classmethod
    def create(cls, folder: Path, pool: str, now: float) -> Authority:
        """Create an authority.

        Raises StateConflict if the folder has one, RequestError for a bad pool name.
        """
        pool_name(pool)
        if (folder / TRUST_FILE).exists():
            raise StateConflict(
                f"there is a certificate authority in {folder} already",
                hint="to begin anew, which every node must then join again, move that folder away",
            )
        make_private_folder(folder)
        anchors = [_new_anchor(folder, pool, 1, now)]
        authority = cls(folder, pool, 1, anchors)
        authority._trust(1, anchors)
        return authority

    @classmethod
    def load(cls, folder: Path, node_seconds: int = NODE_SECONDS) -> Authority:
        """Read the authority from the folder. Raises ConfigError."""
        if not (folder / TRUST_FILE).exists():
            raise ConfigError(
                f"there is no pool in {folder.parent} yet",
                hint="begin one: gpushare pool init NAME; or, for one more coordinator of a pool, copy its folder "
                f"{folder.name} from another coordinator",
            )
        try:
            facts = json.loads(read_private(folder / TRUST_FILE))
            anchors = [_read_anchor(folder, int(number)) for number in facts["anchors"]]
            return cls(folder, pool_name(facts["pool"]), int(facts["generation"]), anchors, node_seconds)
        except (ValueError, KeyError, TypeError, RequestError) as error:
            hint = "put the folder back from a backup"
            raise ConfigError(
                f"the certificate authority in {folder} is damaged: {error}", hint=hint
            ) from error

    def _trust(self, generation: int, anchors: Sequence[Anchor]) -> None:
        """Trust these anchors once the change is durable. Raises Unavailable, and then changes nothing."""
        numbers = [anchor.number for anchor in anchors]
        facts = {"pool": self.pool, "generation": generation, "anchors": numbers}
        write_private(self._folder / TRUST_FILE, json.dumps(facts).encode())
        self.generation, self._anchors = generation, tuple(anchors)

    # --- for other coordinators ------------------------------------------------------------------------

    def content(self) -> bytes:
        """Return the anchors with their keys, which are secret."""
        anchors = [
            {
                "number": anchor.number,
                "certificate": certificates.pem_of(anchor.certificate).decode(),
                "key": key_pem(anchor.key).decode(),
            }
            for anchor in self._anchors
        ]
        return json.dumps({"pool": self.pool, "generation": self.generation, "anchors": anchors}).encode()

    def is_newer_than(self, content: bytes) -> bool:
        """Return True if ``content`` is what this authority once was, before its anchors changed."""
        try:
            fields = json.loads(content)
            return fields["pool"] == self.pool and int(fields["generation"]) < self.generation
        except (ValueError, KeyError, TypeError):
            return False  # ``take`` says what is wrong with it

    def take(self, content: bytes) -> None:
        """Trust the anchors of ``content`` and no others, and keep them in the folder.

        Raises ConfigError if they cannot be read or are of another pool, Unavailable.
        """
        try:
            fields = json.loads(content)
            pool, generation = str(fields["pool"]), int(fields["generation"])
            anchors = [
                _anchor_of(int(entry["number"]), entry["certificate"].encode(), entry["key"].encode())
                for entry in fields["anchors"]
            ]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            hint = "restore a backup of the store"
            raise ConfigError(f"the authority in the store cannot be read: {error}", hint=hint) from error
        if pool != self.pool:
            raise ConfigError(
                f"the authority in the store is of the pool {pool}, and the one here of {self.pool}",
                hint="is it the right [store] prefix?",
            )
        for anchor in anchors:
            write_private(_key_path(self._folder, anchor.number), key_pem(anchor.key))
            certificate = certificates.pem_of(anchor.certificate)
            write_private(_certificate_path(self._folder, anchor.number), certificate)
        dropped = {anchor.number for anchor in self._anchors} - {anchor.number for anchor in anchors}
        self._trust(generation, anchors)
        for number in dropped:
            _key_path(self._folder, number).unlink(missing_ok=True)

    # --- whom to trust ---------------------------------------------------------------------------------

    @property
    def anchors_pem(self) -> bytes:
        """Return all anchors that are trusted now, the anchor that proves the coordinator first."""
        return b"".join(certificates.pem_of(anchor.certificate) for anchor in self._anchors)

    @property
    def digest(self) -> str:
        """Return the digest that a join token pins: the digest of the anchor which proves the coordinator."""
        return certificates.digest_of(self._anchors[0].certificate)

    @property
    def signing(self) -> str:
        """Return the identifier of the anchor that signs nodes' certificates now."""
        return self._anchors[-1].id

    @property
    def rotating(self) -> bool:
        """Return True if an old anchor is still trusted beside the new one."""
        return len(self._anchors) > 1

    def trusts(self, authority: str) -> bool:
        """Return True if the signatures of the anchor with this identifier still count."""
        return any(anchor.id == authority for anchor in self._anchors)

    def begin_rotation(self, now: float) -> None:
        """Make a new anchor, and trust both. Raises StateConflict if a rotation is under way."""
        if self.rotating:
            raise StateConflict(
                "the authority is being replaced already", hint="gpushare pool rotate-ca --finish ends it"
            )
        number = self._anchors[-1].number + 1
        newest = _new_anchor(self._folder, self.pool, number, now)
        self._trust(self.generation + 1, (*self._anchors, newest))

    def finish_rotation(self) -> None:
        """Trust the new anchor alone, and delete the old anchor's key. Raises StateConflict."""
        if not self.rotating:
            raise StateConflict("nothing is being replaced", hint="gpushare pool rotate-ca begins it")
        *dropped, newest = self._anchors
        self._trust(self.generation + 1, (newest,))
        for anchor in dropped:
            _key_path(self._folder, anchor.number).unlink(missing_ok=True)

    # --- signing ---------------------------------------------------------------------------------------

    def sign_node(self, csr: bytes, node: NodeName, realms: frozenset[str], now: float) -> x509.Certificate:
        """Sign a certificate for the node and the key of its request. Raises RequestError."""
        request = read_csr(csr)
        extension = request.extensions.get_extension_for_oid(ASSERTION_KEY_OID).value
        names = [node_uri(self.pool, node), *(realm_uri(self.pool, realm) for realm in sorted(realms))]
        builder = _builder(request.public_key(), [x509.UniformResourceIdentifier(name) for name in names])
        builder = builder.add_extension(extension, critical=False)
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
        return self._sign(
            builder.add_extension(usage, critical=False), self._anchors[-1], now, self._node_seconds
        )

    def sign_coordinator(
        self, key: ec.EllipticCurvePublicKey, hosts: Sequence[str], now: float
    ) -> x509.Certificate:
        """Sign the coordinator's certificate for both its ports; ``hosts`` are its names and addresses."""
        names: list[x509.GeneralName] = [
            x509.DNSName(coordinator_host(self.pool)),
            *map(_host, hosts),
            x509.UniformResourceIdentifier(coordinator_uri(self.pool)),
        ]
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        builder = _builder(key, names).add_extension(usage, critical=False)
        return self._sign(builder, self._anchors[0], now, COORDINATOR_SECONDS)

    def _sign(
        self, builder: x509.CertificateBuilder, anchor: Anchor, now: float, seconds: int
    ) -> x509.Certificate:
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(anchor.key.public_key())
        builder = builder.issuer_name(anchor.certificate.subject).add_extension(issuer, critical=False)
        return _dated(builder, now, seconds).sign(anchor.key, hashes.SHA256())


def read_csr(pem: bytes) -> x509.CertificateSigningRequest:
    """Read a request with a P-256 key; verify that its sender holds the key. Raises RequestError."""
    if len(pem) > MAX_CSR_BYTES:
        raise RequestError("the certificate request is too long", hint=_NO_CSR)
    try:
        request = x509.load_pem_x509_csr(pem)
        extension = request.extensions.get_extension_for_oid(ASSERTION_KEY_OID).value
        key = request.public_key()
        valid = request.is_signature_valid
    except _CSR_ERRORS as error:
        raise RequestError(f"the certificate request cannot be read: {error}", hint=_NO_CSR) from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise RequestError("the key of the certificate request is not of the curve P-256", hint=_NO_CSR)
    assert isinstance(extension, x509.UnrecognizedExtension)
    if not valid or len(extension.value) != ASSERTION_KEY_BYTES:
        raise RequestError("the certificate request does not hold together", hint=_NO_CSR)
    return request


def key_digest(csr: bytes) -> str:
    """Return the digest of the key that a request is for. Raises RequestError."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    der = read_csr(csr).public_key().public_bytes(serialization.Encoding.DER, form)
    digest = hashes.Hash(hashes.SHA256())
    digest.update(der)
    return digest.finalize().hex()


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _new_anchor(folder: Path, pool: str, number: int, now: float) -> Anchor:
    """Make an anchor. The key is durable before anything can name the certificate."""
    key = new_key()
    name = x509.Name(
        [
            x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, f"gpushare pool {pool}"),
            x509.NameAttribute(x509.NameOID.COMMON_NAME, f"anchor {number}"),
        ]
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    certificate = _dated(builder, now, ANCHOR_SECONDS).sign(key, hashes.SHA256())
    write_private(_key_path(folder, number), key_pem(key))
    write_private(_certificate_path(folder, number), certificates.pem_of(certificate))
    return Anchor(number, certificate, key)


def _read_anchor(folder: Path, number: int) -> Anchor:
    """Read an anchor from its files. Raises ValueError, ConfigError."""
    certificate, key = _certificate_path(folder, number), _key_path(folder, number)
    return _anchor_of(number, read_private(certificate), read_private(key))


def _anchor_of(number: int, certificate_pem: bytes, private_pem: bytes) -> Anchor:
    """Raises ValueError."""
    key = serialization.load_pem_private_key(private_pem, password=None)
    certificate = x509.load_pem_x509_certificate(certificate_pem)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ValueError(f"the key of anchor {number} does not go with its certificate")
    return Anchor(number, certificate, key)


def _key_path(folder: Path, number: int) -> Path:
    return folder / f"anchor-{number}.key"


def _certificate_path(folder: Path, number: int) -> Path:
    return folder / f"anchor-{number}.pem"


def _builder(key: object, names: Sequence[x509.GeneralName]) -> x509.CertificateBuilder:
    """Start a leaf certificate. Its names are critical because it has no subject (RFC 5280, 4.2.1.6)."""
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .public_key(key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=True)
    )


def _dated(builder: x509.CertificateBuilder, now: float, seconds: int) -> x509.CertificateBuilder:
    at = dt.datetime.fromtimestamp(now, tz=dt.UTC)
    return (
        builder.serial_number(x509.random_serial_number())
        .not_valid_before(at - dt.timedelta(seconds=BACKDATED_SECONDS))
        .not_valid_after(at + dt.timedelta(seconds=seconds))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass
    try:
        return x509.DNSName(text.encode("idna").decode())
    except ValueError as error:
        raise ConfigError(
            f"{text!r} is neither a host's name nor an address", hint="`hostname` tells this machine's"
        ) from error
