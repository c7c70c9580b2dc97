"""Argparse types for numbers with bounds."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def integer(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    """Return an argparse type for an integer from ``minimum`` to ``maximum``, both included."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None
        if number < minimum or (maximum is not None and number > maximum):
            bounds = f"at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
            raise argparse.ArgumentTypeError(f"{number} is not {bounds}")
        return number

    return read


def tolerance(text: str) -> float:
    """Parse a tolerance, a finite number of at least 0; an argparse type."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not (math.isfinite(number) and number >= 0):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number of at least 0")
    return number


SEED = integer(0, 2**32 - 1)
"""An argparse type for a seed that both torch and numpy accept."""
SEED_HELP = "seed of the random numbers that the factory draws (default: 0)"
