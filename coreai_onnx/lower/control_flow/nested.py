"""Builds graphs inside nodes: branches and loop bodies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir
import sympy
import torch
from torch import fx

from coreai_onnx.export.compat.torch_names import pytree
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Value, complex_like, ir_dtype, real_part, set_dims
from coreai_onnx.lower.walk.walker import Walker

# Python's numbers have 64 bits, and torch computes symbolic ones in the same way.
_SCALARS = {
    torch.SymInt: ir.DataType.INT64,
    int: ir.DataType.INT64,
    torch.SymFloat: ir.DataType.DOUBLE,
    float: ir.DataType.DOUBLE,
    torch.SymBool: ir.DataType.BOOL,
    bool: ir.DataType.BOOL,
}


class MadeInside:
    """Marks an argument that becomes an input of the nested graph."""


MADE_INSIDE = MadeInside()


class NestedGraph:
    """A graph attribute of a node that is appended later.

    Args:
        walker: The walker of the enclosing graph, whose values are visible inside.
        name: The name of the graph attribute, such as ``body``.
    """

    def __init__(self, walker: Walker, name: str) -> None:
        """Start with an empty graph."""
        self.walker = walker
        outer = walker.op.scope
        self.graph = ir.Graph([], [], nodes=[], name=name)
        self.op: OpBuilder = walker.op.inside(outer.nested(self.graph))

    def add_input(self, name: str, dtype: ir.DataType, dims: Sequence[Any]) -> Value:
        """Append an input of this graph."""
        value = ir.Value(name=self.op.scope.names.unique(name), type=ir.TensorType(dtype))
        return self._append_input(set_dims(value, dims))

    def _append_input(self, value: Value) -> Value:
        self.graph.inputs.append(value)
        self.op.scope.dims.bind_axes(value, value.meta["dims"])
        return value

    def add_output(self, x: Any, example: Any) -> Value:
        """Append an output: a value produced in this graph, with the dtype of torch's result."""
        dtype = ir_dtype(real_part(example.dtype)) if hasattr(example, "dtype") else None
        value = as_value(self.op, x, example)
        if dtype is not None:
            value = self.op.cast(value, dtype)
        producer = value.producer()
        # ONNX allows as output of a graph only what a node in it produces, and each value once.
        if producer is None or producer.graph is not self.graph or value in self.graph.outputs:
            value = self.op.copy(value)
        self.graph.outputs.append(value)
        return value

    def walk(self, submodule: fx.GraphModule, arguments: Sequence[Any]) -> list[Any]:
        """Lower a graph of the exported program to this one.

        Args:
            submodule: The graph; its placeholders are bound to the arguments in order.
            arguments: Values and numbers of the enclosing graph, or ``MADE_INSIDE`` for those
                that become inputs of this graph.

        Returns:
            The results, one per leaf of the output.
        """
        return walk_graph(self.walker, self.op, submodule, arguments, self)

    def input_like(self, node: fx.Node) -> Any:
        """Append an input for a placeholder; a symbolic number is bound to a scalar input."""
        context, example = self.walker.context, node.meta["val"]
        if isinstance(example, torch.Tensor):
            name = self.op.scope.names.unique(node.name)
            return self._append_input(context.value_like(name, example))
        symbol = context.expression(example)
        value = self.add_input(node.name, _SCALARS[type(example)], ())
        if isinstance(symbol, sympy.Symbol):
            self.op.scope.dims.bind_scalar(symbol, value)
            return symbol
        return value


def walk_graph(
    walker: Walker,
    op: OpBuilder,
    submodule: fx.GraphModule,
    arguments: Sequence[Any],
    nested: NestedGraph | None = None,
) -> list[Any]:
    """Lower a graph of the exported program with a builder, with unique names."""
    placeholders = [n for n in submodule.graph.nodes if n.op == "placeholder"]
    where = op.scope.where
    with own_symbols(walker, op, submodule, arguments):
        inputs = [
            nested.input_like(node) if nested is not None and argument is MADE_INSIDE else argument
            for node, argument in zip(placeholders, arguments, strict=True)
        ]
        inside = walker.inside(op, submodule)
        results = inside.walk(submodule.graph, inputs)
    # The values of a graph that is inlined belong to the graph around it.
    if nested is not None:
        walker.context.nested.append((submodule, nested.graph, inside.values))
    # The walk leaves the location of its last node.
    op.scope.where = where
    return list(results) if isinstance(results, list | tuple) else [results]


@contextmanager
def own_symbols(
    walker: Walker, op: OpBuilder, submodule: fx.GraphModule, arguments: Sequence[Any]
) -> Iterator[None]:
    """Bind the symbols of a graph during one walk.

    A symbol of a placeholder is bound to the argument's number or size. A symbol that is unknown
    outside is local to the graph; its name is made unique, since a graph may be walked twice.
    """
    context, saved = walker.context, dict(walker.context.symbols)
    bindings: dict[Any, Any] = {}
    placeholders = (n for n in submodule.graph.nodes if n.op == "placeholder")
    for node, argument in zip(placeholders, arguments, strict=True):
        if argument is not MADE_INSIDE:
            bindings.update(_equal(node.meta.get("val"), argument))
    for symbol in _symbols_of(submodule.graph):
        outer = context.symbols.get(symbol, symbol)
        if symbol in bindings:
            if bindings[symbol] != outer:
                context.symbols[symbol] = sympy.sympify(bindings[symbol])
        elif isinstance(outer, sympy.Symbol) and not op.scope.dims.knows(outer):
            context.symbols[symbol] = _own_symbol(op, symbol)
    try:
        yield
    finally:
        context.symbols.clear()
        context.symbols.update(saved)


def _own_symbol(op: OpBuilder, symbol: sympy.Symbol) -> sympy.Symbol:
    """Return a symbol for one walk, with a name other than the original, which walks look up."""
    names = op.scope.names.dims
    name = names.unique(str(symbol))
    if name == str(symbol):
        name = names.unique(name)
    return sympy.Symbol(name, **symbol.assumptions0)


def as_value(op: OpBuilder, x: Any, example: Any) -> Value:
    """Return a result as a value; numbers become 0-d int64, float64 or bool values."""
    if isinstance(x, ir.Value):
        return x
    if isinstance(x, sympy.Basic):
        return op.dim(x)
    dtype = example.dtype if isinstance(example, torch.Tensor) else _SCALARS[type(x)]
    return op.const(x, dtype)


def predicate(op: OpBuilder, x: Any) -> Value:
    """Return a condition as a 0-d boolean value."""
    value = op.cast(as_value(op, x, None), ir.DataType.BOOL)
    # torch accepts one element of any rank; Loop takes a scalar.
    return value if value.meta.get("dims") == () else op.reshape(value, [])


def results_of(walker: Walker, node: fx.Node, outputs: Sequence[Value]) -> list[Any]:
    """Return the outputs of a node as results of the program; numbers become symbols."""
    examples = node.meta["val"]
    values: list[Any] = []
    for example, value in zip(examples, outputs, strict=True):
        if isinstance(example, torch.Tensor):
            values.append(value)
            continue
        expression = walker.context.expression(example)
        set_dims(value, ())
        if isinstance(expression, sympy.Symbol):
            walker.op.scope.dims.bind_scalar(expression, value)
        values.append(expression)
    return values


def append(
    op: OpBuilder,
    op_type: str,
    inputs: Sequence[Value | None],
    outputs: Sequence[Value],
    **attributes: Any,
) -> list[Value]:
    """Append a node with graph attributes; its outputs have the dtypes of a graph's outputs."""
    node = op.scope.append(op_type, inputs, attributes, len(outputs))
    for output, inner in zip(node.outputs, outputs, strict=True):
        if inner.dtype is not None:
            output.dtype = inner.dtype
        complex_like(output, inner)
    return list(node.outputs)


def examples_of(node: fx.Node) -> list[Any]:
    """Return the fake results of a call."""
    value = node.meta["val"]
    return list(value) if isinstance(value, list | tuple) else [value]


def _equal(example: Any, argument: Any) -> dict[Any, Any]:
    """Return the values of the symbols of a placeholder, given its argument."""
    if isinstance(example, torch.SymInt | torch.SymFloat | torch.SymBool):
        number = argument if isinstance(argument, sympy.Basic | int | float) else None
        return {example.node.expr: number} if number is not None and _is_symbol(example) else {}
    dims = argument.meta.get("dims") if isinstance(argument, ir.Value) else None
    if not isinstance(example, torch.Tensor) or dims is None:
        return {}
    # The value of a complex tensor has one more axis.
    sizes: Any = zip(example.shape, dims, strict=False)
    return {s.node.expr: d for s, d in sizes if _is_symbol(s)}


def _is_symbol(x: Any) -> bool:
    return hasattr(x, "node") and isinstance(x.node.expr, sympy.Symbol)


def _symbols_of(graph: fx.Graph) -> list[sympy.Symbol]:
    """Return the symbols in the sizes and numbers of a graph, in order of their appearance."""
    ordered: dict[sympy.Symbol, None] = {}
    for node in graph.nodes:
        for value in pytree.tree_leaves(node.meta.get("val")):
            parts = value.shape if isinstance(value, torch.Tensor) else (value,)
            for part in parts:
                if isinstance(part, torch.SymInt | torch.SymFloat | torch.SymBool):
                    # A set has no fixed order, and the names in a file must be reproducible.
                    symbols = sorted(part.node.expr.free_symbols, key=str)
                    ordered.update(dict.fromkeys(symbols))
    return list(ordered)
