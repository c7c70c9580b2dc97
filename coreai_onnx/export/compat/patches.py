"""Functions of torch and transformers that are replaced while this package traces a model.

All replacements are made by :func:`patched`. Calls from the converting thread go to the
replacement; calls from all other threads go to the original.

Other libraries may patch the same name:

1. Before the conversion: their function is the original. It is called as such, and is restored.
2. During the conversion, and still patched at its end: their patch is kept. It calls ours, which
   from then on only calls the original.
3. During the conversion, and removed after its end: they restore ours, which only calls the
   original. The next conversion reuses it and removes it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from coreai_onnx.export.compat.turns import is_mine, turn

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Returns the replacement of a function, given the function."""
_MARK = "_coreai_onnx_patch"
_MISSING: Any = object()


@contextmanager
def patched(owner: Any, name: str, wrap: Wrap) -> Iterator[None]:
    """While active, a function is replaced for this thread.

    Patches of the same name may be nested: the inner replacement wraps the outer one.

    Args:
        owner: A class, a module, an object, or the dictionary of one.
        name: The name of a function or method in it.
        wrap: Returns the replacement. The replacement of a method takes ``self``, unless ``owner``
            is the object.
    """
    with turn():
        patch = _patch_at(owner, name)
        outer = list(patch.replacements)
        try:
            patch.replacements.append(wrap(outer[-1] if outer else patch.original))
            yield
        finally:
            patch.replacements[:] = outer  # in place: the stand-in reads this list
            if not outer:
                patch.remove()


@contextmanager
def suspended(owner: Any, name: str) -> Iterator[None]:
    """While active, a name that `patched` replaces has its previous value, for all threads."""
    patch = _patch_at(owner, name)
    patch.remove()
    try:
        yield
    finally:
        _put(owner, name, patch.stand_in)


@contextmanager
def patched_in_forwards(model: torch.nn.Module, wraps: Mapping[str, Wrap]) -> Iterator[None]:
    """While active, functions that the forwards of a model call by their global names are replaced.

    Args:
        model: The model.
        wraps: For the name of a function, what returns its replacement, as for `patched`.
    """
    homes = {id(home): home for home in map(globals_of_forward, map(type, model.modules()))}
    with ExitStack() as patches:
        for home in homes.values():
            for name in wraps.keys() & home.keys():
                patches.enter_context(patched(home, name, wraps[name]))
        yield


def arguments_by_name(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by their names; those left out have their defaults."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def globals_of_forward(module_class: type) -> dict[str, Any]:
    """Return the globals of the forward of a class of modules."""
    forward: Any = inspect.unwrap(getattr(module_class, "forward", module_class))
    names: dict[str, Any] = getattr(forward, "__globals__", {})
    return names


@contextmanager
def exchanged(registry: dict[str, Any], name: str, value: Any) -> Iterator[None]:
    """While active, a dictionary has another value under a name, for all threads.

    This is for the model that is being converted: no other thread can use it meanwhile.
    """
    before = registry.get(name, _MISSING)
    registry[name] = value
    try:
        yield
    finally:
        # Another library may have put its own value there since, which stays.
        if registry.get(name) is value:
            _put(registry, name, before)


class _Patch:
    """A function of an owner that is replaced by a dispatching function.

    Attributes:
        original: Called for other threads, and after the conversion.
        replacements: The last one is called for the converting thread.
        stand_in: The dispatching function.
    """

    def __init__(self, owner: Any, name: str) -> None:
        """Install the dispatching function."""
        self._owner, self._name = owner, name
        self._previous = _own(owner, name)
        self.original: Callable[..., Any] = self._original()
        self.replacements: list[Callable[..., Any]] = []
        self.stand_in = _stand_in(self)
        _put(owner, name, self.stand_in)

    def remove(self) -> None:
        """Restore the previous value, unless another library has patched the name since."""
        if _own(self._owner, self._name) is self.stand_in:
            _put(self._owner, self._name, self._previous)

    def _original(self) -> Callable[..., Any]:
        if self._previous is not _MISSING:
            function: Callable[..., Any] = self._previous
            return function
        if isinstance(self._owner, type):
            return _inherited(self._owner, self._name)
        inherited: Callable[..., Any] = getattr(self._owner, self._name)
        return inherited


def _patch_at(owner: Any, name: str) -> _Patch:
    """Return the patch that is installed, or a new one."""
    function = _own(owner, name)
    patch = getattr(function, "__dict__", {}).get(_MARK)
    # functools.wraps copies the mark to other libraries' wrappers of our function
    if isinstance(patch, _Patch) and patch.stand_in is function:
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
    """Return a method that calls the inherited method of the next class in the MRO."""

    def inherited(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Looked up at each call, because a base class may be patched meanwhile.
        return getattr(super(owner, self), name)(*args, **kwargs)

    return inherited


def _own(owner: Any, name: str) -> Any:
    """Return the value of a name in the owner itself, not in its classes."""
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
