"""Lowers higher-order ops that call an op with effect tokens, functionalized, or in a dtype."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import fx

from coreai_onnx.errors import LoweringError
from coreai_onnx.export.compat.torch_names import pytree
from coreai_onnx.lower.walk.registry import lowers_higher_order
from coreai_onnx.lower.walk.walker import Walker


@lowers_higher_order("with_effects")
def with_effects(walker: Walker, node: fx.Node) -> Any:
    """Lower ``with_effects(token, op, *args)``: the token, then the op's results.

    ONNX has no side effects: an op without results is omitted.
    """
    token, op, *args = node.args
    returns = len(op._schema.returns)  # type: ignore[union-attr]  # an op overload
    if returns == 0:
        return [walker.value_of(token), None]  # type: ignore[arg-type]  # a node
    _, *expected = node.meta["val"]
    result = _call(walker, op, args, node.kwargs, expected if returns > 1 else expected[0])
    results = result if returns > 1 else [result]
    return [walker.value_of(token), *results]  # type: ignore[arg-type]  # a node


@lowers_higher_order("auto_functionalized")
def auto_functionalized(walker: Walker, node: fx.Node) -> Any:
    """Lower ``auto_functionalized(op, **kwargs)``: results, then new values of mutated arguments.

    The lowering registered for the op must return both, since ONNX has no mutation.
    """
    (op,) = node.args
    silent = not op._schema.returns  # type: ignore[union-attr]  # an op overload
    expected = list(node.meta["val"])[1 if silent else 0 :]
    results = _call(walker, op, (), node.kwargs, expected)
    return [None, *results] if silent else results


@lowers_higher_order("auto_functionalized_v2")
def auto_functionalized_v2(walker: Walker, node: fx.Node) -> Any:
    """Lower ``auto_functionalized_v2``, which lists the tensors whose storage the op mutates.

    Raises:
        LoweringError: If the op mutates a view of a tensor.
    """
    (op,) = node.args
    kwargs: dict[str, Any] = dict(node.kwargs)
    bases: Any = kwargs.pop("_all_bases")
    positions: list[int] = []
    for parameter in op._schema.arguments:  # type: ignore[union-attr]  # an op overload
        name = parameter.name
        if f"_{name}_base_index" in kwargs:
            index = kwargs.pop(f"_{name}_base_index")
            kwargs[name] = None if index is None else bases[index]
            kwargs.pop(f"_{name}_alias", None)
            if index is not None:
                positions.append(index)
    # What remains describes a view of a base by its sizes, strides and offset.
    if any(k.startswith("_") for k in kwargs) or len(positions) != len(set(positions)):
        raise LoweringError(
            f"{op}: it mutates a view of a tensor",
            walker.op.scope.where,
            "give the op a tensor of its own: clone the view",
        )
    expected = list(node.meta["val"])
    count = len(op._schema.returns)  # type: ignore[union-attr]  # an op overload
    # An op without results has None in their place.
    first = max(count, 1)
    expected = expected[:count] + [expected[first + i] for i in positions]
    results = _call(walker, op, (), kwargs, expected)
    results = list(results) if isinstance(results, list | tuple) else [results]
    new = [walker.value_of(b) for b in bases]
    for position, value in zip(positions, results[count:], strict=True):
        new[position] = value
    return [*(results[:count] or [None]), *new]


@lowers_higher_order("out_dtype")
def out_dtype(walker: Walker, node: fx.Node) -> Any:
    """Lower ``out_dtype(op, dtype, *args)``: the op on arguments promoted to ``dtype``.

    Formula: torch's ``out_dtype_fallback``.
    """
    op, dtype, *args = node.args
    tensors = [a.meta["val"] for a in pytree.tree_leaves(args) if isinstance(a, fx.Node)]
    wide = dtype
    for tensor in tensors:
        wide = torch.promote_types(wide, tensor.dtype)  # type: ignore[arg-type]  # a dtype
    return _call(walker, op, args, {}, node.meta["val"].to(wide), wide=wide)


def _call(
    walker: Walker,
    op: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    expected: Any,
    *,
    wide: Any = None,
) -> Any:
    """Lower a call of an op as a separate graph whose placeholders represent the values.

    Args:
        walker: Provides the values.
        op: The op.
        args: Its positional arguments, which may be FX nodes of the walker's graph.
        kwargs: Its keyword arguments.
        expected: Fake results.
        wide: Dtype to which tensors are cast first.
    """
    # Another walk then treats the op as any other: registered lowerings, composites,
    # decompositions.
    graph = fx.Graph()
    arguments: dict[fx.Node, fx.Node] = {}
    values: list[Any] = []

    def stand_in(node: fx.Node) -> fx.Node:
        if node not in arguments:
            value: Any = walker.value_of(node)
            example: Any = node.meta.get("val")
            if wide is not None and isinstance(value, ir.Value):
                value, example = walker.op.cast(value, wide), example.to(wide)
            values.append(value)
            arguments[node] = graph.placeholder(node.name)
            arguments[node].meta["val"] = example
        return arguments[node]

    filled = fx.map_arg((tuple(args), dict(kwargs)), stand_in)
    call = graph.call_function(op, *filled)
    call.meta["val"] = expected
    graph.output(call)
    return walker.inside(walker.op, walker.modules).walk(graph, values)
