"""Files on WebGPU in headless Chromium: onnxruntime-web, and transformers.js on a folder."""

from __future__ import annotations

import base64
import http.server
import re
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnxruntime as ort
from playwright.sync_api import ConsoleMessage, sync_playwright

from coreai_onnx.runtime.states.binding import Binding

ROOT = Path(__file__).resolve().parents[2]
# The other addresses are those of a page that must not reach the network.
FLAGS = (
    "--no-sandbox",
    "--enable-unsafe-webgpu",
    "--use-webgpu-adapter=swiftshader",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)
_PLACED = re.compile(r"(?:Node\(s\)|All nodes) placed on \[(\w+)\]\. Number of nodes: (\d+)")
Arrays = Mapping[str, np.ndarray]


class Chromium:
    """A page that runs files of this checkout on WebGPU. Leaving it ends the browser."""

    def __enter__(self) -> Self:
        """Serve the checkout on the loopback interface and open the page."""
        handler = partial(_Quiet, directory=str(ROOT))
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self._playwright = sync_playwright().start()
        self._browser = self._playwright.chromium.launch(
            executable_path=shutil.which("chromium"), headless=True, args=list(FLAGS)
        )
        self._lines: list[str] = []
        self._page = self._browser.new_page()
        self._page.set_default_timeout(600_000)
        self._page.on("console", self._listen)
        self._page.goto(f"http://127.0.0.1:{self._server.server_port}/tools/providers/page.html")
        self._page.wait_for_selector("body[data-ready]", state="attached")
        return self

    def __exit__(self, *_: object) -> None:
        """End the browser and the server."""
        self._browser.close()
        self._playwright.stop()
        self._server.shutdown()
        self._server.server_close()

    def run(self, file: Path, inputs: Arrays) -> list[np.ndarray]:
        """Run a file and return its outputs in order; it stays open until `release`."""
        given = {name: _packed(array) for name, array in inputs.items()}
        script = "([file, inputs]) => window.run(file, inputs)"
        found = self._page.evaluate(script, [self._address(file), given])
        return [_unpacked(one) for one in found]

    def release(self) -> None:
        """Close the files that are open."""
        self._page.evaluate("() => window.release()")
        self._lines.clear()

    @contextmanager
    def sessions(self) -> Iterator[None]:
        """Run the files of this checkout that sessions of coreai_onnx have open in the page."""
        original = Binding.run

        def run(binding: Any, feeds: Any, targets: Any, timeout: float | None = None) -> Any:
            del timeout
            session, results = binding._session, {**binding._results, **targets}  # noqa: SLF001
            inputs = {**binding._fixed, **feeds}  # noqa: SLF001
            file = Path(session._model_path)  # noqa: SLF001
            arrays = self.run(file, {name: value.numpy() for name, value in inputs.items()})
            names = [one.name for one in session.get_outputs()]
            outputs = dict(zip(names, map(ort.OrtValue.ortvalue_from_numpy, arrays), strict=True))
            for name, target in results.items():
                target.update_inplace(outputs[name].numpy())
            return {name: targets.get(name, outputs[name]) for name in binding.names}

        Binding.run = run  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            Binding.run = original  # type: ignore[method-assign]

    def generate(self, cls: str, folder: Path, ids: Sequence[int], length: int) -> list[int]:
        """Return a prompt and the greedy tokens after it, by a class of transformers.js."""
        script = "(given) => window.generate(...given)"
        given = [cls, self._address(folder.parent) + "/", folder.name, list(ids), length]
        tokens: list[int] = self._page.evaluate(script, given)
        return tokens

    def placed(self) -> dict[str, int]:
        """Return how many nodes of the last file were placed on each provider."""
        return {name: int(count) for line in self._lines for name, count in _PLACED.findall(line)}

    def _listen(self, message: ConsoleMessage) -> None:
        self._lines.append(message.text)

    @staticmethod
    def _address(path: Path) -> str:
        return f"/{path.resolve().relative_to(ROOT)}"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        del format, arguments


def _packed(array: np.ndarray) -> dict[str, Any]:
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"dtype": array.dtype.name, "dims": list(array.shape), "data": data}


def _unpacked(tensor: dict[str, Any]) -> np.ndarray:
    data = np.frombuffer(base64.b64decode(tensor["data"]), tensor["dtype"])
    return data.reshape(tensor["dims"])
