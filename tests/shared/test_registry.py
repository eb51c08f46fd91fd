"""Addresses of a registry: what is taken, what is refused, and that no password is ever shown."""

import asyncio
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.redis_server import redis_server
from trunkline.shared.errors import ConfigError
from trunkline.shared.registry import PASSWORD_VARIABLE, RegistryAddress, registry_address


@pytest.mark.parametrize(
    ("url", "shown", "prefix"),
    [
        ("redis://h", "redis://h:6379/0", "trunkline:0"),
        ("redis://h:7000/3", "redis://h:7000/3", "trunkline:3"),
        ("rediss://h:7000/3?ssl_ca_certs=/ca.pem", "rediss://h:7000/3", "trunkline:3"),
        ("redis://user:hunter2@[::1]:7000", "redis://[::1]:7000/0", "trunkline:0"),
        ("unix:///run/redis.sock?db=2", "unix:///run/redis.sock/2", "trunkline:2"),
    ],
)
def test_addresses(url: str, shown: str, prefix: str) -> None:
    address = registry_address(url, None)
    assert (str(address), address.prefix) == (shown, prefix)
    assert "hunter2" not in repr(address)


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("http://:hunter2@h", "not of the form"),
        ("h:6379", "not of the form"),
        ("redis://", "not of the form"),
        ("redis://u:hunter2@h:port", "not of the form"),
        ("redis://:hunter2@h/one", "database 'one'"),
        ("redis://h/99999", "database"),
        ("redis://h?socket_timeout=5", "'socket_timeout' is none that redis:// takes"),
        ("unix://", "not of the form"),
    ],
)
def test_bad_addresses_are_refused_without_the_password(url: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as refused:
        registry_address(url, None)
    assert "hunter2" not in str(refused.value)


def test_where_the_password_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "password").write_text("of the file\n")
    monkeypatch.delenv(PASSWORD_VARIABLE, raising=False)
    assert registry_address("redis://h", None).password is None
    assert registry_address("redis://:of%20the%20url@h", None).password == "of the url"
    monkeypatch.setenv(PASSWORD_VARIABLE, "of the environment")
    assert registry_address("redis://:of-the-url@h", None).password == "of the environment"
    assert registry_address("redis://:of-the-url@h", tmp_path / "password").password == "of the file"
    with pytest.raises(ConfigError, match="cannot be read"):
        registry_address("redis://h", tmp_path / "nothing")


def test_tls(tmp_path: Path) -> None:
    """A server with a certificate: taken if it is trusted, refused if not."""
    openssl = shutil.which("openssl")
    assert openssl is not None, "openssl makes the certificate of this test"
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
        + ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = f"--tls-port {port} --tls-cert-file {certificate} --tls-key-file {key} --tls-auth-clients no".split()

    async def ping(address: RegistryAddress) -> bool:
        async with address.connect() as redis:
            return bool(await redis.ping())

    with redis_server(*options, "--bind", "127.0.0.1"):
        url = f"rediss://localhost:{port}"
        assert asyncio.run(ping(registry_address(f"{url}?ssl_ca_certs={certificate}", None)))
        with pytest.raises(RedisConnectionError, match=r"(?i)certificate"):
            asyncio.run(ping(registry_address(url, None)))
