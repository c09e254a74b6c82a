"""``docker cp`` of somebody without rights, into and out of a container that runs, before real engines."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import resource
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from gpushared.domain.model.errors import StateConflict, TimedOut, Unavailable
from gpushared.gate.api.site import SitePolicy
from gpushared.gate.copies import copy_helper as program
from gpushared.gate.copies.copying import AT_ONCE, COMMAND, Copies
from gpushared.gate.docker_gate import Gate
from gpushared.ports import CgroupDriver
from gpushared.sharing.user_cgroups import UserCgroups
from tests.bed.cgroups import remove_users
from tests.gate.copying import Copier, copier, fields_of, helper_of, listed, order_to_write, tar_of
from tests.gate.lease_services import FakeLeaseService
from tests.gate.people import people
from tests.gate.serving import ask, raw_client, request

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody without rights"),
]
# The links lie below /tmp: in a sticky folder Linux lets root, as whom the engine runs, follow no link of
# another user (fs.protected_symlinks), and the engine would refuse the copy that the test compares with.
TREE = """
mkdir -p /tmp/tree/empty /tmp/tree/below
echo one >/tmp/tree/file; ln /tmp/tree/file /tmp/tree/second-name; chmod 640 /tmp/tree/file
echo two >/tmp/tree/below/other; ln -s /etc/passwd /tmp/tree/out; ln -s nowhere /tmp/tree/dangling
mkfifo /tmp/tree/pipe; chmod 1777 /tmp/tree/empty; mkdir /tmp/own
ln -s /tmp/tree /tmp/own/link; ln -s ../tree/file /tmp/own/to-file
dd if=/dev/zero of=/tmp/tree/long bs=1k count=700 2>/dev/null"""
MIB = 1 << 20
SPARSE_BYTES = 600 * MIB
STAT = "x-docker-container-path-stat"


# --- as the engine does --------------------------------------------------------------------------------


SPELLINGS = [
    *("/tmp/tree", "/tmp/tree/", "/tmp/tree/.", "tmp/tree", "/tmp/../tmp//tree/below/..", "/tmp/tree/file"),
    *(
        "/tmp/own/link",
        "/tmp/own/link/",
        "/tmp/own/link/file",
        "/tmp/own/to-file",
        "/tmp/tree/dangling",
        "/tmp/tree/pipe",
    ),
]


async def test_an_archive_out_of_a_container_is_what_the_engine_gives(alice: Copier) -> None:
    """Every name, mode, link, time and byte of it, however the path is written."""
    container = await alice.runs(TREE)
    for path in SPELLINGS:
        own = await alice.get(container, path)
        engines = await alice.both.root.ask("GET", f"/containers/{container}/archive", path=path)
        assert (own.status, engines.status) == (200, 200), (path, own)
        assert listed(own.body) == listed(engines.body), path
        assert json.loads(base64.b64decode(own.headers[STAT])) == json.loads(
            base64.b64decode(engines.headers[STAT])
        )
        looked = await alice.alice.ask("HEAD", f"/containers/{container}/archive", path=path)
        assert (looked.status, looked.headers[STAT]) == (200, own.headers[STAT]), path


MISSING = ["/none", "/tmp/none/file", "/tmp/tree/dangling/"]


async def test_what_is_not_there_is_said_in_the_engines_words(alice: Copier) -> None:
    container = await alice.runs(TREE)
    for path in MISSING:
        own = await alice.get(container, path)
        engines = await alice.both.root.ask("GET", f"/containers/{container}/archive", path=path)
        assert (own.status, own.message) == (engines.status, engines.message) == (404, own.message)
    into = await alice.put(container, "/none", tar_of(("file", {}, b"")))
    assert (into.status, into.message) == (404, f"Could not find the file /none in container {container}")
    for path in ("/tmp/tree/file/", "/tmp/tree/file/below"):
        assert "not a directory" in (await alice.get(container, path)).message
    assert (await alice.get(container, "")).status == 400


# --- the command line ----------------------------------------------------------------------------------


async def test_trees_are_copied_in_and_out_as_they_are(alice: Copier) -> None:
    container = await alice.runs()
    await alice.program(
        "sh", "-c",
        "mkdir -p in/empty in/closed; echo text >in/closed/file; chmod 400 in/closed/file;"
        "ln -s ../../etc in/out; ln -s /nowhere in/dangling; ln in/closed/file in/again; chmod 2755 in/empty;"
        "mkfifo in/pipe; touch -d '2001-02-03 04:05:06' in/closed in/closed/file",
    )  # fmt: skip
    await alice.cp("in", f"{container}:/tmp/there")
    await alice.cp(f"{container}:/tmp/there", "back")
    shown = "find . | sort | xargs stat -c '%n %F %a %u %g %h' && find . -type f -exec stat -c '%n %Y' {} +"
    one, other = [await alice.program("sh", "-c", f"cd {at} && {shown}") for at in ("in", "back")]
    assert (one.out, one.code) == (other.out, 0)
    assert (alice.home / "back/closed/file").stat().st_mtime == (
        alice.home / "in/closed/file"
    ).stat().st_mtime


async def test_files_come_into_directories_that_are_closed_when_all_is_in_them(alice: Copier) -> None:
    container = await alice.runs("mkdir /tmp/own")
    closed = {"type": tarfile.DIRTYPE, "mode": 0o555, "mtime": 1_000_000}
    archive = tar_of(
        ("closed", closed, b""), ("closed/file", {"mode": 0o400}, b""), ("implied/file", {}, b"")
    )
    assert (await alice.put(container, "/tmp/own", archive)).status == 200
    names = [f"/tmp/own/{each}" for each in ("closed", "closed/file", "implied")]
    shown = await alice.inside(container, "stat", "-c", "%a %u %Y", *names)
    assert [line.split()[:2] for line in shown.out.decode().splitlines()] == [
        [mode, str(alice.uid)] for mode in ("555", "400", "755")
    ]
    assert shown.out.split()[2] == b"1000000"


async def test_what_is_copied_in_is_its_callers(alice: Copier) -> None:
    container = await alice.runs("mkdir /tmp/own")
    await alice.cp("/etc/hostname", f"{container}:/tmp/own/file")
    owner = await alice.inside(container, "stat", "-c", "%u:%g", "/tmp/own/file")
    assert owner.out == b"%d:%d\n" % (alice.uid, alice.uid)


async def test_archives_are_copied_by_standard_input_and_output(alice: Copier) -> None:
    container = await alice.runs("mkdir /tmp/own")
    archive = tar_of(
        ("a", {"type": tarfile.DIRTYPE, "mode": 0o700}, b""), ("a/file", {"mode": 0o604}, b"text")
    )
    await alice.cp("-", f"{container}:/tmp/own", stdin=archive)
    out = (await alice.cp(f"{container}:/tmp/own/a", "-")).out
    assert [(each[0], each[2], each[-1]) for each in listed(out)] == [
        ("a", 0o700, b""),
        ("a/file", 0o604, b"text"),
    ]


async def test_links_are_followed_where_that_is_asked_for(alice: Copier) -> None:
    container = await alice.runs(TREE)
    await alice.cp(f"{container}:/tmp/own/to-file", "link")
    await alice.cp("-L", f"{container}:/tmp/own/to-file", "file")
    assert (alice.home / "link").readlink() == Path("../tree/file")
    assert (alice.home / "file").read_text() == "one\n"
    await alice.cp("file", f"{container}:/tmp/own/link")
    assert (await alice.inside(container, "cat", "/tmp/tree/file")).out == b"one\n"
    await alice.program("ln", "-s", "file", "to-it")
    await alice.cp("-L", "to-it", f"{container}:/tmp/tree/followed")
    assert (await alice.inside(container, "stat", "-c", "%F", "/tmp/tree/followed")).out == b"regular file\n"


async def test_with_their_owners_only_ones_own_files_are_copied_in(alice: Copier) -> None:
    container = await alice.runs()
    (alice.home / "roots").write_text("")
    own = await alice.program("touch", "own")
    assert own.code == 0
    await alice.cp("-a", "own", f"{container}:/tmp/own")
    refused = await alice.docker("cp", "-a", "roots", f"{container}:/tmp/roots")
    assert refused.code == 1
    assert b"roots in the archive belongs to 0:0, which you are not" in refused.err
    await alice.cp("roots", f"{container}:/tmp/roots")


async def test_a_sparse_file_is_copied_whole_and_stays_sparse_inside(alice: Copier) -> None:
    script = "import sys; f = open('sparse', 'wb'); f.seek(int(sys.argv[1]) - 4); f.write(b'last')"
    await alice.program("python3", "-c", script, str(SPARSE_BYTES))
    container = await alice.runs()
    await alice.cp("sparse", f"{container}:/tmp/sparse")
    size, blocks = (await alice.inside(container, "stat", "-c", "%s %b", "/tmp/sparse")).out.split()
    assert (int(size), int(blocks) * 512 < MIB) == (SPARSE_BYTES, True)
    await alice.cp(f"{container}:/tmp/sparse", "back")
    with (alice.home / "back").open("rb") as back:
        assert back.seek(0, os.SEEK_END) == SPARSE_BYTES
        back.seek(-8, os.SEEK_END)
        assert back.read() == b"\0\0\0\0last"


async def test_a_log_that_grows_and_shrinks_meanwhile_does_not_break_the_archive(alice: Copier) -> None:
    writes = "dd if=/dev/zero bs=64k count=20 2>/dev/null >>/tmp/logs/log; : >/tmp/logs/log; sleep 0.01"
    container = await alice.runs(f"mkdir /tmp/logs; (while :; do {writes}; done) & true")
    for _ in range(10):
        names = [each[0] for each in listed((await alice.cp(f"{container}:/tmp/logs", "-")).out)]
        assert names == ["logs", "logs/log"]


# --- what is mounted -----------------------------------------------------------------------------------


async def test_volumes_and_ones_own_directories_are_copied_into_and_out_of(
    alice: Copier, tmp_path: Path
) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        folder.chmod(folder.stat().st_mode | 0o11)
    own = tmp_path / "own"
    own.mkdir()
    os.chown(own, alice.uid, alice.uid)
    mounts = [
        {"Type": "bind", "Source": str(own), "Target": "/own"},
        {"Type": "volume", "Target": "/tmp/volume"},
        {"Type": "bind", "Source": str(own), "Target": "/fixed", "ReadOnly": True},
    ]
    container = await alice.runs(Mounts=mounts)
    await alice.program("sh", "-c", "echo text >file")
    await alice.cp("file", f"{container}:/own/file")
    found = (own / "file").stat()
    assert (found.st_uid, (own / "file").read_text()) == (alice.uid, "text\n")
    assert (await alice.cp(f"{container}:/fixed/file", "-")).out
    assert listed((await alice.cp(f"{container}:/tmp/volume", "-")).out)[0][0] == "volume"
    refused = await alice.docker("cp", "file", f"{container}:/fixed/another")
    assert (refused.code, b"/fixed/another cannot be written: read-only file system" in refused.err) == (
        1,
        True,
    )


async def test_the_kernels_files_are_copied_by_name_and_not_with_the_whole(alice: Copier) -> None:
    container = await alice.runs("echo text >/dev/shm/file")
    status = listed((await alice.cp(f"{container}:/proc/1/status", "-")).out)
    assert b"Name:\t" in status[0][-1]
    assert listed((await alice.cp(f"{container}:/dev/shm/file", "-")).out)[0][-1] == b"text\n"
    refused = await alice.get(container, "/")
    names = [str(each[0]) for each in listed(refused.body)] if refused.status == 200 else []
    assert [name for name in names if name.startswith(("/proc/", "/sys/", "/dev/"))] == []


# --- what is refused -----------------------------------------------------------------------------------


REFUSED: list[tuple[str, dict[str, object], int, str]] = [
    ("../out", {}, 400, "../out in the archive leads out of /tmp/own"),
    ("a/../../out", {}, 400, "a/../../out in the archive leads out of /tmp/own"),
    ("node", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}, 403, "node in the archive is a device"),
    ("disk", {"type": tarfile.BLKTYPE, "devmajor": 8}, 403, "disk in the archive is a device"),
    ("hard", {"type": tarfile.LNKTYPE, "linkname": "../../etc/passwd"}, 400, "leads out of /tmp/own"),
    ("hard", {"type": tarfile.LNKTYPE, "linkname": "none"}, 404, "Could not find the file"),
    ("odd", {"type": b"Z"}, 400, "odd in the archive is of an unknown kind"),
]


async def test_entries_that_nobody_without_rights_could_make_are_refused_by_name(alice: Copier) -> None:
    container = await alice.runs("mkdir /tmp/own")
    for name, fields, status, sentence in REFUSED:
        reply = await alice.put(container, "/tmp/own", tar_of((name, fields, b"")))
        assert (reply.status, sentence in reply.message) == (status, True), reply
    assert (await alice.inside(container, "find", "/tmp/own", "/tmp/out")).out == b"/tmp/own\n"


async def test_a_broken_archive_is_refused(alice: Copier) -> None:
    container = await alice.runs("mkdir /tmp/own")
    good = tar_of(("one", {}, b"x" * 5000), ("two", {}, b""))
    second = 512 + 5120
    for bad in (good[:1500], good[: second + 100], good[:second] + b"nonsense" * 64):
        reply = await alice.put(container, "/tmp/own", bad)
        assert (reply.status, "the archive is broken" in reply.message) == (400, True), reply
    assert (await alice.put(container, "/tmp/own", good)).status == 200


async def test_what_its_user_may_not_read_or_write_is_refused_in_a_sentence(alice: Copier) -> None:
    container = await alice.runs(
        "mkdir -p /tmp/own/below; echo >/tmp/own/below/file; chmod 0 /tmp/own/below/file"
    )
    read = await alice.docker("cp", f"{container}:/tmp/own", "there")
    assert b"/tmp/own/below/file cannot be read: permission denied" in read.err
    written = await alice.docker("cp", "/etc/hostname", f"{container}:/etc/hostname")
    assert b"cannot be written: " in written.err
    assert (read.code, written.code) == (1, 1)


async def test_a_directory_and_something_else_do_not_replace_each_other_where_that_is_asked_for(
    alice: Copier,
) -> None:
    container = await alice.runs("mkdir -p /tmp/own/directory; echo >/tmp/own/file")
    cases: list[tuple[str, dict[str, object]]] = [
        ("directory", {}),
        ("file", {"type": tarfile.DIRTYPE, "mode": 0o755}),
    ]
    for name, fields in cases:
        archive = tar_of((name, fields, b""))
        reply = await alice.put(container, "/tmp/own", archive, noOverwriteDirNonDir="true")
        assert (reply.status, "cannot overwrite" in reply.message) == (409, True)
        assert (await alice.put(container, "/tmp/own", archive)).status == 200
    kinds = await alice.inside(container, "stat", "-c", "%F", "/tmp/own/directory", "/tmp/own/file")
    assert kinds.out == b"regular empty file\ndirectory\n"


# --- who copies ----------------------------------------------------------------------------------------


async def test_who_copies_is_the_containers_user_and_has_no_right_of_roots(alice: Copier) -> None:
    """Looked at in the middle of an archive that does not come to its end."""
    container = await alice.runs()
    first = (await alice.both.root.get(f"/containers/{container}/json"))["State"]["Pid"]
    head = request("PUT", f"/containers/{container}/archive?path=/tmp", b"", "Content-Length: 10240")
    async with raw_client(alice.alice.served) as client, asyncio.timeout(60):
        await client.send(head + tar_of(("file", {}, b"x" * 4096))[:1024])
        pid = await helper_of(alice.uid)
        status = fields_of(pid)
        assert status["Uid"] == status["Gid"] == "\t".join([str(alice.uid)] * 4)
        assert status["Groups"] == ""
        assert {int(status[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {0}
        for link in ("ns/mnt", "root"):
            assert Path(f"/proc/{pid}/{link}").stat().st_ino == Path(f"/proc/{first}/{link}").stat().st_ino
        # Nobody of the same uid can look into it, outside or in the container.
        for file in ("environ", "mem", "root", "fd"):
            assert (await alice.program("ls", f"/proc/{pid}/{file}/")).code != 0
            assert (await alice.program("cat", f"/proc/{pid}/{file}")).code != 0
        assert str(pid) not in (await alice.inside(container, "ls", "/proc")).out.decode().split()


async def test_a_helper_that_its_user_interrupts_opens_no_file_by_name(alice: Copier) -> None:
    """A traceback shows lines of the program's source, at whose path an image may have a device."""
    source = Path(program.__file__)
    script = f"mkfifo {source}; (echo line >{source}; touch /tmp/opened) & true"
    container = await alice.runs(script, Tmpfs={str(source.parent): "mode=1777"})
    head = request("PUT", f"/containers/{container}/archive?path=/tmp", b"", "Content-Length: 10240")
    async with raw_client(alice.alice.served) as client, asyncio.timeout(30):
        await client.send(head + tar_of(("file", {}, b"x" * 4096))[:1024])
        pid = await helper_of(alice.uid)
        assert (await alice.program("kill", "-INT", str(pid))).code == 0
        while Path(f"/proc/{pid}").exists():  # noqa: ASYNC110 - a process that ends announces itself to its parent only
            await asyncio.sleep(0.02)
    assert (await alice.inside(container, "test", "-e", "/tmp/opened")).code == 1


async def test_who_is_root_inside_copies_as_root_without_a_right(
    lease_service: FakeLeaseService, docker_engine: str, busybox_image: str
) -> None:
    """Files of others in the container stay theirs."""
    gate = Gate(docker_engine, lease_service, SitePolicy(root_inside=True))
    async with people(gate, busybox_image) as both, copier(both) as alice:
        container = await alice.runs_as_root(busybox_image)
        assert (await alice.put(container, "/own", tar_of(("file", {"uid": 7}, b"")))).status == 200
        assert (await alice.inside(container, "stat", "-c", "%u:%g", "/own/file")).out == b"0:0\n"
        assert (await alice.get(container, "/own")).status == 200
        into = await alice.put(container, "/theirs", tar_of(("file", {}, b"")))
        for reply in (into, await alice.get(container, "/theirs")):
            assert (reply.status, "/theirs" in reply.message) == (403, True)


def test_nothing_is_imported_where_an_image_could_bring_it_along() -> None:
    code = "import sys; sys.path.append(sys.argv[1]); from gpushared.gate.copies import copy_helper; "
    code += "copy_helper.bound(); import csv"
    done = subprocess.run([*COMMAND[:4], code, COMMAND[-1]], capture_output=True, check=False, timeout=60)
    assert b"No module named 'csv'" in done.stderr


async def test_a_device_in_a_container_is_named_and_never_opened(alice: Copier) -> None:
    """No cgroup would keep the copying process from one that an image brings along."""
    container = await alice.alice.create("", "sleep", "600")
    fields = {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 5, "mode": 0o666}
    raw = tar_of(("zeros", fields, b""))
    target = f"/containers/{container}/archive?path=/tmp"
    assert (await ask(alice.both.root.served, request("PUT", target, raw))).status == 200
    assert (await alice.alice.ask("POST", f"/containers/{container}/start")).status == 204
    (found,) = listed((await alice.get(container, "/tmp/zeros")).body)
    assert found[:2] == ("zeros", tarfile.CHRTYPE)


async def test_links_that_a_program_swaps_meanwhile_lead_only_where_it_may_go_itself(alice: Copier) -> None:
    """To files of root's in the container, which would show that anybody but its user followed them."""
    script = "mkdir /tmp/a /tmp/b; ln -s /root-only /tmp/b/x; mkdir /tmp/a/x; echo mine >/tmp/a/x/file; "
    swaps = "mv /tmp/a/x /tmp/a/y; ln -s /etc /tmp/a/x; sleep 0.01; rm /tmp/a/x; mv /tmp/a/y /tmp/a/x"
    script += f"(while :; do {swaps}; done) & true"
    container = await alice.runs(script)
    archive = tar_of(("x/hosts", {}, b"changed"), ("x/new", {}, b"changed"))
    statuses = set()
    for _ in range(30):
        statuses.add((await alice.put(container, "/tmp/a", archive)).status)
        # One whose top goes away in the middle is broken off: 503 where nothing was sent yet.
        with contextlib.suppress(ValueError, asyncio.IncompleteReadError):
            out = await alice.get(container, "/tmp/a/x/")
            statuses.add(out.status)
            files = listed(out.body) if out.status == 200 else []
            assert {each[-1] for each in files if each[0].endswith("file")} <= {b"mine\n"}
    assert statuses <= {200, 403, 404, 409, 503}
    assert b"changed" not in (await alice.inside(container, "cat", "/etc/hosts")).out
    assert (await alice.inside(container, "ls", "/etc/new")).code != 0


async def test_a_container_that_is_paused_is_copied_from(alice: Copier) -> None:
    container = await alice.runs(TREE)
    assert (await alice.alice.ask("POST", f"/containers/{container}/pause")).status == 204
    assert (await alice.get(container, "/tmp/tree/file")).status == 200


async def test_where_the_engine_maps_numbers_nothing_is_copied_while_the_container_runs(
    alice: Copier, lease_service: FakeLeaseService
) -> None:
    """The helper would be somebody else; the engine and its export go on, and know the numbers inside."""
    lease_service.facts = replace(lease_service.facts, maps_users=True)
    new = await alice.alice.create("", "sleep", "600")
    assert (await alice.put(new, "/tmp", tar_of(("file", {}, b"text")))).status == 200
    assert listed((await alice.get(new, "/tmp/file")).body)[0][-1] == b"text"
    container = await alice.runs()
    for words in (("/etc/hostname", f"{container}:/tmp/file"), (f"{container}:/tmp/.ready", "back")):
        refused = await alice.docker("cp", *words)
        assert (refused.code, b"the engine maps the numbers of users" in refused.err) == (1, True), refused
    assert (await alice.inside(container, "test", "-e", "/tmp/file")).code == 1
    await alice.end(container)
    assert (await alice.get(container, "/tmp/.ready")).status == 200
    into = await alice.put(container, "/tmp", tar_of(("file", {}, b"")))
    assert (into.status, "nothing is copied safely into" in into.message) == (403, True)


async def test_anothers_container_is_not_copied_from(alice: Copier) -> None:
    container = await alice.runs()
    reply = await alice.both.bob.ask("GET", f"/containers/{container}/archive", path="/tmp")
    assert (reply.status, reply.message) == (404, f"No such container: {container}")


# --- how much and how long -----------------------------------------------------------------------------


async def test_a_copy_in_which_nothing_moves_is_ended_and_counts_no_more(
    alice: Copier,
) -> None:
    """As where a file system does not answer, or its user stops the process, which has the same uid."""
    container = await alice.both.root.get(f"/containers/{await alice.runs()}/json")
    copies = Copies(idle_seconds=2.0)
    for _ in range(AT_ONCE + 1):
        async with copies.helper(alice.uid) as helper:
            await helper.order(order_to_write(alice, container))
            pid = await helper_of(alice.uid)
            assert (await alice.program("kill", "-STOP", str(pid))).code == 0
            with pytest.raises(TimedOut, match="nothing was copied for 2 s"):
                await helper.answer()
        assert not Path(f"/proc/{pid}").exists()


async def test_a_user_has_so_many_copies_at_once_and_another_has_others(alice: Copier) -> None:
    copies = Copies(idle_seconds=1.0)
    async with AsyncExitStack() as stack:
        for _ in range(AT_ONCE):
            await stack.enter_async_context(copies.helper(alice.uid))
        with pytest.raises(TimedOut, match=f"{AT_ONCE} copies of yours"):
            await stack.enter_async_context(copies.helper(alice.uid))
        await stack.enter_async_context(copies.helper(alice.uid + 1))
    async with copies.helper(alice.uid):
        pass


async def test_a_copy_that_could_not_begin_counts_no_more() -> None:
    """Whatever it is that there is no descriptor left for."""
    copies = Copies(idle_seconds=5.0)
    async with copies.helper(1000):
        pass
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        for free in range(6):
            for _ in range(AT_ONCE + 1):
                await asyncio.sleep(0.02)  # the loop closes what the one before had
                with no_descriptors_but(free), pytest.raises(Unavailable, match="Too many open files"):
                    async with copies.helper(1000):
                        pass
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    async with copies.helper(1000):
        pass


@contextlib.contextmanager
def no_descriptors_but(free: int) -> Iterator[None]:
    """This process can open so many files and no more."""
    taken = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        for _ in range(free):
            os.close(taken.pop())
        yield
    finally:
        for each in taken:
            os.close(each)


async def test_who_hangs_up_leaves_no_process(alice: Copier) -> None:
    container = await alice.runs("dd if=/dev/zero of=/tmp/long bs=1M count=0 seek=4000 2>/dev/null")
    async with raw_client(alice.alice.served) as client, asyncio.timeout(60):
        await client.send(request("GET", f"/containers/{container}/archive?path=/tmp/long"))
        pid = await helper_of(alice.uid)
    async with asyncio.timeout(60):
        # A process announces its end to its parent only.
        while Path(f"/proc/{pid}").exists():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.05)


async def test_a_container_that_has_just_ended_is_not_taken_for_another(alice: Copier) -> None:
    """The number of its first process may be another's by then."""
    container = await alice.both.root.get(f"/containers/{await alice.runs()}/json")
    other = await alice.both.root.get(f"/containers/{await alice.runs()}/json")
    order = order_to_write(alice, container)
    for pid in (os.getpid(), other["State"]["Pid"], 1 << 22):
        async with Copies().helper(alice.uid) as helper:
            await helper.order(order | {"pid": pid})
            with pytest.raises(StateConflict, match="has just ended"):
                await helper.answer()


async def test_what_a_copy_takes_is_the_users(
    lease_service: FakeLeaseService, docker_engine: str, busybox_image: str
) -> None:
    """It is in the cgroup with the limits of all that the user runs."""
    walls = UserCgroups(f"copies-{os.getpid()}")
    gate = Gate(
        docker_engine, lease_service, SitePolicy(memory_per_user=256 * MIB, pids_per_user=100), walls=walls
    )
    async with people(gate, busybox_image) as both, copier(both) as alice:
        container = await alice.runs()
        head = request("PUT", f"/containers/{container}/archive?path=/tmp", b"", "Content-Length: 10240")
        async with raw_client(alice.alice.served) as client, asyncio.timeout(60):
            await client.send(head + tar_of(("file", {}, b"x" * 4096))[:1024])
            pid = await helper_of(alice.uid)
            lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
            counted = {kind: path for _, kind, path in (line.split(":", 2) for line in lines)}
            place = walls.place_of(alice.uid).path(CgroupDriver.CGROUPFS)
            assert (counted.get("memory") or counted[""]).startswith(place)
    remove_users(walls.home)


# --- while it does not run -----------------------------------------------------------------------------


async def test_what_is_copied_out_after_the_end_is_what_the_engine_gives(alice: Copier) -> None:
    """Links that lead forwards and backwards in the order of names among them."""
    links = "cd /tmp/own; ln -s /tmp/tree a-link; ln -s ../own/link z-link; ln -s /tmp/own/a-link/file z-file"
    container = await alice.runs(f"{TREE}; {links}")
    await alice.end(container)
    paths = [
        *SPELLINGS,
        "/tmp/own/a-link/",
        "/tmp/own/z-link/below/other",
        "/tmp/own/z-link",
        "/tmp/own/z-file",
        "/bin/[[",
    ]
    for path in paths:
        own = await alice.get(container, path)
        engines = await alice.both.root.ask("GET", f"/containers/{container}/archive", path=path)
        assert (own.status, engines.status) == (200, 200), (path, own)
        assert listed(own.body) == listed(engines.body), path
        told, engine_told = (json.loads(base64.b64decode(each.headers[STAT])) for each in (own, engines))
        for of_the_disk in ("mtime", *(["size"] if told["mode"] >> 31 else [])):
            told.pop(of_the_disk), engine_told.pop(of_the_disk)
        assert told == engine_told
    await alice.cp("-L", f"{container}:/tmp/own/z-file", "back")
    assert (alice.home / "back").read_text() == "one\n"
    for path in MISSING:
        reply = await alice.get(container, path)
        assert (reply.status, reply.message) == (
            404,
            f"Could not find the file {path} in container {container}",
        )


async def test_after_the_end_no_volume_is_copied_out(alice: Copier) -> None:
    container = await alice.runs(Mounts=[{"Type": "volume", "Target": "/tmp/volume"}])
    await alice.end(container)
    for path in ("/tmp/volume", "/tmp", "/"):
        reply = await alice.get(container, path)
        assert (reply.status, "/tmp/volume cannot be read while it does not run" in reply.message) == (
            403,
            True,
        )
    assert (await alice.get(container, "/etc/passwd")).status == 200
