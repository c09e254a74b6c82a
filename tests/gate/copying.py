"""Somebody without rights, with the real docker CLI before a gate, and a container of theirs that runs."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushared.gate.copies.order import Deed, Order
from tests.bed import parts
from tests.gate.docker import CommandResult
from tests.gate.people import People, Person
from tests.gate.serving import Reply, ask, request

LONGEST_SECONDS = 120


@dataclass
class Copier:
    """Alice, whose programs outside have her uid as well; ``home`` is hers."""

    both: People
    home: Path
    engine: str
    """Its socket, as root has it."""

    @property
    def alice(self) -> Person:
        return self.both.alice

    @property
    def uid(self) -> int:
        return self.alice.caller.uid

    async def docker(self, *words: str, stdin: bytes = b"") -> CommandResult:
        """The docker CLI as alice."""
        return await self.program(
            str(parts.DOCKER.resolve()), "-H", self.alice.served.url, *words, stdin=stdin
        )

    async def cp(self, *words: str, stdin: bytes = b"") -> CommandResult:
        """``docker cp``, which has to succeed."""
        done = await self.docker("cp", *words, stdin=stdin)
        assert done.code == 0, done.err
        return done

    async def program(self, *words: str, stdin: bytes = b"") -> CommandResult:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *words, stdin=pipe, stdout=pipe, stderr=pipe, cwd=self.home,
            env={"PATH": os.environ["PATH"], "HOME": str(self.home), "DOCKER_CONFIG": "/nonexistent"},
            user=self.uid, group=self.uid, extra_groups=[],
        )  # fmt: skip
        async with asyncio.timeout(LONGEST_SECONDS):
            out, err = await process.communicate(stdin)
        assert process.returncode is not None
        return CommandResult(process.returncode, out, err)

    async def runs(self, script: str = "true", **host: object) -> str:
        """A container in which the script has come to its end, and which goes on."""
        container = await self.alice.run(
            "", "sh", "-c", f"{script}; touch /tmp/.ready; exec sleep 600", **host
        )
        await self.ready(container)
        return container

    async def start(self, container: str) -> None:
        assert (await self.alice.ask("POST", f"/containers/{container}/start")).status == 204

    async def runs_as_root(self, image: str) -> str:
        """A container whose user is root inside, with a directory of its own and one of somebody else."""
        script = "mkdir -m 700 /own /theirs; chown 7:7 /theirs; touch /tmp/.ready; exec sleep 600"
        body: dict[str, object] = {"Image": image, "User": "0:0", "Cmd": ["sh", "-c", script]}
        body["HostConfig"] = {"NetworkMode": "none"}
        created = await self.alice.ask("POST", "/containers/create", body)
        container = str(json.loads(created.body)["Id"])
        self.alice.made.append(("containers", container))
        await self.start(container)
        await self.ready(container)
        return container

    async def ready(self, container: str) -> None:
        """Wait for the file that the script of the container makes at its end."""
        async with asyncio.timeout(LONGEST_SECONDS):
            # A file announces itself to nobody.
            while (await self.inside(container, "test", "-e", "/tmp/.ready")).code:  # noqa: ASYNC110 - see above
                await asyncio.sleep(0.1)

    async def end(self, container: str) -> None:
        assert (await self.alice.ask("POST", f"/containers/{container}/kill")).status == 204
        await self.alice.ask("POST", f"/containers/{container}/wait")

    async def past_the_gate(self, *words: str) -> CommandResult:
        """The docker CLI as root, before the engine itself."""
        pipe = asyncio.subprocess.PIPE
        command = (str(parts.DOCKER.resolve()), "-H", f"unix://{self.engine}", *words)
        process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
        async with asyncio.timeout(LONGEST_SECONDS):
            out, err = await process.communicate()
        return CommandResult(process.returncode or 0, out, err)

    async def inside(self, container: str, *words: str) -> CommandResult:
        return await self.docker("exec", container, *words)

    async def put(self, container: str, path: str, archive: bytes, **query: str) -> Reply:
        """A request of no CLI's, as the bytes on the wire."""
        words = "".join(f"&{name}={value}" for name, value in query.items())
        target = f"/containers/{container}/archive?path={path}{words}"
        return await ask(self.alice.served, request("PUT", target, archive))

    async def get(self, container: str, path: str) -> Reply:
        return await self.alice.ask("GET", f"/containers/{container}/archive", path=path)


@asynccontextmanager
async def copier(both: People, engine: str = "") -> AsyncIterator[Copier]:
    home = Path(tempfile.mkdtemp(prefix="copies-"))
    uid = both.alice.caller.uid
    os.chown(home, uid, uid)
    both.alice.served.path.parent.chmod(0o711)
    both.alice.served.path.chmod(0o777)
    try:
        yield Copier(both, home, engine)
    finally:
        await asyncio.to_thread(shutil.rmtree, home)


async def helper_of(uid: int) -> int:
    """The PID of the process that copies for a user, once it is that user."""
    while True:
        for path in Path("/proc").glob("[0-9]*"):
            try:
                words, owner = (path / "cmdline").read_bytes(), (path / "status").read_text()
            except OSError:
                continue
            if b"copies.copy_helper" in words and f"Uid:\t{uid}\t" in owner and "NoNewPrivs:\t1" in owner:
                return int(path.name)
        await asyncio.sleep(0.02)


def fields_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def order_to_write(alice: Copier, container: dict[str, Any]) -> Order:
    return {
        "deed": Deed.WRITE, "pid": container["State"]["Pid"], "container": container["Id"], "cgroups": [],
        "uid": alice.uid, "gid": alice.uid, "groups": [], "path": "/tmp", "only_look": False,
        "keeps_kinds": False, "keeps_owners": False, "layers": None, "mounts": [],
    }  # fmt: skip


def tar_of(*entries: tuple[str, dict[str, object], bytes]) -> bytes:
    """An archive of entries: name, fields of the head, content."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name, fields, content in entries:
            entry = tarfile.TarInfo(name)
            for field, value in fields.items():
                setattr(entry, field, value)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return raw.getvalue()


def listed(archive: bytes) -> list[tuple[Any, ...]]:
    """All that an archive says of its entries but the owners' names, and their content."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        return [
            (
                each.name, each.type, each.mode & 0o7777, each.uid, each.gid, each.size, each.mtime,
                each.linkname, file.read() if each.isreg() and (file := files.extractfile(each)) else b"",
            )
            for each in files
        ]  # fmt: skip
