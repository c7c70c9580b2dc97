"""Fuses biases with the activations after them: add_bias."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from coreai_onnx.model.inventory import STANDARD_DOMAIN
from coreai_onnx.passes.analysis.activations import activation_of, spelled_gelu_tanh
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.bodies import Bodies, makes_functions
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import (
    VIEWS,
    attribute_of,
    composite,
    dtype_of,
    is_standard,
    maker,
    shape_of,
)
from coreai_onnx.passes.engine.narrow import NARROW, Computation, computation, in_dtype
from coreai_onnx.passes.engine.why import Why

_FLOAT32 = np.dtype(np.float32)
_IN_ANY_ORDER = ("Transpose", *VIEWS)
"""Ops that an elementwise op can precede as well as follow."""


@makes_functions
@rewrites()
def fuse_biases(edit: Edit, node: gs.Node, why: Why, bodies: Bodies) -> bool:
    """Add of a constant row in bfloat16 or float16, and silu or gelu of the sum → add_bias.

    Add(x:bf16[…, n], b:bf16[n]) → s, gelu(s) → y
    becomes     add_bias(x, b, activation = gelu) → y

    onnxruntime has neither op in these dtypes on x86, and casts operands and results. The sum is
    not rounded before the activation.
    """
    return _fuse(edit, node, why, bodies, NARROW)


@makes_functions
@rewrites()
def fuse_float32_biases(edit: Edit, node: gs.Node, why: Why, bodies: Bodies) -> bool:
    """The same in float32, for an activation with the same bits on every processor.

    Add(x[…, n], b[n]) → s, gelu(s) → y
    becomes     add_bias(x, b, activation = gelu) → y

    An activation without a bias gets one of zeros.
    """
    if _fuse(edit, node, why, bodies, (_FLOAT32,)):
        return True
    activation = activation_of(node.outputs[0]) if len(node.outputs) == 1 else None
    activation = activation or spelled_gelu_tanh(node)
    if activation is None or dtype_of(activation.input) != _FLOAT32:
        return False
    if not any(isinstance(size, int) and size > 0 for size in shape_of(activation.input) or ()):
        return why("the size of no axis is known", node)
    op_type = _call(bodies, node, activation.kind, why)
    return op_type is not None and _activate_rows(
        edit, node, op_type, activation.kind, activation.input
    )


@makes_functions
@rewrites("Exp", "Sigmoid", "Tanh")
def functions_as_activations(edit: Edit, node: gs.Node, why: Why, bodies: Bodies) -> bool:
    """A function of float32, for which each processor has another formula → add_bias.

    Exp(x[…, n]) → y     becomes     add_bias(x, zeros[n], activation = exp) → y

    Rows of unknown size are viewed as rows of the sizes that are known.
    """
    x, dims = node.inputs[0], shape_of(node.inputs[0])
    if dtype_of(x) != _FLOAT32 or not dims:
        return why("it is not known to have rows of float32", node)
    kind = node.op.lower()
    op_type = _call(bodies, node, kind, why)
    return op_type is not None and _activate_rows(edit, node, op_type, kind, x)


def _activate_rows(edit: Edit, node: gs.Node, op_type: str, kind: str, x: gs.Tensor) -> bool:
    """Make a node compute an activation of float32, with a bias of zeros.

    Rows of unknown size are viewed as rows of the sizes that are known.
    """
    dims, attributes = shape_of(x) or (), _attributes(kind)
    width = dims[-1] if dims else None
    is_row = isinstance(width, int) and width > 0
    known = dims[-1:] if is_row else dims
    size = math.prod(dim for dim in known if isinstance(dim, int) and dim > 0)
    zeros = edit.constant(f"{node.name}_bias", np.zeros(size, np.float32))
    if is_row:
        edit.become(node, op_type, [x, zeros], **attributes)
        return True
    flat = edit.constant(f"{node.name}_rows", np.array([-1, size], np.int64))
    rows = edit.add("Reshape", node, [x, flat], _FLOAT32, [None, size])
    active = edit.add(op_type, node, [rows, zeros], _FLOAT32, [None, size], **attributes)
    shape = edit.add("Shape", node, [x], np.dtype(np.int64), [len(dims)])
    # A size of 0 is one, and not that of the rows.
    edit.become(node, "Reshape", [active, shape], allowzero=1)
    return True


def _fuse(
    edit: Edit, node: gs.Node, why: Why, bodies: Bodies, dtypes: tuple[np.dtype[Any], ...]
) -> bool:
    terms = _terms(edit, computation(node), dtypes)
    if terms is None:
        # The add_bias before it may be a node that the pass has just rewritten.
        return _activate(edit, bodies, node, why)
    op_type = _call(bodies, node, "none", why)
    if op_type is None:
        return False
    edit.become(node, op_type, terms, **_attributes("none"))
    return True


def _attributes(activation: str) -> dict[str, Any]:
    return {"domain": STANDARD_DOMAIN, "activation": activation, "version": 1}


def _call(bodies: Bodies, node: gs.Node, activation: str, why: Why) -> str | None:
    name = "add_bias" if activation == "none" else f"add_bias.{activation}"
    op_type = bodies.provide_composite(name, dtype_of(node.outputs[0]))
    if op_type is None:
        why(f"the model's {name} has another body", node)
    return op_type


def _terms(
    edit: Edit, total: Computation, dtypes: tuple[np.dtype[Any], ...]
) -> list[gs.Tensor] | None:
    """Return ``x`` and ``b`` of a sum in one of the dtypes; None for any other op."""
    dtype = dtype_of(total.outputs[0])
    if not is_standard(total, "Add") or dtype is None or dtype not in dtypes:
        return None
    for x, row in (total.inputs, total.inputs[::-1]):
        # The row must be constant: a sum of two computed tensors is a residual, which
        # fuse_skip_norms takes.
        shape, dims = shape_of(x), shape_of(row)
        if not isinstance(row, gs.Constant) or isinstance(x, gs.Constant) or not shape:
            continue
        bias = in_dtype(edit, row, dtype) if dims is not None and dims == shape[-1:] else None
        if bias is not None:
            return [x, bias]
    return None


def _activate(edit: Edit, bodies: Bodies, node: gs.Node, why: Why) -> bool:
    """Move the activation that a node computes into the add_bias before it."""
    activation = activation_of(node.outputs[0]) if len(node.outputs) == 1 else None
    path = [] if activation is None else _path_from_bias(edit, activation.input)
    bias = maker(path[-1]) if path else None
    if activation is None or bias is None:
        return False
    # Each activation has a body of its own: an attribute cannot choose between ops.
    op_type = _call(bodies, node, activation.kind, why)
    if op_type is None:
        return False
    edit.become(bias, op_type, list(bias.inputs), **_attributes(activation.kind))
    # Each value before the activation now has it: torch's value of that name does not.
    for tensor in path[1:]:
        edit.retitle(tensor, f"{tensor.name}_{activation.kind}")
    edit.absorb(node, activation.input)
    return True


def _path_from_bias(edit: Edit, tensor: gs.Tensor) -> list[gs.Tensor]:
    """Return the values from a tensor back to the add_bias without an activation that it moves.

    Empty if there is none, or if another node reads one of them.
    """
    path = []
    while len(tensor.outputs) == 1 and not edit.is_output(tensor):
        path.append(tensor)
        node = maker(tensor)
        if node is None or not edit.holds(node):
            return []
        if composite(node, "add_bias") is not None:
            return path if attribute_of(node, "activation", "none") == "none" else []
        if not is_standard(node, *_IN_ANY_ORDER):
            return []
        tensor = node.inputs[0]
    return []
