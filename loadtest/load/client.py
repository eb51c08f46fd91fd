"""Sends a request and reads its streamed answer, in a greenlet."""

import json
import time
from collections.abc import Iterator

from geventhttpclient import HTTPClient
from geventhttpclient.response import HTTPParseError, HTTPSocketResponse

from trunkline.loadtest.load.conversation import Request
from trunkline.loadtest.load.stream import Answer, StreamBroken, read

TIMEOUT_S = 600.0
"""Without anything of an answer."""
_CONNECT_S = 10.0


class Client:
    """One connection, kept between requests; for one greenlet."""

    def __init__(self, url: str, model: str, api_keys: tuple[str, ...]) -> None:
        self._http = HTTPClient.from_url(url, connection_timeout=_CONNECT_S, network_timeout=TIMEOUT_S, concurrency=1)
        self._model = model
        self._api_keys = api_keys

    def send(self, request: Request, due: float) -> Answer:
        """Never raises for what a server does: that is `Answer.error`. `due` is of `time.monotonic`."""
        answer = Answer(due, sent=time.monotonic())
        response: HTTPSocketResponse | None = None
        try:
            response = self._http.request("POST", "/v1/chat/completions", self._body(request), self._headers(request))
            answer.node = str(response.get("x-trunkline-node") or "")
            if response.status_code != 200:
                answer.error = f"HTTP {response.status_code}"
                response.read()
            else:
                read(_lines(response), answer, time.monotonic, request.cancel_after)
        except StreamBroken as error:
            answer.error = str(error)
        except (OSError, HTTPParseError) as error:
            answer.error = "broken stream" if response is not None else f"no response: {type(error).__name__}"
        finally:
            if response is not None:
                response.release()
        if not answer.first:
            answer.first = answer.last = time.monotonic()
        return answer

    def close(self) -> None:
        self._http.close()

    def _body(self, request: Request) -> bytes:
        body = {
            "model": self._model,
            "messages": request.messages,
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return json.dumps(body, separators=(",", ":")).encode()

    def _headers(self, request: Request) -> dict[str, str]:
        headers = {"content-type": "application/json"}
        if self._api_keys:
            headers["authorization"] = f"Bearer {self._api_keys[request.tenant % len(self._api_keys)]}"
        return headers


def _lines(response: HTTPSocketResponse) -> Iterator[bytes]:
    while line := response.readline(b"\n"):
        yield line
