"""Hold where etcd's members are and how a coordinator shows who it is; read the certificates' files."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import grpc

from gpushared.config.store_settings import ETCD_SCHEME, is_etcd_url
from gpushared.domain.model.errors import ConfigError

FileStamp = tuple[str, int, int, int]
"""Hold a file's path, time of change in nanoseconds, size and inode number."""


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """Hold the members' addresses and the coordinator's credentials; without ``ca_file`` TLS is not used."""

    endpoints: tuple[str, ...]
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    user: str = ""
    password_file: str = ""

    def check(self) -> None:
        """Raise ConfigError for settings that do not fit together."""
        if bool(self.cert_file) != bool(self.key_file):
            raise ConfigError("store.cert_file and store.key_file belong together", hint="set both or none")
        if self.cert_file and not self.ca_file:
            raise ConfigError(
                "store.cert_file needs store.ca_file",
                hint="name the authority that signed the certificates of etcd's members",
            )
        if bool(self.user) != bool(self.password_file):
            raise ConfigError("store.user and store.password_file belong together", hint="set both or none")
        remote = [endpoint for endpoint in self.endpoints if not is_loopback(endpoint)]
        if remote and not self.ca_file:
            raise ConfigError(
                f"etcd's member {remote[0]} is on another machine, and store.ca_file is not set",
                hint="whoever reads the network would read the pool's jobs and could write them: use TLS",
            )

    async def password(self) -> str:
        """Read the password anew. Raises ConfigError."""
        return (await asyncio.to_thread(_read, self.password_file)).decode().strip()

    async def stamps(self) -> tuple[FileStamp, ...]:
        """Return what tells that a certificate's file was replaced. Raises ConfigError."""
        return await asyncio.to_thread(lambda: tuple(map(_stamp, self._files)))

    async def credentials(self) -> grpc.ChannelCredentials | None:
        """Read the certificates' files; return None without TLS. Raises ConfigError."""
        if not self.ca_file:
            return None
        ca, *cert_and_key = await asyncio.to_thread(lambda: [_read(file) for file in self._files])
        return grpc.ssl_channel_credentials(ca, *reversed(cert_and_key))

    @property
    def _files(self) -> tuple[str, ...]:
        return tuple(file for file in (self.ca_file, self.cert_file, self.key_file) if file)


def endpoints_of(url: str) -> tuple[str, ...]:
    """Return the addresses of ``etcd://HOST:PORT,HOST:PORT``. Raises ConfigError."""
    if not is_etcd_url(url):
        raise ConfigError(
            f"'{url}' does not name members of etcd", hint="write etcd://host1:2379,host2:2379,host3:2379"
        )
    return tuple(url.removeprefix(ETCD_SCHEME).rstrip("/").split(","))


def is_loopback(endpoint: str) -> bool:
    host = endpoint.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be read: {error.strerror}", hint="see [store]; the coordinator's user reads it"
        ) from error


def _stamp(file: str) -> FileStamp:
    try:
        stat = Path(file).stat()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}", hint="see [store]") from error
    return (file, stat.st_mtime_ns, stat.st_size, stat.st_ino)
