"""How the commands ask a router: one GET of /admin."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from trunkline.shared.errors import ConfigError, TrunklineError


class Asker:
    """Made by `asking`."""

    def __init__(self, client: httpx.Client, url: str) -> None:
        self._client = client
        self._url = url

    def get(self, path: str) -> httpx.Response:
        """Raises TrunklineError for every answer but 200; that of a 404 is the router's own message."""
        try:
            response = self._client.get(path)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise TrunklineError(f"no router answers at {self._url}: {error}") from None
        if response.status_code == httpx.codes.OK:
            return response
        raise TrunklineError(f"{self._url}{path} answers {response.status_code}: {_message(response)}")


@contextmanager
def asking(url: str, token: str | None) -> Iterator[Asker]:
    """`url` may be `host:port`; `token` is the admin token. Raises ConfigError for a URL that is none."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    url = url if "://" in url else f"http://{url}"
    try:
        client = httpx.Client(base_url=url, headers=headers, timeout=5.0)
    except (httpx.InvalidURL, ValueError) as error:
        raise ConfigError(f"--url {url!r} cannot be used: {error}") from None
    with client:
        yield Asker(client, url)


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "is it a router's?"
