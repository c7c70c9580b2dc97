"""Fuses attention with the collection of its keys and values from blocks of a pool."""

from __future__ import annotations

from coreai_onnx.model.inventory import STANDARD_DOMAIN
from coreai_onnx.passes.analysis.attention_bodies import NAME as ATTENTION
from coreai_onnx.passes.analysis.attention_bodies import provide_variant
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.bodies import Bodies, makes_functions
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import (
    attribute_of,
    input_of,
    made_by,
    shape_of,
)
from coreai_onnx.passes.engine.why import Why
from coreai_onnx.passes.fuse.fuse_attention_nbits import NAME as ATTENTION_NBITS

NAME = "paged_attention"
_HEADS_FIRST = [0, 2, 1, 3]


@makes_functions
@rewrites(composites=(ATTENTION, ATTENTION_NBITS))
def fuse_paged_attention(edit: Edit, node: gs.Node, why: Why, bodies: Bodies) -> bool:
    """Attention to keys and values that are gathered from blocks → one ai.coreai::paged_attention.

    Gather(pool:[n, p, h, d], table:[b, w]) ─Reshape→ [b, w * p, h, d] ─Transpose→ keys, the same
    for values, attention(q, keys, values, mask)
    becomes     paged_attention(q, key_pool, value_pool, table, mask)

    Also of codes and scales: attention_nbits becomes paged_attention_nbits. The cache
    ``export_model(cache="paged")`` has this pattern. Our kernels read the blocks where they are;
    the bodies gather them as before.
    """
    is_coded = node.op.partition(".")[0] == ATTENTION_NBITS
    name, count = (f"{NAME}_nbits", 4) if is_coded else (NAME, 2)
    found = [_blocks(tensor) for tensor in node.inputs[1 : count + 1]]
    pools = [one for one in found if one is not None]
    if len(pools) < count:
        return False
    keys, values = pools[0], pools[-1]
    if any(one[1] is not keys[1] for one in pools):
        return why("keys and values are in other blocks", node)
    mask = input_of(node, count + 1)
    is_positional = attribute_of(node, "is_causal", 0) or attribute_of(node, "window_size", 0)
    if mask is None and is_positional != 0:
        return why("the positions of queries are not known without a mask", node)
    bits = attribute_of(node, "bits", 8)
    op_type = provide_variant(
        bodies, name, node, *["bits4"] * (bits == 4),
        value_heads=keys[2] != values[2], mask_at=count + 1,
    )  # fmt: skip
    if op_type is None:
        return why(f"the model's {name} has another body", node)
    inputs = [node.inputs[0], *(one[0] for one in pools), keys[1], *node.inputs[count + 1 :]]
    attributes = {"softcap": attribute_of(node, "softcap", 0.0), "version": 1}
    attributes |= {"bits": bits} if is_coded else {}
    if "scale" in node.attrs:
        attributes["scale"] = node.attrs["scale"]
    edit.become(node, op_type, inputs, domain=STANDARD_DOMAIN, **attributes)
    return True


def _blocks(tensor: gs.Tensor) -> tuple[gs.Tensor, gs.Tensor, int] | None:
    """Return the pool from which keys or values are gathered, the table, and the heads."""
    turned = made_by(tensor, "Transpose")
    if turned is None or list(attribute_of(turned, "perm", [])) != _HEADS_FIRST:
        return None
    flat = made_by(turned.inputs[0], "Reshape")
    gather = None if flat is None else made_by(flat.inputs[0], "Gather")
    if flat is None or gather is None or attribute_of(gather, "axis", 0) != 0:
        return None
    pool, table = gather.inputs
    dims, rows, result = (shape_of(x) or () for x in (pool, table, flat.outputs[0]))
    if (len(dims), len(rows), len(result)) != (4, 2, 4):
        return None
    # With the dims around them unchanged, the blocks of a row and their tokens are one axis.
    tokens, heads, dim = dims[1:]
    if rows[0] is None or (result[0], *result[2:]) != (rows[0], heads, dim):
        return None
    if not isinstance(heads, int) or not isinstance(dim, int) or not isinstance(tokens, int):
        return None
    # The composite takes blocks of a power of two of tokens only.
    return (pool, table, heads) if tokens.bit_count() == 1 else None
