"""Rewrites products and sums of float32 for our kernels: in one order, or by tiles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from coreai_onnx.model.inventory import STANDARD_DOMAIN
from coreai_onnx.passes.analysis.quantized_layers import obstacle, second_factor
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.bodies import Bodies, makes_functions
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.graphs import context_of
from coreai_onnx.passes.engine.match import (
    Dim,
    attribute_of,
    axes_of,
    dtype_of,
    input_of,
    shape_of,
)
from coreai_onnx.passes.engine.why import Why

_FLOAT32 = np.dtype(np.float32)
_FEW_TERMS = 8
"""Up to this number, a chain of Add is shorter than the rows that a product packs."""


@makes_functions
@rewrites("MatMul", "Gemm")
def fuse_products(edit: Edit, node: gs.Node, why: Why, bodies: Bodies) -> bool:
    """MatMul or Gemm of float32 matrices → gather_mm, and the bias after it.

    MatMul(x[…, m, k], w[k, n]) → y
    becomes     gather_mm(x, w) → y

    The kernel sums a row in one order, whatever the number of rows. onnxruntime chooses an
    algorithm by the number of rows, the processor, and whether the second factor is constant.
    """
    return _fuse(edit, node, why, bodies, word="")


@makes_functions
@rewrites("MatMul", "Gemm")
def fuse_tiled_products(edit: Edit, node: gs.Node, why: Why, bodies: Bodies) -> bool:
    """MatMul or Gemm of float32 and a constant matrix → gather_mm for tiles, and the bias after it.

    MatMul(x[…, m, k], w[k, n]) → y
    becomes     gather_mm.tiles(x, w) → y

    A session that does not multiply float32 by tiles runs the body, which is the product itself.
    """
    if not isinstance(second_factor(node)[0], gs.Constant):
        return why("the second factor is not constant", node)
    return _fuse(edit, node, why, bodies, word="tiles")


def _fuse(edit: Edit, node: gs.Node, why: Why, bodies: Bodies, *, word: str) -> bool:
    matrix, axis = second_factor(node)
    if (dims := shape_of(matrix)) is None or len(dims) < 2:
        return why("the second factor is not known to be a matrix", node)
    bias = input_of(node, 2)
    width = dims[1 - axis]  # of a Gemm; for a MatMul it is not read
    reason = obstacle(node, width if isinstance(width, int) else -1)
    if bias is not None and reason.startswith("the bias"):
        reason = ""  # an Add broadcasts any bias that a Gemm takes
    if not reason and dtype_of(matrix) != _FLOAT32:
        reason = "the dtype is not float32"
    if reason:
        return why(reason, node)
    name = "gather_mm.transposed" if axis else "gather_mm"
    variant = name + ("_" if axis else ".") * bool(word) + word
    # A model's own calls with indices may have the plain name already.
    other = "gather_mm.rows_transposed" if axis else "gather_mm.rows"
    op_type = bodies.provide_composite(name, _FLOAT32, *([variant] if word else [name, other]))
    if op_type is None:
        return why("the model's gather_mm has another body", node)
    call = _call(axis)
    factors = [node.inputs[0], matrix]
    if bias is None:
        edit.become(node, op_type, factors, **call)
        return True
    product = edit.add(op_type, node, factors, **call)
    rows, *_ = shape_of(node.inputs[0]) or (None,)
    product.dtype, product.shape = _FLOAT32, [rows, width]
    edit.become(node, "Add", [product, bias])
    return True


def _call(transposed: int) -> dict[str, Any]:
    """Return the domain and the attributes of a call."""
    return {
        "domain": STANDARD_DOMAIN,
        "num_batch_axes": 0,
        "transpose_rhs": transposed,
        "version": 1,
    }


@makes_functions
@rewrites("ReduceSum", "ReduceMean", "ReduceL2", "GlobalAveragePool")
def sums_in_order(edit: Edit, node: gs.Node, why: Why, bodies: Bodies) -> bool:
    """A sum of float32 → of few terms, a chain of Add; of others, a product with ones.

    ReduceSum(x[…, k], axes = [-1], keepdims = 1) → y
    becomes     gather_mm(x, ones[k, 1]) → y

    onnxruntime sums vectors from the first address that is aligned on, so that the bits of a row
    depend on where it is in memory.
    """
    x, shape = node.inputs[0], shape_of(node.inputs[0])
    pools = node.op == "GlobalAveragePool"
    axes = [*range(2, len(shape or ()))] if pools else axes_of(node)
    if dtype_of(x) != _FLOAT32:
        return False
    if shape is None or not axes or len(axes) == len(shape):
        return why("the axes are not known, or are all axes", node)
    axes = sorted(axis % len(shape) for axis in axes)
    op_type = bodies.provide_composite("gather_mm", _FLOAT32, "gather_mm", "gather_mm.rows")
    if op_type is None:
        return why("the model's gather_mm has another body", node)
    if node.op == "ReduceL2":
        x = edit.add("Mul", node, [x, x], _FLOAT32, shape)
    terms = _Terms(edit, node, x, tuple(shape), axes)
    total, at = terms.chain() if terms.few else terms.product(op_type)
    if pools or node.op == "ReduceMean":
        total = edit.add("Div", node, [total, terms.count()], _FLOAT32, total.shape)
    elif node.op == "ReduceL2":
        total = edit.add("Sqrt", node, [total], _FLOAT32, total.shape)
    keeps = pools or attribute_of(node, "keepdims", 1) == 1
    if keeps and axes == [at]:
        edit.become(node, "Identity", [total])
        return True
    place = edit.constant(f"{node.name}_place", np.array([at], np.int64))
    if not keeps:
        edit.become(node, "Squeeze", [total, place])
        return True
    places = edit.constant(f"{node.name}_places", np.array(axes, np.int64))
    edit.become(node, "Unsqueeze", [edit.add("Squeeze", node, [total, place]), places])
    return True


@dataclass
class _Terms:
    """What a node sums: a tensor of float32 and axes of it."""

    edit: Edit
    node: gs.Node
    x: gs.Tensor
    shape: tuple[Dim, ...]
    axes: list[int]

    @property
    def size(self) -> int | None:
        """The number of terms, if it is known."""
        sizes = [size for axis in self.axes if isinstance(size := self.shape[axis], int)]
        return math.prod(sizes) if len(sizes) == len(self.axes) else None

    @property
    def few(self) -> bool:
        return len(self.axes) == 1 and self.size is not None and 0 < self.size <= _FEW_TERMS

    def chain(self) -> tuple[gs.Tensor, int]:
        """Return the sum by additions, and the axis on which it has one element."""
        (axis,), size = self.axes, self.size or 0
        sizes = self.edit.constant(f"{self.node.name}_sizes", np.ones(size, np.int64))
        one = [1 if place == axis else dim for place, dim in enumerate(self.shape)]
        names = context_of(self.edit.graph).names
        parts = [
            gs.Variable(names.claim(f"{self.node.name}_part"), _FLOAT32, one) for _ in range(size)
        ]
        self.edit.node("Split", self.node, [self.x, sizes], outputs=parts, axis=axis)
        total, *others = parts
        for part in others:
            total = self.edit.add("Add", self.node, [total, part], _FLOAT32, one)
        return total, axis

    def product(self, op_type: str) -> tuple[gs.Tensor, int]:
        """Return the sum by a product with ones, and its last axis."""
        others = [axis for axis in range(len(self.shape)) if axis not in self.axes]
        dims = [self.shape[axis] for axis in others]
        order = [*others, *self.axes]
        if order != sorted(order):
            turned = [self.shape[axis] for axis in order]
            self.x = self.edit.add("Transpose", self.node, [self.x], _FLOAT32, turned, perm=order)
        if len(self.axes) > 1:
            flat = np.array([0] * len(others) + [-1], np.int64)
            sizes = self.edit.constant(f"{self.node.name}_flat", flat)
            self.x = self.edit.add("Reshape", self.node, [self.x, sizes], _FLOAT32, [*dims, None])
        total = self.edit.add(
            op_type, self.node, [self.x, self._ones()], _FLOAT32, [*dims, 1], **_call(0)
        )
        return total, len(others)

    def count(self) -> gs.Tensor:
        """Return the number of terms in float32; after `product` if it is not known."""
        if self.size is not None:
            return self.edit.constant(f"{self.node.name}_count", np.array(self.size, np.float32))
        return self.edit.add("Cast", self.node, [self._sizes()], _FLOAT32, [1], to=1)

    def _sizes(self) -> gs.Tensor:
        return self.edit.add("Shape", self.node, [self.x], np.dtype(np.int64), [1], start=-1)

    def _ones(self) -> gs.Tensor:
        name = f"{self.node.name}_ones"
        if self.size is not None:
            return self.edit.constant(name, np.ones((self.size, 1), np.float32))
        one = self.edit.constant(name, np.array([1], np.int64))
        sizes = self.edit.add(
            "Concat", self.node, [self._sizes(), one], np.dtype(np.int64), [2], axis=0
        )
        value = np.ones(1, np.float32)
        column = self.edit.add("ConstantOfShape", self.node, [sizes], value=value)
        column.dtype, column.shape = _FLOAT32, [None, 1]
        return column
