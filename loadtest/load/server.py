"""The server under test: whether it is there, what it serves, and how many tokens it makes of our text."""

from dataclasses import dataclass
from typing import Any

import httpx

from trunkline.loadtest.load.settings import Settings
from trunkline.loadtest.load.text import Writer
from trunkline.shared.errors import ConfigError

_SAMPLE_WORDS = 240
_TIMEOUT_S = 120.0
"""The first requests may meet a queue."""


@dataclass(frozen=True, slots=True)
class Server:
    """What `find` has found out."""

    url: str
    model: str
    context: int | None
    """Tokens of prompt and answer; None: the server does not say."""
    tokens_per_word: float
    template_tokens: int
    """Of a request with next to no text."""


def find(url: str | None, settings: Settings) -> Server:
    """Asks for the models, and has two small prompts counted.

    Raises ConfigError for no server, an unknown model, and a profile that does not fit into the context.
    """
    if not url:
        raise ConfigError("--host is missing: the URL of a router, such as http://127.0.0.1:8000")
    key = {"authorization": f"Bearer {settings.api_keys[0]}"} if settings.api_keys else {}
    try:
        with httpx.Client(base_url=url, timeout=_TIMEOUT_S, headers=key) as client:
            models = {str(entry["id"]): entry for entry in _asked(client, "GET", "/v1/models")["data"]}
            model = settings.model or next(iter(models), "")
            try:  # Whatever the list says: some routers have no real one.
                little = _count(client, model, "a")
            except ConfigError as error:
                if model in models:
                    raise
                served = ", ".join(models) or "nothing"
                raise ConfigError(f"--model {model!r} is not served, but {served}: {error}") from None
            sample = " ".join(Writer(1.0).sample(_SAMPLE_WORDS))
            per_word = max(0.1, (_count(client, model, sample) - little) / (_SAMPLE_WORDS - 1))
    except httpx.InvalidURL as error:
        raise ConfigError(f"--host {url!r} is no URL such as http://127.0.0.1:8000: {error}") from None
    except (httpx.HTTPError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"no server that speaks OpenAI's API at {url}: {error or type(error).__name__}") from None
    context = models.get(model, {}).get("max_model_len")
    if context is not None and settings.trace is None and settings.longest + little > context:
        raise ConfigError(
            f"prompts and answers of up to {settings.longest} tokens do not fit into the context of {model}, which is "
            f"{context}: lower --inputs, --long (or --long-share 0), --system, --outputs"
        )
    return Server(url, model, context, per_word, little)


def _count(client: httpx.Client, model: str, text: str) -> int:
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    return int(_asked(client, "POST", "/v1/chat/completions", json=body)["usage"]["prompt_tokens"])


def _asked(client: httpx.Client, method: str, path: str, json: object = None) -> dict[str, Any]:
    response = client.request(method, path, json=json)
    if response.status_code != httpx.codes.OK:
        raise ConfigError(f"{client.base_url} answers {path} with {response.status_code}: {response.text[:300]}")
    answer = response.json()
    if not isinstance(answer, dict):
        raise ValueError(f"{path} answers no JSON object")
    return answer
