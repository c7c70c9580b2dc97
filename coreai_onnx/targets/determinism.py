"""Operators whose results for a row do not depend on other rows, on threads, or on their address.

The lists are those of `docs/determinism.md`, which says how they were measured.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import onnx_ir as ir

from coreai_onnx.model.inventory import STANDARD_DOMAIN, attribute_graphs, op_name
from coreai_onnx.model.metadata import DETERMINISM
from coreai_onnx.model.standard.op_schemas import ONNX_DOMAINS

KERNELS = frozenset(
    "add_bias add_low_rank all_gather all_reduce attention_nbits convolution gated_delta_update "
    "gather_mm gather_mm_nbits geglu group_norm kv_cache_update layer_norm linear_nbits "
    "paged_attention paged_attention_nbits rms_norm rope scaled_dot_product_attention "
    "scaled_dot_product_attention_bshd skip_layer_norm skip_rms_norm softmax swiglu".split()
)
"""Composites whose kernels sum each row in one order in a session with ``deterministic=True``."""
EXACT = frozenset(
    # what moves data, and computes sizes and conditions
    "And Cast CastLike Compress Concat Constant ConstantOfShape DepthToSpace Equal Expand EyeLike "
    "Flatten Gather GatherElements GatherND Greater GreaterOrEqual Identity If IsInf IsNaN Less "
    "LessOrEqual Loop NonZero Not OneHot Or Pad Range Reshape Scan ScatterElements ScatterND Shape "
    "Size Slice SpaceToDepth Split Squeeze Tile TopK Transpose Trilu Unsqueeze Where Xor "
    # what has one correct result
    "Abs Add ArgMax ArgMin Ceil Clip Div Floor Max MaxPool GlobalMaxPool Min Mod Mul Neg "
    "Reciprocal ReduceMax ReduceMin Relu Round Sign Sqrt Sub".split()
)
"""Operators with one correct result, which is that of onnxruntime on every processor."""
MEASURED = frozenset(
    "AveragePool BatchNormalization Conv ConvTranspose CumSum Erf Exp Gelu GlobalAveragePool "
    "HardSigmoid HardSwish InstanceNormalization LayerNormalization LeakyRelu Pow "
    "RMSNormalization Resize Sigmoid Softmax LogSoftmax Softsign Tanh".split()
)
"""Operators of onnxruntime in which no bit was found to differ, on x86 with AVX-512."""


def outside_ops(model: ir.Model) -> dict[str, int]:
    """Count the nodes of operators that are in none of the lists, by name in descending order.

    The bodies of composites that have a kernel are not run, and not counted.
    """
    counts = Counter(
        op_name("" if node.domain in ONNX_DOMAINS else node.domain, node.op_type)
        for node in _run_nodes(model)
        if not _is_fixed(node)
    )
    return dict(counts.most_common())


def measured_ops(model: ir.Model) -> dict[str, int]:
    """Count the nodes of operators that only measurements vouch for, by name."""
    nodes = (
        x
        for x in _run_nodes(model)
        if x.op_type in MEASURED and not _has_integers(x) and not _copies_nearest(x)
    )
    return dict(Counter(x.op_type for x in nodes))


def write_promise(model: ir.Model) -> None:
    """Write in the metadata of a model what it promises in a session with ``deterministic=True``.

    A model with operators of `outside_ops` promises nothing, one with operators of `MEASURED`
    nothing about processors with other instructions, one with products that sum over a dynamic
    dim, such as the tokens of a call, nothing about chunks and caches. The axis ``targets`` is
    AVX2, AVX-512, NEON and scalar.
    """
    model.metadata_props.pop(DETERMINISM, None)
    if outside_ops(model):
        return
    measured = sorted(measured_ops(model))
    axes = ["repeated", "threads", "batch"]
    if not any(map(_sums_over_dynamic_dim, _run_nodes(model))):
        axes += ["chunks", "cache"]
    promise = {"axes": axes if measured else [*axes, "targets"], "measured": measured}
    model.metadata_props[DETERMINISM] = json.dumps(promise)


def _copies_nearest(node: ir.Node) -> bool:
    """Whether a node copies elements, at places that are one division each (asymmetric)."""
    given = {name: attribute.value for name, attribute in node.attributes.items()}
    return (
        node.op_type == "Resize"
        and given.get("mode", "nearest") == "nearest"
        and given.get("coordinate_transformation_mode") == "asymmetric"
    )


def _sums_over_dynamic_dim(node: ir.Node) -> bool:
    if not (_is_kernel(node) and node.op_type.split(".")[0] == "gather_mm"):
        return False
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    return shape is None or not isinstance(shape[-1], int)


def _is_fixed(node: ir.Node) -> bool:
    if node.domain in ONNX_DOMAINS:
        return node.op_type in EXACT or node.op_type in MEASURED or _has_integers(node)
    return _is_kernel(node)


def _is_kernel(node: ir.Node) -> bool:
    return node.domain == STANDARD_DOMAIN and node.op_type.split(".")[0] in KERNELS


def _has_integers(node: ir.Node) -> bool:
    """Whether the first result is known to be integers or booleans, which have no rounding."""
    dtype = node.outputs[0].dtype
    return dtype is not None and not dtype.is_floating_point() and dtype != ir.DataType.STRING


def _run_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Yield the nodes that run: those of the graph, and of functions without a kernel."""
    waiting: list[ir.Graph | ir.Function] = [model.graph]
    seen: set[ir.OperatorIdentifier] = set()
    while waiting:
        for node in waiting.pop():
            function = model.functions.get(node.op_identifier())
            if function is None or _is_kernel(node):
                yield node
            elif node.op_identifier() not in seen:
                seen.add(node.op_identifier())
                waiting.append(function)
            waiting += [graph for a in node.attributes.values() for graph in attribute_graphs(a)]
