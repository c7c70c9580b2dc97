"""Memory of the caller that outputs are written to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import ml_dtypes  # noqa: F401 - registers bfloat16 with numpy
import numpy as np
import onnxruntime as ort

from coreai_onnx.errors import InputError
from coreai_onnx.model.interface import TensorInfo, type_text
from coreai_onnx.runtime.tensors.expressions import evaluated
from coreai_onnx.runtime.tensors.outputs import Array
from coreai_onnx.runtime.tensors.signature import Signature
from coreai_onnx.runtime.tensors.values import has_memory, to_ort


def output_arrays(signature: Signature, inputs: Mapping[str, object]) -> dict[str, Array]:
    """Return uninitialized arrays for the outputs; see `Session.output_arrays`."""
    sizes: dict[str, int] = {}
    for info in signature.inputs:
        shape = getattr(inputs.get(info.name), "shape", ())
        sizes |= {d: n for d, n in zip(info.dims, shape, strict=False) if isinstance(d, str)}
    shapes = {info: evaluated(info.dims, sizes) for info in signature.outputs if has_memory(info)}
    return {
        info.name: np.empty(shape, info.numpy_dtype)
        for info, shape in shapes.items()
        if shape is not None
    }


def output_targets(
    infos: Sequence[TensorInfo], into: Mapping[str, Array], inputs: Mapping[str, Array]
) -> dict[str, ort.OrtValue]:
    """Return arrays of the caller as values that onnxruntime writes to.

    Args:
        infos: The outputs of the model.
        into: The arrays by name of the output.
        inputs: The inputs of the call.

    Raises:
        InputError: If there is no such output, or an array cannot hold it.
    """
    outputs = {info.name: info for info in infos}
    for name, array in into.items():
        if name not in outputs:
            raise InputError(f"there is no output {name!r}; there are {', '.join(outputs)}")
        _check(outputs[name], array)
        _check_overlap(name, array, {**inputs, **{k: a for k, a in into.items() if k != name}})
    return {name: to_ort(array, outputs[name]) for name, array in into.items()}


def _check(info: TensorInfo, array: object) -> None:
    if not isinstance(array, np.ndarray):
        raise InputError(f"output {info.name!r}: {type(array).__name__} is not a numpy array")
    if not has_memory(info):
        raise InputError(f"output {info.name!r}: {info.dtype} has no memory of the caller's")
    fits = len(info.dims) == array.ndim and all(
        dim == size
        for dim, size in zip(info.dims, array.shape, strict=True)
        if isinstance(dim, int)
    )
    if not fits or array.dtype.name != info.numpy_dtype:
        raise InputError(
            f"output {info.name!r}: the array has another type\n"
            f"  got       {type_text(array.dtype.name, array.shape)}\n"
            f"  expected  {info.type_text}"
        )
    # An OrtValue has no strides.
    if not (array.flags.c_contiguous and array.flags.writeable):
        raise InputError(f"output {info.name!r}: the array is not writable and C-contiguous")


def _check_overlap(name: str, array: Array, others: Mapping[str, Array]) -> None:
    for other, memory in others.items():
        # It compares bounds only; the exact np.shares_memory may take exponential time.
        if np.may_share_memory(array, memory):
            raise InputError(f"output {name!r}: its array shares memory with {other!r}")
