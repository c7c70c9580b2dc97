"""Fallback to onnxscript's torchlib for ops without our own lowering.

Only this module imports torchlib. The table is built when the first op needs it.
"""

from __future__ import annotations

import functools
from typing import Any

import onnx_ir as ir
import torch

from coreai_onnx.export.compat.torch_names import OpOverload, pytree
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import is_complex, promoted_dtype
from coreai_onnx.lower.walk.registry import Lowering
from coreai_onnx.model.dependencies import imported_from


def lowering(target: OpOverload) -> Lowering | None:
    """Return torchlib's function for an op as a lowering, or None if it has none."""
    real, complex_ = _functions().get(str(target), (None, None))
    if real is None and complex_ is None:
        return None

    def lower(op: OpBuilder, *args: Any, **kwargs: Any) -> Any:
        # Not at the top: script imports onnxscript, which few conversions need.
        from coreai_onnx.lower.walk.script import inlined

        tensors = pytree.tree_leaves((args, kwargs))
        function = complex_ if any(is_complex(x) for x in tensors) else real
        if function is None:
            raise NotImplementedError(f"torchlib has no such form of {target}")
        return inlined(function)(op, *_tensors_for_numbers(op, target, args), **kwargs)

    return lower


@functools.cache
def _functions() -> dict[str, tuple[Any, Any]]:
    """Return torchlib's functions for real and for complex tensors, by the name of the torch op."""
    with imported_from("onnxscript"):
        from onnxscript.function_libs.torch_lib import ops, registration

    assert ops  # importing it fills the registry
    table: dict[str, tuple[Any, Any]] = {}
    for name, overloads in registration.default_registry.items():
        namespace, _, rest = name.partition("::")
        qualified = f"{namespace}.{rest}" if "." in rest else f"{namespace}.{rest}.default"
        real = overloads.overloads[0] if overloads.overloads else None
        table[qualified] = (real, overloads.complex[0] if overloads.complex else None)
    return table


def _tensors_for_numbers(op: OpBuilder, target: OpOverload, args: tuple[Any, ...]) -> list[Any]:
    """Convert numbers passed for tensors to 0-d tensors, whose dtype torchlib reads."""
    operands = [a for a in args if isinstance(a, ir.Value | int | float)]
    result = []
    for argument, parameter in zip(args, target._schema.arguments, strict=False):
        is_tensor = isinstance(parameter.type, torch.TensorType)
        if is_tensor and isinstance(argument, int | float):
            result.append(op.const(argument, promoted_dtype(*operands)))
        else:
            result.append(argument)
    return result
