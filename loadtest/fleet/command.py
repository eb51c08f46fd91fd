"""What commands have in common that start a fleet."""

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import typer

from trunkline.shared.errors import ConfigError, TrunklineError


def run(name: str, command: Callable[..., Any]) -> NoReturn:
    """Exit code 1 with one line for an expected error. SIGTERM and Ctrl-C leave no process behind."""
    signal.signal(signal.SIGTERM, _end)
    try:
        typer.run(command)
    except TrunklineError as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0)


def new_folder(path: Path) -> Path:
    """Made, and absolute. Raises ConfigError if it is there already, or cannot be made."""
    try:
        path.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"--out {path}: cannot be made: {error.strerror}") from None
    return path.resolve()


def write_json(path: Path, content: object) -> None:
    """Whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(content, indent=1) + "\n")
    partial.rename(path)


def _end(*_: object) -> NoReturn:
    sys.exit(143)  # Through every `finally`.
