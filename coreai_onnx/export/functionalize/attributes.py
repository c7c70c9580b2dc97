"""State in plain attributes of a module and in their objects, which torch does not track."""

from __future__ import annotations

import types
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind

from coreai_onnx.errors import DroppedStateWarning

_DEEPEST = 8
"""Maximum nesting depth of the objects that are inspected."""
_SHOWN = 5
_NUMBERS = (bool, int, float, str)
_TORCHS_OWN = frozenset(vars(torch.nn.Module()))
_HOOKS = frozenset(name for name in _TORCHS_OWN if "hooks" in name)
_OPAQUE = (type, types.ModuleType, types.FunctionType, types.MethodType, torch.nn.Module)


@dataclass(frozen=True)
class Holder:
    """A dict or list that is reachable from a module, with a copy of its contents before the trace.

    Attributes:
        path: Its path, ``cache.layers[0]``; empty for the root module's attributes.
        items: The dict (of attributes, if ``is_object``) or the list itself.
        before: A shallow copy.
        is_object: Whether ``items`` is the ``__dict__`` of an object or module.
    """

    path: str
    items: dict[Any, Any] | list[Any]
    before: dict[Any, Any]
    is_object: bool

    def now(self) -> dict[Any, Any]:
        """Return its present contents, by key or index."""
        return _entries(self.items, is_object=self.is_object)

    def at(self, key: Any) -> str:
        """Return the path of one entry."""
        if not self.is_object:
            return f"{self.path}[{key!r}]"
        return f"{self.path}.{key}" if self.path else str(key)

    def restore(self) -> None:
        """Restore the contents."""
        if isinstance(self.items, list):
            if len(self.items) != len(self.before) or self._changed():
                self.items[:] = self.before.values()
            return
        for key in self.now().keys() - self.before.keys():
            del self.items[key]
        for key in self._changed():
            self.items[key] = self.before[key]

    def _changed(self) -> list[Any]:
        now = self.now()
        return [key for key, x in self.before.items() if now.get(key, self) is not x]


class Attributes:
    """Plain attributes of a model before its forward is traced, and their changes."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Record the attributes of the model."""
        self.holders = list(_holders(model))
        self._hooks = Hooks(model)
        self.dropped: list[str] = []
        tensors = [x for one in self.holders for x in one.before.values() if _is_tensor(x)]
        self._single = [(x, x.detach().clone()) for x in tensors if x.numel() == 1]
        self.names = {
            id(x): one.at(key)
            for one in self.holders
            for key, x in one.before.items()
            if _is_tensor(x)
        }

    def settle(self) -> None:
        """Copy new tensors into those they replace; called after the forward, within the trace."""
        marks = self._hooks.added()  # then a new attribute may say that there are hooks
        for holder in self.holders:
            now = holder.now()
            for key in {**holder.before, **now}:
                old: Any = holder.before.get(key)
                new: Any = now.get(key)
                fits = _is_tensor(old) and _is_tensor(new) and same_sizes(new, old)
                if fits and new is not old and new.dtype == old.dtype:
                    # torch exports a write in place as a mutation, and drops an assignment.
                    holder.items[key] = old.copy_(new)
                # Such a mark goes with the hooks that it stands for, and is not state.
                elif _is_dropped(old, new) and not (marks and old is None and new is True):
                    self.dropped.append(holder.at(key))
            holder.restore()
        self._hooks.restore()

    def restore(self) -> None:
        """Restore all values: torch leaves fake tensors, and runs ops on one-element tensors."""
        for holder in self.holders:
            holder.restore()
        self._hooks.restore()
        with torch.no_grad():
            for tensor, value in self._single:
                tensor.copy_(value)


class Hooks:
    """The hooks of all modules of a model.

    transformers adds some in the first forward, and sets an attribute that says so. An attribute
    that is restored without them would let the next forward add them again.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        """Record the hooks."""
        registries = (vars(module) for module in model.modules())
        registered = (x for items in registries for name, x in items.items() if name in _HOOKS)
        self._before = [(hooks, set(hooks)) for hooks in registered]

    def added(self) -> bool:
        """Whether there are more hooks now."""
        return any(hooks.keys() - before for hooks, before in self._before)

    def restore(self) -> None:
        """Remove the hooks that were added since."""
        for hooks, before in self._before:
            for key in hooks.keys() - before:
                del hooks[key]


@contextmanager
def attributes_kept(model: torch.nn.Module) -> Iterator[Attributes]:
    """While active, tensors that a forward assigns to plain attributes are exported as state.

    The attributes are restored on exit.

    Yields:
        The attributes.

    Warns:
        DroppedStateWarning: The forward keeps something there that cannot be exported as state.
    """

    def leave(*_: Any) -> None:
        if not torch.compiler.is_dynamo_compiling():  # dynamo changes no attribute and reports it
            attributes.settle()

    # Before the attributes are recorded, so that their restoration keeps this hook.
    hook = model.register_forward_hook(leave)
    attributes = Attributes(model)
    try:
        yield attributes
    finally:
        attributes.restore()
        hook.remove()
    if attributes.dropped:
        warn_of_dropped(attributes.dropped)


@contextmanager
def attributes_restored(module: torch.nn.Module) -> Iterator[None]:
    """While active, a forward may assign to plain attributes; they are restored on exit."""
    holders, hooks = list(_holders(module)), Hooks(module)
    try:
        yield
    finally:
        for holder in holders:
            holder.restore()
        hooks.restore()


def warn_of_dropped(paths: Iterable[str]) -> None:
    """Warn that values kept at these paths are not state of the converted model."""
    warnings.warn(
        f"forward keeps something from call to call in {_shown(paths)}, and the converted model "
        "does not\n  state is a tensor of one shape and dtype: hold it in a buffer "
        "(register_buffer), or make it an input and an output",
        DroppedStateWarning,
        stacklevel=3,
    )


def warn_of_changed_parameters(program: ExportedProgram) -> None:
    """Warn if a forward changes parameters: they are constants, and each call starts from them."""
    specs = program.graph_signature.output_specs
    names = [str(s.target) for s in specs if s.kind == OutputKind.PARAMETER_MUTATION]
    if names:
        warnings.warn(
            f"forward changes the parameters {_shown(names)}; in the converted model every call "
            "does so anew\n  hold in a buffer (register_buffer) what changes from call to call",
            DroppedStateWarning,
            stacklevel=2,
        )


def _shown(paths: Iterable[str]) -> str:
    names = list(dict.fromkeys(paths))
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")


def _is_tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and not isinstance(x, torch.nn.Parameter)


def same_sizes(new: torch.Tensor, old: torch.Tensor) -> bool:
    """Whether tensors have equal shapes, compared as text: comparing symbols specializes them."""
    return list(map(str, new.shape)) == list(map(str, old.shape))


def _is_dropped(old: Any, new: Any) -> bool:
    """Whether the change of an attribute by the forward is lost in the export."""
    if new is old:
        return False
    if isinstance(old, _NUMBERS) and isinstance(new, _NUMBERS):
        return bool(old != new)
    if _is_leaf(old) or _is_leaf(new):
        return True
    inside = _inside("", new, set(), 1)
    return any(_is_tensor(x) for holder in inside for x in holder.before.values())


def _is_leaf(x: Any) -> bool:
    return isinstance(x, (*_NUMBERS, torch.Tensor, torch.SymInt, torch.SymFloat))


def _entries(items: Any, *, is_object: bool) -> dict[Any, Any]:
    if isinstance(items, list):
        return dict(enumerate(items))
    return {k: x for k, x in items.items() if not is_object or k not in _TORCHS_OWN}


def _holders(model: torch.nn.Module) -> Iterator[Holder]:
    """Yield the attributes of every module, and every object, dict and list reachable from them."""
    seen: set[int] = set()
    for path, module in model.named_modules():
        yield from _inside(path, module, seen, 0)


def _inside(path: str, value: Any, seen: set[int], depth: int) -> Iterator[Holder]:
    if id(value) in seen or depth > _DEEPEST or isinstance(value, torch.Tensor):
        return
    is_object = not isinstance(value, dict | list)
    # The module at depth 0 is opened; modules in its attributes are visited by their own path.
    if is_object and depth and (isinstance(value, _OPAQUE) or _is_librarys(value)):
        return
    seen.add(id(value))
    items = vars(value) if is_object else value
    holder = Holder(path, items, _entries(items, is_object=is_object), is_object)
    yield holder
    for key, inner in holder.before.items():
        yield from _inside(holder.at(key), inner, seen, depth + 1)


def _is_librarys(value: Any) -> bool:
    """Whether an object has a library's type or no attributes, and so holds no model state."""
    home = type(value).__module__.partition(".")[0]
    return not hasattr(value, "__dict__") or home in ("torch", "builtins", "typing", "numpy")
