"""Types of the tensors in the bodies of externalized modules, while passes run on them.

A body declares no types, since it may be called with several. The types that all its calls pass
are known, and ONNX's own shape inference finds the rest, so that a layer in a function is
optimized like an inlined one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import onnx
import onnx_ir as ir

from coreai_onnx.model.inventory import STANDARD_DOMAIN
from coreai_onnx.model.standard.model_types import ModelTypes
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.bodies import Bodies
from coreai_onnx.passes.engine.exporter import Exporter
from coreai_onnx.passes.engine.match import Dim, dtype_of, shape_of

_UNKNOWN = onnx.TensorProto.UNDEFINED


class BodyTypes:
    """Assigns the tensors of bodies the types that follow from their calls.

    Inference of a function that is called inside bodies is shared by all bodies.
    """

    def __init__(self, main: gs.Graph, bodies: Bodies) -> None:
        """Start with nothing inferred.

        Args:
            main: The main graph.
            bodies: Its functions.
        """
        self._bodies = bodies
        self._types = ModelTypes(self._function, main.ir_version, data_propagation=True)
        self._exported: dict[int, tuple[gs.Function, ir.Function]] = {}

    def learn(self, function: gs.Function) -> None:
        """Assign types to the tensors of a body.

        The bodies of composites stay untyped, since they must hold for every possible call. So do
        functions with attributes.
        """
        if function.domain == STANDARD_DOMAIN or function.attrs:
            return
        arguments = self._bodies.arguments(function)
        # Nothing calls the function, or it has no inputs: there are no types to learn from.
        if not arguments or not all(arguments):
            return
        for tensor, passed in zip(function.inputs, arguments, strict=True):
            # Only what all calls agree on: the body runs for each of them.
            tensor.dtype, tensor.shape = _shared_dtype(passed), _shape(passed)
        body = Exporter(function).function(function)
        inferred = self._types.of_function(body, [_type(tensor) for tensor in function.inputs])
        types = {value.name: kind.tensor_type for value, kind in inferred.items()}
        for tensor in _variables(function):
            info = types.get(tensor.name)
            if tensor.dtype is None and info is not None and info.elem_type != _UNKNOWN:
                tensor.dtype = ir.DataType(info.elem_type).numpy()
                if info.HasField("shape"):
                    tensor.shape = [_dim(dim) for dim in info.shape.dim]

    def _function(self, node: ir.Node) -> ir.Function | None:
        """Return the function that a node calls, as it was when first requested."""
        called = self._bodies.find(node.domain, node.op_type)
        if called is None:
            return None
        if id(called) not in self._exported:  # it is kept, so that no other object gets its id
            self._exported[id(called)] = called, Exporter(called).function(called)
        return self._exported[id(called)][1]


def forget_types(function: gs.Function) -> None:
    """Remove the types again."""
    for tensor in _variables(function):
        tensor.dtype = tensor.shape = None


@contextmanager
def untyped(functions: Sequence[gs.Function]) -> Iterator[None]:
    """While active, functions are without the types, so that an exported model lacks them too."""
    types = [
        (tensor, tensor.dtype, tensor.shape)
        for function in functions
        for tensor in _variables(function)
    ]
    for tensor, _, _ in types:
        tensor.dtype = tensor.shape = None
    try:
        yield
    finally:
        for tensor, dtype, shape in types:
            tensor.dtype, tensor.shape = dtype, shape


def _variables(function: gs.Function) -> list[gs.Variable]:
    """Return the tensors that get types; empty for bodies of composites, which keep theirs."""
    if function.domain == STANDARD_DOMAIN or function.attrs:
        return []
    tensors = [*function.inputs, *(t for node in function.nodes for t in node.outputs)]
    return [t for t in tensors if isinstance(t, gs.Variable) and t.type == "tensor_type"]


def _shared_dtype(tensors: Sequence[gs.Tensor]) -> np.dtype | None:
    dtypes = {dtype_of(tensor) for tensor in tensors}
    return dtypes.pop() if len(dtypes) == 1 else None


def dims_by_axis(tensors: Sequence[gs.Tensor]) -> list[tuple[Dim, ...]] | None:
    """Return the dims of each axis of some tensors; None if there is not one known rank."""
    shapes = [shape_of(tensor) for tensor in tensors]
    ranked = [shape for shape in shapes if shape is not None]
    if not ranked or len(ranked) < len(shapes) or len({len(shape) for shape in ranked}) > 1:
        return None
    return list(zip(*ranked, strict=True))


def _shape(tensors: Sequence[gs.Tensor]) -> list[Dim] | None:
    """Return one shape for all calls; dims ``batch`` and ``texts`` become ``batch|texts``."""
    axes = dims_by_axis(tensors)
    return None if axes is None else [_name(dims) for dims in axes]


def _name(dims: tuple[Dim, ...]) -> Dim:
    if None in dims:
        return None
    # One name for equal lists of dims, so that a body sees which of its dims are equal at each
    # call.
    return dims[0] if len(set(dims)) == 1 else "|".join(str(dim) for dim in dims)


def _type(tensor: gs.Tensor) -> onnx.TypeProto | None:
    if tensor.dtype is None:
        return None
    element = ir.DataType.from_numpy(np.dtype(tensor.dtype))
    return onnx.helper.make_tensor_type_proto(int(element), tensor.shape)


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return dim.dim_param or None
