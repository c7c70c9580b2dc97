"""One filter of warnings, added and removed without touching those of other threads."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ignored(message: str) -> Iterator[None]:
    """While active, warnings are not shown that begin as a regular expression says.

    ``warnings.catch_warnings`` puts all filters of the process back as they were, and so undoes
    what other threads change meanwhile. This removes its own filter only.
    """
    before = list(warnings.filters)
    warnings.filterwarnings("ignore", message)
    added = warnings.filters[0]
    try:
        yield
    finally:
        if added not in before and added in warnings.filters:
            warnings.filters.remove(added)  # type: ignore[attr-defined]
