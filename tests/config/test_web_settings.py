"""The settings of the page: which of them contradict each other, and what they may be."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushared.config import load
from gpushared.config.pool_settings import load_pool
from gpushared.domain.model.errors import ConfigError

TLS = 'certificate = "/c.pem"\nkey = "/k.pem"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('listen = "0.0.0.0:8443"', "web.listen 0.0.0.0:8443 is no loopback address"),
        ('listen = "[::]:8443"', "web.listen [::]:8443 is no loopback address"),
        ('listen = "10.0.0.7:8443"', "web.certificate is missing"),
        ('listen = "gpu1:8443"', "web.listen must be `ADDRESS:PORT`, a port, or empty"),
        ('certificate = "/c.pem"', "web.certificate stands without web.key"),
        ('listen = "8443"\nkey = "/k.pem"', "web.key stands without web.certificate"),
        ('proxy_ca = "/ca.pem"', "web.proxy_ca needs web.listen"),
        ('listen = "8443"\nproxy_ca = "/ca.pem"', "web.proxy_ca needs web.listen"),
        ('proxy_socket = "/run/web.sock"', "web.proxy_socket stands without web.proxy_users"),
        ('proxy_users = ["www-data"]', "web.proxy_users stands without web.proxy_socket"),
        ('hosts = ["gpu1:8443"]', "web.hosts must be a host name or address"),
        ('hosts = ["a b"]', "web.hosts must be a host name or address"),
        ('proxy_header = "Host"', "web.proxy_header must be the name of a header"),
        ('proxy_header = "X-User: ada"', "web.proxy_header must be the name of a header"),
        ('base_path = "gpus"', "web.base_path must be a path"),
    ],
)
def test_settings_that_would_not_work_are_refused_in_a_sentence(
    tmp_path: Path, text: str, words: str
) -> None:
    for name, read in (("config.toml", load), ("pool.toml", load_pool)):
        file = tmp_path / name
        file.write_text(f"[web]\n{text}\n")
        with pytest.raises(ConfigError) as refusal:
            read(file)
        assert words in refusal.value.message


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", None),
        ('listen = "8443"', ("127.0.0.1", 8443)),
        ('listen = "[::1]:8443"', ("::1", 8443)),
        (f'listen = "0.0.0.0:8443"\n{TLS}', ("0.0.0.0", 8443)),
        (f'listen = "[::]:8443"\n{TLS}proxy_ca = "/ca.pem"', ("::", 8443)),
        ('proxy_socket = "/run/web.sock"\nproxy_users = ["www-data"]', None),
        ('hosts = ["gpu1", "gpus.example.org", "10.0.0.7", "fe80::1", "gpu_1"]', None),
    ],
)
def test_settings_that_fit_together_are_taken(
    tmp_path: Path, text: str, address: tuple[str, int] | None
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"[web]\n{text}\n")
    assert load(file).config.web.address == address
