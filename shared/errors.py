"""The exception tree of what router and agent share.

TrunklineError
├── ConfigError      a flag, file or environment value that cannot be used; names the key and the value
├── RequestError     a request that cannot be served; carries HTTP status, field, OpenAI's error type and code
│   ├── ModelNotFound   404
│   ├── ContextExceeded 400
│   └── Overloaded      429 or 503 with Retry-After
└── WireError        a frame that does not decode, is too large, or speaks another version

Every message says what happened, to which value, and what to do about it.
"""

import msgspec

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not what they should be. Brackets that go too deep are RecursionError."""
_MAX_MESSAGE = 1000
"""Characters of a message that go out: it quotes what a client sent, which may be megabytes."""


class TrunklineError(Exception):
    """Base of every error that Trunkline raises on purpose."""


class ConfigError(TrunklineError):
    """A setting that cannot be used: flag, file or environment value."""


class RequestError(TrunklineError):
    """A request that cannot be served, in the shape of OpenAI's error object.

    `status` is the HTTP status, `param` the field at fault (dotted path) or None, `kind` OpenAI's error type, `code`
    OpenAI's name of the cause or None: programs go by it.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        kind: str = "invalid_request_error",
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message if len(message) <= _MAX_MESSAGE else f"{message[: _MAX_MESSAGE - 3]}..."
        self.status = status
        self.param = param
        self.kind = kind
        self.code = code

    def body(self) -> dict[str, object]:
        """OpenAI's error object."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


class ModelNotFound(RequestError):
    """Nobody here serves the model."""

    def __init__(self, model: str) -> None:
        super().__init__(
            f"model: {model!r} is not served here; GET /v1/models lists what is",
            status=404,
            param="model",
            code="model_not_found",
        )


class ContextExceeded(RequestError):
    """Prompt and output do not fit into the model's context. `param` is the field that is too large."""

    def __init__(self, param: str, reason: str) -> None:
        super().__init__(f"{param}: {reason}", param=param, code="context_length_exceeded")


class Overloaded(RequestError):
    """No room now. `retry_after` is in seconds."""

    def __init__(self, message: str, *, retry_after: float, status: int = 429) -> None:
        code = "rate_limit_exceeded" if status == 429 else None
        super().__init__(message, status=status, kind="overloaded_error", code=code)
        self.retry_after = retry_after


class WireError(TrunklineError):
    """A frame that does not decode, is over its cap, or speaks another version."""
