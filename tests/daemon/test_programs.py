"""Programs that are run to their end."""

from __future__ import annotations

import pytest

from gpushared.daemon.programs import EndedProgram, run_program


async def test_a_program_reads_its_text_and_tells_what_it_wrote_and_its_status() -> None:
    done = await run_program(["sh", "-c", "cat; echo wrong >&2; exit 3"], seconds=30, text="said\n")
    assert done == EndedProgram(3, "said\n", "wrong\n")


async def test_errors_may_stand_among_the_output() -> None:
    done = await run_program(["sh", "-c", "echo wrong >&2"], seconds=30, with_errors=True)
    assert done == EndedProgram(0, "wrong\n", "")


async def test_a_program_whose_time_is_over_ends_with_its_children() -> None:
    """A child that lived would keep the output open, and the call with it."""
    with pytest.raises(TimeoutError):
        await run_program(["sh", "-c", "sleep 600 & wait"], seconds=0.1)


async def test_a_program_that_is_not_there_is_an_error_of_the_system() -> None:
    with pytest.raises(FileNotFoundError):
        await run_program(["/nowhere/program"], seconds=30)
