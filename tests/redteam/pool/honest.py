"""An honest node with one running job, and the honest user of that job, beside whoever attacks the pool."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import grpc

from gpushared.api.v1 import jobs_pb2, jobs_pb2_grpc, leases_pb2, link_pb2, link_pb2_grpc
from gpushared.domain.jobs.job import AttemptState
from gpushared.domain.jobs.member import HeartbeatReport, Holding, Inventory
from gpushared.domain.jobs.protocol import Place, StaleEpoch
from gpushared.domain.model.gpu import Gpu, GpuId
from gpushared.domain.model.lease import Grant, JobId, LeaseId
from gpushared.jobs.job_requests import id_of
from gpushared.pool.link import codec
from gpushared.pool.member.enrolment import Enrolment
from gpushared.pool.member.link_session import Call
from tests.pool.link.member import GIB, FakeOrderHandler

NODE, PERSON = "honest", "ada"
RUNNING_REQUEST = "the one that runs"
RUNNING_JOB = id_of(f"{PERSON}@lab", RUNNING_REQUEST)
GPU = Gpu(GpuId("GPU-1"), 0, "H100", 80 * GIB, 79 * GIB)
INVENTORY = Inventory((GPU,), cpu_milli=8000, memory_bytes=64 * GIB, version="0.1.0")
SENT_KEPT = 64
GONE = (grpc.aio.AioRpcError, asyncio.InvalidStateError, EOFError)


def submit_request(request_id: str, **lease: Any) -> jobs_pb2.SubmitRequest:
    """Return the request for a job of one whole GPU."""
    return jobs_pb2.SubmitRequest(
        request_id=request_id,
        lease=leases_pb2.LeaseRequest(gpu="1", **lease),
        image="busybox",
        create_body=json.dumps(
            {"Image": "busybox", "Cmd": ["true"], "HostConfig": {"RestartPolicy": {"Name": "no"}}}
        ).encode(),
        pool=True,
    )


class HonestNode:
    """A node that says what is so. ``sent``: its first messages, for whoever sends them again."""

    def __init__(self, enrolment: Enrolment) -> None:
        self.sent: list[bytes] = []
        self.runs = asyncio.Event()
        self._enrolment = enrolment
        self._lease_service = FakeOrderHandler()
        self._call: Call | None = None
        self._channel: grpc.aio.Channel | None = None
        self._reading: asyncio.Task[None] | None = None
        self._is_open = False
        self._beat = 0
        self._acknowledged = 0
        self._news = asyncio.Condition()

    async def beat(self) -> None:
        """Have a beat acknowledged, over a new stream where the old one has ended."""
        while True:
            try:
                if not self._is_open:
                    await self._connect()
                self._beat += 1
                await self._say(
                    link_pb2.Up(beat=link_pb2.Beat(seq=self._beat, free=codec.free_bytes(self._free())))
                )
                async with self._news:
                    await self._news.wait_for(lambda: not self._is_open or self._acknowledged >= self._beat)
                if self._acknowledged >= self._beat:
                    return
            except GONE:
                await self.close()

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        self._reading = None
        if self._channel is not None:
            await self._channel.close()

    async def _connect(self) -> None:
        await self.close()
        options = [("grpc.ssl_target_name_override", self._enrolment.server_name())]
        self._channel = grpc.aio.secure_channel(
            self._enrolment.addresses()[0], self._enrolment.credentials(), options
        )
        self._call = link_pb2_grpc.NodeLinkStub(self._channel).Connect()
        self._beat = self._acknowledged = 0
        for message in codec.registration_messages(self._hello(), self._lease_service.reports()):
            await self._say(message)
        answer = await self._call.read()
        if not isinstance(answer, link_pb2.Down) or not answer.HasField("welcome"):
            raise EOFError(f"the coordinator does not welcome an honest node: {answer}")
        await self._lease_service.contact_made(time.time(), answer.welcome.epoch, answer.welcome.revision)
        self._is_open = True
        self._reading = asyncio.create_task(self._read(self._call))

    def _hello(self) -> link_pb2.Hello:
        return link_pb2.Hello(
            node=NODE,
            version="0.1.0",
            boot_id="boot-1",
            capabilities=codec.CAPABILITIES,
            inventory=codec.inventory_bytes(INVENTORY),
            free=codec.free_bytes(self._free()),
            seen_epoch=self._lease_service.seen.epoch,
            seen_revision=self._lease_service.seen.revision,
            now=time.time(),
        )

    def _free(self) -> HeartbeatReport:
        """Tell that the job which runs holds the whole GPU."""
        grants = (Grant(GPU.id, GPU.leasable_bytes, 1000),)
        return HeartbeatReport(
            tuple(
                Holding(LeaseId("l1"), grants, f"{PERSON}@lab", PERSON, exclusive=True, attempt=one.key)
                for one in self._lease_service.reports()
                if one.state is AttemptState.RUNNING
            )
        )

    async def _say(self, message: link_pb2.Up) -> None:
        assert self._call is not None
        if len(self.sent) < SENT_KEPT:
            self.sent.append(message.SerializeToString())
        await self._call.write(message)

    async def _read(self, call: Call) -> None:
        try:
            while isinstance(down := await call.read(), link_pb2.Down):
                if down.HasField("order"):
                    await self._take(down.order)
                if down.HasField("beat_ack"):
                    self._acknowledged = max(self._acknowledged, down.beat_ack.seq)
                if down.HasField("refuse"):
                    return
                async with self._news:
                    self._news.notify_all()
        finally:
            self._is_open = False
            async with self._news:
                self._news.notify_all()

    async def _take(self, data: bytes) -> None:
        order = codec.read_order(data)
        answer = await self._lease_service.take(order)
        if isinstance(answer, StaleEpoch):
            await self._say(link_pb2.Up(stale=codec.stale_bytes(answer)))
            return
        if isinstance(order, Place) and order.key.job == RUNNING_JOB:
            self._lease_service.change(order.key, AttemptState.RUNNING)
            self.runs.set()
        report = self._lease_service.report(order.key)
        if report is not None:
            await self._say(link_pb2.Up(report=codec.report_bytes(report)))


class HonestUser:
    """A person with a token, whose calls are the ordinary ones."""

    def __init__(self, channel: grpc.aio.Channel, token: str) -> None:
        self._jobs = jobs_pb2_grpc.JobsStub(channel)
        self._metadata = (("authorization", f"Bearer {token}"),)

    async def begin(self) -> None:
        """Ask for the job that runs on the honest node."""
        request = submit_request(RUNNING_REQUEST)
        request.node = NODE
        answer = await self._jobs.Submit(request, metadata=self._metadata)
        assert list(answer.job_ids) == [RUNNING_JOB]

    async def job(self, job: JobId = RUNNING_JOB) -> jobs_pb2.Job:
        found: jobs_pb2.Job = await self._jobs.Get(jobs_pb2.JobRef(job_id=job), metadata=self._metadata)
        return found

    async def listed(self) -> list[jobs_pb2.Job]:
        answer = await self._jobs.List(jobs_pb2.ListJobsRequest(), metadata=self._metadata)
        return list(answer.jobs)

    async def node(self) -> jobs_pb2.PoolNode:
        """Return the row of the honest node, without the time at which it was heard of."""
        answer = await self._jobs.Nodes(jobs_pb2.NodesRequest(), metadata=self._metadata)
        (row,) = [one for one in answer.nodes if one.name == NODE]
        assert isinstance(row, jobs_pb2.PoolNode)
        row.ClearField("heard_at")
        return row

    async def submit(self) -> JobId:
        """Submit a new job, held so that no node gets it."""
        answer = await self._jobs.Submit(submit_request("", held=True), metadata=self._metadata)
        return JobId(answer.job_ids[0])

    async def cancel(self, job: JobId) -> None:
        await self._jobs.Cancel(jobs_pb2.CancelJobRequest(job_id=job), metadata=self._metadata)
