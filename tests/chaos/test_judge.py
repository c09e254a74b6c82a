"""The judge finds each kind of violation in made-up diaries, and excuses what the page on failures allows."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.chaos import read_log
from tests.chaos.diary import PROGRAM, Run, read_diaries, read_diary
from tests.chaos.judge import judge, lives, silences
from tests.chaos.plan import BEAT_SECONDS, FaultKind
from tests.chaos.records import Accepted, Call, Record, Span, Violation

A, C = "GPU-a", "GPU-c"
GPUS = {A: ("a", 1000), C: ("c", 1000)}


def run(
    key: str = "w1", container: str = "1", began: float = 100.0, last: float = 105.0, code: int | None = 0,
    *, job: str = "j1", attempt: int = 1, index: str = "",
    gpu: str = A, percent: float = 50.0, memory: int = 500,
) -> Run:  # fmt: skip
    """One that beats from its begin to its last word."""
    beats = round((last - began) / BEAT_SECONDS)
    marks = (*(round(began + number * BEAT_SECONDS, 3) for number in range(beats)), last)
    return Run(key, container, job, attempt, index, "l-1", (gpu,), percent, memory, marks, code)


def accepted(**changes: object) -> Accepted:
    return replace(Accepted("w1", "", "j1", pool=True, state="succeeded", exit_code=0), **changes)  # type: ignore[arg-type]  # names of its fields


def called(command: str = "wait", code: int | None = 0, **changes: object) -> Call:
    base = Call("0001", command, "w1", "a", ("j1",), 90.0, 110.0, code)
    return replace(base, **changes)  # type: ignore[arg-type]  # names of its fields


def span(kind: FaultKind, target: str, began: float, ended: float) -> Span:
    return Span(kind, target, began, ended)


def rules(
    runs: list[Run], *, jobs: list[Accepted] | None = None, calls: list[Call] | None = None,
    spans: list[Span] | None = None, stopped: dict[str, float] | None = None,
) -> list[str]:  # fmt: skip
    record = Record(GPUS, jobs or [], calls or [], spans or [], stopped=stopped or {})
    return [violation.rule for violation in judge(record, runs)]


def test_a_run_in_which_all_went_well_has_no_violation() -> None:
    assert rules([run()], jobs=[accepted()], calls=[called(), called("submit", out="j1\n")]) == []


# --- jobs


CUT_LONG = span(FaultKind.CUT, "cable-a", 100.0, 190.0)
FAILED_BY_TERM = accepted(state="failed", exit_code=143)
FAILED_BY_KILL = accepted(state="failed", exit_code=137)
JOBS: dict[str, tuple[list[Run], list[Accepted], list[Span], list[str]]] = {
    "two containers of a job overlap": (
        [run(last=105.0), run(container="2", began=104.0, last=110.0, attempt=2)],
        [accepted()], [], ["two copies", "run again after end 0"],
    ),
    "a frozen copy is a copy": (
        [
            replace(run(), marks=(100.0, 100.25, 160.0), code=0),
            run(container="2", began=120.0, last=125.0, attempt=2, code=7),
        ],
        [accepted()], [], ["two copies", "run again after end 0"],
    ),
    "one after the other is none": (
        [run(last=105.0, code=3), run(container="2", began=105.0, last=110.0, attempt=2)],
        [accepted()], [], [],
    ),
    "jobs of an array are different work": (
        [run(index="0", job="j1_0"), run(container="2", index="1", job="j1_1", percent=50)],
        [accepted(index="0", job="j1_0"), accepted(index="1", job="j1_1")], [], [],
    ),
    "an accepted job that is unknown in the end is lost": ([], [accepted(state=None)], [], ["job lost"]),
    "and one that still waits": ([], [accepted(state="queued")], [], ["job lost"]),
    "and one that somebody else cancelled": ([], [accepted(state="cancelled")], [], ["job lost"]),
    "one that we cancelled, and a store of before does not know": (
        [], [accepted(state=None, cancelled_at=90.0)],
        [span(FaultKind.RESTORE, "coordinator", 100.0, 105.0)], [],
    ),
    "and what we asked to be cancelled is not, whatever was answered": (
        [], [accepted(state="cancelled", is_cancel_asked=True)], [], [],
    ),
    "one that we cancelled is not": ([], [accepted(state="cancelled", cancelled_at=90.0)], [], []),
    "an engine that is killed while it starts a container knows nothing of the start": (
        [run(began=100.0), run(began=108.0, last=113.0)],
        [accepted()], [span(FaultKind.KILL, "engine-a", 99.9, 107.5)], [],
    ),
    "one that is killed later does": (
        [run(began=100.0), run(began=108.0, last=113.0)],
        [accepted()], [span(FaultKind.KILL, "engine-a", 101.0, 107.5)], ["run again after end 0"],
    ),
    "one of another node has nothing to do with it": (
        [run(began=100.0), run(began=108.0, last=113.0)],
        [accepted()], [span(FaultKind.KILL, "engine-c", 99.9, 107.5)], ["run again after end 0"],
    ),
    "after end 0 it is not run again": (
        [run(), run(container="2", began=120.0, last=125.0, attempt=2)],
        [accepted()], [], ["run again after end 0"],
    ),
    "nor with --stop-after, where the node was heard": (
        [run(), run(container="2", began=120.0, last=125.0, attempt=2)],
        [accepted(stop_after_seconds=30)], [], ["run again after end 0"],
    ),
    "but with --stop-after, where the node was silent until it was placed anew": (
        [run(), run(container="2", began=180.0, last=185.0, attempt=2, gpu=C)],
        [accepted(stop_after_seconds=30)], [CUT_LONG], [],
    ),
    "not on the node itself, which had told of the end before": (
        [run(), run(container="2", began=195.0, last=199.0, attempt=2)],
        [accepted(stop_after_seconds=30)], [CUT_LONG], ["run again after end 0"],
    ),
    "not after the node was back": (
        [run(), run(container="2", began=220.0, last=225.0, attempt=2, gpu=C)],
        [accepted(stop_after_seconds=30)], [CUT_LONG], ["run again after end 0"],
    ),
    "it may not outlive the silence of its node": (
        [run(began=90.0, last=185.0)], [accepted(stop_after_seconds=30)],
        [CUT_LONG], ["outlived --stop-after"],
    ),
    "nor the absence of its daemon": (
        [run(began=90.0, last=185.0)], [accepted(stop_after_seconds=30)],
        [span(FaultKind.STOP, "daemon-a", 100.0, 190.0)], ["outlived --stop-after"],
    ),
    "without --stop-after it may": ([run(began=90.0, last=185.0)], [accepted()], [CUT_LONG], []),
    "not where another node was silent": (
        [run(gpu=C), run(container="2", began=180.0, last=185.0, attempt=2)],
        [accepted(stop_after_seconds=30)], [CUT_LONG], ["run again after end 0"],
    ),
    "not where the silence was too short to place it anew": (
        [run(), run(container="2", began=140.0, last=145.0, attempt=2)],
        [accepted(stop_after_seconds=30)], [span(FaultKind.FREEZE, "daemon-a", 100.0, 138.0)],
        ["run again after end 0"],
    ),
    "SIGTERM that nobody sent": ([run(code=143)], [FAILED_BY_TERM], [], ["ended by nobody"]),
    "a death without a word": ([run(code=None)], [FAILED_BY_KILL], [], ["ended by nobody"]),
    "an engine that ends its containers may": (
        [run(code=143, gpu=C)], [FAILED_BY_TERM],
        [span(FaultKind.STOP, "engine-c", 104.0, 107.0)], [],
    ),
    "one that keeps them may not": (
        [run(code=143)], [FAILED_BY_TERM],
        [span(FaultKind.STOP, "engine-a", 104.0, 107.0)], ["ended by nobody"],
    ),
    "a daemon may not": (
        [run(code=None)], [FAILED_BY_KILL],
        [span(FaultKind.KILL, "daemon-a", 104.0, 107.0)], ["ended by nobody"],
    ),
    "a node that heard nothing for --stop-after may": (
        [run(code=143), run(container="2", began=190.0, last=195.0, gpu=C)],
        [accepted(stop_after_seconds=30)], [span(FaultKind.CUT, "cable-a", 70.0, 160.0)], [],
    ),
    "and what it ran once more may fail": (
        [run(), run(container="2", began=190.0, last=195.0, gpu=C, code=143)],
        [accepted(state="failed", exit_code=143, stop_after_seconds=30)],
        [span(FaultKind.CUT, "cable-a", 70.0, 260.0), span(FaultKind.STOP, "engine-c", 194.0, 200.0)], [],
    ),
    "succeeded without end 0": (
        [run(code=3)], [accepted()], [], ["wrong result"],
    ),
    "failed with end 0": ([run()], [accepted(state="failed", exit_code=1)], [], ["wrong result"]),
    "failed without having run": ([], [accepted(state="failed", exit_code=None)], [], ["wrong result"]),
    "failed with another code than the program's": (
        [run(code=3)], [accepted(state="failed", exit_code=4)], [], ["wrong result"],
    ),
    "one command made two jobs": (
        [run(code=0), run(container="2", began=120.0, last=125.0, job="j2", code=0)],
        [accepted()], [], ["run again after end 0", "made twice"],
    ),
    "it begins after its cancellation": (
        [run(began=130.0, last=135.0)], [accepted(state="cancelled", cancelled_at=100.0)], [],
        ["cancellation undone"],
    ),
    "a store of before its cancellation forgets that": (
        [run(began=130.0, last=135.0)], [accepted(state="cancelled", cancelled_at=100.0)],
        [span(FaultKind.RESTORE, "coordinator", 110.0, 115.0)], [],
    ),
    "but not where it had run before": (
        [run(began=90.0, last=99.0, code=143), run(container="2", began=130.0, last=135.0)],
        [accepted(state="cancelled", cancelled_at=100.0)],
        [span(FaultKind.RESTORE, "coordinator", 110.0, 115.0)],
        ["cancellation undone"],
    ),
    "an order that was under way may still arrive": (
        [run(began=101.0, last=105.0, code=143)], [accepted(state="cancelled", cancelled_at=100.0)], [], [],
    ),
    "also at a daemon that was frozen then, once it goes on": (
        [run(began=161.0, last=161.5, code=143)], [accepted(state="cancelled", cancelled_at=100.0)],
        [span(FaultKind.FREEZE, "daemon-a", 90.0, 160.0)], [],
    ),
    "but not long after that": (
        [run(began=185.0, last=185.5, code=143)], [accepted(state="cancelled", cancelled_at=100.0)],
        [span(FaultKind.FREEZE, "daemon-a", 90.0, 160.0)], ["cancellation undone"],
    ),
    "nor on another node": (
        [run(began=161.0, last=161.5, gpu=C, code=143)],
        [accepted(state="cancelled", cancelled_at=100.0)],
        [span(FaultKind.FREEZE, "daemon-a", 90.0, 160.0)], ["cancellation undone"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", JOBS)
def test_what_became_of_jobs(name: str) -> None:
    runs, jobs, spans, expected = JOBS[name]
    assert rules(runs, jobs=jobs, spans=spans) == expected


def test_a_guard_that_we_stopped_was_ended_by_us_and_one_that_ended_before_was_not() -> None:
    guard = run(key="guard", code=143, job="")
    assert rules([guard], stopped={"guard": 105.0}) == []
    assert rules([guard], stopped={"guard": 200.0}) == ["ended by nobody"]


def test_a_refused_command_that_ran_all_the_same_is_found_unless_it_said_that_it_did_not_know() -> None:
    refused = called("submit", 125, err="gpushare: this node is away\n")
    assert rules([run()], calls=[refused]) == ["refused, and ran"]
    unsure = called("submit", 125, err="gpushare: the connection broke: the job may have been accepted\n")
    assert rules([run()], calls=[unsure]) == []


def test_docker_may_remove_a_frozen_container_with_rm_when_it_starts_again_and_no_other() -> None:
    killed = span(FaultKind.KILL, "engine-a", 120.0, 125.0)
    for removed, spans, expected in (
        ({"w1"}, [killed], []),
        (set[str](), [killed], ["ended by nobody"]),
        ({"w1"}, [span(FaultKind.KILL, "engine-a", 105.1, 125.0)], ["ended by nobody"]),
    ):
        record = Record(GPUS, spans=spans, removed=removed)
        assert [one.rule for one in judge(record, [run(code=None, job="")])] == expected


# --- GPUs


def other(**changes: object) -> Run:
    return replace(run(key="w2", container="2", job="j2"), **changes)  # type: ignore[arg-type]  # names of its fields


def test_a_gpu_of_which_more_than_all_was_given_away_is_named_once_by_share_or_by_memory() -> None:
    assert rules([run(), other(percent=51.0, memory_bytes=1)]) == ["GPU oversold"]
    assert rules([run(), other(percent=1.0, memory_bytes=501)]) == ["GPU oversold"]
    assert rules([run(), other()]) == []
    assert rules([run(), other(gpus=(C,), percent=100.0)]) == []


def test_what_ends_at_the_moment_at_which_another_begins_is_not_beside_it() -> None:
    late = run(key="w2", container="2", job="j2", began=105.0, last=110.0, percent=100.0)
    assert rules([run(percent=100.0), late]) == []


def test_a_frozen_container_holds_no_gpu() -> None:
    frozen = replace(run(percent=100.0), marks=(100.0, 100.25, 120.0, 120.25))
    assert lives(frozen) == [(100.0, 100.25), (120.0, 120.25)]
    beside = run(key="w2", container="2", job="j2", began=101.0, last=119.0, percent=100.0)
    assert rules([frozen, beside]) == []


# --- commands


NO_POOL = "gpushare: this node is in no pool\n"
TRACE = "Traceback (most recent call last):\n"
LOGS = "gpushare: j1 has ended; what it wrote meanwhile may be missing here: gpushare logs j1\n"
HONEST = "gpushare: the coordinator is away since 12:00, and what became of it is not known\n"
CALLS: dict[str, tuple[Call, list[str]]] = {
    "wait has the job's code": (called(code=7), []),
    "wait has another code": (called(code=0), ["client: wait"]),
    "wait has an honest sentence": (called(code=125, err=HONEST), []),
    "wait fails without a word": (called(code=125), ["client: wait"]),
    "wait denies the job": (called(code=125, err="gpushare: there is no job 'j1'\n"), ["client: wait"]),
    "wait never ends": (called(code=None), ["client: wait"]),
    "run denies the pool": (called("run --pool", 125, err=NO_POOL), ["client: run --pool"]),
    "run has the program's code": (called("run", 7, out="line 0\nline 1\n", beats=2), []),
    "run has another code": (called("run", 1, err=HONEST), ["client: run"]),
    "run lost a line": (called("run", 7, out="line 0\n", beats=2), ["client: run"]),
    "run says where the lost line is": (called("run", 7, out="line 1\n", err=LOGS, beats=2), []),
    "run says so and has a line twice": (
        called("run", 7, out="line 0\nline 0\n", err=LOGS, beats=2), ["client: run"],
    ),
    "run has a line twice": (called("run", 7, out="line 0\nline 0\n", beats=1), ["client: run"]),
    "run shows HTTP": (
        called("run --pool", 125, out="HTTP/1.1 503 Refused\n", err=HONEST), ["client: run --pool"],
    ),
    "run shows what is not the program's": (called("run", 7, out="what?\n"), ["client: run"]),
    "submit shows a traceback": (
        called("submit", 1, err=TRACE), ["client: submit", "refused, and ran"],
    ),
    "logs shows words of gRPC": (called("logs", 1, err="gpushare: too_many_pings\n"), ["client: logs"]),
    "logs says why it ends": (called("logs", 1, err="gpushare: the engine went away\n"), []),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_what_commands_answered(name: str) -> None:
    call, expected = CALLS[name]
    job = accepted(state="failed", exit_code=7)
    assert sorted(rules([run(code=7)], jobs=[job], calls=[call])) == expected


def test_wait_for_an_array_has_the_code_of_the_first_that_did_not_succeed() -> None:
    runs = [run(index="0", job="j_0"), run(container="2", index="1", job="j_1", code=7)]
    jobs = [accepted(index="0", job="j_0"), accepted(index="1", job="j_1", state="failed", exit_code=7)]
    assert rules(runs, jobs=jobs, calls=[called(code=7, jobs=("j_0", "j_1"))]) == []
    assert rules(runs, jobs=jobs, calls=[called(code=0, jobs=("j_0", "j_1"))]) == ["client: wait"]


def test_wait_for_a_cancelled_job_has_the_code_of_the_command_itself() -> None:
    job = accepted(state="cancelled", cancelled_at=95.0)
    assert (
        rules([run(code=143)], jobs=[job], calls=[called(code=125, err="gpushare: it was cancelled\n")]) == []
    )
    assert rules([run(code=143)], jobs=[job], calls=[called(code=0)]) == ["client: wait"]


def test_who_loses_a_container_that_runs_on_is_told_how_to_reach_it() -> None:
    on = run(last=120.0, code=7)
    lost = called("run", 125, err=HONEST)
    assert rules([on], calls=[lost]) == ["client: run"]
    assert rules([on], calls=[called("run", 125, err="gpushare: gone; see `gpushare attach j1`\n")]) == []
    assert rules([run(last=105.0, code=7)], calls=[lost]) == []


def test_submit_that_succeeds_tells_an_id() -> None:
    assert rules([], calls=[called("submit", 0, out="")]) == ["client: submit"]


def test_what_was_resumed_goes_on_unless_its_node_was_broken() -> None:
    resume = called("resume", 0, jobs=("l-1",))
    frozen = replace(run(), marks=(100.0, 100.25, 200.0), code=0)
    broken = span(FaultKind.KILL, "daemon-a", 112.0, 115.0)
    elsewhere = span(FaultKind.KILL, "daemon-b", 112.0, 115.0)
    assert rules([frozen], calls=[resume]) == ["resume did nothing"]
    assert rules([frozen], calls=[resume], spans=[elsewhere]) == ["resume did nothing"]
    assert rules([frozen], calls=[resume], spans=[broken]) == []
    waits = replace(resume, err="gpushare: l-1 waits for room, position 1 of 1: GPU 0 is full")
    assert rules([frozen], calls=[waits]) == []
    assert rules([replace(frozen, marks=(100.0, 130.0, 200.0))], calls=[resume]) == []
    assert rules([run(last=105.0)], calls=[resume]) == []


# --- what the harness found


def test_what_the_harness_found_itself_is_a_violation() -> None:
    record = Record(GPUS, found=[Violation("lease left", "a: l-1")])
    assert [violation.rule for violation in judge(record, [])] == ["lease left"]


def test_an_error_in_a_daemons_log_is_found_once() -> None:
    line = {"message": "a call failed", "exception": f"{TRACE}  File x\nValueError: no"}
    (found,) = read_log("daemon-a", f"{json.dumps(line)}\n{json.dumps(line)}\n")
    assert (found.rule, found.what) == ("error in a log", "daemon-a: a call failed ValueError: no")
    assert len(list(read_log("coordinator", f"Future exception was never retrieved\n{TRACE}"))) == 2
    assert list(read_log("daemon-a", '{"message": "the disk is full"}\n')) == []


# --- reading


def test_silences_that_follow_each_other_at_once_are_one_and_other_faults_are_none() -> None:
    spans = [
        span(FaultKind.CUT, "cable-a", 100, 120),
        span(FaultKind.KILL, "coordinator", 125, 130),
        span(FaultKind.FULL, "disk-a", 200, 210),
        span(FaultKind.FREEZE, "engine-a", 250, 260),
        span(FaultKind.STOP, "daemon-b", 300, 310),
        span(FaultKind.FREEZE, "daemon-a", 400, 410),
    ]
    assert silences(spans, "a") == [(100, 130), (200, 210), (400, 410)]


def test_a_diary_is_read_as_the_program_writes_it(tmp_path: Path) -> None:
    start = "start {} j_3 2 3 l-9 GPU-a 25 1234"
    text = f"{start.format('10.5')}\nbeat 10.6 \n{start.format('20')}\nbeat 20.1 \nend 20.4 7\nbeat 20"
    (tmp_path / "w7.abc").write_text(text)
    first, second = read_diaries(tmp_path)
    assert (first.key, first.container, first.job, first.attempt, first.work) == (
        "w7",
        "abc",
        "j_3",
        2,
        ("w7", "3"),
    )
    assert (first.gpus, first.percent, first.memory_bytes, first.code) == (("GPU-a",), 25.0, 1234, None)
    assert first.marks == (10.5, 10.6)
    assert (second.marks, second.code) == ((20.0, 20.1, 20.4), 7)


@pytest.mark.parametrize(("attempt", "code"), [(1, 3), (2, 0), (9, 0)])
def test_the_program_writes_what_the_reader_reads(tmp_path: Path, attempt: int, code: int) -> None:
    """With the shell of this machine in place of the container's."""
    program = PROGRAM.replace("/out/", f"{tmp_path}/")
    environ = {
        "PATH": "/usr/bin:/bin", "HOSTNAME": "abc", "GPUSHARE_ATTEMPT": str(attempt),
        "GPUSHARE_GPU_UUIDS": "GPU-a", "GPUSHARE_COMPUTE_PERCENT": "12.5", "GPUSHARE_MEMORY_BYTES": "99",
    }  # fmt: skip
    done = subprocess.run(
        ["sh", "-c", program, "w1", "2", "3,0"], env=environ, check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "line 0\nline 1\n", "")
    (written,) = read_diary("w1.abc", (tmp_path / "w1.abc").read_text())
    assert (written.code, written.percent, written.attempt, len(written.marks)) == (code, 12.5, attempt, 4)
