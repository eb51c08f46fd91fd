"""Pools of several kinds in one release: where their agents run, with what, and that each serves its own model."""

import os
import re
from pathlib import Path

import httpx
import pytest

from tests.k8s.cluster import HOME, NODE, eventually, run
from tests.k8s.namespace import COMPONENT, HEADERS, TOKEN, cached, namespace, secret

pytestmark = pytest.mark.timeout(600, func_only=True)

TAINT = "trunkline/test=pools:NoSchedule"
TOLERATED = [{"key": "trunkline/test", "operator": "Exists"}]
WEIGHTS = "/models/weights.gguf"
EIGHT, SEVENTY, REAL = "emulated-llama-8b-h100", "emulated-llama-70b-4xh100", "weights"
EMULATED = {"engine": "emulated", "extraArgs": ["--time-scale=0.1"], "preStopSeconds": 2}


def folder(name: str) -> Path:
    """On the node, and the agents' own: they do not run as root."""
    made = HOME / f"run/volumes/{name}"
    made.mkdir(parents=True)
    os.chown(made, 10001, 10001)
    return made


def prompt(model: str) -> str:
    return f"{model}: " + " ".join(f"word{number}" for number in range(200))


def test_each_pool_is_where_and_what_its_values_say() -> None:
    """On a node with a taint, two GPUs and a label; with a priority, on a disk of the host, on the host's network."""
    disk, models = folder("pools-disk"), folder("pools-models")
    one = EMULATED | {"hostMemory": "16MiB", "shm": "96Mi", "priorityClassName": "trunkline-test"}
    host = EMULATED | {"kind": "DaemonSet", "profile": "llama-70b-4xh100", "hostNetwork": True, "hostMemory": "16MiB"}
    fetch = ["sh", "-c", f"cp /opt/models/*.gguf {WEIGHTS}"]
    pools = [
        {"name": "small", "gpus": 2, "nodeSelector": {"trunkline/test": "pools"}, **one},
        {"name": "host-a", "port": 18100, "disk": {"size": "64MiB", "hostPath": str(disk)}, **host},
        {"name": "host-b", "port": 18200, **host},
        {
            "name": "real",
            "model": WEIGHTS,
            "modelVolume": {"hostPath": {"path": str(models), "type": "Directory"}},
            "modelInit": {"image": "localhost/trunkline-agent:0.1.0", "command": fetch},
            "kvMemory": "64MiB",
        },
    ]
    admin = {"existingSecret": "operators"}
    values = {
        "admin": admin,
        "router": {"tolerations": TOLERATED},
        "poolDefaults": {"tolerations": TOLERATED},
        "pools": pools,
    }
    with namespace("pools", level="privileged") as here:
        here.client()
        here.apply(secret("operators", token=TOKEN))
        here.apply(
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": "trunkline-test"},
                "value": 1000,
            }
        )
        run("kubectl", "taint", "nodes", NODE, TAINT)
        try:
            # A Redis would have to tolerate the taint as well.
            here.install("redis.enabled=false", "endpointSlices.enabled=true", values=values)
            here.ready("daemonset/tl-host-a")
            here.ready("daemonset/tl-host-b")
            waiting = here.kubectl("describe", "pod", "tl-small-0")
            assert re.search(r"Insufficient nvidia.com/gpu|didn't match Pod's node affinity/selector", waiting)
            gpus = '{"status":{"capacity":{"nvidia.com/gpu":"2"},"allocatable":{"nvidia.com/gpu":"2"}}}'
            run("kubectl", "patch", "node", NODE, "--subresource=status", "--type=merge", "-p", gpus)
            run("kubectl", "label", "node", NODE, "trunkline/test=pools")
            here.ready("statefulset/tl-small")
            here.ready("statefulset/tl-real")
            here.ready("deployment/tl-router")
            eventually(lambda: len(here.serving()) == 4)

            by_model = {EIGHT: "tl-small-0", SEVENTY: "tl-host-", REAL: "tl-real-0"}
            for model, node in by_model.items():
                assert here.ask(prompt(model), model)["node"].startswith(node)
                again = here.ask(prompt(model), model)
                assert again["node"].startswith(node)
                assert cached(again) > 0.8

            # What one agent on the host's network has goes to the other one, each at ports of its own.
            asked = {"prompt": prompt(SEVENTY), "model": SEVENTY, "to": 1}
            with here.forwarded("8001") as url:
                answer = httpx.post(f"{url}/admin/replicate", json=asked, headers=HEADERS, timeout=60.0)
            [copy] = answer.json()["copies"]
            assert copy["node"].startswith("tl-host-")
            assert copy["pulled"] > 0.8 * len(prompt(SEVENTY)) / 4

            pods = {pod["metadata"]["name"]: pod for pod in here.get("pods", "-l", COMPONENT.format("agent"))["items"]}
            small = pods["tl-small-0"]["spec"]
            assert small["priority"] == 1000
            assert small["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"
            assert re.search(
                r"/shm tmpfs .*size=98304k", here.kubectl("exec", "tl-small-0", "--", "cat", "/proc/mounts")
            )
            for pod in pods.values():
                if "host-" in pod["metadata"]["name"]:
                    assert pod["status"]["podIP"] == pod["status"]["hostIP"]
            assert list(disk.glob("pages/segment-*.kv"))
        finally:
            run("kubectl", "label", "node", NODE, "trunkline/test-")
            run("kubectl", "taint", "nodes", NODE, "trunkline/test-")
            run("kubectl", "delete", "priorityclass", "trunkline-test")
