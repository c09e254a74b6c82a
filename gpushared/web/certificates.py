"""Keep the certificate of the page's TLS listener: read it from files, and again when the files change.

Renewals replace the certificate and its key one after the other, so that the two may not fit for a moment.
A pair that cannot be used raises a trouble, and connections get the last good pair meanwhile.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from gpushared.daemon.files import as_config_error
from gpushared.daemon.tasks import within
from gpushared.daemon.troubles import Troubles
from gpushared.domain.model.errors import ConfigError

log = logging.getLogger(__name__)

PART = "web certificate"
LOOK_SECONDS = 5.0
NO_ACCESS = 0o027
"""Nobody but the owner may write a key, and nobody but the owner and the group may read it (as ``ssl-cert``)."""
MAX_FILE_BYTES = 1 << 20
SOON_SECONDS = 7 * 24 * 3600
UNREADABLE = (
    x509.ExtensionNotFound,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Name the files: the server's chain and its key, and the authority of proxies' certificates, if any."""

    certificate: str
    key: str
    proxy_ca: str = ""


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """Hold a certificate that was read: the context of new connections, its names, and its end."""

    context: ssl.SSLContext
    names: tuple[str, ...]
    expires_at: float


class CertificateFiles:
    """Read the files that ``files`` returns now; None means no TLS. ``changed`` is called after each new result."""

    def __init__(
        self,
        files: Callable[[], TlsFiles | None],
        troubles: Troubles,
        now: Callable[[], float],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._files = files
        self._troubles = troubles
        self._now = now
        self._changed = changed
        self._seen: object = None
        self._reloaded = asyncio.Event()
        self.current: ServerCertificate | None = None

    def reload(self) -> None:
        """Look at the files now."""
        self._seen = None
        self._reloaded.set()

    async def run(self) -> None:
        """Look at the files for ever."""
        while True:
            self._reloaded.clear()
            await self.look()
            await within(self._reloaded, LOOK_SECONDS)

    async def look(self) -> None:
        """Read the files if they are new. A pair that cannot be used leaves the last good one."""
        files = self._files()
        if files is None:
            self._troubles.cleared(PART)
            if self.current is not None:
                self.current, self._seen = None, None
                self._changed()
            return
        try:
            await self._read(files)
        except ConfigError as error:
            self._troubles.raised(PART, f"the page's certificate: {error.message} ({error.hint})")

    async def _read(self, files: TlsFiles) -> None:
        seen = await asyncio.to_thread(_marks, files)
        if seen != self._seen:
            self.current = await asyncio.to_thread(load, files)
            self._seen = seen
            log.info("certificate read names=%s", ",".join(self.current.names))
            self._changed()
        assert self.current is not None, "it was read"
        if (problem := _expiry(self.current, self._now())) is not None:
            raise problem
        self._troubles.cleared(PART)


def load(files: TlsFiles) -> ServerCertificate:
    """Return the certificate of the files. Blocks for some reads; raises ConfigError."""
    certificate = _certificate_in(files.certificate, "certificate")
    _check_key(files.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        # A key with a password would otherwise ask for it at the daemon's terminal.
        context.load_cert_chain(files.certificate, files.key, password=lambda: "")
    except (ssl.SSLError, OSError, ValueError) as error:
        raise ConfigError(
            f"{files.certificate} and {files.key} cannot be used together",
            hint="the key must belong to the first certificate of the file, in PEM, without a password",
        ) from error
    if files.proxy_ca:
        _trust_proxies(context, files.proxy_ca)
    return ServerCertificate(context, _names(certificate), certificate.not_valid_after_utc.timestamp())


def _trust_proxies(context: ssl.SSLContext, path: str) -> None:
    """Ask clients for certificates of this authority, and let clients in that have none: most are browsers."""
    _certificate_in(path, "authority")
    try:
        context.load_verify_locations(cafile=path)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"the certificates in {path} cannot be used", hint="the file has certificates in PEM only"
        ) from error
    context.verify_mode = ssl.CERT_OPTIONAL


def _check_key(path: str) -> None:
    with as_config_error(Path(path), "cannot be read"):
        mode = Path(path).stat().st_mode & 0o777
    if mode & NO_ACCESS:
        raise ConfigError(
            f"the private key {path} may be used by others (mode {mode:04o})", hint=f"chmod 600 {path}"
        )


def _certificate_in(path: str, kind: str) -> x509.Certificate:
    with as_config_error(Path(path), "cannot be read"), Path(path).open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{path} is too long for a {kind}", hint="is it the right file?")
    try:
        return x509.load_pem_x509_certificate(data)
    except ValueError as error:
        raise ConfigError(
            f"{path} has no certificate in PEM", hint="it begins with -----BEGIN CERTIFICATE-----"
        ) from error


def _names(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the host names and addresses for which browsers accept the certificate, but no wildcards."""
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except UNREADABLE:
        return ()
    names = extension.get_values_for_type(x509.DNSName)
    addresses = map(str, extension.get_values_for_type(x509.IPAddress))
    return (*(name.lower() for name in names if "*" not in name), *addresses)


def _expiry(certificate: ServerCertificate, now: float) -> ConfigError | None:
    remaining_seconds = certificate.expires_at - now
    if remaining_seconds > SOON_SECONDS:
        return None
    day = dt.datetime.fromtimestamp(certificate.expires_at, dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
    verb = "expires" if remaining_seconds > 0 else "has expired"
    return ConfigError(f"it {verb} on {day}", hint="renew the files; the daemon reads them by itself")


def _marks(files: TlsFiles) -> object:
    """Return marks that tell one state of the files from another."""
    return files, tuple(_mark(path) for path in (files.certificate, files.key, files.proxy_ca) if path)


def _mark(path: str) -> tuple[int, ...]:
    try:
        stat = os.stat(path)  # noqa: PTH116 - the path is text
    except OSError:
        return ()
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_mode)
