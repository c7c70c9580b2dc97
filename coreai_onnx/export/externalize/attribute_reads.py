"""Records the attributes that a module's forward reads while it is traced.

A trace is a function of the code, the arguments, and the attributes that the code reads. Two
modules of one class and one structure run the same code. If every attribute that the forward of the
first read has the same value in the second, the forward of the second gives the same trace.
``layer_idx`` may differ if nothing reads it.

Parameters and buffers are compared by path, dtype and layout, never by value: an export cannot read
their values. Anything else that a forward reads (globals, class attributes) is assumed to be the
same for all modules of a class.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import MemberDescriptorType
from typing import Any

import torch

from coreai_onnx.export.compat.attribute_access import access_reported
from coreai_onnx.export.externalize.equivalence import MISSING, ModuleTree, equivalence_key

_STRUCTURE = frozenset({"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"})
"""Attributes that :func:`coreai_onnx.export.externalize.equivalence.structure` compares."""
_DICT = "__dict__"


class AttributeReads:
    """The attributes of a module and its submodules that were read, with their values."""

    def __init__(self) -> None:
        """Start with nothing read."""
        self._tree: ModuleTree | None = None
        self._keys: dict[tuple[str, str], Any] = {}
        self._values: dict[tuple[str, str], Any] = {}
        self._before: frozenset[tuple[str, str]] = frozenset()

    def begin(self, module: torch.nn.Module) -> None:
        """Start recording reads of a module, with its present weights."""
        self._tree = ModuleTree(module)
        self._before = frozenset(self._keys)

    def end(self) -> None:
        """Stop recording, and release the module."""
        self._tree = None

    def record(self, attributes: dict[str, Any], kind: type, name: str) -> None:
        """Record the value of an attribute at its first read.

        Args:
            attributes: ``__dict__`` of the module; modules outside the tree are ignored.
            kind: Class of that module.
            name: The attribute; ``__dict__`` means all of them.
        """
        tree = self._tree
        path = None if tree is None else tree.paths.get(id(attributes))
        # Only the first read counts: later ones may see what the forward itself has assigned.
        if tree is None or path is None or name in _STRUCTURE or (path, name) in self._keys:
            return
        if name == _DICT:
            self._keys[path, name] = frozenset(attributes)
            for each in list(attributes):
                self.record(attributes, kind, each)
        elif name in attributes or not _is_of_class(attributes, kind, name):
            self._keys[path, name] = _look_up(tree, attributes, kind, name)
            self._values[path, name] = attributes.get(name, MISSING)

    def record_all(self) -> None:
        """Record every attribute of the module and its submodules."""
        for attributes, kind in self._tree.dicts.values() if self._tree is not None else ():
            self.record(attributes, kind, _DICT)

    def repeat(self, module: torch.nn.Module) -> None:
        """Report the same reads of another module to the active recordings."""
        active = _active()
        if not active:
            return
        dicts = ModuleTree(module).dicts
        for path, name in self._keys:
            attributes, kind = dicts[path]
            for reads in active:
                reads.record(attributes, kind, name)

    @contextmanager
    def restored_in(self, module: torch.nn.Module) -> Iterator[None]:
        """While active, attributes that changed since they were read have their recorded values."""
        tree = ModuleTree(module)
        changed: list[tuple[dict[str, Any], str, Any]] = []
        for (path, name), value in self._values.items():
            attributes, kind = tree.dicts[path]
            if _look_up(tree, attributes, kind, name) != self._keys[path, name]:
                changed.append((attributes, name, attributes.get(name, MISSING)))
                _put(attributes, name, value)
        try:
            yield
        finally:
            for attributes, name, value in changed:
                _put(attributes, name, value)

    def hold_for(self, module: torch.nn.Module, *, latest: bool = False) -> bool:
        """Whether the same reads give the same values in a module of the same structure.

        Args:
            module: The module.
            latest: Compare only the reads that the latest recording added.
        """
        tree = ModuleTree(module)
        for (path, name), key in self._keys.items():
            if latest and (path, name) in self._before:
                continue
            attributes, kind = tree.dicts[path]
            now = frozenset(attributes) if name == _DICT else _look_up(tree, attributes, kind, name)
            if now != key:
                return False
        return True


@contextmanager
def recording(
    module: torch.nn.Module, reads: AttributeReads | None = None
) -> Iterator[AttributeReads]:
    """While active, record the reads of a module and its submodules in this thread.

    Args:
        module: The module.
        reads: Receives the reads, in addition to those that it already has.
    """
    reads = reads if reads is not None else AttributeReads()
    reads.begin(module)
    active = _active()
    active.append(reads)
    try:
        # The outermost recording installs the patch, which reports to all of them.
        with contextlib.nullcontext() if len(active) > 1 else access_reported(_note, _note_all):
            yield reads
    finally:
        active.remove(reads)
        reads.end()


def is_recording() -> bool:
    """Whether a recording is active in this thread."""
    return bool(_active())


_local = threading.local()


def _active() -> list[AttributeReads]:
    recordings: list[AttributeReads] = _local.__dict__.setdefault("active", [])
    return recordings


def _note(module: torch.nn.Module, attributes: dict[str, Any], name: str) -> None:
    for reads in _active():
        reads.record(attributes, type(module), name)


def _note_all() -> None:
    for reads in _active():
        reads.record_all()


# ---------------------------------------------------------------------- one attribute
def _is_of_class(attributes: dict[str, Any], kind: type, name: str) -> bool:
    """Whether a name is a weight, a submodule, or a class attribute that all instances share."""
    if any(
        name in attributes.get(registry, ()) for registry in ("_parameters", "_buffers", "_modules")
    ):
        return True
    owner = next((c for c in kind.__mro__ if name in c.__dict__), None)
    return owner is not None and not isinstance(owner.__dict__[name], MemberDescriptorType)


def _put(attributes: dict[str, Any], name: str, value: Any) -> None:
    if value is MISSING:
        attributes.pop(name, None)
    else:
        attributes[name] = value


def _look_up(tree: ModuleTree, attributes: dict[str, Any], kind: type, name: str) -> Any:
    if name in attributes:
        return equivalence_key(attributes[name], tree)
    slot = next((c.__dict__[name] for c in kind.__mro__ if name in c.__dict__), None)
    if isinstance(slot, MemberDescriptorType):
        with contextlib.suppress(AttributeError):  # the slot is not set
            return equivalence_key(slot.__get__(tree.owner(attributes)), tree)
    return MISSING
