"""A node that lies, run as a program on its machine: FOLDER ADDRESS.

First it says that it is another one; then, by its own name, that it has eight GPUs of which nobody has heard,
and takes whatever it is given without a word.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from pathlib import Path

import grpc

from gpushared.api.v1 import link_pb2, link_pb2_grpc
from gpushared.domain.jobs.member import HeartbeatReport, Inventory
from gpushared.domain.model.gpu import MIB, Gpu, GpuId
from gpushared.pool.link import codec
from gpushared.pool.member.enrolment import Enrolment
from gpushared.pool.member.link_session import Call

ANOTHER, SELF = "a", "d"
MEMORY_BYTES = 180 * 1024 * MIB
GPUS = tuple(Gpu(GpuId(f"GPU-{at}"), at, "NVIDIA B200", MEMORY_BYTES, MEMORY_BYTES) for at in range(8))


def hello(name: str) -> link_pb2.Up:
    return link_pb2.Up(
        hello=link_pb2.Hello(
            node=name,
            version="0.1.0",
            boot_id="lies",
            capabilities=codec.CAPABILITIES,
            inventory=codec.inventory_bytes(Inventory(GPUS)),
            free=codec.free_bytes(HeartbeatReport()),
            now=time.time(),
        )
    )


async def greeted(call: Call, name: str) -> bool:
    await call.write(hello(name))
    answer = await call.read()
    assert isinstance(answer, link_pb2.Down)
    welcomed = answer.WhichOneof("what") == "welcome"
    sys.stdout.write(f"{name}: {'welcomed' if welcomed else 'refused'} {answer}\n")
    sys.stdout.flush()
    return welcomed


async def main(folder: Path, address: str) -> None:
    enrolment = Enrolment(folder, time.time, lambda _: None)
    await enrolment.load()
    options = [("grpc.ssl_target_name_override", enrolment.server_name())]
    async with grpc.aio.secure_channel(address, enrolment.credentials(), options) as channel:
        stub = link_pb2_grpc.NodeLinkStub(channel)
        assert not await greeted(stub.Connect(), ANOTHER)
        call = stub.Connect()
        assert await greeted(call, SELF)
        for seq in itertools.count(1):
            await call.write(link_pb2.Up(beat=link_pb2.Beat(seq=seq)))
            await asyncio.sleep(0.3)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
