"""Bodies written with ONNX nodes instead of traced: ONNX's own normalisations, and attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from coreai_onnx.composite_ops.declaration import Composite
from coreai_onnx.functions import attention
from coreai_onnx.functions.body import BodyBuilder
from coreai_onnx.functions.trace import Example
from coreai_onnx.lower.builder import AttributeRef

Examples = Sequence[Example | None]
Writer = Callable[[BodyBuilder, Examples, Mapping[str, Any]], ir.Value | None]


def body(
    composite: Composite,
    examples: Examples,
    attributes: Mapping[str, Any],
    opset: int,
    dtype_word: str,
) -> ir.Function | None:
    """Return a written body, or None where the reference is traced.

    bfloat16 is left to the spelled-out body: onnxruntime has no kernels of these ops for it.
    """
    if composite.name == "scaled_dot_product_attention":
        builder = BodyBuilder(composite, [e is not None for e in examples], opset)
        return builder.finish([attention.write(builder, examples, attributes)])
    since, writer = _WRITERS.get(composite.name, (999, None))
    if writer is None or opset < since or dtype_word == "bfloat16":
        return None
    builder = BodyBuilder(composite, [e is not None for e in examples], opset)
    result = writer(builder, examples, attributes)
    return None if result is None else builder.finish([result])


def _layer_norm(b: BodyBuilder, examples: Examples, attributes: Mapping[str, Any]) -> Any:
    """LayerNormalization computes in float32 and needs a scale of the normalised shape."""
    if not _normalised_shape(examples, attributes) or _dtype(examples, 1) != _dtype(examples, 0):
        return None
    if _dtype(examples, 0) == torch.float64:
        return None
    axis, eps = min(attributes["axes"]), AttributeRef("eps", "float")
    return b.op.LayerNormalization(*b.inputs, axis=axis, epsilon=eps, stash_type=1)


def _rms_norm(b: BodyBuilder, examples: Examples, attributes: Mapping[str, Any]) -> Any:
    """RMSNormalization rounds before it scales, as the reference does for a scale of its dtype."""
    if _dtype(examples, 1) != _dtype(examples, 0) or _dtype(examples, 0) == torch.float64:
        return None
    axis, eps = min(attributes["axes"]), AttributeRef("eps", "float")
    return b.op.RMSNormalization(*b.inputs, axis=axis, epsilon=eps, stash_type=1)


_WRITERS: dict[str, tuple[int, Writer]] = {
    "layer_norm": (17, _layer_norm),
    "rms_norm": (23, _rms_norm),
}


def _dtype(examples: Examples, index: int) -> torch.dtype | None:
    example = examples[index] if index < len(examples) else None
    return None if example is None else example.dtype


def _normalised_shape(examples: Examples, attributes: Mapping[str, Any]) -> bool:
    """Whether scale and bias have exactly the normalised dims."""
    count = len(attributes["axes"])
    return all(e is None or (len(e.dims) == count and 1 not in e.dims) for e in examples[1:])


def variant_words(call: Any) -> list[str]:
    """Return the variant words of a call, one per group of its declaration at most."""
    name = call.composite.name
    return _WORDS[name](call) if name in _WORDS else []


def _attention_words(call: Any) -> list[str]:
    attributes, inputs = call.attributes, list(call.node.inputs)
    words = []
    if len(inputs) > 3 and inputs[3] is not None:
        words.append("mask" if inputs[3].dtype == ir.DataType.BOOL else "bias")
    else:
        parts = ["causal"] if attributes["is_causal"] else []
        parts += ["window"] if attributes["window_size"] > 0 else []
        upper_left = attributes["causal_alignment"] == "upper_left"
        parts += ["upper_left"] if parts and upper_left else []
        words += ["_".join(parts)] if parts else []
    words += ["sinks"] if len(inputs) > 4 and inputs[4] is not None else []
    words += ["softcap"] if attributes["softcap"] > 0 else []
    return words


def _norm_words(call: Any) -> list[str]:
    inputs = list(call.node.inputs)
    axes = len(call.attributes["axes"])
    words = [f"axes{axes}"] if axes > 1 else []
    if len(inputs) < 2 or inputs[1] is None:
        words.append("unscaled")
    elif inputs[1].dtype != inputs[0].dtype:
        words.append("wide_scale")
    elif call.composite.name == "layer_norm" and len(inputs) < 3:
        words.append("no_bias")
    return words


def _rope_words(call: Any) -> list[str]:
    inputs = [*call.node.inputs, *[None] * 6]
    if inputs[1] is not None and inputs[2] is not None:
        words = []
    elif inputs[3] is not None:
        words = ["positions"]
    else:
        words = ["offset"] if inputs[5] is not None else ["sequence"]
    words += ["freqs"] if inputs[4] is not None else []
    words += ["interleaved"] if call.attributes["interleaved"] else []
    words += ["partial"] if call.attributes["dims"] else []
    words += ["rank3"] if len(inputs[0].meta["dims"]) == 3 else []
    return words


_WORDS: dict[str, Callable[[Any], list[str]]] = {
    "scaled_dot_product_attention": _attention_words,
    "layer_norm": _norm_words,
    "rms_norm": _norm_words,
    "rope": _rope_words,
}
