"""A coordinator's orders become real containers of the right user, each exactly once, whatever dies."""

from __future__ import annotations

import contextlib
import json
import pwd
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gpushared.domain.jobs.attempt_log import Attempt
from gpushared.domain.jobs.job import AttemptState, EndKind, JobSpec, Owner, Pull
from gpushared.domain.jobs.protocol import CancelPart, Commit, Gang, Order, Place, Query, Report, StaleEpoch
from gpushared.domain.model.lease import AttemptKey, JobId
from gpushared.domain.model.request import Caller, Request
from gpushared.node.jobs.job_containers import ContainerRetention, due_of
from gpushared.storage.records import from_json, to_json
from tests.bed import parts
from tests.bed.fixtures import CdiEngine
from tests.node.conftest import NewDaemon
from tests.node.daemon import OWN_LABEL, DaemonFailed, DaemonProcess, Json, wait_until

USER = pwd.getpwnam("games")
CONFIG = """
[node]
name = "ws1"
[pool]
trusted_realms = ["lab"]
[pool.accounts]
"eve@lab" = "nobody"
"eva" = "games"
"games@lab" = "games"
[engine]
stop_grace_seconds = 1
"""
HALF = Request(compute_permille=500, memory_permille=500)
SMALL = Request(compute_permille=200, memory_permille=200)
FINAL = {AttemptState.ENDED, AttemptState.REFUSED}


@dataclass
class Node:
    """A daemon, and its coordinator."""

    daemon: DaemonProcess
    coordinator: str = "pool"

    def take(self, order: Order) -> Report | StaleEpoch:
        return self._answer(self._ask("take", order=to_json(Order, order)))

    def placed(self, order: Place) -> Report:
        report = self.take(order)
        assert isinstance(report, Report)
        return report

    def until(self, key: AttemptKey, *states: AttemptState) -> Report:
        """How it stands once it is in one of these states."""
        above = -1
        while True:
            asked = {"job": key.job, "number": key.number, "above": above}
            report = self._answer(self._ask("report", **asked))
            assert isinstance(report, Report)
            if report.state in states:
                return report
            assert report.state not in FINAL, report
            assert report.revision > above, f"it stays {report}"
            above = report.revision

    def reports(self) -> dict[AttemptKey, Report]:
        found = [self._answer(text) for text in self._ask("reports")]
        return {report.key: report for report in found if isinstance(report, Report)}

    def contact(self, sent_at: float) -> None:
        self._ask("contact", sent_at=sent_at, revision=1)

    def containers(self, job: str) -> list[Json]:
        return [self.daemon.container(one) for one in self.listed(job)]

    def listed(self, job: str) -> list[str]:
        """The ids of a job's containers, any of which may be gone a moment later."""
        listed = parts.docker(self.daemon.engine, "ps", "-aq", "--filter", f"label=gpushare.job={job}")
        return listed.stdout.split()

    def logs(self, job: str) -> str:
        (found,) = self.containers(job)
        return parts.docker(self.daemon.engine, "logs", found["Id"]).stdout

    def _ask(self, ask: str, **fields: Any) -> Any:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
            channel.settimeout(60)
            channel.connect(str(self.daemon.directory / "orders"))
            message = {"ask": ask, "coordinator": self.coordinator, **fields}
            channel.sendall(json.dumps(message).encode() + b"\n")
            with channel.makefile() as lines:
                answer = json.loads(lines.readline())
        assert not isinstance(answer, dict), answer["error"]
        return answer

    @staticmethod
    def _answer(text: str) -> Report | StaleEpoch:
        answer: Report | StaleEpoch = from_json(Report | StaleEpoch, text)
        return answer


@pytest.fixture
def node(new_daemon: NewDaemon, docker_engine: str) -> Node:
    made = new_node(new_daemon, docker_engine)
    made.daemon.start()
    return made


def new_node(new_daemon: NewDaemon, engine: str, *, dies: str = "", config: str = "") -> Node:
    environment = {"PYTHONPATH": str(parts.ROOT)} | ({"GPUSHARED_DIES": dies} if dies else {})
    command = (sys.executable, "-m", "tests.node.with_orders")
    daemon = new_daemon(
        engine=engine, config=CONFIG + config, command=command, environment=environment, simulate="h100"
    )
    return Node(daemon)


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


_jobs: Iterator[int] = iter(range(1, 1000))


def order(node: Node, script: str, *, number: int = 1, job: str = "", epoch: int = 1, **spec: Any) -> Place:
    """An order to run a shell script in half of a GPU."""
    name = JobId(job or f"{node.daemon.directory.name}-{next(_jobs)}")
    body = {
        "Image": parts.BUSYBOX_IMAGE,
        "Cmd": ["sh", "-c", script],
        "Labels": {OWN_LABEL: node.daemon.directory.name},
        "HostConfig": {"NetworkMode": "none", **spec.pop("host", {})},
    }
    request = spec.pop("request", HALF)
    place = {key: spec.pop(key) for key in ("wait", "gang", "reserve_seconds") if key in spec}
    spec.setdefault("owner", Owner("games@lab", "games"))
    made = JobSpec(request, image=parts.BUSYBOX_IMAGE, body=json.dumps(body), **spec)
    return Place(AttemptKey(name, number), epoch, made, request, **place)


def test_an_order_runs_a_container_as_its_owner_and_ends_as_that_does(node: Node) -> None:
    place = order(node, "id -u; env | grep ^GPUSHARE_ | sort; exit 3", array=JobId("a1"), index=7)
    assert node.placed(place).state is AttemptState.PREPARING
    ended = node.until(place.key, AttemptState.ENDED)
    assert ended.ending is not None
    assert (ended.ending.kind, ended.ending.exit_code) == (EndKind.EXITED, 3)
    output = node.logs(place.key.job).splitlines()
    assert output[0] == str(USER.pw_uid)
    variables = {f"GPUSHARE_JOB_ID={place.key.job}", "GPUSHARE_ATTEMPT=1", "GPUSHARE_ARRAY_ID=a1"}
    assert variables | {"GPUSHARE_ARRAY_INDEX=7"} <= set(output)
    lease = node.daemon.lease(str(ended.lease))
    assert (lease["owner"], lease["outcome"]["kind"]) == ("games", "finished")


def test_an_order_that_comes_again_is_answered_alike_and_runs_once(node: Node) -> None:
    place = order(node, "sleep 1000")
    node.placed(place)
    running = node.until(place.key, AttemptState.RUNNING)
    assert node.placed(place) == running
    assert len(node.containers(place.key.job)) == 1


def test_a_cancelled_attempt_ends_and_says_who_cancelled_it(node: Node) -> None:
    place = order(node, "sleep 1000")
    node.placed(place)
    node.until(place.key, AttemptState.RUNNING)
    node.take(CancelPart(place.key, 1, grace_seconds=0, by="ada"))
    ended = node.until(place.key, AttemptState.ENDED).ending
    assert ended is not None
    assert (ended.kind, ended.reason) == (EndKind.CANCELLED, "stopped by ada")


REFUSED = {
    "a path that is not there": (
        {"host": {"Binds": [f"{USER.pw_dir}/no-such-folder:/data"]}},
        "no-such-folder",
    ),
    "a path that is not the user's to mount": ({"host": {"Binds": ["/etc:/data"]}}, "/etc"),
    "privileges": ({"host": {"Privileged": True}}, "rivileged"),
    "an image that must not be pulled": ({"pull": Pull.NEVER}, "is not on this node"),
}


@pytest.mark.parametrize(("spec", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_this_node_does_not_allow_or_have_ends_the_attempt_in_words(
    node: Node, spec: Json, words: str
) -> None:
    place = order(node, "true", **spec)
    if "pull" in spec:
        place = replace(place, spec=replace(place.spec, image="no-such-image:1"))
    node.placed(place)
    ended = node.until(place.key, AttemptState.ENDED).ending
    assert ended is not None
    assert ended.kind is EndKind.FAILED
    assert words in ended.reason
    assert node.containers(place.key.job) == []
    wait_until(lambda: node.daemon.leases() == {}, "nothing is held for it")


def test_a_program_that_is_not_in_the_image_is_named(node: Node) -> None:
    place = order(node, "")
    body = json.loads(place.spec.body) | {"Cmd": ["/no/such/program"]}
    node.placed(replace(place, spec=replace(place.spec, body=json.dumps(body))))
    ended = node.until(place.key, AttemptState.ENDED).ending
    assert ended is not None
    assert (ended.kind, ended.exit_code) == (EndKind.FAILED, 127)
    assert "/no/such/program" in ended.reason


OWNERS = {
    "a principal that is named, whose account is the system's": (Owner("games@lab", "x"), "games"),
    "a principal that is named": (Owner("eve@lab", "eva"), "nobody"),
    "a person that is named": (Owner("someone@far", "eva"), "games"),
    "a name of the system's on this node": (Owner("games@ws1", "x"), "an account of the system"),
    "a user of another realm": (Owner("games@far", "games"), "does not trust the realm 'far'"),
    "nobody's name": (Owner("no-such-user@lab", "x"), "there is no such account"),
    "root": (Owner("root@lab", "root"), "jobs do not run as root"),
}


@pytest.mark.parametrize(("owner", "account"), OWNERS.values(), ids=OWNERS.keys())
def test_owners_run_as_accounts_of_this_node_or_not_at_all(node: Node, owner: Owner, account: str) -> None:
    place = order(node, "true", owner=owner)
    report = node.placed(place)
    if report.state is AttemptState.REFUSED:
        assert report.ending is not None
        assert account in report.ending.reason
        return
    ended = node.until(place.key, AttemptState.ENDED)
    assert node.daemon.lease(str(ended.lease))["owner"] == account


def test_without_room_an_order_is_refused_or_waits_as_it_says(node: Node) -> None:
    whole = Request(compute_permille=1000, memory_permille=1000)
    first = order(node, "sleep 1000", request=whole)
    node.placed(first)
    node.until(first.key, AttemptState.RUNNING)
    impatient = order(node, "true")
    node.placed(impatient)
    refused = node.until(impatient.key, AttemptState.REFUSED).ending
    assert refused is not None
    assert "--immediate" not in refused.reason
    patient = order(node, "true", wait=True)
    node.placed(patient)
    node.until(patient.key, AttemptState.WAITING)
    node.take(CancelPart(first.key, 1, grace_seconds=0))
    assert node.until(patient.key, AttemptState.ENDED).started_at is not None


def test_what_was_asked_about_or_cancelled_before_it_came_never_runs(node: Node) -> None:
    """Over a restart too: it is on disk before it is answered."""
    asked, cancelled = order(node, "true"), order(node, "true")
    node.take(Query(asked.key, 1))
    node.take(CancelPart(cancelled.key, 1))
    node.daemon.kill()
    node.daemon.start()
    assert node.placed(asked).state is AttemptState.REFUSED
    assert node.placed(cancelled).state is AttemptState.REFUSED
    assert node.take(CancelPart(asked.key, 7)) == node.reports()[asked.key]
    assert node.take(order(node, "true", epoch=6)) == StaleEpoch(
        AttemptKey(JobId(f"{node.daemon.directory.name}-{next(_jobs) - 1}"), 1), 7
    )


@pytest.mark.parametrize("point", ["before create", "after create", "before start", "after start"])
def test_killed_around_the_making_of_a_container_it_still_makes_one(
    new_daemon: NewDaemon, docker_engine: str, point: str
) -> None:
    node = new_node(new_daemon, docker_engine, dies=point)
    node.daemon.start()
    place = order(node, "echo once; sleep 1000")
    node.placed(place)
    wait_until(lambda: not node.daemon.running, "it dies")
    node.daemon.start()
    running = node.until(place.key, AttemptState.RUNNING)
    assert running.revision > 0
    (container,) = node.containers(place.key.job)
    assert container["RestartCount"] == 0
    assert node.logs(place.key.job) == "once\n"


def test_whatever_write_it_is_killed_at_each_attempt_runs_once_and_ends_as_it_should(
    new_daemon: NewDaemon, docker_engine: str
) -> None:
    node = new_node(new_daemon, docker_engine, dies="every write")
    node.daemon.start()
    short, cancelled = order(node, "echo once; sleep 1; exit 3"), order(node, "echo once; sleep 1000")
    for place in (short, cancelled):
        stubbornly(node, partial(node.placed, place))
    ended = stubbornly(node, lambda: node.until(short.key, AttemptState.ENDED)).ending
    assert ended is not None
    assert (ended.kind, ended.exit_code) == (EndKind.EXITED, 3)
    stubbornly(node, lambda: node.until(cancelled.key, AttemptState.RUNNING))
    stubbornly(node, lambda: node.take(CancelPart(cancelled.key, 1, 0, "ada")))
    ended = stubbornly(node, lambda: node.until(cancelled.key, AttemptState.ENDED)).ending
    assert ended is not None
    assert ended.kind is EndKind.CANCELLED
    for place in (short, cancelled):
        assert node.logs(place.key.job) == "once\n"
        assert stubbornly(node, partial(node.placed, place)).state is AttemptState.ENDED
    died = (node.daemon.directory / "died").read_text().splitlines()
    states = ("preparing", "reserved", "running", "ended", "running to be cancelled", "ended to be cancelled")
    assert {f"{when} {state}" for when in ("before", "after") for state in states} <= set(died)


T = TypeVar("T")


def stubbornly(node: Node, say: Callable[[], T]) -> T:
    """Say it again, to the next life, where the daemon died of it."""
    while True:
        try:
            return say()
        except (OSError, ValueError):
            node.daemon.wait()
            with contextlib.suppress(DaemonFailed):  # it may die of its own start
                node.daemon.start()


def test_a_gang_starts_when_it_is_told_to_and_knows_its_others(node: Node) -> None:
    place = order(node, "env | sort", gang=True)
    node.placed(place)
    reserved = node.until(place.key, AttemptState.RESERVED)
    assert not reserved.committed
    node.take(Commit(place.key, 1, Gang(("10.0.0.1", "10.0.0.2"), 1, 29500, (1, 2))))
    node.until(place.key, AttemptState.ENDED)
    output = set(node.logs(place.key.job).splitlines())
    assert {"MASTER_ADDR=10.0.0.1", "MASTER_PORT=29500", "NODE_RANK=1", "WORLD_SIZE=3"} <= output
    assert {"PET_NNODES=2", "PET_NPROC_PER_NODE=2", "GPUSHARE_HOSTS=10.0.0.1,10.0.0.2"} <= output


def test_a_gang_that_nobody_starts_gives_its_reservation_back(node: Node) -> None:
    place = order(node, "true", gang=True, reserve_seconds=1)
    node.placed(place)
    node.until(place.key, AttemptState.RESERVED)
    refused = node.until(place.key, AttemptState.REFUSED)
    late = node.take(Commit(place.key, 1, Gang(("h",), 0, 29500, (1,))))
    assert isinstance(late, Report)
    assert (late.state, late.revision) == (AttemptState.REFUSED, refused.revision)


ON_HOST = {"NetworkMode": "host"}


def test_a_gang_is_not_taken_where_its_parts_could_not_meet(node: Node) -> None:
    """Before the others have started."""
    refused = node.placed(order(node, "true", gang=True, host=ON_HOST))
    assert refused.state is AttemptState.REFUSED
    assert refused.ending is not None
    assert (refused.ending.kind, "its own network" in refused.ending.reason) == (EndKind.FAILED, True)
    assert 'host_network = "gangs"' in refused.ending.hint


@pytest.fixture
def meeting_place(new_daemon: NewDaemon, docker_engine: str) -> Node:
    """A node that gives its network to gangs."""
    node = new_node(new_daemon, docker_engine, config='[gate]\nhost_network = "gangs"\n')
    node.daemon.start()
    return node


@pytest.mark.parametrize(("rank", "kind"), [(0, EndKind.NO_ROOM), (1, EndKind.EXITED)])
def test_a_gang_whose_port_is_in_use_where_it_would_meet_does_not_start(
    meeting_place: Node, rank: int, kind: EndKind
) -> None:
    """On the other nodes it may be: nobody listens on it there."""
    node, place = meeting_place, order(meeting_place, "true", gang=True, host=ON_HOST)
    node.placed(place)
    node.until(place.key, AttemptState.RESERVED)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        node.take(Commit(place.key, 1, Gang(("127.0.0.1", "127.0.0.1"), rank, port, (1, 1))))
        ended = node.until(place.key, AttemptState.ENDED)
    assert ended.ending is not None
    assert ended.ending.kind is kind
    assert (f"port {port}" in ended.ending.reason) == (rank == 0)


def test_a_gang_s_container_has_the_network_of_its_node(meeting_place: Node) -> None:
    node, place = meeting_place, order(meeting_place, "readlink /proc/self/ns/net", gang=True, host=ON_HOST)
    node.placed(place)
    node.until(place.key, AttemptState.RESERVED)
    node.take(Commit(place.key, 1, Gang(("127.0.0.1",), 0, 29500, (1,))))
    node.until(place.key, AttemptState.ENDED)
    assert node.logs(place.key.job).strip() == str(Path("/proc/self/ns/net").readlink())


def test_what_is_no_gang_has_not_the_network_of_its_node(meeting_place: Node) -> None:
    node, place = meeting_place, order(meeting_place, "true", host=ON_HOST)
    node.placed(place)
    ended = node.until(place.key, AttemptState.ENDED)
    assert ended.ending is not None
    assert "the host's network is not for you" in ended.ending.reason


def test_an_interactive_job_s_container_is_made_by_its_owner(node: Node) -> None:
    place = order(node, "", interactive=True)
    node.placed(replace(place, spec=replace(place.spec, image="", body="")))
    reserved = node.until(place.key, AttemptState.RESERVED)
    node.daemon.run_container("--label", f"gpushare.lease={reserved.lease}", uid=USER.pw_uid)
    node.until(place.key, AttemptState.RUNNING)
    (container,) = node.containers(place.key.job)
    assert f"GPUSHARE_JOB_ID={place.key.job}" in container["Config"]["Env"]


def test_a_second_attempt_takes_the_name_and_leaves_the_first_its_logs(node: Node) -> None:
    first = order(node, "echo first; exit 1", name="trainer-of-" + node.daemon.directory.name)
    node.placed(first)
    node.until(first.key, AttemptState.ENDED)
    second = replace(first, key=AttemptKey(first.key.job, 2))
    node.placed(second)
    ended = node.until(second.key, AttemptState.ENDED).ending
    assert ended is not None
    assert ended.kind is EndKind.EXITED
    names = {one["Name"].lstrip("/") for one in node.containers(first.key.job)}
    assert names == {first.spec.name, f"{first.spec.name}.1"}


def test_an_attempt_whose_coordinator_is_not_heard_for_too_long_is_ended(node: Node) -> None:
    """Before anything else: an acknowledgement that comes too late does not save it."""
    place = order(node, "sleep 1000", stop_after_seconds=600)
    now = boottime()
    node.contact(now - 500)
    node.placed(place)
    node.until(place.key, AttemptState.RUNNING)
    node.contact(now + 200)
    ended = node.until(place.key, AttemptState.ENDED).ending
    assert ended is not None
    assert ended.kind is EndKind.FENCED
    assert "pool" in ended.reason


SAVES = "trap 'exit 0' TERM; sleep 1000 & wait"
"""It ends with 0 at a stop signal, as programs do that save their work."""


@pytest.mark.parametrize("engine", ["plain", "cdi"])
def test_its_guard_ends_it_while_the_daemon_is_away_and_the_daemon_knows_that_afterwards(
    new_daemon: NewDaemon, docker_engine: str, cdi_engine: CdiEngine, engine: str
) -> None:
    """Whatever its program made of the stop signal; its neighbour, who is not fenced, is left alone."""
    node = new_node(new_daemon, {"plain": docker_engine, "cdi": str(cdi_engine.socket)}[engine])
    node.daemon.start()
    fenced, free = order(node, SAVES, stop_after_seconds=600), order(node, SAVES)
    node.contact(boottime() - 590)
    for place in (fenced, free):
        assert node.placed(place).guarded is (place is fenced)
        assert node.until(place.key, AttemptState.RUNNING).guarded is (place is fenced)
    node.daemon.kill()
    wait_until(lambda: not _runs(node, fenced), "its guard ends it")
    assert _runs(node, free)
    node.daemon.start()
    ended = node.until(fenced.key, AttemptState.ENDED).ending
    assert ended is not None
    assert (ended.kind, ended.exit_code) == (EndKind.FENCED, None)
    assert "the guard of this node ended it" in ended.reason
    assert node.reports()[free.key].state is AttemptState.RUNNING


def _runs(node: Node, place: Place) -> bool:
    return any(one["State"]["Running"] for one in node.containers(place.key.job))


def test_what_is_fenced_does_not_start_where_no_guard_can_be_had(
    new_daemon: NewDaemon, docker_engine: str
) -> None:
    """It is tried again elsewhere, or later; what is not fenced needs none."""
    node = new_node(new_daemon, docker_engine)
    node.daemon.runtime_dir.mkdir(parents=True, exist_ok=True)
    (node.daemon.runtime_dir / "guard").touch()
    node.daemon.start()
    node.contact(boottime())
    fenced, free = order(node, SAVES, stop_after_seconds=600), order(node, SAVES)
    for place in (fenced, free):
        node.placed(place)
    ended = node.until(fenced.key, AttemptState.ENDED).ending
    assert ended is not None
    assert (ended.kind, ended.passing) == (EndKind.FAILED, True)
    assert "guard" in ended.reason
    (container,) = node.containers(fenced.key.job)
    assert container["State"]["StartedAt"].startswith("0001-")
    node.until(free.key, AttemptState.RUNNING)
    assert "trouble part=guard" in node.daemon.text()


def test_contact_is_known_over_a_restart_of_the_daemon(node: Node) -> None:
    """Else nothing would be known of it, and all that waits for it would be ended."""
    place = order(node, "sleep 1000", stop_after_seconds=600)
    node.contact(boottime())
    node.placed(place)
    node.until(place.key, AttemptState.RUNNING)
    node.daemon.kill()
    node.daemon.start()
    node.contact(boottime())
    lease = str(node.reports()[place.key].lease)
    assert node.daemon.lease(lease)["state"] == "active"
    assert node.reports()[place.key].state is AttemptState.RUNNING


def test_containers_of_jobs_that_are_over_go_when_they_are_due(
    new_daemon: NewDaemon, docker_engine: str
) -> None:
    node = new_node(new_daemon, docker_engine)
    node.daemon.start()
    runs, over = order(node, "sleep 1000"), order(node, "true")
    for place, state in ((runs, AttemptState.RUNNING), (over, AttemptState.ENDED)):
        node.placed(place)
        node.until(place.key, state)
    assert len(node.containers(over.key.job)) == 1
    node.daemon.config += "[jobs]\nkeep_containers = 0\n"
    node.daemon.restart()
    wait_until(lambda: node.listed(over.key.job) == [], "it is removed")
    assert len(node.containers(runs.key.job)) == 1


ALONE = Owner("alone@lab", "x")
"""Its account has containers in no other test, so that a limit counts those of one test alone."""


def limited_node(new_daemon: NewDaemon, engine: str, *, containers: int) -> Node:
    """A node on which a user may have so many containers, and publish one port."""
    limits = f"containers_per_user = {containers}\nports_per_user = 1\n"
    node = new_node(new_daemon, engine, config=f"[gate]\n{limits}")
    node.daemon.config = node.daemon.config.replace('"eva" =', '"alone@lab" = "uucp"\n"eva" =')
    node.daemon.start()
    return node


def test_containers_that_are_kept_for_their_logs_keep_no_job_from_running(
    new_daemon: NewDaemon, docker_engine: str
) -> None:
    """The oldest of them go first, however many jobs come at once; what runs, and what is nobody's job, stays."""
    node = limited_node(new_daemon, docker_engine, containers=3)
    runs = order(node, "sleep 1000", owner=ALONE)
    node.placed(runs)
    node.until(runs.key, AttemptState.RUNNING)
    over = [order(node, f"echo {n}", owner=ALONE) for n in range(3)]
    for place in over:
        node.placed(place)
        node.until(place.key, AttemptState.ENDED)
    together = [order(node, "true", owner=ALONE, request=SMALL) for _ in range(2)]
    for place in together:
        node.placed(place)
    for place in together:
        ending = node.until(place.key, AttemptState.ENDED).ending
        assert ending is not None
        assert (ending.kind, ending.exit_code) == (EndKind.EXITED, 0), ending.reason
    assert [node.listed(place.key.job) for place in over] == [[], [], []]
    assert len(node.containers(runs.key.job)) == 1


def test_a_job_that_another_limit_refuses_costs_nobody_the_kept_containers(
    new_daemon: NewDaemon, docker_engine: str
) -> None:
    """Where the number of containers has no limit too."""
    node = limited_node(new_daemon, docker_engine, containers=0)
    over = order(node, "true", owner=ALONE)
    node.placed(over)
    node.until(over.key, AttemptState.ENDED)
    ports = {f"{port}/tcp": [{"HostPort": "0"}] for port in (80, 81)}
    other = order(node, "true", owner=ALONE, host={"NetworkMode": "bridge", "PortBindings": ports})
    node.placed(other)
    ending = node.until(other.key, AttemptState.ENDED).ending
    assert ending is not None
    assert ending.reason.startswith("your containers would publish 2 ports")
    assert len(node.containers(over.key.job)) == 1


def test_a_job_at_the_limit_of_its_users_containers_may_be_tried_again(
    new_daemon: NewDaemon, docker_engine: str
) -> None:
    """Else the first job at the limit would fail at once, and after it each that takes its place."""
    node = limited_node(new_daemon, docker_engine, containers=1)
    runs, other = (order(node, "sleep 1000", owner=ALONE) for _ in range(2))
    node.placed(runs)
    node.until(runs.key, AttemptState.RUNNING)
    node.placed(other)
    ending = node.until(other.key, AttemptState.ENDED).ending
    assert ending is not None
    assert (ending.kind, ending.passing) == (EndKind.FAILED, True)
    assert ending.reason.startswith("you have the one container that a user may have here")


KEEPING = ContainerRetention(seconds=100.0, most=2)


def over_at(name: str, at: float, uid: int, *, remove: bool = False) -> Attempt:
    spec = JobSpec(Request(), Owner("x@lab", "x"), image="x", remove=remove)
    account = Caller(uid, uid, f"user{uid}")
    return Attempt(AttemptKey(JobId(name), 1), AttemptState.ENDED, 1, at, spec, account=account)


def due_at_once(*attempts: Attempt, now: float = 50.0) -> list[str]:
    return [one.key.job for one in due_of(attempts, KEEPING, now)]


def test_nobody_pushes_out_what_others_want_to_read() -> None:
    """Of the one who has too many the oldest go."""
    quiet = [over_at("a", 1.0, 1000), over_at("b", 2.0, 1000)]
    busy = [over_at(f"c{n}", 10.0 + n, 1001) for n in range(5)]
    assert due_at_once(*quiet, *busy) == ["c0", "c1", "c2"]


def test_each_goes_when_its_time_is_over_or_nobody_wanted_it_kept_and_makes_room_for_no_other() -> None:
    attempts = [over_at("old", 1.0, 1000), over_at("x", 60.0, 1000, remove=True), over_at("y", 61.0, 1000)]
    assert due_at_once(*attempts, over_at("z", 62.0, 1000), now=102.0) == ["old", "x"]
