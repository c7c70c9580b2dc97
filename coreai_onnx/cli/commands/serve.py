"""``coreai-onnx serve``."""

from __future__ import annotations

import argparse
import contextlib
import re
import socket
from pathlib import Path
from typing import Any

from coreai_onnx.cli.options.inputs import (
    chosen_provider,
    declare_kernels,
    declare_provider,
    declare_threads,
)
from coreai_onnx.cli.options.numbers import integer
from coreai_onnx.errors import CommandError, failures_as

NAME = "serve"
DESCRIPTION = """\
answer OpenAI's completions, chats and embeddings with an exported model

FOLDER is what coreai-onnx export --cache paged wrote, or a sentence encoder, with a
tokenizer. Serves until Ctrl-C or SIGTERM, and then completes what it has begun (docs/serving.md).

  coreai-onnx serve my_llama_paged
  coreai-onnx serve my_llama_paged --port 9000 --slots 32 --max-prompt 2048
  curl http://127.0.0.1:8000/v1/completions -H 'content-type: application/json' \\
    -d '{"prompt": "Once upon a time", "max_tokens": 50}'
"""
_PACKAGES = ("llguidance", "prometheus_client", "starlette", "uvicorn")
_SECONDS = integer(1, 86_400)
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@*]+")
"""A scheme and a host, perhaps with a port: browsers send no more."""
_SETTINGS = ("slots", "tokens", "chunk", "prompts", "queue")


def _origin(text: str) -> str:
    if text != "*" and not _ORIGIN.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an origin, such as http://localhost:3000, or *"
        )
    return text


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="the address to listen on (default: 127.0.0.1, this machine only)",
    )
    parser.add_argument(
        "--port", type=integer(0, 65535), default=8000, help="default: 8000; 0 is any free port"
    )
    parser.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        type=_origin,
        metavar="ORIGIN",
        help="let pages of this origin read the answers, such as http://localhost:3000, or * for "
        "all; may be repeated (default: none)",
    )
    parser.add_argument("--name", help="the name of the model (default: that of the folder)")
    for name, default, text in (
        ("--slots", 16, "requests that are served at once (default: 16)"),
        ("--tokens", None, "cached tokens of all of them (default: the context for each)"),
        ("--chunk", 128, "tokens of a prompt that are read between two steps (default: 128)"),
        ("--prompts", 4, "prompts of which a chunk is read between two steps (default: 4)"),
        ("--queue", 256, "requests that may wait (default: 256)"),
        ("--max-body", 1 << 20, "the most bytes of a request (default: 1048576)"),
        ("--max-prompt", None, "the most tokens of a prompt (default: what the cache holds)"),
    ):
        parser.add_argument(name, type=integer(1, 2**31 - 1), default=default, help=text)
    parser.add_argument(
        "--timeout", type=_SECONDS, default=300, help="seconds of a request (default: 300)"
    )
    parser.add_argument(
        "--grace",
        type=_SECONDS,
        default=30,
        help="seconds to complete requests at the end, before they are cancelled (default: 30)",
    )
    declare_kernels(parser)
    declare_threads(parser)
    parser.add_argument(
        "--packed-weights",
        type=Path,
        metavar="FILE",
        help="map weights in the layout of the kernels from this file, which processes share; what "
        "it lacks is appended",
    )
    declare_provider(parser)


def execute(options: argparse.Namespace) -> int:
    """Serve the folder until the process is interrupted."""
    try:
        import uvicorn

        import coreai_onnx.huggingface.generation.serving.endpoint  # noqa: F401
    except ModuleNotFoundError as error:
        # Any other missing module is a defect, whose traceback says where.
        if error.name not in _PACKAGES:
            raise
        raise CommandError(
            f"serve needs {error.name}: pip install coreai-onnx-bridge[serve]"
        ) from error
    host, port = options.host, options.port
    # Before the model, which takes longer to open.
    with failures_as(CommandError, f"cannot listen on {host!r} port {port}"):
        # Only addresses of IPv6 have a colon, names of hosts have none.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
    with listener:
        app = _application(options)
        config = uvicorn.Config(
            app,
            access_log=False,
            log_level="warning",
            timeout_graceful_shutdown=options.grace,
            ws="none",
        )
        place = f"{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
        # uvicorn raises the signal that ended it again.
        with contextlib.ExitStack() as stack, contextlib.suppress(KeyboardInterrupt):
            if hasattr(app.state, "engine"):
                stack.callback(app.state.engine.close)
            print(f"{options.folder} at http://{place}/v1 (Ctrl-C ends)", flush=True)
            uvicorn.Server(config).run([listener])
    return 0


def _application(options: argparse.Namespace) -> Any:
    """Open the model, and return the endpoint of its kind."""
    from coreai_onnx.huggingface.generation import LanguageModel
    from coreai_onnx.huggingface.generation.serving.embeddings import (
        embedding_endpoint,
        is_sentence_encoder,
    )
    from coreai_onnx.huggingface.generation.serving.endpoint import endpoint

    how = {name: getattr(options, name) for name in ("kernels", "threads", "packed_weights")}
    name = options.name or options.folder.resolve().name
    limits: dict[str, Any] = {n: getattr(options, n) for n in ("max_body", "max_prompt", "timeout")}
    limits["allow_origins"] = options.allow_origin
    provider = chosen_provider(options)
    if is_sentence_encoder(options.folder):
        how["providers"] = provider
        return embedding_endpoint(options.folder, name, queue=options.queue, **limits, **how)
    model = LanguageModel.open(options.folder, provider=provider, **how)
    return endpoint(model, name, **limits, **{n: getattr(options, n) for n in _SETTINGS})
