"""``coreai-onnx view``."""

from __future__ import annotations

import argparse
import time
import webbrowser
from pathlib import Path

from coreai_onnx.cli.options.numbers import integer
from coreai_onnx.errors import CommandError
from coreai_onnx.model.files.loading import load_model

NAME = "view"
DESCRIPTION = """\
show a .onnx file in Netron

Serves the file to a browser on this machine until Ctrl-C. A composite is one node; the ƒ on it
opens its body. Requires the netron package.

  coreai-onnx view model.onnx
  coreai-onnx view model.onnx --port 8080 --no-browser
"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", metavar="MODEL.onnx")
    parser.add_argument("--port", type=integer(0, 65535), default=0, help="default: any free port")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")


def execute(options: argparse.Namespace) -> int:
    """Serve the file until the process is interrupted."""
    path = Path(options.model)
    load_model(path, data=False)  # Netron would show an empty page
    try:
        import netron
    except ImportError as error:
        raise CommandError("the netron package is not installed: pip install netron") from error
    try:
        # None lets Netron take a free port.
        address = netron.serve(str(path), None, ("127.0.0.1", options.port or None))
    except OSError as error:
        raise CommandError(f"cannot serve on port {options.port}: {error}") from error
    place = "http://{}:{}".format(*address)
    print(f"{path} at {place} (Ctrl-C ends)", flush=True)
    if not options.no_browser:
        webbrowser.open(place)
    try:
        # Netron serves in a thread of its own; Ctrl-C ends this one.
        while True:
            time.sleep(3600)
    finally:
        netron.stop(address)
