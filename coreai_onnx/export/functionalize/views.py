"""Writes the new elements of a view back into the tensor that it is a view of."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten
Inverse = Callable[["Write"], fx.Node | None]


class Write:
    """New elements for a view.

    Args:
        graph: Receives nodes.
        view: The call that made the view, with its original arguments.
        tensor: The tensor before the write, in the new graph.
        new: The view's new elements, in the new graph.
        of: Returns the new graph's node for a node of the original graph.
    """

    def __init__(
        self,
        graph: fx.Graph,
        view: fx.Node,
        tensor: fx.Node,
        new: fx.Node,
        of: Callable[[fx.Node], fx.Node],
    ) -> None:
        """Bind the arguments of the view by their names."""
        self.graph, self.view, self.tensor, self.new = graph, view, tensor, new
        self.arguments = {k: fx.map_arg(v, of) for k, v in _arguments(view).items()}

    def call(self, target: Any, *args: Any) -> fx.Node:
        """Append a call whose result has the dtype and shape of the tensor."""
        name = target._schema.name.partition("::")[2]
        call = self.graph.create_node("call_function", target, args, {}, name)
        call.meta = {k: v for k, v in self.view.meta.items() if k != "val"}
        call.meta["val"] = self.tensor.meta["val"]
        return call


def _arguments(call: fx.Node) -> dict[str, Any]:
    """Return the arguments of a call by their names; none if it is not a call of an op."""
    schema = getattr(call.target, "_schema", None)
    names = [a.name for a in schema.arguments] if schema else []
    return dict(zip(names, call.args, strict=False)) | dict(call.kwargs)


def undone(write: Write) -> fx.Node | None:
    """Return the tensor with the new elements; None if the view cannot be inverted."""
    view = write.view
    if view.target is operator.getitem:
        return _piece(write)
    name = str(view.target)
    rule = _INVERSES.get(name)
    if rule is not None:
        return rule(write)
    # Sizes are compared as text: `==` of two SymInts would add a guard.
    before, after = write.tensor.meta["val"], view.meta["val"]
    # Others of _KEEP_ORDER may repeat elements (expand): only those that kept the shape can be
    # undone.
    if name in _SAME_ELEMENTS or tuple(map(str, before.shape)) == tuple(map(str, after.shape)):
        return _as_shaped(write) if name in _KEEP_ORDER else None
    return None


def _as_shaped(write: Write) -> fx.Node:
    """Return the new elements, in the same order, in the tensor's shape."""
    before, after = write.tensor.meta["val"], write.view.meta["val"]
    if tuple(map(str, before.shape)) == tuple(map(str, after.shape)):
        return write.new
    return write.call(aten.view.default, write.new, _sizes(write.graph, write.tensor))


def _sizes(graph: fx.Graph, tensor: fx.Node) -> list[Any]:
    """Return the sizes of a tensor as arguments of a call."""
    sizes: list[Any] = []
    for axis, size in enumerate(tensor.meta["val"].shape):
        if isinstance(size, torch.SymInt):
            # Arguments in a graph are nodes or constants, never a SymInt.
            node = graph.call_function(aten.sym_size.int, (tensor, axis))
            node.meta["val"] = size
            sizes.append(node)
        else:
            sizes.append(int(size))
    return sizes


def _scatter(write: Write) -> fx.Node:
    """Invert a slice, selection or diagonal: the op that writes into one has its parameters."""
    schema = write.view.target._schema  # type: ignore[union-attr]  # an op, as its rule says
    target = getattr(aten, f"{schema.name.partition('::')[2]}_scatter").default
    place = [write.arguments.get(a.name, a.default_value) for a in schema.arguments[1:]]
    return write.call(target, write.tensor, write.new, *place)


def _narrow(write: Write) -> fx.Node | None:
    start, length = write.arguments["start"], write.arguments["length"]
    # For a negative start, start + length may be 0, which is not the end that it stands for.
    if not (isinstance(start, int) and isinstance(length, int) and start >= 0):
        return None
    place = (write.arguments["dim"], start, start + length)
    return write.call(aten.slice_scatter.default, write.tensor, write.new, *place)


def _transpose(write: Write) -> fx.Node:
    axes = [v for k, v in write.arguments.items() if k != "self"]
    return write.call(aten.transpose.int, write.new, *axes)


def _turn(write: Write) -> fx.Node:
    # t() of a vector or a scalar returns it unchanged.
    rank = write.tensor.meta["val"].dim()
    return write.call(aten.transpose.int, write.new, 0, 1) if rank == 2 else write.new


def _permute(write: Write) -> fx.Node:
    dims = [d % len(write.arguments["dims"]) for d in write.arguments["dims"]]
    return write.call(aten.permute.default, write.new, [dims.index(i) for i in range(len(dims))])


def _einsum(write: Write) -> fx.Node | None:
    """Invert an einsum of one operand that only permutes, which is a view."""
    axes, _, result = str(write.view.args[0]).replace(" ", "").partition("->")
    if sorted(axes) != sorted(result) or len(set(axes)) != len(axes) or "." in axes:
        return None
    order = [result.index(letter) for letter in axes]
    return write.call(aten.permute.default, write.new, order)


def _piece(write: Write) -> fx.Node | None:
    """Invert one of several views: an item of ``unbind``, or a part of ``split``."""
    source, index = write.view.args
    assert isinstance(source, fx.Node)
    name, pieces = str(source.target).partition(".")[2].partition(".")[0], source.meta["val"]
    if name not in ("unbind", "split", "split_with_sizes", "chunk", "unsafe_chunk"):
        return None
    dim: Any = _arguments(source).get("dim", 0)
    if name == "unbind":
        return write.call(aten.select_scatter.default, write.tensor, write.new, dim, index)
    lengths: Sequence[Any] = [piece.shape[dim] for piece in pieces[: index + 1]]  # type: ignore[operator]  # an integer
    # Symbolic bounds would need nodes that add sizes; torch's retrace makes these.
    if not all(isinstance(length, int) for length in lengths):
        return None
    place = (dim, sum(lengths[:-1]), sum(lengths))
    return write.call(aten.slice_scatter.default, write.tensor, write.new, *place)


_INVERSES: dict[str, Inverse] = {
    "aten.slice.Tensor": _scatter,
    "aten.select.int": _scatter,
    "aten.narrow.default": _narrow,
    "aten.diagonal.default": _scatter,
    "aten.transpose.int": _transpose,
    "aten.swapaxes.default": _transpose,
    "aten.swapdims.default": _transpose,
    "aten.t.default": _turn,
    "aten.permute.default": _permute,
    "aten.einsum.default": _einsum,
}
"""Inverses of views that reorder or omit elements."""

_SAME_ELEMENTS = frozenset(
    f"aten.{name}"
    for name in (
        "view.default _unsafe_view.default reshape.default reshape_as.default view_as.default "
        "flatten.using_ints unflatten.int squeeze.default squeeze.dim squeeze.dims "
        "unsqueeze.default atleast_1d.default atleast_2d.default atleast_3d.default"
    ).split()
)
_KEEP_ORDER = _SAME_ELEMENTS | frozenset(
    f"aten.{name}"
    for name in (
        "alias.default contiguous.default detach.default detach_.default to.dtype to.device "
        "to.dtype_layout to.other type_as.default positive.default real.default expand.default "
        "expand_as.default broadcast_to.default dropout.default feature_dropout.default "
        "alpha_dropout.default feature_alpha_dropout.default conj_physical.default "
        "resolve_conj.default resolve_neg.default lift_fresh.default"
    ).split()
)
"""Views that keep the elements in the tensor's order."""
