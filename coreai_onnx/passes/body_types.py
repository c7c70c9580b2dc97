"""Types of the tensors in the bodies of externalised modules, for as long as passes work on them.

A body says nothing of types, since it may be called for others. What all its calls pass is known,
and ONNX's own shape inference finds the rest, so that a layer in a function is optimised like one
that is written out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir as ir

from coreai_onnx.passes.bodies import Bodies
from coreai_onnx.passes.facts import Dim, dtype_of, shape_of
from coreai_onnx.passes.leaving import Exporter
from coreai_onnx.passes.match import DOMAIN
from coreai_onnx.passes.scope import called_functions

_UNKNOWN = onnx.TensorProto.UNDEFINED


def learn_types(main: gs.Graph, function: gs.Function, bodies: Bodies) -> None:
    """Give the tensors of a body the types that follow from its calls.

    The bodies of composites stay without: they are made for every call that may come.

    Args:
        main: The main graph, with all functions.
        function: The function; one with attributes is left alone.
        bodies: Its functions.
    """
    if function.domain == DOMAIN or function.attrs:
        return
    arguments = bodies.arguments(function)
    if not arguments or not all(arguments):
        return
    for tensor, given in zip(function.inputs, arguments, strict=True):
        tensor.dtype, tensor.shape = _shared_dtype(given), _shared_shape(given)
    found = _inferred(main, function)
    for tensor in _variables(function):
        info = found.get(tensor.name)
        if tensor.dtype is None and info is not None and info.elem_type != _UNKNOWN:
            tensor.dtype = ir.DataType(info.elem_type).numpy()
            if info.HasField("shape"):
                tensor.shape = [_dim(dim) for dim in info.shape.dim]


def forget_types(function: gs.Function) -> None:
    """Take the types away again."""
    if function.domain == DOMAIN or function.attrs:
        return
    for tensor in _variables(function):
        tensor.dtype = tensor.shape = None


def _variables(function: gs.Function) -> list[gs.Variable]:
    tensors = [*function.inputs, *(t for node in function.nodes for t in node.outputs)]
    return [t for t in tensors if isinstance(t, gs.Variable) and t.type == "tensor_type"]


def _shared_dtype(tensors: Sequence[gs.Tensor]) -> np.dtype | None:
    found = {dtype_of(tensor) for tensor in tensors}
    return found.pop() if len(found) == 1 else None


def _shared_shape(tensors: Sequence[gs.Tensor]) -> list[Dim] | None:
    """Return the dims of all calls; the dims ``batch`` and ``texts`` of two are ``batch|texts``."""
    shapes = [shape_of(tensor) for tensor in tensors]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or len({len(shape) for shape in known}) > 1:
        return None
    return [_name(dims) for dims in zip(*known, strict=True)]


def _name(dims: tuple[Dim, ...]) -> Dim:
    if None in dims:
        return None
    return dims[0] if len(set(dims)) == 1 else "|".join(str(dim) for dim in dims)


def _inferred(main: gs.Graph, function: gs.Function) -> dict[str, onnx.TypeProto.Tensor]:
    """Return what ONNX's inference finds for the tensors of a body."""
    called = [one for one in called_functions(function, main.functions) if one is not function]
    body, *protos = (ir.to_proto(Exporter(one).function(one)) for one in (function, *called))
    inputs = [
        onnx.helper.make_tensor_value_info(
            tensor.name,
            _UNKNOWN if tensor.dtype is None else ir.DataType.from_numpy(np.dtype(tensor.dtype)),
            tensor.shape,
        )
        for tensor in function.inputs
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in body.output]
    graph = onnx.helper.make_graph(body.node, "body", inputs, outputs)
    opsets = {one.domain: one for proto in (body, *protos) for one in proto.opset_import}
    model = onnx.helper.make_model(
        graph, functions=protos, opset_imports=list(opsets.values()), ir_version=main.ir_version
    )
    result = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    infos = (*result.value_info, *result.output)
    return {info.name: info.type.tensor_type for info in infos if info.type.HasField("tensor_type")}


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return dim.dim_param or None
