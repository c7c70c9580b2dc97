"""The browser page, in a browser that reaches nothing but its own server."""

from __future__ import annotations

import http.server
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.examples import apps, tutorial
from tests.netron.viewer import browser_path

pytestmark = pytest.mark.slow

ENDED = "() => /\\d|error/.test(document.getElementById('result').innerText)"


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a folder without a word."""

    def log_message(self, format: str, *arguments: object) -> None:
        del format, arguments


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve a folder; yields its address."""
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Quiet, directory=str(folder))
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def shown(folder: Path, provider: str = "wasm") -> str:
    """Return what the page of a folder shows in the end."""
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"]
    # SwiftShader is a GPU in software, which the browser brings.
    arguments += ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"]
    with serving(folder) as address, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=browser_path(), headless=True, args=arguments
        )
        page = chromium.new_page()
        page.goto(f"{address}/?provider={provider}")
        page.wait_for_function(ENDED, timeout=60_000)
        line = page.inner_text("#result")
        chromium.close()
    return line


@pytest.mark.parametrize(
    ("provider", "exception"), [("wasm", None), ("webgpu", "webgpu_layer_norm")]
)
def test_runs_the_bodies(model: Path, provider: str, exception: str | None) -> None:
    folder = apps.npm_install("web")
    shutil.copy(model, folder / "encoder.onnx")
    apps.assert_as_python(shown(folder, provider), model, exception)


def test_the_tutorial(tmp_path: Path, tutorial_model: Path) -> None:
    folder = tmp_path / "app"
    shutil.copytree(apps.npm_install("web"), folder, copy_function=os.link)
    (folder / "index.html").unlink()  # a link to that of the example
    tutorial.begin("A browser", folder, tutorial_model)
    tutorial.run_commands("A browser", folder)
    assert shown(folder) == tutorial.NUMBERS
    assert f"```text\n{tutorial.NUMBERS}\n```" in tutorial.section("A browser")
