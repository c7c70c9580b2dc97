"""Functions that are marked with ``torch.compiler.nested_compile_region``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import MethodType
from typing import Any

from torch._dynamo import config
from torch._higher_order_ops import utils as higher_order
from torch._higher_order_ops.invoke_subgraph import mark_compile_region

from coreai_onnx.export.compat.patches import patched

_MARK = "__marked_compile_region_fn__"
_INLINES = "inline_single_use_invoke_subgraph"
_CALL = "_hop_compile_and_call"


def is_region(function: Callable[..., Any]) -> bool:
    """Whether a function or method is marked."""
    return hasattr(function, _MARK)


def unmarked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function without its mark; the mark hides its signature."""
    plain = function.__func__ if isinstance(function, MethodType) else function
    while is_region(plain):
        plain = getattr(plain, _MARK)
    return MethodType(plain, function.__self__) if isinstance(function, MethodType) else plain


@contextmanager
def regions_called_once_kept() -> Iterator[None]:
    """While active, Dynamo also keeps a region that the model calls only once.

    It inlines these by default, and then fails where a region is called in another one.
    """
    # Not every supported torch inlines.
    with config.patch({_INLINES: False}) if hasattr(config, _INLINES) else nullcontext():
        yield


@contextmanager
def regions_run() -> Iterator[None]:
    """While active, a marked function is called like any other, instead of compiled."""

    def run(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    with patched(mark_compile_region.__globals__, "invoke_subgraph_placeholder", lambda _: run):
        yield


@contextmanager
def regions_called_by(call: Callable[..., Any]) -> Iterator[None]:
    """While active, an export without ``strict`` does not inline marked functions.

    Args:
        call: Called with a function, its arguments and its keyword arguments; returns the result.
    """

    def wrap(compile_and_call: Callable[..., Any]) -> Callable[..., Any]:
        def replacement(function: Callable[..., Any], args: Any, kwargs: Any = None) -> Any:
            if function.__name__ == "_invoke_subgraph_placeholder_wrapper":
                # Some releases of torch do not pass keyword arguments on.
                marked, arguments, *keywords = args
                return call(marked, arguments, *(keywords or [{}]))
            return compile_and_call(function, args, kwargs)

        return replacement

    # Not every supported torch has it; without it, torch inlines the functions.
    with patched(higher_order, _CALL, wrap) if hasattr(higher_order, _CALL) else nullcontext():
        yield
