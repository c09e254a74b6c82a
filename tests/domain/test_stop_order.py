"""What comes first when a container is to end."""

from __future__ import annotations

import signal

import pytest

from gpushared.domain.leases.stop_order import (
    KILL,
    AskedEnd,
    ClientStopOrder,
    ContainerEnd,
    SignalHandling,
    at_once,
    ending_of,
    lead_seconds,
    order_of,
    signal_number,
)

TERM, INT, HUP, USR1, WINCH = (
    int(one) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGWINCH)
)
FIRST, LAST, NEVER = ClientStopOrder.CLIENTS_FIRST, ClientStopOrder.CLIENTS_LAST, ClientStopOrder.NOT_AT_ALL


def mask(*signals: int) -> int:
    return sum(1 << (number - 1) for number in signals)


PLAIN = SignalHandling()
CATCHES = SignalHandling(caught=mask(TERM, INT))
IGNORES = SignalHandling(ignored=mask(TERM))
WAITS = SignalHandling(blocked=mask(TERM, INT))
INIT_OF_PLAIN = SignalHandling(blocked=mask(TERM, INT), children=(SignalHandling(first=False),))
INIT_OF_CATCHING = SignalHandling(
    blocked=mask(TERM, INT), children=(SignalHandling(caught=mask(TERM, INT), first=False),)
)
TINI_OF_PLAIN = SignalHandling(init=True, children=(SignalHandling(first=False),))
TINI_OF_CATCHING = SignalHandling(init=True, children=(SignalHandling(caught=mask(TERM, INT), first=False),))
SHELL_OF_CATCHING = SignalHandling(children=(SignalHandling(caught=mask(TERM), first=False),))
IN_HOSTS_NAMESPACE = SignalHandling(first=False)


@pytest.mark.parametrize(
    ("ending", "main", "order"),
    [
        pytest.param(ContainerEnd(TERM, 10), PLAIN, FIRST, id="a stop of a program that does not catch it"),
        pytest.param(ContainerEnd(TERM, 10), IGNORES, FIRST, id="a stop of one that ignores it"),
        pytest.param(ContainerEnd(TERM, 10), None, FIRST, id="a stop of one that nothing is known of"),
        pytest.param(ContainerEnd(TERM, 10), CATCHES, LAST, id="a stop of one that wants to end by itself"),
        pytest.param(ContainerEnd(TERM, 0), CATCHES, FIRST, id="a stop that leaves it no time"),
        pytest.param(ContainerEnd(HUP, 10), CATCHES, FIRST, id="a stop by a signal that it does not catch"),
        pytest.param(ContainerEnd(TERM, 10), INIT_OF_PLAIN, FIRST, id="a stop through an init"),
        pytest.param(
            ContainerEnd(TERM, 10), INIT_OF_CATCHING, LAST, id="a stop through an init, caught behind it"
        ),
        pytest.param(ContainerEnd(TERM, 10), TINI_OF_PLAIN, FIRST, id="a stop through an init known by name"),
        pytest.param(ContainerEnd(TERM, 10), TINI_OF_CATCHING, LAST, id="the same, caught behind it"),
        pytest.param(
            ContainerEnd(TERM), TINI_OF_PLAIN, FIRST, id="a signal that ends what is behind such an init"
        ),
        pytest.param(ContainerEnd(TERM, 10), SHELL_OF_CATCHING, FIRST, id="a shell hands nothing on"),
        pytest.param(
            ContainerEnd(TERM, 10), WAITS, FIRST, id="a stop of one that blocks it and has no child"
        ),
        pytest.param(ContainerEnd(signal.SIGKILL), CATCHES, FIRST, id="a kill"),
        pytest.param(ContainerEnd(signal.SIGKILL), None, FIRST, id="a kill of one that nothing is known of"),
        pytest.param(ContainerEnd(TERM), CATCHES, NEVER, id="a signal that the program handles"),
        pytest.param(
            ContainerEnd(USR1), PLAIN, NEVER, id="a signal that the kernel keeps from a first process"
        ),
        pytest.param(
            ContainerEnd(TERM), IN_HOSTS_NAMESPACE, FIRST, id="a signal that ends one of the host's"
        ),
        pytest.param(
            ContainerEnd(TERM), INIT_OF_PLAIN, FIRST, id="a signal that ends what is behind an init"
        ),
        pytest.param(
            ContainerEnd(TERM), INIT_OF_CATCHING, NEVER, id="a signal that is handled behind an init"
        ),
        pytest.param(ContainerEnd(WINCH), IN_HOSTS_NAMESPACE, NEVER, id="a signal that ends nobody"),
        pytest.param(ContainerEnd(TERM), None, NEVER, id="a signal to one that nothing is known of"),
    ],
)
def test_the_order_of_an_end(
    ending: ContainerEnd, main: SignalHandling | None, order: ClientStopOrder
) -> None:
    assert order_of(ending, main) is order


@pytest.mark.parametrize(
    ("asked", "stop_signal", "stop_seconds", "ending"),
    [
        (AskedEnd(), "", 10, ContainerEnd(TERM, 10)),
        (AskedEnd(), "SIGINT", 30, ContainerEnd(INT, 30)),
        (AskedEnd("HUP", 5), "SIGINT", 30, ContainerEnd(HUP, 5)),
        (AskedEnd(grace_seconds=-1), "", 10, ContainerEnd(TERM, None)),
        (AskedEnd(grace_seconds=0), "", 10, ContainerEnd(TERM, 0)),
        (AskedEnd("nonsense"), "", 10, ContainerEnd(TERM, 10)),
        (KILL, "SIGINT", 30, ContainerEnd(signal.SIGKILL, None)),
    ],
)
def test_what_is_not_said_is_the_containers_own(
    asked: AskedEnd, stop_signal: str, stop_seconds: int, ending: ContainerEnd
) -> None:
    assert ending_of(asked, stop_signal, stop_seconds) == ending


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (KILL, True),
        (AskedEnd("sigkill", 10), True),
        (AskedEnd(grace_seconds=0), True),
        (AskedEnd("TERM", kill=False), False),
        (AskedEnd(grace_seconds=1), False),
        (AskedEnd(), False),
    ],
)
def test_an_end_without_grace_is_one_at_once(asked: AskedEnd, expected: bool) -> None:
    assert at_once(asked) is expected


@pytest.mark.parametrize(
    ("text", "number"),
    [("TERM", TERM), ("sigterm", TERM), ("15", 15), ("KILL", 9), ("0", None), ("999", None), ("", None)],
)
def test_signals_are_read_as_docker_reads_them(text: str, number: int | None) -> None:
    assert signal_number(text) == number


@pytest.mark.parametrize(("grace", "lead"), [(10, 3.0), (60, 3.0), (4, 2.0), (1, 0.5)])
def test_a_short_grace_is_the_programs_for_half_of_it_at_least(grace: float, lead: float) -> None:
    assert lead_seconds(grace) == pytest.approx(lead)
