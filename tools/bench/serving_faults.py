"""Thousands of requests to ``coreai-onnx serve``, many of them wrong or broken off.

    python -m tools.bench.serving_faults --requests 10000

A process serves a small decoder with random weights. Clients, 32 at once, send completions, whole
and streamed, with bodies that are not JSON, wrong fields, prompts that do not fit and
bodies that are too large, and go away in the middle. Each answer must be the one that its prompt
has, or an error in OpenAI's form with the status of its fault; in the end no request may be left,
and the memory of the process after all be less than 2 % above that after the first tenth.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

from coreai_onnx.messages import render
from tests.support.endpoints import write_folders

CLIENTS, MAX_BODY, NEW = 32, 4096, 8
WRONG_FORM = {"type": "json_schema", "json_schema": {"schema": {"type": "none"}}}
WRONG: dict[str, tuple[bytes, int]] = {
    "not JSON": (b'{"prompt": ', 400),
    "not UTF-8": (b'{"prompt": "\xff"}', 400),
    "wrong field": (b'{"prompt": "a", "temperature": 5}', 400),
    "prompt does not fit": (b'{"prompt": "%s"}' % (b"a" * 1000), 400),
    "schema is not valid": (
        json.dumps({"prompt": "a", "response_format": WRONG_FORM}).encode(),
        400,
    ),
    "another model": (b'{"prompt": "a", "model": "other"}', 404),
    "body is too large": (b" " * (MAX_BODY + 1), 413),
}
PROMPTS = [f"{i} {'ab' * (i % 9)}" for i in range(24)]


def main() -> int:
    """Serve, ask, and print what came back."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        paged, _ = write_folders(Path(place))
        command = [sys.executable, "-m", "coreai_onnx", "serve", str(paged), "--port", "0"]
        command += ["--threads", "1", "--max-body", str(MAX_BODY)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                port = int(re.search(r":(\d+)/v1", process.stdout.readline())[1])  # type: ignore[index]
                ends, memory = asyncio.run(ask_all(port, process.pid, options.requests))
                check_idle(port)
            finally:
                process.terminate()
        assert process.returncode == 0, process.returncode
    print(render(["end", "requests"], [[name, str(ends[name])] for name in sorted(ends)]))
    assert sum(ends.values()) == options.requests
    print("RSS, MiB:", ", ".join(f"{count}: {size:.1f}" for count, size in memory.items()))
    first, *_, last = memory.values()
    assert last < 1.02 * first, "the memory of the server grows"
    return 0


async def ask_all(port: int, pid: int, count: int) -> tuple[Counter[str], dict[int, float]]:
    """Return how requests ended, and the memory of the server after numbers of them."""
    texts = {}
    for prompt in PROMPTS:
        status, body = await ask(port, completion(prompt, is_streamed=False))
        assert status == 200
        texts[prompt] = json.loads(body)["choices"][0]["text"]
    ends: Counter[str] = Counter()
    memory: dict[int, float] = {}
    step = max(count // 10, 1)
    for start in range(0, count, step):
        numbers = iter(range(start, min(start + step, count)))

        async def client(numbers: Any = numbers) -> None:
            for number in numbers:
                ends[await one(port, number, texts)] += 1

        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        memory[sum(ends.values())] = resident(pid)
    return ends, memory


async def one(port: int, number: int, texts: dict[str, str]) -> str:
    """Send a request, check its answer, and return how it ended."""
    draw = random.Random(number)
    if draw.random() < 0.4:
        name = draw.choice(list(WRONG))
        body, wanted = WRONG[name]
        status, answer = await ask(port, body)
        error = json.loads(answer)["error"]
        assert status == wanted, (name, status)
        assert error.keys() == {"message", "type", "param", "code"}
        return f"{wanted}, {name}"
    prompt, is_streamed = draw.choice(PROMPTS), draw.random() < 0.5
    body = completion(prompt, is_streamed=is_streamed)
    if draw.random() < 0.4:
        await ask(port, body, leaves_after=draw.uniform(0, 0.1))
        return "client gone"
    status, answer = await ask(port, body)
    assert status == 200, answer
    if is_streamed:
        *events, last = [x for x in answer.decode().split("\n\n") if x]
        assert last == "data: [DONE]"
        choices = [json.loads(x.removeprefix("data: "))["choices"][0] for x in events]
    else:
        choices = json.loads(answer)["choices"]
    assert "".join(choice["text"] for choice in choices) == texts[prompt]
    return "200, streamed" if is_streamed else "200, whole"


def completion(prompt: str, *, is_streamed: bool) -> bytes:
    """Return the body of a request."""
    fields = {"prompt": prompt, "temperature": 0, "max_tokens": NEW, "stream": is_streamed}
    return json.dumps(fields).encode()


async def ask(port: int, body: bytes, leaves_after: float | None = None) -> tuple[int, bytes]:
    """Return the status and the body of an answer; 0 if the client leaves before."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close"
    writer.write(f"POST /v1/completions HTTP/1.0\r\n{head}\r\n\r\n".encode() + body)
    try:
        if leaves_after is not None:
            await asyncio.sleep(leaves_after)
            return 0, b""
        answer = await asyncio.wait_for(reader.read(), 120)
    finally:
        writer.transport.abort()
    first, _, content = answer.partition(b"\r\n\r\n")
    return int(first.split()[1]), content


def check_idle(port: int) -> None:
    """Check that no request is left, and all blocks are free."""
    names = ("waiting", "reading", "running")
    for _ in range(100):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
            lines = page.read().decode().splitlines()
        if all(f"coreai_onnx_engine_{name} 0.0" in lines for name in names):
            assert f"coreai_onnx_engine_free_blocks {16 * 256 / 16}" in lines
            return
        time.sleep(0.1)
    raise AssertionError("requests are left")


def resident(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


if __name__ == "__main__":
    raise SystemExit(main())
