"""A pool of real daemons on machines that can fail, and the judgement of what its jobs did."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from gpushared.domain.model.errors import GpushareError
from tests.bed import parts
from tests.bed.cgroups import remove_users, users_of
from tests.pool.failures.daemons import Coordinator, Json, Node
from tests.pool.failures.evidence import WORK, Diary, Run, overlapping
from tests.pool.failures.machine import Cables, Machine, wait_until

GPUS: Final = {"a": "h100:2", "b": "rtx4090:2", "c": "t4:2"}
OVER: Final = {"succeeded", "failed", "cancelled"}
LOST: Final = {"lost": 1.0}
"""A way of a cable on which nothing gets through."""


class World:
    """Three nodes of different GPUs and one coordinator. ``broken``: a test failed, so begin anew."""

    def __init__(self) -> None:
        self.directory = Path(f"/tmp/gpf-{secrets.token_hex(3)}")
        self.directory.mkdir()
        self.directory.chmod(0o755)
        self.diary = Diary(self.directory / "shared")
        self.cables = Cables()
        self.broken = False
        self._machines: list[Machine] = []
        self.submitted: list[str] = []
        self.excused: list[str] = []
        """Jobs of which two copies ran because somebody said what was not so."""
        self.coordinator = Coordinator(self.machine("coordinator", 1), tuple(GPUS))
        self.nodes = {
            name: Node(self.machine(name, 10 + number), gpus, self.diary.directory)
            for number, (name, gpus) in enumerate(GPUS.items())
        }

    def machine(self, name: str, number: int) -> Machine:
        """One more on the switch, which is off and has an empty disk."""
        shutil.rmtree(self.directory / name, ignore_errors=True)
        socket = self.directory / "coordinator/run/gpushared-pool.sock"
        path = {"GPUSHARE_POOL_SOCKET": str(socket)}
        self._machines.append(Machine(self.directory / name, name, number, self.cables, path))
        return self._machines[-1]

    def build(self) -> None:
        self.coordinator.machine.boot()
        self.coordinator.start()
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(Node.boot, self.nodes.values()))
        for node in self.nodes.values():
            node.join(self.coordinator)
        self.wait_ready()

    def dispose(self) -> None:
        for machine in self._machines:
            if machine.is_on:
                machine.cut_power()
        for node in self.nodes.values():
            node.engine.sweep()
            remove_users(users_of(node.state_dir))
        self.cables.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def machines(self) -> list[Machine]:
        return [self.coordinator.machine, *(node.machine for node in self.nodes.values())]

    # --- jobs ------------------------------------------------------------------------------------------

    def submit(self, *options: str, through: str = "a", gpu: str = "1") -> str:
        """A job that works until it is told to end, by the command that a user types; its id."""
        self.submitted.append(self._submit(through, "--pool", "--gpu", gpu, *options))
        return self.submitted[-1]

    def _submit(self, through: str, *options: str) -> str:
        node, shared = self.nodes[through], self.diary.directory
        printed = node.machine.run(
            *("env", f"GPUSHARE_HOST=unix://{node.socket}", "gpushare", "submit", *options),
            *("-v", f"{shared}:{shared}", "-v", f"{node.machine.here}:{node.machine.here}:ro"),
            *(parts.BUSYBOX_IMAGE, "sh", "-c", WORK, str(shared), str(node.machine.here)),
        )
        return printed.stdout.strip()

    def submit_here(self, node: str) -> str:
        """A job for the node itself, which the pool knows nothing of."""
        return self._submit(node, "--gpu", "1")

    def job(self, job: str) -> Json:
        """As the coordinator has it."""
        return self.coordinator.call("Jobs/Get", {"job_id": job})

    def wait_state(self, job: str, *states: str) -> Json:
        found: list[Json] = []

        def look() -> bool:
            try:
                found[:] = [self.job(job)]
            except GpushareError:
                return False
            return found[0]["state"] in states

        try:
            wait_until(look, f"job {job} is {' or '.join(states)}")
        except AssertionError as error:
            error.add_note(f"it is {found}")
            raise
        return found[0]

    def wait_running(self, *jobs: str) -> list[Run]:
        """Until their containers say that they began; the newest run of each."""
        for job in jobs:
            self.wait_state(job, "running")
            wait_until(lambda job=job: self.diary.runs(job), f"job {job} writes")  # type: ignore[misc]
        return [self.diary.runs(job)[-1] for job in jobs]

    def wait_runs(self, job: str, count: int) -> list[Run]:
        """Until so many containers of a job have begun."""
        wait_until(lambda: len(self.diary.runs(job)) >= count, f"job {job} began {count} times")
        return self.diary.runs(job)

    def is_alive(self, job: str) -> bool:
        """Whether a container of it goes on writing."""
        before = [run.last for run in self.diary.runs(job)]
        try:
            wait_until(lambda: [run.last for run in self.diary.runs(job)] != before, "it writes", 1.5)
        except AssertionError:
            return False
        return True

    # --- cables ----------------------------------------------------------------------------------------

    def cut(self, node: str, *ways: str) -> None:
        """Let nothing through: ``up`` from the node, ``down`` to it; both where none is named."""
        lost = dict.fromkeys(ways or ("up", "down"), LOST)
        self.cables.set(node, up=lost.get("up"), down=lost.get("down"))

    def heal(self) -> None:
        for machine in self.machines():
            if machine.is_on:
                self.cables.set(machine.name)

    # --- health ----------------------------------------------------------------------------------------

    def presences(self) -> dict[str, str]:
        try:
            return {name: node["presence"] for name, node in self.coordinator.nodes().items()}
        except GpushareError:
            return {}

    def wait_presence(self, node: str, *words: str) -> None:
        wait_until(lambda: self.presences().get(node) in words, f"{node} is {' or '.join(words)}")

    def wait_ready(self, nodes: Iterable[str] = tuple(GPUS)) -> None:
        for node in nodes:
            self.wait_presence(node, "ready")

    def judge(self) -> None:
        """Let all work end, and look at what was done in the pool from the first submit on."""
        self.heal()
        for machine in self.machines():
            machine.set_day(0.0)
        self.diary.end(*self.submitted)
        self.wait_ready()
        wait_until(lambda: not self.unfinished(), f"all jobs are over; {self.unfinished()} are not")
        jobs = self.coordinator.jobs()
        for job in self.submitted:
            self._judge_job(jobs[job])
        for node in self.nodes.values():
            wait_until(lambda node=node: not node.engine.running(), f"no container runs on {node.name}")  # type: ignore[misc]
            wait_until(lambda node=node: not node.leases(), f"nothing is leased on {node.name}")  # type: ignore[misc]
        self.submitted.clear()
        self.excused.clear()

    def unfinished(self) -> dict[str, str]:
        jobs = self.coordinator.jobs()
        states = {job: jobs[job]["state"] if job in jobs else "lost" for job in self.submitted}
        return {job: state for job, state in states.items() if state not in OVER}

    def _judge_job(self, job: Json) -> None:
        runs = self.diary.runs(job["id"])
        assert job["id"] in self.excused or not overlapping(runs), (
            f"two copies of {job['id']} ran at the same time: {runs}"
        )
        done = [run for run in runs if run.ended == "done"]
        assert len(done) == (len(job["parts"]) if job["state"] == "succeeded" else 0), (job, runs)

    # --- what is shown ---------------------------------------------------------------------------------

    def screen(self, *words: str, on: str = "a") -> str:
        return self.nodes[on].gpushare(*words)

    def logs(self) -> str:
        programs: Sequence[tuple[str, Node | Coordinator]] = [
            ("coordinator", self.coordinator),
            *self.nodes.items(),
        ]
        try:
            report = f"{self.coordinator.status()}\n"
        except GpushareError as error:
            report = f"{error}\n"
        return report + "\n".join(
            f"--- {name}\n{one.program.tail(6000)}" for name, one in programs if one.program is not None
        )
