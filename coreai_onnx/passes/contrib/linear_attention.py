"""Replaces the gated delta rule with onnxruntime's LinearAttention."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coreai_onnx.model.inventory import CONTRIB_DOMAIN
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import (
    Dim,
    attribute_of,
    dtype_of,
    input_of,
    shape_of,
)
from coreai_onnx.passes.engine.why import Why

_NAME = "gated_delta_update"
# That of the composite, whose module imports torch, as passes must not.
_NORM_EPS = 1e-6
_FLOAT = np.dtype(np.float32)


@dataclass(frozen=True)
class _StateShapes:
    """The dims of a call; each query and key head serves ``groups`` value heads."""

    batch: Dim
    length: Dim
    heads: int
    groups: int
    key_dim: int
    value_dim: int


@rewrites(composites=(_NAME,))
def contrib_linear_attention(edit: Edit, node: gs.Node, why: Why) -> bool:
    """gated_delta_update → LinearAttention after the normalization of queries and keys.

    ai.coreai::gated_delta_update(q:[b, h, s, d], k, v, g:[b, h, s], beta, state) → y, last
    becomes     com.microsoft::LinearAttention(q:[b, s, h * d], k, v, state, g:[b, s, h], beta)

    The transposes between the two layouts cancel those of the model. The op needs a key head for
    each value head: if there are fewer, queries and keys are repeated.
    """
    shapes = _shapes(node)
    if shapes is None:
        return why("heads and their sizes are not known", node)
    if any(dtype_of(tensor) != _FLOAT for tensor in node.inputs if not tensor.is_empty()):
        return why("the dtype is not float32", node)
    _LinearAttentionWriter(edit, node, shapes).write()
    return True


def _shapes(node: gs.Node) -> _StateShapes | None:
    query, key, value = (shape_of(tensor) for tensor in node.inputs[:3])
    if query is None or key is None or value is None:
        return None
    batch, heads, length, key_dim = query
    whole = (heads, value[1], key_dim, value[3])
    # The numbers of heads become attributes.
    if not all(isinstance(dim, int) for dim in whole) or whole[1] % whole[0]:  # type: ignore[operator]
        return None
    return _StateShapes(batch, length, whole[0], whole[1] // whole[0], whole[2], whole[3])  # type: ignore[arg-type, operator]


class _LinearAttentionWriter:
    def __init__(self, edit: Edit, node: gs.Node, shapes: _StateShapes) -> None:
        self._edit, self._node, self._shapes = edit, node, shapes

    def write(self) -> None:
        node, sizes = self._node, self._shapes
        query, key, value, g, beta = node.inputs[:5]
        state = input_of(node, 5)
        heads = sizes.heads * sizes.groups
        if attribute_of(node, "use_qk_l2_norm", 1):
            query, key = self._unit_length(query), self._unit_length(key)
        inputs = [
            self._row(self._repeated(query), heads * sizes.key_dim),
            self._row(self._repeated(key), heads * sizes.key_dim),
            self._row(self._turned(value), heads * sizes.value_dim),
            gs.Variable.empty() if state is None else state,
            *(self._add("Transpose", [x], perm=[0, 2, 1]) for x in (g, beta)),
        ]
        outputs = list(node.outputs)
        attended = self._edit.node(
            "LinearAttention",
            node,
            inputs,
            outputs=[gs.Variable(f"{outputs[0].name}_row", _FLOAT), *outputs[1:]],
            domain=CONTRIB_DOMAIN,
            q_num_heads=heads,
            kv_num_heads=heads,
            update_rule="gated_delta",
        )
        target = self._ints("split", [0, 0, heads, sizes.value_dim])
        self._edit.become(node, "Reshape", [attended.outputs[0], target])

    def _unit_length(self, x: gs.Tensor) -> gs.Tensor:
        """Return ``[b, h, s, d]`` divided by the L2 norms of its rows."""
        squares = self._add("Mul", [x, x], x.shape)
        total = self._add("ReduceSum", [squares, self._ints("last", [-1])], keepdims=1)
        eps = self._edit.constant(f"{x.name}_eps", np.array(_NORM_EPS, np.float32))
        length = self._add("Sqrt", [self._add("Add", [total, eps])])
        return self._add("Div", [x, length], x.shape)

    def _repeated(self, x: gs.Tensor) -> gs.Tensor:
        """Return ``[b, h, s, d]`` as ``[b, s, h, groups, d]``; without that axis for one group."""
        turned, sizes = self._turned(x), self._shapes
        if sizes.groups == 1:
            return turned
        apart = self._add("Unsqueeze", [turned, self._ints("groups", [3])])
        return self._add("Expand", [apart, self._ints("repeat", [1, 1, 1, sizes.groups, 1])])

    def _turned(self, x: gs.Tensor) -> gs.Tensor:
        shape = shape_of(x)
        laid = None if shape is None else [shape[0], shape[2], shape[1], shape[3]]
        return self._add("Transpose", [x], laid, perm=[0, 2, 1, 3])

    def _row(self, x: gs.Tensor, width: int) -> gs.Tensor:
        shape = [self._shapes.batch, self._shapes.length, width]
        return self._add("Reshape", [x, self._ints("row", [0, 0, width])], shape)

    def _add(
        self,
        op: str,
        inputs: list[gs.Tensor],
        shape: list[Dim] | None = None,
        **attrs: list[int] | int,
    ) -> gs.Tensor:
        """Insert a node and return its output, which is float32."""
        return self._edit.add(op, self._node, inputs, _FLOAT, shape, domain=None, **attrs)

    def _ints(self, name: str, values: list[int]) -> gs.Tensor:
        return self._edit.constant(f"{self._node.name}_{name}", np.array(values, np.int64))
