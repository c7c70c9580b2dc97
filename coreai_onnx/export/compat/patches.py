"""Names in torch and transformers that are replaced while this package traces a model.

A replacement is put in place by :func:`patched`, and only there. Calls of the thread that converts
go to the replacement; calls of all other threads go to what was there before.

Other libraries may patch the same name:

1. before: their function is the original, is called as such, and is put back.
2. during, and still there at the end: theirs is left in place. It calls ours, which from then on
   only calls the original.
3. during, and removed after the end: they put ours back, which only calls the original. The next
   conversion takes it up and removes it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from coreai_onnx.export.compat.turns import is_mine, turn

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Returns the replacement of a function, given the function."""
_MARK = "_coreai_onnx_patch"
_MISSING: Any = object()


@contextmanager
def patched(owner: Any, name: str, wrap: Wrap) -> Iterator[None]:
    """While active, a name is replaced for this thread.

    The same name may be patched again inside: the inner replacement wraps the outer one.

    Args:
        owner: A class, a module, an object, or the dictionary of one.
        name: The name in it; a function or method.
        wrap: Returns the replacement. Of a method, it takes ``self``, unless ``owner`` is the
            object.
    """
    with turn():
        patch = _patch_at(owner, name)
        outer = list(patch.replacements)
        try:
            patch.replacements.append(wrap(outer[-1] if outer else patch.original))
            yield
        finally:
            patch.replacements[:] = outer
            if not outer:
                patch.remove()


@contextmanager
def exchanged(registry: dict[str, Any], name: str, value: Any) -> Iterator[None]:
    """While active, a dictionary has another value under a name, for all threads.

    This is for the model that is converted: no other thread may use it meanwhile.
    """
    before = registry.get(name, _MISSING)
    registry[name] = value
    try:
        yield
    finally:
        if registry.get(name) is value:
            _put(registry, name, before)


class _Patch:
    """A name of an owner, with a function of ours in its place.

    Attributes:
        original: What the function calls for other threads, and when it is no longer needed.
        replacements: What it calls for the thread that converts: the last one.
        stand_in: The function.
    """

    def __init__(self, owner: Any, name: str) -> None:
        """Put the function in place."""
        self._owner, self._name = owner, name
        self._found = _own(owner, name)
        self.original: Callable[..., Any] = self._original()
        self.replacements: list[Callable[..., Any]] = []
        self.stand_in = _stand_in(self)
        _put(owner, name, self.stand_in)

    def remove(self) -> None:
        """Put back what was found, if no other patch was put on top."""
        if _own(self._owner, self._name) is self.stand_in:
            _put(self._owner, self._name, self._found)

    def _original(self) -> Callable[..., Any]:
        if self._found is not _MISSING:
            found: Callable[..., Any] = self._found
            return found
        if isinstance(self._owner, type):
            return _inherited(self._owner, self._name)
        inherited: Callable[..., Any] = getattr(self._owner, self._name)
        return inherited


def _patch_at(owner: Any, name: str) -> _Patch:
    """Return the patch that is on top, or a new one."""
    found = _own(owner, name)
    patch = getattr(found, "__dict__", {}).get(_MARK)
    # a wrapper of ours made with functools.wraps has our mark, too
    if isinstance(patch, _Patch) and patch.stand_in is found:
        return patch
    return _Patch(owner, name)


def _stand_in(patch: _Patch) -> Callable[..., Any]:
    @functools.wraps(patch.original)
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        if patch.replacements and is_mine():
            return patch.replacements[-1](*args, **kwargs)
        return patch.original(*args, **kwargs)

    vars(stand_in)[_MARK] = patch
    return stand_in


def _inherited(owner: type, name: str) -> Callable[..., Any]:
    """Return a method that calls the one of the next class in line."""

    def inherited(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(super(owner, self), name)(*args, **kwargs)

    return inherited


def _own(owner: Any, name: str) -> Any:
    """Return what an owner itself has under a name, not its classes."""
    return (owner if isinstance(owner, dict) else vars(owner)).get(name, _MISSING)


def _put(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, dict):
        if value is _MISSING:
            owner.pop(name, None)
        else:
            owner[name] = value
    elif value is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, value)
