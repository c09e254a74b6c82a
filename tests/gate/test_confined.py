"""Two users whom nobody trusts, on the real engine: what they may do, and what they may not see."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpushared.domain.model.request import Caller
from gpushared.gate.api.site import SitePolicy
from gpushared.gate.docker_gate import Gate
from gpushared.ports import EditMount
from tests.gate.docker import Docker, DockerClients, docker_clients
from tests.gate.lease_services import GPU, FakeLeaseService, edits
from tests.gate.serving import ALICE, BOB, ask, raw_client, request

pytestmark = pytest.mark.docker


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory of alice's with a file, beside one that only root can read."""
    path = Path(tempfile.mkdtemp(prefix="gate-home-"))
    path.chmod(0o755)
    (path / "own").mkdir()
    (path / "own" / "file").write_text("mine")
    (path / "secret").mkdir(mode=0o700)
    (path / "way-out").symlink_to("/etc")
    (path / "shared").mkdir(mode=0o755)
    for own in (path / "own", path / "own" / "file"):
        os.chown(own, ALICE.uid, ALICE.gid)
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def clients(
    lease_service: FakeLeaseService,
    docker_engine: str,
    docker_environment: dict[str, str],
    busybox_image: str,
    home: Path,
) -> AsyncIterator[DockerClients]:
    gate = Gate(docker_engine, lease_service, SitePolicy(bind_prefixes=("~", str(home))))
    async with docker_clients(gate, docker_engine, docker_environment, busybox_image) as clients:
        yield clients


@pytest.fixture
async def alices(clients: DockerClients, name: str, docker: Docker) -> AsyncIterator[str]:
    """A running container of alice's."""
    words = ("--network", "none", "--init", "--name", name)
    done = await clients.alice("run", "-d", *words, clients.alice.image, "sleep", "600")
    assert done.code == 0, done.err
    yield name
    await docker("rm", "-f", name)


def status_fields(out: bytes) -> dict[str, str]:
    pairs = (line.split(":", 1) for line in out.decode().splitlines() if ":" in line)
    return {name: value.strip() for name, value in pairs}


async def test_a_program_runs_as_the_caller_with_no_capability_and_no_way_to_one(
    clients: DockerClients,
) -> None:
    done = await clients.alice.run(clients.alice.image, "cat", "/proc/self/status")
    assert done.code == 0, done.err
    fields = status_fields(done.out)
    assert fields["Uid"].split() == ["1000"] * 4
    assert fields["Gid"].split() == ["1000"] * 4
    assert {fields[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")


async def test_a_confined_container_has_no_gpu_by_its_image_and_a_bound_on_processes(
    clients: DockerClients, alices: str
) -> None:
    shown = await clients.alice("inspect", "-f", "{{json .Config.Env}} {{.HostConfig.PidsLimit}}", alices)
    assert b"NVIDIA_VISIBLE_DEVICES=void" in shown.out
    assert shown.out.split()[-1] == b"4096"


async def test_a_lease_of_ones_own_works_as_for_everybody(
    clients: DockerClients, lease_service: FakeLeaseService
) -> None:
    lease_service.owners["l-alices"] = ALICE.uid
    mine = await clients.alice.run("--label", "gpushare.lease=l-alices", clients.alice.image, "env")
    bobs = await clients.bob.run("--label", "gpushare.lease=l-alices", clients.alice.image, "env")
    assert f"NVIDIA_VISIBLE_DEVICES={GPU}".encode() in mine.out
    assert bobs.code == 125
    assert b"there is no lease l-alices" in bobs.err


REFUSED = [
    ("--privileged",),
    ("--pid", "host"),
    ("--ipc", "host"),
    ("--uts", "host"),
    ("--userns", "host"),
    ("--cgroupns", "host"),
    ("--cap-add", "SYS_ADMIN"),
    ("--device", "/dev/zero"),
    ("--device-cgroup-rule", "c 1:3 rwm"),
    ("--security-opt", "seccomp=unconfined"),
    ("--security-opt", "apparmor=unconfined"),
    ("--security-opt", "systempaths=unconfined"),
    ("--security-opt", "no-new-privileges=false"),
    ("--cgroup-parent", "/"),
    ("--network", "host"),
    ("--network", "container:other"),
    ("--network", "somebody-elses"),
    ("--volumes-from", "other"),
    ("--link", "other"),
    ("--sysctl", "net.ipv4.ip_forward=1"),
    ("--user", "0"),
    ("--user", "1000:0"),
    ("--group-add", "0"),
    ("--group-add", "docker"),
    ("--log-driver", "syslog"),
    ("--log-opt", "syslog-address=unix:///run/x"),
    ("--runtime", "other"),
    ("--storage-opt", "size=1G"),
    ("--oom-score-adj", "-500"),
    ("--oom-kill-disable",),
    ("-p", "80:80"),
    ("-p", "443-444:443-444"),
    ("-v", "/etc:/x"),
    ("-v", "/:/x:ro"),
    ("-v", "/var/run/docker.sock:/x"),
    ("--mount", "type=bind,source=/etc,target=/x"),
    ("--mount", "type=volume,target=/x,volume-opt=type=none,volume-opt=o=bind,volume-opt=device=/etc"),
    ("--mount", "type=volume,target=/x,volume-driver=other"),
]


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
async def test_what_could_lead_to_root_is_refused_with_125(
    clients: DockerClients, lease_service: FakeLeaseService, words: tuple[str, ...]
) -> None:
    done = await clients.alice("run", "--rm", *words, clients.alice.image, "true")
    assert done.code == 125, done.err
    assert lease_service.calls == []


ALLOWED = [
    ("--restart", "always"),
    ("--shm-size", "1g"),
    ("--ulimit", "memlock=-1"),
    ("--memory", "64m", "--cpus", "0.5"),
    ("--tmpfs", "/scratch"),
    ("--init", "--read-only"),
    ("--security-opt", "no-new-privileges"),
    ("--cap-drop", "NET_RAW"),
    ("--user", "1000:1000"),
    ("-p", "127.0.0.1::8888"),
    ("-v", "/anonymous"),
    ("--mount", "type=tmpfs,target=/scratch,tmpfs-size=1m"),
    ("--log-driver", "json-file", "--log-opt", "max-size=1m"),
    ("--ipc", "private"),
    ("--health-cmd", "true", "--stop-signal", "INT", "--hostname", "me", "--workdir", "/tmp"),
]


@pytest.mark.parametrize("words", ALLOWED, ids=" ".join)
async def test_what_people_need_every_day_is_allowed(
    clients: DockerClients, name: str, words: tuple[str, ...]
) -> None:
    done = await clients.alice("create", "--name", name, *words, clients.alice.image, "true")
    assert done.code == 0, done.err
    assert (await clients.alice("rm", "-f", "-v", name)).code == 0


# --- other people's containers -------------------------------------------------------------------------

COMMANDS = [
    ("inspect", "{}"),
    ("logs", "{}"),
    ("top", "{}"),
    ("stop", "{}"),
    ("kill", "{}"),
    ("pause", "{}"),
    ("restart", "{}"),
    ("start", "{}"),
    ("rename", "{}", "mine-now"),
    ("update", "--memory", "64m", "{}"),
    ("exec", "{}", "id"),
    ("attach", "{}"),
    ("wait", "{}"),
    ("cp", "{}:/etc/passwd", "-"),
    ("diff", "{}"),
    ("export", "{}"),
    ("port", "{}"),
    ("stats", "--no-stream", "{}"),
    ("rm", "{}"),
]


async def test_other_peoples_containers_do_not_exist(clients: DockerClients, alices: str) -> None:
    """Whatever is tried on one, it is not there, and stays as it is."""
    for command in COMMANDS:
        done = await clients.bob(*(word.format(alices) for word in command))
        assert (done.code != 0, b"no such" in done.err.lower()) == (True, True), (command, done)
        state = await clients.alice("inspect", "-f", "{{.State.Status}} {{.Name}}", alices)
        assert state.out.decode().split() == ["running", f"/{alices}"], command


async def test_ones_own_containers_obey(clients: DockerClients, alices: str) -> None:
    for words in (
        ("exec", alices, "id"),
        ("top", alices),
        ("pause", alices),
        ("unpause", alices),
        ("update", "--memory", "64m", "--memory-swap", "64m", alices),
        ("restart", "-t", "0", alices),
        ("logs", alices),
        ("diff", alices),
        ("stop", "-t", "0", alices),
        ("start", alices),
        ("rm", "-f", alices),
    ):
        done = await clients.alice(*words)
        assert done.code == 0, (words, done.err)


async def test_the_listing_shows_ones_own_only_whatever_is_filtered(
    clients: DockerClients, alices: str
) -> None:
    for words in ((), ("--filter", "label=gpushare.owner=1000"), ("--filter", f"name={alices}")):
        mine = await clients.alice("ps", "-a", "--format", "{{.Names}}", *words)
        bobs = await clients.bob("ps", "-a", "--format", "{{.Names}}", *words)
        assert alices in mine.out.decode().split()
        assert alices not in bobs.out.decode().split()


async def test_events_show_ones_own_only(clients: DockerClients, alices: str) -> None:
    now = str((await clients.alice("info", "-f", "{{.SystemTime}}")).out.decode().strip())
    words = ("events", "--since", "0", "--until", now, "--format", "{{.Actor.Attributes.name}}")
    mine, bobs = await asyncio.gather(clients.alice(*words), clients.bob(*words))
    assert alices in mine.out.decode().split()
    assert alices not in bobs.out.decode().split()


async def test_another_persons_exec_does_not_exist(clients: DockerClients, alices: str) -> None:
    body = json.dumps({"Cmd": ["sleep", "5"]}).encode()
    created = await ask(clients.served[ALICE], request("POST", f"/containers/{alices}/exec", body))
    instance = json.loads(created.body)["Id"]
    for method, tail, body in (
        ("GET", "json", b""),
        ("POST", "start", b"{}"),
        ("POST", "resize?h=1&w=1", b""),
    ):
        reply = await ask(clients.served[BOB], request(method, f"/exec/{instance}/{tail}", body))
        assert (reply.status, reply.message) == (404, f"No such exec instance: {instance}")
    assert (await ask(clients.served[ALICE], request("GET", f"/exec/{instance}/json"))).status == 200


async def test_an_exec_is_never_more_than_the_container(clients: DockerClients, alices: str) -> None:
    for words in (("--privileged",), ("--user", "0")):
        assert (await clients.alice("exec", *words, alices, "id")).code != 0
    done = await clients.alice("exec", "--user", "1000", alices, "id", "-u")
    assert done.out == b"1000\n"


async def test_an_owner_cannot_be_claimed_by_a_label(clients: DockerClients, name: str) -> None:
    await clients.alice("create", "--name", name, "--label", "gpushare.owner=1001", clients.alice.image)
    bobs = await clients.bob("inspect", name)
    removed = await clients.alice("rm", name)
    assert (bobs.code, removed.code) == (1, 0)


@pytest.mark.parametrize("request_line", ["POST /build", "POST /commit?container=x", "DELETE /images/x"])
async def test_what_belongs_to_all_is_changed_by_trusted_users_only(
    clients: DockerClients, request_line: str
) -> None:
    method, target = request_line.split()
    reply = await ask(clients.served[ALICE], request(method, target))
    assert reply.status == 403
    assert "by trusted users only: " in reply.message


async def test_images_can_be_listed_and_inspected_but_not_imported(clients: DockerClients) -> None:
    assert (await clients.alice("images")).code == 0
    assert (await clients.alice("image", "inspect", clients.alice.image)).code == 0
    assert (await clients.alice("import", "-", "mine:latest", stdin=b"x")).code == 1


# --- mounts --------------------------------------------------------------------------------------------


async def test_a_directory_of_ones_own_is_mounted(clients: DockerClients, home: Path) -> None:
    done = await clients.alice.run(
        "-v", f"{home}/own:/x", clients.alice.image, "sh", "-c", "cat /x/file; touch /x/new"
    )
    assert (done.code, done.out) == (0, b"mine"), done.err
    assert (home / "own" / "new").stat().st_uid == ALICE.uid


async def test_a_lease_ends_with_the_refusal_of_its_container(
    clients: DockerClients, lease_service: FakeLeaseService
) -> None:
    lease_service.owners["l-alices"] = ALICE.uid
    lease = ("--label", "gpushare.lease=l-alices")
    theirs = await clients.bob.run(*lease, "--privileged", clients.alice.image, "true")
    assert (theirs.code, lease_service.call_names) == (125, ["claim"])
    mine = await clients.alice.run(*lease, "--privileged", clients.alice.image, "true")
    assert (mine.code, lease_service.call_names) == (125, ["claim", "claim", "release"])


async def test_a_path_that_became_a_link_after_the_create_is_not_mounted(
    clients: DockerClients, home: Path, name: str
) -> None:
    (home / "own" / "inner").mkdir()
    await clients.alice(
        "create", "--name", name, "-v", f"{home}/own/inner:/x:ro", clients.alice.image, "ls", "/x"
    )
    (home / "own" / "inner").rmdir()
    (home / "own" / "inner").symlink_to(home / "shared")
    started = [await clients.alice(verb, name) for verb in ("start", "restart")]
    await clients.alice("rm", name)
    assert [done.code for done in started] == [1, 1]
    assert all(b"create the container anew" in done.err for done in started)


async def test_a_volume_that_nobody_made_is_made_as_the_callers_own(
    clients: DockerClients, name: str
) -> None:
    done = await clients.alice.run("-v", f"{name}:/x", clients.alice.image, "true")
    assert done.code == 0, done.err
    bobs = await clients.bob("volume", "rm", name)
    alices = await clients.alice("volume", "rm", name)
    assert (bobs.code, alices.code) == (1, 0)


async def test_a_path_outside_is_refused_as_such_whatever_its_rights(clients: DockerClients) -> None:
    """Mounting it read-only, as for a path that cannot be written, would be no way."""
    done = await clients.alice.run("-v", "/etc:/x", clients.alice.image, "true")
    assert b"mounts may come from" in done.err


@pytest.mark.parametrize("path", ["secret", "way-out", "missing", "own/../../../etc", "shared"])
async def test_a_path_that_the_caller_cannot_use_so_is_refused_and_nothing_is_made(
    clients: DockerClients, home: Path, path: str
) -> None:
    before = sorted(home.iterdir())
    done = await clients.alice.run("-v", f"{home}/{path}:/x", clients.alice.image, "true")
    assert done.code == 125, done.err
    assert sorted(home.iterdir()) == before


async def test_a_path_that_may_only_be_read_is_mounted_read_only(clients: DockerClients, home: Path) -> None:
    done = await clients.alice.run("-v", f"{home}/shared:/x:ro", clients.alice.image, "ls", "/x")
    assert done.code == 0, done.err


async def test_what_was_resolved_is_in_a_label_and_the_engine_is_given_what_is_held(
    clients: DockerClients, home: Path, name: str
) -> None:
    (home / "own" / "link").symlink_to(home / "own" / "file")
    mount = f"type=bind,source={home}/own/link,target=/x,readonly"
    await clients.alice("create", "--name", name, "--mount", mount, clients.alice.image)
    shown = await clients.alice("inspect", "-f", "{{json .}}", name)
    await clients.alice("rm", name)
    found = json.loads(shown.out)
    labels = found["Config"]["Labels"]
    assert json.loads(labels["gpushare.host-paths"]) == [{"path": f"{home}/own/file", "write": False}]
    assert found["HostConfig"]["Mounts"][0]["Source"] == f"/run/gpushare-pins/{labels['gpushare.pins']}/0"


async def test_files_are_copied_beside_what_a_container_mounts(
    clients: DockerClients, lease_service: FakeLeaseService, home: Path, alices: str
) -> None:
    lease_service.edits = edits(EditMount("/tmp", "/run/lease"))
    mounted, leased = f"{alices}-mounted", f"{alices}-leased"
    await clients.alice("create", "--name", mounted, "-v", f"{home}/own:/x", clients.alice.image)
    await clients.alice("create", "--name", leased, "--gpus", "1", clients.alice.image)
    places = (f"{mounted}:/tmp/file2", f"{leased}:/tmp/file2", f"{alices}:/tmp/file2", f"{mounted}:/x/file2")
    tried = [await clients.alice("cp", str(home / "own" / "file"), place) for place in places]
    await clients.alice("rm", mounted, leased)
    assert [done.code for done in tried] == [0, 0, 0, 1], tried
    assert b"what is mounted at /x cannot be" in tried[-1].err
    assert not (home / "own" / "file2").exists()


# --- networks and volumes ------------------------------------------------------------------------------


async def test_networks_and_volumes_are_their_makers(clients: DockerClients, name: str) -> None:
    for kind in ("network", "volume"):
        assert (await clients.alice(kind, "create", name)).code == 0
    use = ("--network", name, "-v", f"{name}:/data")
    mine = await clients.alice("run", "--rm", *use, clients.alice.image, "true")
    bobs = [
        await clients.bob("run", "--rm", *use[:2], clients.alice.image, "true"),
        await clients.bob("run", "--rm", *use[2:], clients.alice.image, "true"),
        await clients.bob("network", "rm", name),
        await clients.bob("volume", "rm", name),
        await clients.bob("volume", "inspect", name),
    ]
    listed = await clients.bob("volume", "ls", "-q")
    gone = [await clients.alice(kind, "rm", name) for kind in ("network", "volume")]
    assert mine.code == 0, mine.err
    assert all(done.code != 0 for done in bobs)
    assert name not in listed.out.decode()
    assert [done.code for done in gone] == [0, 0]


async def test_a_container_never_starts_on_a_network_that_has_become_somebody_elses(
    clients: DockerClients, docker: Docker, name: str
) -> None:
    """Engines look a network up by name, or by the beginning of an id, at every start."""
    bobs = (await clients.bob("network", "create", f"{name}-b")).out.decode().strip()
    for own in (name, bobs[:10]):
        await clients.alice("network", "create", own)
        await clients.alice("create", "--name", f"c{own}", "--network", own, clients.alice.image, "true")
        kept = await clients.alice("network", "rm", own)
        await docker("network", "rm", own)
        if own == name:
            await clients.bob("network", "create", own)
        started = await clients.alice("start", f"c{own}")
        await clients.alice("rm", f"c{own}")
        assert f"the network {own} is the container c{own}'s".encode() in kept.err
        assert f"No such network: {own}".encode() in started.err
    for network in (name, f"{name}-b"):
        await clients.bob("network", "rm", network)


HOST_NETWORK = ("--network", "host", "--label", "gpushare.lease=l-alices")
SITES = [
    ("the part of a gang where the site allows it", True, {"l-alices"}, b""),
    ("the part of a gang elsewhere", False, {"l-alices"}, b'[gate] host_network = "gangs"'),
    ("another lease", True, set[str](), b"the host's network is not for you"),
]


@pytest.mark.parametrize(("of", "allowed", "gangs", "refusal"), SITES, ids=[site[0] for site in SITES])
async def test_the_machine_s_network_is_for(
    clients: DockerClients,
    lease_service: FakeLeaseService,
    of: str,
    allowed: bool,
    gangs: set[str],
    refusal: bytes,
) -> None:
    clients.gate.policy = replace(clients.gate.policy, gangs_on_host_network=allowed)
    lease_service.owners["l-alices"], lease_service.gangs = ALICE.uid, gangs
    done = await clients.alice(
        "run", "--rm", *HOST_NETWORK, clients.alice.image, "readlink", "/proc/self/ns/net"
    )
    here = str(Path("/proc/self/ns/net").readlink()).encode()
    assert (done.code, done.out.strip() == here) == ((125, False) if refusal else (0, True)), done.err
    assert refusal in done.err


async def test_a_gang_s_container_has_the_machine_s_network_only_as_long_as_it_is_one(
    clients: DockerClients, lease_service: FakeLeaseService, name: str, docker: Docker
) -> None:
    """Afterwards it cannot be started."""
    clients.gate.policy = replace(clients.gate.policy, gangs_on_host_network=True)
    lease_service.owners["l-alices"], lease_service.gangs = ALICE.uid, {"l-alices"}
    created = await clients.alice("create", "--name", name, *HOST_NETWORK, clients.alice.image, "true")
    first = await clients.alice("start", "-a", name)
    lease_service.gangs.clear()
    again = await clients.alice("start", "-a", name)
    await docker("rm", "-f", name)
    assert (created.code, first.code) == (0, 0), (created.err, first.err)
    assert b"jobs on several nodes only" in again.err


async def test_the_machine_s_network_is_nobody_s_second_one(
    clients: DockerClients, lease_service: FakeLeaseService
) -> None:
    clients.gate.policy = replace(clients.gate.policy, gangs_on_host_network=True)
    lease_service.owners["l-alices"], lease_service.gangs = ALICE.uid, {"l-alices"}
    body = {
        "Image": clients.alice.image,
        "Labels": {"gpushare.lease": "l-alices"},
        "HostConfig": {"NetworkMode": "bridge"},
        "NetworkingConfig": {"EndpointsConfig": {"host": {}}},
    }
    words = request("POST", "/containers/create", json.dumps(body).encode(), "Content-Type: application/json")
    reply = await ask(clients.served[ALICE], words)
    assert (reply.status, b"No such network: host" in reply.body) == (400, True), reply


async def test_a_network_is_named_in_full(clients: DockerClients, name: str) -> None:
    network = (await clients.alice("network", "create", name)).out.decode().strip()
    tried = [
        await clients.alice("run", "--rm", "--network", word, clients.alice.image, "true")
        for word in (network[:12], network, name)
    ]
    await clients.alice("network", "rm", name)
    assert [done.code for done in tried] == [125, 0, 0], [done.err for done in tried]


@pytest.mark.parametrize("words", [(), ("--user", "1000:1000"), ("--cap-drop", "ALL")], ids=str)
async def test_a_container_that_only_bears_the_callers_label_does_not_exist(
    clients: DockerClients, docker: Docker, name: str, words: tuple[str, ...]
) -> None:
    """The label may come from an image that a trusted user runs, or from a time when the owner was one."""
    done = await docker(
        "run",
        "-d",
        "--name",
        name,
        "--label",
        f"gpushare.owner={ALICE.uid}",
        *words,
        clients.alice.image,
        "top",
    )
    tried = await clients.alice("exec", name, "id")
    await docker("rm", "-f", name)
    assert done.code == 0, done.err
    assert b"No such container" in tried.err


@pytest.mark.parametrize(
    "words",
    [
        ("volume", "create", "-o", "type=none", "-o", "o=bind", "-o", "device=/etc"),
        ("volume", "create", "-d", "other"),
        ("network", "create", "-d", "macvlan"),
        ("network", "create", "-o", "com.docker.network.bridge.name=docker0"),
        ("network", "create", "--subnet", "10.0.0.0/8"),
    ],
    ids=" ".join,
)
async def test_networks_and_volumes_have_no_options(
    clients: DockerClients, name: str, words: tuple[str, ...]
) -> None:
    done = await clients.alice(*words, name)
    assert done.code == 1
    assert b"not" in done.err


COMPOSE_FILE = """
services:
  web:
    image: {image}
    command: ["sh", "-c", "id -u; echo kept >/data/file && cat /data/file"]
    volumes: ["data:/data", "{home}/own:/own"]
    labels: {{gpushare.gpu: "0.25"}}
volumes:
  data: {{}}
"""


async def test_compose_works_for_everybody(
    clients: DockerClients, lease_service: FakeLeaseService, home: Path
) -> None:
    (home / "compose.yaml").write_text(COMPOSE_FILE.format(image=clients.alice.image, home=home))
    compose = ("compose", "-p", f"gate{uuid.uuid4().hex[:8]}", "-f", str(home / "compose.yaml"))
    try:
        up = await clients.alice(*compose, "up", "--abort-on-container-exit", "--exit-code-from", "web")
    finally:
        down = await clients.alice(*compose, "down", "-v", "-t", "0")
    assert (up.code, down.code) == (0, 0), up.err + down.err
    assert b"1000" in up.out
    assert b"kept" in up.out
    assert lease_service.call_names == ["acquire", "created", "before_start"]


# --- what only the wire can say ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"Image":"x","HostConfig":{"privileged":true}}', "HostConfig.privileged is not a field"),
        (b'{"Image":"x","HostConfig":{},"hostconfig":{"Privileged":true}}', "hostconfig is not a field"),
        (b'{"Image":"x","Ho\xc5\xbftConfig":{"Privileged":true}}', "tConfig is not a field"),
        (b'{"Image":"x","HostConfig":{"Annotations":{"a":"b"}}}', "Annotations may not be set"),
        (b'{"Image":"x","HostConfig":{},"HostConfig":{"Privileged":true}}', "stands twice"),
        (b'{"Image":"x","Privileged":true}', "Privileged stands at the top level"),
        (
            b'{"Image":"x","HostConfig":{"PortBindings":{"80/tcp":[{"hostport":"80"}]}}}',
            "hostport is not a field",
        ),
        (b'{"Image":"x","HostConfig":{"PortBindings":{"80/tcp":[{"HostPort":"0-80"}]}}}', "is not for you"),
        (b'{"Image":"x","HostConfig":{"Binds":["/home/\\u0000:/x"]}}', "no path that can be mounted"),
        (b'{"Image":"x"}{"HostConfig":{"Privileged":true}}', "not the JSON"),
        (b"[" * 5000 + b"]" * 5000, "nested deeper"),
    ],
)
async def test_what_the_engine_would_read_otherwise_is_refused(
    clients: DockerClients, body: bytes, words: str
) -> None:
    reply = await ask(clients.served[ALICE], request("POST", "/containers/create", body))
    assert reply.status in {400, 403}
    assert words in reply.message


async def test_a_start_with_a_body_is_refused(clients: DockerClients, alices: str) -> None:
    body = b'{"Privileged":true}'
    reply = await ask(clients.served[ALICE], request("POST", f"/v1.18/containers/{alices}/start", body))
    assert reply.status == 400


async def test_an_old_api_version_is_refused(clients: DockerClients) -> None:
    reply = await ask(clients.served[ALICE], request("GET", "/v1.18/containers/json"))
    assert (reply.status, reply.message) == (400, "API version 1.18 is too old (upgrade the client)")


async def test_a_parameter_that_the_gate_does_not_know_is_refused(
    clients: DockerClients, alices: str
) -> None:
    target = f"/containers/{alices}/start?checkpoint=x&checkpoint-dir=/etc"
    reply = await ask(clients.served[ALICE], request("POST", target))
    assert (reply.status, reply.message) == (403, "the parameter checkpoint is not for you (leave it out)")


async def test_a_pulls_body_cannot_say_what_the_query_does_not(clients: DockerClients) -> None:
    form = "Content-Type: application/x-www-form-urlencoded"
    target = "/images/create?fromImage=busybox"
    async with raw_client(clients.served[ALICE]) as client:
        await client.send(request("POST", target, b"fromSrc=-&repo=mine", form))
        assert (await client.reply()).status == 400


def test_a_caller_is_made_by_the_door_and_not_by_the_gate() -> None:
    assert not Caller(1000, 1000, "alice").trusted
