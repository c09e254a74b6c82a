"""``NodeLink``, at the nodes' door."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from gpushared.api.v1 import link_pb2
from gpushared.pool.link import LinkService
from gpushared.pool.parts import Coordinator, Door, Service
from gpushared.pool.tunnel_frames import from_wire, to_wire

_LINK = link_pb2.DESCRIPTOR.services_by_name["NodeLink"].full_name


def link_services(coordinator: Coordinator) -> Sequence[Service]:
    """Return the service that nodes dial."""
    link = coordinator.link
    return (
        Service(
            _LINK,
            frozenset({Door.NODES}),
            lambda server: server.add_generic_rpc_handlers((link_handlers(link),)),
        ),
    )


def link_handlers(link: LinkService) -> grpc.GenericRpcHandler:
    """Its calls, the tunnels' with a reader of their own."""
    return grpc.method_handlers_generic_handler(
        _LINK,
        {
            "Connect": grpc.stream_stream_rpc_method_handler(
                link.Connect, link_pb2.Up.FromString, link_pb2.Down.SerializeToString
            ),
            "Serve": grpc.stream_stream_rpc_method_handler(
                link.Serve, from_wire(link_pb2.TunnelData), to_wire(link_pb2.TunnelData)
            ),
        },
    )
