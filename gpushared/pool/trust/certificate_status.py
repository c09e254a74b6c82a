"""Record the authority's signatures and revocations, and check if a node's certificate is valid now.

The record is a file beside the authority's keys. The authority only appends lines to the file, and each line
is durable before its content is sent to anybody.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushared.daemon.files import PRIVATE, as_config_error, sync_folder
from gpushared.domain.jobs.job import NodeName
from gpushared.domain.model.errors import ConfigError, GpushareError, PermissionRefused, Unavailable
from gpushared.pool.trust.authority import Authority
from gpushared.pool.trust.certificates import TOLERANCE_SECONDS, NodeCertificate

LEDGER_FILE = "issued.jsonl"
REVOKED = "was revoked"
_AGAIN = (
    "let it join again: gpushare pool token --node {0} on the coordinator's machine; on {0} gpushare node "
    "leave, then gpushare node join"
)

Line = dict[str, Any]
"""A line of the record, as JSON has it."""
ProofCheck = Callable[[float], GpushareError | None]
"""Return the fault that a caller's certificate or token has at this time (epoch seconds), or None."""


@dataclass(frozen=True, slots=True)
class LedgerMember:
    """Hold a node that is a member according to the authority, with the facts of its newest certificate."""

    node: NodeName
    enrolled_at: float
    realms: frozenset[str]
    serial: int
    authority: str
    expires_at: float


class SignatureLog:
    """Read the file once, then only append to the file. One process at a time may use the file."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError."""
        self._path = path
        self._members: dict[NodeName, LedgerMember] = {}
        self._serials: dict[NodeName, set[int]] = {}
        self._revoked: set[int] = set()
        self._revoked_at: dict[NodeName, float] = {}
        with as_config_error(path, "cannot be read"):
            self._end = self._replay(path.read_bytes() if path.exists() else b"")

    def _replay(self, data: bytes) -> int:
        """Apply all whole lines and return the end of the last one.

        The content of a line that was cut off was sent to nobody.
        """
        end = data.rfind(b"\n") + 1
        for number, line in enumerate(data[:end].splitlines(), start=1):
            try:
                self.apply(json.loads(line))
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
        """Return the realms given to nodes besides their own names, each with one of the nodes."""
        return {realm: member.node for member in self._members.values() for realm in sorted(member.realms)}

    def is_revoked(self, certificate: NodeCertificate) -> bool:
        """Return True if the certificate is revoked.

        The record may be an old copy. A certificate that it lacks is revoked if it is older than the node's
        last revocation.
        """
        if certificate.serial in self._revoked:
            return True
        is_recorded = certificate.serial in self._serials.get(certificate.node, ())
        revoked_at = self._revoked_at.get(certificate.node)
        return not is_recorded and revoked_at is not None and certificate.issued_at <= revoked_at

    # --- writing ---------------------------------------------------------------------------------------

    def issued(self, certificate: NodeCertificate, at: float, *, token: str = "") -> None:
        """Record a new certificate. Raises Unavailable; then the certificate must not be sent."""
        self.append(issued_line(certificate, at, token=token))

    def revoke(self, node: NodeName, by: str, at: float) -> None:
        """Revoke all certificates that the node has. Raises Unavailable."""
        self.append(revoked_line(node, by, at))

    def append(self, line: Line) -> None:
        """Write a line durably, and apply it. Raises Unavailable."""
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
        self.apply(line)

    def lines_of_file(self) -> list[bytes]:
        """Return all whole lines of the file. Raises ConfigError."""
        with as_config_error(self._path, "cannot be read"):
            data = self._path.read_bytes() if self._path.exists() else b""
        return data[: data.rfind(b"\n") + 1].splitlines()

    def take(self, lines: Iterable[bytes]) -> None:
        """Replace the record by these lines. Raises ConfigError, and then changes nothing."""
        before = self._members, self._serials, self._revoked, self._revoked_at
        self._members, self._serials, self._revoked, self._revoked_at = {}, {}, set(), {}
        try:
            for line in lines:
                self.apply(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            self._members, self._serials, self._revoked, self._revoked_at = before
            raise ConfigError(
                f"a line of the pool's ledger cannot be read: {error}", hint="restore a backup of the store"
            ) from error

    def apply(self, line: Line) -> None:
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


def issued_line(certificate: NodeCertificate, at: float, *, token: str = "") -> Line:
    """Return the line for a new certificate."""
    return {
        "what": "issued",
        "at": at,
        "node": certificate.node,
        "serial": f"{certificate.serial:x}",
        "expires_at": certificate.expires_at,
        "realms": sorted(certificate.realms),
        "authority": certificate.authority,
        "token": token,
    }


def revoked_line(node: NodeName, by: str, at: float) -> Line:
    """Return the line that revokes all certificates of a node."""
    return {"what": "revoked", "at": at, "node": node, "by": by}


class CertificateStatus:
    """Check certificates whose signatures TLS has verified already."""

    def __init__(self, authority: Authority, ledger: SignatureLog) -> None:
        self._authority = authority
        self._ledger = ledger
        self.on_invalid: Callable[[NodeName, GpushareError], None] = lambda _, __: None
        """``look_again`` calls this once for each noted node whose certificate became invalid."""
        self._noted: dict[NodeName, NodeCertificate] = {}
        self._open: dict[asyncio.Future[GpushareError], ProofCheck] = {}

    def proof_check(self, certificate: NodeCertificate) -> ProofCheck:
        """Return a function that finds the certificate's fault at any later time."""
        return lambda now: self._problem(certificate, now)

    def check(self, certificate: NodeCertificate, now: float) -> None:
        """Raises PermissionRefused."""
        if (problem := self._problem(certificate, now)) is not None:
            raise problem

    def _problem(self, certificate: NodeCertificate, now: float) -> PermissionRefused | None:
        node, pool = certificate.node, self._authority.pool
        again = _AGAIN.format(node)
        if certificate.pool != pool:
            return PermissionRefused(
                f"node {node} is of the pool {certificate.pool}, and this is {pool}", hint=again
            )
        if self._ledger.is_revoked(certificate):
            return PermissionRefused(f"the certificate of node {node} {REVOKED}", hint=again)
        if not self._authority.trusts(certificate.authority):
            why = "is signed by an authority that this pool has replaced"
            back = f"a node that has a newer one comes back with it by itself; for another one: {again}"
            return PermissionRefused(f"the certificate of node {node} {why}", hint=back)
        if now >= certificate.expires_at + TOLERANCE_SECONDS:
            ago = f"{now - certificate.expires_at:.0f} s ago"
            return PermissionRefused(
                f"the certificate of node {node} expired {ago} by the coordinator's clock",
                hint=f"is the clock right (`timedatectl`)? Otherwise {again}",
            )
        return None

    def note(self, certificate: NodeCertificate) -> None:
        """Note that a node is connected with this certificate, which replaces the previous one."""
        self._noted[certificate.node] = certificate

    def noted(self, node: NodeName) -> NodeCertificate | None:
        """Return the certificate with which the node connected last, while the certificate is valid."""
        return self._noted.get(node)

    @contextmanager
    def watching(self, proof_check: ProofCheck) -> Iterator[asyncio.Future[GpushareError]]:
        """Watch an open stream; the future gets the reason to close the stream."""
        gone: asyncio.Future[GpushareError] = asyncio.get_running_loop().create_future()
        self._open[gone] = proof_check
        try:
            yield gone
        finally:
            del self._open[gone]
            gone.cancel()

    def look_again(self, now: float) -> None:
        """Check all open streams and noted nodes again.

        The callers run this after a revocation, after a change of the anchors, and from time to time, because
        certificates and tokens expire.
        """
        for gone, proof_check in list(self._open.items()):
            problem = proof_check(now)
            if problem is not None and not gone.done():
                gone.set_result(problem)
        for node, certificate in list(self._noted.items()):
            problem = self._problem(certificate, now)
            if problem is not None:
                del self._noted[node]
                self.on_invalid(node, problem)
