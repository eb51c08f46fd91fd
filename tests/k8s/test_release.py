"""The chart on a real Kubernetes: installed, upgraded and broken, as an operator would see it. `make test-k8s`."""

import re
import time
from typing import Any

import pytest

from tests.k8s.cluster import HOME, NEXT, NODE, CommandError, eventually, run
from tests.k8s.namespace import EMULATED, cached, namespace

pytestmark = pytest.mark.timeout(600, func_only=True)

FIRST_ANSWER_S = 180.0
OTHER_VERSION = (
    "from trunkline.shared import wire; wire.WIRE_VERSION += 1; from trunkline.shared.cli import main; main()"
)


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
        here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}
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


def test_the_default_model_serves_within_three_minutes_and_comes_back_warm() -> None:
    """One router and two agents with a disk on local volumes; then an agent's pod is deleted."""
    with namespace("default-model") as here:
        here.apply(*volumes("nvme", 2))
        began = time.monotonic()
        disk = {"size": "256MiB", "storageClass": "nvme"}
        # Little memory, so that some pages reach the disk after a few requests, and the rest when the pod ends; but the
        # host has room for the longest prompt, which has to pass through it.
        here.install(values={"poolDefaults": {"disk": disk, "hostMemory": "96MiB", "kvMemory": "80MiB"}})
        here.ready("deployment/tl-router")
        here.client()
        answer = here.ask("Hello")
        seconds = time.monotonic() - began
        print(f"first answer after {seconds:.0f} s")
        assert answer["usage"]["completion_tokens"] > 0
        assert seconds < FIRST_ANSWER_S
        here.ready("statefulset/tl-default")
        print(here.hit())
        # One agent alone, so that whatever is asked again was its own.
        here.kubectl("scale", "statefulset/tl-default", "--replicas=1")
        eventually(lambda: here.serving() == {"tl-default-0"})
        # The others are more than device and host keep, whichever agent had the prompt of `helm test`.
        words = ("shelf", "room", "street", "town", "river", "hill", "coast")
        prompt, *others = (" ".join(f"{word}{number}" for number in range(150)) for word in words)
        assert cached(here.ask(prompt)) < 0.5
        for other in others:
            here.ask(other)
        before = here.pods("agent")
        here.delete_pods("tl-default-0")
        eventually(lambda: here.pods("agent").get("tl-default-0", before["tl-default-0"]) != before["tl-default-0"])
        eventually(lambda: here.serving() == {"tl-default-0"})
        share = cached(here.ask(prompt))
        print(f"after the agent's pod was deleted, {share:.0%} of the prompt came from its disk")
        assert share > 0.8


def test_streams_go_on_through_upgrades_and_lost_pods() -> None:
    """Two routers and two agents, upgraded, killed, and evicted, a stream every 200 ms."""
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

        # The only node there is: nothing comes back before it is uncordoned, so one of each has to stay.
        drain = ("--pod-selector=app.kubernetes.io/component in (router, agent)", "--delete-emptydir-data")
        with here.streams() as streams:
            time.sleep(3.0)
            try:
                with pytest.raises(CommandError, match="violate the pod's disruption budget"):
                    run("kubectl", "drain", NODE, *drain, "--timeout=15s")
                assert (len(here.pods("router")), len(here.pods("agent"))) == (1, 1)
            finally:
                run("kubectl", "uncordon", NODE)
            here.ready("deployment/tl-router")
            here.ready("statefulset/tl-default")
            time.sleep(3.0)
        print("node drained:", streams.report)
        assert (streams.report["failed"], streams.report["refused"]) == ([], {})


def test_agents_are_found_by_their_endpointslices() -> None:
    """Without Redis; the router may watch EndpointSlices and nothing else."""
    with namespace("slices") as here:
        here.install("redis.enabled=false", "endpointSlices.enabled=true", values=EMULATED)
        here.ready("deployment/tl-router")
        eventually(lambda: here.serving() == {"tl-default-0", "tl-default-1"})
        here.hit()
        # One that speaks another version of the wire, with everything else as it is.
        other = here.get("statefulset", "tl-default")["spec"]["template"]
        other["metadata"] |= {"name": "other", "labels": other["metadata"]["labels"] | {"trunkline/pool": "other"}}
        other["spec"]["containers"][0]["command"] = ["python3", "-c", OTHER_VERSION]
        here.apply({"apiVersion": "v1", "kind": "Pod", **other})
        spoken = r"peer speaks wire version (\d+), this is version (?!\1)\d+"
        eventually(lambda: any(re.search(spoken, node["error"] or "") for node in here.status()["nodes"]))
        assert here.serving() == {"tl-default-0", "tl-default-1"}
        here.hit()
        here.kubectl("delete", "pod", "other", "--grace-period=1")

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
        here.hit()
        before = here.pods("agent")["tl-default-0"]
        here.delete_pods("tl-default-0")
        eventually(lambda: here.pods("agent").get("tl-default-0", before) != before)
        eventually(lambda: here.serving() == {"tl-default-0", "tl-default-1"})  # at another address


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
def test_what_cannot_work_is_said_in_the_pods_description(
    values: dict[str, Any], reason: str, request: pytest.FixtureRequest
) -> None:
    with namespace(request.node.callspec.id.replace(" ", "-")) as here:
        here.install("redis.enabled=false", values={"poolDefaults": values, "pools": [{"name": "one", "replicas": 1}]})
        eventually(lambda: re.search(reason, here.kubectl("describe", "pod", "tl-one-0")))
        assert "Traceback" not in here.kubectl("describe", "pod", "tl-one-0")
