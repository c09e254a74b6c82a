"""Drain and undrain GPUs by the names that people give."""

from __future__ import annotations

from gpushared.api.v1 import gpus_pb2
from gpushared.domain.leases.events import GpuDrainAsked
from gpushared.domain.leases.node_state import NodeState
from gpushared.domain.model.errors import NotFound, RequestError
from gpushared.domain.model.gpu import GpuId, check_any
from gpushared.domain.model.request import Caller
from gpushared.domain.model.units import shown
from gpushared.node.loop import Loop
from gpushared.node.sampler import Sampler
from gpushared.node.views import Views

ALL = "all"


class Drains:
    """Serve the calls ``Gpus.Drain`` and ``Gpus.Undrain``."""

    def __init__(self, loop: Loop, sampler: Sampler, views: Views) -> None:
        self._loop = loop
        self._sampler = sampler
        self._views = views

    async def drain(self, message: gpus_pb2.DrainRequest, caller: Caller) -> gpus_pb2.DrainAnswer:
        return await self._ask(message.gpu, message.reason, caller)

    async def undrain(self, message: gpus_pb2.UndrainRequest, caller: Caller) -> gpus_pb2.DrainAnswer:
        return await self._ask(message.gpu, None, caller)

    async def _ask(self, name: str, reason: str | None, caller: Caller) -> gpus_pb2.DrainAnswer:
        """One after the other: what was done for the first stays done where the next is refused."""
        found = named(name, self._loop.state)
        for gpu in found:
            await self._loop.send(GpuDrainAsked(gpu, caller, reason))
        views = self._views.gpus(self._sampler.newest)
        return gpus_pb2.DrainAnswer(gpus=[view for view in views if view.uuid in found])


def named(name: str, state: NodeState) -> list[GpuId]:
    """Find GPUs by index (with its MIG instances), by ``0:1`` (one instance), by UUID or by ``all``.

    A drained GPU that is not there now is found too. Raises RequestError for an empty name, NotFound, and
    Unavailable while no GPU is known.
    """
    if not name:
        raise RequestError("no GPU is named", hint="give its index, its UUID or `all`")
    known = [*state.gpus, *(gpu for gpu in state.drained if gpu not in state.gpus)]
    if name == ALL:
        check_any(known)
        return known
    by_index = [gpu.id for gpu in state.gpus.values() if name in (str(gpu.index), gpu.label)]
    found = by_index or [gpu for gpu in known if gpu == name]
    if not found:
        check_any(state.gpus)
        raise NotFound(f"there is no GPU {shown(name)}", hint="`gpushare gpus -o wide` lists them")
    return found
