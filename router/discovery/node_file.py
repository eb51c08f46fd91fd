"""Nodes that a file lists: whoever starts and moves them writes it, and routers follow."""

import asyncio
import logging
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from trunkline.router.discovery.listing import Listing
from trunkline.router.nodes import Registry
from trunkline.shared.lease import Kind, Member

READ_S = 1.0
"""Between two looks at the file."""
MAX_BYTES = 1 << 20

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FileAddress:
    """A file with a node on each line, its base URL or `host:port`. Empty ones and those that begin with # are none."""

    path: Path
    kind: ClassVar = "file"

    def __str__(self) -> str:
        return f"nodes in {self.path}"


class NodeFile(Listing):
    """While the file cannot be read, nodes stay as they are."""

    def __init__(self, address: FileAddress, registry: Registry, secret: str | None) -> None:
        super().__init__(address, registry, secret)
        self._path = address.path
        self._secret = secret

    async def _follow(self) -> None:
        read: str | None = None
        while True:
            try:
                text = await asyncio.to_thread(self._read)
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else error  # Its path is said already.
                self._lost(f"it cannot be read: {reason}")
            else:
                if text != read or not self.connected:
                    read = text
                    self._list(self._parse(text))
            await asyncio.sleep(READ_S)

    def _read(self) -> str:
        if not stat.S_ISREG(self._path.stat().st_mode):  # To open a pipe may take for ever.
            raise ValueError("it is no file")
        with self._path.open(encoding="utf-8") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise ValueError(f"it is longer than {MAX_BYTES} characters")
        return text

    def _parse(self, text: str) -> list[Member]:
        """Lines that are no URL become members that membership refuses, and says so."""
        lines = (line.strip() for line in text.splitlines())
        urls = dict.fromkeys(line for line in lines if line and not line.startswith("#"))
        # Who may write the file may say who is a node: its lines need no proof of their own.
        return [Member(Kind.NODE, url, url, url).signed(self._secret) for url in urls]
