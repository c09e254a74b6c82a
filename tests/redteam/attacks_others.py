"""What other people have: their containers, what runs in them, and what can be learnt of them."""

from __future__ import annotations

import json
from datetime import datetime

from tests.redteam.attack import BOTH, Attack, How, Response, Threat, asks, docker, encoded, plain_body
from tests.redteam.attacked_machine import VICTIM, AttackedMachine

THEIRS, LEAK = Threat.CONTAINERS, Threat.LEAK
GONE = "o such container"
BUSY = plain_body(Cmd=["sleep", "100"])
EMPTY_LISTS = {"[]", "[]\n", ""}


def touches(name: str, *words: str, method: str = "POST", threat: Threat = THEIRS) -> Attack:
    """A request for another's container by its name, by its id, and by the beginning of its id."""

    def how(machine: AttackedMachine) -> Response:
        told = [
            machine.ask(method, "/containers/" + "/".join([machine.fill(one), *words]))
            for one in ("alices-box", "{box}", "{short}")
        ]
        return max(told, key=lambda one: not one.is_refusal)

    return Attack(name, threat, how, refused=GONE)


def lists_nothing(target: str) -> How:
    """A listing in which nothing of another's may stand, whatever is filtered."""

    def how(machine: AttackedMachine) -> Response:
        told = machine.ask("GET", machine.fill(target))
        return told if told.message in EMPTY_LISTS else Response(0, told.message)

    return how


def named_like_a_short_id(machine: AttackedMachine) -> Response:
    """Whoever types the short id of their own container would reach this one."""
    return machine.ask("POST", f"/containers/create?name={machine.box[:12]}", machine.fill_body(BUSY))


def renamed_to_a_short_id(machine: AttackedMachine) -> Response:
    own = machine.made(BUSY)
    return machine.ask("POST", f"/containers/{own}/rename?name={machine.roots_box[:12]}")


def renamed_to_a_name_of_anothers(machine: AttackedMachine) -> Response:
    own = machine.made(BUSY)
    return machine.ask("POST", f"/containers/{own}/rename?name=alices-box")


def labelled_as_anothers(machine: AttackedMachine) -> Response:
    """It must be the attacker's own whatever its labels say; the oracle looks whose it is."""
    machine.made(plain_body(Labels={"gpushare.owner": str(VICTIM)}))
    listed = machine.ask("GET", "/containers/json?all=1")
    return Response(200) if len(json.loads(listed.message)) == 1 else Response(0, listed.message)


def top_with_a_renamed_column(column: str) -> How:
    """``ps`` is run by the engine as root: rows whose column called PID is a pid of the container's."""

    def how(machine: AttackedMachine) -> Response:
        own = machine.made(BUSY)
        machine.ask("POST", f"/containers/{own}/start")
        words = encoded(ps_args=f"-eo{column}=PID -ouser -oargs ef")
        return machine.ask("GET", f"/containers/{own}/top?{words}")

    return how


def events_of_all(machine: AttackedMachine) -> Response:
    """All since the machine's beginning, among which are the victim's."""
    now = machine.ask("GET", "/info").message
    until = int(datetime.fromisoformat(json.loads(now)["SystemTime"][:19] + "+00:00").timestamp()) + 1
    told = machine.ask("GET", f"/events?since=0&until={until}")
    return Response(0, told.message) if machine.box in told.message else told


def exec_of_another(verb: str, method: str, body: bytes = b"") -> How:
    return lambda machine: machine.ask(method, f"/exec/{machine.exec}/{verb}", body)


def name_taken(machine: AttackedMachine) -> Response:
    """A name is the machine's; that it is taken may be learnt, and no more of who has it."""
    return machine.ask("POST", "/containers/create?name=alices-box", machine.fill_body(BUSY))


def volumes_of_others(machine: AttackedMachine) -> Response:
    told = machine.ask("GET", "/volumes")
    return Response(0, told.message) if machine.volume in told.message else told


ATTACKS = [
    touches("anothers-container-inspected", "json", method="GET", threat=LEAK),
    touches("anothers-container-read", "logs?stdout=1", method="GET", threat=LEAK),
    touches("anothers-container-watched", "stats?stream=0", method="GET", threat=LEAK),
    touches("anothers-processes-listed", "top", method="GET", threat=LEAK),
    touches("anothers-container-exported", "export", method="GET", threat=Threat.FILES),
    touches("anothers-changes-listed", "changes", method="GET", threat=LEAK),
    touches("anothers-container-stopped", "stop?t=0"),
    touches("anothers-container-killed", "kill"),
    touches("anothers-container-restarted", "restart?t=0"),
    touches("anothers-container-paused", "pause"),
    touches("anothers-container-renamed", "rename?name=mine"),
    Attack(
        "anothers-container-removed",
        THEIRS,
        asks("DELETE", "/containers/{box}?force=1&v=1"),
        refused=GONE,
        on=BOTH,
    ),
    touches("anothers-container-resized", "resize?h=1&w=1"),
    touches("anothers-container-waited-for", "wait", threat=LEAK),
    Attack(
        "anothers-container-updated",
        THEIRS,
        asks("POST", "/containers/{box}/update", {"Memory": 6291456}),
        refused=GONE,
    ),
    Attack(
        "anothers-container-joined",
        THEIRS,
        asks("POST", "/containers/{box}/exec", {"Cmd": ["env"]}),
        refused=GONE,
        on=BOTH,
    ),
    Attack("anothers-output-attached", LEAK, docker("attach", "--no-stdin", "{box}"), refused=GONE),
    Attack(
        "anothers-program-started",
        THEIRS,
        exec_of_another("start", "POST", b"{}"),
        refused="No such exec instance",
        on=BOTH,
    ),
    Attack(
        "anothers-program-inspected", LEAK, exec_of_another("json", "GET"), refused="No such exec instance"
    ),
    Attack(
        "anothers-program-resized",
        THEIRS,
        exec_of_another("resize?h=1&w=1", "POST"),
        refused="No such exec instance",
    ),
    Attack("roots-container-joined", Threat.ROOT, docker("exec", "{roots_box}", "id"), refused=GONE, on=BOTH),
    Attack(
        "roots-container-committed",
        Threat.SHARED,
        asks("POST", "/commit?container={roots_box}&repo=mine"),
        refused="trusted users",
    ),
    Attack("name-of-hex-digits-like-a-short-id", THEIRS, named_like_a_short_id, refused="id"),
    Attack("renamed-to-a-short-id", THEIRS, renamed_to_a_short_id, refused="id"),
    Attack(
        "renamed-to-anothers-name", THEIRS, renamed_to_a_name_of_anothers, refused="taken by somebody else"
    ),
    Attack("name-of-anothers-taken", THEIRS, name_taken, refused="taken by somebody else"),
    Attack(
        "owner-by-a-label",
        Threat.IDENTITY,
        labelled_as_anothers,
        harmless="the label is the gate's to set",
        on=BOTH,
    ),
    Attack(
        "list-of-all-containers",
        LEAK,
        lists_nothing("/containers/json?all=1"),
        harmless="one's own only",
        on=BOTH,
    ),
    Attack(
        "list-by-anothers-label",
        LEAK,
        lists_nothing(
            "/containers/json?all=1&" + encoded(filters='{"label":["gpushare.owner=' + str(VICTIM) + '"]}')
        ),
        harmless="both labels must fit, and nothing has both",
    ),
    Attack(
        "list-by-labels-as-a-set",
        LEAK,
        lists_nothing(
            "/containers/json?all=1&"
            + encoded(filters='{"label":{"gpushare.owner=' + str(VICTIM) + '":true}}')
        ),
        harmless="the old form is read as the new one",
    ),
    Attack(
        "list-by-a-filter-twice",
        LEAK,
        asks("GET", "/containers/json?all=1&filters=%7B%7D&filters=%7B%7D"),
        refused="given twice",
    ),
    Attack(
        "list-by-a-filter-with-a-key-twice",
        LEAK,
        asks("GET", "/containers/json?" + encoded(filters='{"label":["a"],"label":[]}')),
        refused="stands twice",
    ),
    Attack(
        "list-before-anothers-container",
        LEAK,
        asks("GET", "/containers/json?" + encoded(filters='{"before":["alices-box"]}')),
        refused="alices-box",
    ),
    Attack(
        "list-since-anothers-container",
        LEAK,
        asks("GET", "/containers/json?" + encoded(filters='{"since":{"{box}":true}}')),
        refused="No such container",
    ),
    Attack("list-of-all-volumes", LEAK, volumes_of_others, harmless="one's own only"),
    Attack("events-of-all", LEAK, events_of_all, harmless="one's own only", on=BOTH),
    Attack(
        "top-with-a-renamed-column",
        LEAK,
        top_with_a_renamed_column("min_flt"),
        refused="ps",
        on=BOTH,
    ),
    Attack(
        "top-with-another-renamed-column",
        LEAK,
        top_with_a_renamed_column("etimes"),
        refused="ps",
    ),
    Attack("disk-use-of-all", LEAK, asks("GET", "/system/df"), refused="trusted users"),
]
