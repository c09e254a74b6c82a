"""Who is missed in the queue, and what a restart of the daemon remembers of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpushared.domain.leases import events as m
from gpushared.domain.leases.node_machine import handle
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.gpu import MIB, Gpu, GpuId
from gpushared.domain.model.lease import LeaseId
from gpushared.domain.model.request import Caller, Request
from gpushared.node.runtime.client_presence_checks import STEP_SECONDS, ClientPresence

PATIENCE_SECONDS = 30.0
GPU = Gpu(GpuId("GPU-0"), 0, "H100", 81920 * MIB, 81920 * MIB)
WHOLE = Request(1, 1000, None, 1000)


class Queue:
    """A request that waits, and the lives of a daemon that misses its client, a second at a time."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.state = NodeState()
        self._do(m.GpusSurveyed((GPU,)))
        self._do(m.RequestSubmitted(WHOLE, Caller(0, 0, "root", trusted=True)))
        self.lease = self._do(m.RequestSubmitted(WHOLE, Caller(1, 1, "ada")))
        self.client_presence = ClientPresence(self.now)

    def _do(self, event: m.Event) -> LeaseId:
        step = handle(self.state, event, self.now)
        self.state = step.state
        return step.lease.id if step.lease is not None else LeaseId("")

    def passes(self, seconds: int) -> bool:
        """Whether somebody is missed by then."""
        for _ in range(seconds):
            self.now += 1
            for missed in self.client_presence.missed(self.state, self.now):
                self._do(missed)
            if self.client_presence.abandoned(self.state, self.now, PATIENCE_SECONDS):
                return True
        return False

    def restarts(self, away_seconds: int) -> None:
        self.now += away_seconds
        self.client_presence = ClientPresence(self.now)
        self.now += 1
        self.client_presence.opened(self.now)

    @property
    def missed_seconds(self) -> int:
        return self.state.find(self.lease).missed_seconds


LIVES = st.lists(st.tuples(st.integers(0, 25), st.integers(0, 500)), min_size=1, max_size=12)
"""For how long each life of the daemon lasts, and for how long there is none after it."""


@given(LIVES)
def test_a_client_that_is_gone_is_missed_however_often_the_daemon_restarts(
    lives: list[tuple[int, int]],
) -> None:
    """Each restart forgets less than a step of the silence; the time without a daemon counts for nobody."""
    queue, heard_nothing = Queue(), 0
    for seconds, away_seconds in lives:
        missed = queue.passes(seconds)
        heard_nothing += seconds - seconds % STEP_SECONDS
        assert missed or heard_nothing < PATIENCE_SECONDS
        if missed:
            return
        assert queue.missed_seconds <= heard_nothing + STEP_SECONDS
        queue.restarts(away_seconds)


@given(LIVES)
def test_a_client_that_comes_back_in_time_is_never_missed(lives: list[tuple[int, int]]) -> None:
    queue = Queue()
    for seconds, away_seconds in lives:
        queue.client_presence.seen(queue.lease, queue.now)
        assert not queue.passes(seconds)
        queue.restarts(away_seconds)


def test_whoever_comes_back_begins_anew() -> None:
    queue = Queue()
    queue.passes(27)
    assert queue.missed_seconds == 25
    with queue.client_presence.waiting(queue.lease, queue.now):
        assert not queue.passes(100)
    assert queue.missed_seconds == 0
    assert queue.passes(30)
