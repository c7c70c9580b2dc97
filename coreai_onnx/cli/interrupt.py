"""Ctrl-C, whatever it interrupts."""

from __future__ import annotations

EXIT_CODE = 130
"""What a shell expects of a program that SIGINT ended: 128 + 2."""


def interrupted(error: BaseException | None) -> bool:
    """Return whether an error is a Ctrl-C, or what a library made of one while it was imported."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False
