"""Symbolic sizes: sums of named dims such as ``past + seq``, ``2*batch``, ``seq - 1``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from coreai_onnx.passes.engine.match import Dim

_TERM = re.compile(r"\s*([+-]?)\s*(?:(\d+)(?:\*([A-Za-z_][\w*]*))?|([A-Za-z_][\w*]*))\s*(?=[+-]|$)")


@dataclass(frozen=True)
class Amount:
    """A linear expression: a constant plus multiples of named dims.

    Attributes:
        constant: The constant term.
        terms: Names, or products of names, and their factors, sorted; no factor is 0.
    """

    constant: int = 0
    terms: tuple[tuple[str, int], ...] = ()

    def __add__(self, other: Amount | int) -> Amount:
        """Return the sum."""
        if isinstance(other, int):
            return Amount(self.constant + other, self.terms)
        factors = dict(self.terms)
        for name, factor in other.terms:
            factors[name] = factors.get(name, 0) + factor
        kept = sorted((name, factor) for name, factor in factors.items() if factor)
        return Amount(self.constant + other.constant, tuple(kept))

    def __sub__(self, other: Amount | int) -> Amount:
        """Return the difference."""
        return self + other * -1

    def __mul__(self, factor: int) -> Amount:
        """Return a multiple."""
        terms = tuple((name, factor * times) for name, times in self.terms) if factor else ()
        return Amount(self.constant * factor, terms)

    @property
    def number(self) -> int | None:
        """The value, if the expression has no named dim."""
        return None if self.terms else self.constant

    @property
    def most(self) -> int | None:
        """An upper bound, given that no dim is negative; None if there is no bound."""
        return self.constant if all(factor < 0 for _, factor in self.terms) else None


def amount_of(dim: Dim) -> Amount | None:
    """Parse a dim; text that is no sum of products of names counts as one name. None for None."""
    if dim is None or isinstance(dim, int):
        return None if dim is None else Amount(dim)
    total, end = Amount(), 0
    while end < len(dim):
        match = _TERM.match(dim, end)
        if match is None or (end and not match[1]):
            return Amount(0, ((dim, 1),))
        sign = -1 if match[1] == "-" else 1
        name = match[3] or match[4]
        size = int(match[2] or 1)
        total += Amount(0, ((name, sign * size),)) if name else Amount(sign * size)
        end = match.end()
    return total
