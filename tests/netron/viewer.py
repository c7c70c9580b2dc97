"""Netron on one file, in a process of its own, and a browser that reaches nothing but it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NO_BROWSER = "COREAI_ONNX_NO_BROWSER"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# One file per process: a second serve() makes every port of the process show the second file.
_SERVE = """
import sys, netron
host, port = netron.serve(sys.argv[1], None, ("127.0.0.1", int(sys.argv[2])))
print("serving", port, flush=True)
sys.stdin.read()
"""

_NODES = "[...document.querySelectorAll('g.node')]"
_WORDS = "n => [...n.querySelectorAll('text')].map(t => t.textContent.trim()).filter(t => t)"
_BUTTON = """n => {
  const label = [...n.querySelectorAll('text')].find(t => t.textContent.trim() === 'ƒ');
  if (!label) return null;
  const box = label.getBoundingClientRect();
  return [box.x + box.width / 2, box.y + box.height / 2];
}"""
_TITLE = """n => {
  const label = n.querySelector('text').getBoundingClientRect();
  return [label.x + label.width / 2, label.y + label.height / 2];
}"""
_SIDEBAR = ".sidebar-content"
_TEXT = """(e => [...e.querySelectorAll('input')].map(i => i.value).concat(e.innerText)
  .join('\\n'))(document.querySelector('SELECTOR'))"""
_ALL_SEEN = f"""(boxes => document.body.className === 'default' && boxes.length > 0 && boxes.every(
  b => document.elementFromPoint(b.x + b.width / 2, b.y + 4)?.closest('g.node')
))({_NODES}.map(n => n.getBoundingClientRect()).filter(
  b => b.width && b.x > 0 && b.y > 0 && b.right < innerWidth && b.bottom < innerHeight - 60
))"""


def browser_path() -> str:
    """Return an installed Chromium; without one the test fails, or is skipped if told to be."""
    if os.environ.get(NO_BROWSER):
        pytest.skip(f"{NO_BROWSER} is set")
    found = next((p for name in _BROWSERS if (p := shutil.which(name))), None)
    if found is None:
        pytest.fail(
            f"no Chromium: as root, apt-get install chromium; or set {NO_BROWSER}=1 to go without"
        )
    return found


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextmanager
def serving(path: Path, port: int) -> Iterator[str]:
    """Serve a file; yields its address."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE, str(path), str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = next((x for x in process.stdout if x.startswith("serving")), "")
        assert line, "netron did not start"
        yield f"http://127.0.0.1:{port}"
    finally:
        process.stdin.close()
        process.wait(timeout=20)
        process.stdout.close()


class Graph:
    """What the page shows. Netron takes away ``eval``, so scripts go through the debug protocol."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self._session = page.context.new_cdp_session(page)

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        answer = self._session.send(
            "Runtime.evaluate", {"expression": expression, "returnByValue": True}
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def boxes(self) -> list[list[str]]:
        """Return the words of each node, in the order of the graph."""
        found: list[list[str]] = self.evaluate(f"{_NODES}.map({_WORDS})")
        return found

    def wait_for(self, word: str) -> None:
        """Wait until a node says a word, and until every node in the window can be seen."""
        end = time.monotonic() + 30
        while not (any(word in box for box in self.boxes()) and self.evaluate(_ALL_SEEN)):
            assert time.monotonic() < end, f"no {word} to be seen among {self.boxes()}"
            self.page.wait_for_timeout(100)

    def open_function(self, name: str) -> None:
        """Click the ``ƒ`` of the first node whose first word begins with ``name``."""
        index = self.show(name)
        at = self.evaluate(f"({_BUTTON})({_NODES}[{index}])")
        assert at, f"{name} has no ƒ button: {self.boxes()[index]}"
        self.page.mouse.click(*at)

    def show(self, name: str) -> int:
        """Scroll to the first node whose first word begins with ``name``; return its number."""
        index = next(i for i, words in enumerate(self.boxes()) if words[0].startswith(name))
        options = "{block: 'center', inline: 'center', behavior: 'instant'}"
        self.evaluate(f"{_NODES}[{index}].scrollIntoView({options})")
        self.page.wait_for_timeout(200)
        return index

    def properties(self, name: str) -> str:
        """Click the first node whose first word begins with ``name``; return what is told of it."""
        index = self.show(name)
        at = self.evaluate(f"({_TITLE})({_NODES}[{index}])")
        self.page.mouse.click(*at)
        self.page.wait_for_selector(_SIDEBAR)
        return self._settled(_SIDEBAR)

    def model_properties(self) -> str:
        """Open the properties of the model; return what they tell."""
        return self._clicked("#sidebar-model-button")

    def function_properties(self) -> str:
        """Open the properties of the function that is shown; return what they tell."""
        return self._clicked("#sidebar-target-button")

    def close(self) -> None:
        """Close the sidebar."""
        self.page.keyboard.press("Escape")
        self.page.wait_for_timeout(500)

    def _clicked(self, button: str) -> str:
        self.page.click(button)
        self.page.wait_for_selector(_SIDEBAR)
        return self._settled(_SIDEBAR)

    def _settled(self, selector: str) -> str:
        """Return the text of an element once it has stopped changing: a sidebar slides in."""
        before, end = None, time.monotonic() + 30
        while time.monotonic() < end:
            text: str = self.evaluate(_TEXT.replace("SELECTOR", selector))
            if text and text == before:
                return text
            before = text
            self.page.wait_for_timeout(500)
        raise AssertionError(f"{selector} never settled: {before}")


@contextmanager
def graph_of(address: str, word: str, size: tuple[int, int] = (1200, 1400)) -> Iterator[Graph]:
    """Yield the graph that the page at an address shows, once a node says a word.

    Args:
        address: Of the server.
        word: Any word of any node.
        size: Width and height of the window.
    """
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=browser_path(), headless=True, args=arguments
        )
        context = browser.new_context(viewport={"width": size[0], "height": size[1]})
        # Without the cookie there is only the consent page.
        context.add_cookies([{"name": "consent", "value": "1", "url": address}])
        context.route(
            "**/*",
            lambda route: (
                route.continue_() if route.request.url.startswith(address) else route.abort()
            ),
        )
        page = context.new_page()
        page.goto(address)
        graph = Graph(page)
        graph.wait_for(word)
        yield graph
        browser.close()
