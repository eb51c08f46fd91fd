"""What commands say when a router refuses them."""

import httpx
import pytest

from trunkline.shared.ask import Asker
from trunkline.shared.errors import TrunklineError


@pytest.mark.parametrize(
    ("headers", "said"),
    [({}, "TRUNKLINE_ADMIN_TOKEN is not set"), ({"authorization": "Bearer old"}, "was sent, and is another")],
)
def test_a_missing_or_wrong_token_is_named_by_its_variable(headers: dict[str, str], said: str) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        return httpx.Response(401, json={"error": {"message": "/admin needs the admin token"}})

    url = "http://router"
    client = httpx.Client(base_url=url, headers=headers, transport=httpx.MockTransport(refuse))
    with client, pytest.raises(TrunklineError, match=f"/admin/nodes answers 401: .* admin token; .*{said}$"):
        Asker(client, url).get("/admin/nodes")


@pytest.mark.parametrize(
    ("said", "asks"), [("GET /admin/nodes: Not Found", True), ("no decision on request 'x' is kept", False)]
)
def test_a_path_that_is_not_there_asks_whether_that_is_the_routers_port(said: str, asks: bool) -> None:
    def miss(request: httpx.Request) -> httpx.Response:
        return httpx.Response(404, json={"error": {"message": said}})

    url = "http://agent"
    client = httpx.Client(base_url=url, transport=httpx.MockTransport(miss))
    with client, pytest.raises(TrunklineError) as raised:
        Asker(client, url).get("/admin/nodes")
    assert ("--admin-port" in str(raised.value)) is asks
