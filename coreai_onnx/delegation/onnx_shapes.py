"""Dtypes and shapes of the inputs and results of ONNX models that modules call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir
import torch

from coreai_onnx.bodies.modules.onnx_bodies import OnnxBody
from coreai_onnx.errors import InputError
from coreai_onnx.lower.nodes.values import torch_dtype
from coreai_onnx.model.interface import type_text, value_type_text
from coreai_onnx.runtime.tensors.expressions import evaluated

Sizes = Mapping[str, Any]
"""Sizes by name: integers or symbolic integers."""


def input_sizes(body: OnnxBody, tensors: Sequence[torch.Tensor]) -> dict[str, Any]:
    """Return the sizes that the inputs of a model name.

    Args:
        body: The model.
        tensors: Its inputs without weights; they may be fake, with symbolic sizes.

    Raises:
        InputError: If the number, a dtype, a rank or a size does not fit.
    """
    if len(tensors) != len(body.inputs):
        names = ", ".join(str(value.name) for value in body.inputs) or "none"
        raise InputError(
            f"{body.name} takes {len(body.inputs)} inputs ({names}), not {len(tensors)}"
        )
    sizes: dict[str, Any] = {}
    for value, tensor in zip(body.inputs, tensors, strict=True):
        check_dtype(body, value, tensor)
        if value.shape is None:
            continue
        if len(value.shape) != tensor.dim():
            raise _unfit(body, value, tensor)
        for dim, size in zip(value.shape, tensor.shape, strict=True):
            # A dim without a name may have any size.
            if not isinstance(dim, int) and dim.value is None:
                continue
            expected = dim if isinstance(dim, int) else sizes.setdefault(str(dim.value), size)
            if isinstance(expected, int) and isinstance(size, int) and expected != size:
                raise _unfit(body, value, tensor, sizes)
            # For symbolic sizes this becomes a condition of the export, instead of a guard that
            # specializes.
            torch._check(expected == size)
    return sizes


def check_dtype(body: OnnxBody, value: ir.Value, tensor: torch.Tensor) -> None:
    """Raise InputError if a tensor has another dtype than an input of a model."""
    assert value.dtype is not None
    if tensor.dtype != torch_dtype(value.dtype):
        raise _unfit(body, value, tensor)


def results(body: OnnxBody, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return empty results of a model for fake inputs.

    Sizes are those that the file declares, or that ONNX's shape inference finds. All others are
    unknown until the model runs.

    Raises:
        InputError: If an input does not fit, or the rank of a result is unknown.
    """
    sizes = input_sizes(body, tensors)
    shapes = [_dims(value, sizes) for value in body.model.graph.outputs]
    # Shape inference serializes the model, so that it runs only where the file leaves sizes open.
    if any(dims is None or None in dims for dims in shapes):
        shapes = list(_merged(shapes, _inferred(body, tensors)))
    device = tensors[0].device if tensors else torch.device("cpu")
    return [
        torch.empty(_sizes(body, value, dims), dtype=_dtype(value), device=device)
        for value, dims in zip(body.model.graph.outputs, shapes, strict=True)
    ]


def _dims(value: ir.Value, sizes: Sizes) -> list[Any] | None:
    """Return the sizes of a result, None for unknown ones."""
    if value.shape is None:
        return None
    return [d if isinstance(d, int) else _size(d.value, sizes) for d in value.shape]


def _size(name: str | None, sizes: Sizes) -> Any:
    if name is None:
        return None
    if name in sizes:
        return sizes[name]
    values = evaluated([name], sizes)
    return None if values is None else values[0]


def _inferred(body: OnnxBody, tensors: Sequence[torch.Tensor]) -> list[list[Any] | None]:
    """Return the sizes of the results by ONNX's shape inference."""
    proto = ir.to_proto(body.model)
    names: dict[str, Any] = {}
    for value, tensor in zip(proto.graph.input, tensors, strict=False):
        del value.type.tensor_type.shape.dim[:]
        for size in tensor.shape:
            dim = value.type.tensor_type.shape.dim.add()
            if isinstance(size, int):
                dim.dim_value = size
            else:
                # ONNX has no expressions of sizes: a name stands for each, and is replaced in the
                # results.
                dim.dim_param = f"size_{size}"
                names[dim.dim_param] = size
    for output in proto.graph.output:
        # Otherwise inference would merge its result with the declared shape, and keep names of the
        # file.
        output.type.tensor_type.ClearField("shape")
    # With data propagation, it also follows shapes that the model computes, as for Reshape.
    inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    return [_dims(ir.from_proto(output), names) for output in inferred.graph.output]


def _merged(
    declared: Sequence[list[Any] | None], inferred: Sequence[list[Any] | None]
) -> Iterator[list[Any] | None]:
    for first, second in zip(declared, inferred, strict=True):
        if first is None or second is None or len(first) != len(second):
            # Ranks that differ: what the file declares is the contract.
            yield second if first is None else first
        else:
            yield [b if a is None else a for a, b in zip(first, second, strict=True)]


def _sizes(body: OnnxBody, value: ir.Value, dims: list[Any] | None) -> list[Any]:
    if dims is None:
        raise InputError(
            f"{body.name}: the rank of its output {value.name} is unknown\n"
            "  export the file with the shapes of its outputs"
        )
    # A size that depends on values is an unbacked symbol, as that of ``nonzero``.
    return [torch.library.get_ctx().new_dynamic_size() if d is None else d for d in dims]


def _dtype(value: ir.Value) -> torch.dtype:
    assert value.dtype is not None
    return torch_dtype(value.dtype)


def _unfit(
    body: OnnxBody, value: ir.Value, tensor: torch.Tensor, sizes: Sizes | None = None
) -> InputError:
    type_of_tensor = type_text(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
    named = ", ".join(f"{name} is {size}" for name, size in (sizes or {}).items())
    return InputError(
        f"{body.name}: its input {value.name} is {value_type_text(value)}, not {type_of_tensor}"
        + (f" ({named})" if named else "")
    )
