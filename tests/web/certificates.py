"""Certificates for tests of TLS: authorities, servers, clients."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class KeyPair:
    """A certificate and its key, in files."""

    certificate: Path
    key: Path


class CertificateMaker:
    """Make certificates of one authority below a folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(self._name, self._name, self._key.public_key(), 30 * DAY).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self.path = folder / f"{name}.pem"
        self.path.write_bytes(
            builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )

    def server(self, file: str, *names: str, life: dt.timedelta = 30 * DAY) -> KeyPair:
        """Make a server's certificate, and replace the files of an older one."""
        return self._pair(file, names or ("localhost", "127.0.0.1"), life, ExtendedKeyUsageOID.SERVER_AUTH)

    def client(self, file: str) -> KeyPair:
        return self._pair(file, (file,), 30 * DAY, ExtendedKeyUsageOID.CLIENT_AUTH)

    def _pair(
        self, file: str, names: tuple[str, ...], life: dt.timedelta, usage: x509.ObjectIdentifier
    ) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        builder = (
            _builder(subject, self._name, key.public_key(), life)
            .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        )
        pair = KeyPair(self._folder / f"{file}.pem", self._folder / f"{file}.key")
        pair.certificate.write_bytes(
            builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )
        pair.key.touch(mode=0o600)
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return pair


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, life: dt.timedelta
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 2 * DAY)
        .not_valid_after(now + life)
    )


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
