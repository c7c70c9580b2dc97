"""The steps of a Scan as nodes that compute all of them at once, around a recurrence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, detach
from coreai_onnx.passes.engine.match import (
    Dim,
    attribute_of,
    axes_of,
    behind,
    dtype_of,
    is_standard,
    made_by,
    maker,
    rank_of,
    shape_of,
)

_ELEMENTWISE = """Abs Add And Cast Div Equal Exp Greater Identity Less Log MatMul Max Min Mul Neg
Not Pow Reciprocal Relu Sigmoid Softplus Sqrt Sub Tanh Where""".split()
_OVER_AXES = ("ReduceMax", "ReduceMean", "ReduceSum", "Squeeze", "Unsqueeze")
_DEFAULTS = {
    "scan_input_axes",
    "scan_input_directions",
    "scan_output_axes",
    "scan_output_directions",
}
_FLOAT, _INT64 = np.dtype(np.float32), np.dtype(np.int64)


class ParallelScan:
    """A Scan with one state, whose steps become nodes of the graph around it.

    Attributes:
        body: The graph of a step.
        state: The state before a step, in the body.
        dims: The dims of the state after the first, which is the batch.
        shape: The shape of the states of all steps, ``[steps, batch, *dims]``.
        fault: Why the steps cannot be computed at once; empty if they can.
    """

    def __init__(self, edit: Edit, node: gs.Node) -> None:
        """Read a Scan; the graph is unchanged."""
        self._edit, self.node = edit, node
        self.body: gs.Graph = node.attrs["body"]
        self.state, *slices = self.body.inputs
        self._all = dict(zip(map(id, slices), node.inputs[1:], strict=False))
        self._ranks: dict[int, int] = {}
        state, first = shape_of(self.state), shape_of(node.inputs[-1])
        self.shape: list[Dim] = [first[0] if first else None, *(state or ())]
        self.dims = [dim for dim in self.shape[2:] if isinstance(dim, int)]
        self.fault = self._fault()

    def _fault(self) -> str:
        node, states = self.node, len(self.node.inputs) - self.node.attrs["num_scan_inputs"]
        if states != 1:
            return f"it has {states} states"
        if any(any(attribute_of(node, name, ())) for name in _DEFAULTS):
            return "its steps are not along the first axes, or reversed"
        if dtype_of(self.state) != _FLOAT:
            return "its state is not float32"
        if len(self.shape) < 3 or len(self.dims) != len(self.shape) - 2:
            return "the dims of its state are not known"
        if any(shape_of(tensor) is None for tensor in node.inputs):
            return "the shape of an input is not known"
        if not all(map(self.varies, self.body.outputs)):
            return "a result is equal in all steps"
        for tensor, whole in zip(self.body.inputs[1:], node.inputs[1:], strict=True):
            self._ranks[id(tensor)] = len(shape_of(whole) or ()) - 1
        self._ranks[id(self.state)] = len(self.shape) - 1
        return next(filter(None, map(self._fault_of, self.body.nodes)), "")

    def _fault_of(self, node: gs.Node) -> str:
        """Return why a node cannot compute all steps at once, and note the rank of its result."""
        ranks = [self._ranks.get(id(one), rank_of(one)) for one in node.inputs]
        sizes = [rank for rank in ranks if rank is not None]
        axes = axes_of(node) if is_standard(node, *_OVER_AXES) else []
        if not is_standard(node, *_ELEMENTWISE, *_OVER_AXES) or len(node.outputs) > 1:
            return f"a step has {node.op}"
        if axes is None or len(sizes) < len(ranks):
            return f"the ranks of {node.op} in a step are not known"
        rank = sizes[0] if axes else max(sizes)
        steps = {r for r, one in zip(sizes, node.inputs, strict=True) if self.varies(one)}
        if not axes and steps and steps != {rank}:
            return "a step adds axes to an operand"
        if is_standard(node, "MatMul") and min(sizes) < 2:
            return "a step multiplies by a vector"
        if node.op == "Unsqueeze":
            rank += len(axes)
        elif axes and not attribute_of(node, "keepdims", node.op != "Squeeze"):
            rank -= len(axes)
        self._ranks[id(node.outputs[0])] = rank
        return ""

    def varies(self, tensor: gs.Tensor) -> bool:
        """Return whether a tensor of the body differs between the steps."""
        return self._depends(tensor, self.body.inputs)

    def reads_state(self, tensor: gs.Tensor) -> bool:
        """Return whether a tensor of the body depends on the state before the step."""
        return self._depends(tensor, [self.state])

    def _depends(self, tensor: gs.Tensor, on: Sequence[gs.Tensor]) -> bool:
        if any(tensor is one for one in on):
            return True
        node = self._inner_maker(tensor)
        return node is not None and any(self._depends(one, on) for one in node.inputs)

    def _inner_maker(self, tensor: gs.Tensor) -> gs.Node | None:
        node = maker(tensor)
        return node if any(node is one for one in self.body.nodes) else None

    def source(self, tensor: gs.Tensor) -> gs.Tensor:
        """Return the input of the Scan of which a tensor of the body is a slice, or the tensor."""
        return self._all.get(id(tensor), tensor)

    def updated(self, *ops: str) -> tuple[gs.Node, int] | None:
        """Return the node that computes the next state, and which of its inputs reads the state."""
        node = made_by(behind(self.body.outputs[0], "Identity"), *ops)
        if node is None or len(node.inputs) != 2:
            return None
        readers = [i for i, tensor in enumerate(node.inputs) if self.reads_state(tensor)]
        return (node, readers[0]) if len(readers) == 1 else None

    def lifted(self, tensor: gs.Tensor) -> gs.Tensor:
        """Return a tensor of the body for all steps, on a new first axis if it varies."""
        node, varies = self._inner_maker(tensor), self.varies(tensor)
        if id(tensor) in self._all or node is None:
            return self.source(tensor)
        inputs = [self.lifted(one) for one in node.inputs]
        if varies and is_standard(node, *_OVER_AXES):
            axes = [axis + 1 if axis >= 0 else axis for axis in axes_of(node) or ()]
            inputs[1:] = [self._edit.constant("axes", np.array(axes, np.int64))]
        shape = shape_of(tensor)
        dims = None if shape is None else [*self.shape[:1], *shape] if varies else shape
        result = self.add(node.op, inputs, dims, dtype_of(tensor), **node.attrs)
        self._all[id(tensor)] = result
        return result

    def finish(self, after: gs.Tensor, last: gs.Tensor) -> None:
        """Replace the Scan.

        Args:
            after: The states after each step, ``[steps, batch, *dims]``.
            last: The state after the last one.
        """
        for tensor in (self.body.outputs[0], behind(self.body.outputs[0], "Identity")):
            self._all[id(tensor)] = after
        # No slice is empty, even of one step.
        whole, axis = self.with_state_before(after), self.ints(0)
        before = self.add("Slice", [whole, axis, self.ints(-1), axis], self.shape)
        self._all[id(self.state)] = before
        results = [last, *(self.lifted(tensor) for tensor in self.body.outputs[1:])]
        first, *others = list(zip(results, self.node.outputs, strict=True))
        for result, output in others:
            self._edit.node("Identity", self.node, [result], outputs=[output])
        detach(self.body.nodes)
        self._edit.become(self.node, "Identity", [first[0]])

    def with_state_before(self, x: gs.Tensor) -> gs.Tensor:
        """Return the state before the first step and ``[steps, batch, *dims]`` as one tensor."""
        shape = [1, *self.shape[1:]]
        first = self.add("Unsqueeze", [self.node.inputs[0], self.ints(0)], shape)
        return self.add("Concat", [first, x], [None, *self.shape[1:]], axis=0)

    def add(
        self,
        op: str,
        inputs: Sequence[gs.Tensor],
        shape: Iterable[Dim] | None = None,
        dtype: np.dtype | None = _FLOAT,
        **attrs: Any,
    ) -> gs.Variable:
        """Insert a node before the Scan and return its output."""
        dims = None if shape is None else list(shape)
        return self._edit.add(op, self.node, inputs, dtype, dims, **attrs)

    def ints(self, *values: int) -> gs.Constant:
        """Return a constant vector of integers."""
        return self._edit.constant(f"{self.node.name}_ints", np.array(values, np.int64))

    def sizes(self, *dims: int | str) -> gs.Tensor:
        """Return a vector of sizes; ``steps`` and ``batch`` are those of the Scan's inputs."""
        places = {"steps": (self.node.inputs[-1], 0), "batch": (self.node.inputs[0], 0)}
        parts: list[gs.Tensor] = []
        for dim in dims:
            if isinstance(dim, int):
                parts.append(self.ints(dim))
            else:
                tensor, axis = places[dim]
                parts.append(self.add("Shape", [tensor], [1], _INT64, start=axis, end=axis + 1))
        return self.add("Concat", parts, [len(parts)], _INT64, axis=0)
