"""Serve the test API of simulated GPUs, with which a caller plays the driver."""

from __future__ import annotations

from gpushared.api.v1 import node_pb2
from gpushared.domain.model.errors import PermissionRefused
from gpushared.domain.model.request import Caller
from gpushared.gpus.simulated import SimulatedGpus
from gpushared.net.unary_json import Unary
from gpushared.node.runtime.sampler import Sampler


class Simulation:
    """Change the readings of simulated GPUs; this is served only if GPUs are simulated."""

    def __init__(self, gpus: SimulatedGpus, sampler: Sampler) -> None:
        self._gpus = gpus
        self._sampler = sampler

    def calls(self) -> dict[str, Unary]:
        return {"gpushare.v1.Simulation/Change": Unary(node_pb2.SimulationChange, self.change)}

    async def change(self, message: node_pb2.SimulationChange, caller: Caller) -> node_pb2.SimulationChanged:
        """Change a reading. Only trusted callers may, because a lost GPU is a loss for all users."""
        if not caller.trusted:
            raise PermissionRefused(
                "only trusted callers may change the simulation", hint="be root, or in the docker group"
            )
        index = message.gpu_index
        if processes := message.processes:
            memory_bytes = {process.pid: process.memory_bytes for process in processes}
            mig_index = message.mig_index if message.HasField("mig_index") else None
            self._gpus.set_processes(index, memory_bytes, mig_index=mig_index)
            clients = {
                process.pid: process.mps_client for process in processes if process.HasField("mps_client")
            }
            self._gpus.set_mps_clients(index, clients)
            ratios = {
                process.pid: process.utilization_ratio
                for process in processes
                if process.HasField("utilization_ratio")
            }
            self._gpus.set_process_utilization(index, ratios, mig_index=mig_index)
        if message.HasField("utilization_ratio"):
            self._gpus.set_utilization(index, message.utilization_ratio)
        if message.HasField("trouble"):
            self._gpus.set_trouble(index, message.trouble or None)
        for number in message.xids:
            self._gpus.set_xid(index, number)
        if message.HasField("hang_seconds"):
            self._gpus.set_hang(message.hang_seconds)
        if not message.unannounced:
            self._sampler.ask()
        return node_pb2.SimulationChanged()
