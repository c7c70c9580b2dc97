"""Attribute reads and tables of decompositions that are the user's, during an export."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch.export import ExportedProgram

from coreai_onnx.export.compat.patches import patched, suspended

_DICT = "__dict__"
_READ = "__getattribute__"
_READER = 2
"""Number of frames from the replacement to the reader; the patch adds one in between."""
ReportAccess = Callable[[torch.nn.Module, dict[str, Any], str], None]


@contextmanager
def access_reported(report: ReportAccess, unseen: Callable[[], None]) -> Iterator[None]:
    """While active, reads of the attributes of any module in this thread are reported.

    Args:
        report: Called with the module, its ``__dict__`` and the attribute, before the read.
        unseen: Called before reads that are not reported: those of functions that Dynamo traces,
            such as the branches of ``cond`` and the bodies of loops.
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def read(self: torch.nn.Module, name: str) -> Any:
            reader = sys._getframe(_READER)  # noqa: SLF001 - only the frame shows the reader
            if not (name == _DICT and _is_infrastructure(reader)):
                report(self, object.__getattribute__(self, _DICT), name)
            return original(self, name)

        return read

    def wrap_compile(original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_function(function: Any = None, *args: Any, **kwargs: Any) -> Any:
            compiled = original(function, *args, **kwargs)
            # torch.cond and the loops compile functions; a module is compiled by the user.
            if not inspect.isfunction(function):
                return compiled

            def call(*arguments: Any, **named: Any) -> Any:
                unseen()
                # Dynamo cannot trace our replacement, which reads a frame.
                with suspended(torch.nn.Module, _READ):
                    return compiled(*arguments, **named)

            return call

        return compile_function

    with patched(torch.nn.Module, _READ, wrap), patched(torch, "compile", wrap_compile):
        yield


def _is_infrastructure(frame: FrameType) -> bool:
    """Whether the reader is torch or this package: both read the ``__dict__`` of every module."""
    home = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return home in ("torch", __name__.partition(".")[0])


Table = dict[Any, Callable[..., Any]]


@contextmanager
def table_of_the_user() -> Iterator[Table]:
    """While active, collect the user's decompositions that ``run_decompositions`` is given.

    torch's decompositions are left out: their ops are lowered, or kept as composites.

    Yields:
        A table that is filled while the block runs.
    """
    rules: Table = {}

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def run_decompositions(
            self: ExportedProgram, decomp_table: Table | None = None, *args: Any, **kwargs: Any
        ) -> ExportedProgram:
            table = {} if decomp_table is None else dict(decomp_table.items())
            rules.update({op: rule for op, rule in table.items() if not _is_torchs(rule)})
            program: ExportedProgram = original(self, decomp_table, *args, **kwargs)
            return program

        return run_decompositions

    with patched(ExportedProgram, "run_decompositions", wrap):
        yield rules


def _is_torchs(rule: Any) -> bool:
    """Whether a decomposition belongs to torch."""
    while isinstance(rule, functools.partial):
        rule = rule.func
    home = str(getattr(inspect.unwrap(rule), "__module__", "") or "torch")
    return home.partition(".")[0] == "torch"
