"""The look at a container after its start hindered or led astray, and what root does in one's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from tests.bed import parts
from tests.node.daemon import wait_until
from tests.redteam.attack import BOTH, Attack, How, Response, Threat, creates, plain_body
from tests.redteam.attacked_machine import ATTACKER, AttackedMachine

ROOT = Threat.ROOT
DEEP = "i=0; while [ $i -lt 1200 ]; do mkdir d; cd d; i=$((i+1)); done"
MANY = "seq 2000 | xargs touch"
SLEEPS = "sleep 100"
RESTLESS = """cd /dev/x; for i in 1 2 3 4; do
(while :; do for f in *; do mv $f .$f; mv .$f $f; done; done)&
done; wait"""


def made_past_the_gate(machine: AttackedMachine, like: str, *options: str, command: str) -> str:
    """What only a mistake could make: the attacker's own with more, here the machine's processes."""
    labels = machine.as_engine("GET", f"/containers/{like}/json")["Config"]["Labels"]
    words = [word for name, value in labels.items() for word in ("--label", f"{name}={value}")]
    return machine.engine.check(
        "run", "-d", "--network", "none", "--user", f"{ATTACKER}:{ATTACKER}", "--cap-drop", "ALL",
        "--security-opt", "no-new-privileges", "--pid", "host", *words, *options,
        parts.BUSYBOX_IMAGE, "sh", "-c", command,
    ).strip()  # fmt: skip


@contextmanager
def grown(machine: AttackedMachine, how: str) -> Iterator[str]:
    """A tree of the attacker's; the mount of it in a container, below ``/dev``."""
    tree = machine.home / "tree"
    made, _, told = machine.attacker.command("sh", "-c", f"mkdir {tree}; cd {tree}; {how}")
    assert not made, told
    try:
        yield f"{tree}:/dev/x"
    finally:
        machine.attacker.command("rm", "-rf", str(tree))


def is_ended(machine: AttackedMachine, forged: str) -> None:
    try:
        wait_until(
            lambda: not machine.as_engine("GET", f"/containers/{forged}/json")["State"]["Running"],
            "the forged one was ended",
        )
    finally:
        machine.as_engine("DELETE", f"/containers/{forged}?force=1")


def hides(tree: str, command: str) -> How:
    """A container that has too much keeps the look from its end, by what lies below its ``/dev``."""

    def how(machine: AttackedMachine) -> Response:
        like = machine.made(plain_body())
        with grown(machine, tree) as mount:
            is_ended(machine, made_past_the_gate(machine, like, "-v", mount, command=command))
        return Response(200)

    return how


def hinders(tree: str, command: str) -> How:
    """A container of the attacker's own that cannot be looked through; the next one is looked at."""

    def how(machine: AttackedMachine) -> Response:
        before = len(machine.daemon.text())
        with grown(machine, tree) as mount:
            host = {"NetworkMode": "none", "Binds": [mount]}
            own = machine.made(plain_body(Cmd=["sh", "-c", command], HostConfig=host))
            machine.ask("POST", f"/containers/{own}/start")
            is_ended(machine, made_past_the_gate(machine, own, command=SLEEPS))
            machine.ask("DELETE", f"/containers/{own}?force=1")
        said = machine.daemon.text()[before:]
        missed = [words for words in ("was not looked at", "never retrieved") if words in said]
        return Response(0, str(missed)) if missed else Response(200)

    return how


def roots_program_started(machine: AttackedMachine) -> Response:
    """What root is about to run in it, with rights that the container has not: who starts it has them."""
    own = machine.made(plain_body(Cmd=["sleep", "100"]))
    machine.ask("POST", f"/containers/{own}/start")
    told = []
    for rights in ({"User": "0"}, {"Privileged": True}):
        machine.as_engine("POST", f"/containers/{own}/exec", {"Cmd": ["id"], "AttachStdout": True, **rights})
        program = json.loads(machine.ask("GET", f"/containers/{own}/json").message)["ExecIDs"][-1]
        told.append(machine.ask("POST", f"/exec/{program}/start", b"{}"))
    return max(told, key=lambda one: not one.is_refusal)


ATTACKS = [
    Attack(
        "look-lost-in-folders-below-each-other",
        ROOT,
        hides(DEEP, SLEEPS),
        harmless="what has too much is ended all the same",
    ),
    Attack(
        "look-made-void-by-what-comes-and-goes",
        ROOT,
        hides(MANY, RESTLESS),
        harmless="what has too much is ended all the same",
        on=BOTH,
    ),
    Attack(
        "looks-at-others-held-up",
        Threat.AVAILABILITY,
        hinders(DEEP, SLEEPS),
        harmless="others are looked at meanwhile",
    ),
    Attack(
        "look-escaped-by-the-gates-own-label",
        ROOT,
        creates(Labels={"gpushare.gate": "00000000/trusted"}),
        harmless="the label is the gate's to set",
    ),
    Attack(
        "roots-program-in-ones-own-container", ROOT, roots_program_started, refused="No such exec instance"
    ),
]
