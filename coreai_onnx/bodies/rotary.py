"""The body of ``rope``: given or computed cosines and sines, then the rotation.

Angles are small, [batch, 1, length, lanes / 2]; they are repeated to the batch size for ONNX's
RotaryEmbedding, which rotates every head alike. The number of rotated lanes, and the base and scale
of the frequencies, are read from the call.
"""

from __future__ import annotations

import torch

from coreai_onnx.bodies.body import BodyBuilder, Variant, always_cast
from coreai_onnx.bodies.writers import writes
from coreai_onnx.lower.nodes.values import Value, dtype_of

NATIVE_SINCE = 23
"""The first opset with RotaryEmbedding."""
# Slice stops at the end of the axis.
_END = torch.iinfo(torch.int64).max


def _words(variant: Variant) -> list[str]:
    inputs = variant.inputs
    if "cos" in inputs and "sin" in inputs:
        words = ["per_head"] if _per_head(variant) else []
        inputs.pop("freqs", None)
    elif "position_ids" in inputs:
        words = ["positions"]
    else:
        words = ["offset"] if "offset" in inputs else ["sequence"]
    words += ["freqs"] if "freqs" in inputs else []
    words += ["interleaved"] if variant.attributes["interleaved"] else []
    words += ["partial"] if variant.attributes["dims"] else []
    words += ["rank3"] if len(inputs["input"].dims) == 3 else []
    return words


@writes("rope", words=_words)
def rope(b: BodyBuilder) -> Value:
    """Write the body; see :func:`coreai_onnx.composites.rotary.rope`."""
    first = b.variant.examples[0]
    assert first is not None
    x = b.inputs[0]
    if len(first.dims) == 3:
        x = b.op.unsqueeze(x, [0])
    if b.input("cos") is not None and b.input("sin") is not None:
        cos, sin = (_always_wide(b, n) for n in ("cos", "sin"))
    else:
        angle = _angles(b, x, partial=b.attributes["dims"] > 0)
        cos, sin = b.op.Cos(angle), b.op.Sin(angle)
    # RotaryEmbedding does not accept float64.
    if b.opset >= NATIVE_SINCE and b.dtype != torch.float64 and not _per_head(b.variant):
        result = _as_onnx_rotary_embedding(b, x, (cos, sin))
    else:
        result = _in_basic_ops(b, x, (cos, sin))
    return b.op.squeeze(result, [0]) if len(first.dims) == 3 else result


def _per_head(variant: Variant) -> bool:
    """Whether given cosines and sines differ from head to head."""
    tables = [variant.inputs[n] for n in ("cos", "sin") if n in variant.inputs]
    return len(tables) == 2 and any(len(e.dims) > 2 and e.dims[-3] != 1 for e in tables)


# ---------------------------------------------------------------------- angles
def _angles(b: BodyBuilder, x: Value, *, partial: bool) -> Value:
    """Return position times frequency, ``[batch or 1, 1, length, lanes / 2]``."""
    op, positions = b.op, _positions(b, x)
    if b.input("freqs") is not None:
        freqs = _always_wide(b, "freqs")
    else:
        lanes = b.attribute("dims") if partial else op.squeeze(op.Shape(x, start=3), [0])
        half = op.Div(lanes, 2)
        exponents = op.Div(b.widened(op.Range(0, half, 1)), b.widened(half))
        freqs = op.Reciprocal(op.Pow(b.widened(b.attribute("base")), exponents))
    scaled = op.Mul(freqs, b.widened(b.attribute("scale")))
    return op.Mul(op.unsqueeze(positions, [-1]), scaled)


def _positions(b: BodyBuilder, x: Value) -> Value:
    """Return the positions, ``[batch or 1, 1, length]``."""
    op, positions = b.op, b.input("position_ids")
    if positions is not None:
        rows = op.Concat(op.const([1]), op.Shape(x, start=2, end=3), axis=0)
        return op.unsqueeze(op.Expand(_always_wide(b, "position_ids"), rows), [1])
    length = op.squeeze(op.Shape(x, start=2, end=3), [0])
    counted = b.widened(op.Range(0, length, 1))
    if b.input("offset") is not None:
        return op.Add(op.Reshape(_always_wide(b, "offset"), [-1, 1, 1]), counted)
    return op.unsqueeze(counted, [0, 1])


def _always_wide(b: BodyBuilder, name: str) -> Value:
    """Cast an input, even if redundant, so that one body holds for every dtype."""
    x = b.input(name)
    assert x is not None
    return always_cast(b.op, x, b.wide)


# ---------------------------------------------------------------------- rotation
def _as_onnx_rotary_embedding(b: BodyBuilder, x: Value, tables: tuple[Value, Value]) -> Value:
    op, one = b.op, b.op.const([1])
    rows = op.Concat(op.Shape(x, start=0, end=1), one, op.Shape(x, start=2, end=3), one, axis=0)
    rows_of_tables = [op.squeeze(op.Expand(table, rows), [1]) for table in tables]
    turned = op.RotaryEmbedding(
        b.widened(x),
        *rows_of_tables,
        interleaved=int(b.attributes["interleaved"] != 0),
        # 0 means all lanes in ONNX too.
        rotary_embedding_dim=b.ref("dims"),
    )
    return op.cast(turned, b.dtype)


def _in_basic_ops(b: BodyBuilder, x: Value, tables: tuple[Value, Value]) -> Value:
    op, lanes, rest = b.op, x, None
    if b.attributes["dims"] > 0:
        border = op.Reshape(b.attribute("dims"), [1])
        lanes = op.Slice(x, [0], border, [-1])
        rest = op.Slice(x, border, [_END], [-1])
    wide, (cos, sin) = b.widened(lanes), tables
    if b.attributes["interleaved"]:
        first, second = (op.Slice(wide, [start], [_END], [-1], [2]) for start in (0, 1))
    else:
        first, second = op.Split(wide, axis=-1, num_outputs=2, _outputs=2)
    turned = [
        op.Sub(op.Mul(cos, first), op.Mul(sin, second)),
        op.Add(op.Mul(sin, first), op.Mul(cos, second)),
    ]
    if b.attributes["interleaved"]:
        pairs = op.Concat(*(op.unsqueeze(t, [-1]) for t in turned), axis=-1)
        result = op.Reshape(pairs, op.Shape(lanes), allowzero=1)
    else:
        result = op.Concat(*turned, axis=-1)
    assert dtype_of(result) == dtype_of(wide)
    result = op.cast(result, b.dtype)
    return result if rest is None else op.Concat(result, rest, axis=-1)
