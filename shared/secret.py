"""Secrets from files and the environment. The cluster secret is what routers prove to know and nodes ask for."""

import os
from pathlib import Path

from trunkline.shared.errors import ConfigError

VARIABLE = "TRUNKLINE_CLUSTER_SECRET"
MIN_CHARS = 16


def load_secret(path: Path | None) -> str | None:
    """The cluster secret: from the file, else from the environment, else None. Raises ConfigError as `read_secret`."""
    if path is not None:
        return read_secret(path, "cluster secret", MIN_CHARS)
    if VARIABLE in os.environ:
        return _checked(os.environ[VARIABLE], VARIABLE, MIN_CHARS)
    return None


def read_secret(path: Path, name: str, least: int = 1) -> str:
    """From the file, which must have at least so many characters. Raises ConfigError, which never shows the secret."""
    source = f"{name} file {path}"
    try:
        return _checked(path.read_text(), source, least)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source} cannot be read: {error}") from None


def _checked(secret: str, source: str, least: int) -> str:
    secret = secret.strip()
    if len(secret) < least or not (secret.isascii() and secret.isprintable()):
        raise ConfigError(f"{source} must hold at least {least} printable ASCII characters on one line")
    return secret
