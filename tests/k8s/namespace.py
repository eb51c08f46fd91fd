"""A namespace of the cluster, with one release of the chart in it, and what asks its router."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.k8s.cluster import CHART, ENVIRONMENT, HOME, VALUES, VERSION, eventually, kill_container, run

ROUTER = "http://tl-router"
EMULATED: dict[str, Any] = {
    # Replies of 100 tokens take some two seconds, and next to no CPU.
    "poolDefaults": {"engine": "emulated", "extraArgs": ["--time-scale=2"], "preStopSeconds": 2},
    "router": {"preStopSeconds": 2},
}
TOKEN = "of-the-operators"
HEADERS = {"authorization": f"Bearer {TOKEN}"}
COMPONENT = "app.kubernetes.io/component={}"


class Namespace:
    """A namespace where a level of Pod Security is enforced, with kubectl and helm for it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def kubectl(self, *arguments: str, input: str | None = None) -> str:
        return run("kubectl", "-n", self.name, *arguments, input=input)

    def helm(self, *arguments: str) -> str:
        return run("helm", "-n", self.name, *arguments)

    def install(self, *sets: str, values: dict[str, Any] | None = None, verb: str = "install") -> str:
        """The release `tl`, and its notes; returns before anything is ready."""
        settings = [word for one in sets for word in ("--set", one)]
        more = ["-f", str(VALUES)]
        if values is not None:
            path = HOME / f"run/{self.name}-values.yaml"
            path.write_text(yaml.safe_dump(values))
            more += ["-f", str(path)]
        return self.helm(verb, "tl", str(CHART), *more, *settings)

    def apply(self, *documents: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(documents))

    def get(self, *arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return found

    def describe(self, component: str) -> str:
        """What an operator reads of its pods."""
        return self.kubectl("describe", "pods", "-l", COMPONENT.format(component))

    def ready(self, workload: str, seconds: int = 240) -> None:
        """Waits for a rollout: `deployment/tl-router`."""
        self.kubectl("rollout", "status", workload, f"--timeout={seconds}s")

    def pods(self, component: str) -> dict[str, str]:
        """UIDs of the pods that are ready, by name."""
        found = self.get("pods", "-l", COMPONENT.format(component))["items"]
        return {
            pod["metadata"]["name"]: pod["metadata"]["uid"]
            for pod in found
            if "deletionTimestamp" not in pod["metadata"]
            and any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", ()))
        }

    def delete_pods(self, *which: str) -> None:
        """Waits until they are gone, by UID: `kubectl delete` has gone on waiting where a StatefulSet at once made
        another of the same name."""

        def there() -> set[str]:
            return {pod["metadata"]["uid"] for pod in self.get("pods")["items"]}

        before = there()
        self.kubectl("delete", "pods", *which, "--wait=false")
        deleted = before - {
            pod["metadata"]["uid"] for pod in self.get("pods")["items"] if "deletionTimestamp" not in pod["metadata"]
        }
        eventually(lambda: not deleted & there())

    def kill(self, pod: str) -> None:
        """Without a word before it: Kubernetes starts the container again."""
        container = self.get("pod", pod)["status"]["containerStatuses"][0]["containerID"]
        kill_container(container.removeprefix("containerd://"))

    def status(self) -> dict[str, Any]:
        """As a router sees the fleet."""
        found: dict[str, Any] = json.loads(
            self.kubectl("exec", "deployment/tl-router", "--", "trunkline", "status", "--json")
        )
        return found

    def serving(self) -> set[str]:
        """Names of the nodes that a router takes for ready."""
        return {node["name"] for node in self.status()["nodes"] if node["state"] == "ready"}

    def hit(self) -> str:
        """`helm test`: two requests with one long prefix. What it printed."""
        said = self.helm("test", "tl", "--logs", "--timeout=180s")
        assert "the second request hit" in said
        return said

    def client(self) -> None:
        """A pod named `client`, where `kubectl exec` runs what asks the router."""
        self.apply(pod("client", f"localhost/trunkline-router:{VERSION}", ["sleep", "infinity"]))
        self.kubectl("wait", "--for=condition=Ready", "pod/client", "--timeout=60s")

    def ask(self, prompt: str, model: str = "", url: str = ROUTER) -> dict[str, Any]:
        """A completion, from the pod `client` on; of the first model, if none is named. `node` answered it.

        A router that has no node is not ready, and its service refuses connections until the kubelet has seen
        otherwise.
        """
        script = (
            "import httpx, json, sys; url, model, prompt = sys.argv[1:];"
            "http = httpx.Client(timeout=120.0, transport=httpx.HTTPTransport(retries=7, trust_env=False));"
            "model = model or http.get(f'{url}/v1/models').json()['data'][0]['id'];"
            "body = {'model': model, 'prompt': prompt, 'max_tokens': 4};"
            "answer = http.post(f'{url}/v1/completions', json=body).raise_for_status();"
            "print(json.dumps(answer.json() | {'node': answer.headers['x-trunkline-node']}))"
        )
        done = self.kubectl("exec", "client", "--", "python3", "-c", script, url, model, prompt)
        found: dict[str, Any] = json.loads(done)
        return found

    @contextmanager
    def forwarded(self, port: str) -> Iterator[str]:
        """A base URL on this machine, of a port on a router's loopback."""
        command = ["kubectl", "-n", self.name, "port-forward", "deployment/tl-router", f":{port}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
            try:
                assert process.stdout is not None
                said = process.stdout.readline()
                assert said.startswith("Forwarding from 127.0.0.1:"), said
                yield f"http://{said.split()[2]}"
            finally:
                process.terminate()

    @contextmanager
    def streams(self, url: str = ROUTER) -> Iterator["Streams"]:
        """A stream begun every 200 ms from the pod `client` on; `report` is there once the block has ended."""
        script = Path(__file__).with_name("streams.py").read_text()
        command = ["kubectl", "-n", self.name, "exec", "-i", "client", "--", "python3", "-c", script, url]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT, start_new_session=True
        ) as process:
            streams = Streams()
            try:
                yield streams
                out, _ = process.communicate("", timeout=90.0)
                streams.report = json.loads(out)
            finally:
                process.kill()


class Streams:
    """What became of the streams: see `streams.py`."""

    report: dict[str, Any]


def cached(answer: dict[str, Any]) -> float:
    """The share of its prompt that an answer found in a cache."""
    usage = answer["usage"]
    share: float = usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"]
    return share


def pod(name: str, image: str, command: list[str], secret: str = "") -> dict[str, Any]:
    """Within the level `restricted`, labelled `app`; a Secret is mounted on /secret."""
    mounted = [{"name": "secret", "mountPath": "/secret", "readOnly": True}] if secret else []
    container = {
        "name": name,
        "image": image,
        "imagePullPolicy": "Never",
        "command": command,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": mounted,
        # Without a request the kernel lets everybody else on the machine go first, for seconds at a time.
        "resources": {"requests": {"cpu": "200m"}},
    }
    account = {"runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001}
    spec = {
        "containers": [container],
        "securityContext": account | {"seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": [{"name": "secret", "secret": {"secretName": secret}}] if secret else [],
        "terminationGracePeriodSeconds": 0,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec}


def service(name: str, *ports: int, **spec: Any) -> dict[str, Any]:
    """Of the pods labelled so."""
    named = [{"name": f"port-{port}", "port": port} for port in ports]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": named, **spec},
    }


def secret(name: str, **values: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": values}


@contextmanager
def namespace(name: str, level: str = "restricted") -> Iterator[Namespace]:
    """Used once: what is left of it may still be going away when the next one comes."""
    labels = {"pod-security.kubernetes.io/enforce": level}
    here = Namespace(name)
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    run("kubectl", "create", "-f", "-", input=yaml.safe_dump(made))
    try:
        yield here
    except BaseException:
        for what in (("get", "pods", "-o", "wide"), ("get", "events", "--sort-by=.lastTimestamp")):
            print(here.kubectl(*what)[-4000:])
        print(run("kubectl", "-n", name, "logs", "-l", "app.kubernetes.io/name=trunkline", "--tail=20", "--prefix"))
        raise
    finally:
        run("kubectl", "delete", "namespace", name, "--wait=false")
        here.kubectl("delete", "pods", "--all", "--grace-period=1")  # Here nobody waits for their streams.
