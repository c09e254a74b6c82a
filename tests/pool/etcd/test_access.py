"""How a coordinator reaches etcd: addresses, certificates that are replaced, what does not fit together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpushared.domain.model.errors import ConfigError
from gpushared.ports.job_store import StoreUnavailable
from gpushared.storage.etcd.access import EtcdAccess, endpoints_of
from tests.bed import parts
from tests.bed.etcd import EtcdCluster
from tests.pool.etcd.writers import Writer, opened, values
from tests.web.certificates import CertificateMaker


@dataclass
class MemberWithTls:
    """A member that wants clients' certificates, and the files of one authority."""

    cluster: EtcdCluster
    folder: Path

    @property
    def access(self) -> EtcdAccess:
        return EtcdAccess(
            self.cluster.endpoints,
            ca_file=f"{self.folder}/authority.pem",
            cert_file=f"{self.folder}/pool.pem",
            key_file=f"{self.folder}/pool.key",
        )

    def certify(self) -> None:
        """Replaces the authority, and all certificates with it."""
        maker = CertificateMaker(self.folder)
        maker.server("etcd", self.cluster.members[0].host, "localhost")
        maker.client("pool")


@pytest.fixture
def member(tmp_path: Path) -> Iterator[MemberWithTls]:
    parts.need_file("etcd", parts.ETCD / "etcdctl")
    files = [f"--cert-file={tmp_path}/etcd.pem", f"--key-file={tmp_path}/etcd.key"]
    flags = [*files, "--client-cert-auth", f"--trusted-ca-file={tmp_path}/authority.pem"]
    ctl = [f"--cacert={tmp_path}/authority.pem", f"--cert={tmp_path}/pool.pem", f"--key={tmp_path}/pool.key"]
    cluster = EtcdCluster(tmp_path, flags=flags, ctl_flags=ctl, scheme="https")
    made = MemberWithTls(cluster, tmp_path)
    made.certify()
    try:
        cluster.start()
        yield made
    finally:
        cluster.dispose()


async def test_certificates_that_are_replaced_are_read_without_a_restart(member: MemberWithTls) -> None:
    async with opened(member.access) as store:
        writer = Writer(store, await store.lead())
        await writer.put("before", "1")
        member.cluster.members[0].kill()
        member.certify()
        member.cluster.members[0].start()
        await writer.put_surely("after", "2")
        assert await values(store) == {"before": "1", "after": "2"}


async def test_files_that_are_gone_for_a_moment_do_no_harm(member: MemberWithTls) -> None:
    async with opened(member.access) as store:
        writer = Writer(store, await store.lead())
        key = member.folder / "pool.key"
        key.rename(member.folder / "elsewhere")
        await store.client.renew_certificates()
        await writer.put("a", "1")
        (member.folder / "elsewhere").rename(key)
        await store.client.renew_certificates()
        await writer.put("b", "2")


async def test_whoever_has_no_certificate_or_trusts_another_authority_gets_nothing(
    member: MemberWithTls, tmp_path: Path
) -> None:
    other = CertificateMaker(tmp_path, "other")
    ca = f"{tmp_path}/authority.pem"
    for access in (
        EtcdAccess(member.cluster.endpoints, ca_file=ca),
        EtcdAccess(member.cluster.endpoints, ca_file=str(other.path)),
    ):
        async with opened(access, call_seconds=0.5) as store:
            with pytest.raises(StoreUnavailable, match="etcd does not serve"):
                await store.lead()
    async with opened(EtcdAccess(member.cluster.endpoints, ca_file="/nonexistent")) as store:
        with pytest.raises(ConfigError, match="/nonexistent cannot be read"):
            await store.lead()


@pytest.mark.parametrize(
    ("url", "endpoints"),
    [
        ("etcd://a:2379", ("a:2379",)),
        ("etcd://a.lab:1,10.0.0.1:2,[fd00::1]:3/", ("a.lab:1", "10.0.0.1:2", "[fd00::1]:3")),
    ],
)
def test_members_are_named_in_an_address(url: str, endpoints: tuple[str, ...]) -> None:
    assert endpoints_of(url) == endpoints


@pytest.mark.parametrize(
    "url", ["etcd://", "etcd://a", "http://a:1", "a:1", "etcd://a:1,", "etcd://u@a:1", ""]
)
def test_what_names_no_members_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="does not name members"):
        endpoints_of(url)


@pytest.mark.parametrize(
    ("access", "told"),
    [
        (EtcdAccess(("127.0.0.1:1",), cert_file="/c"), "cert_file and store.key_file belong together"),
        (EtcdAccess(("127.0.0.1:1",), cert_file="/c", key_file="/k"), "needs store.ca_file"),
        (EtcdAccess(("127.0.0.1:1",), user="u"), "user and store.password_file belong together"),
        (EtcdAccess(("[::1]:1", "10.0.0.1:1")), "10.0.0.1:1 is on another machine"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(access: EtcdAccess, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        access.check()
