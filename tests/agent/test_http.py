"""Who may tell an agent what to keep, to forget and to fetch."""

import pytest
from starlette.requests import Request

from trunkline.agent.http import ClusterSecret
from trunkline.shared.errors import RequestError
from trunkline.shared.names import HEADER_CLUSTER

SECRET = "a secret of the cluster"


def request(client: str, secret: str | None = None) -> Request:
    headers = [(HEADER_CLUSTER.encode(), secret.encode())] if secret is not None else []
    return Request({"type": "http", "headers": headers, "client": (client, 40000), "server": ("192.0.2.7", 8100)})


def refused(secret: str | None, asked: Request) -> int:
    """Status; 0: it is not."""
    try:
        ClusterSecret(secret).member(asked)
    except RequestError as error:
        return error.status
    return 0


@pytest.mark.parametrize(("client", "status"), [("127.0.0.1", 0), ("::1", 0), ("192.0.2.7", 0), ("192.0.2.8", 403)])
def test_without_a_secret_it_is_for_clients_on_its_host(client: str, status: int) -> None:
    assert refused(None, request(client)) == status


@pytest.mark.parametrize("client", ["127.0.0.1", "192.0.2.8"])
def test_with_a_secret_it_is_for_who_knows_it(client: str) -> None:
    assert refused(SECRET, request(client, SECRET)) == 0
    assert refused(SECRET, request(client, "another")) == refused(SECRET, request(client)) == 401
