"""Hold what the measurements of a pool share: a real coordinator, and members that speak real streams to it."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpushared.domain.jobs.job import NodeName
from gpushared.domain.jobs.member import Member
from gpushared.jobs.job_records import MEMBER, cut, member_bytes
from gpushared.pool.coordinator.stores import STORE_NAME
from gpushared.pool.member.enrolment import make_csr
from gpushared.pool.trust.authority import Authority, key_pem, new_key
from gpushared.pool.trust.certificate_status import LEDGER_FILE, SignatureLog
from gpushared.pool.trust.certificates import pem_of, read_node_certificate
from gpushared.pool.trust.trust import CA_FOLDER
from gpushared.storage.job_store import SqliteStore

COORDINATOR = "from gpushared.pool.coordinator.main import main; main(prog_name='gpushared-pool')"
"""The command, also where its entry point is not installed."""
MEMBERS = Path(__file__).with_name("members.py")
MIB = 1024 * 1024
READY_SECONDS = 60


@dataclass
class Pool:
    """A coordinator in a folder of its own; may be started again."""

    home: Path
    users_port: int
    nodes_port: int
    names: Sequence[str]
    credentials: Path
    process: subprocess.Popen[bytes] | None = field(default=None)

    def start(self) -> None:
        """Comes back when it takes connections of nodes."""
        words = [sys.executable, "-c", COORDINATOR, "--allow-root"]
        words += ["--state-dir", str(self.home / "s"), "--runtime-dir", str(self.home / "r")]
        words += ["--listen", f"127.0.0.1:{self.users_port}"]
        words += ["--listen-nodes", f"127.0.0.1:{self.nodes_port}"]
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(words, stderr=log)
        until = time.monotonic() + READY_SECONDS
        while not _answers(self.nodes_port):
            if self.process.poll() is not None or time.monotonic() > until:
                raise SystemExit((self.home / "log").read_text()[-2000:])
            time.sleep(0.05)

    def kill(self) -> None:
        """As a machine that loses its power."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    @property
    def usage(self) -> psutil.Process:
        assert self.process is not None
        return psutil.Process(self.process.pid)


@contextmanager
def pool_of(nodes: int, *, settled: bool = False) -> Iterator[Pool]:
    """A pool with so many enrolled nodes; its coordinator is not started yet.

    ``settled``: its store knows the nodes; else it takes itself for one that lost its memory.
    """
    home = Path(tempfile.mkdtemp(prefix="gsp-"))
    names = [f"n{number:04}" for number in range(nodes)]
    pool = Pool(home, _free_port(), _free_port(), names, home / "credentials.json")
    _enrol(pool)
    if settled:
        asyncio.run(_note_members(pool))
    try:
        yield pool
    finally:
        pool.kill()
        shutil.rmtree(home, ignore_errors=True)


def _enrol(pool: Pool) -> None:
    folder, now = pool.home / "s" / CA_FOLDER, time.time()
    authority = Authority.create(folder, "bench", now)
    ledger = SignatureLog(folder / LEDGER_FILE)
    made = {}
    for name in pool.names:
        key, speaks = new_key(), Ed25519PrivateKey.generate()
        signed = authority.sign_node(make_csr(key, speaks), NodeName(name), frozenset(), now)
        ledger.issued(read_node_certificate(pem_of(signed)), now)
        made[name] = {
            "key": key_pem(key).decode(),
            "certificate": pem_of(signed).decode(),
            "speaks": speaks.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ).decode(),
        }
    text = json.dumps({"anchors": authority.anchors_pem.decode(), "nodes": made})
    pool.credentials.write_text(text)


async def _note_members(pool: Pool) -> None:
    store = SqliteStore(pool.home / "s" / STORE_NAME)
    try:
        epoch, now = await store.lead(), time.time()
        members = [Member(NodeName(name), now, (name,)) for name in pool.names]
        for chunk in cut([[{MEMBER + one.name: member_bytes(one)} for one in members]]):
            await store.commit(chunk.transaction(epoch))
    finally:
        await store.close()


@contextmanager
def members(pool: Pool, processes: int, *more: str | Path) -> Iterator[list[Members]]:
    """All nodes of the pool, simulated in so many processes. ``more``: another program, and its options."""
    groups = [Members(pool, pool.names[number::processes], *more) for number in range(processes)]
    try:
        yield groups
    finally:
        for group in groups:
            group.end()


class Members:
    """One process with some of the nodes; tells what becomes of their links, a line of JSON each."""

    def __init__(
        self, pool: Pool, names: Sequence[str], program: str | Path = MEMBERS, *options: str | Path
    ) -> None:
        words = [sys.executable, program, pool.credentials, f"127.0.0.1:{pool.nodes_port}", *names, *options]
        with (pool.home / "members.log").open("ab") as log:
            self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log)
        self.names = names

    def lines(self, until_connected: int) -> list[dict[str, float]]:
        """What they tell until so many links came up."""
        told: list[dict[str, float]] = []
        assert self.process.stdout is not None
        while sum(bool(line["up"]) for line in told) < until_connected:
            text = self.process.stdout.readline()
            if not text:
                raise SystemExit("the simulated nodes ended")
            told.append(json.loads(text))
        return told

    def told(self) -> dict[str, Any]:
        """What those who work did since they were last asked."""
        assert self.process.stdout is not None
        self.process.send_signal(signal.SIGUSR1)
        while True:
            line: dict[str, Any] = json.loads(self.process.stdout.readline())
            if "placed" in line:
                return line

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0
