"""One piece of work, done by each of several implementations behind one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import TensorProto

ONNX_TYPES = {
    torch.float32: TensorProto.FLOAT,
    torch.float16: TensorProto.FLOAT16,
    torch.bfloat16: TensorProto.BFLOAT16,
    torch.float64: TensorProto.DOUBLE,
    torch.bool: TensorProto.BOOL,
    torch.int64: TensorProto.INT64,
    torch.int32: TensorProto.INT32,
    torch.uint8: TensorProto.UINT8,
    torch.int8: TensorProto.INT8,
}


class Runner(Protocol):
    """An implementation of a case, its inputs bound."""

    def __call__(self) -> None:
        """Do the work once."""

    def result(self) -> torch.Tensor:
        """The first output of the last call."""


class OnnxRuntimeRunner:
    """A model in onnxruntime, inputs and outputs bound to memory beforehand.

    ``aliases`` maps outputs to the inputs whose memory they take, as a cache that grows in place.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        feeds: Mapping[str, torch.Tensor],
        threads: int,
        *,
        library: Path | None = None,
        aliases: Mapping[str, str] | None = None,
        entries: Mapping[str, str] | None = None,
    ) -> None:
        options = ort.SessionOptions()
        for key, value in (entries or {}).items():
            options.add_session_config_entry(key, value)
        options.log_severity_level = 3
        options.intra_op_num_threads = threads
        if library is not None:
            options.register_custom_ops_library(str(library))
        self._session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self._binding = self._session.io_binding()
        self._values = {name: ort_value(tensor) for name, tensor in feeds.items()}
        for name, value in self._values.items():
            self._binding.bind_ortvalue_input(name, value)
        for output in self._session.get_outputs():
            if aliases is not None and output.name in aliases:
                value = self._values[aliases[output.name]]
                self._binding.bind_ortvalue_output(output.name, value)
            else:
                self._binding.bind_output(output.name)
        self()
        self._bind_outputs_where_they_are(set(aliases or ()))

    def _bind_outputs_where_they_are(self, taken: set[str]) -> None:
        names = [output.name for output in self._session.get_outputs()]
        for name, value in zip(names, self._binding.get_outputs(), strict=True):
            if name not in taken:
                self._binding.bind_ortvalue_output(name, value)

    def __call__(self) -> None:
        self._session.run_with_iobinding(self._binding)

    def result(self) -> torch.Tensor:
        return of_ort_value(self._binding.get_outputs()[0])


def ort_value(tensor: torch.Tensor) -> ort.OrtValue:
    """A copy of the tensor as onnxruntime holds it; bfloat16 too, which numpy does not know."""
    tensor = tensor.contiguous()
    if tensor.dtype == torch.bfloat16:
        array = tensor.view(torch.uint16).numpy()
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, TensorProto.BFLOAT16)
    return ort.OrtValue.ortvalue_from_numpy(tensor.numpy())


def of_ort_value(value: ort.OrtValue) -> torch.Tensor:
    """A copy of what onnxruntime holds."""
    return torch.from_numpy(np.array(_numpy(value))).view(_torch_type(value)).clone()


def _torch_type(value: ort.OrtValue) -> torch.dtype:
    return torch.bfloat16 if "bfloat16" in value.data_type() else _numpy_type(value)


def _numpy_type(value: ort.OrtValue) -> torch.dtype:
    return torch.from_numpy(np.empty(0, _numpy(value).dtype)).dtype


def _numpy(value: ort.OrtValue) -> np.ndarray:
    if "bfloat16" not in value.data_type():
        return value.numpy()
    size = int(np.prod(value.shape()))
    import ctypes

    bits = (ctypes.c_uint16 * size).from_address(value.data_ptr())
    return np.frombuffer(bits, np.uint16).reshape(value.shape())


class TorchRunner:
    """A function of torch on its tensors, compiled by inductor if requested."""

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Sequence[torch.Tensor | None],
        *,
        compiled: bool = False,
    ) -> None:
        if compiled:
            torch.compiler.reset()  # cases share code, which is compiled anew only so many times
            function = torch.compile(function, dynamic=False)
        self._function = function
        self._inputs = inputs
        self._result: Any = None
        self()

    def __call__(self) -> None:
        with torch.inference_mode():
            self._result = self._function(*self._inputs)

    def result(self) -> torch.Tensor:
        first = self._result[0] if isinstance(self._result, tuple) else self._result
        assert isinstance(first, torch.Tensor)
        return first


class OpenVinoRunner:
    """A graph of OpenVINO, computed in float32, or in bfloat16 or float16 as its inputs are."""

    def __init__(self, graph: Any, feeds: Sequence[torch.Tensor], threads: int) -> None:
        import openvino

        narrow = {torch.bfloat16: "bf16", torch.float16: "f16"}
        hint = next((narrow[x.dtype] for x in feeds if x.dtype in narrow), "f32")
        settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": hint}
        compiled = openvino.Core().compile_model(graph, "CPU", settings)
        self._request = compiled.create_infer_request()
        self._feeds = [x.contiguous() for x in feeds]  # their memory is shared
        for i, tensor in enumerate(self._feeds):
            self._request.set_input_tensor(i, openvino_tensor(tensor))
        self()

    def __call__(self) -> None:
        self._request.infer()

    def result(self) -> torch.Tensor:
        return of_openvino_tensor(self._request.get_output_tensor(0))


def openvino_tensor(tensor: torch.Tensor) -> Any:
    """Return OpenVINO's tensor in the memory of a contiguous one, which has to live as long."""
    import openvino

    if tensor.dtype != torch.bfloat16:
        return openvino.Tensor(tensor.numpy(), shared_memory=True)
    bits = tensor.view(torch.uint16).numpy()
    return openvino.Tensor(bits, openvino.Shape(list(tensor.shape)), openvino.Type.bf16)


def of_openvino_tensor(tensor: Any) -> torch.Tensor:
    """Return a copy of what OpenVINO holds."""
    numbers = torch.from_numpy(tensor.data.copy())
    # numpy has no bfloat16, OpenVINO shows its bits as float16
    is_bfloat16 = tensor.element_type.get_type_name() == "bf16"
    return numbers.view(torch.bfloat16) if is_bfloat16 else numbers


def openvino_graph(model: onnx.ModelProto) -> Any:
    """Return a model with inlined function bodies as OpenVINO reads it."""
    import openvino
    from onnx import inliner

    flat = inliner.inline_local_functions(model).SerializeToString()
    return openvino.Core().read_model(flat, b"")
