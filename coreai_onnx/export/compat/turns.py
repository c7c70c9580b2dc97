"""Serializes conversions: one thread at a time.

``torch.export`` and ``make_fx`` keep the state of a trace in process-wide variables, which
concurrent traces would corrupt. The patches of this package are process-wide as well. Everything
that traces therefore acquires this lock first. The lock is re-entrant, because conversions nest.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class _Turn:
    """A re-entrant lock that records its owning thread."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.thread: int | None = None
        self.depth = 0


_turn = _Turn()


@contextmanager
def turn() -> Iterator[None]:
    """Wait until no other thread converts; also a decorator, ``@turn()``."""
    # After a fork, the global may be another lock than the one that is held here.
    taken = _turn
    with taken.lock:
        taken.thread = threading.get_ident()
        taken.depth += 1
        try:
            yield
        finally:
            taken.depth -= 1
            if not taken.depth:
                taken.thread = None


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # for strict exports
def is_mine() -> bool:
    """Whether this thread is the converting thread."""
    return _turn.thread == threading.get_ident()


def _after_fork() -> None:
    """Replace a lock that another thread of the parent held, so that a forked child can convert."""
    global _turn  # noqa: PLW0603 - the thread that would release the lock is not in the child
    if not is_mine():
        _turn = _Turn()


os.register_at_fork(after_in_child=_after_fork)
