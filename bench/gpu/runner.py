"""Runs cases one after the other, each within its time, and records what each saw."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from bench.gpu.case import Case, Seen, Step
from bench.gpu.lab import BuildFailed, Lab
from bench.gpu.machine import Machine, Need, gpu_table
from bench.gpu.observe import Observation, Recorder

LEAST_SECONDS = 5.0
"""A case is not begun with less left of the run's time."""
CLEAR_SECONDS = 30.0
KEPT_SETTINGS = ("compute_mode", "persistence_mode", "mig.mode.current")


class Runner:
    """One run over some steps. ``budget_seconds``: for all cases, after the probe is built."""

    def __init__(self, lab: Lab, recorder: Recorder, budget_seconds: float) -> None:
        self._lab = lab
        self._recorder = recorder
        self._budget_seconds = budget_seconds
        self._deadline = 0.0
        self._no_probe = ""

    async def run(self, steps: Sequence[Step]) -> None:
        await self._build()
        self._deadline = time.monotonic() + self._budget_seconds
        for step in steps:
            for case in step.cases:
                self._recorder.add(await self._observe(step.name, case))
        self._recorder.add(await self._as_found())

    async def _build(self) -> None:
        if self._lab.machine.gpu is None:
            return
        try:
            seconds = await self._lab.build()
        except (BuildFailed, OSError) as error:
            self._no_probe = f"the CUDA probe could not be built: {error}"
            self._recorder.add(Observation("G0", "probe-build", 1, {"error": str(error)}))
        else:
            self._recorder.add(Observation("G0", "probe-build", 0, {"nvcc": self._lab.machine.nvcc}, seconds))

    async def _observe(self, step: str, case: Case) -> Observation:
        why = case.skipped_because(self._lab.machine) or self._not_now(case)
        if why is not None:
            return Observation(step, case.name, None, {"skipped": why})
        started = time.monotonic()
        seen = await self._try(case)
        return Observation(step, case.name, seen.rc, seen.values, time.monotonic() - started)

    def _not_now(self, case: Case) -> str | None:
        if self._no_probe and Need.PROBE in case.needs:
            return self._no_probe
        if self._deadline - time.monotonic() < LEAST_SECONDS:
            return "the run's time is used up"
        return None

    async def _try(self, case: Case) -> Seen:
        assert case.run is not None, f"the case {case.name} has nothing to run"
        seconds = min(case.seconds, self._deadline - time.monotonic())
        try:
            async with asyncio.timeout(seconds):
                return await case.run(self._lab)
        except TimeoutError:
            return Seen({"timed_out": f"it took longer than {seconds:.0f} s"}, None)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one case must not cost the others
            return Seen({"error": f"{type(error).__name__}: {error}"}, None)
        finally:
            async with asyncio.timeout(CLEAR_SECONDS):
                await self._lab.clear()

    async def _as_found(self) -> Observation:
        """Whether the GPU's settings are what they were, and what of ours still runs."""
        before = settings(self._lab.machine)
        rows, why = await gpu_table()
        uuid = self._lab.machine.uuid
        after = next((pick(row) for row in rows if row["uuid"] == uuid), {"gone": why})
        values = {"before": before, "after": after, "unchanged": before == after or not before}
        return Observation("end", "as-found", 0 if values["unchanged"] else 1, values)


def settings(machine: Machine) -> dict[str, str]:
    return {} if machine.gpu is None else pick(machine.gpu)


def pick(row: Mapping[str, str]) -> dict[str, str]:
    return {name: row[name] for name in KEPT_SETTINGS}
