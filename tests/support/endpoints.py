"""Endpoints of a small decoder: in this process, and on a port of this machine."""

from __future__ import annotations

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
