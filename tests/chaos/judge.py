"""A run's violations of the promises of docs/explanation/reliability.md, found in diaries and the record.

The rules follow docs/how-to/pool-failures.md. No job runs twice and none is lost. A job that wrote ``end 0``
is not run again, with one exception: a job with ``--stop-after`` on a node that the pool did not hear for so
long that it placed the job on another one before the node could tell of the end. No judgement depends on how
fast anything was.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tests.chaos.diary import Run
from tests.chaos.plan import BEAT_SECONDS, LIVE_RESTORE, FaultKind
from tests.chaos.records import OVER, Accepted, Call, Record, Span, Violation

TERM_CODE: Final = 143
KILL_CODE: Final = 137
STARTING_SECONDS: Final = 0.5
"""An engine notes a start that long after the program began, at most."""
OWN_CODE: Final = 125
"""With which a command ends that has no program's code to pass on."""
BREATHLESS_SECONDS: Final = 1.6 * BEAT_SECONDS
"""Between two lines with more between them the container may have been frozen, and held no GPU.

A lease gives way, and comes back, within half a second.
"""
CANCEL_SECONDS: Final = 20.0
"""An order to start that was under way when the cancellation was answered arrives within so long."""
REJOIN_SECONDS: Final = 15.0
"""A node that is back has told what ended meanwhile after so long, on a slow machine too."""
FENCE_SECONDS: Final = 30 + 10
"""The coordinator waits so much longer than ``--stop-after``: its margin, and the grace of a stop."""
REDIAL_SECONDS: Final = 20.0
"""A node is linked again so long after the coordinator is back, at the latest."""
BEAT_OF_NODES_SECONDS: Final = 6.0
"""A node says that it lives every five seconds, and counts its silence from the last one answered."""
NOTED_SECONDS: Final = 10.0
"""A node notes so often that it was heard, and a daemon that begins anew knows of no later time."""
RESUME_SECONDS: Final = 45.0
"""What was resumed writes within so long, where nothing is broken on its node."""
STOP_SECONDS: Final = 10.0
"""A daemon that is told to end is heard for so long after."""
STOP_EFFECT_SECONDS: Final = 30.0
"""An engine that ends has ended its containers within so long."""
SLACK: Final = 0.001

LIES: Final[tuple[tuple[str, str], ...]] = (
    (r"there is no job", "denies a job that was accepted"),
    (r"is in no pool", "denies that the node is in a pool"),
    (r"HTTP/1\.[01] \d\d\d", "shows HTTP in place of a sentence"),
    (r"Traceback \(most recent|a bug in gpushare|never retrieved", "shows an error of the program"),
    (r"GOAWAY|too_many_pings|StatusCode\.|_InactiveRpcError|grpc_status", "shows words of gRPC"),
    (r"never fits", "says that it never fits, which it does"),
)
UNSURE: Final = re.compile(
    r"may have|might|not known whether|nobody knows whether|cannot tell whether", re.IGNORECASE
)
MISSING: Final = re.compile("may be missing here: gpushare logs")
OUTPUT: Final = re.compile(r"line \d+")
WAITS: Final = re.compile(r"waits for room")

Work = tuple[str, str]


def judge(record: Record, runs: Sequence[Run]) -> list[Violation]:
    """All violations, the worst first."""
    return [
        *two_copies(runs),
        *oversold(record, runs),
        *lost(record),
        *run_again(record, runs),
        *outlived(record, runs),
        *ended_by_nobody(record, runs),
        *wrong_results(record, runs),
        *taken_twice(record, runs),
        *undone_cancellations(record, runs),
        *clients(record, runs),
        *resumed(record, runs),
        *record.found,
    ]


# --- jobs --------------------------------------------------------------------------------------------------


def by_work(runs: Iterable[Run]) -> dict[Work, list[Run]]:
    """The runs of each piece of work, by their begin."""
    found: dict[Work, list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda one: one.began):
        found[run.work].append(run)
    return found


def two_copies(runs: Sequence[Run]) -> Iterator[Violation]:
    """Two containers of one job lived at the same time; a frozen one lives."""
    for work, own in by_work(runs).items():
        for number, one in enumerate(own):
            for other in own[number + 1 :]:
                if one.container != other.container and other.began + SLACK < one.last:
                    both = min(one.last, other.last) - other.began
                    what = f"{_named(work)} ran twice at once for {both:.2f} s"
                    yield Violation("two copies", what, (one.show(), other.show()))


def lost(record: Record) -> Iterator[Violation]:
    """A job whose id was told is over in the end, by itself or because we cancelled it."""
    for job in record.accepted:
        is_forgotten = job.state is None and job.cancelled_at is not None
        if is_forgotten and _is_restored(record, job.cancelled_at or 0.0, math.inf):
            continue  # it was over, and the store that was put back does not know the job
        if job.state not in OVER:
            state = "is unknown" if job.state is None else f"is still {job.state} ({job.reason})"
            yield Violation("job lost", f"{_named(job.work)}, accepted as {job.job}, {state}")
        elif job.state == "cancelled" and not job.may_be_cancelled:
            yield Violation(
                "job lost", f"{_named(job.work)} ({job.job}) was cancelled, but not by us: {job.reason}"
            )


def run_again(record: Record, runs: Sequence[Run]) -> Iterator[Violation]:
    """A run that wrote ``end 0`` is the last one."""
    stop_after = {job.work: job.stop_after_seconds for job in record.accepted}
    for work, own in by_work(runs).items():
        for number, done in enumerate(own[:-1]):
            again = own[number + 1]
            excused = _was_placed_in_silence(record, done, again, stop_after.get(work, 0))
            excused = excused or _was_forgotten_by_its_engine(record, done, again)
            if done.code == 0 and not excused:
                what = f"{_named(work)} ended with 0 and began again {again.began - done.last:.1f} s later"
                yield Violation(
                    "run again after end 0", what, (done.show(), again.show(), *_faults_at(record, done))
                )


def _was_forgotten_by_its_engine(record: Record, done: Run, again: Run) -> bool:
    """An engine that is killed in the moment in which it starts a container knows nothing of the start."""
    engine = f"engine-{node_of(record, done)}"
    return done.container == again.container and any(
        span.target == engine
        and span.kind is FaultKind.KILL
        and abs(span.began - done.began) <= STARTING_SECONDS
        and again.began >= span.ended
        for span in record.spans
    )


def _was_placed_in_silence(record: Record, done: Run, again: Run, stop_after_seconds: int) -> bool:
    """The node was silent from before it could tell of the end until the coordinator placed the job anew."""
    node = node_of(record, done)
    if not stop_after_seconds or node_of(record, again) == node:
        return False
    least = stop_after_seconds + FENCE_SECONDS - REJOIN_SECONDS
    return any(
        began <= done.last + REJOIN_SECONDS and began + least <= again.began <= ended + REJOIN_SECONDS
        for began, ended in silences(record.spans, node)
    )


def outlived(record: Record, runs: Sequence[Run]) -> Iterator[Violation]:
    """A job with ``--stop-after`` is over when the coordinator may place it anew, whatever ails its node."""
    stop_after = {job.work: job.stop_after_seconds for job in record.accepted if job.stop_after_seconds}
    for run in runs:
        patience = stop_after.get(run.work)
        if patience is None:
            continue
        node = node_of(record, run)
        for span in record.spans:
            is_silent = span.target in {f"daemon-{node}", f"cable-{node}"} and run.began < span.began
            until = span.began + patience + FENCE_SECONDS + STOP_SECONDS
            if is_silent and until < min(span.ended, run.last):
                what = f"{_named(run.work)} ran for {run.last - span.began:.0f} s on {node}, which was silent"
                yield Violation("outlived --stop-after", what, (run.show(), span.show()))


def silences(spans: Iterable[Span], node: str) -> list[tuple[float, float]]:
    """When the coordinator and a node did not hear each other, short pauses included.

    On a full disk a node cannot note that it was heard, and a coordinator takes no node in.
    """
    parts = {f"daemon-{node}", f"cable-{node}", f"disk-{node}"}
    silent = [(span.began, span.ended) for span in spans if span.target in parts or _is_of_the_pool(span)]
    joined: list[tuple[float, float]] = []
    for began, ended in sorted(silent):
        if joined and began <= joined[-1][1] + REJOIN_SECONDS:
            joined[-1] = (joined[-1][0], max(joined[-1][1], ended))
        else:
            joined.append((began, ended))
    return joined


def ended_by_nobody(record: Record, runs: Sequence[Run]) -> Iterator[Violation]:
    """What ended a run from outside was something that may: us, its engine, or ``--stop-after``."""
    jobs = {job.work: job for job in record.accepted}
    for run in runs:
        if run.code in {None, TERM_CODE} and not _may_be_ended(record, run, jobs.get(run.work)):
            how = "by SIGTERM" if run.code == TERM_CODE else "without a word"
            where = f"{_named(run.work)} on {node_of(record, run)} (lease {run.lease})"
            what = f"{where} was ended {how}, and nobody asked for it"
            reason = jobs[run.work].reason if run.work in jobs else ""
            yield Violation(
                "ended by nobody", what, (run.show(), f"the product says: {reason}", *_faults_at(record, run))
            )


def _may_be_ended(record: Record, run: Run, job: Accepted | None) -> bool:
    node = node_of(record, run)
    if run.last >= record.stopped.get(run.key, float("inf")) - 1:
        return True
    if node not in LIVE_RESTORE and _engine_ended(record, run, node):
        return True
    if run.key in record.removed and _was_frozen_when_its_engine_ended(record, run, node):
        return True
    if job is None:
        return False
    if job.may_be_cancelled:
        return True
    # Its node ends it when it has not heard of the pool for so long.
    return bool(job.stop_after_seconds) and any(
        began + job.stop_after_seconds - BEAT_OF_NODES_SECONDS - NOTED_SECONDS
        <= run.last
        <= ended + STOP_EFFECT_SECONDS
        and ended - began >= job.stop_after_seconds - REDIAL_SECONDS
        for began, ended in silences(record.spans, node)
    )


def _was_frozen_when_its_engine_ended(record: Record, run: Run, node: str) -> bool:
    """Docker 20.10 removes a paused container with ``--rm`` when it starts again, live-restore or not."""
    return any(
        span.target == f"engine-{node}"
        and span.kind in {FaultKind.KILL, FaultKind.STOP}
        and run.code is None
        and span.began - run.last > BREATHLESS_SECONDS
        for span in record.spans
    )


def _engine_ended(record: Record, run: Run, node: str) -> bool:
    return any(
        span.target == f"engine-{node}"
        and span.kind in {FaultKind.KILL, FaultKind.STOP}
        and span.began - 1 <= run.last <= span.ended + STOP_EFFECT_SECONDS
        for span in record.spans
    )


def wrong_results(record: Record, runs: Sequence[Run]) -> Iterator[Violation]:
    """What the product says of a job is what the job wrote."""
    found = by_work(runs)
    for job in record.accepted:
        own = found.get(job.work, [])
        wrong = _wrong(job, own) if job.state in OVER else ""
        if wrong:
            what = (
                f"{_named(job.work)} ({job.job}) is told to have {job.state} ({job.exit_code}), but {wrong}"
            )
            yield Violation(
                "wrong result", what, (*(run.show() for run in own), f"the product says: {job.reason}")
            )


def _wrong(job: Accepted, own: Sequence[Run]) -> str:
    codes = [run.code for run in own]
    if job.state == "succeeded":
        return "" if 0 in codes else "no run of it wrote end 0"
    # What --stop-after had run once more counts as its last run ended.
    if 0 in (codes[-1:] if job.stop_after_seconds else codes) and not job.may_be_cancelled:
        return "a run of it wrote end 0"
    if job.state == "failed" and not own:
        return "it never ran"
    last = codes[-1] if codes else None
    if job.state == "failed" and last not in {None, TERM_CODE, job.exit_code}:
        return f"its last run wrote end {last}"
    return ""


def taken_twice(record: Record, runs: Sequence[Run]) -> Iterator[Violation]:
    """One command makes one job, and a command that said that it made none made none."""
    for work, own in by_work(runs).items():
        jobs = {run.job for run in own if run.job}
        if len(jobs) > 1:
            what = f"{_named(work)} was handed in once and ran as {len(jobs)} jobs: {', '.join(sorted(jobs))}"
            yield Violation("made twice", what, tuple(run.show() for run in own))
    ran = {run.key for run in runs}
    for call in record.calls:
        if (
            call.command == "submit"
            and call.code not in {0, None}
            and call.key in ran
            and not UNSURE.search(call.err)
        ):
            own = [run for run in runs if run.key == call.key]
            what = f"{call.key} was refused, and ran"
            yield Violation("refused, and ran", what, (call.show(), *(run.show() for run in own)))


def undone_cancellations(record: Record, runs: Sequence[Run]) -> Iterator[Violation]:
    """Find jobs that began after their cancellation was answered.

    A store that is put back from before the cancellation forgets the cancellation of a job that no node had.
    """
    began: dict[Work, float] = {}
    for run in runs:
        began[run.work] = min(run.began, began.get(run.work, run.began))
    jobs = {job.work: job for job in record.accepted if job.cancelled_at is not None}
    for run in runs:
        job = jobs.get(run.work)
        if job is None or job.cancelled_at is None:
            continue
        never_began = began[run.work] > job.cancelled_at
        if job.pool and never_began and _is_restored(record, job.cancelled_at, run.began):
            continue
        if run.began > _arrives_until(record, node_of(record, run), job.cancelled_at):
            later = run.began - job.cancelled_at
            what = f"{_named(run.work)} ({job.job}) began {later:.0f} s after its cancellation"
            yield Violation("cancellation undone", what, (run.show(), *_restores(record)))


def _arrives_until(record: Record, node: str, cancelled_at: float) -> float:
    """Return when an order to start that was under way at a cancellation has arrived at the latest.

    A frozen daemon, or one behind a cut cable, reads the order when it is back, before it hears anything new.
    """
    away = (
        span.ended
        for span in record.spans
        if span.target in {f"daemon-{node}", f"cable-{node}"} and span.began <= cancelled_at <= span.ended
    )
    return max([cancelled_at, *away]) + CANCEL_SECONDS


def _is_restored(record: Record, since: float, until: float) -> bool:
    spans = (span for span in record.spans if span.kind is FaultKind.RESTORE)
    return any(span.began < until and span.ended > since for span in spans)


def _restores(record: Record) -> list[str]:
    return [span.show() for span in record.spans if span.kind is FaultKind.RESTORE]


# --- GPUs --------------------------------------------------------------------------------------------------


def oversold(record: Record, runs: Sequence[Run]) -> Iterator[Violation]:
    """At no moment do the containers that live on a GPU have more of it than there is."""
    for gpu, steps in _steps(runs).items():
        node, memory_bytes = record.gpus.get(gpu, ("?", 0))
        on: dict[int, Run] = {}
        for at, _, number, run in steps:
            if number in on:
                del on[number]
                continue
            on[number] = run
            percent = sum(one.percent for one in on.values())
            taken = sum(one.memory_bytes for one in on.values())
            if percent > 100 + SLACK or (memory_bytes and taken > memory_bytes):
                what = f"{percent:g} % of {gpu} on {node} were given away at {at:.2f} ({taken} bytes)"
                # What follows on this GPU has the same cause.
                yield Violation("GPU oversold", what, tuple(one.show() for one in on.values()))
                break


def _steps(runs: Sequence[Run]) -> dict[str, list[tuple[float, int, int, Run]]]:
    """For each GPU when stretches of life begin and end; at one moment ends come first."""
    steps: dict[str, list[tuple[float, int, int, Run]]] = defaultdict(list)
    number = 0
    for run in runs:
        for began, ended in lives(run):
            number += 1
            for gpu in run.gpus:
                steps[gpu] += [(began, 1, number, run), (ended, 0, number, run)]
    return {gpu: sorted(own, key=lambda step: step[:3]) for gpu, own in steps.items()}


def lives(run: Run) -> list[tuple[float, float]]:
    """The stretches in which it certainly was not frozen."""
    found = [
        (before, after)
        for before, after in zip(run.marks, run.marks[1:], strict=False)
        if after - before <= BREATHLESS_SECONDS
    ]
    joined: list[tuple[float, float]] = []
    for began, ended in found:
        if ended <= began:
            continue
        if joined and joined[-1][1] == began:
            joined[-1] = (joined[-1][0], ended)
        else:
            joined.append((began, ended))
    return joined


# --- clients -----------------------------------------------------------------------------------------------


def clients(record: Record, runs: Sequence[Run]) -> Iterator[Violation]:
    """A command that waits ends with the program's code, or with one honest sentence."""
    found = by_work(runs)
    jobs = {job.job: job for job in record.accepted}
    for call in record.calls:
        complaint = _complaint(call, jobs, found)
        if complaint:
            own = [run.show() for run in runs if run.key == call.key][:4]
            yield Violation(f"client: {call.command}", f"{call.name} {complaint}", (call.show(), *own))


def _complaint(call: Call, jobs: dict[str, Accepted], found: dict[Work, list[Run]]) -> str:
    if call.code is None:
        return "never ended"
    for pattern, lie in LIES:
        if re.search(pattern, call.err + call.out):
            return lie
    match call.command:
        case "wait":
            return _check_code(call, _waited_for(call, jobs, found))
        case "run" | "run --pool":
            own = found.get((call.key, ""), [])
            return _check_code(call, _ran(own)) or _check_output(call) or _check_exit_notice(call, own)
        case "logs":
            return _check_output(call) if call.code == 0 else _check_sentence(call)
        case "submit" if call.code == 0:
            return "" if call.out.strip() else "succeeded and told no id"
        case _:
            return "" if call.code == 0 else _check_sentence(call)


def _check_code(call: Call, expected: frozenset[int]) -> str:
    if call.code in expected:
        return ""
    if call.code == OWN_CODE:
        return _check_sentence(call)
    wanted = " or ".join(str(code) for code in sorted(expected)) or str(OWN_CODE)
    return f"ended with {call.code} in place of {wanted}"


def _check_sentence(call: Call) -> str:
    lines = [line for line in call.err.splitlines() if line.strip()]
    own_lines = [line for line in lines if re.match(r"(gpushare|docker|Error|error|time=)", line)]
    return "" if own_lines else f"ended with {call.code} and said nothing"


def _check_output(call: Call) -> str:
    """All output of a program whose code was passed on is shown once, or the command names what has it."""
    lines = [line for line in call.out.splitlines() if line]
    if strange := [line for line in lines if not OUTPUT.fullmatch(line)]:
        return f"printed what the program did not: {strange[0]!r}"
    whole = [f"line {number}" for number in range(call.beats)]
    is_told = MISSING.search(call.err) and lines == [line for line in whole if line in set(lines)]
    if call.code in {0, 7} and call.beats and lines != whole and not is_told:
        return f"printed {len(lines)} of {call.beats} lines, or not in their order"
    return ""


def _check_exit_notice(call: Call, own: Sequence[Run]) -> str:
    """Whoever loses sight of a container that runs on is told how to reach it."""
    if call.code != OWN_CODE or not own or own[-1].last <= call.ended + 1:
        return ""
    return (
        "" if "gpushare attach" in call.err else "left its container running and did not say how to reach it"
    )


def resumed(record: Record, runs: Sequence[Run]) -> Iterator[Violation]:
    """A container whose lease was resumed goes on, unless its node was broken or had no room at the time."""
    for call in record.calls:
        if call.command != "resume" or call.code != 0 or not call.jobs or WAITS.search(call.err):
            continue
        until = call.ended + RESUME_SECONDS
        own = [
            run
            for run in runs
            if (run.lease, node_of(record, run)) == (call.jobs[0], call.node) and run.began < call.ended
        ]
        if not own or (own[-1].code is not None and own[-1].last < call.ended):
            continue
        wrote = any(call.ended < mark <= until for mark in own[-1].marks)
        if not wrote and not _was_disturbed(record, call, until):
            what = f"{call.jobs[0]} on {call.node} was resumed and wrote nothing for {RESUME_SECONDS:g} s"
            yield Violation("resume did nothing", what, (call.show(), own[-1].show()))


def _was_disturbed(record: Record, call: Call, until: float) -> bool:
    """A fault of the node, or another command for the same lease, in that time."""
    faults = any(
        span.target.endswith(f"-{call.node}") and span.began <= until and call.began - 5 <= span.ended
        for span in record.spans
    )
    return faults or any(
        other is not call and other.jobs == call.jobs and call.ended <= other.ended and other.began <= until
        for other in record.calls
    )


def _ran(own: Sequence[Run]) -> frozenset[int]:
    """The codes that a command may pass on whose program had these runs."""
    if not own:
        return frozenset()
    code = own[-1].code
    return frozenset({TERM_CODE, KILL_CODE} if code in {None, TERM_CODE} else {code})


def _waited_for(call: Call, jobs: dict[str, Accepted], found: dict[Work, list[Run]]) -> frozenset[int]:
    """The code of the first job that did not succeed."""
    for name in call.jobs:
        job = jobs.get(name)
        if job is None or job.state is None:
            return frozenset({OWN_CODE})
        if job.state == "cancelled":
            # It may have ended by itself or by SIGTERM before the cancellation was known.
            return frozenset({OWN_CODE}) | _ran(found.get(job.work, []))
        if job.state != "succeeded":
            return _ran(found.get(job.work, [])) or frozenset({OWN_CODE})
    return frozenset({0})


# --- words -------------------------------------------------------------------------------------------------


def node_of(record: Record, run: Run) -> str:
    """By its GPUs: a container is told no node's name."""
    return record.gpus[run.gpus[0]][0] if run.gpus and run.gpus[0] in record.gpus else "?"


def _named(work: Work) -> str:
    key, index = work
    return f"{key}[{index}]" if index else key


def _faults_at(record: Record, run: Run) -> list[str]:
    """Faults around the last word of a run, of its node and of the coordinator."""
    node = node_of(record, run)
    return [
        span.show()
        for span in record.spans
        if span.began - 5 <= run.last <= span.ended + 60
        and (span.target.endswith(f"-{node}") or _is_of_the_pool(span))
    ]


def _is_of_the_pool(span: Span) -> bool:
    """Whether it hit a coordinator, or a member of the etcd that keeps the store, and not a node."""
    return "coordinator" in span.target or span.target.startswith("etcd-")
