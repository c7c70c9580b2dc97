"""Equivalence of values and modules: two are equivalent if a trace cannot distinguish them."""

from __future__ import annotations

import functools
from collections import OrderedDict, deque
from types import FunctionType, MethodType
from typing import Any

import torch

from coreai_onnx.export.compat.torch_names import disable_current_modes

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_SEQUENCES = (list, tuple, deque)
_MAPPINGS = (dict, OrderedDict)
# Ends the recursion for containers that hold themselves; what lies deeper is compared by identity.
_DEPTH = 16
EQUIVALENCE_KEY = "coreai_equivalence_key"
"""Attribute with the equivalence key of a function; set on functions that replace others."""


class SameObject:
    """Equivalent only to itself; keeps its object alive, so that its address is not reused."""

    def __init__(self, value: Any) -> None:
        """Store the object."""
        self.value = value

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same object."""
        return isinstance(other, SameObject) and self.value is other.value

    def __hash__(self) -> int:
        """Return the hash of the object's address."""
        return hash((SameObject, id(self.value)))


class _Constant(SameObject):
    """A tensor that is not a weight: a trace stores its values."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Constant):
            return False
        a, b = self.value, other.value
        return a is b or _equal_tensors(a, b)

    def __hash__(self) -> int:
        return hash((_Constant, self.value.dtype, tuple(self.value.shape)))


MISSING = SameObject("no such attribute")


class ModuleTree:
    """The modules inside a module, with their paths.

    Attributes:
        paths: Path of each module, by the address of its ``__dict__``; the first path of a shared
            one. (Exports wrap modules in proxies that have the ``__dict__`` of the module.)
        dicts: ``__dict__`` and class of each module, by path.
        tensors: Path of each parameter and buffer, by its address.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        """Walk through the module."""
        self.paths: dict[int, str] = {}
        self.dicts: dict[str, tuple[dict[str, Any], type]] = {}
        self.tensors: dict[int, str] = {}
        self._modules: dict[int, torch.nn.Module] = {}
        for path, inner in module.named_modules():
            attributes = vars(inner)
            self.paths[id(attributes)] = path
            self.dicts[path] = attributes, type(inner)
            self._modules[id(attributes)] = inner
            for name, tensor in (
                *attributes["_parameters"].items(),
                *attributes["_buffers"].items(),
            ):
                if tensor is not None:
                    self.tensors.setdefault(id(tensor), f"{path}.{name}")

    def owner(self, attributes: dict[str, Any]) -> torch.nn.Module:
        """Return the module that has a ``__dict__``."""
        return self._modules[id(attributes)]


def structure(module: torch.nn.Module) -> tuple[Any, ...]:
    """Return classes, sharing, and weight layouts: a key that is equal for equal structures."""
    tree = ModuleTree(module)
    parts: list[Any] = []
    for path, inner in module.named_modules(remove_duplicate=False):
        attributes = vars(inner)
        parts.append((path, type(inner), tree.paths[id(attributes)]))
        for registry in ("_parameters", "_buffers"):
            for name, tensor in attributes[registry].items():
                parts.append((registry, name, _layout(tensor, tree)))
        parts.append(tuple(sorted(attributes["_non_persistent_buffers_set"])))
        parts.append(tuple(name for name, child in attributes["_modules"].items() if child is None))
    return tuple(parts)


def _layout(tensor: torch.Tensor | None, tree: ModuleTree) -> Any:
    if tensor is None:
        return None
    stride = tensor.stride() if tensor.layout == torch.strided else ()
    kind = (type(tensor), tensor.dtype, tensor.device, tensor.layout, tensor.requires_grad)
    return (tree.tensors[id(tensor)], tuple(tensor.shape), stride, kind)


def equivalence_key(value: Any, tree: ModuleTree | None = None, depth: int = 0) -> Any:
    """Return a key that is equal for values that a trace cannot distinguish.

    Numbers and strings are compared by type and value, containers and plain objects by their
    contents, modules and weights of a tree by their path, and everything else by identity.

    Args:
        value: The value.
        tree: The modules that are compared by path.
        depth: Nesting depth of the value inside containers.
    """
    if depth > _DEPTH:
        return SameObject(value)
    inner = functools.partial(equivalence_key, tree=tree, depth=depth + 1)
    kind = type(value)
    # As text, so that 0.0 and -0.0 differ and NaN equals itself. Subclasses may have more state.
    if kind in _PLAIN:
        return (kind, repr(value))
    if isinstance(value, torch.Tensor):
        path = tree.tensors.get(id(value)) if tree is not None else None
        return ("weight", path) if path is not None else _Constant(value)
    if isinstance(value, torch.nn.Module):
        path = tree.paths.get(id(vars(value))) if tree is not None else None
        return ("module", path) if path is not None else SameObject(value)
    if kind in _SEQUENCES:
        return (kind, *(inner(x) for x in value))
    if kind in _MAPPINGS:
        return (kind, *((inner(k), inner(v)) for k, v in value.items()))
    if kind in (set, frozenset):
        return (kind, frozenset(inner(x) for x in value))
    if kind is MethodType:
        return (kind, inner(value.__self__), SameObject(value.__func__))
    if kind is functools.partial:
        return (kind, inner(value.func), inner(value.args), inner(value.keywords))
    if kind is FunctionType and EQUIVALENCE_KEY in vars(value):
        return vars(value)[EQUIVALENCE_KEY]
    return (kind, inner(vars(value))) if _is_plain(value) else SameObject(value)


class _NoExtraStorage:
    """A class whose ``__basicsize__`` is that of objects without extra storage."""


def _is_plain(value: Any) -> bool:
    """Whether the ``__dict__`` of an object is its whole state."""
    kind = type(value)
    return (
        kind.__basicsize__ == _NoExtraStorage.__basicsize__
        and hasattr(value, "__dict__")
        and not any("__slots__" in c.__dict__ for c in kind.__mro__[:-1])
    )


def _equal_tensors(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors with data are equal, bit for bit."""
    if type(a) is not torch.Tensor or type(b) is not torch.Tensor or a.is_quantized:
        return False
    if (a.dtype, a.shape, a.layout, a.device) != (b.dtype, b.shape, b.layout, b.device):
        return False
    # Operators may return other strides for other strides, so a trace can distinguish them.
    if a.layout != torch.strided or a.device.type == "meta" or a.stride() != b.stride():
        return False
    with disable_current_modes(), torch.no_grad():  # an export may be under way
        # As bytes, NaN equals itself, and 0.0 differs from -0.0.
        bits = [x.detach().reshape(-1).contiguous().view(torch.uint8) for x in (a, b)]
        return torch.equal(*bits)
