"""What Dynamo does with functions: calls that it does not trace, and what it compiled."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import torch
from torch._C._dynamo.eval_frame import reset_code
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops.map import map as map_rows

from coreai_onnx.export.compat.patches import patched
from coreai_onnx.export.compat.regions import regions_run
from coreai_onnx.export.compat.torch_names import (
    OptimizedModule,
    assume_constant_result,
    nonstrict_trace,
    require,
)


def uncompiled(subject: Any) -> Any:
    """Return the module or function that was passed to ``torch.compile``; others unchanged."""
    if isinstance(subject, OptimizedModule):
        require(((subject, ("_orig_mod",)),))
        return subject._orig_mod  # noqa: SLF001 - torch has no public name for it
    return getattr(subject, "_torchdynamo_orig_callable", None) or subject


def called_by_dynamo(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose calls Dynamo keeps as one node each; it runs when the graph is run.

    Under ``strict`` its results are tensors or lists of them. The bodies of ``cond`` and loops,
    which Dynamo traces in every export, may return anything that pytrees hold.
    """
    # A graph of nonstrict_trace has attributes that only exports without strict accept, and one
    # of allow_in_graph runs with the weights in a fake mode that only Dynamo's own export has.
    kept, traced = torch.compiler.allow_in_graph(function), nonstrict_trace(function)

    def call(*args: Any) -> Any:
        return kept(*args) if _is_strict() else traced(*args)

    return call


def _exports_strictly() -> bool:
    """Whether Dynamo traces a whole model for ``torch.export``."""
    return any(frame.f_code.co_name == "_strict_export" for frame, _ in traceback.walk_stack(None))


_is_strict: Callable[[], bool] = assume_constant_result(_exports_strictly)


@contextmanager
def without_dynamo() -> Iterator[None]:
    """While active, ``cond``, loops and regions run their functions without compiling them first.

    Only a graph needs what Dynamo does to them. While it traces the code around a call, or while a
    dispatch mode is active, it cannot trace their functions.
    """

    def compile_nothing(function: Any = None, **_: Any) -> Any:
        return function if function is not None else lambda function: function

    with patched(torch, "compile", lambda _: compile_nothing), regions_run():
        yield


def skips_forgotten() -> None:
    """Let Dynamo trace ``cond`` and the loops again.

    Dynamo traces neither while a dispatch mode is active, and then skips their code in every later
    export of the process, which therefore fails.
    """
    for function in (torch.cond, while_loop, scan, map_rows, associative_scan):
        for constant in function.__code__.co_consts:
            if isinstance(constant, CodeType):
                reset_code(constant)
