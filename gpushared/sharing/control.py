"""Talk to one NVIDIA MPS control daemon.

nvidia-cuda-mps-control(1) documents the effect of commands only in part. These facts were found by trial with
version 550, and are the reason for the shape of this module:

* The daemon serves one session at a time, and drops others (see ``Sessions``).
* Exit codes tell only if a daemon was reached. Bad values are accepted in silence: ``1.5G`` becomes
  1 MiB, ``0G`` becomes no limit. So only whole ``M`` are sent, and every setting is read back.
* Memory limits are set by the daemon's own ordinals, which follow its CUDA_VISIBLE_DEVICES. By UUID the
  setting is not checked, reads back as nothing without a GPU, and wipes the one set by ordinal.
* Clients do not outlive the daemon: with 580 their next call fails with CUDA_ERROR_MPS_RPC_FAILURE.
* Any process that can open ``control_privileged`` may do anything, so the pipe directory is closed to others.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpushared.daemon.programs import run_program
from gpushared.domain.model.backoff import backoff_seconds
from gpushared.domain.model.errors import (
    ConfigError,
    GpushareError,
    SharingUnavailable,
    TimedOut,
)
from gpushared.domain.model.gpu import GpuId
from gpushared.sharing.daemon_process import DaemonProcess, listener_pid, spawn_daemon
from gpushared.sharing.server_watch import client_pids

PIPE_PATH_LIMIT_BYTES = 87
"""With one byte more the daemon exits without a message, because its socket's name would not fit."""
FULL_PERCENTAGE = 100
MULTIUSER_FLAG = "-multiuser-server"
_LIMIT = re.compile(r"(\d+)([MG])B?")
_MIB_PER_GIB = 1024
_LOG_LIMIT_BYTES = 1024 * 1024
_LOG_TAIL_BYTES = 16 * 1024
_SERVER_LOG = "server.log"
_SERVERS_LINE = re.compile(r"^\[[^]]* Server +\d+\]")
_SENTINEL = "get_default_active_thread_percentage"
_PERCENTAGE = re.compile(r"\d+(\.\d+)?")
_pause_seconds = partial(backoff_seconds, first=0.01, longest=0.25)


class Dropped(Exception):
    """Report that the daemon was not reached, or hung up in the middle.

    The error never leaves the adapter.
    """


class Sessions:
    """Run the binary as a client of one daemon.

    The daemon serves one session at a time and drops others, some of them with exit code 0 and no output. So
    every session ends with a question that always has an answer, runs under a lock, and is repeated.
    """

    def __init__(
        self, binary: Path, env: Mapping[str, str], *, command_seconds: float, attempts: int
    ) -> None:
        self._binary = binary
        self._env = env
        self._command_seconds = command_seconds
        self._attempts = attempts
        self._lock = asyncio.Lock()

    async def exchange(self, commands: Sequence[str]) -> list[str]:
        """Return the lines of a whole session, the default thread percentage last."""
        for attempt in range(1, self._attempts + 1):
            try:
                return await self.once(commands)
            except Dropped as dropped:
                if attempt == self._attempts:
                    raise SharingUnavailable(
                        f"the MPS control daemon does not answer: {dropped}"
                    ) from dropped
            await asyncio.sleep(_pause_seconds(attempt))
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def once(self, commands: Sequence[str]) -> list[str]:
        """Hold one session without repeating it; raises ``Dropped``."""
        output = await self.run("".join(f"{command}\n" for command in (*commands, _SENTINEL)))
        lines = output.splitlines()
        if not lines or _PERCENTAGE.fullmatch(lines[-1].strip()) is None:
            raise Dropped(lines[-1].strip() if lines else "no output")
        return lines

    async def run(self, text: str) -> str:
        """Return the binary's output for these commands on its standard input."""
        async with self._lock:
            return await self._run(text)

    async def _run(self, text: str) -> str:
        """Run the binary as a client of the daemon, with these commands on its standard input."""
        try:
            result = await run_program(
                [self._binary], seconds=self._command_seconds, text=text, with_errors=True, env=self._env
            )
        except TimeoutError:
            first = text.split("\n", 1)[0]
            seconds = self._command_seconds
            raise TimedOut(f"the MPS control daemon did not answer `{first}` in {seconds:g} s") from None
        except OSError as error:
            raise SharingUnavailable(f"{self._binary} cannot be run: {error.strerror}") from error
        return result.output


@dataclass(frozen=True, slots=True)
class ControlTiming:
    """Bound the waits for the daemon: a session, its start, its end; ``attempts``: the tries of a session."""

    command_seconds: float = 5.0
    start_seconds: float = 15.0
    quit_seconds: float = 5.0
    attempts: int = 8


@dataclass(frozen=True, slots=True)
class DaemonLimits:
    """Bound each client of a daemon: memory in MiB for each GPU in the daemon's order, and the percentage.

    The daemon keeps one decimal of the percentage.
    """

    memory_mib: tuple[int, ...]
    percentage: float = FULL_PERCENTAGE

    def __post_init__(self) -> None:
        if not all(mib > 0 for mib in self.memory_mib):
            raise ValueError(
                f"a memory limit must be positive, the daemon reads 0 as none: {self.memory_mib}"
            )
        if not 0 < self.percentage <= FULL_PERCENTAGE:
            raise ValueError(f"not a thread percentage: {self.percentage}")


class MpsControl:
    """Run one control daemon in one directory, started by us or found alive from an earlier life of ours.

    Errors: ``SharingUnavailable``, ``TimedOut``; ``ConfigError`` from the constructor.
    """

    def __init__(
        self,
        binary: Path,
        home: Path,
        gpus: Sequence[GpuId],
        *,
        multiuser: bool,
        timing: ControlTiming | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Take ``home``, which gets ``pipe`` and ``log``, and ``environ``, which is added for the binary."""
        self.gpus = tuple(gpus)
        self.home = home
        self.pipe_dir = home / "pipe"
        self.log = home / "log" / "control.log"
        self.was_alive = False
        """True if ``start`` found the daemon alive, so that servers may run under it."""
        self._binary = binary
        self._multiuser = multiuser
        self._timing = timing or ControlTiming()
        self._process: DaemonProcess | None = None
        check_pipe_path(self.pipe_dir)
        self._env = {
            "PATH": f"{binary.parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            **(environ or {}),
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe_dir),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log.parent),
            "CUDA_VISIBLE_DEVICES": ",".join(self.gpus),
        }
        self._sessions = Sessions(
            binary,
            self._env,
            command_seconds=self._timing.command_seconds,
            attempts=self._timing.attempts,
        )

    @property
    def socket(self) -> Path:
        """Return the socket for clients; a process with only this socket can query but not set."""
        return self.pipe_dir / "control"

    @property
    def pid(self) -> int | None:
        return None if self._process is None or self._process.exited else self._process.pid

    async def start(self) -> None:
        """Return when a daemon answers: the one that lives here already, or a new one."""
        try:
            self._prepare_directories()
            self.let_go()
            self.was_alive = await self._adopt()
            if not self.was_alive:
                await self._spawn()
        except OSError as error:
            raise SharingUnavailable(f"the MPS control daemon cannot be started: {error}") from error

    async def ask(self, *commands: str) -> list[str]:
        """Return the daemon's answer to some commands in one session, line by line."""
        return (await self._sessions.exchange(commands))[:-1]

    async def set_limits(self, limits: DaemonLimits) -> None:
        """Set the limits of servers spawned from now on, and read the limits back.

        The limits are lost when the daemon ends.
        """
        memory = enumerate(limits.memory_mib)
        await self.ask(
            f"set_default_active_thread_percentage {limits.percentage:g}",
            *(f"set_default_device_pinned_mem_limit {gpu} {mib}M" for gpu, mib in memory),
        )
        questions = [f"get_default_device_pinned_mem_limit {gpu}" for gpu in range(len(limits.memory_mib))]
        *shown, percentage = await self._sessions.exchange(questions)
        if float(percentage) != limits.percentage or not _same_limits(shown, limits.memory_mib):
            raise SharingUnavailable(
                f"the MPS control daemon did not take its limits: asked for {limits.percentage:g} % and "
                f"{list(limits.memory_mib)} MiB, it says {percentage} % and {shown}",
            )

    async def servers(self) -> tuple[int, ...]:
        """Return the host PIDs of the daemon's servers."""
        lines = await self.ask("get_server_list")
        return tuple(int(line) for line in lines if line.strip().isdecimal())

    async def clients(self, server: int) -> tuple[int, ...] | None:
        """Return the host PIDs of a server's clients; None if the answer is unreliable.

        The result is empty if the server is gone. A control daemon in a PID namespace of its own sees its
        clients as process 0.
        """
        return client_pids(server, await self.ask(f"get_client_list {server}"))

    def server_log(self) -> list[str]:
        """Return the newest lines that servers wrote into their log; this reads files.

        In the foreground a daemon of release 580 lets its servers write into its own output, and they have no
        log; the lines have the form ``[TIME Server  PID] TEXT``.
        """
        own = [line for line in _tail(self.log) if _SERVERS_LINE.search(line)]
        return [*_tail(self.log.with_name(_SERVER_LOG)), *own]

    async def restart_servers(self) -> None:
        """End the daemon, by force if need be; its directory stays for the next ``start``."""
        process, self._process = self._process, None
        if process is not None:
            await self._end(process)

    async def exits_within(self, seconds: float) -> bool:
        """Wait at most this long for the daemon's end, and return True if it is gone."""
        return self._process is None or await self._process.exits_within(seconds)

    async def quit(self) -> None:
        """End the daemon, by force if it does not go, and remove its directory. Its clients fail."""
        if self._process is None:
            await self._adopt_for_quit()
        process, self._process = self._process, None
        if process is not None:
            await self._end(process)
        shutil.rmtree(self.home, ignore_errors=True)

    def let_go(self) -> None:
        """Forget the daemon and leave it running."""
        if self._process is not None:
            self._process.release()
            self._process = None

    def trim_log(self) -> None:
        """Cut the logs: the daemon logs every command of ours and never rotates.

        It appends, so cutting is safe.
        """
        for log in (self.log, self.log.with_name(_SERVER_LOG)):
            with suppress(OSError):
                if log.stat().st_size > _LOG_LIMIT_BYTES:
                    os.truncate(log, 0)

    # --- the daemon's life ---

    def _prepare_directories(self) -> None:
        # A server for another user than root gives up its rights first and then opens files in its pipe
        # directory; with 0700 it would die at once, again and again.
        mode = 0o700 if self._multiuser else 0o711
        self.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.pipe_dir.mkdir(exist_ok=True)
        for directory in (self.home, self.pipe_dir):
            directory.chmod(mode)

    async def _adopt(self) -> bool:
        """Adopt a daemon that already listens here; a second one would refuse to start beside it."""
        process = await self._find()
        if process is None:
            return False
        self._process = process
        await self._sessions.exchange(())
        return True

    async def _find(self) -> DaemonProcess | None:
        path = self.pipe_dir / "control_privileged"
        pid = await asyncio.to_thread(listener_pid, path)
        if pid is None:
            return None
        try:
            process = DaemonProcess(pid)
        except ProcessLookupError:
            return None
        if await asyncio.to_thread(listener_pid, path) == pid:
            return process
        process.release()
        return None

    async def _adopt_for_quit(self) -> None:
        with suppress(OSError):
            self._process = await self._find()

    async def _spawn(self) -> None:
        command = [str(self._binary), "-f", *([MULTIUSER_FLAG] if self._multiuser else [])]
        process = DaemonProcess(spawn_daemon(command, self._env, self.log))
        try:
            await self._until_ready(process)
        except BaseException:
            await self._kill(process)
            raise
        self._process = process

    async def _until_ready(self, process: DaemonProcess) -> None:
        try:
            async with asyncio.timeout(self._timing.start_seconds):
                await self._first_answer(process)
        except TimeoutError:
            seconds = self._timing.start_seconds
            raise TimedOut(
                f"the MPS control daemon did not answer in {seconds:g} s after its start"
            ) from None

    async def _first_answer(self, process: DaemonProcess) -> None:
        tries = 1
        while not await process.exits_within(_pause_seconds(tries)):
            with suppress(Dropped, TimedOut):
                await self._sessions.once(())
                return
            tries += 1
        status = f"status {process.exit_status}: {self._last_log_line()}"
        raise SharingUnavailable(f"the MPS control daemon ended at its start with {status}")

    def _last_log_line(self) -> str:
        lines = _tail(self.log)
        return lines[-1].strip() if lines else "no message"

    async def _end(self, process: DaemonProcess) -> None:
        # The exit code of quit proves nothing; the end of the process does.
        with suppress(GpushareError, Dropped):
            await self._sessions.run(f"quit -t {max(1, int(self._timing.quit_seconds))}\n")
        if not await process.exits_within(self._timing.quit_seconds):
            await self._kill(process)
        process.release()

    async def _kill(self, process: DaemonProcess) -> None:
        process.kill()
        await process.exits_within(self._timing.quit_seconds)
        process.release()


def check_pipe_path(pipe_dir: Path) -> None:
    """Raise ConfigError if the daemon could not make its sockets there."""
    length = len(os.fsencode(pipe_dir))
    if length > PIPE_PATH_LIMIT_BYTES:
        raise ConfigError(
            f"the MPS pipe directory {pipe_dir} is {length} bytes long, {PIPE_PATH_LIMIT_BYTES} are allowed",
            hint="choose a shorter runtime directory",
        )


def _tail(path: Path) -> list[str]:
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - _LOG_TAIL_BYTES))
            return log.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return []


def _same_limits(shown: Sequence[str], wanted_mib: Sequence[int]) -> bool:
    return len(shown) == len(wanted_mib) and all(
        _shows(text.strip(), mib) for text, mib in zip(shown, wanted_mib, strict=True)
    )


def _shows(text: str, mib: int) -> bool:
    """Return True if the daemon's text means this limit; it rounds down to whole GiB from one GiB on."""
    match = _LIMIT.fullmatch(text)
    if match is None:
        return False
    shown_mib = int(match[1]) * (_MIB_PER_GIB if match[2] == "G" else 1)
    return shown_mib in (mib, mib // _MIB_PER_GIB * _MIB_PER_GIB)
