"""Replaces what is known before the model runs by constants: nodes and shapes."""

from __future__ import annotations

import numpy as np

from coreai_onnx.model.inventory import STANDARD_DOMAIN
from coreai_onnx.model.standard.op_schemas import RANDOM_OPS
from coreai_onnx.model.standard_composites import KERNEL_FILES
from coreai_onnx.passes.analysis.evaluate import CannotEvaluateError, can_evaluate, evaluate
from coreai_onnx.passes.analysis.shape_values import ShapeValueAnalysis
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.bodies import model_bodies
from coreai_onnx.passes.engine.constants import nbytes
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.graphs import attribute_graphs, context_of
from coreai_onnx.passes.engine.match import VIEWS, dtype_of, is_standard
from coreai_onnx.passes.engine.why import Why

LIMIT = 128 << 10
"""Maximum size of inputs and result in bytes. Larger tensors are weights and keep their names."""
GROWTH_LIMIT = 16 << 10
"""Maximum size in bytes of a result larger than its inputs, since it makes the file larger."""
DATA_LIMIT = 256
"""Size in bytes from which an input in 8 or 16 bits is data, which is not stored in more bits."""


@rewrites()
def fold_constants(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Standard op on constants → its result, if it is exact and small.

    Mul(2, 3) → a, Add(x, a) → y     becomes     a = 6, Add(x, a) → y

    Weights above the size limit are never read. Data in 8 or 16 bits is not stored in more bits,
    data with other readers is not stored again in another shape. QuantizeLinear, DequantizeLinear
    and ops outside the standard domain are not folded.
    """
    if not is_standard(node, node.op) or not can_evaluate(node.op) or not _is_constant(node):
        return False
    if any(edit.is_output(tensor) for tensor in node.outputs):
        return _fold_output(edit, node, why)
    results = _results(node, why)
    if results is None:
        return False
    for tensor, values in zip(node.outputs, results, strict=True):
        if not tensor.is_empty():
            edit.fix(tensor, values)
    edit.remove(node)
    return True


def _is_constant(node: gs.Node) -> bool:
    """Whether all inputs are constant. False for nodes without inputs, which may be random."""
    return bool(node.inputs) and all(
        isinstance(tensor, gs.Constant) or tensor.is_empty() for tensor in node.inputs
    )


def _results(node: gs.Node, why: Why) -> list[np.ndarray] | None:
    constants = [tensor for tensor in node.inputs if isinstance(tensor, gs.Constant)]
    read = sum(nbytes(constant) for constant in constants)
    # Shape and Size depend on no value, and do not load a weight from its file.
    if read > LIMIT and node.op not in ("Shape", "Size"):
        why("an input is bigger than the limit", node)
        return None
    arrays = [np.asarray(t.values) if isinstance(t, gs.Constant) else None for t in node.inputs]
    try:
        results = evaluate(node, arrays, limit=LIMIT)
    except CannotEvaluateError as error:
        why(str(error), node)
        return None
    written = sum(result.nbytes for result in results)
    if written > LIMIT or written > max(read, GROWTH_LIMIT):
        why("the result is bigger than the limit", node)
        return None
    # Dequantizing a weight when the file is written would undo its quantization.
    if written > read and any(map(_is_compact, constants)):
        why("the result stores data in more bits", node)
        return None
    if written > GROWTH_LIMIT and node.op in VIEWS and len(node.inputs[0].outputs) > 1:
        why("something else reads the data", node)
        return None
    # numpy makes a contiguous scalar a vector of one element; the reshape restores the scalar.
    return [np.ascontiguousarray(result).reshape(result.shape) for result in results]


def _is_compact(constant: gs.Constant) -> bool:
    """Whether a constant is data in 8 or 16 bits, such as quantized weights and their scales."""
    dtype = np.dtype(constant.dtype)
    narrow = dtype.itemsize <= 2 and dtype.kind not in "bO"  # a mask may be booleans
    return narrow and nbytes(constant) >= DATA_LIMIT


def _fold_output(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Produce a graph output by an Identity of the result: outputs are never constants."""
    if len(node.outputs) != 1:
        return why("several results, one of them a graph output", node)
    results = _results(node, why)
    if results is None:
        return False
    output = node.outputs[0]
    constant = edit.constant(f"{output.name}_value", results[0])
    constant.maker = node.origin
    edit.become(node, "Identity", [constant])
    return True


@rewrites()
def inline_constant_calls(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Composite with a kernel on tensors that depend on constants only → its body.

    layer_norm(table, scale, bias) → y     becomes     LayerNormalization(table, scale, bias) → y

    onnxruntime computes standard ops on constants when it opens a file, but no custom ops, nor what
    follows them: DeBERTa's table of relative positions would be normalized and projected in each
    run. It inlines calls without a kernel itself.
    """
    constant = edit.once(set[int])
    # False for nodes without inputs, which may be random.
    if not node.inputs or not all(
        isinstance(tensor, gs.Constant) or tensor.is_empty() or id(tensor) in constant
        for tensor in node.inputs
    ):
        return False
    if is_standard(node, node.op):
        if node.op not in RANDOM_OPS and not any(attribute_graphs(node)):
            constant.update(map(id, node.outputs))
        return False
    if not _has_kernel(node) or not _inline(edit, node, why):
        return False
    constant.update(map(id, node.outputs))
    return True


@rewrites()
def inline_calls_without_kernels(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Composite without a kernel → its body, in which passes put sums into one order.

    linalg_vector_norm(x, ord = 2, axes = [-1]) → y     becomes     ReduceL2(x, [-1]) → y

    In a body, the attributes of a call, such as axes, are not known; here they are constants.
    onnxruntime inlines such calls itself.
    """
    return not is_standard(node, node.op) and not _has_kernel(node) and _inline(edit, node, why)


def _has_kernel(node: gs.Node) -> bool:
    return node.domain == STANDARD_DOMAIN and node.op.partition(".")[0] in KERNEL_FILES


_NUMBERS = {
    "value_int": np.int64,
    "value_ints": np.int64,
    "value_float": np.float32,
    "value_floats": np.float32,
}
"""Attributes by which the body of a composite reads its own."""


def _inline(edit: Edit, call: gs.Node, why: Why) -> bool:
    """Replace a call by copies of the nodes of its body, if it has one without subgraphs."""
    bodies = model_bodies(edit.graph)
    body = None if bodies is None else bodies.function(call)
    if body is None:
        return False
    computed = {id(tensor) for inner in body.nodes for tensor in inner.outputs}
    if any(any(attribute_graphs(inner)) for inner in body.nodes):
        return why("the body has subgraphs", call)
    if any(id(tensor) not in computed for tensor in body.outputs):
        return why("the body returns an input or a constant", call)
    names = context_of(edit.graph).names
    inputs = [*call.inputs, *(gs.Variable.empty() for _ in body.inputs[len(call.inputs) :])]
    copies: dict[gs.Tensor, gs.Tensor] = dict(zip(body.inputs, inputs, strict=True))
    passed = zip(body.outputs, call.outputs, strict=False)
    results = {declared: tensor for declared, tensor in passed if not tensor.is_empty()}
    attributes = {**body.attrs, **call.attrs}

    def copied(tensor: gs.Tensor) -> gs.Tensor:
        if isinstance(tensor, gs.Constant):
            return edit.constant(tensor.name, tensor.values)
        return gs.Variable.empty() if tensor.is_empty() else copies[tensor]

    for inner in body.nodes:
        attrs = {
            name: attributes.get(value.name) if isinstance(value, gs.Node.AttributeRef) else value
            for name, value in inner.attrs.items()
        }
        kind, number = next(iter(attrs.items()), ("", None))
        is_number = inner.op == "Constant" and kind in _NUMBERS and number is not None
        if is_number and inner.outputs[0] not in results:
            array = np.array(number, _NUMBERS[kind])
            copies[inner.outputs[0]] = edit.constant(inner.outputs[0].name, array)
            continue
        outputs = [results.get(t) or gs.Variable(names.claim(t.name)) for t in inner.outputs]
        edit.node(
            inner.op,
            call,
            [copied(tensor) for tensor in inner.inputs],
            outputs=outputs,
            domain=inner.domain,
            **{name: value for name, value in attrs.items() if value is not None},
        )
        copies |= dict(zip(inner.outputs, outputs, strict=True))
    edit.remove(call)
    return True


_SOURCES = ("Shape", "Size")
_DERIVED = (
    "Gather", "Slice", "Concat", "Squeeze", "Unsqueeze", "Reshape", "Cast",
    "Add", "Sub", "Mul", "Div",
)  # fmt: skip


@rewrites(*_SOURCES, *_DERIVED)
def fold_shapes(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Shape arithmetic whose result is known → constant.

    x:[batch, 128, 64] ─Shape→ ─Gather(1)→ n     becomes     n = 128
    """
    analysis = edit.once(ShapeValueAnalysis)
    if len(node.outputs) != 1:
        return False
    dims = analysis.of(node.outputs[0])
    # A shape with a named dim cannot be a constant, but its readers may pick known dims from it.
    if dims is None or not dims.is_known():
        return node.op in _SOURCES and why("the shape is not known in full", node)
    if edit.is_output(node.outputs[0]):
        return why("a graph output keeps its node", node)
    edit.fix(node.outputs[0], dims.array(_dtype(node)))
    edit.remove(node)
    return True


def _dtype(node: gs.Node) -> np.dtype:
    """Return the dtype of a shape value: int64, or int32 after a cast."""
    while not is_standard(node, *_SOURCES):
        if is_standard(node, "Cast"):
            # The analysis follows casts to INT32 (6) and INT64 (7) only.
            return np.dtype(np.int32 if node.attrs["to"] == 6 else np.int64)
        first = node.inputs[0]
        if isinstance(first, gs.Constant) or not first.inputs:
            return dtype_of(first) or np.dtype(np.int64)
        node = first.inputs[0]
    return np.dtype(np.int64)
