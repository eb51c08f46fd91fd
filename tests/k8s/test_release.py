"""The chart on a real Kubernetes: installed, upgraded and broken, as an operator would see it. `make test-k8s`."""

import json
import re
import time
from typing import Any

import pytest
import yaml

from tests.helm.test_chart import CHART, GOOD
from tests.k8s.cluster import HOME, NEXT, Namespace, eventually, namespace

pytestmark = pytest.mark.timeout(600, func_only=True)

EMULATED = {
    # Replies of 100 tokens take some two seconds, and next to no CPU.
    "poolDefaults": {"engine": "emulated", "extraArgs": ["--time-scale=2"], "preStopSeconds": 2},
    "router": {"preStopSeconds": 2},
}
FIRST_ANSWER_S = 180.0
SECRET = {"apiVersion": "v1", "kind": "Secret"}


def volumes(name: str, count: int) -> list[dict[str, Any]]:
    """Local volumes of this node, for the class `name`, and the class."""
    made: list[dict[str, Any]] = [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": name},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        }
    ]
    for number in range(count):
        folder = HOME / f"run/volumes/{name}-{number}"
        folder.mkdir(parents=True)
        here = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["k8s-test"]}
        made.append(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": folder.name},
                "spec": {
                    "capacity": {"storage": "1Gi"},
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": name,
                    "local": {"path": str(folder)},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
                },
            }
        )
    return made


def hit(here: Namespace) -> str:
    """`helm test`: two requests with one long prefix. What it printed."""
    said = here.helm("test", "tl", "--logs", "--timeout=180s")
    assert "the second request hit" in said
    return said


def test_the_default_model_serves_within_three_minutes_and_comes_back_warm() -> None:
    """One router and two agents with a disk on local volumes; then an agent's pod is deleted."""
    with namespace("default-model") as here:
        here.apply(*volumes("nvme", 2))
        began = time.monotonic()
        disk = {"size": "256MiB", "storageClass": "nvme"}
        # Little memory, so that pages reach the disk after a few requests.
        here.install(values={"poolDefaults": {"disk": disk, "hostMemory": "24MiB", "kvMemory": "80MiB"}})
        here.ready("deployment/tl-router")
        here.client()
        answer = ask(here, "Hello")
        seconds = time.monotonic() - began
        print(f"first answer after {seconds:.0f} s")
        assert answer["usage"]["completion_tokens"] > 0
        assert seconds < FIRST_ANSWER_S
        here.ready("statefulset/tl-default")
        print(hit(here))
        # One agent alone, so that whatever is asked again was its own.
        here.kubectl("scale", "statefulset/tl-default", "--replicas=1")
        eventually(lambda: here.serving() == {"tl-default-0"})
        prompt, *others = (" ".join(f"{word}{number}" for number in range(150)) for word in ("shelf", "room", "street"))
        assert cached(ask(here, prompt)) < 0.5
        for other in others:
            ask(here, other)
        before = here.pods("agent")
        here.kubectl("delete", "pod", "tl-default-0")
        eventually(lambda: here.pods("agent").get("tl-default-0", before["tl-default-0"]) != before["tl-default-0"])
        eventually(lambda: here.serving() == {"tl-default-0"})
        share = cached(ask(here, prompt))
        print(f"after the agent's pod was deleted, {share:.0%} of the prompt came from its disk")
        assert share > 0.8


def ask(here: Namespace, prompt: str, url: str = "http://tl-router") -> dict[str, Any]:
    """A completion, from the pod `client` on.

    A router that has no node is not ready, and its service refuses connections until the kubelet has seen otherwise.
    """
    script = (
        "import httpx, sys; url, prompt = sys.argv[1:];"
        "http = httpx.Client(timeout=120.0, transport=httpx.HTTPTransport(retries=7, trust_env=False));"
        "model = http.get(f'{url}/v1/models').json()['data'][0]['id'];"
        "body = {'model': model, 'prompt': prompt, 'max_tokens': 4};"
        "print(http.post(f'{url}/v1/completions', json=body).raise_for_status().text)"
    )
    found: dict[str, Any] = json.loads(here.kubectl("exec", "client", "--", "python3", "-c", script, url, prompt))
    return found


def cached(answer: dict[str, Any]) -> float:
    usage = answer["usage"]
    share: float = usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"]
    return share


def test_streams_go_on_through_upgrades_and_lost_pods() -> None:
    """Two routers and two agents; first both are upgraded, then one of each is killed, a stream every 200 ms."""
    with namespace("streams") as here:
        here.install("router.replicas=2", values=EMULATED)
        here.ready("deployment/tl-router")
        here.ready("statefulset/tl-default")
        here.client()

        with here.streams() as streams:
            before = here.pods("router") | here.pods("agent")
            here.install("router.replicas=2", f"image.tag={NEXT}", values=EMULATED, verb="upgrade")
            here.ready("deployment/tl-router")
            here.ready("statefulset/tl-default")
            after = here.pods("router") | here.pods("agent")
            time.sleep(3.0)
        print("upgrade:", streams.report)
        assert not set(before.values()) & set(after.values())
        assert streams.report["streams"] > 50
        assert (streams.report["failed"], streams.report["refused"]) == ([], {})

        for deleted in (True, False):
            with here.streams() as streams:
                time.sleep(3.0)
                if deleted:
                    here.kubectl("delete", "pod", "tl-default-1", "--force", "--grace-period=0")
                else:
                    here.kill("tl-default-1")
                time.sleep(3.0)
                eventually(lambda: here.serving() == {"tl-default-0", "tl-default-1"})
            print("agent deleted:" if deleted else "agent killed:", streams.report)
            assert streams.report["failed"] == []
            assert set(streams.report["refused"]) <= {"tl-default-1"}

        router = next(iter(here.pods("router")))
        with here.streams() as streams:
            time.sleep(3.0)
            here.kubectl("delete", "pod", router, "--force", "--grace-period=0")
            eventually(lambda: len(here.pods("router")) == 2)
            time.sleep(3.0)
        print("router deleted:", streams.report)
        assert (streams.report["failed"], streams.report["refused"]) == ([], {})


def test_agents_are_found_by_their_endpointslices() -> None:
    """Without Redis; the router may watch EndpointSlices and nothing else."""
    with namespace("slices") as here:
        here.install("redis.enabled=false", "endpointSlices.enabled=true", values=EMULATED)
        here.ready("deployment/tl-router")
        eventually(lambda: here.serving() == {"tl-default-0", "tl-default-1"})
        hit(here)
        here.kubectl("scale", "statefulset/tl-default", "--replicas=3")
        eventually(lambda: len(here.serving()) == 3)
        here.kubectl("scale", "statefulset/tl-default", "--replicas=1")
        eventually(lambda: [node["name"] for node in here.status()["nodes"]] == ["tl-default-0"])
        assert here.status()["listing"]["connected"]
        account = f"--as=system:serviceaccount:{here.name}:tl-router"
        allowed = here.kubectl("auth", "can-i", "--list", "--no-headers", account)
        own = [line.split()[0] for line in allowed.splitlines() if not re.search(r"selfsubject|\[/", line)]
        assert own == ["endpointslices.discovery.k8s.io"]


def test_without_redis_and_endpointslices_agents_are_known_by_name() -> None:
    with namespace("names") as here:
        here.install("redis.enabled=false", values=EMULATED)
        here.ready("deployment/tl-router")
        hit(here)
        before = here.pods("agent")["tl-default-0"]
        here.kubectl("delete", "pod", "tl-default-0")
        eventually(lambda: here.pods("agent").get("tl-default-0", before) != before)
        eventually(lambda: here.serving() == {"tl-default-0", "tl-default-1"})  # at another address


def redis(password: str) -> list[dict[str, Any]]:
    """A Redis that is not the release's, with its Service."""
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {
        "name": "redis",
        "image": "localhost/redis:7",
        "imagePullPolicy": "Never",
        "command": ["redis-server", "--bind", "0.0.0.0", "--save", "", "--requirepass", password],
        "securityContext": security,
    }
    account = {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}}
    labels = {"app": "my-redis"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "my-redis", "labels": labels},
            "spec": {"containers": [container], "securityContext": account},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "my-redis"},
            "spec": {"selector": labels, "ports": [{"port": 6379}]},
        },
    ]


def test_a_redis_of_ones_own_and_a_wrong_password_for_it() -> None:
    external = ("redis.enabled=false", "redis.external.url=redis://my-redis:6379/0")
    with namespace("redis") as here:
        here.apply(
            {**SECRET, "metadata": {"name": "wrong"}, "stringData": {"password": "guessed"}},
            {**SECRET, "metadata": {"name": "right"}, "stringData": {"password": "a good one"}},
            *redis("a good one"),
        )
        here.kubectl("wait", "--for=condition=Ready", "pod/my-redis", "--timeout=60s")
        here.install(*external, "redis.external.existingSecret=wrong", values=EMULATED)
        reason = r"registry redis://my-redis:6379/0: it wants a password, or another one"
        eventually(lambda: re.search(reason, here.kubectl("describe", "pods", "-l", COMPONENT.format("router"))))
        log = here.kubectl("logs", "deployment/tl-router")
        assert len(re.findall(reason, log)) == 1
        assert "guessed" not in log
        here.install(*external, "redis.external.existingSecret=right", values=EMULATED, verb="upgrade")
        here.ready("deployment/tl-router")
        hit(here)


COMPONENT = "app.kubernetes.io/component={}"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"model": "/models/llama", "modelVolume": {"emptyDir": {}}}, r"model '/models/llama' is neither a known name"),
        (
            {"model": "/models/llama", "modelVolume": {"persistentVolumeClaim": {"claimName": "weights"}}},
            r'persistentvolumeclaim "weights" not found',
        ),
        ({"extraArgs": ["--context=many"]}, r"context"),
        ({"kvMemory": "400GiB", "resources": {"limits": {"memory": "500Gi"}}}, r"--kv-memory"),
    ],
    ids=["no model in its volume", "no volume", "no number", "no memory"],
)
def test_what_cannot_work_is_said_in_the_pods_description(values: dict[str, Any], reason: str) -> None:
    with namespace("wrong") as here:
        here.install("redis.enabled=false", values={"poolDefaults": values, "pools": [{"name": "one", "replicas": 1}]})
        eventually(lambda: re.search(reason, here.kubectl("describe", "pod", "tl-one-0")))
        assert "Traceback" not in here.kubectl("describe", "pod", "tl-one-0")


def test_the_server_takes_what_every_good_value_set_renders() -> None:
    """All but what operators define, and the pod of `helm test`, which wants its account to be there."""
    with namespace("dry") as here:
        for values in GOOD.values():
            sets = [word for value in values for word in ("--set", value)]
            rendered = yaml.safe_load_all(here.helm("template", "tl", str(CHART), *sets))
            known = [
                one
                for one in rendered
                if one and one["kind"] not in ("HTTPRoute", "PodMonitor", "PrometheusRule", "Pod")
            ]
            here.kubectl("apply", "--dry-run=server", "-f", "-", input=yaml.safe_dump_all(known))
