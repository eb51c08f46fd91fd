"""A custom metrics API of a test's own: serves a gauge of the routers, as an adapter for Prometheus would."""

import json
import re
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import httpx
import yaml

from tests.http_server import Handler, running
from tests.k8s.cluster import ADDRESS, run
from tests.k8s.namespace import COMPONENT, Namespace

GROUP, VERSION = "custom.metrics.k8s.io", "v1beta2"
ROOT = f"/apis/{GROUP}/{VERSION}"


@contextmanager
def adapter(here: Namespace, metric: str, folder: Path) -> Iterator[None]:
    """On this machine; the API server passes on to it what the autoscaler asks. `folder` is for its certificate."""
    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=adapter")
    run("openssl", "req", "-x509", *new, "-keyout", str(folder / "key"), "-out", str(folder / "certificate"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate", folder / "key")

    class Values(Handler):
        def do_GET(self) -> None:
            path = unquote(self.path.partition("?")[0])
            found = {ROOT: _resources(metric), f"{ROOT}/namespaces/{here.name}/pods/*/{metric}": None}
            body = json.dumps(found.get(path) or _values(here, metric)).encode()
            self.answer(200 if path in found else 404, body, content_type="application/json")

    server = ThreadingHTTPServer((ADDRESS, 0), Values)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with running(server):
        try:
            _register(here, server.server_port)
            yield
        finally:
            run("kubectl", "delete", "apiservice", f"{VERSION}.{GROUP}", "--ignore-not-found")


def _resources(metric: str) -> dict[str, object]:
    resource = {"name": f"pods/{metric}", "singularName": "", "namespaced": True, "kind": "MetricValueList"}
    listed = [resource | {"verbs": ["get"]}]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{GROUP}/{VERSION}", "resources": listed}


def _values(here: Namespace, metric: str) -> dict[str, object]:
    items = []
    for pod in here.get("pods", "-l", COMPONENT.format("router"))["items"]:
        name, address = pod["metadata"]["name"], pod["status"].get("podIP")
        if name in here.pods("router"):
            text = httpx.get(f"http://{address}:8000/metrics", timeout=5.0, trust_env=False).text
            [value] = re.findall(rf"^{metric} (\S+)$", text, re.MULTILINE)
            described = {"kind": "Pod", "apiVersion": "/v1", "namespace": here.name, "name": name}
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            items.append(
                {
                    "describedObject": described,
                    "metric": {"name": metric},
                    "timestamp": now,
                    "value": str(int(float(value))),
                }
            )
    return {"kind": "MetricValueList", "apiVersion": f"{GROUP}/{VERSION}", "metadata": {}, "items": items}


def _register(here: Namespace, port: int) -> None:
    endpoints = {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {"name": "adapter"},
        "subsets": [{"addresses": [{"ip": ADDRESS}], "ports": [{"name": "https", "port": port}]}],
    }
    here.apply(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "adapter"},
            "spec": {"ports": [{"name": "https", "port": 443}]},
        },
        endpoints,
    )
    passed_on = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"{VERSION}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "version": VERSION,
            "service": {"namespace": here.name, "name": "adapter"},
            "insecureSkipTLSVerify": True,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
        },
    }
    run("kubectl", "apply", "-f", "-", input=yaml.safe_dump(passed_on))
    run("kubectl", "wait", "--for=condition=Available", f"apiservice/{VERSION}.{GROUP}", "--timeout=60s")
