"""The exception tree of what router and agent share.

TrunklineError
├── ConfigError      a flag, file or environment value that cannot be used; names the key and the value
├── RequestError     a request that cannot be served; carries HTTP status, field and OpenAI error type
│   └── Overloaded   429 or 503 with Retry-After
└── WireError        a frame that does not decode, is too large, or speaks another version

Every message says what happened, to which value, and what to do about it.
"""

_MAX_MESSAGE = 1000
"""Characters of a message that go out: it quotes what a client sent, which may be megabytes."""


class TrunklineError(Exception):
    """Base of every error that Trunkline raises on purpose."""


class ConfigError(TrunklineError):
    """A setting that cannot be used: flag, file or environment value."""


class RequestError(TrunklineError):
    """A request that cannot be served, in the shape of OpenAI's error object.

    `status` is the HTTP status, `param` the field at fault (dotted path) or None, `kind` OpenAI's error type.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        kind: str = "invalid_request_error",
    ) -> None:
        super().__init__(message)
        self.message = message if len(message) <= _MAX_MESSAGE else f"{message[: _MAX_MESSAGE - 3]}..."
        self.status = status
        self.param = param
        self.kind = kind

    def body(self) -> dict[str, object]:
        """OpenAI's error object."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}}


class Overloaded(RequestError):
    """No room now. `retry_after` is in seconds."""

    def __init__(self, message: str, *, retry_after: float, status: int = 429) -> None:
        super().__init__(message, status=status, kind="overloaded_error")
        self.retry_after = retry_after


class WireError(TrunklineError):
    """A frame that does not decode, is over its cap, or speaks another version."""
