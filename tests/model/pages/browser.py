"""A page in a browser without a network, in light and in dark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.netron.viewer import browser_path

_ARGUMENTS = ["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND"]


@contextmanager
def opened(path: Path, scheme: str = "light") -> Iterator[Any]:
    """Open a page of ours; at the end nothing was requested but it, and nothing failed."""
    from playwright.sync_api import sync_playwright

    executable = browser_path()
    faults: list[str] = []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=executable, headless=True, args=_ARGUMENTS
        )
        page = chromium.new_page(viewport={"width": 1300, "height": 800}, color_scheme=scheme)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda message: faults.append(message.text))
        page.on("request", lambda request: faults.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("body[data-ready]", timeout=60_000)
        yield page
        chromium.close()
    assert faults == [path.as_uri()]
