"""Endpoints of a small decoder: in this process, and on a port of this machine."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from coreai_onnx.huggingface import export_model
from tests.support.huggingface_folders import llama_folder, tokenizer

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi ä"}]
CHAT_TEXT = "<s>system: Be brief.<s>user: Hi ä<s>assistant: "
GREEDY = {"temperature": 0, "max_tokens": 24}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}"
    "{% endif %}<s>{{ m.role }}: {{ m.content }}{% endfor %}"
    "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)


def write_folders(place: Path, template: str | None = TEMPLATE) -> tuple[Path, Path]:
    """Write a decoder with a paged cache, and the same with one that grows."""
    llama_folder(place / "source")
    written = tokenizer()
    written.chat_template = template
    written.save_pretrained(place / "source")
    for cache in ("paged", "growing"):
        export_model(place / "source", place / cache, cache=cache, check=False)
    return place / "paged", place / "growing"


@contextmanager
def on_a_port(app: Any, grace: int | None = None) -> Iterator[str]:
    """Serve an application, and yield its address; wait so many seconds for requests at the end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(
            uvicorn.Config(app, log_level="warning", ws="none", timeout_graceful_shutdown=grace)
        )
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


class Held:
    """Holds the steps of an engine until it is opened."""

    def __init__(self, app: Any) -> None:
        self.opened, self.reached = threading.Event(), threading.Event()
        self.engine, self._read = app.state.engine, app.state.engine._stream.read
        self.engine._stream.read = self.read

    def read(self, row: Any) -> Any:
        self.reached.set()
        assert self.opened.wait(60)
        return self._read(row)


def wait_until_idle(engine: Any) -> None:
    wait_for(lambda: not any(map(engine.statistics.get, ("waiting", "reading", "running"))))


def wait_for(condition: Any) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def generated(models: Any, prompt: Any, count: int = 24, **options: Any) -> str:
    """Return what ``generate`` makes of a prompt."""
    return models[1].generate(prompt, max_new_tokens=count, **options)


def events(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def error_of(response: Any) -> dict[str, Any]:
    content = response.json()
    assert content.keys() == {"error"}
    assert content["error"].keys() == {"message", "type", "param", "code"}
    return content["error"]
