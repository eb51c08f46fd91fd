"""The example for KubeRay, against the schema of KubeRay's own resource. `make chart` gets that."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

EXAMPLE = Path(__file__).parents[2] / "helm/examples/raycluster.yaml"
CRD = os.environ.get("KUBERAY_CRD")


@pytest.fixture(scope="module")
def cluster() -> dict[str, Any]:
    made: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    return made


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    if CRD is None:
        pytest.skip("KubeRay's schema is not here: `make chart` gets it")
    crd = yaml.load(Path(CRD).read_text(), yaml.CSafeLoader)
    (version,) = (version for version in crd["spec"]["versions"] if version["storage"])
    assert version["name"] == "v1"
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return found


def misspelt(cluster: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    """Fields that a server would leave out in silence."""
    return list(_unknown(cluster["spec"], schema["properties"]["spec"], "spec"))


def _unknown(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    if isinstance(value, list):
        for one in value:
            yield from _unknown(one, schema.get("items", {}), f"{path}[]")
    elif isinstance(value, dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        each = schema.get("additionalProperties")
        for name, inner in value.items():
            known = schema.get("properties", {}).get(name, each)
            if known is None:
                yield f"{path}.{name}"
            elif isinstance(known, dict):
                yield from _unknown(inner, known, f"{path}.{name}")


def test_the_example_is_a_ray_cluster_as_kuberay_takes_it(cluster: dict[str, Any], schema: dict[str, Any]) -> None:
    jsonschema.validate(cluster, schema)
    assert misspelt(cluster, schema) == []


@pytest.mark.parametrize(
    ("path", "value", "wrong"),
    [
        (("workerGroupSpecs", 0, "groupName"), 7, "is not of type 'string'"),
        (("workerGroupSpecs", 0, "replica"), 2, ""),
        (("headGroupSpec", "template", "spec", "containers", 0, "ports", 0, "containerPort"), "http", "is not of type"),
    ],
)
def test_what_is_wrong_in_it_would_be_found(
    schema: dict[str, Any], path: tuple[str | int, ...], value: object, wrong: str
) -> None:
    broken = yaml.safe_load(EXAMPLE.read_text())
    *way, last = path
    place = broken["spec"]
    for step in way:
        place = place[step]
    place[last] = value
    if wrong:
        with pytest.raises(jsonschema.ValidationError, match=wrong):
            jsonschema.validate(broken, schema)
    else:
        assert misspelt(broken, schema) == ["spec.workerGroupSpecs[].replica"]


def test_what_it_says_to_run_has_room_in_it(cluster: dict[str, Any]) -> None:
    (command,) = re.findall(r"trunkline up --ray (.*)", EXAMPLE.read_text())
    flags = dict(re.findall(r"--([a-z-]+) (\S+)", command))
    (workers,) = cluster["spec"]["workerGroupSpecs"]
    (worker,) = workers["template"]["spec"]["containers"]
    assert workers["minReplicas"] >= int(flags["agents"])
    assert int(worker["resources"]["limits"]["cpu"]) >= int(flags["threads"])
    assert int(worker["resources"]["limits"]["nvidia.com/gpu"]) >= int(flags["gpus"])
    assert int(cluster["spec"]["headGroupSpec"]["rayStartParams"]["num-cpus"]) >= 1, "for the router"
    mounts = [mount["mountPath"] for mount in worker["volumeMounts"]]
    assert any(flags["model"].startswith(f"{mount}/") for mount in mounts)
    (head,) = cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"]
    assert int(flags["port"]) in {port["containerPort"] for port in head["ports"]}
