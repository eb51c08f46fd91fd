"""JSON from outside into typed values, or an error that names the field at fault."""

import re
from typing import TypeVar

import msgspec

from trunkline.shared.errors import RequestError

_T = TypeVar("_T")

Body = bytes | memoryview
"""Of a request: as it lies in what was read, so that it need not be copied."""
_PATH = re.compile(r" - at `\$\.?(.*)`$")
_MISSING = re.compile(r"missing required field `(\w+)`")


def decode(decoder: msgspec.json.Decoder[_T], raw: Body | msgspec.Raw, field: str = "") -> _T:
    """`field`: where in the request's body `raw` stands; empty: it is the body.

    Raises RequestError: 400 for malformed JSON, invalid UTF-8 and a missing field, 422 for a wrong type.
    """
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise _misfit(str(error), field) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"{field or 'the body'} is not valid JSON: {error}", param=field or None) from None
    except RecursionError:
        raise RequestError(f"{field or 'the body'} is nested too deeply", param=field or None) from None


def empty(field: str) -> RequestError:
    """There is nothing to continue."""
    return RequestError(f"{field}: must not be empty", param=field)


def _misfit(message: str, field: str) -> RequestError:
    """msgspec says "... - at `$.messages[0].role`", and names a missing field in the text."""
    path = _PATH.search(message)
    inner = re.sub(r"\[(\d+)\]", r".\1", path.group(1).replace("[...]", "")) if path else ""
    missing = _MISSING.search(message)
    param = ".".join(part for part in (field, inner.strip("."), missing.group(1) if missing else "") if part)
    reason = _PATH.sub("", message)
    return RequestError(f"{param}: {reason}" if param else reason, status=400 if missing else 422, param=param or None)
