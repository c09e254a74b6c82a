"""Has the kernel drop what some addresses send to listening sockets, before a connection is made of it.

A connection that is accepted only to be ended costs a TLS session; a dropped packet costs next to nothing.
The filter is classic BPF at the sockets themselves (socket(7), SO_ATTACH_FILTER), for which no right is
needed. Accepted sockets inherit it, and are not from these addresses.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Collection, Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network

Network = IPv4Network | IPv6Network

_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
# linux/filter.h and linux/bpf_common.h
_LOAD_BYTE, _LOAD_WORD, _AND, _JUMP, _IF_EQUAL, _RETURN = 0x30, 0x20, 0x54, 0x05, 0x15, 0x06
_HEADER = 0xFFF00000
"""SKF_NET_OFF: counted from here, a place is one in the header of IP."""
_VERSION, _SOURCE_4, _SOURCE_6 = _HEADER, _HEADER + 12, _HEADER + 8
_DROP, _TAKE = (_RETURN, 0, 0, 0), (_RETURN, 0, 0, 0xFFFFFFFF)

Instruction = tuple[int, int, int, int]
"""Code, how many to skip if so, if not, and an operand."""


def drop_from(networks: Collection[Network], listener: socket.socket) -> None:
    """Drop what comes from these networks, a few hundred at most, and from no others. Raises OSError."""
    if networks:
        _attach(listener, program(networks))
    else:
        listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


def program(networks: Iterable[Network]) -> list[Instruction]:
    """The filter. Of IPv6 it compares the first 64 bits of an address."""
    old: list[Instruction] = [(_LOAD_WORD, 0, 0, _SOURCE_4)]
    new: list[Instruction] = []
    for network in networks:
        number = int(network.network_address)
        if isinstance(network, IPv4Network):
            old += [(_IF_EQUAL, 0, 1, number), _DROP]
        else:
            new += [(_LOAD_WORD, 0, 0, _SOURCE_6), (_IF_EQUAL, 0, 3, number >> 96)]
            new += [(_LOAD_WORD, 0, 0, _SOURCE_6 + 4), (_IF_EQUAL, 0, 1, number >> 64 & 0xFFFFFFFF), _DROP]
    version = [(_LOAD_BYTE, 0, 0, _VERSION), (_AND, 0, 0, 0xF0), (_IF_EQUAL, 1, 0, 0x40)]
    return [*version, (_JUMP, 0, 0, len(old) + 1), *old, _TAKE, *new, _TAKE]


def _attach(listener: socket.socket, instructions: Sequence[Instruction]) -> None:
    packed = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in instructions))
    about = struct.pack("HP", len(instructions), ctypes.addressof(packed))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, about)
