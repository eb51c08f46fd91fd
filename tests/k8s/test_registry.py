"""A Redis that is not the release's: with a password, with TLS, behind Sentinel."""

import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.k8s.cluster import eventually
from tests.k8s.namespace import EMULATED, namespace, pod, secret, service

pytestmark = pytest.mark.timeout(600, func_only=True)

IMAGE = "localhost/redis:7"
PASSWORD = "a good one"
EXTERNAL = ("redis.enabled=false", "redis.external.existingSecret=redis")
SERVER = "bind 0.0.0.0\nsave ''\ndir /dev/shm\n"
REPLICATED = "requirepass 'of-the-servers'\nmasterauth 'of-the-servers'\nrepl-diskless-sync-delay 0\n"
SERVICE = "registry"
SENTINEL = f"""bind 0.0.0.0
dir /dev/shm
requirepass "of-the-sentinels"
sentinel sentinel-pass "of-the-sentinels"
sentinel monitor {SERVICE} {{primary}} 6379 2
sentinel auth-pass {SERVICE} "of-the-servers"
sentinel down-after-milliseconds {SERVICE} 1000
sentinel failover-timeout {SERVICE} 6000
"""


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
        here.delete_pods("-l", "app.kubernetes.io/name=trunkline", "--grace-period=1")
        said(r"registry rediss://my-redis:6379/0: .*certificate has expired")

        here.kubectl("delete", "pod", "my-redis")
        start(days=2)
        here.ready("deployment/tl-router")
        here.hit()


def test_sentinels_agree_on_another_primary_and_no_request_fails() -> None:
    """Three pods with a Redis and a sentinel each, with passwords of their own; the primary's pod is deleted."""
    names = [f"redis-{number}" for number in range(3)]
    url = f"redis+sentinel://{','.join(names)}/{SERVICE}"
    with namespace("sentinel") as here:
        # Addresses that last, so that a sentinel need not look up names.
        here.apply(*(service(name, 6379, 26379) for name in names))
        address = {name: here.get("service", name)["spec"]["clusterIP"] for name in names}
        files = {"redis.conf": SERVER + REPLICATED, "sentinel.conf": SENTINEL.format(primary=address[names[0]])}
        here.apply(secret("redis", password="of-the-servers", sentinel="of-the-sentinels"), secret("my-redis", **files))
        for name in names:
            # Sentinels write into their configuration, and wait for the disk that it is on.
            conf = f"(cat /secret/sentinel.conf; echo sentinel announce-ip {address[name]}) >/dev/shm/sentinel.conf"
            follows = "" if name == names[0] else f"--replicaof {address[names[0]]} 6379"
            server = f"redis-server /secret/redis.conf --replica-announce-ip {address[name]} {follows}"
            script = f"{conf}; redis-server /dev/shm/sentinel.conf --sentinel & exec {server}"
            here.apply(pod(name, IMAGE, ["sh", "-c", script], secret="my-redis"))
        here.client()
        external = {"url": url, "sentinelKey": "sentinel"}
        here.install(*EXTERNAL, values=EMULATED | {"redis": {"external": external}})
        here.ready("deployment/tl-router")
        here.ready("statefulset/tl-default")
        asked = ("redis-cli", "-p", "26379", "--no-auth-warning", "-a", "of-the-sentinels", "sentinel")
        known = re.compile(r"num-slaves\n2\nnum-other-sentinels\n2\n")
        eventually(lambda: known.search(here.kubectl("exec", names[1], "--", *asked, "master", SERVICE)))

        with here.streams() as streams:
            time.sleep(3.0)
            here.kubectl("delete", "pod", names[0], "--force", "--grace-period=0")
            find = ("exec", names[1], "--", *asked, "get-master-addr-by-name", SERVICE)
            eventually(lambda: here.kubectl(*find).split()[0] in (address[names[1]], address[names[2]]))
            # Who comes now is found through the new primary.
            here.kubectl("scale", "statefulset/tl-default", "--replicas=3")
            eventually(lambda: len(here.serving()) == 3)
        print("another Redis is the primary:", streams.report)
        assert (streams.report["failed"], streams.report["refused"]) == ([], {})
