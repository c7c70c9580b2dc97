"""Fuses root-mean-square normalization written with elementary ops, residual norms, softmax."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from coreai_onnx.model.inventory import STANDARD_DOMAIN
from coreai_onnx.passes.analysis.constant_expressions import constant_expression
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.bodies import Bodies, append_body, makes_functions
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import (
    attribute_of,
    axes_of,
    cast_to,
    dtype_of,
    is_standard,
    made_by,
    same_known_shape,
    scalar_of,
    scaled,
    shape_of,
)
from coreai_onnx.passes.engine.narrow import (
    Computation,
    computation,
    computed_by,
    in_dtype,
    widened_call,
)
from coreai_onnx.passes.engine.why import Why


@makes_functions
@rewrites("Mul", "Cast")
def fuse_rms_norm(edit: Edit, node: gs.Node, why: Why, bodies: Bodies) -> bool:
    """x / sqrt(mean(x²) + eps) * w, in five to nine nodes → one ai.coreai::rms_norm.

    x ─Pow(2)→ ─ReduceMean→ ─Add(eps)→ ─Sqrt→ ─Reciprocal→ r, Mul(w, Mul(x, r))
    becomes     rms_norm(x, w)

    The order of summation, and therefore rounding, may change.
    """
    product = computation(node)
    # The product with the scale is the last node, so that a norm without one stays as it is.
    norm = _norm(product) if is_standard(product, "Mul") else None
    if norm is None:
        return False
    x, scale, eps = norm
    shape, row, dtype = shape_of(x), shape_of(scale), dtype_of(x)
    if not shape or row is None or len(row) != 1 or row[0] != shape[-1]:
        size, actual = shape[-1] if shape else "?", "?" if row is None else list(row)
        return why(f"scale must have the size of the last axis, {size}, got {actual}", node)
    narrow = None if dtype is None else in_dtype(edit, scale, dtype)
    if narrow is None:
        return why("scale must have the dtype of the input", node)
    op_type = bodies.provide_composite("rms_norm", dtype)
    if op_type is None:
        return why("the model's rms_norm has another body", node)
    attrs = {"axes": [-1], "eps": eps, "version": 1}
    edit.become(node, op_type, [x, narrow], domain=STANDARD_DOMAIN, **attrs)
    return True


@makes_functions
@rewrites("Cast")
def narrow_norms(edit: Edit, node: gs.Node, why: Why, bodies: Bodies) -> bool:
    """A norm in float32 between Casts, as Gemma's, whose scale has more bits → rms_norm.

    x:bf16 ─Cast→ ─rms_norm(w:float)→ ─Cast→ y:bf16
    becomes     rms_norm(x, w:float)
    """
    found = widened_call(edit, node, "rms_norm")
    if found is None:
        return False
    norm, x, dtype = found
    if norm.op != "rms_norm" or list(norm.attrs["axes"]) != [-1]:
        return False
    op_type = bodies.provide_composite("rms_norm.wide_scale", dtype)
    if op_type is None:
        return why("the model's rms_norm has another body", node)
    edit.become(node, op_type, [x, norm.inputs[1]], domain=STANDARD_DOMAIN, **norm.attrs)
    return True


def _norm(product: Computation) -> tuple[gs.Tensor, gs.Tensor, float] | None:
    """Match ``w * narrow(normalized)``, the factors in either order; return x, w and eps."""
    for scale, other in (product.inputs, product.inputs[::-1]):
        # The norms of transformers compute in float32 and round before the scale is applied.
        cast = made_by(other, "Cast")
        normalized = cast.inputs[0] if cast is not None else other
        normal = _normalized(normalized)
        if normal is None:
            continue
        wide, eps = normal
        if cast is None:
            return wide, scale, eps
        inner = made_by(wide, "Cast")
        if inner is None or cast_to(inner) != ir.DataType.FLOAT:
            continue
        source = dtype_of(inner.inputs[0])
        if source is not None and source == ir.DataType(cast_to(cast) or 0).numpy():
            return inner.inputs[0], scale, eps
    return None


def _normalized(tensor: gs.Tensor) -> tuple[gs.Tensor, float] | None:
    """Match ``x * rsqrt(…)`` or ``x / sqrt(…)``; return x and eps."""
    product, quotient = made_by(tensor, "Mul"), made_by(tensor, "Div")
    if quotient is not None:
        eps = _root(quotient.inputs[1], quotient.inputs[0])
        return None if eps is None else (quotient.inputs[0], eps)
    if product is None:
        return None
    for x, factor in (product.inputs, product.inputs[::-1]):
        eps = _inverse_root(factor, x)
        if eps is not None:
            return x, eps
    return None


def _inverse_root(tensor: gs.Tensor, x: gs.Tensor) -> float | None:
    """Match ``1 / sqrt(mean(x²) + eps)``."""
    node = made_by(tensor, "Reciprocal", "Div", "Pow")
    if node is None:
        return None
    if node.op == "Pow":
        return _mean_square(node.inputs[0], x) if scalar_of(node.inputs[1], x) == -0.5 else None
    if node.op == "Div" and scalar_of(node.inputs[0], x) != 1.0:
        return None
    return _root(node.inputs[-1], x)


def _root(tensor: gs.Tensor, x: gs.Tensor) -> float | None:
    """Match ``sqrt(mean(x²) + eps)``."""
    root = made_by(tensor, "Sqrt")
    return None if root is None else _mean_square(root.inputs[0], x)


def _mean_square(tensor: gs.Tensor, x: gs.Tensor) -> float | None:
    """Match ``mean(x²) + eps`` over the last axis; return eps."""
    shifted = made_by(tensor, "Add")
    parts = None if shifted is None else scaled(shifted, x)
    mean = None if parts is None else made_by(parts[0], "ReduceMean")
    if parts is None or mean is None or attribute_of(mean, "keepdims", 1) != 1:
        return None
    rank = None if x.shape is None else len(x.shape)
    # None for an unknown rank equals no axis.
    if axes_of(mean) not in ([-1], [rank and rank - 1]):
        return None
    square, product = made_by(mean.inputs[0], "Pow"), made_by(mean.inputs[0], "Mul")
    is_power = (
        square is not None and square.inputs[0] is x and scalar_of(square.inputs[1], x) == 2.0
    )
    is_product = product is not None and all(factor is x for factor in product.inputs)
    return parts[1] if is_power or is_product else None


_NORMS = ("rms_norm", "layer_norm")


@makes_functions
@rewrites(composites=_NORMS)
def fuse_skip_norms(edit: Edit, node: gs.Node, why: Why, bodies: Bodies) -> bool:
    """Add, then rms_norm or layer_norm of the sum → skip_rms_norm or skip_layer_norm.

    Add(x, residual) → s, rms_norm(s, w) → y, s is read again
    becomes     skip_rms_norm(x, residual, w) → y, s
    """
    add = computed_by(node.inputs[0], "Add")
    if add is None or not edit.holds(add.last):
        return False
    if not same_known_shape(*add.inputs):
        return why("the terms are not known to have the same shape", node)
    if dtype_of(add.inputs[0]) != dtype_of(add.inputs[1]):
        return why("the terms have different dtypes", node)
    # A scale that is computed from the sum would make a cycle: the node that gives the sum
    # reads it.
    if any(tensor.inputs and constant_expression(tensor) is None for tensor in node.inputs[1:]):
        return why("scale or bias is computed", node)
    name = f"skip_{node.op}"
    op_type = _provided(bodies, name, node, dtype_of(add.inputs[0]))
    if op_type is None:
        return why(f"the model's {name} has another body", node)
    inputs, attrs = [*add.inputs, *node.inputs[1:]], dict(node.attrs)
    total = add.outputs[0]
    edit.become(node, op_type, inputs, domain=STANDARD_DOMAIN, **attrs)
    # The next block reads the sum again, under its name.
    edit.produce(node, total)
    edit.remove(add.last)
    return True


def _provided(bodies: Bodies, name: str, norm: gs.Node, dtype: np.dtype[Any] | None) -> str | None:
    """Return the op type of the sum followed by the body of the norm, which the model has."""
    # The writer of bodies decides between Add and Sum: onnxruntime fuses an Add with the norm,
    # which is slower since 1.30 (docs/internals/performance_log.md, Norms).
    body = bodies.body(f"{name.partition('.')[0]}/sum", dtype)
    function = bodies.function(norm)
    if body is None or function is None or not append_body(body, function):
        return None
    body.name = name
    return bodies.provide(body, dtype)


@makes_functions
@rewrites("Softmax")
def fuse_softmax(edit: Edit, node: gs.Node, why: Why, bodies: Bodies) -> bool:
    """Softmax → softmax, whose kernel sums a row in one order on every processor.

    Softmax(x, axis = 1)
    becomes     Transpose(softmax(Transpose(x)))

    There are no transposes if the axis is the last.
    """
    x, shape, dtype = node.inputs[0], shape_of(node.inputs[0]), dtype_of(node.inputs[0])
    axis = attribute_of(node, "axis", -1)
    if axis != -1 and shape is None:
        return why("the rank is not known", node)
    op_type = bodies.provide_composite("softmax", dtype)
    if op_type is None or dtype is None:
        return why("the model's softmax has another body", node)
    attrs: dict[str, Any] = {"domain": STANDARD_DOMAIN, "version": 1}
    last = len(shape or ()) - 1
    if shape is None or axis in (-1, last):
        edit.become(node, op_type, [x], **attrs)
        return True
    perm = list(range(last + 1))
    perm[axis], perm[last] = last, perm[axis]
    turned = [shape[i] for i in perm]
    rows = edit.add("Transpose", node, [x], dtype, turned, perm=perm)
    chosen = edit.add(op_type, node, [rows], dtype, turned, **attrs)
    edit.become(node, "Transpose", [chosen], perm=perm)
    return True
