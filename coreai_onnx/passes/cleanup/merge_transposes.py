"""Merges consecutive transposes, also with elementwise ops between them."""

from __future__ import annotations

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, set_input
from coreai_onnx.passes.engine.match import attribute_of, is_standard, made_by, scalar_of
from coreai_onnx.passes.engine.why import Why

_UNARY = (
    "Abs", "Cast", "Ceil", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish",
    "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid",
    "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh",
)  # fmt: skip
_BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Equal", "Greater", "Less", "And", "Or")


def merge_transposes(graph: gs.Graph, why: Why) -> int:
    """Two Transposes, consecutive or around an elementwise op → one.

    x ─Transpose([0, 2, 1])→ ─Relu→ ─Mul(2)→ ─Transpose([0, 2, 1])→ y
    becomes     x ─Relu→ ─Mul(2)→ y
    """
    edit, count = Edit(graph), 0
    for node in graph.nodes:
        outer = _perm(node)
        if outer is None:
            continue
        inner = made_by(node.inputs[0], "Transpose")
        if inner is not None:
            perm = _perm(inner)
            if perm is not None and sorted(perm) == sorted(outer) == list(range(len(perm))):
                set_input(node, 0, inner.inputs[0])
                node.attrs["perm"] = [perm[axis] for axis in outer]
                count += 1
            continue
        count += _through(edit, node, outer, why)
    return count


def _perm(node: gs.Node) -> list[int] | None:
    perm = attribute_of(node, "perm", None) if is_standard(node, "Transpose") else None
    return perm if isinstance(perm, list) else None


def _through(edit: Edit, node: gs.Node, outer: list[int], why: Why) -> int:
    """Remove the transposes before and after an elementwise op, if they cancel."""
    middle = made_by(node.inputs[0], *_UNARY, *_BINARY)
    if middle is None:
        return 0
    operands = _operands(middle)
    if operands is None:
        return 0
    perms = [_perm(maker) for _, maker in operands]
    if any(perm is None or [perm[a] for a in outer] != sorted(perm) for perm in perms):
        return 0
    result = middle.outputs[0]
    if len(result.outputs) != 1 or edit.is_output(result) or not edit.holds(middle):
        why("something else reads what is between two transposes", node)
        return 0
    if edit.is_output(node.outputs[0]):
        why("it names a graph output", node)
        return 0
    for index, maker in operands:
        set_input(middle, index, maker.inputs[0])
    shape = result.shape
    result.shape = None if shape is None else [shape[axis] for axis in outer]
    # After the shape is permuted: bypass merges it with that of the result.
    edit.bypass(node, result)
    # Until then a removed node counts as a reader of its input, and the next match counts readers.
    edit.finish()
    return 1


def _operands(middle: gs.Node) -> list[tuple[int, gs.Node]] | None:
    """Return the transposed operands with their input indices; all others must be scalars."""
    found: list[tuple[int, gs.Node]] = []
    for index, tensor in enumerate(middle.inputs):
        maker = made_by(tensor, "Transpose")
        if maker is not None:
            found.append((index, maker))
        # A constant with axes would have to be transposed as well.
        elif scalar_of(tensor) is None or len(tensor.shape) > 0:
            return None
    return found or None
