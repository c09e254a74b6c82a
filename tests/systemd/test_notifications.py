"""Notifications under the unit's hardening: a mail server's queue can be written, and the command is the user's."""

from __future__ import annotations

from tests.bed.parts import BUSYBOX_IMAGE
from tests.systemd.node import COMMANDS, CONFIG, Node

NOBODY = 65534


def test_mail_and_the_users_command_work_under_the_unit(machine: Node) -> None:
    machine.write("/usr/local/sbin/sendmail", "#!/bin/sh\ncat >>/var/spool/mails\n")
    machine.write("/usr/local/bin/tell", "#!/bin/sh\ncat >/run/told/$(id -u)-$(id -g)\n")
    machine.check("chmod", "755", "/usr/local/sbin/sendmail", "/usr/local/bin/tell")
    machine.check("install", "-d", "-m", "1777", "/run/told")
    settings = (
        'sendmail = "/usr/local/sbin/sendmail"\ncommand = ["/usr/local/bin/tell"]\nevents = ["granted"]\n'
    )
    machine.shell(f"printf '[notify]\\n%s' '{settings}' >>{CONFIG}")
    machine.check("systemctl", "start", "gpushared")
    as_nobody = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    run = (
        f"{COMMANDS}/gpushare",
        "run",
        "--detach",
        "--gpu",
        "0.25",
        "--notify",
        "mail",
        "--network",
        "none",
    )
    machine.check(*as_nobody, *run, BUSYBOX_IMAGE, "true")
    told = f"/run/told/{NOBODY}-{NOBODY}"
    machine.wait_until("the command ran", lambda: machine.machine.run("test", "-s", told).returncode == 0)
    machine.wait_until(
        "a mail was sent",
        lambda: "To: nobody" in machine.machine.run("cat", "/var/spool/mails").stdout,
    )
    assert '"kind":"granted"' in machine.check("cat", told)
    machine.check(
        "rm", "-r", "/usr/local/sbin/sendmail", "/usr/local/bin/tell", "/run/told", "/var/spool/mails"
    )
