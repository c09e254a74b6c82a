"""What the page shows in these tests: one machine with four simulated GPUs, two users and an administrator.

Alice runs a quarter and a job that writes, Bob runs a whole GPU and waits for all four, somebody's process is on a
GPU without a lease, one GPU is drained, and some leases are over. A minute of its history takes a second.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.bed import parts
from tests.node.daemon import OWN_LABEL, DaemonProcess, Json, make_directory, wait_until

ALICE: Final = 33
"""``www-data`` of Debian: jobs are for users with accounts only."""
BOB: Final = 5
"""``games``."""
ADMIN: Final = 0
SCRIPT: Final = "<script>alert(1)</script>"
MARKUP: Final = '"><img src=x onerror=alert(2)>'
RLO: Final = "\N{RIGHT-TO-LEFT OVERRIDE}"
LINES: Final = (SCRIPT, MARKUP, f"{RLO}txet", "x" * 3000, "the last line")
"""What the job writes."""
QUICK: Final = (sys.executable, "-m", "tests.node.quick_history")
ENVIRONMENT: Final = {"GPUSHARED_GPUS__SAMPLE_SECONDS": "0.5"}


@dataclass(frozen=True)
class BusyMachine:
    """A machine with leases and jobs of users; its containers are named with its ``token``."""

    daemon: DaemonProcess
    token: str
    trainer: Json
    service: Json
    whole: Json
    writer: str
    waiter: str
    done: Json

    def told(self, *words: str, uid: int = ADMIN) -> Json:
        """What a command answers as JSON, for this user."""
        done = self.daemon.gpushare(*words, "-o", "json", uid=uid)
        assert done.returncode == 0, done.stderr
        found: Json = json.loads(done.stdout)
        return found

    def table(self, *words: str, columns: Sequence[str], uid: int = ADMIN) -> list[dict[str, str]]:
        """What a command's table has in these columns, for this user."""
        chosen = f"columns={','.join(columns)}"
        done = self.daemon.gpushare(*words, "-o", chosen, "--no-headers", uid=uid)
        assert done.returncode == 0, done.stderr
        rows = [re.split(r"\s{2,}", line.strip()) for line in done.stdout.splitlines()]
        return [dict(zip(columns, row, strict=True)) for row in rows]


def start_daemon() -> DaemonProcess:
    daemon = DaemonProcess(
        make_directory(),
        simulate="h100:4",
        engine=str(parts.PLAIN_SOCKET),
        command=QUICK,
        environment=ENVIRONMENT,
    )
    daemon.start()
    return daemon


def play(daemon: DaemonProcess) -> BusyMachine:
    """Let users do what they do. The commands are real, and so are the containers; only the GPUs are played."""
    token = daemon.directory.name
    done = daemon.hold("0.5", "--name", f"done-{token}", uid=ALICE, command=["sh", "-c", "sleep 2; exit 3"])
    _use(daemon, done, "20g", "70%")
    trainer = _run(daemon, ALICE, "trainer", "--gpu", "0.25", "--time", "2h")
    service = _run(daemon, ALICE, "service", "--gpu-memory", "8g", "--gpu-compute", "30%", "--class", "infer")
    whole = _run(daemon, BOB, "whole", "--gpu", "1", "--time", "1h")
    _use(daemon, trainer, "12g", "60%")
    _use(daemon, service, "2g", "0%")
    _use(daemon, whole, "40g", "35%")
    daemon.gpushare_says("simulate", "--gpu", "2", "--pid", str(os.getpid()), "--memory", "3g")
    daemon.gpushare_says("simulate", "--gpu", "0", "--utilization", "60%")
    daemon.gpushare_says("drain", "3", "--reason", f"new fan {MARKUP}")
    writer = submit(daemon, ALICE, "--gpu", "0.1", "--name", f"writer-{token}", command=_written())
    waiter = submit(daemon, BOB, "--gpu", "4", "--name", f"waiter-{token}", command=["true"])
    daemon.wait_lease(done["id"], "ended")
    wait_until(lambda: _job(daemon, writer)["state"] == "running", "the job runs")
    wait_until(lambda: _job(daemon, waiter)["state"] == "queued", "the other job waits")
    return BusyMachine(daemon, token, trainer, service, whole, writer, waiter, done)


def _written() -> list[str]:
    said = "\n".join(f"printf '%s\\n' '{line}'" for line in LINES)
    return ["sh", "-c", f"{said}\nexec sleep 1000"]


def _run(daemon: DaemonProcess, uid: int, name: str, *options: str) -> Json:
    """``gpushare run -d`` as a user; the lease."""
    container = f"{name}-{daemon.directory.name}"
    words = ["run", "-d", *options, *daemon.container_options("--name", container), "sleep", "1000"]
    done = daemon.gpushare(*words, uid=uid)
    assert done.returncode == 0, done.stderr
    lease = next(one for one in daemon.leases().values() if one["container_name"] == container)
    return daemon.wait_lease(lease["id"], "active")


def submit(daemon: DaemonProcess, uid: int, *options: str, command: list[str]) -> str:
    """``gpushare submit`` as a user; the job's id."""
    mark = ["--network", "none", "--label", f"{OWN_LABEL}={daemon.directory.name}"]
    done = daemon.gpushare("submit", *options, *mark, parts.BUSYBOX_IMAGE, *command, uid=uid)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _job(daemon: DaemonProcess, job: str) -> Json:
    return daemon.call("Jobs/Get", {"job_id": job})


def _use(daemon: DaemonProcess, lease: Json, memory: str, utilization: str) -> None:
    daemon.gpushare_says(
        *("simulate", "--gpu", str(lease["grants"][0]["gpu_index"])),
        *("--container", lease["container_name"], "--memory", memory),
        *("--process-utilization", utilization),
    )


def main() -> None:
    """Play it for a person who looks at the page, until they press Enter."""
    daemon = start_daemon()
    try:
        began = time.monotonic()
        play(daemon)
        sys.stderr.write(f"GPUSHARE_HOST=unix://{daemon.socket} after {time.monotonic() - began:.1f} s\n")
        sys.stdin.readline()
    finally:
        daemon.dispose()


if __name__ == "__main__":
    main()
