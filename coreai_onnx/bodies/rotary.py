"""The body of ``rope``: given or computed cosines and sines, then the rotation.

Angles are small, [batch, 1, length, lanes / 2]; they are repeated to the batch size for ONNX's
RotaryEmbedding, which rotates every head alike. The number of rotated lanes, and the base and scale
of the frequencies, are read from the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from coreai_onnx.bodies.body import BodyBuilder
from coreai_onnx.bodies.norms import widened
from coreai_onnx.bodies.writers import Examples, present, writes
from coreai_onnx.composites.declaration import Composite
from coreai_onnx.lower.build.scope import AttributeRef
from coreai_onnx.lower.build.values import Value, dtype_of, ir_dtype

NATIVE_SINCE = 23
_END = torch.iinfo(torch.int64).max


def _words(composite: Composite, examples: Examples, attributes: Mapping[str, Any]) -> list[str]:
    given = present(composite, examples)
    if "cos" in given and "sin" in given:
        words = ["per_head"] if per_head(composite, examples) else []
        given.pop("freqs", None)
    elif "position_ids" in given:
        words = ["positions"]
    else:
        words = ["offset"] if "offset" in given else ["sequence"]
    words += ["freqs"] if "freqs" in given else []
    words += ["interleaved"] if attributes["interleaved"] else []
    words += ["partial"] if attributes["dims"] else []
    words += ["rank3"] if len(given["input"].dims) == 3 else []
    return words


@writes("rope", words=_words)
def write(b: BodyBuilder, examples: Examples, attributes: Mapping[str, Any]) -> Value:
    """Write the body; see :func:`coreai_onnx.composites.rotary.rope`."""
    first = examples[0]
    assert first is not None
    x = b.inputs[0]
    if len(first.dims) == 3:
        x = b.op.unsqueeze(x, [0])
    if b.given("cos") is not None and b.given("sin") is not None:
        cos, sin = (_always_wide(b, n) for n in ("cos", "sin"))
    else:
        angle = _angles(b, x, partial=attributes["dims"] > 0)
        cos, sin = b.op.Cos(angle), b.op.Sin(angle)
    if b.opset >= NATIVE_SINCE and b.dtype != torch.float64 and not per_head(b.composite, examples):
        result = _as_onnx_rotary_embedding(b, x, (cos, sin), attributes)
    else:
        result = _in_basic_ops(b, x, (cos, sin), attributes)
    return b.op.squeeze(result, [0]) if len(first.dims) == 3 else result


def per_head(composite: Any, examples: Examples) -> bool:
    """Whether given cosines and sines differ from head to head."""
    given = {d.name: e for d, e in zip(composite.inputs, examples, strict=False) if e is not None}
    tables = [given[n] for n in ("cos", "sin") if n in given]
    return len(tables) == 2 and any(len(e.dims) > 2 and e.dims[-3] != 1 for e in tables)


# ---------------------------------------------------------------------- angles
def _angles(b: BodyBuilder, x: Value, *, partial: bool) -> Value:
    """Return position times frequency, ``[batch or 1, 1, length, lanes / 2]``."""
    op, positions = b.op, _positions(b, x)
    if b.given("freqs") is not None:
        freqs = _always_wide(b, "freqs")
    else:
        lanes = _attribute(b, "dims", "int") if partial else op.squeeze(op.Shape(x, start=3), [0])
        half = op.Div(lanes, 2)
        exponents = op.Div(widened(b, op.Range(0, half, 1)), widened(b, half))
        freqs = op.Reciprocal(op.Pow(widened(b, _attribute(b, "base", "float")), exponents))
    scaled = op.Mul(freqs, widened(b, _attribute(b, "scale", "float")))
    return op.Mul(op.unsqueeze(positions, [-1]), scaled)


def _positions(b: BodyBuilder, x: Value) -> Value:
    """Return the positions, ``[batch or 1, 1, length]``."""
    op, given = b.op, b.given("position_ids")
    if given is not None:
        rows = op.Concat(op.const([1]), op.Shape(x, start=2, end=3), axis=0)
        return op.unsqueeze(op.Expand(_always_wide(b, "position_ids"), rows), [1])
    length = op.squeeze(op.Shape(x, start=2, end=3), [0])
    counted = widened(b, op.Range(0, length, 1))
    if b.given("offset") is not None:
        positions = op.Add(op.Reshape(_always_wide(b, "offset"), [-1, 1, 1]), counted)
        return positions
    return op.unsqueeze(counted, [0, 1])


def _always_wide(b: BodyBuilder, name: str) -> Value:
    """Cast an input, even if redundant, so that one body holds for every dtype."""
    wide = torch.float64 if b.dtype == torch.float64 else torch.float32
    return b.op.Cast(b.given(name), to=int(ir_dtype(wide)))


def _attribute(b: BodyBuilder, name: str, type_: Any) -> Value:
    return b.scope.attribute(AttributeRef(name, type_))


# ---------------------------------------------------------------------- rotation
def _as_onnx_rotary_embedding(
    b: BodyBuilder, x: Value, given: tuple[Value, Value], attributes: Mapping[str, Any]
) -> Value:
    op, one = b.op, b.op.const([1])
    rows = op.Concat(op.Shape(x, start=0, end=1), one, op.Shape(x, start=2, end=3), one, axis=0)
    tables = [op.squeeze(op.Expand(table, rows), [1]) for table in given]
    turned = op.RotaryEmbedding(
        widened(b, x),
        *tables,
        interleaved=int(attributes["interleaved"] != 0),
        rotary_embedding_dim=AttributeRef("dims", "int"),
    )
    return op.cast(turned, b.dtype)


def _in_basic_ops(
    b: BodyBuilder, x: Value, tables: tuple[Value, Value], attributes: Mapping[str, Any]
) -> Value:
    op, lanes, rest = b.op, x, None
    if attributes["dims"] > 0:
        border = op.Reshape(_attribute(b, "dims", "int"), [1])
        lanes = op.Slice(x, [0], border, [-1])
        rest = op.Slice(x, border, [_END], [-1])
    wide, (cos, sin) = widened(b, lanes), tables
    if attributes["interleaved"]:
        first, second = (op.Slice(wide, [start], [_END], [-1], [2]) for start in (0, 1))
    else:
        first, second = op.Split(wide, axis=-1, num_outputs=2, _outputs=2)
    turned = [
        op.Sub(op.Mul(cos, first), op.Mul(sin, second)),
        op.Add(op.Mul(sin, first), op.Mul(cos, second)),
    ]
    if attributes["interleaved"]:
        pairs = op.Concat(*(op.unsqueeze(t, [-1]) for t in turned), axis=-1)
        result = op.Reshape(pairs, op.Shape(lanes), allowzero=1)
    else:
        result = op.Concat(*turned, axis=-1)
    assert dtype_of(result) == dtype_of(wide)
    result = op.cast(result, b.dtype)
    return result if rest is None else op.Concat(result, rest, axis=-1)
