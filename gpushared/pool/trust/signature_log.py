"""Record the authority's signatures and revocations: the list of members that survives the loss of the store.

The record is a file beside the authority's keys. Lines are only ever added to it, and each line is durable
before its content is told to anybody.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushared.daemon.files import PRIVATE, sync_folder, telling
from gpushared.domain.jobs.job import NodeName
from gpushared.domain.model.errors import ConfigError, Unavailable
from gpushared.pool.trust.certificates import NodeCertificate

LEDGER_FILE = "issued.jsonl"


@dataclass(frozen=True, slots=True)
class LedgerMember:
    """A node that is a member as far as the authority knows, with those of its newest certificate."""

    node: NodeName
    enrolled_at: float
    realms: frozenset[str]
    serial: int
    authority: str
    expires_at: float


class SignatureLog:
    """Reads itself once, then only writes. Not for several processes at a time."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError."""
        self._path = path
        self._members: dict[NodeName, LedgerMember] = {}
        self._serials: dict[NodeName, set[int]] = {}
        self._revoked: set[int] = set()
        self._revoked_at: dict[NodeName, float] = {}
        with telling(path, "cannot be read"):
            self._end = self._replay(path.read_bytes() if path.exists() else b"")

    def _replay(self, data: bytes) -> int:
        """Apply all whole lines and return the end of the last one.

        A line that was cut off was told to nobody.
        """
        end = data.rfind(b"\n") + 1
        for number, line in enumerate(data[:end].splitlines(), start=1):
            try:
                self._apply(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(
                    f"{self._path}, line {number}, cannot be read: {error}",
                    hint="put the file back from a backup: the line is a node's certificate",
                ) from error
        return end

    # --- reading ---------------------------------------------------------------------------------------

    def members(self) -> dict[NodeName, LedgerMember]:
        """Return all members that have a certificate that was not revoked, expired or not."""
        return dict(self._members)

    def member(self, node: NodeName) -> LedgerMember | None:
        return self._members.get(node)

    def realms_in_use(self) -> dict[str, NodeName]:
        """The realms given to nodes besides their own, each with one of those nodes."""
        return {realm: one.node for one in self._members.values() for realm in sorted(one.realms)}

    def is_revoked(self, certificate: NodeCertificate) -> bool:
        """One that this ledger does not know (it is an old copy) counts by when it was made."""
        if certificate.serial in self._revoked:
            return True
        known = certificate.serial in self._serials.get(certificate.node, ())
        revoked_at = self._revoked_at.get(certificate.node)
        return not known and revoked_at is not None and certificate.issued_at <= revoked_at

    # --- writing ---------------------------------------------------------------------------------------

    def issued(self, certificate: NodeCertificate, at: float, *, token: str = "") -> None:
        """Raises Unavailable, and then nothing may be told of the certificate."""
        self._append(
            {
                "what": "issued",
                "at": at,
                "node": certificate.node,
                "serial": f"{certificate.serial:x}",
                "expires_at": certificate.expires_at,
                "realms": sorted(certificate.realms),
                "authority": certificate.authority,
                "token": token,
            }
        )

    def revoke(self, node: NodeName, by: str, at: float) -> None:
        """All certificates that the node has. Raises Unavailable."""
        self._append({"what": "revoked", "at": at, "node": node, "by": by})

    def _append(self, line: dict[str, Any]) -> None:
        data = json.dumps(line).encode() + b"\n"
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
            try:
                os.ftruncate(descriptor, self._end)
                os.pwrite(descriptor, data, self._end)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            sync_folder(self._path.parent)
        except OSError as error:
            hint = "is the disk full?"
            raise Unavailable(f"{self._path} cannot be written: {error.strerror}", hint=hint) from error
        self._end += len(data)
        self._apply(line)

    def _apply(self, line: dict[str, Any]) -> None:
        node = NodeName(line["node"])
        if line["what"] == "revoked":
            self._revoked |= self._serials.get(node, set())
            self._revoked_at[node] = float(line["at"])
            self._members.pop(node, None)
            return
        serial = int(line["serial"], 16)
        self._serials.setdefault(node, set()).add(serial)
        before = self._members.get(node)
        self._members[node] = LedgerMember(
            node=node,
            enrolled_at=before.enrolled_at if before else float(line["at"]),
            realms=frozenset(line["realms"]),
            serial=serial,
            authority=line["authority"],
            expires_at=float(line["expires_at"]),
        )
