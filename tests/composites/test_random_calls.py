"""Random shapes, masks, head groups, windows and offsets: body = torch, and kernel = torch.

Every example makes one model with symbolic sizes and runs it on two sets of sizes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coreai_onnx.errors import KernelsNotBuiltError
from coreai_onnx.runtime import ops_library_path
from tests.lower.checking import open_model, run_session
from tests.support.composite_calls import Case, Shape
from tests.support.tolerances import assert_close

EXAMPLES = settings(max_examples=30)
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.float16])
OPSETS = st.sampled_from([18, 23])
SMALL = st.integers(1, 5)


@pytest.fixture(scope="module")
def library() -> Path | None:
    """The kernel library, if it is built."""
    try:
        return ops_library_path()
    except KernelsNotBuiltError:
        return None


def compare(cases: tuple[Case, Case], dtype: torch.dtype, opset: int, library: Path | None) -> None:
    """Make the model of the first case; run both cases through it, and through the kernels."""
    model = cases[0].model(dtype, dynamic=True, opset=opset)
    for value in model.graph.inputs:
        rank = len(value.shape or ())
        value.shape = type(value.shape)([f"{value.name}_{i}" for i in range(rank)])
    sessions = {"body": open_model(model)}
    if library is not None:
        sessions["kernel"] = open_model(model, library=library)
    for case in cases:
        inputs = case.inputs(dtype)
        expected = case.expected_outputs(inputs)
        for name, session in sessions.items():
            assert_close(run_session(session, inputs), expected, message=name)


def both(case: Case, shapes: tuple[Shape | None, ...]) -> tuple[Case, Case]:
    """Return a case and the same with other sizes."""
    return case, replace(case, shapes=shapes)


# ---------------------------------------------------------------------- attention
@st.composite
def attention(draw: st.DrawFn) -> tuple[Case, Case]:
    """Two attentions of one kind."""
    own_values = draw(st.booleans())
    mask = draw(st.sampled_from([None, torch.bool, torch.float32, "own"]))
    mask_dims = draw(st.lists(st.booleans(), min_size=1, max_size=4))
    sinks = draw(st.booleans())
    attributes: dict[str, Any] = {
        "scale": draw(st.sampled_from([0.25, 1.0])),
        "is_causal": draw(st.integers(0, 1)),
        "window_size": draw(st.integers(0, 4)),
        "causal_alignment": draw(st.sampled_from(["lower_right", "upper_left"])),
        "softcap": draw(st.sampled_from([0.0, 1.5])),
    }
    shapes = [_attention_shapes(draw, own_values, mask, mask_dims, sinks) for _ in range(2)]
    dtypes = {3: mask} if isinstance(mask, torch.dtype) else {}
    name = "scaled_dot_product_attention"
    return both(Case(name, shapes[0], attributes, dtypes, "random"), shapes[1])


def _attention_shapes(
    draw: st.DrawFn, own_values: bool, mask: Any, mask_dims: list[bool], sinks: bool
) -> tuple[Shape | None, ...]:
    batch, kv, groups = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    queries, keys, lanes, values = draw(SMALL), draw(st.integers(1, 9)), draw(SMALL), draw(SMALL)
    heads = kv * groups
    value_heads = kv
    if own_values:  # another number of heads than the keys', as the model was made for
        heads, kv, value_heads = heads * 2, kv * 2, 1
    full = (batch, heads, queries, keys)
    given_mask = tuple(
        size if whole else 1
        for size, whole in zip(full[4 - len(mask_dims) :], mask_dims, strict=True)
    )
    return (
        (batch, heads, queries, lanes),
        (batch, kv, keys, lanes),
        (batch, value_heads, keys, values),
        given_mask if mask is not None else None,
        (heads,) if sinks else None,
    )


@EXAMPLES
@given(cases=attention(), dtype=DTYPES, opset=OPSETS)
def test_attention(
    library: Path | None, cases: tuple[Case, Case], dtype: torch.dtype, opset: int
) -> None:
    compare(cases, dtype, opset, library)


# ---------------------------------------------------------------------- rotation
@st.composite
def rotation(draw: st.DrawFn) -> tuple[Case, Case]:
    """Two rotations of one kind."""
    source = draw(st.sampled_from(["tables", "positions", "offset", "sequence"]))
    partial, rank3, per_row = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    freqs = source != "tables" and draw(st.booleans())
    rotated = 2 * draw(st.integers(1, 3))
    shapes = [
        _rotation_shapes(draw, source, rotated, partial, rank3, per_row, freqs) for _ in range(2)
    ]
    attributes = {
        "scale": draw(st.sampled_from([1.0, 0.5])),
        "base": draw(st.sampled_from([10000.0, 50.0])),
        "dims": rotated if partial else 0,
        "interleaved": draw(st.integers(0, 1)),
    }
    index = draw(st.sampled_from([torch.int64, torch.int32]))
    dtypes = {3: index, 4: torch.float32, 5: index}
    return both(Case("rope", shapes[0], attributes, dtypes, "random"), shapes[1])


def _rotation_shapes(
    draw: st.DrawFn,
    source: str,
    rotated: int,
    partial: bool,
    rank3: bool,
    per_row: bool,
    freqs: bool,
) -> tuple[Shape | None, ...]:
    batch, heads, length = 1 if rank3 else draw(st.integers(1, 3)), draw(SMALL), draw(SMALL)
    lanes = rotated + (draw(st.integers(1, 3)) if partial else 0)
    rows = batch if per_row and not rank3 else 1
    table = (length, rotated // 2) if rank3 or not per_row else (rows, 1, length, rotated // 2)
    place: Shape = (rows, 1) if per_row else (draw(st.sampled_from([1])),)
    return (
        (heads, length, lanes) if rank3 else (batch, heads, length, lanes),
        table if source == "tables" else None,
        table if source == "tables" else None,
        (rows, length) if source == "positions" else None,
        (rotated // 2,) if freqs else None,
        place if source == "offset" else None,
    )


@EXAMPLES
@given(cases=rotation(), dtype=DTYPES, opset=OPSETS)
def test_rotation(
    library: Path | None, cases: tuple[Case, Case], dtype: torch.dtype, opset: int
) -> None:
    compare(cases, dtype, opset, library)


# ---------------------------------------------------------------------- norms
@st.composite
def norm(draw: st.DrawFn, name: str) -> tuple[Case, Case]:
    """Two norms of one kind; a scale may be broadcast."""
    rank, count = draw(st.integers(1, 4)), 1
    count = draw(st.integers(1, min(rank, 3)))
    has_scale = draw(st.booleans())
    has_bias = name == "layer_norm" and draw(st.booleans())
    stretched = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    wide = draw(st.sampled_from([None, torch.float32]))
    shapes = []
    for _ in range(2):
        x = tuple(draw(st.lists(st.integers(1, 6), min_size=rank, max_size=rank)))
        tail = x[rank - count :]
        scale = tuple(1 if s else d for d, s in zip(tail, stretched, strict=True))
        shapes.append((x, scale if has_scale else None, tail if has_bias else None))
    attributes = {"axes": tuple(range(-count, 0)), "eps": draw(st.sampled_from([1e-3, 1.0]))}
    dtypes = {} if wide is None else {1: wide, 2: wide}
    trimmed = [s if name == "layer_norm" else s[:2] for s in shapes]
    return both(Case(name, trimmed[0], attributes, dtypes, "random"), trimmed[1])


@EXAMPLES
@given(cases=norm("rms_norm"), dtype=DTYPES, opset=OPSETS)
def test_rms_norm(
    library: Path | None, cases: tuple[Case, Case], dtype: torch.dtype, opset: int
) -> None:
    compare(cases, dtype, opset, library)


@EXAMPLES
@given(cases=norm("layer_norm"), dtype=DTYPES, opset=OPSETS)
def test_layer_norm(
    library: Path | None, cases: tuple[Case, Case], dtype: torch.dtype, opset: int
) -> None:
    compare(cases, dtype, opset, library)
