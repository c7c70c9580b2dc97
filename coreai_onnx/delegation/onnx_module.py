"""ONNX models of any exporter as modules."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor

from coreai_onnx.bodies.modules.onnx_bodies import OnnxBody, onnx_body
from coreai_onnx.debugging.reference.torch_values import tensor_of
from coreai_onnx.delegation.onnx_shapes import check_dtype, input_sizes, results
from coreai_onnx.errors import DelegationError, InputError
from coreai_onnx.export.compat.torch_names import version_of
from coreai_onnx.export.externalize.onnx_call import ONNX_CALL, tag_of
from coreai_onnx.lower.nodes.values import has_torch_dtype, torch_dtype
from coreai_onnx.model.interface import value_type_text
from coreai_onnx.model.metadata import read_states
from coreai_onnx.runtime.libraries.library import CustomOps
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.sessions.sources import Source, model_of


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
