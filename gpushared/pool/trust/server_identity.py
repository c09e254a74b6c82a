"""The coordinator's own certificate and whom its ports trust, replaced while connections go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import grpc

from gpushared.pool.trust.authority import Authority, key_pem, new_key
from gpushared.pool.trust.certificates import pem_of

REISSUE_SECONDS = 10 * 24 * 3600
"""A third of a certificate's life."""


class ServerIdentity:
    """Its key never leaves the process; the certificate is signed at each start, as the authority is here."""

    def __init__(self, authority: Authority, hosts: Sequence[str], now: float) -> None:
        self._authority = authority
        self._hosts = tuple(hosts)
        self._version = 0
        self._made_at = now
        self._configuration = self._made(now)

    def refresh(self, now: float) -> None:
        """A new certificate where the old one is no longer young; before its time where the clock jumped."""
        if not 0 <= now - self._made_at < REISSUE_SECONDS:
            self.replace(now)

    def replace(self, now: float) -> None:
        """A new certificate, and whom the authority trusts now, for all new connections."""
        self._configuration = self._made(now)
        self._made_at = now
        self._version += 1

    def _made(self, now: float) -> grpc.ServerCertificateConfiguration:
        key = new_key()
        certificate = self._authority.sign_coordinator(key.public_key(), self._hosts, now)
        return grpc.ssl_server_certificate_configuration(
            [(key_pem(key), pem_of(certificate))], root_certificates=self._authority.anchors_pem
        )

    def for_users(self) -> grpc.ServerCredentials:
        """Return credentials for the port of users with tokens and joining nodes, who need no certificate."""
        return self._credentials(asks_clients=False)

    def for_nodes(self) -> grpc.ServerCredentials:
        """Return credentials for the port where clients need a certificate that the pool's authority signed.

        The port is one of its own, because grpc's servers ask either all clients for a certificate or none.
        """
        return self._credentials(asks_clients=True)

    def _credentials(self, *, asks_clients: bool) -> grpc.ServerCredentials:
        return grpc.dynamic_ssl_server_credentials(
            self._configuration,
            self._newer_than_given(),  # type: ignore[arg-type]  # grpc takes None for "as before"
            require_client_authentication=asks_clients,
        )

    def _newer_than_given(self) -> Callable[[], grpc.ServerCertificateConfiguration | None]:
        """Return the function that grpc calls at each handshake, in a thread of its own: None = as before."""
        given = self._version

        def newer() -> grpc.ServerCertificateConfiguration | None:
            nonlocal given
            if given == self._version:
                return None
            given = self._version
            return self._configuration

        return newer
