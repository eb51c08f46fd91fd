"""EndpointSlices as Kubernetes sends them, and the flag that names their Service."""

from pathlib import Path

import msgspec
import pytest

from trunkline.router.discovery.service import service_address
from trunkline.router.discovery.slices import Slice
from trunkline.shared.errors import ConfigError

POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}


def members(text: str, secret: str | None = None) -> list[tuple[str, str]]:
    found = msgspec.json.decode(text, type=Slice).members(secret)
    assert all(member.is_genuine(secret) for member in found)
    return [(member.url, member.name) for member in found]


@pytest.mark.parametrize("secret", [None, "s"])
def test_a_node_is_an_endpoint_with_the_port_named_http(secret: str | None) -> None:
    text = """{"metadata": {"name": "s"}, "ports": [{"name": "events", "port": 1}, {"name": "http", "port": 8100}],
      "endpoints": [{"addresses": ["10.1.2.3"], "targetRef": {"name": "pod-0", "uid": "u"}},
                    {"addresses": ["fd00::1"]}]}"""
    assert members(text, secret) == [("http://10.1.2.3:8100", "pod-0"), ("http://[fd00::1]:8100", "fd00::1:8100")]


@pytest.mark.parametrize(
    "text",
    [
        '{"metadata": {}, "endpoints": null, "ports": null}',
        '{"metadata": {}}',
        '{"metadata": {}, "endpoints": [{"addresses": ["10.1.2.3"]}], "ports": [{"name": "events", "port": 1}]}',
        '{"metadata": {}, "endpoints": [{"addresses": ["10.1.2.3"]}], "ports": [{"name": "http", "port": null}]}',
        '{"metadata": {}, "endpoints": [{"addresses": []}], "ports": [{"name": "http", "port": 1}]}',
    ],
)
def test_what_has_no_address_is_no_node(text: str) -> None:
    assert members(text) == []


def test_a_service_is_of_the_pods_namespace_unless_another_is_named(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    (tmp_path / "namespace").write_text("here\n")
    address = service_address("agents", POD, tmp_path)
    assert (str(address), address.api) == ("endpoints of here/agents", "https://10.0.0.1:6443")
    assert str(service_address("there/agents", POD, tmp_path)) == "endpoints of there/agents"
    assert service_address("agents", {"KUBERNETES_SERVICE_HOST": "fd00::1"}, tmp_path).api == "https://[fd00::1]:443"


@pytest.mark.parametrize("text", ["", "/", "a/b/c", "/a", "a/"])
def test_what_names_no_service_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not of the form NAME or NAMESPACE/NAME"):
        service_address(text, POD, tmp_path)


def test_outside_a_pod_and_without_an_account_it_is_said_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="KUBERNETES_SERVICE_HOST is not set"):
        service_address("agents", {}, tmp_path)
    with pytest.raises(ConfigError, match="automountServiceAccountToken"):
        service_address("agents", POD, tmp_path)
