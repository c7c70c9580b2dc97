"""Models of one kernel op, run in onnxruntime with the library and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
import torch
from onnx import TensorProto, helper

from coreai_onnx.composite_ops.declaration import DOMAIN

ORT_SILENT = 4
ONNX_TYPES = {
    torch.float32: TensorProto.FLOAT,
    torch.float16: TensorProto.FLOAT16,
    torch.bfloat16: TensorProto.BFLOAT16,
    torch.float64: TensorProto.DOUBLE,
    torch.bool: TensorProto.BOOL,
    torch.int64: TensorProto.INT64,
}
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def _fed(tensor: torch.Tensor) -> torch.Tensor:
    """What numpy can hold: bfloat16 travels as float32 and is cast inside the model."""
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def single_op_model(
    op_type: str,
    inputs: Sequence[torch.Tensor | None],
    attributes: Mapping[str, Any],
    functions: Sequence[onnx.FunctionProto] = (),
    rank_known: bool = True,
) -> onnx.ModelProto:
    """A model that is one op; absent inputs are ``""``, those at the end are left out."""
    names, graph_inputs, nodes = [], [], []
    for i, tensor in enumerate(inputs):
        if tensor is None:
            names.append("")
            continue
        fed = ONNX_TYPES[_fed(tensor).dtype]
        shape = [f"d{i}_{axis}" for axis in range(tensor.ndim)] if rank_known else None
        graph_inputs.append(helper.make_tensor_value_info(f"in{i}", fed, shape))
        names.append(f"in{i}")
        if tensor.dtype == torch.bfloat16:
            nodes.append(
                helper.make_node("Cast", [f"in{i}"], [f"cast{i}"], to=TensorProto.BFLOAT16)
            )
            names[-1] = f"cast{i}"
    while names and not names[-1]:
        names.pop()
    nodes.append(helper.make_node(op_type, names, ["result"], domain=DOMAIN, **attributes))
    first = inputs[0]
    assert first is not None
    out = ONNX_TYPES[_fed(first).dtype]
    nodes.append(helper.make_node("Cast", ["result"], ["output"], to=out))
    graph = helper.make_graph(
        nodes, "single_op", graph_inputs, [helper.make_tensor_value_info("output", out, None)]
    )
    return helper.make_model(
        graph,
        functions=list(functions),
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)],
        ir_version=10,
    )


def open_session(
    model: onnx.ModelProto, library: Path | None, threads: int = 1
) -> ort.InferenceSession:
    """Open a model, with the kernels of ``library`` if there is one."""
    options = ort.SessionOptions()
    options.log_severity_level = ORT_SILENT
    options.intra_op_num_threads = threads
    if library is not None:
        options.register_custom_ops_library(str(library))
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def run_op(
    library: Path,
    op_type: str,
    inputs: Sequence[torch.Tensor | None],
    *,
    threads: int = 1,
    rank_known: bool = True,
    **attributes: Any,
) -> torch.Tensor:
    """Run one op and return its output in the dtype of the first input."""
    model = single_op_model(op_type, inputs, attributes, rank_known=rank_known)
    session = open_session(model, library, threads)
    feeds = {f"in{i}": _fed(t).contiguous().numpy() for i, t in enumerate(inputs) if t is not None}
    first = inputs[0]
    assert first is not None
    return torch.from_numpy(session.run(None, feeds)[0]).to(first.dtype)


def double(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """The same numbers in double; masks and absent inputs as they are."""
    return tensor.double() if tensor is not None and tensor.is_floating_point() else tensor
