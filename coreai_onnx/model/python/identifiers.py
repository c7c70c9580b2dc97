"""Python names for values and functions, derived from the names in a model."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable

LONGEST = 30
"""Characters of a name."""
_RESERVED = {"float", "range", "str", "ir", "model", "op", "tensor", "typed", "w", "weights",
             "Container", "Fields", "Fixed", "Model", "Opset", "_", "call", "self"}  # fmt: skip
"""Names that written code uses itself."""
_WORD = re.compile(r"[A-Za-z0-9]+")
_NUMBER = re.compile(r"_\d+(?=_|$)")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def identifier(text: str, default: str = "value") -> str:
    """Return a Python name in lower case that is like a text: ``LlamaMLP`` is ``llama_mlp``.

    The result has ASCII letters, digits and underscores only, and is not a keyword.
    """
    words = [word.lower() for word in _WORD.findall(_HUMP.sub("_", text))]
    words = [word for word, before in zip(words, [None, *words], strict=False) if word != before]
    name = "_".join(words)[:LONGEST].strip("_")
    if not name or not re.match("[a-z]", name):
        name = f"{default}_{name}".strip("_")
    return f"{name}_" if keyword.iskeyword(name) else name


def stem(name: str, op_type: str = "") -> str:
    """Return the meaningful part of a value's name: ``mul`` of ``mul_4``.

    Args:
        name: Name of the value.
        op_type: The operator that makes it; a name that ends in it is shortened to it.
    """
    last = name.rpartition(".")[2] or name
    words = identifier(_NUMBER.sub("", last))
    operator = identifier(op_type) if op_type else ""
    return operator if operator and words.endswith(f"_{operator}") else words


class IdentifierScope:
    """The names of a function's body."""

    def __init__(self, reserved: Iterable[str] = (), outer: IdentifierScope | None = None) -> None:
        """Start with names that belong to others: functions, operators.

        Args:
            reserved: Those names.
            outer: The names of the enclosing function, which are visible in this one.
        """
        self.others: set[str] = {*_RESERVED, *reserved} if outer is None else outer.others
        self._outer = outer
        self._mine: set[str] = set()
        self._lowest: dict[str, int] = {}  # no number below it is free

    @property
    def all(self) -> set[str]:
        """Every name that is in use or reserved."""
        return self.others | self._mine

    def taken(self, name: str) -> bool:
        """Whether a name cannot be used for a new value."""
        return name in self.others or self.is_in_use(name)

    def is_in_use(self, name: str) -> bool:
        """Whether a value here or in the enclosing function has a name."""
        return name in self._mine or (self._outer is not None and self._outer.is_in_use(name))

    def new(self, name: str) -> str:
        """Return an unused name like the given one."""
        base = self._other(name) if name in self.others else name
        count = self.lowest(base)
        while self.taken(unique := base if count == 1 else f"{base}_{count}"):
            count += 1
        self._lowest[base] = count
        self._mine.add(unique)
        return unique

    def lowest(self, base: str) -> int:
        """Return a number below which no name like the given one is free."""
        around = 1 if self._outer is None else self._outer.lowest(base)
        return max(self._lowest.get(base, 1), around)

    def _other(self, name: str) -> str:
        """Return a name for the result of a function: the last word of its name if that is free."""
        last = name.rpartition("_")[2]
        return f"{name}_output" if self.taken(last) or not last.isalpha() else last

    def release(self, name: str) -> None:
        """Make a name available again: its value is no longer needed."""
        self._mine.discard(name)
        self._lowest.pop(name, None)
        base, _, number = name.rpartition("_")
        if number.isdecimal() and int(number) < self._lowest.get(base, 1):
            self._lowest[base] = int(number)

    def inner(self) -> IdentifierScope:
        """Return the names of a nested function, in which those of this one are visible."""
        return IdentifierScope(outer=self)


def is_plain(name: str) -> bool:
    """Whether a name can be written in Python as it is."""
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name)
