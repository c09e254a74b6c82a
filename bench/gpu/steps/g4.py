"""G4: what other users may do to a daemon and its servers through the public socket."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.gpu.case import WITH_MPS, Case, Seen, Step
from bench.gpu.lab import OTHER_UID, THIRD_UID, Lab
from bench.gpu.machine import Need
from bench.gpu.mps import (
    ASK_MIB,
    LIMIT_MIB,
    LIMITS,
    as_user,
    daemon,
    public_socket_only,
    server_of,
    take,
)
from gpushared.sharing.control import MpsControl

AS_ROOT = (*WITH_MPS, Need.ROOT)
WAIT_SECONDS = 5.0


def meddling(
    *, server_uid: int | None, by: int | None, multiuser: bool = False
) -> Callable[[Lab], Awaitable[Seen]]:
    """A user tries every command that would change or end somebody's server; then what a new client gets."""

    async def run(lab: Lab) -> Seen:
        async with daemon(lab, LIMITS, multiuser=multiuser) as control:
            pipe = public_socket_only(lab, control)
            env = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe)}
            victim = await lab.start("info", "wait", "alive", env=env, uid=server_uid)
            first = await victim.next("info", 15)
            server = await server_of(control)
            said = await _raise(lab, pipe, server, by)
            shown = await control.ask(f"get_device_pinned_mem_limit {server} 0")
            new = await lab.probe("info", *take(), env=env, uid=server_uid)
            said |= await _end(lab, pipe, server, victim.pid, by)
            await victim.go_on()
            after = await victim.finish(10)
            values = {"server": server, "victim": first, "said": said, "read_back": " ".join(shown)}
            values |= {"new_client": new.values(), "victim_after": after.values(), "limit_mib": LIMIT_MIB}
            return Seen({**values, "servers_after": list(await control.servers())}, new.rc)

    return run


async def _raise(lab: Lab, pipe: Path, server: int | None, uid: int | None) -> dict[str, str]:
    return await _each(
        lab,
        pipe,
        uid,
        f"set_default_device_pinned_mem_limit 0 {2 * ASK_MIB}M",
        f"set_device_pinned_mem_limit {server} 0 {2 * ASK_MIB}M",
        f"set_active_thread_percentage {server} 100",
    )


async def _end(lab: Lab, pipe: Path, server: int | None, pid: int, uid: int | None) -> dict[str, str]:
    return await _each(
        lab, pipe, uid, f"terminate_client {server} {pid}", f"shutdown_server {server} -f", "quit"
    )


async def _each(lab: Lab, pipe: Path, uid: int | None, *commands: str) -> dict[str, str]:
    """The answer to each command, in a session of its own."""
    answers = {}
    for command in commands:
        done = await as_user(lab, pipe, [command], uid)
        answers[command] = f"{done.rc}: {(done.stdout + done.stderr).strip()}"
    return answers


async def second_user(lab: Lab) -> Seen:
    """Whether a client of a second user waits for the first user's to end."""
    async with daemon(lab, LIMITS) as control:
        return await _second_user(lab, control)


async def second_user_multiuser(lab: Lab) -> Seen:
    async with daemon(lab, LIMITS, multiuser=True) as control:
        return await _second_user(lab, control)


async def _second_user(lab: Lab, control: MpsControl) -> Seen:
    # Other users reach a daemon by its public socket only: the directory of a multi-user daemon is closed.
    env = {"CUDA_MPS_PIPE_DIRECTORY": str(public_socket_only(lab, control))}
    first = await lab.start("info", "wait", env=env, uid=OTHER_UID)
    seen = await first.next("info", 15)
    started = time.monotonic()
    second = await lab.start("info", env=env, uid=THIRD_UID)
    beside = await second.next("info", WAIT_SECONDS)
    await first.finish(10)
    later = beside or await second.next("info", 15)
    waited = time.monotonic() - started
    done = await second.finish(10)
    values = {"first": seen, "served_beside": bool(beside), "second": later, "waited_seconds": waited}
    return Seen({**values, "servers": list(await control.servers())}, done.rc)


STEP = Step(
    "G4",
    "What other users may do through the public socket",
    (
        Case(
            "own-server",
            "a user against the server that runs under his own uid",
            meddling(server_uid=OTHER_UID, by=OTHER_UID),
            AS_ROOT,
            90,
        ),
        Case(
            "root-by-public-socket",
            "root, with the public socket only, against a user's server",
            meddling(server_uid=OTHER_UID, by=None),
            AS_ROOT,
            90,
        ),
        Case(
            "multiuser",
            "a user against the root server of a multi-user daemon",
            meddling(server_uid=OTHER_UID, by=OTHER_UID, multiuser=True),
            AS_ROOT,
            90,
        ),
        Case("second-user", "clients of two users at once, one server each", second_user, AS_ROOT, 60),
        Case(
            "second-user-multiuser",
            "clients of two users at once, multi-user",
            second_user_multiuser,
            AS_ROOT,
            60,
        ),
    ),
)
