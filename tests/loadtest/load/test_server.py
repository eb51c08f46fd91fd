"""What a server is asked before the first request."""

import pytest

from tests.loadtest.load.stub import MODEL, Stub, serving
from trunkline.loadtest.load.server import find
from trunkline.loadtest.load.settings import Range, Settings
from trunkline.shared.errors import ConfigError


def test_what_is_found() -> None:
    with serving(Stub()) as stub:
        server = find(stub.url, Settings())
    assert (server.model, server.context) == (MODEL, 40_000)
    assert server.tokens_per_word == pytest.approx(1.0), "the stub counts words"
    assert server.template_tokens == 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (Settings(model="nix"), "--model 'nix' is not served, but stub: .*404"),
        (Settings(inputs=Range(1, 50_000)), "50128 tokens do not fit into the context of stub, which is 40000"),
    ],
)
def test_what_does_not_go_together_is_refused(settings: Settings, said: str) -> None:
    with serving(Stub()) as stub, pytest.raises(ConfigError, match=said):
        find(stub.url, settings)


@pytest.mark.parametrize("url", [None, "", "127.0.0.1", "http://127.0.0.1:1", "nothing", "http://[x"])
def test_no_server(url: str | None) -> None:
    with pytest.raises(ConfigError, match=r"--host|no server"):
        find(url, Settings())
