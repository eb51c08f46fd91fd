"""A Redis that is not the release's: with a password, and with TLS."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.k8s.cluster import eventually
from tests.k8s.namespace import EMULATED, namespace, pod, secret, service

pytestmark = pytest.mark.timeout(600, func_only=True)

IMAGE = "localhost/redis:7"
PASSWORD = "a good one"
EXTERNAL = ("redis.enabled=false", "redis.external.existingSecret=redis")
SERVER = "bind 0.0.0.0\nsave ''\ndir /tmp\n"


def certificate(folder: Path, days: int) -> str:
    """Of `my-redis`, good for so many days; signed by the folder's authority, which is made if there is none."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder)

    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    if not (folder / "ca.crt").exists():
        openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=here", "-days", "2")
    (folder / "names").write_text("subjectAltName=DNS:my-redis")
    openssl("req", *new, "-keyout", "tls.key", "-out", "tls.csr", "-subj", "/CN=my-redis")
    sign = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
    openssl("x509", "-req", "-in", "tls.csr", *sign, "-out", "tls.crt", "-days", str(days))
    return (folder / "tls.crt").read_text()


def test_a_redis_with_tls_and_first_a_wrong_password_then_an_expired_certificate(tmp_path: Path) -> None:
    conf = f"{SERVER}requirepass '{PASSWORD}'\nport 0\ntls-port 6379\ntls-auth-clients no\n"
    conf += "tls-cert-file /secret/tls.crt\ntls-key-file /secret/tls.key\ntls-ca-cert-file /secret/ca.crt\n"
    external = (*EXTERNAL, "redis.external.url=rediss://my-redis:6379/0", "redis.external.caSecret=authority")
    with namespace("redis") as here:

        def start(days: int) -> None:
            crt = certificate(tmp_path, days)
            files = {"tls.crt": crt, "tls.key": (tmp_path / "tls.key").read_text(), "redis.conf": conf}
            here.apply(
                secret("my-redis", **files, **{"ca.crt": (tmp_path / "ca.crt").read_text()}),
                pod("my-redis", IMAGE, ["redis-server", "/secret/redis.conf"], secret="my-redis"),
                service("my-redis", 6379),
            )
            here.kubectl("wait", "--for=condition=Ready", "pod/my-redis", "--timeout=60s")

        def logged(workload: str, reason: str) -> str:
            log = here.kubectl("logs", workload)
            return log if re.search(reason, log) else ""

        def said(reason: str) -> None:
            """In the description of the router's pod, and once in each log."""
            eventually(lambda: re.search(reason, here.describe("router")))
            for workload in ("deployment/tl-router", "statefulset/tl-default"):
                log = eventually(lambda name=workload: logged(name, reason))
                assert len(re.findall(reason, log)) == 1, log
                assert "guessed" not in log
                assert "Traceback" not in log

        start(days=2)
        here.apply(
            secret("redis", password="guessed"), secret("authority", **{"ca.crt": (tmp_path / "ca.crt").read_text()})
        )
        here.install(*external, values=EMULATED)
        said(r"registry rediss://my-redis:6379/0: it wants a password, or another one")

        here.kubectl("delete", "pod", "my-redis")
        start(days=-1)
        here.apply(secret("redis", password=PASSWORD))
        here.kubectl("delete", "pods", "-l", "app.kubernetes.io/name=trunkline", "--grace-period=1")
        said(r"registry rediss://my-redis:6379/0: .*certificate has expired")

        here.kubectl("delete", "pod", "my-redis")
        start(days=2)
        here.ready("deployment/tl-router")
        here.hit()
