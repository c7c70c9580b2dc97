"""Attention: its bodies, constants that calls pass, and the two layouts of heads."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.bodies import Bodies, model_bodies
from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.match import Dim, attribute_of, dtype_of, input_of, shape_of

NAME = "scaled_dot_product_attention"
_CAUSAL = f"{NAME}.causal_upper_left"


def attention_without_mask(
    bodies: Bodies, node: gs.Node, word: str, *, causal: bool = False
) -> str | None:
    """Return the op type of an attention without a mask; None if every name is taken.

    In a model whose attentions all have masks, the body with the mask has the plain name. It is
    then renamed to the variant ``word``.

    Args:
        bodies: The functions of the model.
        node: The attention with the mask that is removed.
        word: Its variant.
        causal: Whether query ``i`` attends only to keys up to ``i``.
    """
    function = bodies.named(NAME)
    # The inputs are queries, keys, values and, if there is one, the mask.
    masked = function is not None and len(function.inputs) > 3
    if masked and not bodies.rename(NAME, f"{NAME}.{word}"):
        return None
    dtype = dtype_of(node.inputs[0])
    if causal:
        return bodies.provide_composite(_CAUSAL, dtype, NAME, _CAUSAL)
    return bodies.provide_composite(NAME, dtype)


def provide_variant(
    bodies: Bodies,
    name: str,
    node: gs.Node,
    *further: str,
    value_heads: bool = False,
    mask_at: int = 3,
) -> str | None:
    """Return the op type of another composite for an attention; None if it has another body.

    Args:
        bodies: The functions of the model.
        name: The composite.
        node: The attention, whose mask, sinks and attributes are those of the composite.
        *further: Words of the variant beside those of attention.
        value_heads: Whether values have other heads than keys.
        mask_at: The place of the mask among the inputs of the attention; sinks follow it.
    """
    # The words are in the order of the composite's `variant_axes`.
    mask, sinks = input_of(node, mask_at), input_of(node, mask_at + 1)
    if mask is not None:
        words = ["mask" if dtype_of(mask) == np.bool_ else "bias"]
    else:
        words = ["causal"] if attribute_of(node, "is_causal", 0) else []
        words += ["window"] if attribute_of(node, "window_size", 0) > 0 else []
        upper_left = attribute_of(node, "causal_alignment", "lower_right") == "upper_left"
        words += ["upper_left"] if words and upper_left else []
    words += ["sinks"] if sinks is not None else ["value_heads"] * value_heads
    words += ["softcap"] if attribute_of(node, "softcap", 0.0) > 0 else []
    return provide_words(bodies, name, [*words, *further], dtype_of(node.inputs[0]))


def provide_words(
    bodies: Bodies, name: str, words: Iterable[str], dtype: np.dtype | None
) -> str | None:
    """Return the op type of the variant of a composite with these words; None as above."""
    variant = ".".join(filter(None, (name, "_".join(words))))
    return bodies.provide_composite(variant, dtype, *dict.fromkeys((name, variant)))


def unsupported(node: gs.Node) -> str:
    """Return what onnxruntime's operators for attention do not compute; empty if nothing."""
    if attribute_of(node, "softcap", 0.0) or attribute_of(node, "window_size", 0):
        return "there is a soft cap or a window"
    return "" if input_of(node, 4) is None else "there are sinks"


def shares_heads(node: gs.Node) -> bool:
    """Whether keys and values are known to have the same number of heads."""
    keys, values = (shape_of(tensor) for tensor in node.inputs[1:3])
    if keys is None or values is None or len(keys) != 4 or len(values) != 4:
        return False
    return keys[1] is not None and keys[1] == values[1]


def constants_behind(graph: gs.Graph, tensor: gs.Tensor) -> list[gs.Constant] | None:
    """Return the constants that a tensor may be; None if it may be something else.

    An input of a function is what any call of it passes.

    Args:
        graph: A graph of the model.
        tensor: A tensor that its nodes read.
    """
    if isinstance(tensor, gs.Constant):
        return [tensor]
    bodies = model_bodies(graph)
    passed = None if bodies is None else bodies.passed(tensor)
    # The result of a node, an input of the model, or a function that nothing calls.
    if not passed:
        return None
    groups = [constants_behind(graph, argument) for argument in passed]
    if any(constants is None for constants in groups):
        return None
    # Several calls may pass the same constant, as layers with tied weights do.
    return list({id(one): one for constants in groups for one in constants or ()}.values())


PERM = [0, 2, 1, 3]
"""The permutation from one layout to the other, and back."""


def joined_heads(
    edit: Edit, tensor: gs.Tensor, like: gs.Node, width: int
) -> tuple[gs.Tensor, gs.Tensor]:
    """Return ``[b, h, s, d]`` transposed, and as ``[b, s, width]``; both still untyped."""
    turned = edit.add("Transpose", like, [tensor], perm=PERM)
    target = edit.constant(f"{tensor.name}_row", np.array([0, 0, width], np.int64))
    return turned, edit.add("Reshape", like, [turned, target])


def split_heads(edit: Edit, row: gs.Tensor, like: gs.Node, heads: int, size: int) -> gs.Tensor:
    """Return ``[b, s, heads * size]`` as ``[b, s, heads, size]``; still untyped."""
    target = edit.constant(f"{row.name}_heads", np.array([0, 0, heads, size], np.int64))
    return edit.add("Reshape", like, [row, target])


def side_by_side(edit: Edit, tensor: gs.Tensor, like: gs.Node) -> gs.Tensor:
    """Return ``tensor:[b, h, s, d]`` as ``[b, s, h * d]``, computed before ``like``.

    ``h`` and ``d`` must be static; the dtype does not change.
    """
    batch, heads, length, size = tensor.shape
    turned, row = joined_heads(edit, tensor, like, heads * size)
    apart: list[Dim] = [batch, length, heads, size]
    turned.dtype, turned.shape = tensor.dtype, apart
    row.dtype, row.shape = tensor.dtype, [batch, length, heads * size]
    return row


def become_heads(edit: Edit, node: gs.Node, row: gs.Tensor, heads: int) -> None:
    """Make ``node`` return ``row:[b, s, h * d]`` as ``[b, h, s, d]``; the dtype does not change."""
    batch, length, width = row.shape
    size = width // heads
    apart = split_heads(edit, row, node, heads, size)
    apart.dtype, apart.shape = row.dtype, [batch, length, heads, size]
    edit.become(node, "Transpose", [apart], perm=PERM)
