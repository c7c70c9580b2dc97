"""Converts models with externalized modules and compares them with torch."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir
import torch
from torch.utils import _pytree as pytree

import coreai_onnx
from coreai_onnx import ExternalizeSpec
from coreai_onnx.errors import KernelsNotBuiltError
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime import ops_library_path
from tests.support.tolerances import assert_close


def kernels_built() -> bool:
    """Whether the kernel library is there."""
    try:
        ops_library_path()
    except KernelsNotBuiltError:
        return False
    return True


def converted(
    model: torch.nn.Module,
    args: Sequence[Any],
    specs: Sequence[ExternalizeSpec | type],
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    **options: Any,
) -> OnnxProgram:
    """Convert, check the file, and run it with and without kernels against torch.

    Also checks that the model and this package's tables are as they were before.
    """
    before = {name: dict(m.__dict__) for name, m in model.named_modules()}
    program = coreai_onnx.convert(
        model.eval(),
        args,
        kwargs,
        dynamic_shapes=dynamic_shapes,
        externalize_modules=specs,
        **options,
    )
    untouched(model, before)
    proto = program.to_proto()
    onnx.checker.check_model(proto, full_check=True)
    assert not any(f.overload for f in proto.functions)
    agrees(program, model, args, kwargs)
    return program


def untouched(model: torch.nn.Module, before: Mapping[str, Mapping[str, Any]]) -> None:
    """Assert that no module has other attributes than before, and that no hook is left in torch."""
    for name, module in model.named_modules():
        assert module.__dict__.keys() == before[name].keys(), name
        assert "forward" not in module.__dict__ or "forward" in before[name]
    assert "__getattribute__" not in vars(torch.nn.Module)


def agrees(
    program: OnnxProgram,
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
) -> None:
    """Assert that the program gives what torch gives, with and without kernels."""
    with torch.no_grad(), warnings.catch_warnings():
        expected = pytree.tree_leaves(model(*args, **(kwargs or {})))
    expected = [torch.as_tensor(x) for x in expected if x is not None]
    leaves = pytree.tree_leaves((tuple(args), dict(kwargs or {})))
    inputs = [x for x in leaves if isinstance(x, torch.Tensor)]
    for kernels in (False, True) if kernels_built() else (False,):
        actual = program.run(*inputs, kernels=kernels)
        assert_close(list(actual), expected, message=f"kernels={kernels}")


def functions(program: OnnxProgram) -> list[str]:
    """Return the functions of a program, ``domain::name``, in order."""
    return [f"{f.domain}::{f.name}" for f in program.model.functions.values()]


def calls(program: OnnxProgram, op_type: str) -> list[ir.Node]:
    """Return the nodes of an op type, in the graph and in function bodies."""
    nodes = [*program.model.graph.all_nodes()]
    for function in program.model.functions.values():
        nodes += function.all_nodes()
    return [n for n in nodes if n.op_type == op_type]
