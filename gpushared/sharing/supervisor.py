"""Keep one MPS control daemon alive, with its limits and with its socket in every lease's directory."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from gpushared.domain.model.backoff import backoff_seconds
from gpushared.domain.model.errors import GpushareError, SharingUnavailable, TimedOut
from gpushared.ports import ServerFault
from gpushared.sharing.canary_watch import CanaryWatch
from gpushared.sharing.connection_holder import connection_holder
from gpushared.sharing.control import DaemonLimits, MpsControl
from gpushared.sharing.lease_directories import LeaseDirectories
from gpushared.sharing.server_watch import RECYCLE_SECONDS, ServerWatch

_log = logging.getLogger(__name__)

_QUIET_FAILURES = 3
"""After this many quick restarts, waiting leases get the error that the daemon does not work."""


restart_seconds = partial(backoff_seconds, first=0.1, longest=60.0)
"""The seconds until the next start, by the number of failures in a row."""


class Supervisor:
    """Supervise one daemon and the leases that use it.

    A daemon that ended is started again, with growing pauses while it keeps ending. A daemon that lives but
    does not answer is left alone: its clients may still compute, and only new ones must wait. A server in
    which new clients hang is left alone too, as long as it has clients; new leases are refused until then.
    """

    def __init__(
        self,
        control: MpsControl,
        limits: DaemonLimits,
        directories: LeaseDirectories,
        *,
        poll_seconds: float,
        steady_seconds: float = 60.0,
        backoff: Callable[[int], float] = restart_seconds,
        canary: CanaryWatch | None = None,
        recycle_seconds: float = RECYCLE_SECONDS,
    ) -> None:
        """Take ``steady_seconds``: a daemon that lived this long counts as healthy again."""
        self.control = control
        self.leases: set[str] = set()
        self.starts = 0
        """The number of successful starts, which distinguishes the daemon's runs."""
        self._watch_servers = ServerWatch(control, recycle_seconds=recycle_seconds)
        self._canary = canary
        self._silent_since = ""
        self._holder: tuple[int, str] | None = None
        self._limits = limits
        self._applied: DaemonLimits | None = None
        """The limits that the living daemon has for certain."""
        self._directories = directories
        self._poll_seconds = poll_seconds
        self._steady_seconds = steady_seconds
        self._backoff = backoff
        self._error: GpushareError | None = None
        self._failures = 0
        """The failures in a row."""
        self._watching = False
        self._settled = asyncio.Event()
        """Set once the daemon serves, or has failed so often that waiting leases get the error."""
        self._task: asyncio.Task[None] | None = None
        self._extra_look: asyncio.Task[None] | None = None

    @property
    def serving(self) -> bool:
        return self.control.pid is not None

    @property
    def servers(self) -> tuple[int, ...]:
        """Return the host PIDs of the daemon's servers, and of the canaries sent to them."""
        return (*self._watch_servers.servers, *(self._canary.pids if self._canary else ()))

    @property
    def clients(self) -> frozenset[int]:
        return self._watch_servers.clients

    @property
    def clients_at(self) -> float | None:
        """Return when the look at the clients began (``time.monotonic``); None if they are not known."""
        return self._watch_servers.clients_at

    @property
    def served(self) -> frozenset[int]:
        """Return the clients in the daemon's last answer."""
        return self._watch_servers.served

    @property
    def faults(self) -> tuple[ServerFault, ...]:
        """Return the daemon's servers that are in a fault."""
        return self._watch_servers.faults

    @property
    def trouble(self) -> str | None:
        """Return the daemon's trouble as a sentence for the admin."""
        if self._error is not None:
            return f"{self._error.message}{self._silence()}"
        if self.faults:
            remaining = sum(len(fault.clients) for fault in self.faults)
            return f"an MPS server met a fatal fault and serves nobody; {remaining} of its clients are still there"
        return self._wedge

    @property
    def _wedge(self) -> str | None:
        if self._canary is None or not self._watch_servers.servers:
            return None  # the next client gets a new server
        complaint = self._canary.complaint
        return None if complaint is None else f"new CUDA programs {complaint}"

    def _silence(self) -> str:
        if not self._silent_since:
            return ""
        holder = (
            "" if self._holder is None else f"; process {self._holder[0]} ({self._holder[1]}) holds its line"
        )
        return f", since {self._silent_since}{holder}"

    async def attach(self, device_name: str) -> None:
        """Let a lease use the daemon, starting it if need be; raises the error that keeps it from serving.

        After an error the lease stays attached, so that it gets the socket when the daemon recovers.
        """
        self.leases.add(device_name)
        await self._ensure()
        self._directories.link(device_name, self.control.socket)

    async def relimit(self, limits: DaemonLimits) -> None:
        """Set other limits from now on; a running server keeps the limits that it was started with."""
        self._limits = limits
        if self._watching:
            await self._apply_limits()

    def detach(self, device_name: str) -> None:
        self.leases.discard(device_name)
        self._directories.unlink(device_name)

    def look_soon(self) -> None:
        """Look at servers and clients now, before the next regular look."""
        if self._watching and (self._extra_look is None or self._extra_look.done()):
            self._extra_look = asyncio.create_task(self._look(), name=f"mps look {self.control.home.name}")

    async def stop(self) -> None:
        """End the daemon."""
        await self._cancel()
        await self.control.quit()

    async def let_go(self) -> None:
        """Leave the daemon running, for a later run of ours to find."""
        await self._cancel()
        self.control.let_go()

    async def _ensure(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._keep(), name=f"mps {self.control.home.name}")
            # A waiting caller must also get the error of a bug of ours, instead of waiting for ever.
            self._task.add_done_callback(lambda _: self._settled.set())
        await self._settled.wait()
        if self._task.done():
            self._task.result()
        if self._error is not None and self._watching:
            await self._look()
        if self._error is not None:
            raise type(self._error)(self._error.message, hint=self._error.hint)
        if self._wedge is not None:
            raise SharingUnavailable(self._wedge, hint="it heals when the leases on that GPU have ended")

    async def _cancel(self) -> None:
        tasks, self._task, self._extra_look = (self._task, self._extra_look), None, None
        for task in tasks:
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def _keep(self) -> None:
        while True:
            await self._run_once()
            if self._failures >= _QUIET_FAILURES or isinstance(self._error, TimedOut):
                self._settled.set()
            await asyncio.sleep(self._backoff(self._failures))

    async def _run_once(self) -> None:
        """Start the daemon, and watch it until it ends."""
        now = asyncio.get_running_loop().time
        try:
            await self._bring_up()
        except GpushareError as error:
            self._note_failure(error)
            return
        started_at = now()
        self._watching = True
        canaries = asyncio.create_task(self._send_canaries())
        try:
            await self._watch()
        finally:
            self._watching = False
            canaries.cancel()
            await asyncio.gather(canaries, return_exceptions=True)
        self._applied = None
        self._settled.clear()
        self._watch_servers.forget()
        self._clear_silence()
        if now() - started_at >= self._steady_seconds:
            self._failures = 0
        self._note_failure(SharingUnavailable("the MPS control daemon ended and is being started again"))

    async def _bring_up(self) -> None:
        await self.control.start()
        self._applied = None
        await self._apply_limits()
        for device_name in sorted(self.leases):
            self._directories.link(device_name, self.control.socket)
        self.starts += 1
        self._error = None
        self._settled.set()
        _log.info("mps.serving gpus=%s pid=%s", ",".join(self.control.gpus), self.control.pid)

    async def _apply_limits(self) -> None:
        """Give the daemon the limits that apply now, also if they change during the call."""
        while self._applied != self._limits:
            limits = self._limits
            await self.control.set_limits(limits)
            self._applied = limits

    async def _watch(self) -> None:
        if self.control.was_alive:
            await self._look()  # the status must count the servers of a daemon that was found alive as ours
        while not await self.control.exits_within(self._poll_seconds):
            await self._look()
            if self._error is None:
                await self._recycle()

    async def _look(self) -> None:
        """Query the living daemon; note if it answers, its servers and their clients."""
        start = self.starts
        try:
            await self._watch_servers.look(lambda: self._watching and start == self.starts)
        except GpushareError as error:
            self._error = error
            self._watch_servers.forget_clients()
            await self._note_silence()
        else:
            self._error = None
            self._clear_silence()
        self.control.trim_log()

    async def _note_silence(self) -> None:
        self._silent_since = self._silent_since or time.strftime("%H:%M:%S")
        if (pid := self.control.pid) is not None:
            self._holder = await asyncio.to_thread(connection_holder, pid)

    def _clear_silence(self) -> None:
        self._silent_since, self._holder = "", None

    async def _recycle(self) -> None:
        try:
            await self._watch_servers.recycle(wedged=self._wedge is not None)
        except GpushareError as error:
            _log.warning("mps.recycle failed: %s", error)

    async def _send_canaries(self) -> None:
        """Send canaries while a server runs for leases.

        One server's failures do not count against the next.
        """
        canary, last_server = self._canary, 0
        while canary is not None:
            await asyncio.sleep(canary.pause_seconds)
            server = next(iter(self._watch_servers.servers), 0)
            if server != last_server:
                canary.forget()
            last_server = server
            if server and self.leases:
                await canary.send(server)

    def _note_failure(self, error: GpushareError) -> None:
        self._failures += 1
        self._error = error
        gpus = ",".join(self.control.gpus)
        _log.warning("mps.failed gpus=%s failures=%d why=%s", gpus, self._failures, error.message)
