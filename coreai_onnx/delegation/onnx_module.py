"""ONNX models of any exporter as modules."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor

from coreai_onnx.bodies.modules.onnx_bodies import OnnxBody, onnx_body
from coreai_onnx.debugging.reference.torch_values import tensor_of
from coreai_onnx.errors import DelegationError, InputError
from coreai_onnx.export.compat.torch_names import version_of
from coreai_onnx.export.externalize.onnx_call import ONNX_CALL, tag_of
from coreai_onnx.lower.nodes.values import has_torch_dtype, torch_dtype
from coreai_onnx.model.interface import type_text, value_type_text
from coreai_onnx.model.metadata import read_states
from coreai_onnx.runtime.libraries.library import CustomOps
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.sessions.sources import Source, model_of
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


class OnnxModule(torch.nn.Module):
    """An ONNX model, of this or another exporter, as a module that larger modules may call.

    It runs in onnxruntime. Exported and lowered to ONNX, a call of it is a call of a function with
    the nodes of the model. The larger weights are buffers, ``weight_0`` and so on, so that the
    converted model stores them once and can quantize them. There are no gradients.

    Args:
        model: A ``.onnx`` file, its bytes, or a model or program in memory; it is not changed.
        name: Name of the function; empty for that of the file.
        custom_ops: Libraries of the operators in the model, as for `coreai_onnx.session`. The
            session that runs the converted model needs them as well.

    Raises:
        LoadError: If the file is missing or is not a valid ONNX model.
        DelegationError: If the model has states, or an input or output that is not a tensor of a
            dtype of torch.
    """

    def __init__(
        self, model: Source, *, name: str = "", custom_ops: Sequence[CustomOps] = ()
    ) -> None:
        """Read the model."""
        super().__init__()
        # The caller may go on to change or optimize the model.
        read = model_of(model).clone()
        name = name or (Path(model).stem if isinstance(model, str | PathLike) else "model")
        _check_interface(read, name)
        # What it says about inputs and relations holds for a whole model, not for a function in
        # another.
        read.metadata_props.clear()
        body, weights = onnx_body(read, name)
        self._weights = [f"weight_{number}" for number in range(len(weights))]
        for weight, tensor in zip(self._weights, weights, strict=True):
            # Buffers are inputs of the function, so that calls of one module share them in the
            # file.
            self.register_buffer(weight, _tensor(tensor))
        callee = _Callee(body, tuple(custom_ops))
        self._tag = tag_of(callee, body.name)
        self._inputs = [str(value.name) for value in body.inputs]
        # Exports keep the callee alive by its tag; its session should not live longer than the
        # module.
        weakref.finalize(self, callee.close)

    def forward(self, *args: torch.Tensor, **named: torch.Tensor) -> Any:
        """Run the model.

        Args:
            *args: Inputs by position, in the order of the file.
            **named: Inputs by name.

        Returns:
            The output, or a tuple of several.

        Raises:
            InputError: If an input is missing or has another dtype, rank or size than in the file.
        """
        rest = self._inputs[len(args) :]
        if sorted(rest) != sorted(named):
            raise InputError(
                f"the inputs are {', '.join(self._inputs)}: {len(args)} given by position, "
                f"and by name: {', '.join(named) or 'none'}"
            )
        tensors = [*args, *(named[name] for name in rest)]
        outputs = ONNX_CALL(tensors, [getattr(self, name) for name in self._weights], self._tag)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


class _Callee:
    """Runs a model, and describes it to exports."""

    def __init__(self, body: OnnxBody, custom_ops: tuple[CustomOps, ...]) -> None:
        self._body, self._custom_ops = body, custom_ops
        self._opened: tuple[Any, Session] | None = None

    def infer(
        self, tensors: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return empty results for fake inputs."""
        # A module that was converted to another dtype no longer fits the file.
        self._check_weights(weights)
        return results(self._body, tensors)

    def run(
        self, tensors: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Run the model in onnxruntime."""
        self._check_weights(weights)
        input_sizes(self._body, tensors)
        session = self._session(weights)
        # onnxruntime gets host memory whatever the device of the module.
        outputs = session.run(*(tensor.detach().cpu() for tensor in tensors))
        device = tensors[0].device if tensors else torch.device("cpu")
        arrays = [outputs[info.name] for info in session.outputs]
        return [tensor_of(array).reshape(array.shape).to(device) for array in arrays]

    def functions_at(self, opset: int) -> list[ir.Function]:
        """Return the model as functions for an opset."""
        return self._body.functions_at(opset)

    def close(self) -> None:
        """Release the session; a later run opens another one."""
        self._opened = None

    def _check_weights(self, weights: Sequence[torch.Tensor]) -> None:
        for value, weight in zip(self._body.weight_inputs, weights, strict=True):
            check_dtype(self._body, value, weight)

    def _session(self, weights: Sequence[torch.Tensor]) -> Session:
        """Return a session with the present values of the weights."""
        # Comparing values would read all weights in each run; torch counts the changes in place.
        key = [(w.data_ptr(), version_of(w)) for w in weights]
        if self._opened is None or self._opened[0] != key:
            model = self._body.with_weights([_stored(weight) for weight in weights])
            self._opened = key, Session(model, custom_ops=self._custom_ops)
        return self._opened[1]


def _stored(weight: torch.Tensor) -> TorchTensor:
    return TorchTensor(weight.detach().cpu().contiguous())


def _tensor(tensor: ir.TensorProtocol) -> torch.Tensor:
    # torch reads bfloat16 and float8 from bytes, for which NumPy has no dtypes.
    flat = torch.frombuffer(bytearray(tensor.tobytes()), dtype=torch_dtype(tensor.dtype))
    return flat.reshape(tuple(tensor.shape.numpy()))


def _check_interface(model: ir.Model, name: str) -> None:
    # States live in a stream of a session, which a call of an operator does not have.
    if states := [state.input for state in read_states(model.metadata_props)]:
        raise DelegationError(
            f"{name}: it keeps states between calls: {', '.join(states)}\n"
            "  a module can call a model whose states are inputs and outputs"
        )
    for value in (*model.graph.inputs, *model.graph.outputs):
        tensor = isinstance(value.type, ir.TensorType)
        if not tensor or value.dtype is None or not has_torch_dtype(value.dtype):
            kind = value_type_text(value) if tensor else str(value.type)
            raise DelegationError(
                f"{name}: {value.name} is {kind}, not a tensor of a dtype of torch"
            )
