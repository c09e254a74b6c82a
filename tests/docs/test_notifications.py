"""The pages on notifications: all events are there, and the receiver that they show checks what the daemon signs."""

from __future__ import annotations

import re
import select
import subprocess
import sys
import time
from pathlib import Path

from gpushared.domain.model.notification import NotificationKind
from gpushared.notify.attempt import Delivered, GivenUp
from gpushared.notify.payload import Origin, payload_of, to_text
from gpushared.notify.webhook import post
from tests.notify.receivers import Receiver, event

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = (DOCS / "reference" / "notifications.md").read_text(encoding="utf-8")
HOW_TO = (DOCS / "how-to" / "notify.md").read_text(encoding="utf-8")


def test_exactly_the_events_that_exist_are_explained() -> None:
    table = REFERENCE.partition("## Events")[2].partition("## ")[0]
    assert re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE) == [str(kind) for kind in NotificationKind]


def test_exactly_the_fields_that_exist_are_explained() -> None:
    table = REFERENCE.partition("## The JSON")[2].partition("## ")[0]
    rows = [
        re.findall(r"`(\w+)`", line.split("|")[1]) for line in table.splitlines() if line.startswith("| `")
    ]
    said = [name for row in rows for name in row]
    assert said == list(payload_of(event(), Origin("x", lambda: False, lambda at: at)))


async def test_the_receiver_on_the_page_takes_what_is_signed_and_refuses_the_rest(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", HOW_TO, re.DOTALL)
    async with Receiver().serving() as free:
        pass
    (tmp_path / "webhook.key").write_text("c2VjcmV0\n")
    (tmp_path / "webhook.key").chmod(0o600)
    (tmp_path / "other.key").write_text("b3RoZXI=\n")
    (tmp_path / "other.key").chmod(0o600)
    script = tmp_path / "receiver.py"
    start = 'http.server.HTTPServer(("", 8000), Hook)'
    assert start in code
    ready = f"server = {start.replace('8000', str(free.port))}\nprint('ready')\nserver"
    script.write_text(code.replace(start, ready))
    with subprocess.Popen(  # noqa: ASYNC220 - it starts at once
        [sys.executable, "-u", str(script)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            fields = payload_of(event(), Origin("gpu1", lambda: False, lambda at: at))
            words = (free.url(), to_text(fields), fields["id"])
            now = int(time.time())
            assert await post(*words, now, str(tmp_path / "webhook.key")) == Delivered()
            for at, key in ((now, "other.key"), (now - 600, "webhook.key")):
                assert isinstance(await post(*words, at, str(tmp_path / key)), GivenUp)
            assert select.select([process.stdout], [], [], 10)[0]
            assert process.stdout.readline() == f"{fields['id']} l-1 of ada ended: exit code 0\n"
        finally:
            process.kill()
