"""``docker cp`` of somebody without rights into a container that does not run, before real engines."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpushared.domain.model.errors import StateConflict
from gpushared.gate.api.site import SitePolicy
from gpushared.gate.copies.copying import Copies
from gpushared.gate.docker_gate import Gate
from gpushared.gate.mounts import kernel
from gpushared.net.http_client import EngineSocket
from tests.gate.copying import Copier, copier, fields_of, helper_of, order_to_write, tar_of
from tests.gate.lease_services import FakeLeaseService
from tests.gate.people import people
from tests.gate.serving import RawClient, raw_client, request

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody without rights"),
]
OWN = "[ -e /tmp/own ] || { mkdir -p /tmp/own/below; echo before >/tmp/own/file; }"
FILE = tar_of(("file", {}, b"text"))
REST = 600
"""How much of the archive comes first."""
PATIENCE_SECONDS = 60
RESTARTS = 6
"""After so many the engine waits for several seconds before the next start."""
MANY_LAYERS = 130
"""The engine's images have fewer."""


async def stopped(alice: Copier, script: str = OWN, **host: object) -> str:
    """A container in which the script has run, and which was stopped then."""
    container = await alice.runs(script, **host)
    await alice.end(container)
    return container


@asynccontextmanager
async def half_sent(alice: Copier, container: str) -> AsyncIterator[tuple[RawClient, int]]:
    """A copy of ``file`` to /tmp that goes on with ``REST``, and its process."""
    head = request("PUT", f"/containers/{container}/archive?path=/tmp", b"", f"Content-Length: {len(FILE)}")
    async with raw_client(alice.alice.served) as client, asyncio.timeout(PATIENCE_SECONDS):
        await client.send(head + FILE[:REST])
        yield client, await helper_of(alice.uid)


async def gone(pid: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        # A process announces its end to its parent only.
        while Path(f"/proc/{pid}").exists():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.05)


# --- what comes of it ----------------------------------------------------------------------------------


async def test_files_are_there_at_the_next_start_and_belong_to_who_copied_them(alice: Copier) -> None:
    container = await stopped(alice)
    await alice.program("sh", "-c", "mkdir -p in/deep; echo after >in/deep/file; echo after >file")
    for source, target in (("file", "file"), ("file", "below/"), ("file", "new"), ("in/.", "")):
        await alice.cp(source, f"{container}:/tmp/own/{target}")
    assert (await alice.put(container, "/tmp/own", tar_of(("closed", {"mode": 0o400}, b"")))).status == 200
    await alice.start(container)
    shown = await alice.inside(
        container, "sh", "-c", "cd /tmp/own; find . -type f | sort | xargs stat -c '%n %a %u:%g'"
    )
    own = f"{alice.uid}:{alice.uid}"
    modes = {"below/file": 644, "closed": 400, "deep/file": 644, "file": 644, "new": 644}
    assert shown.out.decode().splitlines() == [f"./{name} {mode} {own}" for name, mode in modes.items()]
    for name in ("file", "below/file", "deep/file", "new"):
        assert (await alice.inside(container, "cat", f"/tmp/own/{name}")).out == b"after\n"
    await alice.end(container)
    await alice.start(container)


async def test_a_file_in_the_place_of_a_directory_and_one_that_was_removed_stay_so(alice: Copier) -> None:
    container = await stopped(alice)
    assert (await alice.put(container, "/tmp/own", tar_of(("below", {}, b"text")))).status == 200
    assert (await alice.put(container, "/tmp/own", tar_of(("file/x", {}, b"")))).status == 409
    await alice.start(container)
    assert (await alice.inside(container, "stat", "-c", "%F", "/tmp/own/below")).out == b"regular file\n"


async def test_a_container_with_a_volume_is_copied_into_before_its_first_start(alice: Copier) -> None:
    container = await alice.alice.create("", Mounts=[{"Type": "volume", "Target": "/tmp/volume"}])
    assert (await alice.put(container, "/tmp", FILE)).status == 200
    await alice.start(container)
    assert (await alice.inside(container, "cat", "/tmp/file")).out == b"text"


async def test_one_file_is_looked_at_without_an_export_and_roots_files_by_one(alice: Copier) -> None:
    container = await stopped(alice, Tmpfs={"/tmp/memory": ""})
    await alice.program("touch", "new")
    # A client that is not told that the target is a directory would put a file in its place.
    await alice.cp("new", f"{container}:/tmp")
    for path in ("/root", "/tmp/own/file", "/tmp/new"):
        looked = await alice.alice.ask("HEAD", f"/containers/{container}/archive", path=path)
        assert looked.status == 200


# --- what is refused -----------------------------------------------------------------------------------


async def test_what_is_mounted_while_it_runs_is_not_written_while_it_does_not(alice: Copier) -> None:
    """Neither where the client names it, nor by an entry of the archive, nor through a link."""
    mounts = [{"Type": "volume", "Target": "/tmp/volume"}, {"Type": "volume", "Target": "/tmp/link/deep"}]
    script = f"{OWN}; ln -s volume /tmp/to-it"
    container = await stopped(alice, script, Mounts=mounts, Tmpfs={"/tmp/memory": "", "/top": ""})
    cases = [
        ("/tmp/volume", "file"), ("/tmp", "volume/file"), ("/", "tmp/to-it/file"), ("/", "top"),
        ("/tmp/to-it", "file"), ("/tmp", "memory"), ("/tmp/link/deep", "x"),
    ]  # fmt: skip
    for path, name in cases:
        reply = await alice.put(container, path, tar_of((name, {}, b"")))
        assert (reply.status, "cannot be written while it does not run" in reply.message) == (403, True), path
    assert (await alice.put(container, "/tmp", tar_of(("own/file", {}, b"")))).status == 200


async def test_what_its_user_may_not_write_is_refused_in_a_sentence(alice: Copier) -> None:
    container = await stopped(alice)
    for path in ("/etc", "/bin", "/"):
        reply = await alice.put(container, path, FILE)
        assert (reply.status, "cannot be written: permission denied" in reply.message) == (403, True)
    assert (await alice.put(container, "/none", FILE)).status == 404
    assert (await alice.put(container, "/tmp/own/file", FILE)).status == 409
    device = tar_of(("null", {"type": b"3", "devmajor": 1, "devminor": 3}, b""))
    assert (await alice.put(container, "/tmp", device)).status == 403


async def test_a_container_that_its_engine_is_about_to_start_again_is_not_copied_into(alice: Copier) -> None:
    container = await alice.alice.run("", "false", RestartPolicy={"Name": "always"})
    found = {"RestartCount": 0}
    async with asyncio.timeout(PATIENCE_SECONDS):
        while found["RestartCount"] < RESTARTS:
            await asyncio.sleep(0.2)
            found = await alice.both.root.get(f"/containers/{container}/json")
    reply = await alice.put(container, "/tmp", FILE)
    assert (reply.status, "about to start again" in reply.message) == (409, True), reply


LAYERS = {"LowerDir": "/o/1-init/diff:/o/0/diff", "UpperDir": "/o/1/diff"}
OTHERWISE: dict[str, dict[str, object]] = {
    "containerd's": {"GraphDriver": {"Name": "overlayfs", "Data": None}},
    "nothing told": {},
    "another driver": {"GraphDriver": {"Name": "btrfs", "Data": LAYERS}},
    "no layers": {"GraphDriver": {"Name": "overlay2", "Data": {}}},
    "a label by the mount": {"GraphDriver": {"Name": "overlay2", "Data": LAYERS}, "MountLabel": "x:y:z:s0"},
}


@pytest.mark.parametrize("told", OTHERWISE.values(), ids=OTHERWISE)
async def test_where_the_engine_keeps_files_otherwise_nothing_is_copied_in(
    alice: Copier, monkeypatch: pytest.MonkeyPatch, told: dict[str, object]
) -> None:
    container = await stopped(alice)
    inspect = "gpushared.gate.containers.ownership.inspect"
    found = await alice.both.root.get(f"/containers/{container}/json")
    for name in ("GraphDriver", "MountLabel"):
        found.pop(name, None)

    async def as_another_engine(*_: object, **__: object) -> dict[str, object]:
        return {**found, **told}

    monkeypatch.setattr(inspect, as_another_engine)
    reply = await alice.put(container, "/tmp", FILE)
    assert (reply.status, "start it first" in reply.message) == (403, True)


async def test_layers_that_are_not_there_are_told_of(alice: Copier) -> None:
    container = await alice.both.root.get(f"/containers/{await stopped(alice)}/json")
    layers = {
        "engine": await EngineSocket(alice.engine).peer_pid(),
        "lower": ["/none/diff"],
        "upper": "/none/x",
    }
    async with Copies().helper(alice.uid) as helper:
        await helper.order(order_to_write(alice, container) | {"layers": layers})
        with pytest.raises(StateConflict, match="layers cannot be mounted: No such file or directory"):
            await helper.answer()


# --- as an attacker ------------------------------------------------------------------------------------


PUTS = 40
SWAPS = """
import os, sys
top = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
targets = sys.argv[2:]
print("open", flush=True)
sys.stdin.readline()
while True:
    for target in targets:
        os.symlink(target, "new", dir_fd=top)
        os.rename("new", "x", src_dir_fd=top, dst_dir_fd=top)
"""


async def test_links_that_a_process_outside_swaps_lead_only_where_its_user_may_go(
    alice: Copier, tmp_path: Path
) -> None:
    """It has a directory of the container open since that ran, and knows places of the machine."""
    everybodys = tmp_path / "everybodys"
    everybodys.mkdir()
    for folder in (tmp_path, *tmp_path.parents):
        folder.chmod(folder.stat().st_mode | 0o11)
    everybodys.chmod(0o777)
    container = await alice.runs("mkdir -p /tmp/own/d; ln -s d /tmp/own/x")
    targets = (str(everybodys), "d", "/etc", "d", "../../etc", "d", "/proc/self/root/etc", "d")
    pid = (await alice.both.root.get(f"/containers/{container}/json"))["State"]["Pid"]
    swapper = await asyncio.create_subprocess_exec(
        "python3", "-c", SWAPS, f"/proc/{pid}/root/tmp/own", *targets,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, user=alice.uid, group=alice.uid,
        extra_groups=[],
    )  # fmt: skip
    try:
        assert swapper.stdout is not None
        assert swapper.stdin is not None
        assert await swapper.stdout.readline() == b"open\n"
        await alice.end(container)
        swapper.stdin.write(b"\n")
        archive = tar_of(("x/hosts", {}, b"changed"), ("x/new", {"mode": 0o6777}, b"changed"))
        statuses: set[int] = set()
        # It came to places of its own, and was led to others too: on a busy machine only after a while.
        async with asyncio.timeout(5 * PATIENCE_SECONDS):
            for count in itertools.count():
                if count >= PUTS and {200} < statuses:
                    break
                path, sent = ("/tmp/own/x", FILE) if count % 3 == 2 else ("/tmp/own", archive)
                statuses.add((await alice.put(container, path, sent)).status)
        assert swapper.returncode is None
    finally:
        swapper.kill()
        await swapper.communicate()
    assert statuses <= {200, 403, 404, 409}
    assert list(everybodys.iterdir()) == []
    assert not Path("/etc/new").exists()
    await alice.start(container)
    assert b"changed" not in (await alice.inside(container, "cat", "/etc/hosts")).out
    assert (await alice.inside(container, "ls", "/etc/new", "/etc/file")).out == b""


async def test_who_copies_sees_the_layers_alone_and_has_no_right_of_roots(alice: Copier) -> None:
    container = await stopped(alice)
    engine = await EngineSocket(alice.engine).peer_pid()
    async with half_sent(alice, container) as (client, pid):
        status = fields_of(pid)
        assert status["Uid"] == status["Gid"] == "\t".join([str(alice.uid)] * 4)
        assert {int(status[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {0}
        opened = sorted(str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir())
        assert [each for each in opened if each.startswith("/") and each != "/dev/null"] == [
            f"/proc/{pid}/fd"
        ]
        assert {each.name for each in Path(f"/proc/{pid}/root/tmp/own").iterdir()} == {"below", "file"}
        assert os.statvfs(f"/proc/{pid}/root").f_flag & (os.ST_NODEV | os.ST_NOSUID | os.ST_NOEXEC) == 14
        for file in ("root", "cwd", "fd"):
            assert (await alice.program("ls", f"/proc/{pid}/{file}/")).code != 0
        # It is mounted for nobody else.
        device = Path(f"/proc/{pid}/root/tmp").stat().st_dev
        for each in (engine, "self", pid):
            lines = Path(f"/proc/{each}/mountinfo").read_text().splitlines()
            assert f"{os.major(device)}:{os.minor(device)}" not in {line.split()[2] for line in lines}
        await client.send(FILE[REST:])
        assert (await client.reply()).status == 200
    await gone(pid)


async def test_a_container_does_not_start_through_the_gate_while_files_come_in(alice: Copier) -> None:
    container = await stopped(alice)
    async with half_sent(alice, container) as (client, _):
        starting = asyncio.create_task(alice.start(container))
        done, _ = await asyncio.wait({starting}, timeout=1.0)
        assert not done
        await client.send(FILE[REST:])
        assert (await client.reply()).status == 200
        await starting
    assert (await alice.inside(container, "cat", "/tmp/file")).out == b"text"


async def test_a_start_past_the_gate_meanwhile_finds_a_container_that_works(alice: Copier) -> None:
    """Root's own start, or one by the engine's restart policy. Both have the container's files mounted."""
    container = await stopped(alice)
    async with half_sent(alice, container) as (client, _):
        started = await alice.past_the_gate("start", container)
        assert started.code == 0, started.err
        await client.send(FILE[REST:])
        assert (await client.reply()).status in {200, 403, 404, 409}
    # What the image brought is changed and removed by way of the directory that the kernel works in.
    changes = "echo x >>/etc/passwd && rm /bin/[[ && mkdir /etc/new && mv /etc/new /etc/other"
    changed = await alice.past_the_gate("exec", "-u", "0", container, "sh", "-c", changes)
    assert changed.code == 0, changed.err
    await alice.end(container)
    await alice.start(container)
    assert (
        await alice.inside(container, "sh", "-c", "tail -n 1 /etc/passwd; ls -d /etc/other")
    ).out == b"x\n/etc/other\n"


async def test_a_container_that_is_removed_meanwhile_leaves_nothing(alice: Copier) -> None:
    container = await stopped(alice)
    driver = (await alice.both.root.get(f"/containers/{container}/json"))["GraphDriver"]["Data"]
    engine = await EngineSocket(alice.engine).peer_pid()
    async with half_sent(alice, container) as (client, pid):
        removed = await alice.docker("rm", container)
        assert removed.code == 0, removed.err
        await client.send(FILE[REST:])
        assert (await client.reply()).status in {200, 404, 409}
    await gone(pid)
    assert not Path(f"/proc/{engine}/root{driver['UpperDir']}").parent.exists()


async def test_who_is_root_inside_writes_as_root_without_a_right(
    lease_service: FakeLeaseService, docker_engine: str, busybox_image: str
) -> None:
    gate = Gate(docker_engine, lease_service, SitePolicy(root_inside=True))
    async with people(gate, busybox_image) as both, copier(both) as alice:
        container = await alice.runs_as_root(busybox_image)
        await alice.end(container)
        assert (await alice.put(container, "/own", tar_of(("file", {"uid": 7}, b"")))).status == 200
        refused = await alice.put(container, "/theirs", FILE)
        assert (refused.status, "permission denied" in refused.message) == (403, True)
        await alice.start(container)
        assert (await alice.inside(container, "stat", "-c", "%u:%g", "/own/file")).out == b"0:0\n"


def test_an_image_of_many_layers_is_mounted(tmp_path: Path) -> None:
    """Their names do not fit into one option."""
    places = [tmp_path / str(number) for number in range(MANY_LAYERS)]
    for place in (*places, tmp_path / "upper", tmp_path / "work"):
        place.mkdir()
        if place.name != "work":
            (place / place.name).touch()
    top = kernel.mount_overlay(
        [str(each) for each in places], str(tmp_path / "upper"), str(tmp_path / "work")
    )
    try:
        names = {each.name for each in Path(f"/proc/self/fd/{top}").iterdir()}
        assert names == {"upper", *(str(number) for number in range(MANY_LAYERS))}
    finally:
        os.close(top)
