"""How the commands ask a router: /admin over HTTP."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from trunkline.shared.errors import ConfigError, TrunklineError

TIMEOUT_S = 5.0
ADMIN_TOKEN_VARIABLE = "TRUNKLINE_ADMIN_TOKEN"  # noqa: S105  # Its name.
ADMIN_URL_VARIABLE = "TRUNKLINE_ADMIN_URL"


class Asker:
    """Made by `asking`. What it returns was answered with 200; the rest is a TrunklineError, with the router's own
    message where it has one."""

    def __init__(self, client: httpx.Client, url: str) -> None:
        self._client = client
        self._url = url

    def get(self, path: str, timeout_s: float = TIMEOUT_S) -> httpx.Response:
        return self._ask("GET", path, timeout_s=timeout_s)

    def post(self, path: str, body: object = None, timeout_s: float = TIMEOUT_S) -> httpx.Response:
        return self._ask("POST", path, body, timeout_s)

    def delete(self, path: str, timeout_s: float = TIMEOUT_S) -> httpx.Response:
        return self._ask("DELETE", path, timeout_s=timeout_s)

    def _ask(self, method: str, path: str, body: object = None, timeout_s: float = TIMEOUT_S) -> httpx.Response:
        try:
            response = self._client.request(method, path, json=body, timeout=timeout_s)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise TrunklineError(f"no router answers at {self._url} (another one: --url): {error}") from None
        except ValueError as error:  # What JSON and UTF-8 have no way to say: NaN, half a character.
            raise ConfigError(f"this cannot be sent to a router: {error}") from None
        if response.status_code == httpx.codes.OK:
            return response
        message = _message(response)
        if response.status_code == httpx.codes.UNAUTHORIZED:
            sent = "was sent, and is another" if "authorization" in self._client.headers else "is not set"
            message += f"; {ADMIN_TOKEN_VARIABLE} {sent}"
        elif message.endswith(": Not Found"):  # The path, not what it names: an agent, or another port.
            message += "; is it a router's, and its --admin-port if it has one? (another one: --url)"
        raise TrunklineError(f"{self._url}{path} answers {response.status_code}: {message}")


@contextmanager
def asking(url: str, token: str | None) -> Iterator[Asker]:
    """`url` may be `host:port`; `token` is the admin token. Raises ConfigError for a URL that is none."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    url = base_url(url)
    try:
        client = httpx.Client(base_url=url, headers=headers)
    except (httpx.InvalidURL, ValueError) as error:
        raise ConfigError(f"--url {url!r} cannot be used: {error}") from None
    with client:
        yield Asker(client, url)


def base_url(url: str) -> str:
    """`url`, which may be `host:port`."""
    return url if "://" in url else f"http://{url}"


def admin_token() -> str | None:
    """What a router with an admin token wants, if the environment has it."""
    return os.environ.get(ADMIN_TOKEN_VARIABLE) or None


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "is it a router's?"
