"""Detection of Ctrl-C, also inside of imports."""

from __future__ import annotations

EXIT_CODE = 130
"""Exit code of a program that was ended by SIGINT: 128 + 2."""


def interrupted(error: BaseException | None) -> bool:
    """Return whether an error is a Ctrl-C or was caused by one, for example inside an import."""
    # Code that raises a stored error again can make a chain that ends in itself.
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False
