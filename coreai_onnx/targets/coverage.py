"""Which nodes of a model an execution provider has kernels for, and why not for the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from coreai_onnx.model.inventory import op_name, roots
from coreai_onnx.model.standard.model_types import ModelTypes
from coreai_onnx.model.standard.op_schemas import (
    ONNX_DOMAINS,
    imported_version,
    plain_domain,
    types_of,
)
from coreai_onnx.targets import cuda_kernels, webgpu_kernels
from coreai_onnx.targets.providers import CUDA, WEBGPU

Table = Mapping[str, tuple[tuple[int, int, dict[str, str]], ...]]
TABLES: Mapping[str, Table] = {
    CUDA: cuda_kernels.CUDA_KERNELS,
    WEBGPU: webgpu_kernels.WEBGPU_KERNELS,
}
"""By provider, the dtypes of each operator with a kernel, per range of opsets and type variable."""
SOURCES: Mapping[str, str] = {
    provider: str(module.__doc__).partition("from ")[2].partition(";")[0]
    for provider, module in ((CUDA, cuda_kernels), (WEBGPU, webgpu_kernels))
}
"""By provider, the release that its table is from, ``onnxruntime 1.27.0``."""
Types = Mapping[ir.Value, onnx.TypeProto]

_FREE = ("Constant",)  # onnxruntime turns it into an initializer
_INTEGERS = frozenset({ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL})
_BROADCASTS = frozenset(
    """Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Max Min Mod Mul Or Pow Sub Where
    Xor""".split()
)


@dataclass(frozen=True)
class Gap:
    """A node that a provider leaves to the CPU.

    Attributes:
        node: The node.
        reason: Why: the provider lacks its op, its opset or its dtype.
        sizes: Whether the node computes sizes, which onnxruntime keeps on the CPU on purpose.
    """

    node: ir.Node
    reason: str
    sizes: bool = False


def gaps(model: ir.Model, provider: str) -> list[Gap]:
    """Return the nodes that a provider leaves to the CPU, in order.

    Args:
        model: A model without functions; other calls count as operators without kernels.
        provider: A key of `TABLES`.
    """
    types = ModelTypes(lambda _: None, model.ir_version, bodies=True).of_graph(model.graph)
    return list(_gaps(model.graph, types, TABLES[provider]))


def has_kernels(model: ir.Model, provider: str) -> bool:
    """Return whether a provider may have kernels for a node; False if it has no table.

    Args:
        model: A model, of whose functions and dtypes those that are declared count.
        provider: The provider.
    """
    table = TABLES.get(provider)
    return table is not None and any(
        node.op_type not in _FREE
        and not kernel_fault(node, imported_version(node.domain, root.opset_imports) or 1, {}, table)
        for root in roots(model)
        for node in root.all_nodes()
    )


def _gaps(graph: ir.Graph, types: Types, table: Table) -> Iterator[Gap]:
    for node in graph.all_nodes():
        version = imported_version(node.domain, graph.opset_imports) or 1
        fault = kernel_fault(node, version, types, table)
        if fault:
            yield Gap(node, fault, sizes=computes_sizes(node, types))


def kernel_fault(node: ir.Node, opset: int, types: Types, table: Table) -> str:
    """Return why a provider has no kernel for a node; empty if it has one.

    Args:
        node: The node.
        opset: The version of its domain.
        types: The types of values.
        table: The kernels of the provider.
    """
    if node.op_type in _FREE and node.domain in ONNX_DOMAINS:
        return ""
    entries = table.get(op_name(plain_domain(node.domain), node.op_type), ())
    if not entries:
        return "no kernel for the operator"
    kinds = next((kinds for first, last, kinds in entries if first <= opset <= last), None)
    if kinds is None:
        spans = [f"{a} and later" if b == 999 else f"{a} to {b}" for a, b, _ in entries]
        return f"no kernel for opset {opset}, only for {', '.join(spans)}"
    for variable, dtype in _dtypes(node, opset, types):
        known = kinds.get(variable, "").split()
        if known and dtype.name.lower() not in known and _WORDS.get(dtype) not in known:
            return f"no kernel for {dtype.name.lower()} ({variable}), only for {', '.join(known)}"
    return ""


_WORDS = {ir.DataType.FLOAT8E4M3FN: "float8e4m3fn"}


def dtype_of(value: ir.Value | None, types: Types) -> ir.DataType | None:
    """Return the dtype of a value, as far as it is known."""
    if value is None:
        return None
    if value.dtype is not None:
        return value.dtype
    known = types.get(value)
    return ir.DataType(known.tensor_type.elem_type) if known is not None else None


def _dtypes(
    node: ir.Node, opset: int, types: Types
) -> Iterator[tuple[str, ir.DataType]]:
    """Yield the type variables of a node with their dtypes."""
    if node.domain not in ONNX_DOMAINS:
        # Schemas of contrib operators are not in onnx: T is the dtype of their first input.
        dtype = dtype_of(node.inputs[0] if node.inputs else None, types)
        if dtype is not None:
            yield "T", dtype
        return
    declared = types_of(node.op_type, opset)
    for index, value in enumerate(node.inputs):
        variable, dtype = declared.input_type(index), dtype_of(value, types)
        if variable is not None and dtype is not None:
            yield variable, dtype
    for variable, value in zip(declared.outputs, node.outputs, strict=False):
        dtype = dtype_of(value, types)
        if dtype is not None:
            yield variable, dtype


def computes_sizes(node: ir.Node, types: Types) -> bool:
    """Return whether a node computes sizes or positions: int64, without growing into a matrix.

    Views and conversions of such integers count as well, and so does what they are compared with.
    """
    dtypes = [dtype_of(value, types) for value in (*node.inputs, *node.outputs) if value]
    # Where positions become floats, what they become is computed by the provider.
    if node.op_type == "Cast" and dtypes[0] == ir.DataType.INT64:
        return True
    if not dtypes or ir.DataType.INT64 not in dtypes or not set(dtypes) <= _INTEGERS:
        return False
    shapes = [_shape(value, types) for value in (*node.inputs, *node.outputs) if value]
    result = shapes[-1]
    operands = shapes[: -len(node.outputs)]
    return result is not None and (
        len(result) < 2 or result in operands or node.op_type not in _BROADCASTS
    )


def _shape(value: ir.Value, types: Types) -> tuple[object, ...] | None:
    if value.shape is not None:
        return tuple(map(str, value.shape))
    known = types.get(value)
    if known is None or not known.tensor_type.HasField("shape"):
        return None
    return tuple(str(d.dim_param or d.dim_value) for d in known.tensor_type.shape.dim)
