"""``coreai-onnx serve``, as a process that a person interrupts."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from coreai_onnx.cli import main
from tests.support.endpoints import write_folders


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_folders(tmp_path_factory.mktemp("serve"))


@contextmanager
def served(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a process that serves a folder; yield it and its address."""
    command = [sys.executable, "-m", "coreai_onnx", "serve", str(folder), "--port", "0", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = next((text for text in process.stdout if "Ctrl-C" in text), "")
            address = re.search(r"http://127\.0\.0\.1:\d+/v1", line)
            assert address, process.stderr and process.stderr.read()
            yield process, address[0]
        finally:
            process.kill()


def ask(address: str, **fields: Any) -> Any:
    body = json.dumps({"prompt": "abc", "temperature": 0, **fields}).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{address}/completions", body, headers)
    return urllib.request.urlopen(request, timeout=60)


def test_what_has_begun_is_completed(folders: tuple[Path, Path]) -> None:
    with served(folders[0], "--name", "mine", "--max-prompt", "20") as (process, address):
        with ask(address, model="mine", max_tokens=200) as answer:
            whole = json.load(answer)["choices"][0]
        with ask(address, model="mine", max_tokens=200, stream=True) as stream:
            first = stream.readline()
            process.send_signal(signal.SIGTERM)
            lines = [line for line in (first + stream.read()).decode().split("\n\n") if line]
        assert lines.pop() == "data: [DONE]"
        choices = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines]
        assert "".join(choice["text"] for choice in choices) == whole["text"]
        assert choices[-1]["finish_reason"] == whole["finish_reason"]
        assert process.wait(timeout=60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_an_idle_server_ends_at_once(folders: tuple[Path, Path]) -> None:
    with served(folders[0]) as (process, address):
        with urllib.request.urlopen(f"{address}/models", timeout=60) as page:
            assert json.load(page)["data"][0]["id"] == "paged"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0


def test_what_cannot_be_served(
    folders: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert main(["serve", str(folders[1]), "--port", "0"]) == 2
    assert "needs a decoder with a paged cache: export the model with --cache paged" in (
        capsys.readouterr().err
    )
    assert main(["serve", str(tmp_path / "nothing"), "--port", "0"]) == 2
    assert "no such folder" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", str(folders[0]), "--port", port]) == 2
    assert f"cannot listen on '127.0.0.1' port {port}: " in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", str(folders[0])]) == 2
    assert "serve needs uvicorn: pip install coreai-onnx-bridge[serve]" in capsys.readouterr().err


def test_the_package_of_grammars_is_named_if_it_is_missing() -> None:
    # In a process of its own, which has not imported the endpoint.
    code = (
        "import sys; sys.modules['llguidance'] = None; from coreai_onnx.cli import main; "
        "sys.exit(main(['serve', 'folder']))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "serve needs llguidance: pip install coreai-onnx-bridge[serve]" in run.stderr
