"""Flags from a file: the callback of a command's `--config`."""

import tomllib
from pathlib import Path

import typer

from trunkline.shared.errors import ConfigError


def load_flags(context: typer.Context, path: Path | None) -> Path | None:
    """Makes what a TOML file says the defaults of the command's other flags: `step-tokens = 256`.

    For an eager option. Raises ConfigError for a file that cannot be read, and for a key that is no flag.
    """
    if path is None:
        return None
    try:
        values = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"--config {path}: {error}") from None
    flags = {str(parameter.name) for parameter in context.command.params} - {"config"}
    named = {key.replace("-", "_"): value for key, value in values.items()}
    for key in values:
        if key.replace("-", "_") not in flags:
            known = ", ".join(sorted(flag.replace("_", "-") for flag in flags))
            raise ConfigError(f"--config {path}: {key} is no flag of {context.info_name}, which has {known}")
        if isinstance(values[key], dict):
            raise ConfigError(f"--config {path}: {key} is a table; flags have plain values")
    context.default_map = {**(context.default_map or {}), **named}
    return path
