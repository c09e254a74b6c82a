"""Whose certificate counts on the nodes' port: when a node connects, at each call, and on open streams."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Callable, Iterable
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from gpushared.domain.model.errors import (
    ConfigError,
    PermissionRefused,
    RequestError,
    StateConflict,
    Unavailable,
)
from gpushared.pool.member.enrolment import make_csr
from gpushared.pool.trust.authority import Authority, key_pem, new_key
from gpushared.pool.trust.certificate_status import SignatureLog
from gpushared.pool.trust.certificates import (
    ASSERTION_KEY_OID,
    NodeCertificate,
    pem_of,
    read_node_certificate,
)
from tests.pool.trust.coordinator import Coordinator, Stream, cancel, coordinator, member, refusal

DAYS = 24 * 3600.0


async def test_a_node_says_who_it_is_by_its_certificate_alone(pool: Coordinator, tmp_path: Path) -> None:
    stream = Stream(pool, (await member(pool, tmp_path, "ws3")).credentials())
    assert await stream.open() == "ws3"
    await stream.close()


async def test_a_revoked_node_is_refused_at_each_call_with_what_helps(
    pool: Coordinator, tmp_path: Path
) -> None:
    node = await member(pool, tmp_path, "ws3")
    await pool.expel("ws3")
    error = await refusal(cancel(pool, node, "ada@ws3"))
    assert isinstance(error, PermissionRefused)
    assert error.message == "the certificate of node ws3 was revoked"
    assert "gpushare pool token --node ws3" in error.hint


async def test_the_open_stream_of_a_revoked_node_is_ended_and_no_other(
    pool: Coordinator, tmp_path: Path
) -> None:
    streams = [Stream(pool, (await member(pool, tmp_path, name)).credentials()) for name in ("ws3", "ws4")]
    assert [await stream.open() for stream in streams] == ["ws3", "ws4"]
    await pool.expel("ws3")
    assert "was revoked" in (await streams[0].ended()).message
    assert streams[1].is_open
    for stream in streams:
        await stream.close()


async def test_whoever_serves_the_link_is_told_once_which_node_fell(
    pool: Coordinator, tmp_path: Path
) -> None:
    node, told = await member(pool, tmp_path, "ws3"), []
    pool.trust.on_invalid(lambda name, error: told.append((name, error.message)))
    assert node.membership is not None
    pem = node.membership.certificate.encode()
    assert pool.trust.guard.node_of({"x509_pem_cert": [pem]}) == "ws3"
    await pool.expel("ws3")
    pool.trust.certificate_status.look_again(pool.clock())
    assert told == [("ws3", "the certificate of node ws3 was revoked")]


async def test_a_revocation_holds_over_a_restart_and_ends_when_the_node_joins_again(tmp_path: Path) -> None:
    async with coordinator(tmp_path / "coordinator") as pool:
        node = await member(pool, tmp_path, "ws3")
        await pool.expel("ws3")
    async with coordinator(tmp_path / "coordinator") as pool:
        with pytest.raises(PermissionRefused, match="was revoked"):
            pool.trust.certificate_status.check(node.membership.facts, pool.clock())  # type: ignore[union-attr]
        assert pool.members() == {}
        back = await member(pool, tmp_path / "again", "ws3")
        pool.trust.certificate_status.check(back.membership.facts, pool.clock())  # type: ignore[union-attr]


async def test_an_expired_certificate_does_not_get_through_tls(pool: Coordinator, tmp_path: Path) -> None:
    pool.clock.offset = -31 * DAYS
    node = await member(pool, tmp_path, "ws3")
    pool.clock.offset = 0
    stream = Stream(pool, node.credentials())
    assert isinstance(await stream.ended(), Unavailable)
    await stream.close()


async def test_a_node_whose_certificate_expired_says_so_itself(pool: Coordinator, tmp_path: Path) -> None:
    node = await member(pool, tmp_path, "ws3")
    pool.clock.offset = 31 * DAYS
    error = await refusal(node.renew())
    assert isinstance(error, StateConflict)
    assert "the certificate of node ws3 has expired" in error.message
    assert "gpushare pool token --node ws3" in error.hint


@pytest.mark.parametrize(("seconds", "open_still"), [(-1, True), (119, True), (121, False)])
async def test_an_open_stream_ends_two_minutes_after_its_certificate(
    pool: Coordinator, tmp_path: Path, seconds: float, open_still: bool
) -> None:
    node = await member(pool, tmp_path, "ws3")
    assert node.membership is not None
    stream = Stream(pool, node.credentials())
    await stream.open()
    pool.trust.certificate_status.look_again(node.membership.facts.expires_at + seconds)
    if open_still:
        assert stream.is_open
    else:
        error = await stream.ended()
        assert "expired 121 s ago by the coordinator's clock" in error.message
    await stream.close()


async def test_a_certificate_of_another_authority_does_not_get_through_tls(
    pool: Coordinator, tmp_path: Path
) -> None:
    """Another pool of the same name: nothing but the signature tells them apart."""
    async with coordinator(tmp_path / "other") as other:
        foreign = await member(other, tmp_path, "ws3")
    assert foreign.membership is not None
    credentials = grpc.ssl_channel_credentials(
        pool.anchors, foreign.membership.key.encode(), foreign.membership.certificate.encode()
    )
    stream = Stream(pool, credentials)
    assert isinstance(await stream.ended(), Unavailable)
    await stream.close()


async def test_a_node_does_not_talk_to_the_coordinator_of_another_authority(
    pool: Coordinator, tmp_path: Path
) -> None:
    node = await member(pool, tmp_path, "ws3")
    async with coordinator(tmp_path / "impostor") as impostor:
        stream = Stream(impostor, node.credentials())
        assert isinstance(await stream.ended(), Unavailable)
        await stream.close()


async def test_no_node_passes_for_the_coordinator(pool: Coordinator, tmp_path: Path) -> None:
    """Its certificate is of the same authority, but for clients, and without the coordinator's host name."""
    node, client = await member(pool, tmp_path, "ws3"), await member(pool, tmp_path, "ws4")
    assert node.membership is not None
    server = grpc.aio.server()
    pair = (node.membership.key.encode(), node.membership.certificate.encode())
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    await server.start()
    pool.nodes_port = port
    stream = Stream(pool, client.credentials())
    assert isinstance(await stream.ended(), Unavailable)
    await stream.close()
    await server.stop(None)


# --- certificates of the pool's own authority that name no node, or not one ------------------------------


def _signed(authority: Authority, names: Iterable[str], *, key_bytes: int = 32, client: bool = True) -> bytes:
    """What only who has the authority's key can make: key and certificate."""
    anchor, key = authority._anchors[-1], new_key()
    now = dt.datetime.now(dt.UTC)
    usage = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
    uris: list[x509.GeneralName] = [x509.UniformResourceIdentifier(name) for name in names] or [
        x509.DNSName("ws3")
    ]
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(anchor.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(uris), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(anchor.key.public_key()), critical=False
        )
    )
    if key_bytes:
        extension = x509.UnrecognizedExtension(ASSERTION_KEY_OID, b"k" * key_bytes)
        builder = builder.add_extension(extension, critical=False)
    return key_pem(key) + pem_of(builder.sign(anchor.key, hashes.SHA256()))


Maker = Callable[[Authority], bytes]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda a: _signed(a, []), "does not name exactly one node"),
        (lambda a: _signed(a, ["gpushare://lab/coordinator"]), "does not name exactly one node"),
        (lambda a: _signed(a, ["gpushare://lab/node/a", "gpushare://lab/node/b"]), "exactly one node"),
        (lambda a: _signed(a, ["gpushare://lab/node/a/b"]), "does not name exactly one node"),
        (lambda a: _signed(a, ["http://lab/node/a"]), "does not name exactly one node"),
        (lambda a: _signed(a, ["gpushare://other/node/a"]), "is of the pool other, and this is lab"),
        (lambda a: _signed(a, ["gpushare://lab/node/a"], key_bytes=0), "is not one of a node"),
        (lambda a: _signed(a, ["gpushare://lab/node/a"], key_bytes=31), "is not one of a node"),
    ],
)
async def test_a_certificate_with_other_names_is_no_nodes(pool: Coordinator, make: Maker, words: str) -> None:
    pem = make(pool.trust.authority)
    stream = Stream(
        pool, grpc.ssl_channel_credentials(pool.anchors, pem, pem[pem.index(b"-----BEGIN CERT") :])
    )
    error = await stream.ended()
    assert isinstance(error, PermissionRefused)
    assert words in error.message
    await stream.close()


async def test_a_servers_certificate_is_no_clients(pool: Coordinator) -> None:
    pem = _signed(pool.trust.authority, ["gpushare://lab/node/a"], client=False)
    stream = Stream(
        pool, grpc.ssl_channel_credentials(pool.anchors, pem, pem[pem.index(b"-----BEGIN CERT") :])
    )
    assert isinstance(await stream.ended(), Unavailable)
    await stream.close()


async def test_nobody_is_a_node_on_the_users_port(pool: Coordinator, tmp_path: Path) -> None:
    """That port asks for no certificate, so one that is offered does not count."""
    node = await member(pool, tmp_path, "ws3")
    pool.nodes_port = pool.users_port
    stream = Stream(pool, node.credentials())
    error = await stream.ended()
    assert "this call has no API token" in error.message
    await stream.close()


# --- requests for certificates ---------------------------------------------------------------------------


def _csr(key: ec.EllipticCurvePrivateKey) -> bytes:
    return make_csr(key, Ed25519PrivateKey.generate())


def _altered_csr(before: bytes, after: bytes) -> bytes:
    """A request with two more extensions, in which some bytes of its DER are replaced."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    for oid in (ASSERTION_KEY_OID, x509.ObjectIdentifier("1.2.3.4"), x509.ObjectIdentifier("1.2.3.5")):
        builder = builder.add_extension(x509.UnrecognizedExtension(oid, b"k" * 32), critical=False)
    der = builder.sign(new_key(), hashes.SHA256()).public_bytes(Encoding.DER)
    assert before in der
    text = base64.encodebytes(der.replace(before, after, 1))
    return b"-----BEGIN CERTIFICATE REQUEST-----\n" + text + b"-----END CERTIFICATE REQUEST-----\n"


@pytest.mark.parametrize(
    ("csr", "words"),
    [
        (b"", "cannot be read"),
        (b"x" * 20_000, "too long"),
        (_altered_csr(b"\x02\x01\x00", b"\x02\x01\x07"), "cannot be read"),  # a version that is none
        (
            _altered_csr(b"\x06\x03\x2a\x03\x05", b"\x06\x03\x2a\x03\x04"),
            "cannot be read",
        ),  # an extension twice
        (_csr(ec.generate_private_key(ec.SECP384R1())), "not of the curve P-256"),
        (_csr(new_key()).replace(b"A", b"B", 1), "cannot be read|does not hold together|not of the curve"),
    ],
)
async def test_a_request_that_is_not_ours_is_not_signed(pool: Coordinator, csr: bytes, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        pool.trust.authority.sign_node(csr, "ws3", frozenset(), pool.clock())  # type: ignore[arg-type]


async def test_a_request_cannot_choose_its_names(pool: Coordinator) -> None:
    """Only its keys are taken over."""
    key = new_key()
    wish = x509.SubjectAlternativeName([x509.UniformResourceIdentifier("gpushare://lab/node/dgx")])
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "dgx")]))
        .add_extension(wish, critical=True)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.UnrecognizedExtension(ASSERTION_KEY_OID, b"k" * 32), critical=False)
        .sign(key, hashes.SHA256())
    )
    csr = request.public_bytes(Encoding.PEM)
    signed = pool.trust.authority.sign_node(csr, "ws3", frozenset(), pool.clock())  # type: ignore[arg-type]
    assert read_node_certificate(pem_of(signed)).node == "ws3"
    assert not signed.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not list(signed.subject)


# --- the log of signatures ------------------------------------------------------------------------------------------


def _certificate(node: str, serial: int, issued_at: float = 100.0) -> NodeCertificate:
    return NodeCertificate("lab", node, serial, issued_at, 900.0, frozenset(), b"k" * 32, "a1")  # type: ignore[arg-type]


def test_a_line_that_was_cut_off_is_forgotten_and_the_next_begins_where_it_stood(tmp_path: Path) -> None:
    path = tmp_path / "issued.jsonl"
    SignatureLog(path).issued(_certificate("ws3", 1), 100.0)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"what": "issued", "node": "ws4", "ser')
    signatures = SignatureLog(path)
    assert set(signatures.members()) == {"ws3"}
    signatures.issued(_certificate("ws5", 2), 101.0)
    assert set(SignatureLog(path).members()) == {"ws3", "ws5"}
    assert path.read_bytes().startswith(whole)


def test_a_damaged_line_is_not_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "issued.jsonl"
    path.write_bytes(b"{}\n")
    with pytest.raises(ConfigError, match="line 1, cannot be read"):
        SignatureLog(path)


def test_a_log_of_signatures_that_cannot_be_written_says_so_and_changes_nothing(tmp_path: Path) -> None:
    signatures = SignatureLog(tmp_path / "gone" / "issued.jsonl")
    with pytest.raises(Unavailable):
        signatures.issued(_certificate("ws3", 1), 100.0)
    assert signatures.members() == {}


def test_a_certificate_that_an_old_copy_of_the_log_does_not_know_counts_by_when_it_was_made(
    tmp_path: Path,
) -> None:
    signatures = SignatureLog(tmp_path / "issued.jsonl")
    signatures.issued(_certificate("ws3", 1), 100.0)
    signatures.revoke("ws3", "root", 200.0)  # type: ignore[arg-type]
    assert signatures.is_revoked(_certificate("ws3", 2, issued_at=150.0))
    assert not signatures.is_revoked(_certificate("ws3", 3, issued_at=250.0))
    assert not signatures.is_revoked(_certificate("ws4", 4))


def test_an_authority_is_not_founded_twice(tmp_path: Path) -> None:
    Authority.create(tmp_path / "ca", "lab", 1e9)
    with pytest.raises(StateConflict, match="already"):
        Authority.create(tmp_path / "ca", "lab", 1e9)


def test_without_an_authority_the_coordinator_says_how_to_begin(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        Authority.load(tmp_path / "ca")
    assert "gpushare pool init" in caught.value.hint


def test_a_key_that_does_not_go_with_its_certificate_is_told(tmp_path: Path) -> None:
    Authority.create(tmp_path / "ca", "lab", 1e9)
    (tmp_path / "ca" / "anchor-1.key").write_bytes(key_pem(new_key()))
    with pytest.raises(ConfigError, match="does not go with its certificate"):
        Authority.load(tmp_path / "ca")
