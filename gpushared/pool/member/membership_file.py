"""Keep a node's record of its pool in one secret file, replaced whole so that key and certificate agree."""

from __future__ import annotations

import functools
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpushared.daemon.files import (
    as_config_error,
    make_private_folder,
    read_private,
    sync_folder,
    write_private,
)
from gpushared.domain.model.coordinator_addresses import divided
from gpushared.domain.model.errors import ConfigError, GpushareError
from gpushared.pool.trust.certificates import NodeCertificate, read_node_certificate

MEMBERSHIP_FILE = "membership.json"


@dataclass(frozen=True, slots=True)
class Membership:
    """Hold a node's keys, certificates (PEM) and addresses in its pool.

    ``address`` is the users' port, ``node_address`` the nodes' port, each a list if a person gave a list, the
    working one first. The coordinators named ``addresses`` and ``node_addresses``; both are empty if there is
    only one.
    """

    pool: str
    node: str
    address: str
    node_address: str
    joined_at: float
    generation: int
    anchors: str
    certificate: str
    key: str
    assertion_key: str
    addresses: tuple[str, ...] = ()
    node_addresses: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Leave out the keys, which must not appear in logs and traces."""
        return f"Membership(pool={self.pool!r}, node={self.node!r}, generation={self.generation})"

    @property
    def facts(self) -> NodeCertificate:
        """Return the facts in the certificate."""
        return read_node_certificate(self.certificate.encode())

    @property
    def speaks(self) -> Ed25519PrivateKey:
        """Return the key that signs the node's assertions of its users."""
        return _assertion_key(self.assertion_key)

    @property
    def all_node_addresses(self) -> tuple[str, ...]:
        """Return all addresses to dial: first those that a person gave, which may be the only good ones."""
        return tuple(dict.fromkeys((*divided(self.node_address), *self.node_addresses)))

    def renewed(self, key: str, certificate: str, anchors: str, generation: int) -> Membership:
        return replace(self, key=key, certificate=certificate, anchors=anchors, generation=generation)


@functools.lru_cache(maxsize=4)
def _assertion_key(pem: str) -> Ed25519PrivateKey:
    key = serialization.load_pem_private_key(pem.encode(), password=None)
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError("the node's key for its users is of another kind", hint="join the pool again")
    return key


def _read(fields: Any) -> Membership:
    if not isinstance(fields, dict):
        raise ValueError("it holds no fields")  # noqa: TRY004 - the file is wrong, not this program
    lists: dict[str, Any] = {name: tuple(fields.pop(name, ())) for name in ("addresses", "node_addresses")}
    return Membership(**fields, **lists)


class MembershipFile:
    """Read and write the membership's file in the folder ``<state_dir>/pool``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / MEMBERSHIP_FILE

    def load(self) -> Membership | None:
        """Return the membership, or None if the node is in no pool. Raises ConfigError."""
        with as_config_error(self._path, "cannot be read"):
            if not self._path.exists():
                return None
        hint = "put it back from a backup, or join the pool again: gpushare node leave, gpushare node join"
        try:
            membership = _read(json.loads(read_private(self._path)))
            membership.facts, membership.speaks  # noqa: B018 - read both, to find errors now
        except (ValueError, TypeError, GpushareError) as error:
            raise ConfigError(f"{self._path} is damaged: {error}", hint=hint) from error
        return membership

    def save(self, membership: Membership) -> None:
        """Write the membership durably. Raises ConfigError, Unavailable."""
        make_private_folder(self._folder)
        # Leave out empty lists, so that earlier versions can read what they could have written.
        fields = {name: value for name, value in asdict(membership).items() if value != ()}
        write_private(self._path, json.dumps(fields).encode())

    def delete(self) -> None:
        """Delete the membership and its keys durably. Raises ConfigError."""
        with as_config_error(self._path, "cannot be deleted"):
            self._path.unlink(missing_ok=True)
            if self._folder.exists():
                sync_folder(self._folder)
