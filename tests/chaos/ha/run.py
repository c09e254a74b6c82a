"""A run against several coordinators, in rounds: blows come, all is healed, and the pool has to serve again.

The jobs' diaries are judged as in any chaos run. Besides, whenever who led was hit, a fresh job is handed in,
and it is measured how long it took until a new leader had placed it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from gpushared.domain.model.errors import GpushareError
from tests.chaos.chaos import ChaosRun, run_on
from tests.chaos.diary import Run, read_diaries
from tests.chaos.faults import Faults
from tests.chaos.ha.faults import HaFaults, Hit
from tests.chaos.ha.machines import HaMachines
from tests.chaos.ha.plan import HOSTS, Blow, Role, Round, make_round
from tests.chaos.ha.watch import Watch, false_claims
from tests.chaos.judge import judge
from tests.chaos.machines import Json, a_free_number, sweep, wait_for
from tests.chaos.plan import NODES, Plan, Work, WorkKind
from tests.chaos.records import OVER, Record, Violation, now

SERVING_SECONDS: Final = 90.0
"""The pool serves again so long after all is healed; an etcd that was slow has much to write."""
SCREEN_SECONDS: Final = 15.0
"""A standby shows what happened after so long."""
PROBE_TRIES: Final = 6
MAX_BROKEN_ROUNDS: Final = 3


@dataclass(frozen=True, slots=True)
class TakeOver:
    """From a blow to who led until a new leader had placed a fresh job; times as in the diaries.

    ``alone``: nothing else was hit in the round.
    """

    number: int
    blow: str
    alone: bool
    struck: float
    led: float
    placed: float


class HaRun(ChaosRun):
    """At most ``rounds``, and no round begins after ``seconds``."""

    def __init__(
        self, seed: int, rounds: int, seconds: float, machines: HaMachines, folder: Path,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._hosts = machines
        super().__init__(Plan(seed, seconds, (), ()), machines, folder, say)
        self._rounds = rounds
        self._watch = Watch(machines)
        self.rounds_done = 0
        self.take_overs: list[TakeOver] = []

    def _make_faults(self) -> Faults:
        self.blows = HaFaults(self._hosts, self._record, self._folder / "copies", self._say)
        return self.blows

    async def _prepare(self) -> None:
        """Nothing more: what has to survive on nodes is tried where nodes alone fail."""
        self._began = now()
        self._say(f"at most {self._rounds} rounds in {self._plan.seconds:g} s")

    def _beside(self) -> list[Coroutine[Any, Any, None]]:
        return [self._faults.supervise(), self._watch.run()]

    async def _carry_out(self) -> None:
        broken = 0
        for number in range(self._rounds):
            if now() - self._began > self._plan.seconds or broken >= MAX_BROKEN_ROUNDS:
                return
            broken += not await self._carry_out_round(make_round(self._plan.seed, number))
            self.rounds_done += 1

    async def _let_work_end(self) -> None:
        await super()._let_work_end()
        self._record.found += false_claims(self._watch.claims)

    async def _carry_out_round(self, planned: Round) -> bool:
        """Returns whether the pool served again."""
        began, spans, epoch = now(), len(self._record.spans), self._watch.newest_epoch()
        self._say(f"round {planned.number}: {', '.join(map(str, planned.blows))}")
        self._work += [
            asyncio.create_task(self._at(began - self._began + work.at_seconds, self._load.do, work))
            for work in planned.work
        ]
        probes = await asyncio.gather(*(self._strike(planned, began, blow) for blow in planned.blows))
        healed = now()
        serves = await wait_for(self._serves, SERVING_SECONDS, 0.5)
        if not serves:
            self._find("not healed", f"round {planned.number}: {await asyncio.to_thread(self._ailment)}")
        for number, span in enumerate(self._record.spans[spans:], spans):
            if not span.target.endswith(NODES):
                self._record.spans[number] = replace(span, ended=now())
        for probe in filter(None, probes):
            await self._measure(planned, epoch, *probe)
        await self._compare_screens()
        self._say(f"round {planned.number} is over, {now() - healed:.1f} s after all was healed")
        return serves

    async def _strike(
        self, planned: Round, began: float, blow: Blow
    ) -> tuple[Hit, asyncio.Task[None]] | None:
        """Returns the hit where it was who led, and the task that hands a fresh job in."""
        await asyncio.sleep(max(0.0, began + blow.after_seconds - now()))
        hits = len(self.blows.hits)
        blows = asyncio.create_task(self.blows.do_blow(blow))
        probe: asyncio.Task[None] | None = None
        while blow.role is Role.LEADER and not blows.done() and probe is None:
            await asyncio.sleep(0.05)
            mine = [hit for hit in self.blows.hits[hits:] if hit.blow is blow]
            if mine:
                probe = asyncio.create_task(self._hand_in(planned))
                self._work.append(probe)
        await blows
        return (mine[0], probe) if probe is not None else None

    async def _hand_in(self, planned: Round) -> None:
        """A fresh job, by the command that people type, until it is accepted."""
        hit = {hit.name for hit in self.blows.hits if hit.blow in planned.blows}
        node = next(node for node in NODES[planned.number % 3 :] + NODES if node not in hit)
        for attempt in range(PROBE_TRIES):
            key = f"{_probe_key(planned)}{attempt}"
            await self._load.do(Work(0.0, WorkKind.SUBMIT, key, node, True, "0.05", 2))
            if any(job.key == key for job in self._record.accepted):
                return

    async def _measure(self, planned: Round, epoch: int, hit: Hit, probe: asyncio.Task[None]) -> None:
        """Wait for the fresh job's own word; who leads on has taken nothing over."""
        struck = hit.began
        await asyncio.wait([probe], timeout=SERVING_SECONDS)
        starts: list[float] = []

        def look() -> bool:
            starts[:] = [
                run.began for run in read_diaries(self._machines.shared, f"{_probe_key(planned)}*.*")
            ]
            return bool(starts)

        if not await wait_for(look, SERVING_SECONDS, 0.2):
            self._find("not served", f"the fresh job of round {planned.number} was never placed")
            return
        led = self._watch.led_by_another(hit.name, epoch)
        if led is not None:
            blows = ", ".join(map(str, planned.blows))
            placed = min(starts)
            # A status asks all members of etcd, and may come later than the first job.
            one = TakeOver(planned.number, blows, len(planned.blows) == 1, struck, min(led, placed), placed)
            self.take_overs.append(one)
            self._say(
                f"a new leader after {one.led - struck:.1f} s, a job placed after {placed - struck:.1f} s"
            )

    # --- is all well again?

    def _serves(self) -> bool:
        return not self._ailment()

    def _ailment(self) -> str:
        """What is not as it has to be, or nothing."""
        told = {}
        for host in self._hosts.coordinators:
            try:
                told[host] = self._hosts.ask(host, "PoolAdmin/Status")
            except GpushareError as error:
                return f"the coordinator of {host} does not answer: {error}"
        leaders = [host for host, status in told.items() if status["role"] == "leader"]
        if len(leaders) != 1:
            return f"{leaders or 'nobody'} lead"
        if wrong := [host for host in told if not self._tells_of(leaders[0], told[host])]:
            return f"not all coordinators, one leader or all of etcd's members are told by {wrong}: {told}"
        if not self._hosts.are_nodes_ready():
            return f"not all nodes are ready: {self._presences()}"
        sick = [host for host in HOSTS if not self._hosts.serves(f"etcd-{host}")]
        return f"etcd does not answer on {sick}" if sick else ""

    def _tells_of(self, leader: str, status: Json) -> bool:
        """Whether a coordinator's status has all of them, with this one as the leader, and a healthy etcd."""
        listed = {one["name"]: (one["leads"], one["runs"]) for one in status["coordinators"]}
        names = {host: self._hosts.address(host) for host in self._hosts.coordinators}
        healthy = [one["healthy"] for one in status["store_members"]]
        return listed == {names[host]: (host == leader, True) for host in names} and healthy == [True] * 3

    # --- the screens

    async def _compare_screens(self) -> None:
        """What the leader says is over, each standby says, too, in the same words."""
        leader = await asyncio.to_thread(self._hosts.leader)
        if leader is None or len(self._hosts.coordinators) == 1:
            return
        newest = [job.job for job in self._record.accepted[-12:]]
        told = await asyncio.to_thread(self._states, leader, newest)
        over = {job: state for job, state in told.items() if state in OVER}
        for host in self._hosts.coordinators:
            said: dict[str, str] = {}

            def look(host: str = host, said: dict[str, str] = said) -> bool:
                said.update(self._states(host, list(over)))
                return said == over

            if not await wait_for(look, SCREEN_SECONDS, 0.5):
                wrong = {job: (state, said.get(job)) for job, state in over.items() if said.get(job) != state}
                self._find("screen not true", f"{host} and its leader {leader} do not agree: {wrong}")

    def _states(self, host: str, jobs: list[str]) -> dict[str, str]:
        found = {}
        for job in jobs:
            try:
                found[job] = str(self._hosts.ask(host, "Jobs/Get", {"job_id": job})["state"])
            except GpushareError as error:
                found[job] = error.message
        return found


def _probe_key(planned: Round) -> str:
    return f"p{planned.number:04d}t"


async def carry_out_rounds(
    seed: int, rounds: int, seconds: float, folder: Path, cache: Path, say: Callable[[str], None],
    coordinators: int = len(HOSTS),
) -> tuple[HaRun, Record, list[Run], list[Violation]]:  # fmt: skip
    """Run the rounds on machines made for them, and judge. The machines are gone afterwards."""
    folder.mkdir(parents=True)
    await asyncio.to_thread(sweep, cache, say)
    with a_free_number() as number:
        machines = HaMachines(number, cache, coordinators)
        run = HaRun(seed, rounds, seconds, machines, folder, say)
        record, runs = await run_on(machines, run)
    return run, record, runs, judge(record, runs)
