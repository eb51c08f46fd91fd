"""A client of OpenAI's completions with prompts of token ids: times as a client sees them."""

import http.client
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from trunkline.shared.errors import ConfigError

TIMEOUT_S = 300.0
_IDS = range(1000, 40_000)
"""Ordinary tokens in any vocabulary of some size."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server, and the model that it serves."""

    name: str
    host: str
    port: int
    model: str


@dataclass(frozen=True, slots=True)
class Reply:
    """Of one streamed completion; when it was asked for and its first and last tokens came, in seconds."""

    asked: float
    first: float
    last: float
    cached_tokens: int
    text: str
    node: str
    """That answered, as a router says; "" without one."""

    @property
    def ttft(self) -> float:
        return self.first - self.asked


def complete(
    target: Target, tokens: Sequence[int], max_tokens: int, headers: Mapping[str, str] = MappingProxyType({})
) -> Reply:
    """A greedy streamed completion that runs to `max_tokens`."""
    body = {
        "model": target.model,
        "prompt": list(tokens),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection = http.client.HTTPConnection(target.host, target.port, timeout=TIMEOUT_S)
    try:
        asked = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json", **headers})
        response = connection.getresponse()
        if response.status != 200:
            raise ConfigError(f"{target.name} answers {response.status}: {response.read(500).decode(errors='replace')}")
        return _read(target, response, asked, max_tokens)
    finally:
        connection.close()


def _read(target: Target, response: http.client.HTTPResponse, asked: float, max_tokens: int) -> Reply:
    first = last = 0.0
    text = ""
    usage: dict[str, Any] = {}
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        now = time.perf_counter()
        message = json.loads(line[6:])
        if message.get("choices"):
            first, last = first or now, now
            text += message["choices"][0]["text"]
        usage = message.get("usage") or usage
    if usage.get("completion_tokens") != max_tokens:
        raise ConfigError(f"{target.name} ended after {usage.get('completion_tokens')} of {max_tokens} tokens")
    cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Reply(asked, first, last, cached_tokens, text, response.headers.get("x-trunkline-node", ""))


def random_tokens(count: int, chance: random.Random | None = None) -> list[int]:
    """Ids of ordinary tokens; without `chance` ones that nobody has seen."""
    return (chance or random.Random()).choices(_IDS, k=count)


def find_target(name: str, url: str, headers: Mapping[str, str] = MappingProxyType({})) -> Target:
    """The server at a URL, with the first model that it serves. Raises ConfigError if there is none."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ConfigError(f"{name}: {url!r} is no URL such as http://127.0.0.1:8001")
    port = parts.port or 80
    connection = http.client.HTTPConnection(parts.hostname, port, timeout=10)
    try:
        connection.request("GET", "/v1/models", headers=dict(headers))
        model = json.loads(connection.getresponse().read())["data"][0]["id"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"{name}: {url}/v1/models does not answer with a model: {error}") from None
    finally:
        connection.close()
    return Target(name, parts.hostname, port, model)
