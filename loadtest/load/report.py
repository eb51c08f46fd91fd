"""What a run leaves: a folder with its figures, its configuration and its pictures, whole or not at all."""

import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from trunkline.shared.errors import ConfigError


def check(folder: Path) -> None:
    """Raises ConfigError, before a run rather than after it, for a folder that cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        raise ConfigError(f"--reports {folder}: cannot be written to: {error.strerror}") from None


def write(folder: Path, started: float, files: Mapping[str, object]) -> Path:
    """A folder named by the time of the start. A text is written as it is, anything else as JSON.

    It has its name only once it is whole: until then it ends in `.partial`. Raises ConfigError if it cannot be written.
    """
    name = time.strftime("%Y%m%d-%H%M%S", time.localtime(started))
    taken = 0
    while (whole := folder / (f"{name}-{taken}" if taken else name)).exists():
        taken += 1
    partial = whole.with_name(f"{whole.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for file, content in files.items():
            text = content if isinstance(content, str) else json.dumps(content, indent=1) + "\n"
            (partial / file).write_text(text)
        partial.rename(whole)
    except OSError as error:
        raise ConfigError(f"--reports {folder}: the report cannot be written: {error.strerror}") from None
    return whole
