"""Ranks in threads, each of which is a process of its own to gloo."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from coreai_onnx.scale import Hosts

TIMEOUT = 60.0


def free_address() -> str:
    """Return an address of this machine on which nothing listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


def in_threads(*runs: Callable[[], Any]) -> list[Any]:
    """Return the result or error of each, which run at the same time."""
    with ThreadPoolExecutor(len(runs)) as threads:
        futures = [threads.submit(run) for run in runs]
        return [one.exception() or one.result() for one in futures]


def joined(ranks: int) -> list[Hosts]:
    """Return the hosts of so many ranks."""
    at = free_address()
    with ThreadPoolExecutor(ranks) as threads:
        return list(threads.map(lambda r: Hosts(at, r, ranks, timeout=TIMEOUT), range(ranks)))
