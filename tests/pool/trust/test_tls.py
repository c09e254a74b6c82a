"""Which versions and cipher suites of TLS the coordinator's ports speak, with a client that knows all."""

from __future__ import annotations

import asyncio
import socket
import ssl

import pytest

from tests.pool.trust.coordinator import Coordinator

SECONDS = 10.0


def handshake(port: int, most: ssl.TLSVersion, ciphers: str = "ALL:@SECLEVEL=0") -> str | None:
    """The version and suite that both agreed on; None where they did not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_ciphers(ciphers)
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.maximum_version = most
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection(("127.0.0.1", port), SECONDS) as plain,
            context.wrap_socket(plain) as talk,
        ):
            name, version, _ = talk.cipher() or ("", "", 0)
            return f"{version} {name}"
    except OSError:
        return None


def suites() -> list[str]:
    """All of TLS 1.2 and before that this machine's OpenSSL has."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("ALL:@SECLEVEL=0")
    return [each["name"] for each in context.get_ciphers() if each["protocol"] != "TLSv1.3"]


async def test_two_who_know_tls_1_3_speak_it(pool: Coordinator) -> None:
    for port in (pool.users_port, pool.nodes_port):
        version = await asyncio.to_thread(handshake, port, ssl.TLSVersion.TLSv1_3)
        assert version is not None
        assert version.startswith("TLSv1.3 "), version


async def test_of_tls_1_2_only_suites_with_forward_secrecy_and_authenticated_encryption_are_spoken(
    pool: Coordinator,
) -> None:
    """The key of the coordinator is one of an elliptic curve, so those with RSA have nothing to sign with."""
    said = {
        await asyncio.to_thread(handshake, pool.users_port, ssl.TLSVersion.TLSv1_2, f"{suite}:@SECLEVEL=0")
        for suite in suites()
    }
    assert said - {None} == {
        "TLSv1.2 ECDHE-ECDSA-AES128-GCM-SHA256",
        "TLSv1.2 ECDHE-ECDSA-AES256-GCM-SHA384",
    }


async def test_the_nodes_port_asks_for_a_certificate_in_tls_1_2_too(pool: Coordinator) -> None:
    assert await asyncio.to_thread(handshake, pool.nodes_port, ssl.TLSVersion.TLSv1_2) is None


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
async def test_nothing_older_than_tls_1_2_is_spoken(pool: Coordinator) -> None:
    for port in (pool.users_port, pool.nodes_port):
        assert await asyncio.to_thread(handshake, port, ssl.TLSVersion.TLSv1_1) is None
