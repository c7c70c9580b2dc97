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
_SIZES = ("Shape", "Size")  # they read no element


@dataclass(frozen=True)
class Gap:
    """A node that a provider leaves to the CPU.

    Attributes:
        node: The node.
        reason: Why: the provider lacks its op, its opset or its dtype.
        declared: Whether it is on the CPU on purpose; see `declared`.
    """

    node: ir.Node
    reason: str
    declared: bool = False


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
        and not kernel_fault(
            node, imported_version(node.domain, root.opset_imports) or 1, {}, table
        )
        for root in roots(model)
        for node in root.all_nodes()
    )


def _gaps(graph: ir.Graph, types: Types, table: Table) -> Iterator[Gap]:
    on_purpose = declared(graph, types)
    for node in graph.all_nodes():
        version = imported_version(node.domain, graph.opset_imports) or 1
        fault = kernel_fault(node, version, types, table)
        if fault:
            yield Gap(node, fault, declared=node in on_purpose)


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
        # 999 stands for all later opsets in the tables.
        spans = [f"{a} and later" if b == 999 else f"{a} to {b}" for a, b, _ in entries]
        return f"no kernel for opset {opset}, only for {', '.join(spans)}"
    for variable, dtype in _dtypes(node, opset, types):
        names = kinds.get(variable, "").split()
        if names and dtype.name.lower() not in names and _WORDS.get(dtype) not in names:
            return f"no kernel for {dtype.name.lower()} ({variable}), only for {', '.join(names)}"
    return ""


_WORDS = {ir.DataType.FLOAT8E4M3FN: "float8e4m3fn"}


def dtype_of(value: ir.Value | None, types: Types) -> ir.DataType | None:
    """Return the dtype of a value, as far as it is known; None also for sequences."""
    if value is None:
        return None
    dtype = value.dtype
    if dtype is None and (type_proto := types.get(value)) is not None:
        dtype = ir.DataType(type_proto.tensor_type.elem_type)
    return None if dtype == ir.DataType.UNDEFINED else dtype


def _dtypes(node: ir.Node, opset: int, types: Types) -> Iterator[tuple[str, ir.DataType]]:
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


def declared(graph: ir.Graph, types: Types) -> set[ir.Node]:
    """Return the nodes that may stay on the CPU on purpose, where inputs and sizes are.

    These are the nodes that compute scalars and vectors of integers and booleans from sizes,
    constants and integer inputs alone, and the Casts of such vectors and of integer inputs. What
    depends on a floating-point number, and a matrix that is not an input, is data of the model.

    Args:
        graph: A graph whose nodes are sorted; those of its subgraphs count too.
        types: The types of values, where values have none.
    """
    inputs = {value for value in graph.inputs if _is_integer(value, types)}
    on_host, tensors = set(inputs), set()
    for node in graph.all_nodes():
        operands = [value for value in node.inputs if value is not None]
        small = all(_is_integer(v, types) and _rank(v, types) in (0, 1) for v in node.outputs)
        from_host = node.op_type in _SIZES or all(
            value in on_host or value.is_initializer() or _is_constant(value) for value in operands
        )
        if not from_host or _has_subgraphs(node):
            continue
        cast = node.op_type == "Cast" and _is_integer(operands[0], types)
        if small or (cast and (operands[0] in inputs or _rank(operands[0], types) in (0, 1))):
            tensors.add(node)
        # A matrix may be computed on the CPU only if it is not declared, and its results likewise.
        if small:
            on_host.update(node.outputs)
    return tensors


def _is_integer(value: ir.Value, types: Types) -> bool:
    dtype = dtype_of(value, types)
    return dtype is not None and (dtype.is_integer() or dtype == ir.DataType.BOOL)


def _is_constant(value: ir.Value) -> bool:
    producer = value.producer()
    return producer is not None and producer.op_type in _FREE


def _has_subgraphs(node: ir.Node) -> bool:
    kinds = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    return any(attribute.type in kinds for attribute in node.attributes.values())


def _rank(value: ir.Value, types: Types) -> int | None:
    shape = _shape(value, types)
    return None if shape is None else len(shape)


def _shape(value: ir.Value, types: Types) -> tuple[object, ...] | None:
    if value.shape is not None:
        return tuple(map(str, value.shape))
    type_proto = types.get(value)
    if type_proto is None or not type_proto.tensor_type.HasField("shape"):
        return None
    return tuple(str(d.dim_param or d.dim_value) for d in type_proto.tensor_type.shape.dim)
