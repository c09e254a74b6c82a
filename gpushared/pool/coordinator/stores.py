"""Open the store that a coordinator's configuration names: a SQLite file, or a prefix in etcd."""

from __future__ import annotations

from pathlib import Path

from gpushared.config.pool_settings import CoordinatorConfig
from gpushared.domain.model.errors import ConfigError
from gpushared.pool.trust.authority import Authority
from gpushared.pool.trust.trust import CA_FOLDER
from gpushared.ports.job_store import JobStore
from gpushared.storage.etcd.access import EtcdAccess, endpoints_of
from gpushared.storage.etcd.store import EtcdStore
from gpushared.storage.job_store import SqliteStore

STORE_NAME = "pool.db"
MARK_NAME = "high-water.json"
SQLITE_SCHEME = "sqlite:"
MOVED = ".moved"
"""A file whose records have moved to etcd has this at the end of its name."""


def open_store(config: CoordinatorConfig, url: str | None = None, *, for_filling: bool = False) -> JobStore:
    """Return the store with this address, or the configured one; ``sqlite:`` is the file in its usual place.

    Raises ConfigError.
    """
    url = config.store.url if url is None else url
    if not url or url.startswith(SQLITE_SCHEME):
        path = sqlite_path(config, url)
        if not path.exists() and (moved := Path(f"{path}{MOVED}")).exists():
            raise ConfigError(
                f"the store has moved away: {moved} is what it was",
                hint="set [store] url to where it went, or migrate it back",
            )
        return SqliteStore(path, mark=mark_path(config))
    return EtcdStore(
        etcd_access(config, url),
        etcd_prefix(config),
        name=config.coordinator.advertise,
        for_filling=for_filling,
    )


def sqlite_path(config: CoordinatorConfig, url: str) -> Path:
    """Return the coordinator's file, which is the only one. Raises ConfigError for another path."""
    path = Path(config.coordinator.state_dir, STORE_NAME)
    if url.removeprefix(SQLITE_SCHEME) not in {"", str(path)}:
        raise ConfigError(f"a store in a file is always {path}", hint=f"write {SQLITE_SCHEME}")
    return path


def etcd_access(config: CoordinatorConfig, url: str) -> EtcdAccess:
    """Return the members of this address with the configured credentials. Raises ConfigError."""
    section = config.store
    access = EtcdAccess(
        endpoints_of(url),
        ca_file=section.ca_file,
        cert_file=section.cert_file,
        key_file=section.key_file,
        user=section.user,
        password_file=section.password_file,
    )
    access.check()
    return access


def etcd_prefix(config: CoordinatorConfig) -> str:
    """Return what the store's keys begin with. Raises ConfigError if there is no pool to name it after."""
    if config.store.prefix:
        return config.store.prefix
    return f"/gpushare/{config.coordinator.name or Authority.load(ca_folder(config)).pool}/"


def mark_path(config: CoordinatorConfig) -> Path:
    """Return the file that notes how far the store was."""
    return ca_folder(config) / MARK_NAME


def ca_folder(config: CoordinatorConfig) -> Path:
    """Return the folder of the pool's certificate authority."""
    return Path(config.coordinator.state_dir) / CA_FOLDER
