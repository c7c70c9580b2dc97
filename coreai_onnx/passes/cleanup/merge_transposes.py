"""Merges consecutive transposes, also with elementwise ops between them."""

from __future__ import annotations

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites, set_input
from coreai_onnx.passes.engine.match import attribute_of, made_by, scalar_of
from coreai_onnx.passes.engine.why import Why

_UNARY = (
    "Abs", "Cast", "Ceil", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish",
    "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid",
    "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh",
)  # fmt: skip
_BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Equal", "Greater", "Less", "And", "Or")


@rewrites("Transpose")
def merge_transposes(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Two Transposes, consecutive or around an elementwise op → one.

    x ─Transpose([0, 2, 1])→ ─Relu→ ─Mul(2)→ ─Transpose([0, 2, 1])→ y
    becomes     x ─Relu→ ─Mul(2)→ y
    """
    outer, inner = _perm(node), made_by(node.inputs[0], "Transpose")
    if outer is None:
        return False
    if inner is None:
        return _through(edit, node, outer, why)
    perm = _perm(inner)
    if perm is None or not sorted(perm) == sorted(outer) == list(range(len(perm))):
        return False
    set_input(node, 0, inner.inputs[0])
    node.attrs["perm"] = [perm[axis] for axis in outer]
    return True


def _perm(transpose: gs.Node) -> list[int] | None:
    perm = attribute_of(transpose, "perm", None)
    return perm if isinstance(perm, list) else None


def _through(edit: Edit, node: gs.Node, outer: list[int], why: Why) -> bool:
    """Remove the transposes before and after an elementwise op, if they cancel."""
    middle = made_by(node.inputs[0], *_UNARY, *_BINARY)
    operands = None if middle is None else _operands(middle)
    if middle is None or operands is None:
        return False
    perms = [_perm(maker) for _, maker in operands]
    if any(perm is None or [perm[a] for a in outer] != sorted(perm) for perm in perms):
        return False
    result = middle.outputs[0]
    if len(result.outputs) != 1 or edit.is_output(result) or not edit.holds(middle):
        return why("something else reads what is between two transposes", node)
    if edit.is_output(node.outputs[0]):
        return why("it names a graph output", node)
    for index, maker in operands:
        set_input(middle, index, maker.inputs[0])
    shape = result.shape
    result.shape = None if shape is None else [shape[axis] for axis in outer]
    # After the shape is permuted: bypass merges it with that of the result.
    edit.bypass(node, result)
    # Until then a removed node counts as a reader of its input, and the next match counts readers.
    edit.finish()
    return True


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
