"""A registry behind TLS: its certificate is looked at, and what is wrong with it is said where an operator looks."""

import logging
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.redis_server import redis_server
from tests.router.replicas.fleet import get, link, quick
from tests.router.serving import ask, run, serving, until
from trunkline.shared.registry import registry_address


def certificate(folder: Path, days: int) -> tuple[Path, Path]:
    """Key and certificate of `localhost`, which is its own authority. 0 `days`: it has expired a second later."""
    openssl = shutil.which("openssl")
    assert openssl is not None, "openssl makes the certificate of this test"
    key, request, made, names = (folder / name for name in ("key.pem", "request.pem", "cert.pem", "names"))
    names.write_text("subjectAltName=DNS:localhost")
    new = ["-newkey", "rsa:2048", "-nodes", "-keyout", key, "-subj", "/CN=localhost"]
    subprocess.run([openssl, "req", *new, "-out", request], check=True, capture_output=True)
    sign = ["-req", "-in", request, "-signkey", key, "-extfile", names, "-days", str(days)]
    subprocess.run([openssl, "x509", *sign, "-out", made], check=True, capture_output=True)
    return key, made


@pytest.mark.parametrize(("days", "said"), [(2, ""), (0, "certificate has expired")])
def test_a_certificate_that_has_expired_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, days: int, said: str
) -> None:
    quick(monkeypatch)
    monkeypatch.setattr("trunkline.shared.registry.ANSWER_S", 5.0)
    key, made = certificate(tmp_path, days)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ("--tls-port", port, "--tls-cert-file", made, "--tls-key-file", key, "--tls-auth-clients", "no")

    async def main() -> None:
        with redis_server(*map(str, options), "--bind", "127.0.0.1"):
            address = registry_address(f"rediss://localhost:{port}?ssl_ca_certs={made}", None)
            async with serving([], registry=address) as router:
                if not said:
                    await until(lambda: link(router).connected)
                    return
                await until(lambda: said in link(router).error)
                readyz = await ask(router.port, get("/readyz"))
                assert readyz.status == 503
                assert any(said in reason for reason in readyz.json["missing"])
                (line,) = (record for record in caplog.records if said in record.getMessage())
                assert line.exc_info is None

    with caplog.at_level(logging.INFO):
        run(main())
