"""Models of one kernel op, run in onnxruntime with the library and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
import torch
from onnx import TensorProto, helper

from coreai_onnx.composites.declaration import DOMAIN

ORT_SILENT = 4
ONNX_TYPES = {
    torch.float32: TensorProto.FLOAT,
    torch.float16: TensorProto.FLOAT16,
    torch.bfloat16: TensorProto.BFLOAT16,
    torch.float64: TensorProto.DOUBLE,
    torch.bool: TensorProto.BOOL,
    torch.int32: TensorProto.INT32,
    torch.int64: TensorProto.INT64,
    torch.uint8: TensorProto.UINT8,
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
    outputs: Sequence[bool] = (True,),
) -> onnx.ModelProto:
    """A model that is one op; absent inputs are ``""``, those at the end are left out.

    ``outputs`` says which outputs of the op are used; the model has those only.
    """
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
    results = [f"result{i}" if used else "" for i, used in enumerate(outputs)]
    nodes.append(helper.make_node(op_type, names, results, domain=DOMAIN, **attributes))
    first = inputs[0]
    assert first is not None
    out = ONNX_TYPES[_fed(first).dtype]
    graph_outputs = []
    for result in filter(None, results):
        name = result.replace("result", "output")
        nodes.append(helper.make_node("Cast", [result], [name], to=out))
        graph_outputs.append(helper.make_tensor_value_info(name, out, None))
    graph = helper.make_graph(nodes, "single_op", graph_inputs, graph_outputs)
    return helper.make_model(
        graph,
        functions=list(functions),
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)],
        ir_version=10,
    )


def open_session(
    model: onnx.ModelProto,
    library: Path | None,
    threads: int = 1,
    op_types: str = "",
    deterministic: bool = False,
) -> ort.InferenceSession:
    """Open a model, with the kernels of ``library`` if there is one: all, or those named."""
    options = ort.SessionOptions()
    options.log_severity_level = ORT_SILENT
    options.intra_op_num_threads = threads
    if op_types:
        options.add_session_config_entry("coreai.op_types", op_types)
    if deterministic:
        options.add_session_config_entry("coreai.deterministic", "1")
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
    """Run one op and return its first output in the dtype of the first input."""
    model = single_op_model(op_type, inputs, attributes, rank_known=rank_known)
    return run_model(open_session(model, library, threads, op_type), inputs)[0]


def run_op_outputs(
    library: Path,
    op_type: str,
    inputs: Sequence[torch.Tensor | None],
    *,
    outputs: Sequence[bool],
    threads: int = 1,
    **attributes: Any,
) -> list[torch.Tensor]:
    """Run one op and return those of its outputs that are used."""
    model = single_op_model(op_type, inputs, attributes, outputs=outputs)
    return run_model(open_session(model, library, threads, op_type), inputs)


def run_model(
    session: ort.InferenceSession, inputs: Sequence[torch.Tensor | None]
) -> list[torch.Tensor]:
    """Run a model of ``single_op_model``; outputs get the dtype of the first input."""
    feeds = {f"in{i}": _fed(t).contiguous().numpy() for i, t in enumerate(inputs) if t is not None}
    first = inputs[0]
    assert first is not None
    return [torch.from_numpy(x).to(first.dtype) for x in session.run(None, feeds)]


def double(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """The same numbers in double; masks and absent inputs as they are."""
    return tensor.double() if tensor is not None and tensor.is_floating_point() else tensor
