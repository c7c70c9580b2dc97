"""Open every page of build/site in Chromium as on a phone and a desktop, some in dark colors too.

    python tools/look_at_site.py          # after make site; pictures go to build/site-pictures

A page fails if the console has an error, a request fails or goes to another host, or its content is
wider than the window. The search, the navigation and the switch of colors are used like a reader
does.
"""

from __future__ import annotations

import functools
import http.server
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

from tests.netron.viewer import browser_path  # noqa: E402

SITE = REPO / "build" / "site"
PICTURES = REPO / "build" / "site-pictures"
SIZES = {"phone": (390, 844), "desktop": (1280, 900)}
SCHEMES = {"light": "default", "dark": "slate"}
SHOWN = (
    "index.html",
    "tutorials/first_file.html",
    "coming_from_torch_onnx.html",
    "api/conversion.html",
    "models_on_providers.html",
)
"""Pages whose pictures are kept."""
_WIDTH = "document.documentElement.scrollWidth"
_WIDEST = """width => [...document.querySelectorAll('.md-content *')]
  .filter(e => e.getBoundingClientRect().right > width + 1)
  .slice(0, 3).map(e => e.outerHTML.slice(0, 120))"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@contextmanager
def served() -> Iterator[str]:
    """Serve the site; yields its address."""
    handler = functools.partial(Quiet, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Reader:
    """A window on the site, and what went wrong in it."""

    def __init__(self, browser: Any, address: str, size: str, scheme: str) -> None:
        """Open a window.

        Args:
            browser: Playwright's browser.
            address: Of the site.
            size: A key of `SIZES`.
            scheme: A key of `SCHEMES`: the preference of the reader's system.
        """
        self.width, height = SIZES[size]
        self.view = f"{size}-{scheme}"
        self.address, self.scheme, self.phone = address, scheme, size == "phone"
        self.faults: list[str] = []
        context = browser.new_context(
            viewport={"width": self.width, "height": height},
            color_scheme=scheme,
            is_mobile=self.phone,
        )
        self.page = page = context.new_page()
        page.on("console", self._said)
        page.on("pageerror", lambda error: self._wrong(str(error)))
        page.on("requestfailed", self._failed)
        page.on("request", self._asked)
        page.on("response", self._answered)

    def _wrong(self, what: str) -> None:
        self.faults.append(f"{self.view} {self.page.url.removeprefix(self.address)}: {what}")

    def _said(self, message: Any) -> None:
        if message.type in {"error", "warning"}:
            self._wrong(message.text)

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.address, "data:", "blob:")):
            self._wrong(f"another host: {request.url}")

    def _answered(self, response: Any) -> None:
        if response.status >= 400:
            self._wrong(f"{response.status}: {response.url}")

    def _failed(self, request: Any) -> None:
        # The search's worker of a page that is left is aborted.
        if request.failure != "net::ERR_ABORTED":
            self._wrong(f"{request.failure}: {request.url}")

    def check(self, truth: object, what: str) -> None:
        """Note a fault unless something is true."""
        if not truth:
            self._wrong(what)

    def open(self, page: str) -> None:
        """Open a page and look at it."""
        self.page.goto(f"{self.address}/{page}", wait_until="networkidle")
        # Not innerWidth: a phone zooms out until a wide page fits.
        width = self.page.evaluate(_WIDTH)
        self.check(
            width <= self.width, f"{width} px wide: {self.page.evaluate(_WIDEST, self.width)}"
        )
        scheme = self.page.get_attribute("body", "data-md-color-scheme")
        self.check(scheme == SCHEMES[self.scheme], f"the colors are {scheme}")

    def keep(self, name: str) -> None:
        """Save a picture of the window."""
        self.page.wait_for_timeout(300)
        self.page.screenshot(path=PICTURES / f"{name}-{self.view}.png")

    def search(self) -> None:
        """Find a class by its name, and go to it."""
        self.open("index.html")
        if self.phone:
            self.page.click("label.md-header__button[for=__search]")
        else:
            self.page.click(".md-search__input")
        self.page.keyboard.type("ExternalizeSpec")
        result = self.page.locator(".md-search-result__link", has_text="ExternalizeSpec").first
        result.wait_for(timeout=20_000)
        self.keep("search")
        result.click()
        self.page.wait_for_url("**/*.html*ExternalizeSpec*", timeout=20_000)
        text = self.page.inner_text("main")
        self.check("ExternalizeSpec" in text, "the result of the search is about something else")

    def navigate(self) -> None:
        """Go from the first page to the table of passes by the navigation."""
        self.open("index.html")
        if self.phone:
            self.page.click("label.md-header__button[for=__drawer]")
            self.page.wait_for_timeout(400)
            for section in ("Reference", "Tables"):
                self.page.click(f".md-nav--primary label.md-nav__link:has-text('{section}')")
                self.page.wait_for_timeout(400)
            self.keep("navigation")
        else:
            self.page.locator(".md-tabs__link", has_text="Reference").click()
            self.page.wait_for_load_state("load")
        links = self.page.locator(".md-nav--primary a.md-nav__link", has_text="Passes")
        links.locator("visible=true").last.click()
        self.page.wait_for_load_state("load")
        self.check("Passes" in self.page.inner_text("h1"), "the navigation leads to another page")

    def switch_colors(self) -> None:
        """Switch to the other colors, which the next page has, too."""
        self.open("index.html")
        self.page.locator("[data-md-component=palette] label").locator("visible=true").click()
        self.page.goto(f"{self.address}/state.html")
        scheme = self.page.get_attribute("body", "data-md-color-scheme")
        self.check(scheme != SCHEMES[self.scheme], "the colors are not switched")


def look(browser: Any, address: str, size: str, scheme: str) -> list[str]:
    """Return what is wrong with the site in one window size and scheme."""
    reader = Reader(browser, address, size, scheme)
    pages = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html"))
    for name in pages if scheme == "light" else SHOWN:
        reader.open(name)
        if name in SHOWN:
            reader.keep(Path(name).stem)
    reader.search()
    reader.navigate()
    reader.switch_colors()
    return reader.faults


def main() -> None:
    """Look at the site in every size and scheme; exits with what is wrong."""
    from playwright.sync_api import sync_playwright

    PICTURES.mkdir(parents=True, exist_ok=True)
    faults: list[str] = []
    arguments = ["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"]
    with served() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=browser_path(), headless=True, args=arguments
        )
        for size in SIZES:
            for scheme in SCHEMES:
                faults += look(browser, address, size, scheme)
        browser.close()
    if faults:
        sys.exit("\n".join(dict.fromkeys(faults)))
    pages = len([*SITE.rglob("*.html")])
    print(f"{pages} pages at {len(SIZES)} sizes, {len(SHOWN)} in dark colors: nothing wrong")


if __name__ == "__main__":
    main()
