"""Settles on a real GPU what documents leave open: runs the steps, writes what was seen, makes the page."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime as dt
import re
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.gpu.case import Step
from bench.gpu.catalogue import chosen
from bench.gpu.lab import Lab
from bench.gpu.machine import Machine, look
from bench.gpu.observe import Recorder
from bench.gpu.report import page
from bench.gpu.runner import Runner

BUDGET_SECONDS = 440.0
NO_GPU = 3


def main(arguments: Sequence[str] | None = None) -> int:
    words = _parser().parse_args(arguments)
    try:
        steps = chosen([name.strip().upper() for name in words.only.split(",") if name.strip()])
    except ValueError as error:
        print(f"run: error: {error}", file=sys.stderr)
        return 2
    try:
        return asyncio.run(_dry(steps, words) if words.dry else _run(steps, words))
    except asyncio.CancelledError:
        print("run: stopped", file=sys.stderr)
        return 143
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench/gpu/run", description=__doc__)
    parser.add_argument("--dry", action="store_true", help="list the steps and what of them could run here")
    parser.add_argument("--only", default="", metavar="STEPS", help="these steps only, as in G1,G2")
    parser.add_argument("--out", type=Path, help="where lines, page and logs go (default: a new directory)")
    parser.add_argument(
        "--seconds",
        type=_positive,
        default=BUDGET_SECONDS,
        help="begin no case after so long, and end the one that runs (default: %(default)g)",
    )
    parser.add_argument(
        "--gpu", type=int, default=0, metavar="INDEX", help="which GPU (default: %(default)s)"
    )
    parser.add_argument("--mps", type=Path, metavar="DIR", help="where the MPS programs are, if not on PATH")
    return parser


def _positive(text: str) -> float:
    seconds = float(text)
    if not seconds > 0:
        raise argparse.ArgumentTypeError("it must be more than 0")
    return seconds


async def _dry(steps: Sequence[Step], words: argparse.Namespace) -> int:
    machine = await look(words.gpu, words.mps)
    for step in steps:
        print(f"{step.name}  {step.title}")
        for case in step.cases:
            why = case.skipped_because(machine)
            print(f"    {case.name:28} {case.tries}{f' [skipped: {why}]' if why else ''}")
    return 0


async def _run(steps: Sequence[Step], words: argparse.Namespace) -> int:
    machine = await look(words.gpu, words.mps)
    if machine.gpu is None:
        print(f"run: there is no GPU to measure on: {machine.no_gpu}", file=sys.stderr)
        return NO_GPU
    out = _directory(words.out)
    stem = out / page_name(machine, dt.datetime.now(dt.UTC).date())
    recorder = Recorder(stem.with_suffix(".jsonl"))
    lab = Lab(machine, out)
    try:
        with _stopped_by_sigterm():
            await Runner(lab, recorder, words.seconds).run(steps)
    finally:
        await lab.close()
        recorder.close()
        stem.with_suffix(".md").write_text(page(recorder.seen, _command(), stem.name))
        print(f"run: the page is {stem.with_suffix('.md')}", file=sys.stderr)
    return 0


def _directory(wanted: Path | None) -> Path:
    if wanted is None:
        return Path(tempfile.mkdtemp(prefix="gpushared-measured-"))
    wanted.mkdir(parents=True, exist_ok=True)
    return wanted


def page_name(machine: Machine, date: dt.date) -> str:
    """``<date>-<gpu>-<driver>`` in letters, digits and hyphens."""
    gpu = machine.gpu or {}
    parts = (str(date), gpu.get("name", "unknown"), gpu.get("driver_version", "unknown"))
    return re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")


def _command() -> str:
    return shlex.join(["bench/gpu/run", *sys.argv[1:]])


@contextlib.contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """What runs is ended and cleared up, as with Ctrl-C."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
