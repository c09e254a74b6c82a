"""``NodeLink``, at the nodes' door."""

from __future__ import annotations

from collections.abc import Sequence

from gpushared.api.v1 import link_pb2_grpc
from gpushared.pool.parts import Coordinator, Door, Service


def link_services(coordinator: Coordinator) -> Sequence[Service]:
    """What nodes dial."""
    link = coordinator.link
    return (
        Service(
            "gpushare.v1.NodeLink",
            frozenset({Door.NODES}),
            lambda server: link_pb2_grpc.add_NodeLinkServicer_to_server(link, server),
        ),
    )
