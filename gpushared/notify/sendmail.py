"""Send a notification as a mail, by the program ``sendmail`` that every mail server brings along."""

from __future__ import annotations

import os
import shutil
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate
from typing import Any

from gpushared.daemon.programs import run_program
from gpushared.notify.attempt import Attempt, Delivered, GivenUp, TryAgain

FOLDERS = "/usr/sbin:/usr/lib"
"""The Filesystem Hierarchy Standard names both."""
SECONDS = 60.0
_REFUSED = frozenset({64, 65, 67, 68})
"""Exit codes of sysexits.h after which the same mail fails again: usage, data, no such user, no such host."""
_POLICY = SMTP.clone(linesep="\n", cte_type="7bit")
_ROWS = (
    ("lease", "Lease"),
    ("job", "Job"),
    ("node", "Node"),
    ("owner", "Owner"),
    ("project", "Project"),
    ("class", "Class"),
    ("container", "Container"),
    ("image", "Image"),
    ("outcome", "Outcome"),
    ("exit_code", "Exit code"),
)


def find_sendmail(configured: str) -> str | None:
    """Return the program that takes mails, or None."""
    if configured:
        return configured if os.access(configured, os.X_OK) else None
    return shutil.which("sendmail", path=f"{FOLDERS}:{os.environ.get('PATH', '')}")


def message_of(fields: dict[str, Any], address: str, sender: str) -> EmailMessage:
    """Return the mail of a notification. Headers are encoded, and can hold no line of their own."""
    mail = EmailMessage(policy=_POLICY)
    mail["To"] = _address(address)
    if sender:
        mail["From"] = _address(sender)
    subject = _one_line(f"[gpushared {fields['from']}] {fields['text']}")
    # EmailMessage decodes RFC 2047's encoded words, such as =?utf-8?q?x?=, and a decoded one may hold a line.
    mail["Subject"] = subject.replace("=?", "= ?")
    mail["Date"] = formatdate(fields["at"])
    # A mail that is sent again has the same id, by which mail programs drop it.
    mail["Message-ID"] = f"<{fields['id']}@gpushared.invalid>"
    mail["Auto-Submitted"] = "auto-generated"
    mail["X-Gpushare-Id"] = fields["id"]
    rows = [f"{label}: {_one_line(str(fields[name]))}" for name, label in _ROWS if fields[name] is not None]
    gpus = [f"GPU {part['gpu']}: {part['memory_bytes'] / 2**30:.1f} GiB" for part in fields["gpus"]]
    hint = [f"`gpushare why {fields['lease']}` tells its story."] if fields["lease"] else []
    simulated = ["The GPUs are simulated."] if fields["simulated"] else []
    lines = [f"- {_one_line(line)}" for line in fields["lines"]]
    paragraphs = [[f"{_one_line(fields['text'])}."], lines, [*rows, *gpus], [*hint, *simulated]]
    mail.set_content("\n\n".join("\n".join(lines) for lines in paragraphs if lines) + "\n")
    return mail


async def send(program: str, mail: EmailMessage, address: str) -> Attempt:
    """Hand a mail for one address to the program, which reads no recipients from the mail's headers."""
    command = [program, "-oi", "--", address]
    try:
        result = await run_program(command, seconds=SECONDS, text=mail.as_string(), with_errors=True, cwd="/")
    except TimeoutError:
        return TryAgain(f"{program} does not end within {SECONDS:.0f} s")
    except OSError as error:
        return TryAgain(f"{program} cannot be run: {error.strerror}")
    if result.status == 0:
        return Delivered()
    lines = result.output.strip().splitlines()
    why = f"{program} ended with {result.status}" + (f": {_one_line(lines[-1])[:200]}" if lines else "")
    return GivenUp(why) if result.status in _REFUSED else TryAgain(why)


def _address(text: str) -> Address:
    name, _, domain = text.partition("@")
    return Address(username=name, domain=domain)


def _one_line(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
