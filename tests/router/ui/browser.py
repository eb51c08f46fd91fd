"""Debian's Chromium, driven by Playwright."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import Page, async_playwright

DEADLINE_MS = 20_000


@asynccontextmanager
async def page(**context: Any) -> AsyncIterator[Page]:
    """An empty page of a new browser. What goes wrong in it fails the test at its end: errors, refused resources."""
    path = shutil.which("chromium")
    assert path is not None, "these tests need chromium: as root, apt-get install chromium"
    # Root has no sandbox; what is loaded is our own.
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=[*flags, "--disable-gpu"])
        try:
            opened = await browser.new_page(**context)
            opened.set_default_timeout(DEADLINE_MS)
            wrong: list[str] = []
            opened.on("pageerror", lambda error: wrong.append(str(error)))
            opened.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
            yield opened
            # A refused request is in the console of every browser.
            assert [text for text in wrong if "Failed to load resource" not in text] == []
        finally:
            await browser.close()
