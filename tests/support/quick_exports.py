"""Makes ``torch.export.export`` faster; the programs that it returns are the same.

An export of torch 2.13 prepares much that is rarely read. Here it is made for the first reader:

* The Python code of a graph module. An export generates it six times, and nobody runs it.
* The source lines of stack traces. An export reads a line for each of the hundred frames above a
  node, and keeps those of the model.

What torch asks of every size, whether its expression is a number, sympy finds out once.

``test_quick_exports.py`` compares programs, code and traces with torch's own. See
:func:`forget_operators` for what else makes an export slow in a long run.
"""

from __future__ import annotations

import functools
import sys
import weakref
from traceback import FrameSummary, StackSummary, format_list
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import sympy
import torch
from torch._subclasses import fake_tensor
from torch.fx import graph, graph_module
from torch.fx.graph_module import GraphModule
from torch.utils import _traceback

GENERATE = GraphModule.recompile
GENERATED = ("_code", "_lineno_map", "_prologue_start")
"""What torch's ``recompile`` sets on a graph module, besides the ``forward`` of its class."""

_PATCHES = pytest.MonkeyPatch()
_EXPRESSIONS = 8192
"""More than an export has."""


def install() -> None:
    """Replace the slow parts; do nothing where this torch has no such parts."""
    if not hasattr(_traceback, "_extract_symbolized_tb") or not hasattr(torch._ops, "cached_ops"):
        return
    is_number = functools.lru_cache(_EXPRESSIONS)(sympy.Expr.is_number.fget)
    _PATCHES.setattr(sympy.Expr, "is_number", property(is_number))
    _PATCHES.setattr(_traceback, "_extract_symbolized_tb", _symbolized)
    lazy_stacks = SimpleNamespace(extract_stack=_extract_stack, format_list=format_list)
    _PATCHES.setattr(fake_tensor, "traceback", lazy_stacks)
    _PATCHES.setattr(GraphModule, "recompile", _recompile)
    for name in GENERATED:
        _PATCHES.setattr(GraphModule, name, _Deferred(name), raising=False)
    for name in ("__reduce__", "__reduce_package__"):
        _PATCHES.setattr(GraphModule, name, _with_code(getattr(GraphModule, name)))


def remove() -> None:
    """Put torch's own parts back."""
    _PATCHES.undo()


def forget_operators() -> None:
    """Empty the dispatch caches of all operators.

    When torch enters a dispatch mode, several times per export, it visits every operator that was
    called since the start of the process: after a thousand tests, nearly all of them.
    """
    for op in getattr(torch._ops, "cached_ops", ()):
        op._dispatch_cache.clear()
    torch._ops.reset_cached_ops()


# ------------------------------------------------------------------------------------------- code
class _Deferred:
    """An attribute that the generated code defines; reading it generates the code."""

    def __init__(self, name: str, module: GraphModule | None = None) -> None:
        self._name = name
        self._module = weakref.ref(module) if module is not None else lambda: None

    def __get__(self, instance: GraphModule | None, cls: type) -> Any:
        module = self._module() if instance is None else instance
        if module is None:
            return self
        GENERATE(module)
        return getattr(cls if instance is None else instance, self._name)


class _Code:
    """The result of ``recompile``; reading an attribute generates the code."""

    def __init__(self, module: GraphModule) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(GENERATE(self._module), name)


def _recompile(self: GraphModule) -> Any:
    """Do what ``GraphModule.recompile`` does, except generate code."""
    if isinstance(self._graph._codegen, graph._PyTreeCodeGen):
        self._in_spec = self._graph._codegen.pytree_info.in_spec
        self._out_spec = self._graph._codegen.pytree_info.out_spec
    for name in GENERATED:
        self.__dict__.pop(name, None)
    cls: Any = type(self)
    cls.forward = _Deferred("forward", self)
    if "_wrapped_call" not in vars(cls):
        call = cls.__call__ if "__call__" in vars(cls) else None
        cls._wrapped_call = graph_module._WrappedCall(cls, call)
        cls.__call__ = _call
    self._recompile_submodules()
    return _Code(self)


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    return self._wrapped_call(self, *args, **kwargs)


def _with_code(method: Any) -> Any:
    """Return a method that copies the attributes of a graph module, with the code among them."""

    def with_code(self: GraphModule, *args: Any) -> Any:
        self.code  # noqa: B018 - generates it
        return method(self, *args)

    return with_code


# ------------------------------------------------------------------------------------ stack traces
def _symbolized(frames: list[dict[str, Any]], skip: int) -> StackSummary:
    """Return frames of torch's profiler, innermost last."""
    places = ((f["filename"], f["line"], f["name"]) for f in reversed(frames[skip:]))
    return StackSummary(FrameSummary(*place, lookup_line=False) for place in places)


def _extract_stack() -> StackSummary:
    """Return the frames of the caller, innermost last."""
    found, frame = StackSummary(), sys._getframe(1)
    while frame is not None:
        found.append(_summary(frame))
        frame = frame.f_back
    found.reverse()
    return found


def _summary(frame: FrameType) -> FrameSummary:
    code = frame.f_code
    return FrameSummary(code.co_filename, frame.f_lineno, code.co_name, lookup_line=False)
