#!/usr/bin/env python3
"""Measure what sharing buys: the same clients one by one, time-sliced, under MPS set up by hand, and under gpushared.

One line of JSON a round, and a table at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.gpu import leases
from bench.gpu.child import Child, run
from bench.gpu.lab import HERE, Lab, inherited
from bench.gpu.machine import Machine, Need, look
from bench.gpu.observe import Observation, Recorder
from bench.gpu.report import table
from bench.gpu.sharing_figures import CROWDS, STEP, Crowd, Way, ratios, summary

READY_SECONDS = 90.0
BATCHES = (1, 2, 4, 8)
NO_GPU = 3

Environments = list[dict[str, str]]


class Sharing:
    """Runs crowds; ``worker`` is the command of a client, to which kind, batch and seconds are added."""

    def __init__(self, lab: Lab, recorder: Recorder, worker: Sequence[str | Path], seconds: float) -> None:
        self._lab = lab
        self._recorder = recorder
        self._worker = list(worker)
        self._seconds = seconds

    async def measure(self, crowd: Crowd, way: Way, number: int) -> None:
        """One round, recorded whatever becomes of it."""
        started = time.monotonic()
        values = _about(crowd, way)
        rc: int | None = 0
        try:
            async with self._environments(crowd, way) as environments:
                values |= await self._round(crowd, environments, in_turns=way is Way.ONE_BY_ONE)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one round must not cost the others
            values["error"], rc = f"{type(error).__name__}: {error}", None
        finally:
            await self._lab.clear()
        self._recorder.add(
            Observation(STEP, _case(crowd, way, number), rc, values, time.monotonic() - started)
        )

    def skip(self, crowd: Crowd, way: Way, number: int, why: str) -> None:
        values = _about(crowd, way) | {"skipped": why}
        self._recorder.add(Observation(STEP, _case(crowd, way, number), None, values))

    async def _round(self, crowd: Crowd, environments: Environments, *, in_turns: bool) -> dict[str, object]:
        clients = [
            await self._lab.start_words(
                [*self._worker, crowd.kind, str(BATCHES[number % len(BATCHES)]), str(self._seconds)], env=env
            )
            for number, env in enumerate(environments)
        ]
        for client in clients:
            await _line(client, "ready", READY_SECONDS)
        if not in_turns:
            await asyncio.gather(*(client.go_on() for client in clients))
        worked = []
        for client in clients:
            if in_turns:
                await client.go_on()
            worked.append(await _line(client, "worked", self._seconds + READY_SECONDS))
        return summary(crowd.shares, worked, in_turns=in_turns)

    @asynccontextmanager
    async def _environments(self, crowd: Crowd, way: Way) -> AsyncIterator[Environments]:
        """The clients' environments, and what must serve them meanwhile."""
        match way:
            case Way.ONE_BY_ONE | Way.TIME_SLICING:
                yield [{} for _ in crowd.shares]
            case Way.BY_HAND:
                async with by_hand(self._lab, crowd) as environment:
                    yield [environment for _ in crowd.shares]
            case Way.GPUSHARED | Way.UNEQUAL:
                async with leases.opened(self._lab, crowd.shares) as edits:
                    yield [leases.process_environment(one) for one in edits]


def _case(crowd: Crowd, way: Way, number: int) -> str:
    return f"{crowd.name}-{way}-{number}"


def _about(crowd: Crowd, way: Way) -> dict[str, object]:
    return {"crowd": crowd.name, "way": str(way), "shares": list(crowd.shares)}


async def _line(client: Child, action: str, seconds: float) -> dict[str, object]:
    """A client's line; its last words where it does not come."""
    line = await client.next(action, seconds)
    if not line:
        done = await client.finish(1)
        raise RuntimeError(f"a client did not get to `{action}` ({done.rc}): {done.stderr or done.stdout}")
    return line


@asynccontextmanager
async def by_hand(lab: Lab, crowd: Crowd) -> AsyncIterator[dict[str, str]]:
    """What the manual says: a daemon with its defaults set to equal parts, its directory for the clients."""
    assert lab.machine.mps_control is not None
    assert lab.machine.gpu is not None
    home = lab.new_home()
    (home / "pipe").mkdir(parents=True)
    (home / "log").mkdir()
    env = {
        **inherited(),
        "CUDA_VISIBLE_DEVICES": lab.machine.uuid,
        "CUDA_MPS_PIPE_DIRECTORY": str(home / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(home / "log"),
    }
    control = lab.machine.mps_control
    total_mib = int(float(lab.machine.gpu["memory.total"]))
    part = total_mib * crowd.shares[0] // 1000
    try:
        await run([control, "-d"], seconds=20, env=env)
        for command in (
            f"set_default_active_thread_percentage {crowd.shares[0] / 10:g}",
            f"set_default_device_pinned_mem_limit 0 {part}M",
        ):
            await run([control], seconds=10, env=env, text=f"{command}\n")
        yield {"CUDA_MPS_PIPE_DIRECTORY": str(home / "pipe")}
    finally:
        await lab.clear()
        with suppress(OSError):
            await run([control], seconds=10, env=env, text="quit -t 5\n")


async def measure_all(
    sharing: Sharing, crowds: Sequence[Crowd], machine: Machine, rounds: int, budget_seconds: float
) -> None:
    """Every crowd in every way; the ways take turns, so that drift of the machine hits all of them."""
    until = time.monotonic() + budget_seconds
    for number in range(1, rounds + 1):
        for crowd in crowds:
            for way in crowd.ways():
                if why := _not(way, machine, until):
                    sharing.skip(crowd, way, number, why)
                else:
                    await sharing.measure(crowd, way, number)


def _not(way: Way, machine: Machine, until: float) -> str | None:
    if time.monotonic() > until:
        return "the run's time is used up"
    return None if way in {Way.ONE_BY_ONE, Way.TIME_SLICING} else machine.lacks(Need.MPS)


def overview(observations: Sequence[Observation]) -> str:
    """All rounds as a table."""
    rows = []
    for one in observations:
        values = one.values
        if "rounds_per_second" not in values:
            rows.append((one.case, values.get("skipped") or values.get("error") or "", "", "", ""))
            continue
        rows.append(
            (
                one.case,
                f"{values['rounds_per_second']:.1f}",
                _list(values["p50_seconds"], 1000),
                _list(values["p99_seconds"], 1000),
                _list(values["fairness"], 1),
            )
        )
    return table(("round", "rounds/s in all", "p50 ms", "p99 ms", "fairness"), rows)


def _list(values: Sequence[float], factor: float) -> str:
    return " ".join(f"{value * factor:.2f}" for value in values)


async def _main(words: argparse.Namespace) -> int:
    machine = await look(words.gpu, words.mps)
    for need in (Need.GPU, Need.TORCH):
        if why := machine.lacks(need):
            print(f"sharing: nothing to measure: {why}", file=sys.stderr)
            return NO_GPU
    words.out.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(words.out / "sharing.jsonl")
    lab = Lab(machine, words.out)
    worker: list[str | Path] = [sys.executable, HERE / "sharing_worker.py"]
    crowds = [crowd for crowd in CROWDS if not words.only or crowd.name in words.only.split(",")]
    try:
        sharing = Sharing(lab, recorder, worker, words.work_seconds)
        await measure_all(sharing, crowds, machine, words.rounds, words.seconds)
        found = ratios(recorder.seen)
        if all(found.values()):
            recorder.add(Observation(STEP, "ratios", 0, found))
    finally:
        await lab.close()
        recorder.close()
    print(overview(recorder.seen))
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench/gpu/sharing.py", description=__doc__)
    names = ", ".join(dict.fromkeys(crowd.name for crowd in CROWDS))
    parser.add_argument("--only", default="", metavar="CROWDS", help=f"of {names}")
    parser.add_argument("--rounds", type=int, default=1, help="how often all is measured (default: 1)")
    parser.add_argument("--work-seconds", type=float, default=4.0, help="of each client (default: 4)")
    parser.add_argument("--seconds", type=float, default=450.0, help="begin nothing after so long")
    parser.add_argument("--out", type=Path, default=Path("sharing"), help="default: ./sharing")
    parser.add_argument("--gpu", type=int, default=0, metavar="INDEX")
    parser.add_argument("--mps", type=Path, metavar="DIR", help="where the MPS programs are")
    return asyncio.run(_main(parser.parse_args(arguments)))


if __name__ == "__main__":
    raise SystemExit(main())
