"""Lines of a test's own modules, as the messages about sizes name them."""

from __future__ import annotations

import inspect
from pathlib import Path


def line_of(module: type, code: str) -> str:
    """Return ``tests/export/test_x.py:12   code`` for the line of a class that reads ``code``."""
    lines, first = inspect.getsourcelines(module)
    offset = next(i for i, line in enumerate(lines) if line.strip() == code)
    file = Path(inspect.getsourcefile(module) or "").relative_to(Path.cwd())
    return f"{file}:{first + offset}   {code}"
