"""The daemons' clock: what moves it, what does not, and what it remembers."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpushared.daemon.clocks import SteadyClock, boot_id, boottime, day_at, keep
from gpushared.daemon.troubles import Troubles
from gpushared.domain.model.errors import Unavailable

NOON = 1_800_000_000.0
HOUR = 3600.0


@dataclass
class Machine:
    """The clocks of a machine, as its kernel shows them."""

    path: Path
    day: float = NOON
    up: float = 100.0
    boot: str = "first"

    def clock(self) -> SteadyClock:
        """That of a daemon which starts now."""
        return SteadyClock(self.path, day=lambda: self.day, up=lambda: self.up, boot=lambda: self.boot)

    def life(self) -> SteadyClock:
        """The same, of one that serves."""
        clock = self.clock()
        clock.keep()
        return clock

    def run(self, seconds: float) -> None:
        self.day += seconds
        self.up += seconds

    def reboot(self, off_seconds: float = 60.0) -> None:
        self.day += off_seconds
        self.up, self.boot = 10.0, self.boot + "'"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "clock.json")


def test_it_begins_with_the_time_of_day(machine: Machine) -> None:
    clock = machine.clock()
    assert (clock.now(), clock.ahead()) == (NOON, 0.0)


@pytest.mark.parametrize("jump", [HOUR, -HOUR, 0.5])
def test_setting_the_time_of_day_does_not_move_it_and_is_told(machine: Machine, jump: float) -> None:
    clock = machine.clock()
    machine.day += jump
    machine.run(5)
    assert clock.now() == NOON + 5
    assert clock.now() + clock.ahead() == machine.day


def test_two_readings_that_are_not_quite_the_same_are_no_news(machine: Machine) -> None:
    """People are shown what was, again and again, and it is the same each time."""
    clock = machine.clock()
    machine.day += 2e-5
    assert clock.ahead() == 0.0


def test_the_next_life_goes_on_though_the_time_of_day_was_set_while_no_daemon_ran(machine: Machine) -> None:
    machine.life()
    machine.run(30)
    machine.day -= HOUR
    clock = machine.clock()
    assert (clock.now(), clock.ahead()) == (NOON + 30, -HOUR)


def test_after_a_reboot_it_has_gone_on_as_the_time_of_day_has(machine: Machine) -> None:
    machine.life()
    machine.reboot(off_seconds=HOUR)
    clock = machine.clock()
    assert (clock.now(), clock.ahead()) == (NOON + HOUR, 0.0)


def test_a_machine_that_forgot_the_time_while_it_was_off_goes_on_from_what_was_there(
    machine: Machine,
) -> None:
    """Else no deadline of before would ever come; the time of day is found again later, and shown."""
    machine.life()
    machine.reboot()
    machine.day = 0.0
    clock = machine.life()
    assert clock.now() == NOON
    machine.run(5)
    machine.day = NOON + 2 * HOUR
    assert clock.now() == NOON + 5
    assert clock.now() + clock.ahead() == NOON + 2 * HOUR
    machine.reboot()
    assert machine.clock().now() == machine.day


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"boot_id": "first", "began_at": "x", "seen_at": 1}'])
def test_a_file_that_cannot_be_read_is_told_of_and_the_time_of_day_holds(
    machine: Machine, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    machine.path.write_text(text)
    with caplog.at_level(logging.WARNING):
        assert machine.clock().now() == NOON
    assert str(machine.path) in caplog.text


async def test_that_it_cannot_be_kept_is_a_trouble_as_long_as_it_lasts(machine: Machine) -> None:
    clock, troubles = machine.clock(), Troubles()
    machine.path.mkdir()
    with pytest.raises(Unavailable, match="cannot be written"):
        clock.keep()
    await keep(clock, troubles)
    assert str(machine.path) in troubles.of("clock")
    machine.path.rmdir()
    await keep(clock, troubles)
    assert troubles.all() == ()


def test_the_machines_own_clocks_are_read() -> None:
    clock = SteadyClock()
    before, began = boottime(), clock.now()
    while boottime() == before:
        pass
    assert clock.now() > began
    assert day_at(boottime() - HOUR) == pytest.approx(time.time() - HOUR, abs=60.0)
    assert len(boot_id()) == len("01234567-89ab-cdef-0123-456789abcdef")
