"""Delegation of a program as a whole, or of the parts that a partitioner selects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from torch.export import ExportedProgram

from coreai_onnx.delegation.backends import CompileSpec
from coreai_onnx.delegation.lowered_modules import LoweredModule, lowered_module
from coreai_onnx.delegation.partitioning import Partitioner, delegated


@overload
def to_backend(
    backend_id: str, edge_program: ExportedProgram, compile_specs: Sequence[CompileSpec] = (), /
) -> LoweredModule: ...
@overload
def to_backend(edge_program: ExportedProgram, partitioner: Partitioner, /) -> ExportedProgram: ...
def to_backend(
    first: str | ExportedProgram,
    second: ExportedProgram | Partitioner,
    compile_specs: Sequence[CompileSpec] = (),
    /,
) -> LoweredModule | ExportedProgram:
    """Let a backend process a whole program, or the parts that a partitioner selects.

    ``to_backend(backend_id, edge_program, compile_specs)`` returns a module that runs the program;
    ``to_backend(edge_program, partitioner)`` returns the program with calls of its parts. The given
    program, one of `to_edge`, is not changed.

    Raises:
        DelegationError: If there is no such backend, it raises or returns no bytes, a whole program
            has states or a result that is not a tensor, or a part cannot be delegated.
        TypeError: For other arguments.
    """
    if isinstance(first, str) and isinstance(second, ExportedProgram):
        return lowered_module(first, second, compile_specs)
    if isinstance(first, ExportedProgram) and isinstance(second, Partitioner):
        return delegated(first, second)
    # As ExecuTorch, whose function dispatches on the types of its arguments.
    raise TypeError(
        "to_backend takes (backend_id, program, compile_specs) or (program, partitioner), "
        f"not ({type(first).__name__}, {type(second).__name__})"
    )
