"""One pass over the queue: who is granted what, who gives way, and why the others wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from gpushared.domain.gpu import WHOLE_PERMILLE
from gpushared.domain.lease import LeaseId
from gpushared.domain.policy.desk import Desk
from gpushared.domain.policy.order import Backlog, Kind, backlogs, gate, sunk, sunk_holder
from gpushared.domain.policy.passes import NEVER, Candidate, Holder, Plan, Preemption, Verdict
from gpushared.domain.policy.places import Places
from gpushared.domain.policy.projects import Policy
from gpushared.domain.policy.roll import Roll
from gpushared.domain.policy.sizes import sizes_of
from gpushared.domain.policy.usage import Usage


def plan(
    waiting: Iterable[Candidate],
    holders: Sequence[Holder] | Roll,
    places: Places,
    usage: Usage,
    policy: Policy,
    now: float,
    *,
    under_way: Sequence[Preemption] = (),
    turns: Mapping[str, float] | None = None,
) -> Plan:
    """One pass. ``places`` are booked as decided: hand in a copy where they are still needed.

    ``under_way``: preemptions of passes before whose winners still wait. A winner starts as soon as its
    victims have left; until then its place is kept, whatever happens around it. ``holders``: all of them, or
    a roll that the caller keeps for this policy, which is left as it is.
    """
    roll, sinks_at = _as_they_count(holders, policy, places, now)
    desk = Desk(roll, usage, places, turns or {}, now)
    desk.wake(sinks_at)
    queue = sorted((sunk(one, policy) for one in waiting), key=lambda one: one.lease.sequence)
    _finish_preemptions(under_way, queue, roll.leaving, desk)
    desk.keep_fixed()
    ready = _pass_gate(queue, desk)
    queues = backlogs(ready, policy, desk.turns, now)
    _reserve_turns(queues, desk)
    _serve_claims(queues, desk)
    _serve_the_rest(_left_over(queues, ready, desk), desk)
    return Plan(
        desk.grants,
        tuple(desk.preemptions),
        desk.verdicts,
        tuple(desk.reservations),
        desk.turns,
        desk.behind,
        desk.look_again_at,
        desk.fixed(),
    )


def _as_they_count(
    holders: Sequence[Holder] | Roll, policy: Policy, places: Places, now: float
) -> tuple[Roll, float]:
    """The holders with their priorities as they count, and when the next one will sink."""
    if all(rules.long_run_gpu_seconds is None for rules in policy.classes.values()):
        return holders if isinstance(holders, Roll) else Roll(policy, places, holders), NEVER
    found, first = [], NEVER
    for holder in holders.holders() if isinstance(holders, Roll) else holders:
        gpus = sum(sizes_of(holder.lease.grants, places).values()) / WHOLE_PERMILLE
        counted, sinks_at = sunk_holder(holder, gpus, policy, now)
        found.append(counted)
        first = min(first, sinks_at)
    roll = Roll(policy, places, found)
    roll.lent = holders.lent if isinstance(holders, Roll) else {}
    return roll, first


def _finish_preemptions(
    under_way: Sequence[Preemption],
    queue: Sequence[Candidate],
    still: Mapping[LeaseId, Holder],
    desk: Desk,
) -> None:
    """Winners whose victims have left are granted; the places of the others are kept for them.

    ``still``: those that leave. A victim that has left may hold GPUs again, somewhere else: nobody waits for
    that.
    """
    waiting = {one.lease.id: one for one in queue}
    for one in under_way:
        winner = waiting.get(one.winner)
        if winner is not None:
            desk.finish(winner, one, [still[gone.lease] for gone in one.victims if gone.lease in still])


def _pass_gate(queue: Iterable[Candidate], desk: Desk) -> list[Candidate]:
    """Those that may be looked at."""
    ready = []
    for one in queue:
        if desk.is_done(one.lease.id):
            continue
        verdict = gate(one, desk.now)
        if verdict is None:
            ready.append(one)
            continue
        desk.verdicts[one.lease.id] = verdict
        if one.begin_at is not None:
            desk.wake(one.begin_at)
    return ready


def _reserve_turns(queues: Mapping[str, Backlog], desk: Desk) -> None:
    """Keep GPUs for the projects' next turns, those of the least use first."""
    for project in sorted(queues, key=lambda name: (desk.ledger.fair(name), name)):
        turn = queues[project].turn
        if turn is not None:
            desk.reserve_turn(turn)
        desk.wake(queues[project].turn_due_at)


def _serve_claims(queues: Mapping[str, Backlog], desk: Desk) -> None:
    """Requests within their project's guarantee, the emptiest guarantee first."""
    promised = [name for name in queues if desk.policy.project(name).is_guaranteed_something]
    heap = [(desk.ledger.filled(name), name) for name in promised]
    heapify(heap)
    while heap:
        _, name = heappop(heap)
        if _serve_a_claim(queues[name], desk):
            heappush(heap, (desk.ledger.filled(name), name))


def _serve_a_claim(backlog: Backlog, desk: Desk) -> bool:
    """Whether one of the project's requests was within its guarantee and had room."""
    while (kind := backlog.first()) is not None:
        one = kind.candidates[0]
        models = desk.ledger.claims(one, desk.places)
        room = desk.claim(one, models) if models else None
        if room is None:
            backlog.drop()
            continue
        desk.settle(one, room, turn=one is backlog.turn)
        backlog.advance()
        return True
    return False


def _left_over(
    queues: Mapping[str, Backlog], ready: Iterable[Candidate], desk: Desk
) -> Mapping[str, Backlog]:
    """The queue without those that were served; only projects that may claim something had any."""
    claimed = {name for name in queues if desk.policy.project(name).is_guaranteed_something}
    again = (one for one in ready if one.project in claimed and not desk.is_done(one.lease.id))
    left = {name: backlog for name, backlog in queues.items() if name not in claimed}
    return left | backlogs(again, desk.policy, desk.turns, desk.now)


def _serve_the_rest(queues: Mapping[str, Backlog], desk: Desk) -> None:
    """Everything else, by fair share."""
    heap = [(desk.ledger.fair(name), name) for name in queues]
    heapify(heap)
    while heap:
        _, name = heappop(heap)
        backlog = queues[name]
        _serve_one(backlog, desk)
        if backlog.heap:
            heappush(heap, (desk.ledger.fair(name), name))


def _serve_one(backlog: Backlog, desk: Desk) -> None:
    """The project's turn, or else its first request; one that is refused takes all of its kind with it."""
    turn, backlog.turn = backlog.turn, None
    kind = backlog.first()
    assert kind is not None
    one = turn or kind.candidates[0]
    if turn is None and desk.is_done(one.lease.id):
        backlog.advance()
        return
    answer = desk.ordinary(one, turn=turn is not None)
    if not isinstance(answer, Verdict):
        desk.settle(one, answer, turn=turn is not None)
    elif turn is not None:
        desk.verdicts[one.lease.id] = answer
    else:
        _refuse(backlog.drop(), answer, desk)


def _refuse(kind: Kind, verdict: Verdict, desk: Desk) -> None:
    for one in kind.candidates:
        if not desk.is_done(one.lease.id):
            desk.verdicts[one.lease.id] = verdict
