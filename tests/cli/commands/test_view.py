"""``coreai-onnx view``, as a process that a person interrupts."""

from __future__ import annotations

import builtins
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from coreai_onnx.cli import main
from coreai_onnx.program import OnnxProgram
from tests.support.small_models import linear_model

# A shell that starts the tests in the background lets them ignore interrupts, and their children.
INTERRUPTIBLE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from coreai_onnx.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_serves_until_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    OnnxProgram({"main": linear_model()}).save(path)
    command = [sys.executable, "-c", INTERRUPTIBLE, "view", str(path), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = next(text for text in process.stdout if "Ctrl-C" in text)
            address = re.search(r"http://127\.0\.0\.1:\d+", line)
            assert address, line
            with urllib.request.urlopen(address[0], timeout=10) as page:
                assert b"Netron" in page.read()
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=20) == 130
        finally:
            process.kill()


def test_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", "nowhere.onnx"]) == 2
    assert "no such file" in capsys.readouterr().err


def test_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"no model")
    assert main(["view", str(path)]) == 2
    assert "m.onnx" in capsys.readouterr().err


def test_a_port_that_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    OnnxProgram({"main": linear_model()}).save(path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["view", str(path), "--port", str(port), "--no-browser"]) == 2
    assert f"cannot serve on port {port}" in capsys.readouterr().err


def test_without_netron(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    OnnxProgram({"main": linear_model()}).save(path)
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "netron":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    assert main(["view", str(path)]) == 2
    assert "pip install netron" in capsys.readouterr().err
