"""Fuses rotary position embeddings written with elementary ops."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from coreai_onnx.model.inventory import STANDARD_DOMAIN
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.bodies import Bodies, makes_functions
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import (
    VIEWS,
    Dim,
    attribute_of,
    axes_of,
    behind_views,
    constant_of,
    dtype_of,
    ints_of,
    is_standard,
    made_by,
    maker,
    rank_of,
    same_known_shape,
    scalar_of,
    shape_of,
)
from coreai_onnx.passes.engine.narrow import BFLOAT16, Computation, computation, computed_by
from coreai_onnx.passes.engine.why import Why

_UNARY = ("Cos", "Sin", "Cast", "Neg")
_SCALED = ("Mul", "Div", "Add")
_HEADS = (0, 2, 1, 3)
_ATTRIBUTES = {"scale": 1.0, "base": 10000.0, "dims": 0, "interleaved": 0, "version": 1}


@makes_functions
@rewrites("Add", "Cast")
def fuse_rope(edit: Edit, node: gs.Node, why: Why, bodies: Bodies) -> bool:
    """x * cos + rotate_half(x) * sin, in seven nodes → one ai.coreai::rope.

    Add(Mul(x, cos), Mul(Concat(Neg(x[h:]), x[:h]), sin)), cos = Cos(Concat(f, f))
    becomes     rope(x, Cos(f), Sin(f))

    All layers share the cosines and sines. Pairs of neighbors, whose cosines are repeated lane by
    lane, become an interleaved rope. Heads on the third axis are moved to the second one and back.
    """
    halves, rows = edit.once(_Halves, edit), edit.once(_Rows, edit)
    total = computation(node)
    rotation = _rotation(total) if is_standard(total, "Add") else None
    if rotation is None:
        return False
    x, *tables, interleaved = rotation
    tensors = (x, *tables)
    dtypes, shapes = {*map(dtype_of, tensors)}, [shape_of(tensor) for tensor in tensors]
    if len(dtypes) > 1 or None in dtypes:
        return why("input, cosines and sines are not known to have the same dtype", node)
    shape, table, other = shapes
    if shape is None or table is None or table != other or len(shape) != 4 or len(table) != 4:
        return why("input, cosines and sines must have four axes", node)
    heads = 1 if table[1] == 1 and table[2] == shape[2] else 2
    expected = [shape[0] if table[0] != 1 else 1, *shape[1:]]
    expected[heads] = 1
    if list(table) != expected or None in table:
        return why("cosines must have the shape [1 or batch, 1, length, lanes]", node)
    if interleaved:
        pairs = edit.once(_Pairs, edit)
        cos, sin = (pairs.of(tensor, node) for tensor in tables)
    else:
        cos, sin = map(halves.of, tables)
    if cos is None or sin is None:
        return why("the cosines of both halves may differ", node)
    op_type = bodies.provide_composite("rope.interleaved" if interleaved else "rope", dtype_of(x))
    if op_type is None:
        return why("the model's rope has another body", node)
    if heads == 2:
        x, cos, sin = (edit.once(_Moved, edit).of(tensor, node) for tensor in (x, cos, sin))
    cos, sin = (rows.of(table, x, node) for table in (cos, sin))
    attributes = {**_ATTRIBUTES, "interleaved": int(interleaved)}
    if heads == 1:
        edit.become(node, op_type, [x, cos, sin], domain=STANDARD_DOMAIN, **attributes)
        return True
    turned = edit.add(
        op_type, node, [x, cos, sin], x.dtype, x.shape, domain=STANDARD_DOMAIN, **attributes
    )
    edit.become(node, "Transpose", [turned], perm=list(_HEADS))
    return True


class _Moved:
    """Moves heads from the third axis to the second one, once per tensor."""

    def __init__(self, edit: Edit) -> None:
        self._edit = edit
        self._known: dict[gs.Tensor, gs.Tensor] = {}

    def of(self, tensor: gs.Tensor, like: gs.Node) -> gs.Tensor:
        """Return the tensor with the second and the third axis exchanged."""
        if tensor not in self._known:
            shape = [tensor.shape[axis] for axis in _HEADS]
            perm = list(_HEADS)
            moved = self._edit.add("Transpose", like, [tensor], tensor.dtype, shape, perm=perm)
            self._known[tensor] = moved
        return self._known[tensor]


class _Halves:
    """Finds ``f`` in ``op(Concat(f, f))`` and creates ``op(f)``, once per tensor."""

    def __init__(self, edit: Edit) -> None:
        self._edit = edit
        self._known: dict[gs.Tensor, gs.Tensor | None] = {}

    def of(self, tensor: gs.Tensor) -> gs.Tensor | None:
        """Return the first half of a tensor whose halves are equal; None if this is unknown."""
        if tensor not in self._known:
            self._known[tensor] = self._halved(tensor)
        return self._known[tensor]

    def _halved(self, tensor: gs.Tensor) -> gs.Tensor | None:
        values = constant_of(tensor)
        # A model may store the tables of all positions as buffers.
        if values is not None:
            return self._first(tensor.name, values)
        node, shape = maker(tensor), shape_of(tensor)
        # A node of an outer graph cannot be repeated here.
        if node is None or not self._edit.holds(node):
            return None
        if shape is None or not shape or not isinstance(shape[-1], int):
            return None
        if is_standard(node, "Concat"):
            twice = len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]
            on_last = attribute_of(node, "axis", 0) in (-1, len(shape) - 1)
            return node.inputs[0] if twice and on_last else None
        if is_standard(node, *_UNARY):
            return self._again(node, [self.of(node.inputs[0])])
        # transformers multiplies the tables by `attention_scaling`.
        if is_standard(node, *_SCALED) and scalar_of(node.inputs[1]) is not None:
            return self._again(node, [self.of(node.inputs[0]), node.inputs[1]])
        if is_standard(node, "Unsqueeze"):
            axes, rank = axes_of(node), rank_of(tensor)
            # The last axis must stay that of the lanes, which are halved.
            if axes is None or rank is None or any(a in (-1, rank - 1) for a in axes):
                return None
            return self._again(node, [self.of(node.inputs[0]), node.inputs[1]])
        return None

    def _first(self, name: str, values: np.ndarray) -> gs.Tensor | None:
        half = values.shape[-1] // 2 if values.ndim else 0
        first, second = values[..., :half], values[..., half:]
        if not half or not np.array_equal(first, second):
            return None
        return self._edit.constant(f"{name}_half", np.ascontiguousarray(first))

    def _again(self, node: gs.Node, inputs: list[gs.Tensor | None]) -> gs.Tensor | None:
        """Repeat a node on half of the lanes."""
        halves = [tensor for tensor in inputs if tensor is not None]
        if len(halves) < len(inputs):
            return None
        whole = node.outputs[0]
        shape = [*whole.shape[:-1], whole.shape[-1] // 2]
        return self._edit.add(node.op, node, halves, whole.dtype, shape, **node.attrs)


class _Pairs:
    """Takes every other lane of a tensor in which each one is repeated, once per tensor."""

    def __init__(self, edit: Edit) -> None:
        self._edit = edit
        self._known: dict[gs.Tensor, gs.Tensor | None] = {}

    def of(self, tensor: gs.Tensor, like: gs.Node) -> gs.Tensor | None:
        """Return the even lanes of a tensor whose odd ones are equal; None if this is unknown."""
        if tensor not in self._known:
            self._known[tensor] = self._even(tensor, like) if _repeats(tensor) else None
        return self._known[tensor]

    def _even(self, tensor: gs.Tensor, like: gs.Node) -> gs.Tensor:
        values, name = constant_of(tensor), tensor.name
        if values is not None:
            return self._edit.constant(f"{name}_even", np.ascontiguousarray(values[..., ::2]))
        last = len(tensor.shape) - 1
        numbers = {"start": 0, "end": np.iinfo(np.int64).max, "axis": last, "step": 2}
        bounds = [
            self._edit.constant(f"{name}_{word}", np.array([number], np.int64))
            for word, number in numbers.items()
        ]
        shape = [*tensor.shape[:-1], tensor.shape[-1] // 2]
        return self._edit.add("Slice", like, [tensor, *bounds], tensor.dtype, shape)


class _Rows:
    """Repeats cosines and sines for each batch item, once for all layers.

    RotaryEmbedding needs them repeated; otherwise each layer would repeat them.
    """

    def __init__(self, edit: Edit) -> None:
        self._edit = edit
        self._known: dict[tuple[int, Dim], gs.Tensor] = {}

    def of(self, half: gs.Tensor, input: gs.Tensor, like: gs.Node) -> gs.Tensor:
        """Return ``half`` expanded to the batch size of ``input``, unchanged if it is unknown."""
        batch, shape = (shape_of(input) or (None,))[0], shape_of(half)
        if shape is None or shape[0] == batch:
            return half
        key = id(half), batch
        if key not in self._known:
            size = self._edit.size(batch, like)
            self._known[key] = half if size is None else self._repeated(half, size, batch, like)
        return self._known[key]

    def _repeated(self, half: gs.Tensor, size: gs.Tensor, batch: Dim, like: gs.Node) -> gs.Tensor:
        ones = self._edit.constant(f"{half.name}_ones", np.ones(3, np.int64))
        rows = self._edit.add("Concat", like, [size, ones], axis=0)
        if dtype_of(half) != BFLOAT16:
            return self._made("Expand", like, [half, rows], half.dtype, batch)
        # onnxruntime has no Expand of bfloat16
        wide = self._made("Cast", like, [half], np.dtype(np.float32), half.shape[0])
        wide = self._made("Expand", like, [wide, rows], wide.dtype, batch)
        return self._made("Cast", like, [wide], BFLOAT16, batch)

    def _made(
        self, op: str, like: gs.Node, inputs: list[gs.Tensor], dtype: np.dtype[Any], batch: Dim
    ) -> gs.Tensor:
        attrs: dict[str, Any] = {"to": int(ir.DataType.from_numpy(dtype))} if op == "Cast" else {}
        return self._edit.add(op, like, inputs, dtype, [batch, *inputs[0].shape[1:]], **attrs)


def _rotation(total: Computation) -> tuple[gs.Tensor, gs.Tensor, gs.Tensor, bool] | None:
    """Match the sum of two products, in any order; return x, cosines, sines, and interleaving."""
    left, right = (computed_by(tensor, "Mul") for tensor in total.inputs)
    if left is None or right is None:
        return None
    for plain, turned in ((left, right), (right, left)):
        for index in (0, 1):
            x, pairs = (
                rotated(turned.inputs[index]) for rotated in (_rotated_half, _rotated_pairs)
            )
            # All orders of factors and terms: exporters and later passes swap operands of
            # commutative ops.
            for position in (0, 1):
                factor, tables = (
                    plain.inputs[position],
                    (
                        plain.inputs[1 - position],
                        turned.inputs[1 - index],
                    ),
                )
                if x is not None and factor is x:
                    return x, *tables, False
                if pairs is not None and behind_views(factor) is pairs:
                    same = same_known_shape(factor, turned.inputs[index])
                    return (factor, *tables, True) if same else None
    return None


def _rotated_pairs(tensor: gs.Tensor) -> gs.Tensor | None:
    """Return x of ``flatten(stack([-x[..., 1::2], x[..., ::2]], -1))``, before any views."""
    view = made_by(tensor, "Reshape")
    stack = computed_by(view.inputs[0], "Concat") if view is not None else None
    if view is None or stack is None or len(stack.inputs) != 2:
        return None
    pairs, shape = shape_of(view.inputs[0]), shape_of(tensor)
    if pairs is None or shape is None or pairs[-1] != 2 or not isinstance(shape[-1], int):
        return None
    on_last = attribute_of(stack, "axis", 0) in (-1, len(pairs) - 1)
    if not on_last or pairs[:-1] != (*shape[:-1], shape[-1] // 2):
        return None
    negative = computed_by(behind_views(stack.inputs[0]), "Neg")
    if negative is None:
        return None
    odd, even = _every_other(negative.inputs[0], 1), _every_other(stack.inputs[1], 0)
    return even if even is not None and even is odd else None


def _every_other(tensor: gs.Tensor, start: int) -> gs.Tensor | None:
    """Return x of ``x[..., start::2]``, before any views: a Slice, or a part of pairs."""
    node = maker(tensor := behind_views(tensor))
    if node is None or not is_standard(node, "Slice", "Split"):
        return None
    shape, out = shape_of(node.inputs[0]), shape_of(tensor)
    if shape is None or out is None or not isinstance(shape[-1], int):
        return None
    last = len(shape) - 1
    if node.op == "Split":
        of_pairs = attribute_of(node, "axis", 0) in (-1, last) and shape[-1] == 2
        is_half = of_pairs and len(node.outputs) == 2 and node.outputs[start] is tensor
    else:
        steps = ints_of(node.inputs[4]) if len(node.inputs) > 4 else None
        is_half = steps == [2] and axes_of(node, 3) in ([-1], [last])
        is_half = is_half and ints_of(node.inputs[1]) == [start] and out[-1] == shape[-1] // 2
    return behind_views(node.inputs[0]) if is_half and shape[-1] % 2 == 0 else None


def _repeats(tensor: gs.Tensor) -> bool:
    """Whether each lane is known to be repeated: ``repeat_interleave(2, dim=-1)``."""
    values, node, shape = constant_of(tensor), maker(tensor), shape_of(tensor)
    if shape is None or not shape or not isinstance(shape[-1], int) or shape[-1] % 2:
        return False
    if values is not None:
        return np.array_equal(values[..., ::2], values[..., 1::2])
    if node is None:
        return False
    if is_standard(node, "Concat"):
        on_last = attribute_of(node, "axis", 0) in (-1, len(shape) - 1)
        return on_last and all(_repeats(part) for part in node.inputs)
    source = shape_of(node.inputs[0]) if node.inputs else None
    if is_standard(node, *_UNARY):
        return _repeats(node.inputs[0])
    if is_standard(node, *_SCALED):
        return scalar_of(node.inputs[1]) is not None and _repeats(node.inputs[0])
    if source is None or not is_standard(node, *VIEWS):
        return False
    expand = made_by(node.inputs[0], "Expand")
    before = shape_of(expand.inputs[0]) if expand is not None else None
    if before is not None and before[-1:] == (1,):
        return source[-1] == 2
    return source[-1:] == shape[-1:] and _repeats(node.inputs[0])


def _rotated_half(tensor: gs.Tensor) -> gs.Tensor | None:
    """Return x of ``concat(-x[..., h:], x[..., :h])``."""
    concat = computed_by(tensor, "Concat")
    if concat is None or len(concat.inputs) != 2:
        return None
    negative, shape = computed_by(concat.inputs[0], "Neg"), shape_of(tensor)
    if negative is None or shape is None:
        return None
    if attribute_of(concat, "axis", 0) not in (-1, len(shape) - 1):
        return None
    second, first = _lanes(negative.inputs[0]), _lanes(concat.inputs[1])
    if first is None or second is None or first[0] is not second[0]:
        return None
    lanes = shape[-1]
    if not isinstance(lanes, int) or lanes % 2:
        return None
    return first[0] if (first[1:], second[1:]) == ((0, lanes // 2), (lanes // 2, lanes)) else None


def _lanes(tensor: gs.Tensor) -> tuple[gs.Tensor, int, int] | None:
    """Return x, start and end of a slice of the last axis."""
    node = maker(tensor)
    if node is None or not is_standard(node, "Slice", "Split"):
        return None
    source = node.inputs[0]
    shape, out = shape_of(source), shape_of(tensor)
    if shape is None or out is None or not isinstance(shape[-1], int):
        return None
    size, length = shape[-1], out[-1]
    if not isinstance(length, int):
        return None
    if node.op == "Split":
        if attribute_of(node, "axis", 0) not in (-1, len(shape) - 1) or len(node.outputs) != 2:
            return None
        # Two parts: the second one ends where the axis ends.
        start = 0 if node.outputs[0] is tensor else size - length
        return source, start, start + length
    starts, axes, steps = ints_of(node.inputs[1]), axes_of(node, 3), [1]
    if len(node.inputs) > 4:
        steps = ints_of(node.inputs[4]) or []
    if starts is None or len(starts) != 1 or steps != [1] or axes not in ([-1], [len(shape) - 1]):
        return None
    start = starts[0] + size if starts[0] < 0 else starts[0]
    return source, start, start + length
