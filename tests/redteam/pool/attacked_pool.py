"""A pool and members that say over their link whatever a test lets them say."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import psutil

from gpushared.api.v1 import link_pb2, link_pb2_grpc
from gpushared.client.pipeline import Job, Pool
from gpushared.domain.jobs.job import AttemptState, Ending, EndKind, JobSpec, NodeName, Owner
from gpushared.domain.jobs.member import HeartbeatReport, Holding, Inventory
from gpushared.domain.jobs.protocol import CancelPart, Order, Place, Report
from gpushared.domain.model.gpu import Gpu, GpuId
from gpushared.domain.model.lease import AttemptKey, Grant, JobId, LeaseId
from gpushared.domain.model.request import Request
from gpushared.pool.link import codec
from gpushared.pool.member.enrolment import Enrolment
from gpushared.pool.member.link_session import Call
from gpushared.pool.trust.people import coordinator_host
from tests.node.daemon import make_directory
from tests.pool.processes import POOL, CoordinatorProcess

GIB, MIB = 1 << 30, 1 << 20
SECONDS = 30.0
BEAT_SECONDS = 5.0
QUIET_SECONDS = 5.0
"""Where nothing was taken for so long, nothing will be."""
HAS_SEEN_MORE = 1 << 40
"""A revision that no store has: with it a node makes the pool recover."""
SMALL = Request(memory_permille=1, compute_permille=1)
WHOLE = Request(memory_permille=1000, compute_permille=1000)


def inventory(*gpus: str) -> Inventory:
    found = tuple(Gpu(GpuId(gpu), at, "H100", 80 * GIB, 80 * GIB) for at, gpu in enumerate(gpus))
    return Inventory(found, cpu_milli=1_000_000, memory_bytes=4096 * GIB, version="0.1.0")


def job_id(number: int) -> JobId:
    return JobId(f"{number:010d}")


def spec(principal: str, body: str = "{}", request: Request = SMALL, **more: object) -> JobSpec:
    return JobSpec(request, Owner(principal, principal), image="busybox", body=body, **more)  # type: ignore[arg-type]


def runs(number: int, of: JobSpec, attempt: int = 1) -> Report:
    """The word of a node that it runs this job."""
    key = AttemptKey(job_id(number), attempt)
    return Report(key, AttemptState.RUNNING, 1 + number, LeaseId(f"l{number}"), spec=of, request=of.request)


def is_over(number: int, reason: str = "") -> Report:
    """The word of a node that an attempt is over, with nothing said of its job."""
    ending = Ending(EndKind.EXITED, reason, exit_code=0)
    return Report(AttemptKey(job_id(number), 1), AttemptState.ENDED, 1 + number, ending=ending)


def held(
    number: int,
    gpu: str,
    owner: str,
    project: str,
    *,
    attempt: AttemptKey | None = None,
) -> Holding:
    grant = Grant(GpuId(gpu), 80 * GIB, 1000)
    return Holding(LeaseId(f"l{number}"), (grant,), owner, project, attempt=attempt)


@dataclass
class Link:
    """One stream of a member, and what the coordinator said on it since the welcome."""

    call: Call
    member: Member
    told: list[Order] = field(default_factory=list)
    acks: list[link_pb2.OutboxAck] = field(default_factory=list)
    news: asyncio.Condition = field(default_factory=asyncio.Condition)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    beats: int = 0
    acknowledged: int = 0

    async def listen(self) -> None:
        while isinstance(down := await self.call.read(), link_pb2.Down):
            async with self.news:
                match down.WhichOneof("what"):
                    case "order":
                        self.told.append(codec.read_order(down.order))
                    case "outbox_ack":
                        self.acks.append(down.outbox_ack)
                    case "beat_ack":
                        self.acknowledged = down.beat_ack.seq
                    case "refuse":
                        raise AssertionError(down.refuse.message)
                self.news.notify_all()

    async def live(self) -> None:
        """Beat, or the coordinator gives the stream up."""
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            self.beats += 1
            await self.say(link_pb2.Up(beat=link_pb2.Beat(seq=self.beats)))

    async def say(self, message: link_pb2.Up) -> None:
        """One message after the other, however many want to say one."""
        async with self.turn:
            await self.call.write(message)

    async def until(self, so: Callable[[], bool], seconds: float = SECONDS) -> bool:
        """Wait until it is so; False where it is not in time."""
        try:
            async with asyncio.timeout(seconds), self.news:
                await self.news.wait_for(so)
        except TimeoutError:
            return False
        return True

    def orders(self, kind: type[Order]) -> list[Order]:
        """Each once, however often it was said."""
        found = {order.key: order for order in self.told if isinstance(order, kind)}
        return list(found.values())

    async def placed(self, job: str, seconds: float = SECONDS) -> bool:
        """Whether this node is told to run the job."""
        return await self.until(
            lambda: any(isinstance(one, Place) and one.key.job == job for one in self.orders(Place)), seconds
        )

    async def ended(self, count: int) -> bool:
        """Whether so many attempts are to be ended here."""
        return await self.until(lambda: len(self.told) >= count and len(self.orders(CancelPart)) >= count)

    async def beat(self, free: HeartbeatReport) -> None:
        """Come back when the coordinator knows of it."""
        self.beats += 1
        number = self.beats
        await self.say(link_pb2.Up(beat=link_pb2.Beat(seq=number, free=codec.free_bytes(free))))
        assert await self.until(lambda: self.acknowledged >= number)

    async def report(self, report: Report) -> None:
        await self.say(link_pb2.Up(report=codec.report_bytes(report)))

    async def submit(self, number: int, of: JobSpec, *, old: bool = False) -> None:
        """As out of the outbox, with the member's word for its user."""
        job, data = job_id(number), codec.spec_bytes(of)
        signed = self.member.word(of.owner.principal, codec.job_digest(job, data))
        asked = link_pb2.OutboxJob(job_id=job, spec=data, assertion=signed, old=old)
        await self.say(link_pb2.Up(job=asked))

    async def fill(self, first: int, specs: Sequence[JobSpec]) -> int:
        """How many of these jobs are taken. Of one that finds no room the coordinator says nothing."""
        before = len(self.acks)

        async def submit_all() -> None:
            for number, one in enumerate(specs, first):
                await self.submit(number, one)

        submitting = asyncio.create_task(submit_all())
        known = before - 1
        while known < len(self.acks) < before + len(specs):
            known = len(self.acks)
            await self.until(lambda: len(self.acks) >= before + len(specs), QUIET_SECONDS)
        submitting.cancel()
        return sum(not ack.code for ack in self.acks[before:])


class Member:
    """A machine with a key and a certificate of its own."""

    def __init__(self, coordinator: CoordinatorProcess, name: str) -> None:
        self.name = name
        self._coordinator = coordinator
        folder = Path(coordinator.directory) / name / "pool"
        self._enrolment = Enrolment(folder, time.time, spread_seconds=0)

    async def join(self, *realms: str) -> None:
        words = self._coordinator.admin.create_join_token(node=self.name, realms=realms)
        await self._enrolment.join(self._coordinator.address, words.token, self.name)

    def word(self, principal: str, digest: bytes) -> bytes:
        return self._enrolment.asserter().sign(principal, (), digest, time.time())

    @asynccontextmanager
    async def linked(
        self,
        has: Inventory,
        *reports: Report,
        free: HeartbeatReport | None = None,
        seen_revision: int = 0,
    ) -> AsyncIterator[Link]:
        """A stream after its welcome."""
        options = [("grpc.ssl_target_name_override", coordinator_host(POOL))]
        address = f"127.0.0.1:{self._coordinator.ports[1]}"
        async with grpc.aio.secure_channel(address, self._enrolment.credentials(), options) as channel:
            link = Link(link_pb2_grpc.NodeLinkStub(channel).Connect(), self)
            hello = link_pb2.Hello(
                node=NodeName(self.name),
                version="0.1.0",
                capabilities=codec.CAPABILITIES,
                inventory=codec.inventory_bytes(has),
                free=codec.free_bytes(free or HeartbeatReport()),
                seen_revision=seen_revision,
            )
            for message in codec.registration_messages(hello, reports):
                await link.call.write(message)
            first = await asyncio.wait_for(link.call.read(), 4 * SECONDS)
            assert isinstance(first, link_pb2.Down)
            assert first.HasField("welcome"), first
            tasks = [asyncio.create_task(link.listen()), asyncio.create_task(link.live())]
            try:
                yield link
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


class AttackedPool:
    """A coordinator in a process of its own, and who is in its pool."""

    def __init__(self, config: str = "") -> None:
        self.coordinator = CoordinatorProcess(make_directory(), config)

    async def member(self, name: str, *realms: str) -> Member:
        made = Member(self.coordinator, name)
        await made.join(*realms)
        return made

    def user(self, person: str = "ada") -> Pool:
        """A person with a token."""
        made = self.coordinator
        return Pool(made.address, ca_file=made.anchors_file, token_file=made.token_file(person))

    async def jobs(self, person: str = "ada") -> list[Job]:
        """What a person is told of their jobs."""

        def listed() -> list[Job]:
            with self.user(person) as pool:
                return list(pool.jobs(ended=True))

        return await asyncio.to_thread(listed)

    async def answers(self) -> float:
        """How many seconds an administrator waits for an answer."""
        since = time.monotonic()
        await asyncio.to_thread(self.coordinator.admin.status)
        return time.monotonic() - since

    def memory(self) -> int:
        assert self.coordinator.process is not None
        return int(psutil.Process(self.coordinator.process.pid).memory_info().rss)

    def store(self) -> int:
        """What the files of the store take."""
        return sum(file.stat().st_size for file in (Path(self.coordinator.directory) / "s").glob("pool.db*"))

    def log(self) -> str:
        return (Path(self.coordinator.directory) / "log").read_text()

    def lose_memory(self) -> None:
        """End the coordinator, and start it again without its store."""
        self.coordinator.end()
        for file in (Path(self.coordinator.directory) / "s").glob("pool.db*"):
            file.unlink()
        self.coordinator.start()


@contextmanager
def attacked_pool(config: str = "") -> Iterator[AttackedPool]:
    made = AttackedPool(config)
    made.coordinator.start()
    try:
        yield made
    finally:
        made.coordinator.dispose()
    assert "Traceback" not in made.log()
