"""Sizes as people write them."""

import re

from trunkline.shared.errors import ConfigError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30}
_LARGEST = (1 << 63) - 1
"""What still is a number where sizes go: offsets in files, the core."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]?I?)B?", re.IGNORECASE)


def parse_bytes(text: str, key: str) -> int:
    """``512MiB``, ``2GB``, ``1048576``. Raises ConfigError that names `key`."""
    match = _SIZE.fullmatch(text.strip())
    size = float(match.group(1)) * _UNITS[match.group(2).upper()] if match is not None else 0.0
    if not 1 <= size < _LARGEST:
        raise ConfigError(f"{key}: {text!r} is no size in bytes, such as 512MiB or 2GiB")
    return int(size)
