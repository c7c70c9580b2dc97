"""Reports the stages of a conversion to a listener: export, lower, optimize, save."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str], None]
"""Called with the name of each stage as it begins."""

_listener: ContextVar[Listener | None] = ContextVar("stage_listener", default=None)


def begin(stage: str) -> None:
    """Notify the listener of this thread, if there is one, that a stage begins."""
    listener = _listener.get()
    if listener is not None:
        listener(stage)


@contextmanager
def reported_to(listener: Listener) -> Iterator[None]:
    """While active, call a listener for the stages that begin in this thread."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
