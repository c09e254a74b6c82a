"""The coordinator as a process: killed at any write, with its store lost, or an old copy put back."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpushared.pool.coordinator.app import SOCKET_NAME
from gpushared.pool.coordinator.stores import STORE_NAME
from gpushared.pool.trust.authority import Authority
from gpushared.pool.trust.trust import CA_FOLDER
from tests.disks import disk, fill
from tests.node import fork_server
from tests.node.daemon import make_directory
from tests.pool import json_calls
from tests.pool.json_calls import BUSYBOX, RefusedError
from tests.pool.processes import GPUSHARED_POOL, CoordinatorProcess

PROGRAM = Path(__file__).with_name("dying_coordinator.py")
SECONDS = 30


class GoneError(Exception):
    """The coordinator did not answer: it is dead."""


class Daemon:
    """One life of a coordinator."""

    def __init__(self, state: Path, runtime: Path, number: int, when: str) -> None:
        self.socket = runtime / SOCKET_NAME
        words = [sys.executable, str(PROGRAM), str(state), str(runtime), str(number), when]
        self._log = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - it is closed by dispose
        self.process = fork_server.start(words, os.environ, self._log)

    def call(self, call: str, **fields: Any) -> dict[str, Any]:
        """Raises GoneError, RefusedError."""
        try:
            return json_calls.call(self.socket, call, **fields)[0]
        except (OSError, http.client.HTTPException) as error:
            raise GoneError from error

    def submit(self, request_id: str) -> str:
        answer = self.call("Jobs/Submit", request_id=request_id, **BUSYBOX)
        (job,) = answer["job_ids"]
        return str(job)

    def jobs(self) -> dict[str, str]:
        """State by id, of everybody's."""
        listed = self.call("Jobs/List", ended=True, all=True, limit=1000)
        return {job["id"]: job["state"] for job in listed["jobs"]}

    def wait_until_served(self) -> None:
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                self.call("PoolAdmin/Status")
            except GoneError:
                assert self.process.poll() is None, self.text()
                assert time.monotonic() < deadline
                time.sleep(0.02)
            else:
                return

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(SECONDS)

    def stop(self) -> str:
        """Its log, after a clean end."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(SECONDS)
        assert status == 0, self.text()
        return self.text()

    def text(self) -> str:
        """Its log up to now."""
        self._log.seek(0)
        return self._log.read().decode()

    def dispose(self) -> None:
        if self.process.poll() is None:
            self.kill()
        self._log.close()


class CoordinatorFolder:
    """The folder of a coordinator, which has several lives."""

    def __init__(self, folder: Path, runtime: Path) -> None:
        self.state = folder
        self.runtime = runtime
        Authority.create(folder / CA_FOLDER, "lab", time.time())

    @contextmanager
    def life(self, number: int = 0, when: str = "before", runtime: Path | None = None) -> Iterator[Daemon]:
        """A coordinator that dies at that write, or at the end of the block."""
        daemon = Daemon(self.state, runtime or self.runtime, number, when)
        try:
            daemon.wait_until_served()
            yield daemon
        finally:
            daemon.dispose()

    def store(self) -> list[Path]:
        return list(self.state.glob(f"{STORE_NAME}*"))


@pytest.fixture
def folder(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> CoordinatorFolder:
    return CoordinatorFolder(tmp_path / "state", tmp_path_factory.mktemp("r"))


def submit_until_it_dies(daemon: Daemon, prefix: str) -> tuple[dict[str, str], str]:
    """The jobs that were answered by their requests, and the request that was not."""
    answered: dict[str, str] = {}
    for at in range(1000):
        request = f"{prefix}-{at}"
        try:
            answered[request] = daemon.submit(request)
        except GoneError:
            return answered, request
    raise AssertionError("it never died")


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_each_write_it_loses_nothing_that_it_said_it_has(
    folder: CoordinatorFolder, when: str
) -> None:
    """And what it did not say may be asked again without becoming two."""
    answered: dict[str, str] = {}
    asked_last = ""
    epoch = unanswered = 0
    for number in (1, 2, 3, 4, 0):
        with folder.life(number, when) as daemon:
            before, epoch = epoch, int(daemon.call("PoolAdmin/Status")["epoch"])
            assert epoch > before
            known = daemon.jobs()
            assert set(answered.values()) <= known.keys()
            assert len(known) == len(answered) + unanswered
            if number:
                more, asked_last = submit_until_it_dies(daemon, f"{when}-{number}")
                answered |= more
                assert daemon.process.wait(SECONDS) == -signal.SIGKILL
                unanswered += when == "after"
            else:
                again = daemon.submit(asked_last)
                assert daemon.submit(asked_last) == again
                assert len(daemon.jobs()) == len(known) + (when == "before")


def test_killed_while_many_submit_it_has_all_that_were_answered(folder: CoordinatorFolder) -> None:
    told: list[str] = []
    for life in range(2):
        with folder.life() as daemon, ThreadPoolExecutor(8) as many:
            calls = [many.submit(submit_until_it_dies, daemon, f"{life}-{who}") for who in range(8)]
            deadline = time.monotonic() + SECONDS
            while len(daemon.jobs()) < 40 * (life + 1):
                assert time.monotonic() < deadline
            daemon.kill()
            told += [job for call in calls for job in call.result()[0].values()]
    with folder.life() as daemon:
        assert set(told) <= daemon.jobs().keys()


def test_a_clean_end_keeps_everything(folder: CoordinatorFolder) -> None:
    with folder.life() as daemon:
        job = daemon.submit("one")
        daemon.call("Jobs/Cancel", job_id=job)
        held = daemon.submit("two")
        daemon.stop()
    with folder.life() as daemon:
        assert daemon.jobs() == {job: "cancelled", held: "queued"}
        assert daemon.call("PoolAdmin/Status")["phase"] == "normal"


def test_an_old_copy_of_the_store_is_noticed_at_the_start(folder: CoordinatorFolder, tmp_path: Path) -> None:
    """Beside the certificates stands how far the store was."""
    with folder.life() as daemon:
        daemon.submit("one")
        daemon.stop()
    shutil.copy(folder.state / STORE_NAME, tmp_path / "copy")
    with folder.life() as daemon:
        lost = daemon.submit("two")
        status = daemon.call("PoolAdmin/Status")
        daemon.stop()
    for file in folder.store():
        file.unlink()
    shutil.copy(tmp_path / "copy", folder.state / STORE_NAME)
    with folder.life() as daemon:
        again = daemon.call("PoolAdmin/Status")
        assert again["phase"] == "recovering"
        assert int(again["epoch"]) > int(status["epoch"])
        assert lost not in daemon.jobs()
    with folder.life() as daemon:
        assert daemon.call("PoolAdmin/Status")["phase"] == "recovering"


def test_a_store_from_before_an_earlier_loss_is_noticed_though_more_was_written_in_it(
    folder: CoordinatorFolder, tmp_path: Path
) -> None:
    """The one after the loss counts its changes from 1; also where it dies before it has said so itself."""
    with folder.life() as daemon:
        for number in range(20):
            daemon.submit(str(number))
        daemon.stop()
    before = tmp_path / "before the loss"
    shutil.copy(folder.state / STORE_NAME, before)
    for file in folder.store():
        file.unlink()
    with folder.life() as daemon:
        fewer = int(daemon.call("PoolAdmin/Status")["revision"])
        daemon.stop()
    for file in folder.store():
        file.unlink()
    shutil.copy(before, folder.state / STORE_NAME)
    dies = Daemon(folder.state, folder.runtime, 1, "before")
    assert dies.process.wait(SECONDS) == -signal.SIGKILL
    dies.dispose()
    with folder.life() as daemon:
        status = daemon.call("PoolAdmin/Status")
    assert int(status["revision"]) > fewer
    assert status["phase"] == "recovering"


def test_a_lost_store_is_noticed_at_the_start(folder: CoordinatorFolder) -> None:
    with folder.life() as daemon:
        daemon.submit("one")
        status = daemon.call("PoolAdmin/Status")
        daemon.stop()
    for file in folder.store():
        file.unlink()
    with folder.life() as daemon:
        again = daemon.call("PoolAdmin/Status")
        assert again["phase"] == "recovering"
        assert int(again["epoch"]) > int(status["epoch"])


def test_a_second_coordinator_on_the_same_store_is_refused_and_the_first_goes_on(
    folder: CoordinatorFolder, tmp_path: Path
) -> None:
    with folder.life() as first:
        second = Daemon(folder.state, tmp_path / "r2", 0, "before")
        assert second.process.wait(SECONDS) != 0
        text = second.text()
        second.dispose()
        assert f"another coordinator leads with {folder.state}/{STORE_NAME}" in text
        assert f"(process {first.process.pid})" in text
        first.submit("one")


def test_a_store_that_somebody_else_leads_ends_the_process(folder: CoordinatorFolder, tmp_path: Path) -> None:
    """As with a lock that is worth nothing: the store's epoch is what counts."""
    with folder.life() as first:
        first.submit("one")
        (folder.state / f"{STORE_NAME}.lock").unlink()
        with folder.life(runtime=tmp_path / "r2") as second:
            second.submit("two")
            with pytest.raises((GoneError, RefusedError)):
                first.submit("three")
            assert first.process.wait(SECONDS) != 0
            assert "must not act any more" in first.text()
            assert len(second.jobs()) == 2


@pytest.fixture
def larger_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two MiB: the store's files need as much before there is anything in them."""
    with disk(tmp_path, 2) as folder:
        yield folder


def submit_until_refused(daemon: Daemon) -> tuple[list[str], str]:
    """The store's files have room for some; those, and what was said then."""
    kept: list[str] = []
    for at in range(200):
        try:
            kept.append(daemon.submit(f"last-{at}"))
        except RefusedError as refused:
            return kept, str(refused)
    raise AssertionError("it never was refused")


def test_with_a_full_disk_everything_is_still_shown_and_the_next_write_that_works_goes_on(
    larger_disk: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = CoordinatorFolder(larger_disk / "state", tmp_path_factory.mktemp("r"))
    with folder.life() as daemon:
        job = daemon.submit("before")
        ballast = fill(larger_disk)
        more, refusal = submit_until_refused(daemon)
        kept = {job, *more}
        assert "the disk is full" in refusal
        assert "goes on by itself" in refusal
        assert daemon.jobs().keys() == kept
        assert "the disk is full" in " ".join(daemon.call("PoolAdmin/Status")["troubles"])
        ballast.unlink()
        deadline = time.monotonic() + SECONDS
        while daemon.call("PoolAdmin/Status")["troubles"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        kept.add(daemon.submit("after"))
        daemon.stop()
    with folder.life() as daemon:
        assert daemon.jobs().keys() == kept


def test_a_coordinator_that_starts_on_a_full_disk_ends_with_a_sentence_and_starts_once_there_is_room(
    larger_disk: Path,
) -> None:
    """Its unit starts it again and again; nodes and what runs there go on."""
    coordinator = CoordinatorProcess(make_directory())
    try:
        coordinator.start()
        coordinator.end(signal.SIGTERM)
        state = coordinator.directory / "s"
        shutil.move(state, larger_disk / "state")
        state.symlink_to(larger_disk / "state")
        ballast = fill(larger_disk)
        words = [str(GPUSHARED_POOL), "--config", str(coordinator.directory / "pool.toml"), "--allow-root"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert done.returncode == 125
        *_, sentence, hint = done.stderr.splitlines()
        assert sentence.startswith("gpushared-pool: the store ")
        assert "the disk is full" in sentence
        assert hint == "  hint: free some space; the coordinator goes on by itself then"
        assert "Traceback" not in done.stderr
        ballast.unlink()
        coordinator.start()
    finally:
        coordinator.dispose()
