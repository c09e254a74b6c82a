"""Judges what was seen: does a statement hold? Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bench.gpu.observe import Observation

Seen = Mapping[tuple[str, str], Observation]
Values = Mapping[str, Any]
Judge = Callable[[Values, Seen], "Verdict"]

SUCCESS = "CUDA_SUCCESS"
PHASES = ("lock", "checkpoint", "restore", "unlock")
MIB = 1024 * 1024


class Word(StrEnum):
    HOLDS = "holds"
    FAILS = "does not hold"
    UNCLEAR = "unclear"
    NOT_MEASURED = "not yet measured"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A word, and a sentence with what was seen."""

    word: Word
    seen: str = ""

    @property
    def text(self) -> str:
        return f"{self.word}: {self.seen}" if self.seen else str(self.word)


def verdict(holds: bool, seen: str) -> Verdict:
    return Verdict(Word.HOLDS if holds else Word.FAILS, seen)


def judged(where: tuple[str, str], judge: Judge, seen: Seen) -> Verdict:
    """The verdict on a case: not measured where it did not run, unclear where it saw other things."""
    observation = seen.get(where)
    if observation is None:
        return Verdict(Word.NOT_MEASURED)
    for key, word in (
        ("skipped", Word.NOT_MEASURED),
        ("error", Word.UNCLEAR),
        ("timed_out", Word.UNCLEAR),
    ):
        if key in observation.values:
            return Verdict(word, str(observation.values[key]))
    # What is no client at all keeps no limits and shares nothing; that says nothing about MPS.
    if observation.values.get("servers", True) in ([], ()) or observation.values.get("server", True) is None:
        return Verdict(Word.UNCLEAR, "no MPS server came up, so this was no MPS client")
    try:
        return judge(observation.values, seen)
    except (KeyError, TypeError, IndexError, ValueError, ZeroDivisionError):
        return Verdict(Word.UNCLEAR, f"the case {' '.join(where)} saw something else; see its line")


# --- memory ---


def capped(values: Values, _: Seen) -> Verdict:
    """An allocation beyond the limit was refused, and some of what is below it was given."""
    taken, limit = _taken(values)
    if taken <= 0:
        return Verdict(Word.UNCLEAR, _words(values))
    return verdict(taken <= limit, _words(values))


def uncapped(values: Values, _: Seen) -> Verdict:
    taken, limit = _taken(values)
    return verdict(taken > limit, _words(values))


def applied_exactly(values: Values, _: Seen) -> Verdict:
    """More than the whole GiB below the limit, and not more than the limit."""
    taken, limit = _taken(values)
    return verdict(
        limit // 1024 * 1024 < taken <= limit, f"{_words(values)} (read back: {values['read_back']})"
    )


def sees_the_limit_as_free(values: Values, _: Seen) -> Verdict:
    free, total = values["info"]["free_bytes"] // MIB, values["info"]["total_bytes"] // MIB
    limit = values["limit_mib"]
    return verdict(free <= limit < total, f"with a limit of {limit} MiB, {free} MiB free of {total} MiB")


def raised_for_new_clients_only(values: Values, _: Seen) -> Verdict:
    old, new = (values[which]["alloc"]["allocated_mib"] for which in ("old", "new"))
    return verdict(old < new, f"the running client got {old} MiB, one that came afterwards {new} MiB")


def more_than_one_limit(values: Values, _: Seen) -> Verdict:
    taken, limit = values["allocated_mib"], values["limit_mib"]
    return verdict(taken > limit, f"two processes took {taken} MiB together under a limit of {limit} MiB")


def within_one_limit(values: Values, seen: Seen) -> Verdict:
    found = more_than_one_limit(values, seen)
    return verdict(found.word is Word.FAILS, found.seen)


def _taken(values: Values) -> tuple[int, int]:
    line = values["import"] if "import" in values else values["alloc"]
    return int(line["allocated_mib"]), int(values["limit_mib"])


def _words(values: Values) -> str:
    line = values["import"] if "import" in values else values["alloc"]
    return (
        f"with a limit of {values['limit_mib']} MiB, {line['allocated_mib']} MiB were given, "
        f"the last answer was {line['result']}"
    )


# --- multiprocessors ---


def quarter_of_multiprocessors(values: Values, seen: Seen) -> Verdict:
    return _multiprocessors(values, seen, lambda mine, all_of_them: 0 < mine <= all_of_them * 0.26)


def _multiprocessors(values: Values, seen: Seen, good: Callable[[int, int], bool]) -> Verdict:
    mine = values["info"]["sm_count"]
    all_of_them = seen["G0", "plain"].values["info"]["sm_count"]
    return verdict(good(mine, all_of_them), f"{mine} of {all_of_them} multiprocessors")


# --- who is seen ---


def listed_by_client(values: Values, _: Seen) -> Verdict:
    """NVML lists each client by its own PID, with at least what it took."""
    return _listed(values, values["lists"]["lists"]["Compute"])


def listed_by_adapter(values: Values, _: Seen) -> Verdict:
    return _listed(values, values["adapter"]["processes"])


def _listed(values: Values, found: list[dict[str, Any]]) -> Verdict:
    held = {str(one["pid"]): one["memory_bytes"] for one in found}
    wanted = {pid: mib * MIB for pid, mib in values["clients"].items()}
    words = ", ".join(
        f"a client that took {mib // MIB} MiB is listed with {_mib(held.get(pid))}"
        for pid, mib in wanted.items()
    )
    server = _mib(held.get(str(values["server"])))
    good = all((held.get(pid) or 0) >= mib for pid, mib in wanted.items())
    return verdict(good, f"{words}; the server with {server}")


def _mib(count: int | None) -> str:
    return "nothing" if count is None else f"{count // MIB} MiB"


def busy_client_seen(values: Values, _: Seen) -> Verdict:
    samples = values["utilization"]["samples"]
    mine = [one["sm_percent"] for one in samples if one["pid"] == values["busy"]]
    idle = [one["sm_percent"] for one in samples if one["pid"] == values["idle"]]
    words = f"the busy client: {max(mine, default=None)} %, the idle one: {max(idle, default=None)} %"
    return verdict(max(mine, default=0) > max(idle, default=0), words)


def was_a_client(values: Values, seen: Seen) -> Verdict:
    """It saw the daemon's limits, which a process outside MPS does not."""
    info, line = values["info"], values["alloc"]
    everything = seen["G0", "plain"].values["info"]["sm_count"]
    words = f"it saw {info['sm_count']} of {everything} multiprocessors and got {line['allocated_mib']} MiB"
    return verdict(info["sm_count"] < everything and line["allocated_mib"] <= 4096, words)


# --- other users ---


def limit_was_raised(values: Values, _: Seen) -> Verdict:
    taken = values["new_client"]["alloc"]["allocated_mib"]
    words = f"the limit then read {values['read_back'] or 'nothing'}; a new client got {taken} MiB"
    return verdict(taken > values["limit_mib"], words)


def nothing_was_changed(values: Values, seen: Seen) -> Verdict:
    raised = limit_was_raised(values, seen)
    alive = values["victim_after"]["alive"]["result"]
    good = raised.word is Word.FAILS and alive == SUCCESS
    return verdict(good, f"{raised.seen}; the running client ended with {alive}")


def something_was_changed(values: Values, seen: Seen) -> Verdict:
    found = nothing_was_changed(values, seen)
    return verdict(found.word is Word.FAILS, found.seen)


def waited(values: Values, _: Seen) -> Verdict:
    words = f"the second user's client was served after {values['waited_seconds']:.1f} s"
    return verdict(not values["served_beside"] and bool(values["second"]), words)


def served_together(values: Values, _: Seen) -> Verdict:
    return verdict(values["served_beside"], f"served after {values['waited_seconds']:.1f} s")


def flag_is_known(values: Values, _: Seen) -> Verdict:
    return verdict(values["known"], "the daemon started" if values["known"] else values["why"])


# --- faults ---


def neighbour_was_hit(values: Values, _: Seen) -> Verdict:
    return _result_of(values, "neighbour", good=lambda result: result != SUCCESS)


def others_were_spared(values: Values, _: Seen) -> Verdict:
    results = {name: values[name]["loop"]["result"] for name in ("separate", "plain")}
    words = f"a client of another daemon: {results['separate']}; a plain process: {results['plain']}"
    return verdict(set(results.values()) == {SUCCESS}, words)


def healed(values: Values, _: Seen) -> Verdict:
    states = ", ".join(f"{one['state']} at {one['seconds']} s" for one in values["states"])
    words = f"after {values['seconds_to_work']:.1f} s; the server: {states}"
    return verdict(values["works_again"], words)


def neighbour_lived(values: Values, _: Seen) -> Verdict:
    found = _result_of(values, "neighbour", good=lambda result: result == SUCCESS)
    again = values["works_afterwards"]
    return verdict(found.word is Word.HOLDS and again, f"{found.seen}; new clients are served: {again}")


def _result_of(values: Values, who: str, good: Callable[[str], bool]) -> Verdict:
    result = values[who]["loop"]["result"]
    return verdict(good(result), f"the neighbour's loop ended with {result}")


def new_client_waited(values: Values, _: Seen) -> Verdict:
    words = (
        f"served while it was held: {values['served_while_held']}, afterwards: {values['served_afterwards']}"
    )
    return verdict(not values["served_while_held"], words)


def daemon_replaced(values: Values, _: Seen) -> Verdict:
    running = values["running_client"]["loop"]["result"]
    new = values["new_client"].get("alive", {}).get("result", "no answer")
    return verdict(
        running == SUCCESS and new == SUCCESS,
        f"the running client: {running}; a client of the new daemon: {new}",
    )


# --- cost ---


def server_within_reserve(values: Values, seen: Seen) -> Verdict:
    """What gpushared keeps back, against what the server holds beside its clients' own contexts."""
    del seen
    used = values["used_bytes"]
    server = (used["server_alone"] - used["nothing"]) // MIB
    client = (used["3_clients"] - used["2_clients"]) // MIB
    plain = (used["one_plain"] - used["nothing"]) // MIB
    words = f"a server holds {server} MiB, each idle client {client} MiB more, a plain process {plain} MiB"
    return verdict(server <= 300, words)


def takes_48_clients(values: Values, _: Seen) -> Verdict:
    words = f"{values['accepted']} clients were accepted (tried: {values['tried_at_most']} at most)"
    return verdict(values["accepted"] >= 48, words)


def faster_than(case: str) -> Judge:
    """More rounds a second than another case, by the small matrix products."""

    def compare(values: Values, seen: Seen) -> Verdict:
        mine = values["matmul"]["rounds_per_second"]
        other = seen["G6", case].values["matmul"]["rounds_per_second"]
        words = f"{mine:.0f} rounds a second against {other:.0f}, which is {mine / other:.2f} times as many"
        return verdict(mine > other, words)

    return compare


# --- checkpoint ---


def paused_and_resumed(values: Values, _: Seen) -> Verdict:
    # Nothing follows a phase that failed.
    failed = [phase for phase in PHASES if values.get(phase, values["lock"])["result"] != SUCCESS]
    if failed:
        return verdict(holds=False, seen=f"{failed[0]} answered {values[failed[0]]['result']}")
    held = values["checkpoint"]["gpu_bytes"]
    seconds = ", ".join(f"{phase} {values[phase]['seconds']:.2f} s" for phase in PHASES)
    alive = values["afterwards"].get("result", "no answer")
    words = f"{seconds}; {_mib(held)} stayed on the GPU; the process ended with {alive}"
    return verdict(alive == SUCCESS and held == 0, words)


def came_back_after_full(values: Values, _: Seen) -> Verdict:
    full, later = values["restore_when_full"]["result"], values["restore_afterwards"]["result"]
    return verdict(
        full != SUCCESS and later == SUCCESS, f"while the GPU was full: {full}; afterwards: {later}"
    )


# --- the sharing benchmark ---


def ratio_at_least(key: str, least: float) -> Judge:
    """The smallest of the ratios that the benchmark worked out."""

    def compare(values: Values, _: Seen) -> Verdict:
        ratios = values[key]
        words = ", ".join(f"{name}: {ratio:.3f}" for name, ratio in ratios.items())
        return verdict(min(ratios.values()) >= least, words)

    return compare
