"""All steps in the order of a run."""

from __future__ import annotations

from collections.abc import Collection

from bench.gpu.case import Step
from bench.gpu.steps import g0, g1, g2, g3, g4, g5, g6, g7, g8

STEPS: tuple[Step, ...] = (
    g0.STEP,
    g1.STEP,
    g2.STEP,
    g3.STEP,
    g4.STEP,
    g6.STEP,
    g7.STEP,
    g8.STEP,
    # Faults come last: whatever they break, the other steps have been seen.
    g5.STEP,
)


def chosen(names: Collection[str]) -> tuple[Step, ...]:
    """The steps of these names, in the order of a run, and G0, which all others are judged by.

    All of them for no name. Raises ValueError for an unknown one.
    """
    unknown = sorted(set(names) - {step.name for step in STEPS})
    if unknown:
        known = ", ".join(sorted(step.name for step in STEPS))
        raise ValueError(f"there is no step {unknown[0]}; the steps are {known}")
    return tuple(step for step in STEPS if not names or step.name in {*names, g0.STEP.name})
