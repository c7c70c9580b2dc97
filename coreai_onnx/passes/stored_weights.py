"""Weights in 16 bits for a computation in float32: half the file, the same results."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir

from coreai_onnx.model.files.mapped_tensors import WidenedTensor
from coreai_onnx.model.inventory import graphs

SMALLEST = 64
"""Weights with fewer elements stay as they are: a node for each would cost more than it saves."""
# Elements that are compared at a time: a large weight is never copied as a whole.
_CHUNK = 1 << 20
_DTYPES = {
    "float16": (ir.DataType.FLOAT16, np.float16),
    "bfloat16": (ir.DataType.BFLOAT16, ml_dtypes.bfloat16),
}


def store_weights_as(model: ir.Model, dtype: str) -> int:
    """Store float32 weights in 16 bits where this loses nothing, in place.

        MatMul(x, weight:f32)     becomes     MatMul(x, Cast(weight:bf16, to=f32))

    onnxruntime computes the casts once, when it loads the model. Weights that are not exactly
    representable (results of folded constants, tables of angles) stay float32. The values are
    converted when the model is written, one weight at a time. Call it after the passes, which
    read the values of weights.

    Args:
        model: The model, changed in place.
        dtype: ``"float16"`` or ``"bfloat16"``.

    Returns:
        The number of weights that are stored in 16 bits.
    """
    stored, count = _DTYPES[dtype], 0
    for graph in graphs(model):
        outside = {*graph.inputs, *graph.outputs}
        for value in list(graph.initializers.values()):
            # The dtypes of inputs with a default and of outputs are part of the interface of the
            # model.
            if value not in outside and _is_exact(value.const_value, stored[1]):
                _store(graph, value, *stored)
                count += 1
    return count


def _is_exact(tensor: ir.TensorProtocol | None, dtype: type[np.generic]) -> bool:
    """Whether a tensor is a float32 weight, and each value is the same in another dtype."""
    if tensor is None or tensor.dtype != ir.DataType.FLOAT or tensor.size < SMALLEST:
        return False
    if isinstance(tensor, WidenedTensor) and tensor.stored.dtype.numpy() == dtype:
        return True
    values = np.asarray(tensor.numpy()).reshape(-1)
    parts = (values[start : start + _CHUNK] for start in range(0, len(values), _CHUNK))
    with np.errstate(over="ignore"):  # an overflow gives infinity, which is not the same value
        return all(
            np.array_equal(part.astype(dtype).astype(np.float32), part, equal_nan=True)
            for part in parts
        )


def _store(graph: ir.Graph, value: ir.Value, element: ir.DataType, dtype: type[np.generic]) -> None:
    wide, name = value.const_value, str(value.name)
    assert wide is not None

    def narrow() -> ir.TensorProtocol:
        return ir.tensor(np.asarray(wide.numpy()).astype(dtype), dtype=element, name=name)

    shape = ir.Shape(wide.shape.numpy())
    tensor = ir.LazyTensor(narrow, dtype=element, shape=shape, name=name)
    if isinstance(wide, WidenedTensor) and wide.stored.dtype == element:
        tensor = wide.stored
    # The weight keeps its name, by which users find it in the checkpoint; its readers read the
    # Cast.
    stored = ir.Value(name=name, type=ir.TensorType(element), shape=shape, const_value=tensor)
    cast = ir.node("Cast", [stored], {"to": ir.DataType.FLOAT}, name=f"{name}.float32")
    result = cast.outputs[0]
    result.name, result.type, result.shape = f"{name}.float32", value.type, value.shape
    ir.convenience.replace_all_uses_with(value, result)
    del graph.initializers[name]
    graph.register_initializer(stored)
    # Before every other node, since any of them may read the weight.
    graph.insert_before(next(iter(graph)), cast)
