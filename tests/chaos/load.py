"""The work of a run: jobs, terminals and administrators' words, by the commands that people type."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from gpushared.domain.model.errors import GpushareError
from tests.chaos.diary import PROGRAM
from tests.chaos.machines import Machines
from tests.chaos.plan import LIVE_RESTORE, NODES, Work, WorkKind
from tests.chaos.records import Accepted, Call, Record, now

IMAGE: Final = "busybox"
USER: Final = "games"
"""An ordinary user that every Debian has."""
GUARD_GPU: Final = "0.05"
ENDLESS_BEATS: Final = 10**9
RESUME_TRIES: Final = 60
ACTIVE_SECONDS: Final = 60.0
KEPT: Final = "to be cancelled as soon as it can be"
"""A cancellation that its command says this of is on its way, and nothing is promised yet."""

Say = Callable[[str], None]


class Load:
    """Hands work in and follows it. ``folder`` gets what each command printed."""

    def __init__(self, machines: Machines, record: Record, folder: Path, say: Say) -> None:
        self._machines = machines
        self._record = record
        self._folder = folder
        self._say = say
        self._number = 0
        self._clients: set[asyncio.subprocess.Process] = set()
        self._killed: set[asyncio.subprocess.Process] = set()
        self._paused: dict[str, str] = {}
        """Leases that have to be resumed, and their nodes."""
        self.followers: set[asyncio.Task[None]] = set()
        folder.mkdir()

    # --- guards: containers that have to outlive everything

    async def start_guards(self) -> dict[str, tuple[str, str]]:
        """Containers that restart always, and paused ones, of root and of a user; their leases and nodes."""
        guards: dict[str, tuple[str, str]] = {}
        for node in NODES:
            for user in ("root", USER):
                for sort in ("always", "paused"):
                    # An engine that ends its containers ends frozen ones, too.
                    if sort == "always" or node in LIVE_RESTORE:
                        key = f"guard-{sort}-{user}-{node}"
                        guards[key] = (await self._start_guard(key, node, user, sort), node)
        return guards

    async def _start_guard(self, key: str, node: str, user: str, sort: str) -> str:
        words = ["-d", "--gpu", GUARD_GPU, "--name", key]
        words += ["--restart", "always"] if sort == "always" else []
        command = self._container(["run", *words], key, ENDLESS_BEATS, (0,))
        call = await self.call("start a guard", command, key, node, user=user)
        if call.code:
            raise RuntimeError(f"a guard does not start: {call.show()}")
        lease = await self._active_lease(node, key)
        if sort == "paused":
            call = await self.call("pause a guard", ["pause", key], key, node, user=user)
            if call.code:
                raise RuntimeError(f"a guard is not paused: {call.show()}")
        return lease

    async def _active_lease(self, node: str, name: str) -> str:
        until = now() + ACTIVE_SECONDS
        while now() < until:
            for lease in await self.leases(node):
                if lease.get("container_name") == name and lease["state"] == "active":
                    return str(lease["id"])
            await asyncio.sleep(0.2)
        raise RuntimeError(f"the guard {name} never became active")

    # --- work

    async def do(self, work: Work) -> None:
        """Hand it in, and follow it as planned."""
        if work.remove:
            self._record.removed.add(work.key)
        match work.kind:
            case WorkKind.SUBMIT:
                await self._submit(work)
            case WorkKind.RUN:
                await self._run(work)
            case WorkKind.PAUSE | WorkKind.PREEMPT:
                await self._take_off(work)

    async def _submit(self, work: Work) -> None:
        words = ["submit", "--gpu", work.gpu]
        words += ["--pool"] if work.pool else []
        words += ["--array", f"0-{work.array - 1}"] if work.array else []
        words += ["--retries", str(work.retries)] if work.retries else []
        words += ["--stop-after", f"{work.stop_after_seconds}s"] if work.stop_after_seconds else []
        words += ["--rm"] if work.remove else []
        call = await self.call(
            "submit", self._container(words, work.key, work.beats, work.codes), work.key, work.node
        )
        job = call.out.strip()
        if call.code or not job:
            return
        indexes = [str(number) for number in range(work.array)] or [""]
        accepted = [
            Accepted(work.key, index, f"{job}_{index}" if index else job, work.pool, work.stop_after_seconds)
            for index in indexes
        ]
        self._record.accepted += accepted
        jobs = tuple(one.job for one in accepted)
        if work.wait:
            self._follow("wait", ["wait", job], work, jobs)
        if work.follow:
            self._follow("logs", ["logs", "-f", job], work, jobs)
        if work.cancel_after_seconds is not None:
            await asyncio.sleep(work.cancel_after_seconds)
            for one in accepted:
                one.is_cancel_asked = True
            call = await self.call("cancel", ["cancel", job], work.key, work.node)
            if call.code == 0 and KEPT not in call.err:
                for one in accepted:
                    one.cancelled_at = call.ended

    def _follow(self, command: str, words: list[str], work: Work, jobs: tuple[str, ...]) -> None:
        async def follow() -> None:
            await self.call(command, words, work.key, work.node, jobs=jobs)

        task = asyncio.create_task(follow())
        self.followers.add(task)

    async def _run(self, work: Work) -> None:
        words = ["run", "--gpu", work.gpu]
        words += ["--pool"] if work.pool else []
        words += ["--rm"] if work.remove else []
        command = "run --pool" if work.pool else "run"
        container = self._container(words, work.key, work.beats, work.codes)
        await self.call(command, container, work.key, work.node, beats=work.beats)

    async def _take_off(self, work: Work) -> None:
        """Pause a lease, or let it give way, and bring it back."""
        leases = sorted(
            lease["id"]
            for lease in await self.leases(work.node)
            if lease["state"] == "active" and not str(lease.get("container_name", "")).startswith("guard-")
        )
        if not leases:
            return
        lease = random.Random(work.key).choice(leases)
        self._paused[lease] = work.node
        await self.call(work.kind.value, [work.kind.value, lease], work.key, work.node, jobs=(lease,))
        await asyncio.sleep(work.lasting_seconds)
        await self.call("resume", ["resume", lease], work.key, work.node, jobs=(lease,))

    async def resume_all(self) -> None:
        """Bring back whatever was taken off its GPUs, until the node says that it is so or over."""
        for lease, node in sorted(self._paused.items()):
            for _ in range(RESUME_TRIES):
                mine = [one for one in await self.leases(node) if one["id"] == lease]
                if not mine or mine[0]["state"] not in {"suspended", "suspending", "paused"}:
                    break
                await self.call("resume", ["resume", lease], lease, node, jobs=(lease,))
                await asyncio.sleep(1.0)

    async def leases(self, node: str) -> list[dict[str, Any]]:
        """Those that are not over; none where nobody answers."""
        try:
            answer = await asyncio.to_thread(self._machines.call, node, "Leases/List")
        except GpushareError:
            return []
        return list(answer.get("leases", []))

    # --- commands

    def _container(self, words: Sequence[str], key: str, beats: int, codes: Sequence[int]) -> list[str]:
        exit_codes = ",".join(str(code) for code in codes)
        mount = f"{self._machines.shared}:/out"
        return [*words, "-v", mount, IMAGE, "sh", "-c", PROGRAM, key, str(beats), exit_codes]

    async def call(
        self, command: str, words: Sequence[str], key: str, node: str, *,
        user: str = "root", jobs: tuple[str, ...] = (), beats: int = 0,
    ) -> Call:  # fmt: skip
        """``gpushare WORDS`` on a node, as somebody types it; comes back when it ends."""
        self._number += 1
        name = f"{self._number:04d}-{command.replace(' ', '')}-{key}"
        call = Call(name, command, key, node, jobs, now(), beats=beats)
        self._record.calls.append(call)
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user != "root" else []
        out, err = self._folder / f"{name}.out", self._folder / f"{name}.err"
        shown = shlex.join(["..." if word == PROGRAM else word for word in words])
        err.with_suffix(".cmd").write_text(f"on {node} as {user}: gpushare {shown}\n")
        with out.open("wb") as out_file, err.open("wb") as err_file:
            process = await asyncio.create_subprocess_exec(
                *become, "gpushare", *words, env=self._environ(node), cwd="/",
                stdin=subprocess.DEVNULL, stdout=out_file, stderr=err_file, start_new_session=True,
            )  # fmt: skip
        self._clients.add(process)
        try:
            code = await process.wait()
            call.code = None if process in self._killed else code
        finally:
            self._clients.discard(process)
            call.ended = now()
            call.out, call.err = out.read_text(errors="replace"), err.read_text(errors="replace")
        return call

    def kill_clients(self) -> None:
        """End the commands that still run; their calls keep no code."""
        for process in list(self._clients):
            self._killed.add(process)
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    def _environ(self, node: str) -> dict[str, str]:
        kept = {
            name: self._machines.environ[name] for name in ("PATH", "PYTHONPATH", "LC_ALL", "DOCKER_CONFIG")
        }
        return {**kept, "HOME": "/nonexistent", "GPUSHARE_HOST": f"unix://{self._machines.socket(node)}"}
