"""A chaos run from its begin to its judgement. By hand it is ``scripts/chaos``, and a short one is a test.

While it runs, faults and work come as the plan has them. Then everything is healed, all work has to end, and
nothing may be left. The judge reads what remains.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final

from gpushared.client.api import Client
from gpushared.client.jobs import Jobs
from gpushared.domain.model.errors import GpushareError
from tests.bed import parts
from tests.chaos.diary import Run, read_diaries
from tests.chaos.faults import Faults
from tests.chaos.judge import judge
from tests.chaos.load import USER, Load
from tests.chaos.machines import Machines, a_free_number, sweep, wait_for
from tests.chaos.plan import LIVE_RESTORE, NODES, Plan
from tests.chaos.records import OVER, Accepted, Record, Violation, now

READY_SECONDS: Final = 180.0
STUCK_SECONDS: Final = 420.0
"""Work that does not change for so long will never end; a job waits for 300 s at most to begin again."""
CLIENT_SECONDS: Final = 240.0
"""A command whose job is over ends within so long."""
LEFT_SECONDS: Final = 180.0
"""Whatever is left after so long will stay."""
BEATS_SECONDS: Final = 120.0
BAD_LOG: Final = re.compile(r"Traceback \(most recent|exception was never retrieved|Task was destroyed")
WORSE: Final = {"ok": 0, "skipped": 0, "blocked": 0, "warning": 1, "failed": 2}


class ChaosRun:
    """One run on machines of its own. ``folder`` keeps everything that it leaves."""

    def __init__(self, plan: Plan, machines: Machines, folder: Path, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._machines = machines
        self._folder = folder
        self._print = say
        self._began = now()
        self._record = Record(gpus={})
        self._load = Load(machines, self._record, folder / "clients", self._say)
        self._faults = self._make_faults()
        self._guards: dict[str, tuple[str, str]] = {}
        self._doctor: dict[str, dict[str, str]] = {}
        self._work: list[asyncio.Task[None]] = []

    def _make_faults(self) -> Faults:
        return Faults(self._machines, self._record, self._folder / "copies", self._say)

    def _say(self, line: str) -> None:
        text = f"{now() - self._began:7.1f}  {line}"
        self._print(text)
        with (self._folder / "events.log").open("a") as log:
            log.write(f"{now():.2f} {text}\n")

    async def run(self) -> tuple[Record, list[Run]]:
        """Comes back when everything is healed and over, or cannot be."""
        await self._start_machines()
        self._record.gpus = await asyncio.to_thread(self._read_gpus)
        self._doctor = {node: await asyncio.to_thread(self._ask_doctor, node) for node in NODES}
        await self._prepare()
        background = [asyncio.create_task(work) for work in self._beside()]
        try:
            await self._carry_out()
            await self._let_work_end()
            await self._judge_guards()
            await self._find_leftovers()
        finally:
            tasks = [*background, *self._work, *self._load.followers]
            for task in tasks:
                task.cancel()
            self._load.kill_clients()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._keep_evidence()
        return self._record, read_diaries(self._folder / "diaries")

    async def _prepare(self) -> None:
        self._guards = await self._load.start_guards()
        self._began = now()
        self._say(
            f"{len(self._plan.faults)} faults and {len(self._plan.work)} commands in {self._plan.seconds:g} s"
        )

    def _beside(self) -> list[Coroutine[Any, Any, None]]:
        """What goes on from the begin to the end."""
        return [self._faults.keep_copies(), self._faults.supervise()]

    async def _start_machines(self) -> None:
        """Whoever stops the run meanwhile waits: half a machine cannot be ended."""
        starting = asyncio.create_task(asyncio.to_thread(self._machines.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait([starting])
            raise

    # --- faults and work

    async def _carry_out(self) -> None:
        faults = [self._at(fault.at_seconds, self._faults.do, fault) for fault in self._plan.faults]
        self._work = [
            asyncio.create_task(self._at(work.at_seconds, self._load.do, work)) for work in self._plan.work
        ]
        await asyncio.gather(*faults)

    async def _at(self, seconds: float, do: Callable[[Any], Any], what: object) -> None:
        await asyncio.sleep(max(0.0, self._began + seconds - now()))
        await do(what)

    async def _let_work_end(self) -> None:
        """Everything is healed; nothing new comes."""
        self._say("healed")
        if not await wait_for(self._all_ready, READY_SECONDS, 0.5):
            self._find("not healed", f"not all nodes are ready: {self._presences()}")
        self._say("all nodes are ready")
        await self._load.resume_all()
        await self._wait_while_it_moves()
        self._say("all work is over, or stuck")
        commands = {*self._work, *self._load.followers}
        _, late = await asyncio.wait(commands, timeout=CLIENT_SECONDS) if commands else (set(), set())
        if late:
            self._load.kill_clients()
            await asyncio.wait(late)
        for task in commands:
            if not task.cancelled() and (error := task.exception()) is not None:
                self._say(f"harness: {error!r}")
                raise error

    async def _wait_while_it_moves(self) -> None:
        before, since = "", now()
        while now() - since < STUCK_SECONDS:
            await asyncio.to_thread(self._learn_states)
            if all(job.state in OVER for job in self._record.accepted):
                return
            state = f"{Counter(job.state for job in self._record.accepted)} {self._diary_bytes()}"
            if state != before:
                before, since = state, now()
            await asyncio.sleep(2.0)
            await self._load.resume_all()

    def _diary_bytes(self) -> int:
        """How much those that are to end have written."""
        files = self._machines.shared.glob("w*.*")
        return sum(file.stat().st_size for file in files)

    def _learn_states(self) -> None:
        told: dict[str, Any] = {}
        sockets = [self._machines.socket(node) for node in NODES]
        places = [(socket, False) for socket in sockets]
        places.append((self._machines.coordinator_socket(), True))
        for socket, everybody in places:
            try:
                for page in Jobs(Client(f"unix://{socket}")).pages(ended=True, everybody=everybody):
                    told |= {job.id: job for job in page.jobs}
            except GpushareError as error:
                self._say(f"no list of jobs from {socket}: {error}")
                return
        for job in self._record.accepted:
            self._learn(job, told.get(job.job))

    def _learn(self, job: Accepted, told: Any) -> None:
        job.state = told.state if told is not None else None
        job.exit_code = told.exit_code if told is not None else None
        job.reason = told.reason if told is not None else ""

    def _presences(self) -> dict[str, str]:
        try:
            nodes = self._machines.coordinator_call("Jobs/Nodes").get("nodes", [])
        except GpushareError:
            return {}
        return {node["name"]: node["presence"] for node in nodes}

    def _all_ready(self) -> bool:
        return [self._presences().get(node) for node in NODES] == ["ready"] * len(NODES)

    # --- what has to survive

    async def _judge_guards(self) -> None:
        for key, (lease, node) in self._guards.items():
            complaint = await self._complaint_about(key, lease, node)
            if complaint:
                runs = [run.show() for run in read_diaries(self._machines.shared) if run.key == key]
                self._find(
                    "guard harmed", f"{key} ({lease}): {complaint}", *runs, *await self._story(node, lease)
                )
        for key in self._guards:
            self._record.stopped[key] = now()
        for key, (_, node) in self._guards.items():
            await self._load.call("stop a guard", ["stop", key], "guards", node)

    async def _complaint_about(self, key: str, lease: str, node: str) -> str:
        if "-paused-" in key:
            user = USER if f"-{USER}-" in key else "root"
            if len(self._runs(key)) != 1:
                return "it was started again, or never"
            held = {one["id"]: one["state"] for one in await self._load.leases(node)}
            if held.get(lease) != "suspended":
                return f"its lease is {held.get(lease, 'over')}, and not suspended"
            call = await self._load.call("resume a guard", ["resume", key], "guards", node, user=user)
            if call.code:
                return f"it is not resumed: {call.show()}"
        before = now()
        if not await wait_for(lambda: any(run.last > before for run in self._runs(key)), BEATS_SECONDS, 0.5):
            return "it does not write any more"
        held = {one["id"]: one["state"] for one in await self._load.leases(node)}
        if lease not in held:
            return f"its lease is not there any more; there are {held}"
        if node in LIVE_RESTORE and len(self._runs(key)) != 1:
            return "it was started again"
        return ""

    def _runs(self, key: str) -> list[Run]:
        return [run for run in read_diaries(self._machines.shared) if run.key == key]

    async def _story(self, node: str, lease: str) -> list[str]:
        try:
            explanation = await asyncio.to_thread(
                self._machines.call, node, "Leases/Explain", {"lease_id": lease}
            )
        except GpushareError as error:
            return [str(error)]
        return [
            f"{entry['at']:.1f} {entry['state']} {entry['text']}" for entry in explanation.get("story", [])
        ][-12:]

    # --- what may not be left

    async def _find_leftovers(self) -> None:
        left: list[tuple[str, str]] = []

        def look() -> bool:
            left[:] = list(self._leftovers())
            return not left

        await wait_for(look, LEFT_SECONDS, 2.0)
        for rule, what in left:
            self._find(rule, what)

    def _leftovers(self) -> Iterator[tuple[str, str]]:
        for node in NODES:
            try:
                leases = self._machines.call(node, "Leases/List").get("leases", [])
            except GpushareError as error:
                yield "not healed", f"{node} does not answer: {error}"
                continue
            for lease in leases:
                kind = "queue entry left" if lease["state"] == "queued" else "lease left"
                yield (
                    kind,
                    f"{node}: {lease['id']} {lease['state']} of {lease.get('container_name') or 'nobody'}",
                )
            running = parts.docker(
                self._machines.engine_socket(node), "ps", "--format", "{{.ID}} {{.Names}} {{.Status}}"
            )
            for line in running.stdout.splitlines():
                yield "container left", f"{node}: {line}"
            for name, status in self._ask_doctor(node).items():
                if WORSE.get(status, 2) > WORSE.get(self._doctor[node].get(name, "ok"), 0):
                    yield "doctor finds trouble", f"{node}: {name} is {status}"
        yield from self._capacity_left()

    def _capacity_left(self) -> Iterator[tuple[str, str]]:
        try:
            nodes = self._machines.coordinator_call("Jobs/Nodes").get("nodes", [])
        except GpushareError as error:
            yield "not healed", f"the coordinator does not answer: {error}"
            return
        for node in nodes:
            if node.get("running") or node.get("waiting"):
                yield (
                    "queue entry left",
                    f"{node['name']}: {node.get('running')} run, {node.get('waiting')} wait",
                )
            for gpu in node["gpus"]:
                if (
                    int(gpu.get("free_compute_permille", 0)) != 1000
                    or gpu.get("leases")
                    or gpu.get("trouble")
                ):
                    yield "capacity missing", f"{node['name']} GPU {gpu.get('index', 0)}: {gpu}"

    def _ask_doctor(self, node: str) -> dict[str, str]:
        """The state of each check, by its name."""
        environ = {**self._machines.environ, "GPUSHARE_HOST": f"unix://{self._machines.socket(node)}"}
        environ.pop("DOCKER_HOST")
        done = subprocess.run(
            ["gpushare", "doctor", "-o", "json"], env=environ, capture_output=True, text=True, check=False
        )
        return {item["name"]: item["status"] for item in json.loads(done.stdout or '{"items": []}')["items"]}

    # --- what remains

    def _find(self, rule: str, what: str, *evidence: str) -> None:
        self._say(f"violation: {rule}: {what}")
        self._record.found.append(Violation(rule, what, evidence))

    def _read_gpus(self) -> dict[str, tuple[str, int]]:
        nodes = self._machines.coordinator_call("Jobs/Nodes")["nodes"]
        return {gpu["id"]: (node["name"], int(gpu["memory_bytes"])) for node in nodes for gpu in node["gpus"]}

    def _keep_evidence(self) -> None:
        if self._machines.shared.exists():
            shutil.copytree(self._machines.shared, self._folder / "diaries", dirs_exist_ok=True)
        logs = self._folder / "logs"
        logs.mkdir(exist_ok=True)
        for target, service in self._machines.services.items():
            if service.log.exists():
                shutil.copyfile(service.log, logs / f"{target}.log")
                self._record.found += list(read_log(target, service.log.read_text(errors="replace")))


def read_log(target: str, text: str) -> Iterator[Violation]:
    """Errors of the program itself in a daemon's log, of which each line is JSON; alike ones once."""
    seen: set[str] = set()
    for line in text.splitlines():
        if target.startswith("engine-") or not BAD_LOG.search(line):
            continue
        try:
            said = json.loads(line)
        except ValueError:  # what libraries write, and what the interpreter writes in the end
            said = {"message": line}
        trace = str(said.get("exception", "")).splitlines()
        error = f"{said.get('message', '')} {trace[-1] if trace else ''}"[:300]
        if error not in seen:
            seen.add(error)
            yield Violation("error in a log", f"{target}: {error}", tuple(trace[-30:]))


async def carry_out(
    plan: Plan, folder: Path, cache: Path, say: Callable[[str], None]
) -> tuple[Record, list[Run], list[Violation]]:
    """Run the plan on machines made for it, and judge. The machines are gone afterwards, whatever happens."""
    folder.mkdir(parents=True)
    await asyncio.to_thread(sweep, cache, say)
    with a_free_number() as number:
        machines = Machines(number, cache)
        record, runs = await run_on(machines, ChaosRun(plan, machines, folder, say))
    return record, runs, judge(record, runs)


async def run_on(machines: Machines, run: ChaosRun) -> tuple[Record, list[Run]]:
    """Run to the end or to the first signal that asks to stop; the machines are gone afterwards."""
    task = asyncio.ensure_future(run.run())
    _on_signals(task.cancel)
    try:
        return await task
    finally:
        # A second signal must not stop this half-way.
        _on_signals(lambda: None)
        await asyncio.to_thread(machines.stop)


def _on_signals(do: Callable[[], object]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, do)
