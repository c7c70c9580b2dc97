"""Faults that are injected into converted models, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from coreai_onnx.model.metadata import read_states


@dataclass(frozen=True)
class Fault:
    """A change of one node.

    Attributes:
        kind: What is changed.
        node: Position of the node in the main graph.
        inject: Changes the node of a model.
    """

    kind: str
    node: int
    inject: Callable[[ir.Model, ir.Node], None]


_OTHER_OP = {
    "Add": ("other arithmetic", "Sub"),
    "Sub": ("other arithmetic", "Add"),
    "Mul": ("multiplication as division", "Div"),
    "Div": ("division as multiplication", "Mul"),
    "Gelu": ("other activation", "Relu"),
    "gelu": ("other activation", "Relu"),
    "FastGelu": ("other activation", "Relu"),
    "silu": ("other activation", "Relu"),
    "Tanh": ("other activation", "Sigmoid"),
    "Sigmoid": ("other activation", "Tanh"),
    "Relu": ("other activation", "Tanh"),
    "Erf": ("other activation", "Tanh"),
    "Sin": ("other function", "Cos"),
    "Cos": ("other function", "Sin"),
    "Softmax": ("other function", "LogSoftmax"),
    "ReduceMean": ("other reduction", "ReduceSum"),
    "ReduceSum": ("other reduction", "ReduceMean"),
    "ReduceMax": ("other reduction", "ReduceMin"),
    "Less": ("comparison off by one", "LessOrEqual"),
    "LessOrEqual": ("comparison off by one", "Less"),
    "Greater": ("comparison off by one", "GreaterOrEqual"),
    "GreaterOrEqual": ("comparison off by one", "Greater"),
    "And": ("other logic", "Or"),
}
_INDICES = {
    "Slice": (1, 2),
    "Range": (0,),
    "Trilu": (1,),
    "Gather": (1,),
    "Sub": (1,),
    "Add": (1,),
}
"""Inputs by position that are one too large if their integers are."""
_AXES = {"ReduceSum": 1, "ReduceMean": 1, "ReduceMax": 1, "CumSum": 1, "Unsqueeze": 1, "Slice": 3}
"""Inputs by position that are axes."""
_ACTIVATIONS = ("Gelu", "gelu", "FastGelu", "silu", "Tanh", "Sigmoid", "Relu", "Softmax", "Clip")
_SPLITS = ("Split", "LSTM", "GRU", "TopK", "skip_layer_norm", "skip_rms_norm")
_ATTENTIONS = ("scaled_dot_product_attention", "Attention", "MultiHeadAttention")
_ATTRIBUTES: dict[str, tuple[str, Callable[[float], float]]] = {
    "epsilon": ("epsilon", lambda x: x * 1e4 + 0.1),
    "eps": ("epsilon", lambda x: x * 1e4 + 0.1),
    "scale": ("scale", lambda x: x * 2),
    "alpha": ("alpha", lambda x: x + 0.5),
    "is_causal": ("causality", lambda x: 1 - x),
    "axis": ("axis", lambda x: -2 if x == -1 else -1),
    "upper": ("triangle", lambda x: 1 - x),
    "window_size": ("window off by one", lambda x: x + 1),
    "largest": ("smallest instead of largest", lambda x: 1 - x),
    "approximate": ("approximation", lambda x: x),
}


def faults(model: ir.Model) -> Iterator[Fault]:
    """Yield every fault that the nodes of the main graph can have."""
    states = {state.output: state.input for state in read_states(model.metadata_props)}
    for index, node in enumerate(model.graph):
        for value in node.outputs:
            if value.name in states:
                yield Fault("stale state", index, _stale(states[value.name]))
        yield from _of_op(node, index)
        yield from _of_attention(node, index)
        yield from _of_values(node, index)
        for name in node.attributes.keys() & _ATTRIBUTES.keys():
            kind, change = _ATTRIBUTES[name]
            yield Fault(kind, index, _attribute(name, change))
        yield from _of_constants(node, index)


def _of_op(node: ir.Node, index: int) -> Iterator[Fault]:
    kind, other = _OTHER_OP.get(node.op_type, ("", ""))
    if kind and node.domain in ("", "ai.coreai", "com.microsoft"):
        yield Fault(kind, index, _operator(other))
    if node.op_type in ("Sub", "Div", "MatMul", "Where"):
        yield Fault("swapped inputs", index, _swap)
    if node.op_type == "Transpose":
        yield Fault("permutation", index, _permute)
    if node.op_type in _ACTIVATIONS:
        yield Fault("dropped activation", index, _bypass)
    if node.op_type == "Concat" and not any(v is None or _is_whole(v) for v in node.inputs):
        yield Fault("reversed concatenation", index, _reverse)


def _of_attention(node: ir.Node, index: int) -> Iterator[Fault]:
    if node.op_type.partition(".")[0] in _ATTENTIONS:
        yield Fault("swapped query and key", index, _swap_first)
        if len(node.inputs) > 3 and node.inputs[3] is not None:
            yield Fault("dropped mask", index, lambda _, n: n.replace_input_with(3, None))


def _of_values(node: ir.Node, index: int) -> Iterator[Fault]:
    if node.op_type in _SPLITS:
        for first in range(len(_read(node)) - 1):
            yield Fault("swapped outputs", index, _swap_outputs(first))
    for place, value in enumerate(node.inputs):
        if value is not None and value.dtype == ir.DataType.FLOAT and not value.is_initializer():
            yield Fault("rounded input", index, _rounded(place, ir.DataType.FLOAT16))
            yield Fault("input rounded to bfloat16", index, _rounded(place, ir.DataType.BFLOAT16))
    if node.op_type in ("Add", "Mul") and node.inputs[0] is not None:
        yield Fault("dropped operand", index, _bypass)


def _of_constants(node: ir.Node, index: int) -> Iterator[Fault]:
    places = {**dict.fromkeys(_INDICES.get(node.op_type, ()), ("off by one", 1.0))}
    if node.op_type in _AXES:
        places[_AXES[node.op_type]] = "axis", -1.0
    for place, (kind, offset) in places.items():
        value = node.inputs[place] if place < len(node.inputs) else None
        if value is not None and value.is_initializer() and value.dtype == ir.DataType.INT64:
            yield Fault(kind, index, _constant(place, 1.0, offset))
    for place, value in enumerate(node.inputs):
        if value is None or not _is_number(value):
            continue
        yield Fault("scaled constant", index, _constant(place, 1.5, 0.0))
        yield Fault("shifted constant", index, _constant(place, 1.0, 0.5))
        yield Fault("zeroed constant", index, _constant(place, 0.0, 0.0))
        if value.shape is not None and len(value.shape) == 2:
            yield Fault("reversed rows of a weight", index, _constant(place, 1.0, 0.0, -1))
    if node.op_type in ("Gemm", "Conv") and len(node.inputs) == 3:
        yield Fault("dropped bias", index, lambda _, n: n.resize_inputs(2))


def _is_number(value: ir.Value) -> bool:
    tensor = value.const_value
    floats = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    return value.is_initializer() and tensor is not None and tensor.dtype in floats


def _operator(other: str) -> Callable[[ir.Model, ir.Node], None]:
    def inject(_: ir.Model, node: ir.Node) -> None:
        node.op_type, node.domain = other, ""
        if other in ("Relu", "Sin", "Cos"):
            node.attributes.clear()

    return inject


def _swap(_: ir.Model, node: ir.Node) -> None:
    first = len(node.inputs) - 2
    one, two = node.inputs[first], node.inputs[first + 1]
    node.replace_input_with(first, two)
    node.replace_input_with(first + 1, one)


def _swap_first(_: ir.Model, node: ir.Node) -> None:
    query, key = node.inputs[:2]
    node.replace_input_with(0, key)
    node.replace_input_with(1, query)


def _swap_outputs(position: int) -> Callable[[ir.Model, ir.Node], None]:
    """Return a change that exchanges two neighbors among the outputs that are read."""
    return lambda model, node: _swap_names(model, *_read(node)[position : position + 2])


def _read(node: ir.Node) -> list[ir.Value]:
    return [v for v in node.outputs if v.name and v.uses()]


def _swap_names(model: ir.Model, first: ir.Value, second: ir.Value) -> None:
    """Exchange the names of two outputs, as in ``NodeProto.output``."""
    uses = [list(first.uses()), list(second.uses())]
    for pairs, other in zip(uses, (second, first), strict=True):
        for user, place in pairs:
            user.replace_input_with(place, other)
    outputs = [{first: second, second: first}.get(v, v) for v in model.graph.outputs]
    model.graph.outputs.clear()
    model.graph.outputs.extend(outputs)
    first.name, second.name = second.name, first.name


def _stale(state: str) -> Callable[[ir.Model, ir.Node], None]:
    """Return a change that makes a new state the former one."""

    def inject(model: ir.Model, node: ir.Node) -> None:
        _bypass(model, node)
        former = next(value for value in model.graph.inputs if value.name == state)
        node.replace_input_with(0, former)

    return inject


def _rounded(place: int, dtype: ir.DataType) -> Callable[[ir.Model, ir.Node], None]:
    """Return a change that rounds an input to a dtype."""

    def inject(_: ir.Model, node: ir.Node) -> None:
        value = node.inputs[place]
        assert value is not None
        down = ir.node("Cast", [value], {"to": dtype}, name=f"{node.name}.down")
        up = ir.node("Cast", down.outputs, {"to": ir.DataType.FLOAT}, name=f"{node.name}.up")
        assert node.graph is not None
        node.graph.insert_before(node, [down, up])
        node.replace_input_with(place, up.outputs[0])

    return inject


def _bypass(_: ir.Model, node: ir.Node) -> None:
    node.op_type, node.domain = "Identity", ""
    node.attributes.clear()
    node.resize_inputs(1)


def _reverse(_: ir.Model, node: ir.Node) -> None:
    for place, value in enumerate(list(node.inputs)[::-1]):
        node.replace_input_with(place, value)


def _is_whole(value: ir.Value) -> bool:
    return value.dtype in (ir.DataType.INT64, ir.DataType.INT32)


def _permute(_: ir.Model, node: ir.Node) -> None:
    perm = list(node.attributes["perm"].as_ints())
    perm[-1], perm[-2] = perm[-2], perm[-1]
    node.attributes["perm"] = ir.AttrInt64s("perm", perm)


def _attribute(name: str, change: Callable[[float], float]) -> Callable[[ir.Model, ir.Node], None]:
    def inject(_: ir.Model, node: ir.Node) -> None:
        old = node.attributes[name]
        if old.type == ir.AttributeType.STRING:
            new = "tanh" if old.as_string() == "none" else "none"
            node.attributes[name] = ir.AttrString(name, new)
        elif old.type == ir.AttributeType.INT:
            node.attributes[name] = ir.AttrInt64(name, int(change(old.as_int())))
        else:
            node.attributes[name] = ir.AttrFloat32(name, change(old.as_float()))

    return inject


def _constant(
    place: int, factor: float, offset: float, step: int = 1
) -> Callable[[ir.Model, ir.Node], None]:
    """Return a change of one node's constant: other nodes keep the old one."""

    def inject(model: ir.Model, node: ir.Node) -> None:
        old = node.inputs[place]
        assert old is not None
        assert old.const_value is not None
        array = old.const_value.numpy()
        wide = array.astype(np.float64) * factor + offset
        if step < 0:
            wide = wide[::step]
        name = f"{old.name}.changed"
        tensor = ir.tensor(np.ascontiguousarray(wide.astype(array.dtype)), name=name)
        value = ir.Value(name=name, const_value=tensor, type=old.type, shape=old.shape)
        model.graph.register_initializer(value)
        node.replace_input_with(place, value)

    return inject
