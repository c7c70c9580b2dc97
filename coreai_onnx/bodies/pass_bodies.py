"""The bodies of the composites that passes create, by the op type that a pass calls.

Passes do not import torch, so they import this file when they create the first body.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx_ir as ir
import torch

from coreai_onnx.bodies.library import KEPT_BODIES
from coreai_onnx.bodies.trace import Example
from coreai_onnx.bodies.writers import write_body
from coreai_onnx.composites import COMPOSITES
from coreai_onnx.composites.declaration import FLOAT_DTYPES


@dataclass(frozen=True)
class PassCall:
    """A call that a pass creates.

    Attributes:
        composite: Name of the composite.
        dims: Dims of each input as letters; None for an absent input, a pair with a dtype if it
            is not that of the call.
        attributes: Structural attributes.
        output: The only output that the pass uses; empty for all of them.
    """

    composite: str
    dims: tuple[str | tuple[str, torch.dtype] | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    output: str = ""


def _named(composite: str, *words: str) -> str:
    """Return the op type of a composite in the variant of the words that are not empty."""
    return ".".join(filter(None, [composite, "_".join(filter(None, words))]))


def _linear_nbits() -> Iterator[tuple[str, PassCall]]:
    """Yield the calls of linear_nbits: every number of bits, with and without zero points."""
    for bits, zeros in itertools.product((8, 4, 3, 2), (False, True)):
        dims = ("A2 A1", ("N G B", torch.uint8), "N G", ("N G", torch.uint8))
        name = _named("linear_nbits", f"bits{bits}" * (bits != 4), "zero_points" * zeros)
        attributes = {"bits": bits, "activation_bits": 0, "scale_bits": 0}
        yield name, PassCall("linear_nbits", dims[: 3 + zeros], attributes)


def _convolutions() -> Iterator[tuple[str, PassCall]]:
    """Yield the calls of convolution: with and without a bias, a residual and relu."""
    words = (("", "no_bias"), ("", "residual"), ("", "relu"))
    for unbiased, residual, relu in itertools.product(*words):
        dims = ("N C H W", "O I Y X", None if unbiased else "O", "N O V U" if residual else None)
        name = _named("convolution", unbiased, residual, relu)
        yield name, PassCall("convolution", dims, {"activation": relu or "none"})


def _paged_attention() -> Iterator[tuple[str, PassCall]]:
    """Yield the calls of attention to blocks: masks, sinks or heads of values, softcap, bits."""
    masks = {"": None, "mask": ("1 1 1 S", torch.bool), "bias": "1 1 1 S"}
    for mask, extra, cap in itertools.product(masks, ("", "sinks", "value_heads"), ("", "softcap")):
        values = "N P V E" if extra == "value_heads" else "N P K E"
        dims = ("B H T D", "N P K D", values, ("B W", torch.int64), masks[mask])
        name = _named("paged_attention", mask, extra, cap)
        sinks = ("H",) if extra == "sinks" else ()
        attributes = {"softcap": float(cap != "")}
        yield name, PassCall("paged_attention", (*dims, *sinks), attributes)
        codes = ("B H T D", ("N P K C", torch.uint8), "N P K 1",
                 (values, torch.uint8), f"{values[:-1]}1")  # fmt: skip
        for word, bits in {"": 8, "bits4": 4}.items():
            name = _named("paged_attention_nbits", mask, extra, cap, word)
            further = (*codes, *dims[3:], *sinks)
            yield name, PassCall("paged_attention_nbits", further, attributes | {"bits": bits})


def _bshd_attention() -> Iterator[tuple[str, PassCall]]:
    """Yield the calls of attention with heads behind tokens: what hides keys."""
    causal = {"is_causal": 0, "causal_alignment": "lower_right"}
    masks = {"": None, "mask": ("1 1 1 S", torch.bool), "bias": "1 1 1 S"}
    name, dims = "scaled_dot_product_attention_bshd", ("B T H D", "B S K D", "B S K E")
    for word, mask in masks.items():
        yield _named(name, word), PassCall(name, (*dims, mask), causal)
    yield f"{name}.causal", PassCall(name, dims, causal | {"is_causal": 1})
    upper_left = {"is_causal": 1, "causal_alignment": "upper_left"}
    yield f"{name}.causal_upper_left", PassCall(name, dims, upper_left)


def _attention_nbits() -> Iterator[tuple[str, PassCall]]:
    """Yield the calls of attention_nbits: masks, sinks or heads of values, softcap, bits."""
    words = [
        ("", "mask", "bias", "causal", "window", "causal_window"),
        ("", "sinks", "value_heads"),
        ("", "softcap"),
        ("", "bits4"),
    ]
    masks: Mapping[str, str | tuple[str, torch.dtype]]
    masks = {"mask": ("1 1 1 S", torch.bool), "bias": "1 1 1 S"}
    for places, extra, cap, bits in itertools.product(*words):
        values = "V" if extra == "value_heads" else "K"
        mask = masks.get(places)
        dims = ("B H T D", ("B K S C", torch.uint8), "B K S 1",
                (f"B {values} S E", torch.uint8), f"B {values} S 1", mask)  # fmt: skip
        sinks = ("H",) if extra == "sinks" else ()
        attributes = _OPEN | {
            "is_causal": int(places.startswith("causal")),
            "window_size": int(places.endswith("window")),
            "softcap": float(cap != ""),
            "bits": 4 if bits else 8,
        }
        name = _named("attention_nbits", places, extra, cap, bits)
        yield name, PassCall("attention_nbits", (*dims, *sinks), attributes)


def _attention() -> Iterator[tuple[str, PassCall]]:
    """Yield the calls of attention: biases, sinks, softcap."""
    name, words = "scaled_dot_product_attention", ("bias", "sinks", "softcap")
    for bias, sinks, cap in itertools.product(*(("", word) for word in words)):
        attributes = _OPEN | {"softcap": float(cap != "")}
        dims = (*_ATTENTION, "1 1 1 S" if bias else None, *["H"] * bool(sinks))
        yield _named(name, bias, sinks, cap), PassCall(name, dims, attributes)


_ATTENTION = ("B H T D", "B K S D", "B K S E")
_OPEN = {"is_causal": 0, "window_size": 0, "causal_alignment": "lower_right", "softcap": 0.0}
_ROTATED = ("B H T D", "B 1 T F", "B 1 T F")
_PLAIN = {"num_batch_axes": 0, "transpose_rhs": 0}


CALLS: Mapping[str, PassCall] = {
    "rms_norm": PassCall("rms_norm", ("A2 A1", "A1"), {"axes": (-1,)}),
    "rms_norm.wide_scale": PassCall("rms_norm", ("A2 A1", ("A1", torch.float32)), {"axes": (-1,)}),
    "rope": PassCall("rope", _ROTATED, {"interleaved": 0, "dims": 0}),
    "rope.interleaved": PassCall("rope", _ROTATED, {"interleaved": 1, "dims": 0}),
    "swiglu": PassCall("swiglu", ("A2 A1", "A2 A1")),
    "geglu": PassCall("geglu", ("A2 A1", "A2 A1"), {"approximate": "none"}),
    "geglu.tanh": PassCall("geglu", ("A2 A1", "A2 A1"), {"approximate": "tanh"}),
    "add_bias": PassCall("add_bias", ("A2 A1", "A1"), {"activation": "none"}),
    **{
        f"add_bias.{kind}": PassCall("add_bias", ("A2 A1", "A1"), {"activation": kind})
        for kind in ("silu", "gelu", "gelu_tanh", "sigmoid", "tanh", "exp")
    },
    **dict(_convolutions()),
    "softmax": PassCall("softmax", ("A2 A1",)),
    "kv_cache_update": PassCall("kv_cache_update", ("B H S D", "B H T D", ("B", torch.int64))),
    "skip_rms_norm/sum": PassCall("skip_rms_norm", ("A2 A1",) * 2, {"axes": (-1,)}, "sum"),
    "skip_layer_norm/sum": PassCall("skip_layer_norm", ("A2 A1",) * 2, {"axes": (-1,)}, "sum"),
    "scaled_dot_product_attention.causal_upper_left": PassCall(
        "scaled_dot_product_attention",
        _ATTENTION,
        _OPEN | {"is_causal": 1, "causal_alignment": "upper_left"},
    ),
    "gather_mm": PassCall("gather_mm", ("A3 A2 A1", "A1 N"), _PLAIN),
    "gather_mm.transposed": PassCall(
        "gather_mm", ("A3 A2 A1", "N A1"), _PLAIN | {"transpose_rhs": 1}
    ),
    "add_low_rank": PassCall("add_low_rank", ("A3 A2 A1", "A3 A2 K", "C K R", "C R A1")),
    **dict(_linear_nbits()),
    **dict(_attention()),
    **dict(_paged_attention()),
    **dict(_bshd_attention()),
    **dict(_attention_nbits()),
}
"""The calls, by op type with its variant, which determines the body, or by a part of a body."""


@functools.lru_cache(KEPT_BODIES)
def write_pass_body(name: str, dtype: str, opset: int) -> ir.Function | None:
    """Return the body of a call, as a conversion writes it. Clone it before changing it.

    Args:
        name: A key of `CALLS`.
        dtype: Dtype of the first input.
        opset: ``ai.onnx`` opset of the body.

    Returns:
        The body; None if composites do not accept the dtype.
    """
    if dtype not in FLOAT_DTYPES:
        return None
    call = CALLS[name]
    composite = COMPOSITES[call.composite]
    dims = [*call.dims, *[None] * (len(composite.inputs) - len(call.dims))]
    examples = [None if d is None else _example(d, getattr(torch, dtype)) for d in dims]
    body = write_body(composite, examples, call.attributes, opset)
    assert body is not None, f"{call.composite} has no writer"
    body.name = name
    if call.output:
        _keep_output(body, call.output)
    _simplify(body)
    return body


def _example(dims: str | tuple[str, torch.dtype], dtype: torch.dtype) -> Example:
    letters, element = (dims, dtype) if isinstance(dims, str) else dims
    return Example(element, tuple(1 if d == "1" else d for d in letters.split()))


def _keep_output(function: ir.Function, name: str) -> None:
    """Remove the other outputs of a function, and what only they need."""
    outputs = function.graph.outputs
    outputs[:] = [value for value in outputs if value.name == name]
    # Last node first: a node loses its last use when the nodes that read it are removed.
    for node in reversed(list(function)):
        if not any(value.uses() or value.is_graph_output() for value in node.outputs):
            function.remove(node, safe=True)


def _simplify(function: ir.Function) -> None:
    """Name the nodes by their outputs, and store the constants without names, as typed data.

    A parser of ONNX's text form gives the same function: a file does not depend on whether an
    earlier release, whose passes parsed the bodies, or this one optimized the model.
    """
    for index, node in enumerate(function):
        for value in node.outputs:
            value.name = (value.name or "").replace(".", "_")
        node.name = node.outputs[0].name or f"{node.op_type}_{index}"
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.TENSOR:
                values = attribute.as_tensor().numpy()
                kind = onnx.helper.np_dtype_to_tensor_dtype(values.dtype)
                proto = onnx.helper.make_tensor("", kind, values.shape, values.ravel().tolist())
                node.attributes.add(ir.AttrTensor(attribute.name, ir.TensorProtoTensor(proto)))
