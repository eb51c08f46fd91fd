"""How commands are told of a prefix."""

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from trunkline.shared.errors import ConfigError

_ARGUMENT = typer.Argument(
    help='Text, or a file of it; a file with {"prompt": ...} or {"messages": [...]} is taken as in a request.',
    metavar="PREFIX|FILE",
)
Prefix = Annotated[str, _ARGUMENT]
PrefixIfAny = Annotated[str | None, _ARGUMENT]


def read_prefix(prefix: str) -> dict[str, Any]:
    """Fields of a request's body. Raises ConfigError for a file that cannot be read."""
    try:
        # Not `Path.is_file`: it raises for a text that is too long to be a name.
        text = Path(prefix).read_text() if os.path.isfile(prefix) else prefix
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{prefix} cannot be read: {error}") from None
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):  # Text that begins with many brackets is text.
        given = None
    if isinstance(given, dict) and ("prompt" in given or "messages" in given):
        kept = ("prompt", "messages", "tools", "chat_template_kwargs")
        return {field: given[field] for field in kept if field in given}
    return {"prompt": text}
