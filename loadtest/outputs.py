"""Files that a long run writes in the end."""

from pathlib import Path

from trunkline.shared.errors import ConfigError


def check_output(flag: str, path: Path) -> None:
    """Raises ConfigError, before hours of work, for what could not be written after them."""
    if not path.parent.is_dir():
        raise ConfigError(f"{flag} {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise ConfigError(f"{flag} {path}: this is a folder, not a file")


def check_json(path: Path | None) -> Path | None:
    """The callback of a `--json`."""
    if path is not None:
        check_output("--json", path)
    return path
