"""A warning filter that is added and removed without touching the filters of other threads."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ignored(message: str) -> Iterator[None]:
    """While active, ignore warnings whose message begins with a regular expression.

    ``warnings.catch_warnings`` restores all filters of the process, and so reverts changes that
    other threads make meanwhile. This removes only its own filter.
    """
    before = list(warnings.filters)
    warnings.filterwarnings("ignore", message)
    added = warnings.filters[0]
    try:
        yield
    finally:
        if added not in before and added in warnings.filters:
            warnings.filters.remove(added)  # type: ignore[attr-defined]
