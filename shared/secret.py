"""The cluster secret, which routers prove to know and nodes ask for."""

import os
from pathlib import Path

from trunkline.shared.errors import ConfigError

VARIABLE = "TRUNKLINE_CLUSTER_SECRET"
MIN_CHARS = 16


def load_secret(path: Path | None) -> str | None:
    """From the file, else from the environment, else None. Raises ConfigError, which never shows the secret."""
    if path is not None:
        source = f"cluster secret file {path}"
        try:
            secret = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{source} cannot be read: {error}") from None
    elif VARIABLE in os.environ:
        source, secret = VARIABLE, os.environ[VARIABLE]
    else:
        return None
    secret = secret.strip()
    if len(secret) < MIN_CHARS or not (secret.isascii() and secret.isprintable()):
        raise ConfigError(f"{source} must hold at least {MIN_CHARS} printable ASCII characters on one line")
    return secret
