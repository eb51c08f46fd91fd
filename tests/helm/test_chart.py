"""The chart, rendered by Helm itself: what comes out with good values, and what is said of bad ones. `make chart`."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from trunkline.agent.engine.emulated.profile import ENGINES

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm/trunkline"
HELM = os.environ.get("HELM") or shutil.which("helm")

pytestmark = pytest.mark.skipif(HELM is None, reason="Helm is not here: `make chart` gets it")

DISK = "poolDefaults.disk.size=4GiB"
GOOD: dict[str, tuple[str, ...]] = {
    "as it is": (),
    "one router without Redis": ("redis.enabled=false", "router.replicas=1"),
    "one router that watches EndpointSlices": (
        "redis.enabled=false",
        "router.replicas=1",
        "endpointSlices.enabled=true",
        "poolDefaults.kind=DaemonSet",
    ),
    "EndpointSlices, and Redis among routers": ("endpointSlices.enabled=true",),
    "Redis of one's own": (
        "redis.enabled=false",
        "redis.external.url=rediss://redis.example:6379/0",
        "redis.external.existingSecret=r",
        "redis.external.caSecret=ca",
    ),
    "Redis behind Sentinel": (
        "redis.enabled=false",
        "redis.external.url=redis+sentinel://s0:26379\\,s1:26379/mymaster",
        "redis.external.existingSecret=r",
        "redis.external.sentinelKey=sentinel",
    ),
    "several pools": ("pools[0].name=a", "pools[1].name=b", "pools[1].engine=emulated", "pools[1].replicas=3"),
    "GPUs": (
        "poolDefaults.gpus=8",
        "poolDefaults.kvMemory=400GiB",
        "poolDefaults.rdmaDevice=rdma/hca",
        "poolDefaults.hostNetwork=true",
        "poolDefaults.shm=64Gi",
        "poolDefaults.hostMemory=64GiB",
        "poolDefaults.hugepages=65Gi",
        "poolDefaults.resources.limits.memory=500Gi",
    ),
    "two pools on the same hosts": (
        "pools[0].name=a",
        "pools[1].name=b",
        "pools[1].port=8200",
        "poolDefaults.kind=DaemonSet",
        "poolDefaults.hostNetwork=true",
        "poolDefaults.priorityClassName=high",
        "poolDefaults.nodeSelector.gpu=h100",
        "poolDefaults.tolerations[0].operator=Exists",
    ),
    "a disk with a claim": (DISK, "poolDefaults.disk.storageClass=local", "poolDefaults.hostMemory=1GiB"),
    "a disk of the host": (
        DISK,
        "poolDefaults.kind=DaemonSet",
        "poolDefaults.disk.hostPath=/mnt/nvme",
        "poolDefaults.hostMemory=1GiB",
    ),
    "logs and traces": (
        "logs.format=json",
        "traces.endpoint=http://collector:4318",
        "traces.ratio=1",
        "traces.headersSecret=h",
    ),
    "tenants and an admin": ("tenants.existingSecret=t", "admin.existingSecret=a", "clusterSecret.existingSecret=c"),
    "a model from a volume": (
        "poolDefaults.model=/models/llama",
        "poolDefaults.modelVolume.persistentVolumeClaim.claimName=weights",
    ),
    "a model from an init container": (
        "poolDefaults.model=/models/llama",
        "poolDefaults.modelInit.image=fetch",
        "poolDefaults.modelInit.command[0]=fetch",
    ),
    "autoscaling": ("router.autoscaling.enabled=true",),
    "monitoring": ("monitoring.enabled=true", "monitoring.labels.release=prom", "monitoring.dashboards.enabled=true"),
    "pages in TLS": ("transfer.tlsSecret=certificates",),
    "ways in": (
        "ingress.enabled=true",
        "ingress.tlsSecret=t",
        "gateway.enabled=true",
        "gateway.parentRefs[0].name=public",
        "gateway.hostnames[0]=a.example",
    ),
}
BAD: dict[str, tuple[tuple[str, ...], str]] = {
    "two pools with one name": (("pools[0].name=a", "pools[1].name=a"), r'two of them have the name "a"'),
    "no pools": (("pools=null",), r"pools"),
    "a pool without a name": (("pools[0].replicas=1",), r"name"),
    "an unknown value": (("router.replica=2",), r"replica"),
    "a wrong type": (("router.replicas=many",), r"replicas"),
    "an unknown engine": (("poolDefaults.engine=magic",), r"engine"),
    "a size that is none": (("poolDefaults.kvMemory=plenty",), r"kvMemory"),
    "a disk without a volume": ((DISK, "poolDefaults.hostMemory=1GiB"), r"disk needs a volume"),
    "a disk without a host tier": ((DISK, "poolDefaults.disk.storageClass=local"), r"needs hostMemory"),
    "tiers larger than the limit": (
        ("poolDefaults.hostMemory=64GiB",),
        r"its tiers, kvMemory 512MiB and hostMemory 64GiB, have no room in resources.limits.memory 3Gi",
    ),
    "several routers without Redis": (("redis.enabled=false",), r"need Redis"),
    "a DaemonSet without Redis": (
        ("redis.enabled=false", "router.replicas=1", "poolDefaults.kind=DaemonSet"),
        r"is a DaemonSet",
    ),
    "an external Redis without its Secret": (
        ("redis.enabled=false", "redis.external.url=redis://r.example:6379"),
        r"existingSecret",
    ),
    "an authority without TLS": (
        (
            "redis.enabled=false",
            "redis.external.url=redis://r.example",
            "redis.external.existingSecret=r",
            "redis.external.caSecret=ca",
        ),
        r"caSecret is for TLS.*begins with .redis",
    ),
    "a password in a URL": (("redis.enabled=false", "redis.external.url=redis://:x@r.example:6379"), r"redis.external"),
    "two Redis servers": (("redis.external.url=redis://r.example", "redis.external.existingSecret=r"), r"exclude"),
    "a name of all pools": (("poolDefaults.name=a",), r"poolDefaults.name"),
    "a route without a Gateway": (("gateway.enabled=true",), r"gateway.parentRefs is empty"),
    "the clients' port for /admin": (("admin.port=8000",), r"admin.port is 8000"),
    "a share that is none": (("traces.ratio=50",), r"traces/ratio"),
    "a collector that is no URL": (("traces.endpoint=collector:4318",), r"traces/endpoint"),
    "an unknown format of logs": (("logs.format=xml",), r"logs/format"),
    "a privileged port": (("poolDefaults.port=80",), r"poolDefaults/port"),
    "huge pages without a host tier": (("poolDefaults.hugepages=1Gi",), r"hugepages .* no hostMemory"),
    "huge pages that are too few": (
        ("poolDefaults.hugepages=1Gi", "poolDefaults.hostMemory=1GiB"),
        r"hugepages of 1Gi have no room",
    ),
    "a path for the model without a volume": (
        ("poolDefaults.model=/models/llama",),
        r"nothing is mounted on /models, .* /models/llama would be: set modelVolume or modelInit",
    ),
    "an unknown profile": (("poolDefaults.engine=emulated", "poolDefaults.profile=h200"), r"poolDefaults/profile"),
    "a claim for a DaemonSet": (
        (DISK, "poolDefaults.kind=DaemonSet", "poolDefaults.disk.storageClass=l", "poolDefaults.hostMemory=1GiB"),
        r"DaemonSet has no claims",
    ),
    "autoscaling from more to fewer": (
        ("router.autoscaling.enabled=true", "router.autoscaling.minReplicas=9"),
        r"minReplicas 9 is more than maxReplicas 8",
    ),
}


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(HELM), *arguments], capture_output=True, text=True, timeout=60, check=False)


def render(*values: str) -> list[dict[str, Any]]:
    sets = [argument for value in values for argument in ("--set", value)]
    done = helm("template", "tl", str(CHART), "--namespace", "here", *sets)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def pods(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Specs of all pods."""
    direct = [one["spec"] for one in documents if one["kind"] == "Pod"]
    return direct + [one["spec"]["template"]["spec"] for one in documents if "template" in one.get("spec", {})]


@pytest.mark.parametrize("values", GOOD.values(), ids=GOOD)
def test_good_values_render(values: tuple[str, ...]) -> None:
    documents = render(*values)
    names = [(one["kind"], one["metadata"]["name"]) for one in documents]
    assert len(set(names)) == len(names)
    for pod in pods(documents):
        mounted = {mount["name"] for one in pod["containers"] for mount in one["volumeMounts"]}
        claims = {
            claim["metadata"]["name"]
            for one in documents
            if one["kind"] == "StatefulSet"
            for claim in one["spec"].get("volumeClaimTemplates", [])
        }
        assert mounted - claims <= {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize("version", ["1.27", "1.34"])
def test_what_is_rendered_is_within_the_schemas_of_kubernetes(version: str) -> None:
    """Its oldest version that the chart takes, and a current one. Of what operators define there are no schemas."""
    unknown = set()
    for values in GOOD.values():
        for document in render(*values):
            try:
                kubernetes_validate.validate(document, version, strict=True)
            except kubernetes_validate.SchemaNotFoundError:
                unknown.add(document["kind"])
    assert unknown == {"HTTPRoute", "PodMonitor", "PrometheusRule"}


@pytest.mark.parametrize(("values", "message"), BAD.values(), ids=BAD)
def test_bad_values_are_refused_with_a_reason(values: tuple[str, ...], message: str) -> None:
    sets = [argument for value in values for argument in ("--set", value)]
    done = helm("template", "tl", str(CHART), *sets)
    assert done.returncode != 0
    assert re.search(message, done.stderr, re.DOTALL), done.stderr


def test_the_profiles_of_an_emulated_engine_are_those_that_it_has() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    pattern = schema["definitions"]["pool"]["properties"]["profile"]["pattern"]
    assert pattern == f"^({'|'.join(ENGINES)})$|[.]json$"


def test_pods_are_within_the_restricted_level() -> None:
    for pod in pods(render()):
        security = pod["securityContext"]
        assert (security["runAsNonRoot"], security["seccompProfile"]["type"]) == (True, "RuntimeDefault")
        assert not pod.get("hostNetwork")
        assert not any("hostPath" in volume for volume in pod["volumes"])
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False
            assert own["readOnlyRootFilesystem"] is True
            assert own["capabilities"] == {"drop": ["ALL"]}


def test_grace_periods_cover_what_happens_in_them() -> None:
    documents = render("router.preStopSeconds=7", "poolDefaults.drainSeconds=100")
    by_kind = {one["kind"]: one["spec"]["template"]["spec"] for one in documents if one["kind"] == "StatefulSet"}
    router = next(pod for pod in pods(documents) if pod["containers"][0]["name"] == "router")
    assert router["terminationGracePeriodSeconds"] > 7 + 30
    assert router["containers"][0]["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "7"]
    assert by_kind["StatefulSet"]["terminationGracePeriodSeconds"] > 5 + 100


def test_without_redis_the_router_gets_every_agent_by_name() -> None:
    documents = render("redis.enabled=false", "router.replicas=1", "pools[0].name=a", "pools[0].replicas=2")
    router = next(pod for pod in pods(documents) if pod["containers"][0]["name"] == "router")
    nodes = [argument for argument in router["containers"][0]["args"] if argument.startswith("--node=")]
    assert nodes == [f"--node=http://tl-a-{number}.tl-agents:8100" for number in range(2)]
    assert not any("registry" in argument for argument in router["containers"][0]["args"])


def test_a_router_that_watches_endpointslices_may_do_that_alone() -> None:
    documents = render("endpointSlices.enabled=true")
    role = next(one for one in documents if one["kind"] == "Role")
    assert role["rules"] == [
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
    ]
    by_name = {pod["containers"][0]["name"]: pod for pod in pods(documents)}
    bound = next(one for one in documents if one["kind"] == "RoleBinding")["subjects"]
    assert [subject["name"] for subject in bound] == [by_name["router"]["serviceAccountName"]] == ["tl-router"]
    assert [name for name, pod in by_name.items() if pod["automountServiceAccountToken"]] == ["router"]
    assert "--kubernetes-service=tl-agents" in by_name["router"]["containers"][0]["args"]
    assert not any("registry" in argument for argument in by_name["agent"]["containers"][0]["args"])


def test_no_secret_is_written_where_others_read_it() -> None:
    documents = render(
        "redis.enabled=false",
        "redis.external.url=redis+sentinel://s/m",
        "redis.external.existingSecret=r",
        "redis.external.sentinelKey=sentinel",
        "admin.existingSecret=a",
        "traces.endpoint=http://collector:4318",
        "traces.headersSecret=h",
    )
    secret = set()
    for pod in pods(documents):
        for container in pod["containers"]:
            for variable in container.get("env", []):
                if re.search("SECRET|PASSWORD|TOKEN|HEADERS", variable["name"]):
                    assert "secretKeyRef" in variable["valueFrom"]
                    secret.add(variable["name"])
    assert len(secret) == 5


def test_each_pool_listens_where_the_router_is_told() -> None:
    pools = ("pools[0].name=a", "pools[1].name=b", "pools[1].port=9000")
    by_name = render("redis.enabled=false", "router.replicas=1", *pools)
    router = next(pod for pod in pods(by_name) if pod["containers"][0]["name"] == "router")["containers"][0]
    assert "--node=http://tl-b-0.tl-agents:9000" in router["args"]
    agents = [pod["containers"][0] for pod in pods(render(*pools)) if pod["containers"][0]["name"] == "agent"]
    for agent, first in zip(agents, (8100, 9000), strict=True):
        assert [port["containerPort"] for port in agent["ports"]] == list(range(first, first + 5))
        flags = dict(argument[2:].split("=", 1) for argument in agent["args"] if "=" in argument)
        given = [flags[name] for name in ("port", "events-port", "replay-port", "transfer-port")]
        assert [int(port) for port in given] == list(range(first, first + 4))
        assert flags["advertise"] == f"http://$(POD_IP):{first}"
        assert agent["startupProbe"]["exec"]["command"] == ["trunkline-ready", str(first)]


def test_the_admin_listener_is_not_in_the_service() -> None:
    documents = render("admin.port=9001")
    router = next(pod for pod in pods(documents) if pod["containers"][0]["name"] == "router")["containers"][0]
    assert "--admin-port=9001" in router["args"]
    assert not any(argument.startswith("--admin-host") for argument in router["args"])
    assert {"name": "TRUNKLINE_ADMIN_URL", "value": "http://127.0.0.1:9001"} in router["env"]
    service = next(one for one in documents if one["kind"] == "Service" and one["metadata"]["name"] == "tl-router")
    assert [port["targetPort"] for port in service["spec"]["ports"]] == ["http"]


def test_routers_and_agents_log_and_trace_alike() -> None:
    documents = render("logs.format=json", "traces.endpoint=http://collector:4318", "traces.ratio=0.5")
    for pod in pods(documents):
        container = pod["containers"][0]
        if container["name"] in ("router", "agent"):
            assert {"--log-format=json", "--otlp-endpoint=http://collector:4318"} <= set(container["args"])
            assert {"name": "OTEL_TRACES_SAMPLER_ARG", "value": "0.5"} in container["env"]


def test_dashboards_are_there_for_grafana_as_they_were_written() -> None:
    documents = render("monitoring.dashboards.enabled=true", "monitoring.dashboards.labels.grafana=here")
    maps = [one for one in documents if one["kind"] == "ConfigMap" and "-dashboard-" in one["metadata"]["name"]]
    written = {f"trunkline-{path.name}": path.read_text() for path in (CHART / "files/dashboards").glob("*.json")}
    assert {name: text for one in maps for name, text in one["data"].items()} == written
    assert all(one["metadata"]["labels"]["grafana"] == "here" for one in maps)
