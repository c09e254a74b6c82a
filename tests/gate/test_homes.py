"""Home and name of a confined caller in the caller's containers."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpushared.domain.model.request import Caller
from gpushared.gate.api.site import SitePolicy
from gpushared.gate.containers.passwd import (
    USERS_FILE_BYTES,
    PasswdFiles,
    is_small_file,
    passwd_line,
    put_home,
    with_line,
)
from gpushared.gate.docker_gate import Gate
from gpushared.net.http_client import EngineAnswer, EngineSocket
from gpushared.net.identity import Account, NeededPath
from tests.bed import parts
from tests.gate.docker import Docker, DockerClients, docker_clients
from tests.gate.lease_services import FakeLeaseService
from tests.gate.serving import ALICE, serving_gate

HOME = "/home/alice"
IN_MEMORY = "rw,exec,nosuid,nodev,mode=0700,uid=1000,gid=1000"
LINE = b"alice:x:1000:1000::/home/alice:/bin/sh\n"

# --- what is put in, and where -------------------------------------------------------------------------


def bind(source: str, target: str, *, write: bool = True) -> dict[str, Any]:
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": not write}


def volume(target: str) -> dict[str, Any]:
    return {"Type": "volume", "Source": "v", "Target": target}


def body_of(*mounts: dict[str, Any], env: tuple[str, ...] = (), **host: object) -> dict[str, Any]:
    return {"Env": list(env), "HostConfig": {"Mounts": list(mounts), **host}}


def put(body: dict[str, Any], *, image_env: tuple[str, ...] = (), caller: Caller = ALICE) -> dict[str, str]:
    binds = [mount for mount in body["HostConfig"]["Mounts"] if mount["Type"] == "bind"]
    needed_paths = [NeededPath(each["Source"], not each["ReadOnly"]) for each in binds]
    return put_home(
        body, {"Env": list(image_env)}, Account(caller, (), "/homes/alice"), needed_paths, needed_paths
    )


@pytest.mark.parametrize(
    ("body", "home", "in_memory"),
    [
        (body_of(), HOME, True),
        (body_of(bind("/homes/alice/", "/my/")), "/my", False),
        (body_of(bind("/homes/alice", "/my", write=False)), HOME, True),
        (body_of(bind("/homes/alice/work", "/work")), HOME, True),
        (body_of(bind("/homes/alice/work", f"{HOME}/work")), HOME, True),
        (body_of(volume(f"{HOME}/")), HOME, False),
        (body_of(Tmpfs={HOME: ""}), HOME, False),
        (body_of(volume("/home")), "/gpushare-home", True),
        (body_of(volume("/home"), volume("/gpushare-home")), "/gpushare-home", False),
        (body_of(env=("HOME=/x",)), "", False),
        (body_of(env=("HOME",)), "", False),
    ],
)
def test_the_home_is_the_mounted_one_or_in_memory(body: dict[str, Any], home: str, in_memory: bool) -> None:
    before = dict(body["HostConfig"].get("Tmpfs") or {})
    assert put(body).get("HOME", "") == home
    added = {home: IN_MEMORY} if in_memory else {}
    assert (body["HostConfig"].get("Tmpfs") or {}) == before | added


def test_what_the_user_or_the_image_names_stays() -> None:
    body = body_of(env=("USER=me",))
    assert put(body, image_env=("LOGNAME=it", "HOME=/root")) == {}
    assert body["Env"] == ["USER=me"]
    assert "Tmpfs" not in body["HostConfig"]


@pytest.mark.parametrize(
    ("name", "home"),
    [("1234", "/home/1234"), ("LAB\\ada", "/home/1000"), ("..", "/home/1000"), ("a/b", "/home/1000")],
)
def test_a_home_in_memory_is_always_below_one_directory(name: str, home: str) -> None:
    assert put(body_of(), caller=Caller(1000, 1000, name))["HOME"] == home


@pytest.mark.parametrize(
    ("passwd", "expected"),
    [
        (b"", LINE),
        (b"root:x:0:0::/:/bin/sh\n", b"root:x:0:0::/:/bin/sh\n" + LINE),
        (b"root:x:0:0::/:/bin/sh", b"root:x:0:0::/:/bin/sh\n" + LINE),
        (b"alice:x:5:5::/:\n", None),
        (b"other:x:1000:5::/:\n", None),
        (b"other:x:0001000:5::/:\n", None),
        (b"\xff\n:::\n" + b"1" * 5000, b"\xff\n:::\n" + b"1" * 5000 + b"\n" + LINE),
    ],
)
def test_a_line_is_added_where_name_and_number_are_nobodys(passwd: bytes, expected: bytes | None) -> None:
    assert with_line(passwd, LINE) == expected


@pytest.mark.parametrize(
    ("body", "name", "line"),
    [
        (body_of(env=(f"HOME={HOME}",)), "alice", LINE),
        (body_of(env=("HOME=/a:b\n0::",)), "alice", LINE.replace(HOME.encode(), b"/")),
        (body_of(env=(f"HOME=/{'x' * 4096}",)), "alice", LINE.replace(HOME.encode(), b"/")),
        (body_of(env=("HOME",)), "alice", LINE.replace(HOME.encode(), b"/")),
        (body_of(), "root:x:0:0", b""),
        (body_of(), "+netgroup", b""),
        (body_of(bind("/x", "/etc/passwd")), "alice", b""),
        (body_of(volume("/etc/")), "alice", b""),
        (body_of(Tmpfs={"//etc": ""}), "alice", b""),
    ],
)
def test_there_is_a_line_where_it_can_be_written_and_seen(
    body: dict[str, Any], name: str, line: bytes
) -> None:
    assert passwd_line(body, {}, Caller(1000, 1000, name)) == line


@pytest.mark.parametrize(
    ("said", "is_one"),
    [
        ({"size": 68, "mode": 0o644}, True),
        ({"size": USERS_FILE_BYTES + 1, "mode": 0o644}, False),
        ({"size": 0, "mode": 1 << 25 | 0o644}, False),  # a pipe, as Go tells kinds
        ({"size": 4096, "mode": 1 << 31 | 0o755}, False),  # a directory
        ({"size": 5, "mode": 1 << 27 | 0o777}, False),  # a link
        ({"size": 68, "mode": "0644"}, False),
        ({}, False),
        ([], False),
    ],
)
def test_only_a_plain_short_file_is_read(said: object, is_one: bool) -> None:
    assert is_small_file(base64.b64encode(json.dumps(said).encode())) == is_one


class BrokenEngine(EngineSocket):
    """It makes no container, and counts how often one is wanted."""

    def __init__(self) -> None:
        super().__init__("/nonexistent")
        self.asked = 0

    async def call(
        self, method: str, target: bytes, body: bytes | None = None, *, timeout_seconds: float = 30.0
    ) -> EngineAnswer:
        self.asked += 1
        return EngineAnswer(500, (), b'{"message": "no"}')


async def test_an_image_whose_look_fails_is_looked_at_again_only_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpushared.gate.containers.passwd.FAILED_SECONDS", 0.5)
    engine = BrokenEngine()
    files = PasswdFiles(engine, tmp_path / "passwd")
    asked = []
    for pause in (0.0, 0.0, 1.0):
        await asyncio.sleep(pause)
        async with files.with_line({"Id": "sha256:1"}, LINE) as path:
            assert path is None
        asked.append(engine.asked)
    assert asked == [1, 1, 2]


async def test_files_are_made_again_where_their_directory_was_removed(tmp_path: Path) -> None:
    """As the whole directory of the state can be, while the daemon lives."""
    state = tmp_path / "state"
    files = PasswdFiles(BrokenEngine(), state / "passwd")
    files._images["sha256:1"] = b""
    for _ in range(2):
        async with files.with_line({"Id": "sha256:1"}, LINE) as path:
            assert path is not None
            assert path.read_bytes() == LINE
        shutil.rmtree(state)
    await files.sweep()


# --- in containers -------------------------------------------------------------------------------------

PASSWD_OF_IMAGE = b"root:x:0:0:root:/root:/bin/sh\ngames:x:1001:60::/:/bin/sh\n"
IMAGES: dict[str, bytes | tarfile.TarInfo | None] = {"users": PASSWD_OF_IMAGE, "bare": None}


def special(kind: bytes, **more: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo("etc/passwd")
    info.type = kind
    for name, value in more.items():
        setattr(info, name, value)
    return info


IMAGES["link"] = special(tarfile.SYMTYPE, linkname="../hidden")
IMAGES["large"] = b"x:x:1:1::/:/bin/sh\n" * (USERS_FILE_BYTES // 19 + 1)


def image_tar(passwd: bytes | tarfile.TarInfo | None) -> bytes:
    """Busybox with another file of users, or none."""
    archive = io.BytesIO()
    with tarfile.open(parts.BUSYBOX_TAR) as busybox, tarfile.open(fileobj=archive, mode="w") as tar:
        for member in busybox:
            if member.name != "./etc/passwd":
                tar.addfile(member, busybox.extractfile(member) if member.isreg() else None)
        if isinstance(passwd, tarfile.TarInfo):
            tar.addfile(passwd)
        elif passwd is not None:
            info = tarfile.TarInfo("etc/passwd")
            info.size = len(passwd)
            tar.addfile(info, io.BytesIO(passwd))
    return archive.getvalue()


@dataclass
class HomeClients(DockerClients):
    """Clients before a gate that gives each user a home and a line in the passwd file."""

    files: PasswdFiles
    directory: Path

    async def said(self, docker: Docker, *words: str, image: str = "users") -> str:
        """What a container of the image says."""
        *options, command = words
        done = await docker.run(*options, f"gate-homes:{image}", "sh", "-c", command)
        assert done.code == 0, done.err
        return done.out.decode().strip()

    @property
    def kept(self) -> list[str]:
        return sorted(path.name for path in self.directory.glob("*"))


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that both engines see."""
    path = Path(tempfile.mkdtemp(prefix="gate-homes-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def clients(
    each_engine: str, lease_service: FakeLeaseService, docker_environment: dict[str, str], shared: Path
) -> AsyncIterator[HomeClients]:
    socket = each_engine
    for name, passwd in IMAGES.items():
        file = shared / name
        file.write_bytes(image_tar(passwd))
        assert parts.docker(socket, "import", str(file), f"gate-homes:{name}").returncode == 0
    files = PasswdFiles(EngineSocket(socket.removeprefix("unix://")), shared / "passwd")
    policy = SitePolicy(root_inside=True, bind_prefixes=(str(shared),))
    gate = Gate(socket, lease_service, policy, passwd=files)
    async with docker_clients(gate, socket, docker_environment, "gate-homes:users") as clients:
        yield HomeClients(**vars(clients), files=files, directory=shared / "passwd")
    for name in IMAGES:
        parts.docker(socket, "rmi", "--force", f"gate-homes:{name}")


@pytest.mark.docker
@pytest.mark.parametrize("options", [(), ("--read-only",), ("-v", "/w"), ("--user", "1000:1000")])
async def test_a_program_has_a_home_to_write_to_and_knows_its_user(
    clients: HomeClients, options: tuple[str, ...]
) -> None:
    look = "echo $HOME $USER $LOGNAME $(whoami) $(id -un); touch ~/x && mkdir ~/.cache && stat -c %U ~/x"
    said = await clients.said(clients.alice, *options, look)
    assert said == "/home/alice alice alice alice alice\nalice"


@pytest.mark.docker
async def test_programs_that_join_a_container_have_the_same_and_so_has_its_next_run(
    clients: HomeClients,
) -> None:
    name = f"gate-homes-{clients.directory.parent.name[-6:]}"
    await clients.alice(
        "run", "-d", "--network=none", "--init", "--name", name, "gate-homes:users", "sleep", "600"
    )
    try:
        joined = await clients.alice(
            "exec", name, "sh", "-c", "whoami; echo $HOME; touch ~/x; cat /etc/passwd"
        )
        await clients.engine("restart", "-t", "0", name)
        again = await clients.engine("exec", name, "sh", "-c", "whoami; touch ~/x")
    finally:
        await clients.engine("rm", "-f", name)
    assert joined.out == b"alice\n/home/alice\n" + PASSWD_OF_IMAGE + LINE, joined.err
    assert (again.code, again.out) == (0, b"alice\n"), again.err


@pytest.mark.docker
async def test_the_file_is_roots_and_only_to_be_read(clients: HomeClients) -> None:
    said = await clients.said(
        clients.alice, "stat -c '%u:%g %a' /etc/passwd; echo x >>/etc/passwd || echo refused"
    )
    assert said == "0:0 644\nrefused"


@pytest.mark.docker
async def test_a_user_whom_the_image_has_keeps_the_images_name(clients: HomeClients) -> None:
    assert await clients.said(clients.bob, "whoami; echo $USER") == "games\nbob"
    assert clients.kept == []


@pytest.mark.docker
@pytest.mark.parametrize("image", ["bare", "link", "large"])
async def test_an_image_without_a_plain_short_file_stays_as_it_is(clients: HomeClients, image: str) -> None:
    assert await clients.said(clients.alice, "echo $USER; touch ~/x; ls ~", image=image) == "alice\nx"
    assert clients.kept == []


@pytest.mark.docker
async def test_the_own_home_is_home_where_it_is_mounted(
    clients: HomeClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = clients.directory.parent / "alices"
    own.mkdir()
    shutil.chown(own, 1000, 1000)

    async def account_of(caller: Caller) -> Account:
        return Account(caller, (), str(own))

    monkeypatch.setattr("gpushared.gate.handlers.creates.account_of", account_of)
    assert (
        await clients.said(clients.alice, "-v", f"{own}:/h", "echo $HOME; touch ~/kept; whoami")
        == "/h\nalice"
    )
    assert (own / "kept").stat().st_uid == 1000


@pytest.mark.docker
async def test_who_is_root_inside_or_trusted_has_what_the_image_says(clients: HomeClients) -> None:
    look = "echo $HOME $USER; cat /etc/passwd"
    assert (
        await clients.said(clients.alice, "--user=root", look) == "/root\n" + PASSWD_OF_IMAGE.decode().strip()
    )
    assert await clients.said(clients.root, look) == "/root\n" + PASSWD_OF_IMAGE.decode().strip()


@pytest.mark.docker
async def test_a_home_in_memory_counts_for_its_container(clients: HomeClients) -> None:
    """The kernel ends the program that goes beyond; nothing is taken from the machine's rest."""
    words = ("-m", "32m", "--memory-swap", "32m", "gate-homes:users")
    done = await clients.alice.run(*words, "dd", "if=/dev/zero", "of=/home/alice/x", "bs=1M", "count=256")
    assert done.code == 137, done.err


@pytest.mark.docker
async def test_a_file_goes_with_the_last_container_that_has_it(clients: HomeClients) -> None:
    made = [await clients.alice("create", "--network=none", "gate-homes:users", "true") for _ in range(2)]
    first, second = (done.out.decode().strip() for done in made)
    await clients.files.sweep()
    assert len(clients.kept) == 1
    await clients.alice("rm", first)
    await clients.files.sweep()
    assert (await clients.engine("start", "--attach", second)).code == 0
    await clients.alice("rm", second)
    await clients.files.sweep()
    assert clients.kept == []


@pytest.mark.docker
async def test_a_look_into_an_image_leaves_no_container(clients: HomeClients) -> None:
    """Also that of a daemon that was killed meanwhile goes, and many creates look once."""
    label = ("--label", "gpushare.look=of-an-earlier-life")
    clients.directory.mkdir()
    mount = ("--mount", f"type=bind,src={clients.directory},dst=/gpushare-look,readonly")
    await clients.engine("create", *label, *mount, "--network=none", "gate-homes:users", "true")
    # Daemons of other tests that were killed during a look leave theirs on this engine too.
    own = ("--filter", "label=gpushare.look", "--filter", f"volume={clients.directory}")
    assert (await clients.engine("ps", "-aq", *own)).out != b""
    creates = [clients.alice("create", "--network=none", "gate-homes:users", "true") for _ in range(3)]
    made = [done.out.decode().strip() for done in await asyncio.gather(*creates)]
    await clients.alice("rm", *made)
    await clients.files.sweep()
    assert (await clients.engine("ps", "-aq", *own)).out == b""


@pytest.mark.docker
async def test_the_label_of_a_look_costs_nobody_a_container(clients: HomeClients) -> None:
    """An image may bring it along into anybody's."""
    clients.directory.mkdir()
    label = ("--label", "gpushare.look=of-an-earlier-life")
    made = await clients.engine("create", *label, "--network=none", "gate-homes:users", "true")
    await clients.files.sweep()
    assert (await clients.engine("rm", made.out.decode().strip())).code == 0


@pytest.mark.docker
async def test_a_site_can_switch_it_off(
    clients: HomeClients, docker_environment: dict[str, str], lease_service: FakeLeaseService
) -> None:
    socket = clients.engine.environment["DOCKER_HOST"]
    gate = Gate(socket, lease_service, SitePolicy(home_and_name=False), passwd=clients.files)
    async with serving_gate(gate, ALICE) as served:
        alice = Docker(served.url, docker_environment, clients.alice.image)
        assert await clients.said(alice, "echo $HOME $USER; whoami || true") == "/"
        shown = await alice("create", "--network=none", alice.image, "true")
        found = await alice("inspect", "-f", "{{json .HostConfig}}", shown.out.decode().strip())
        await alice("rm", shown.out.decode().strip())
    assert not json.loads(found.out).get("Tmpfs")
