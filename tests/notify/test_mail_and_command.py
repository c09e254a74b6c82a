"""Mails by a program that is held to sendmail's conventions, and the site's command as the user it concerns."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import sys
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from typing import Any

import pytest

from gpushared.config.notify import NotifyConfig, is_address
from gpushared.domain.leases.project_settings import is_user_name
from gpushared.domain.model.notification import NotificationKind
from gpushared.notify import user_command
from gpushared.notify.attempt import Delivered, GivenUp, TryAgain
from gpushared.notify.payload import Origin, payload_of
from gpushared.notify.sendmail import find_sendmail, message_of, send
from tests.notify.receivers import OutboxWorld, event

SENDMAIL = """\
import re, sys
data = sys.stdin.buffer.read()
assert sys.argv[1:-1] == ["-oi", "--"], "with -t a header could add a recipient"
assert b"To: " + sys.argv[-1].encode() + b"\\n" in data
assert data.isascii() and b"\\r" not in data, "a program takes lines of the machine's own kind"
head, _, body = data.partition(b"\\n\\n")
for line in head.split(b"\\n"):
    assert re.match(rb"[!-9;-~]+: |[ \\t]", line), line
    assert len(line) < 998
assert head.count(b"To: ") == 1
open({kept!r}, "ab").write(data + b"\\n\\0")
sys.exit({status})
"""


def make_sendmail(folder: Path, *, status: int = 0) -> str:
    """A program that keeps each mail, and refuses one that is not as sendmail(8) wants it."""
    script, program = folder / "sendmail.py", folder / "sendmail"
    script.write_text(SENDMAIL.format(kept=str(folder / "mails"), status=status))
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -I {script} "$@"\n')
    program.chmod(0o755)
    return str(program)


def mails(folder: Path) -> list[EmailMessage]:
    kept = folder / "mails"
    parts = kept.read_bytes().split(b"\0")[:-1] if kept.exists() else []
    return [message_from_bytes(part, policy=default) for part in parts]


def fields(**changes: Any) -> dict[str, Any]:
    return payload_of(event(), Origin("gpu1", lambda: False, lambda at: at)) | changes


async def test_a_run_that_asked_for_mail_has_its_owner_told(tmp_path: Path) -> None:
    site = NotifyConfig(
        sendmail=make_sendmail(tmp_path), mail_domain="lab.example", mail_from="gpu@lab.example"
    )
    world = OutboxWorld(tmp_path / "notifications.db", site)
    async with world.running() as outbox:
        outbox.add([event(targets=("mail",)), event(2)])
        await world.until(lambda: len(mails(tmp_path)) == 1)
    (mail,) = mails(tmp_path)
    assert (mail["To"], mail["From"]) == ("ada@lab.example", "gpu@lab.example")
    assert mail["Subject"] == "[gpushared gpu1] l-1 of ada ended: exit code 0"
    assert mail["Auto-Submitted"] == "auto-generated"
    assert mail["Message-ID"] == f"<{mail['X-Gpushare-Id']}@gpushared.invalid>"
    text = mail.get_content()
    for words in ("Lease: l-1", "Container: my-box", "Exit code: 0", "`gpushare why l-1`", "are simulated"):
        assert words in text


async def test_the_site_gets_mail_of_what_its_people_must_mend_and_no_names_of_containers(
    tmp_path: Path,
) -> None:
    world = OutboxWorld(
        tmp_path / "notifications.db", NotifyConfig(sendmail=make_sendmail(tmp_path), mail=("root",))
    )
    async with world.running() as outbox:
        outbox.add([event(1), event(2, NotificationKind.GPU_UNHEALTHY, uid=None)])
        await world.until(lambda: len(mails(tmp_path)) == 1)
    (mail,) = mails(tmp_path)
    assert mail["To"] == "root"
    assert "my-box" not in mail.get_content()


async def test_no_word_of_a_user_makes_a_header_or_a_line_of_its_own(tmp_path: Path) -> None:
    evil = "x\nBcc: all@lab.example\r\n\r\n.\nünï"
    mail = message_of(fields(text=evil, container=evil, image=evil, project=evil), "ada", "")
    assert await send(make_sendmail(tmp_path), mail, "ada") == Delivered()
    (got,) = mails(tmp_path)
    assert got["Bcc"] is None
    assert got["To"] == "ada"
    assert not any(line.startswith(("Bcc", ".")) for line in got.get_content().splitlines())


ENCODED = (
    "=?utf-8?q?x=0ABcc:_evil@evil.example=0A=0Abody?=",
    "=?ascii?b?eApCY2M6IGV2aWxAZXZpbC5leGFtcGxlCgpib2R5?=",
    "==??utf-8?q?x=0ABcc:_evil@evil.example?=",
    "é" * 90 + " =?utf-8?q?x=0ABcc:_evil@evil.example?= " + "é" * 50,
)


@pytest.mark.parametrize("word", ENCODED)
@pytest.mark.parametrize("name", ["text", "from"])
def test_no_encoded_word_makes_a_header(name: str, word: str) -> None:
    head, _, _ = message_of(fields(**{name: word}), "ada", "").as_string().partition("\n\n")
    names = [line.partition(":")[0] for line in head.splitlines() if not line.startswith(" ")]
    assert len(names) == len(set(names))
    assert "Date" in names
    assert "Bcc" not in names


@pytest.mark.parametrize("word", ENCODED[:3])
def test_no_name_of_a_user_holds_an_encoded_word(word: str) -> None:
    assert not is_user_name(word)


@pytest.mark.parametrize(("status", "kind"), [(75, TryAgain), (1, TryAgain), (67, GivenUp), (65, GivenUp)])
async def test_an_exit_code_of_sendmail_says_if_the_mail_is_tried_again(
    tmp_path: Path, status: int, kind: type
) -> None:
    mail = message_of(fields(), "ada", "")
    assert isinstance(await send(make_sendmail(tmp_path, status=status), mail, "ada"), kind)


async def test_a_program_that_is_not_there_is_tried_again(tmp_path: Path) -> None:
    assert isinstance(await send(str(tmp_path / "none"), message_of(fields(), "ada", ""), "ada"), TryAgain)
    assert find_sendmail(str(tmp_path / "none")) is None


@pytest.mark.parametrize("text", ["", "-f", "a b", "a,b", "a@b@c", "a\nb", "<a@b>", "@b", "|cat"])
def test_an_address_that_needs_care_is_no_address(text: str) -> None:
    assert not is_address(text)


async def test_the_owner_with_such_a_name_gets_no_mail(tmp_path: Path) -> None:
    world = OutboxWorld(
        tmp_path / "notifications.db", NotifyConfig(sendmail=make_sendmail(tmp_path), mail=("root",))
    )
    async with world.running() as outbox:
        outbox.add([event(1, owner="-bs", targets=("mail",))])
        outbox.add([event(2, NotificationKind.GPU_UNHEALTHY, uid=None)])
        await world.until(lambda: len(mails(tmp_path)) == 1)
    assert [mail["To"] for mail in mails(tmp_path)] == ["root"]


# --- the command -------------------------------------------------------------------------------------------

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
NOBODY = pwd.getpwnam("nobody")
TELL = """\
import json, os, resource, sys
data = json.load(sys.stdin)
kept = dict(
    uid=os.getresuid(), gid=os.getresgid(), groups=os.getgroups(), env=dict(os.environ), cwd=os.getcwd(),
    oom=open("/proc/self/oom_score_adj").read().strip(),
    data=data, core=resource.getrlimit(resource.RLIMIT_CORE)[1], words=sys.argv[1:],
    files=[int(fd) for fd in os.listdir("/proc/self/fd")],
)
open({kept!r}, "w").write(json.dumps(kept))
print("x" * 10_000_000)
"""


def make_command(tmp_path: Path) -> tuple[tuple[str, ...], Path]:
    """A command that writes down as whom it ran, in a folder that its user may write to."""
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    place, script = tmp_path / "of-nobody", tmp_path / "tell.py"
    place.mkdir()
    os.chown(place, NOBODY.pw_uid, NOBODY.pw_gid)
    script.write_text(TELL.format(kept=str(place / "kept")))
    return ("/usr/bin/python3", str(script), "$HOME; id"), place / "kept"


@as_root
@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="root's Python is not for other users")
async def test_the_command_runs_as_the_user_whom_the_event_concerns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_DAEMON", "1")
    words, kept = make_command(tmp_path)
    world = OutboxWorld(tmp_path / "notifications.db", NotifyConfig(command=words))
    async with world.running() as outbox:
        outbox.add([event(uid=NOBODY.pw_uid, owner="nobody")])
        await world.until(kept.exists)
        await world.until(lambda: kept.read_text().endswith("}"))
    found = json.loads(kept.read_text())
    assert found["uid"] == [NOBODY.pw_uid] * 3
    assert found["gid"] == [NOBODY.pw_gid] * 3
    assert 0 not in found["groups"]
    assert found["words"] == ["$HOME; id"], "no shell reads the words"
    assert found["env"].keys() - {"LC_CTYPE"} == {"PATH", "HOME", "USER", "LOGNAME", "LANG"}
    assert found["env"]["USER"] == "nobody"
    assert (found["cwd"], found["core"], found["oom"]) == ("/", 0, "0")
    assert max(found["files"]) <= 4, "no file of the daemon is open in it"
    assert found["data"]["container"] == "my-box"


@as_root
async def test_a_command_that_does_not_end_is_killed_with_its_children(tmp_path: Path) -> None:
    words = ("/bin/sh", "-c", "sleep 1000 & sleep 1000")
    attempt = await user_command.run(words, NOBODY.pw_uid, "{}", seconds=0.2)
    assert attempt == GivenUp("it does not end within 0.2 s")


@as_root
async def test_what_a_command_leaves_behind_is_killed_or_counts_for_its_user(tmp_path: Path) -> None:
    joined, left = tmp_path / "cgroup.procs", tmp_path / "left"
    left.touch()
    left.chmod(0o666)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    words = ("/bin/sh", "-c", f"sleep 1000 & echo $! >{left}")
    attempt = await user_command.run(words, NOBODY.pw_uid, "{}", seconds=10, cgroups=[str(joined)])
    assert attempt == Delivered()
    assert joined.read_text() == "0\n", "the process that writes joins"
    state = Path("/proc") / left.read_text().strip() / "stat"
    async with asyncio.timeout(10):
        while state.exists() and state.read_text().split()[2] != "Z":  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # a process that is killed ends a moment later


@as_root
async def test_a_command_that_cannot_join_its_users_cgroups_is_run_later(tmp_path: Path) -> None:
    cgroups = [str(tmp_path / "none" / "cgroup.procs")]
    attempt = await user_command.run(("/bin/true",), NOBODY.pw_uid, "{}", seconds=10, cgroups=cgroups)
    assert isinstance(attempt, TryAgain)


@as_root
@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("/bin/false",), GivenUp),
        (("/nonexistent",), GivenUp),
        (("/bin/sh", "-c", "exit 75"), TryAgain),
        (("/bin/true",), Delivered),
    ],
)
async def test_the_end_of_a_command_says_if_it_is_run_again(words: tuple[str, ...], kind: type) -> None:
    assert isinstance(await user_command.run(words, NOBODY.pw_uid, "{}", seconds=10), kind)


async def test_a_uid_without_an_account_runs_nothing() -> None:
    assert isinstance(await user_command.run(("/bin/true",), 3_999_999_999, "{}", seconds=10), GivenUp)


async def test_an_event_that_concerns_no_user_runs_no_command(tmp_path: Path) -> None:
    world = OutboxWorld(tmp_path / "notifications.db", NotifyConfig(command=("/bin/true",)))
    targets = world.outbox()._routes().targets_of(event(uid=None))
    assert targets == ()
