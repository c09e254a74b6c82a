"""Makes the pictures that README and docs show: the page of a played machine, and ``gpushare top``.

``scripts/pictures`` runs this where the users have names.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from playwright.async_api import async_playwright

from tests.bed import parts
from tests.cli.top.svg import of_a_busy_machine
from tests.node.daemon import OWN_LABEL, DaemonProcess, make_directory, wait_until
from tests.web.browser.busy_machine import ENVIRONMENT, QUICK
from tests.web.browser.conftest import FLAGS
from tests.web.browser.forwarder import Forwarder
from tests.web.browser.visitor import Visitor

SIZE: Final[Any] = {"width": 1280, "height": 800}
IMAGE: Final = "lab/pytorch:2.9"
ADA, BEN, EVE = 62001, 62002, 62003
"""``scripts/pictures`` gives them these names."""
RUNS: Final = (
    # who, name, size, memory used, use
    (ADA, "pretrain-3", ("--gpu", "0.5", "--time", "8h"), "31g", "82%"),
    (BEN, "notebook-ben", ("--gpu", "0.25", "--class", "build"), "9g", "12%"),
    (EVE, "evaluate-7b", ("--gpu", "0.25", "--time", "2h"), "14g", "45%"),
    (EVE, "serve-chat", ("--gpu-memory", "24g", "--gpu-compute", "40%", "--class", "infer"), "21g", "33%"),
    (ADA, "sweep-3", ("--gpu", "0.25", "--time", "1h"), "11g", "71%"),
)
BUSY: Final = ("76%", "64%")


def play(daemon: DaemonProcess) -> None:
    for uid, container, words, memory, use in RUNS:
        _check(daemon, uid, "run", "-d", *words, *_options(daemon, container))
        (lease,) = [one for one in daemon.leases().values() if one["container_name"] == container]
        daemon.wait_lease(lease["id"], "active")
        daemon.gpushare_says(
            *("simulate", "--gpu", str(lease["grants"][0]["gpu_index"]), "--container", container),
            *("--memory", memory, "--process-utilization", use),
        )
    for gpu, use in enumerate(BUSY):
        daemon.gpushare_says("simulate", "--gpu", str(gpu), "--utilization", use)
    _check(daemon, BEN, "submit", "--gpu", "1", "--time", "4h", *_options(daemon, "finetune-13b"))
    wait_until(lambda: any(one["state"] == "queued" for one in daemon.leases().values()), "one waits")


def _options(daemon: DaemonProcess, container: str) -> tuple[str, ...]:
    mark = f"{OWN_LABEL}={daemon.directory.name}"
    return ("--network", "none", "--label", mark, "--name", container, IMAGE, "sleep", "1000")


def _check(daemon: DaemonProcess, uid: int, *words: str) -> None:
    done = daemon.gpushare(*words, uid=uid)
    assert done.returncode == 0, done.stderr


async def photograph(forwarder: Forwarder, folder: Path) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=parts.CHROMIUM, args=list(FLAGS))
        themes: tuple[Any, ...] = ("light", "dark")
        for theme in themes:
            context = await browser.new_context(viewport=SIZE, color_scheme=theme, reduced_motion="reduce")
            visitor = Visitor(context, forwarder)
            visitor.page = await context.new_page()
            await visitor.log_in()
            await visitor.page.screenshot(path=folder / f"page-{theme}.png")
            visitor.check()
        await browser.close()


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "top.svg").write_text(of_a_busy_machine())
    engine = str(parts.PLAIN_SOCKET)
    parts.docker(engine, "tag", parts.BUSYBOX_IMAGE, IMAGE)
    path = {"PATH": f"{parts.MPS_CONTROL.parent}:/usr/sbin:/usr/bin:/sbin:/bin"}
    daemon = DaemonProcess(
        make_directory(), simulate="h100:2", engine=engine, command=QUICK, environment={**ENVIRONMENT, **path}
    )
    try:
        daemon.start()
        play(daemon)
        with tempfile.TemporaryDirectory() as logs:
            forwarder = Forwarder(daemon, ADA, Path(logs) / "web")
            asyncio.run(photograph(forwarder, folder))
            forwarder.end()
    finally:
        daemon.dispose()
        parts.docker(engine, "rmi", IMAGE)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
