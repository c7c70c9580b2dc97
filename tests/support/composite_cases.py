"""The calls to try each composite with."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from coreai_onnx.composites.few_bits import EMBEDDING_NBITS
from tests.support.attention_cases import ATTENTION_CASES
from tests.support.composite_calls import Case, Shape


def norm_cases() -> Iterator[Case]:
    """Normalizations: ranks, scales, several axes."""
    f32 = torch.float32
    for name in ("rms_norm", "layer_norm"):
        yield Case(name, ((2, 5, 16), (16,)), {"eps": 1e-6}, label="scaled")
        yield Case(name, ((3, 16),), {"eps": 1e-3}, label="unscaled")
        yield Case(name, ((2, 4, 8), (4, 8)), {"axes": (-2, -1)}, label="two_axes")
        yield Case(name, ((16,), (16,)), label="one_row")
        yield Case(name, ((2, 5, 16), (16,)), dtypes={1: f32}, label="wide_scale")
        yield Case(name, ((0, 16), (16,)), label="empty")
    yield Case("rms_norm", ((2, 3, 5, 16), (3, 1, 16)), label="per_head")
    yield Case("layer_norm", ((2, 5, 16), (16,), (16,)), label="scale_bias")
    yield Case("layer_norm", ((2, 5, 16), None, (16,)), label="bias_only")


def rope_cases() -> Iterator[Case]:
    """Rotary embedding: where the angles come from × lane order × partial."""
    i64, f32 = torch.int64, torch.float32
    x = (2, 3, 5, 8)
    sources: dict[str, tuple[tuple[Shape | None, ...], dict[int, torch.dtype]]] = {
        "sequence": ((x,), {}),
        "positions": ((x, None, None, (2, 5)), {3: i64}),
        "shared_positions": ((x, None, None, (1, 5)), {3: i64}),
        "offset0": ((x, None, None, None, None, ()), {5: i64}),
        "offset": ((x, None, None, None, None, (2,)), {5: i64}),
        "offset_column": ((x, None, None, None, None, (2, 1)), {5: i64}),
    }
    orders: dict[str, dict[str, Any]] = {"halves": {}, "interleaved": {"interleaved": 1}}
    for (source, (shapes, dtypes)), (order, attributes) in itertools.product(
        sources.items(), orders.items()
    ):
        yield Case("rope", shapes, attributes, dtypes, label=f"{source}_{order}")
    for order, attributes in orders.items():
        yield Case("rope", (x, (5, 4), (5, 4)), attributes, label=f"cos_sin_{order}")
        yield Case(
            "rope",
            (x, (2, 1, 5, 4), (2, 1, 5, 4)),
            attributes,
            {1: f32, 2: f32},
            label=f"wide_cos_sin_{order}",
        )
        yield Case("rope", (x,), {"dims": 4, **attributes}, label=f"partial_{order}")
        yield Case("rope", ((3, 5, 8),), attributes, label=f"rank3_{order}")
        yield Case(
            "rope",
            (x, None, None, (2, 5), (4,)),
            {**attributes, "scale": 0.5},
            {3: i64, 4: f32},
            label=f"freqs_{order}",
        )
    yield Case("rope", (x,), {"base": 500.0, "scale": 0.25}, label="base_scale")


def expert_cases() -> Iterator[Case]:
    """Gathered products: what indices choose from × layout of the matrices × batch axes."""
    name, i64, i32 = "gather_mm", torch.int64, torch.int32
    by_expert: dict[str, tuple[Shape, ...]] = {
        "token": ((7, 1, 8), (4, 8, 6), (7,)),
        "top_k": ((5, 1, 1, 8), (4, 8, 6), (5, 2)),
        "blocks": ((2, 3, 8), (4, 8, 6), (2,)),
        "one_expert": ((3, 8), (4, 8, 6), ()),
        "few_tokens": ((1, 1, 8), (40, 8, 6), (1,)),
        "no_tokens": ((0, 1, 8), (4, 8, 6), (0,)),
    }
    for label, (lhs, rhs, index) in by_expert.items():
        turned = (*rhs[:-2], rhs[-1], rhs[-2])
        yield Case(name, (lhs, rhs, None, index), {}, {3: i64}, label, limit=4)
        yield Case(
            name,
            (lhs, turned, None, index),
            {"transpose_rhs": 1},
            {3: i32},
            f"{label}_transposed",
            limit=4,
        )
    gate_up = {"num_batch_axes": 1}
    yield Case(name, ((5, 1, 1, 8), (2, 4, 8, 6), None, (5, 2)), gate_up, {3: i64}, "gate_up", 4)
    both = ((4, 1, 8), (3, 8, 6), (5,), (5,))
    yield Case(name, both, {}, {2: i64, 3: i64}, "both", limit=3)
    yield Case(name, ((4, 2, 8), (8, 6), (2, 3)), {}, {2: i64}, "lhs", limit=4)
    yield Case(name, ((4, 8), (8, 6), (2, 3)), {}, {2: i64}, "lhs_rows", limit=4)
    yield Case(name, ((2, 5, 3), (8, 6), None, (3,)), {}, {3: i64}, "rhs_rows", limit=8)
    yield Case(name, ((2, 5, 8), (2, 8, 6)), {}, label="no_indices")
    yield Case(name, ((2, 5, 8), (6, 8)), {"transpose_rhs": 1}, label="linear")


def convolution_cases() -> Iterator[Case]:
    """Convolutions: windows × groups, of planes too × bias; residual × activation × bias."""
    x = (2, 6, 9, 11)
    far = {"stride": (2, 1), "padding": (1, 0, 2, 3), "dilation": (1, 2)}
    for label, weight, attributes in (
        ("points", (5, 6, 1, 1), {}),
        ("same", (5, 6, 3, 3), {"padding": (1, 1, 1, 1)}),
        ("far", (5, 6, 2, 3), far),
        ("groups", (4, 3, 3, 2), far | {"groups": 2}),
        ("planes", (6, 1, 3, 3), far | {"groups": 6}),
        ("planes_twice", (12, 1, 3, 3), {"groups": 6, "padding": (1, 1, 1, 1)}),
    ):
        yield Case("convolution", (x, weight, weight[:1]), attributes, label=label)
        yield Case("convolution", (x, weight), attributes, label=f"{label}_no_bias")
    result, relu = (2, 5, 9, 11), {"activation": "relu"}
    for label, bias in (("", (5,)), ("_no_bias", None)):
        inputs = (x, (5, 6, 1, 1), bias)
        yield Case("convolution", (*inputs, result), label=f"residual{label}")
        yield Case("convolution", (*inputs, result), relu, label=f"residual_relu{label}")
        yield Case("convolution", inputs, relu, label=f"relu{label}")


def low_rank_cases() -> Iterator[Case]:
    """Adapters: rank × one for all rows, or for each; absent ones."""
    for rank in (1, 4):
        y, x = (2, 5, 6), (2, 5, 8)
        for label, lead in (("shared", (1,)), ("matrices", ()), ("by_row", (2,))):
            factors = ((*lead, 8, rank), (*lead, rank, 6))
            yield Case("add_low_rank", (y, x, *factors), label=f"{label}_{rank}")
    for label, up in (("no_rank", (1, 0, 6)), ("no_columns", (1, 0, 1))):
        yield Case("add_low_rank", ((2, 5, 6), (2, 5, 8), (1, 8, 0), up), label=label)
    yield Case("add_low_rank", ((0, 6), (0, 8), (8, 4), (4, 6)), label="no_tokens")


def collective_cases() -> Iterator[Case]:
    """Collectives: the parts of two ranks; the number is the same in a whole model."""
    for name in ("all_reduce", "all_gather"):
        yield Case(name, ((2, 3, 8),), label="matrices")
        yield Case(name, ((2, 8),), label="rows")
        yield Case(name, ((2, 0, 8),), label="empty")


def few_bit_cases() -> Iterator[Case]:
    """Products with few-bit weights: bits × zero points or palette × bias × activations."""
    name, u8, f32 = "linear_nbits", torch.uint8, torch.float32
    for bits, rounding in itertools.product((8, 6, 5, 4, 3, 2), (0, 8)):
        attributes = {"bits": bits, "group_size": 16, "activation_bits": rounding}
        codes, groups = (6, 3, 2 * bits), (6, 3)
        x, dtypes = (2, 5, 48), {1: u8, 2: f32, 3: u8}
        label = f"{bits}_bits{'_rounded' if rounding else ''}"
        yield Case(name, (x, codes, groups), attributes, {1: u8}, label, 256)
        unsigned = (x, codes, groups, groups, None, (6,))
        yield Case(name, unsigned, attributes, dtypes, f"{label}_zero_points_bias", 256)
        looked_up = (x, codes, groups, None, (1 << bits,), (6,))
        yield Case(name, looked_up, attributes, {1: u8}, f"{label}_palette_bias", 256)
    shapes = ((1, 48), (6, 3, 8), (6, 3), (6, 3))
    zeros = {"group_size": 16}
    for label, dtype in (("wide", f32), ("narrow", torch.float16), ("bfloat16", torch.bfloat16)):
        yield Case(name, shapes, zeros, {1: u8, 2: dtype, 3: dtype}, f"{label}_zero_points", 256)
    narrow = {1: u8, 2: torch.bfloat16, 4: torch.float16}
    palette = ((48,), (6, 3, 8), (6, 3), None, (16,))
    yield Case(name, palette, zeros, narrow, "narrow_palette", 256)
    biased = ((3, 48), (6, 3, 8), (6, 3), None, None, (6,))
    yield Case(name, biased, zeros, {1: u8}, "bias", 256)
    yield Case(name, ((0, 48), (6, 3, 8), (6, 3)), zeros, {1: u8}, "no_rows", 256)
    rounded = {"group_size": 16, "activation_bits": 8}
    yield Case(name, ((2, 0, 48), (6, 3, 8), (6, 3)), rounded, {1: u8}, "no_rows_rounded", 256)
    big = ((1, 64), (40, 2, 16), (40, 2), (40, 2), None, (40,))
    yield Case(name, big, rounded | {"group_size": 32}, {1: u8, 3: u8}, "decode", 16)


def level_parts(*rows: int) -> Iterator[tuple[tuple[Shape | None, ...], dict[str, int], str]]:
    """Yield scales, zero points to scale codes, attributes and a label, for 8 groups of 16.

    Scales of one level with minimums, and of two levels without and with palette or minimums.
    """
    groups, blocks = (*rows, 8), (*rows, 2)
    yield (groups, None, None, groups, None), {}, "minimums"
    for bits, palette in ((8, None), (6, None), (6, (16,))):
        codes, label = (*rows, 2, bits // 2), "_palette" if palette else ""
        parts = (blocks, None, palette, None, codes)
        yield parts, {"scale_bits": bits}, f"scales{bits}{label}"
    for bits in (6, 4):
        parts = (blocks, None, None, blocks, (*rows, 2, bits))
        yield parts, {"scale_bits": bits}, f"minimums_scales{bits}"


def few_bit_levels() -> Iterator[Case]:
    """Weights with minimums and scales of two levels: composites × rounding × numbers of rows."""
    u8, f16 = torch.uint8, torch.float16
    for (scales, *optional), levels, label in level_parts(6):
        attributes = {"group_size": 16, **levels}
        dtypes = {1: u8, 2: f16, 6: f16, 7: u8}
        for rows, rounding in itertools.product((1, 9), (0, 8)):
            rounded = {"activation_bits": rounding}
            bias = (6,) if rows == 9 else None
            parts = (scales, *optional[:2], bias, *optional[2:])
            shapes: tuple[Shape | None, ...] = ((rows, 128), (6, 8, 8), *parts)
            name = f"{label}_{rows}_rows{'_rounded' if rounding else ''}"
            yield Case("linear_nbits", shapes, attributes | rounded, dtypes, name, 256)
        table = (scales, (6, 8, 8), (2, 5), *optional)
        types = {1: u8, 2: torch.int64, 6: u8}
        yield Case("embedding_nbits", table, attributes, types, label, 6)
    for (scales, *optional), levels, label in level_parts(4, 6):
        shapes = ((5, 1, 1, 128), (4, 6, 8, 8), scales, (5, 2), *optional)
        types = {1: u8, 2: f16, 3: torch.int64, 6: f16, 7: u8}
        attributes = {"group_size": 16, "activation_bits": 0, **levels}
        yield Case("gather_mm_nbits", shapes, attributes, types, label, 256)


def few_bit_tables() -> Iterator[Case]:
    """Lookups in few-bit tables: bits × zero points or palette × ranks of indices."""
    name, u8, i64 = "embedding_nbits", torch.uint8, torch.int64
    for bits in (8, 6, 5, 4, 3, 2):
        attributes = {"bits": bits, "group_size": 16}
        scales, codes = (7, 3), (7, 3, 2 * bits)
        dtypes = {1: u8, 2: i64, 3: u8}
        label = f"{bits}_bits"
        yield Case(name, (scales, codes, (2, 5)), attributes, dtypes, label, 7)
        zeros = (scales, codes, (4,), scales)
        yield Case(name, zeros, attributes, dtypes | {2: torch.int32}, f"{label}_zero_points", 7)
        looked_up = (scales, codes, (2, 1), None, (1 << bits,))
        yield Case(name, looked_up, attributes, dtypes, f"{label}_palette", 7)
    wide = {1: u8, 2: i64, 3: torch.float32}
    yield Case(name, ((7, 3), (7, 3, 8), (), (7, 3)), {"group_size": 16}, wide, "one_row", 7)
    yield Case(name, ((7, 3), (7, 3, 8), (0,)), {"group_size": 16}, {1: u8, 2: i64}, "no_rows", 7)
    narrow = ((7, 3), (7, 3, 16), (2, 5), *[None] * 6, ())
    types = {0: torch.float16, 1: u8, 2: i64}
    yield Case(name, narrow, {"bits": 8, "group_size": 16}, types, "narrow_scales", 7)


def with_likes(cases: Sequence[Case]) -> Iterator[Case]:
    """Yield the cases, and one for each choice of inputs of a table with another dtype of rows."""
    like = len(EMBEDDING_NBITS.inputs) - 1
    seen: set[tuple[bool, ...]] = set()
    for case in cases:
        yield case
        present = tuple(shape is not None for shape in case.shapes)
        if case.composite != EMBEDDING_NBITS.name or present in seen or len(present) > like:
            continue
        seen.add(present)
        shapes = (*case.shapes, *[None] * (like - len(present)), ())
        dtypes = {**case.dtypes, 0: torch.float16}
        yield replace(case, shapes=shapes, dtypes=dtypes, label=f"{case.label}_like")


def few_bit_blocks() -> Iterator[Case]:
    """Weights in blocks of 11 bytes: composites × bits × rounding × widths of a table."""
    u8, i32, i64, f16 = torch.uint8, torch.int32, torch.int64, torch.float16
    for bits, width, group in ((4, 4, 32), (3, 8, 16), (2, 1, 256)):
        attributes, label = {"bits": bits, "group_size": group}, f"blocks_{bits}_bits"
        blocks = ((130, width), (256 // group + 512 // width, 7))
        for rows, rounding in itertools.product((1, 9), (0, 8)):
            parts = ((70, 2), None, (1 << bits,), (70,) if rows == 9 else None, None, None)
            yield Case(
                "linear_nbits",
                ((rows, 512), (70, 2, 11), *parts, *blocks),
                attributes | {"activation_bits": rounding},
                {1: u8, 2: f16, 8: u8, 9: i32},
                f"{label}_{rows}_rows{'_rounded' if rounding else ''}",
                256,
            )
        none = (None, (1 << bits,), None, None, *blocks)
        table = ((200, 1), (200, 1, 11), (2, 5), *none)
        types = {1: u8, 2: i64, 7: u8, 8: i32}
        yield Case("embedding_nbits", table, attributes, types, label, 200)
        experts = ((5, 1, 1, 512), (4, 6, 2, 11), (4, 6, 2), (5, 2), *none)
        types = {1: u8, 2: f16, 3: i64, 8: u8, 9: i32}
        yield Case("gather_mm_nbits", experts, attributes, types, label, 256)


def compressed_cases() -> Iterator[Case]:
    """Compressed weights: bits × scales, zero points or minima × blocks × axes of vectors."""
    u8, shape = torch.uint8, (4, 6, 5)
    count = 120
    for bits in (8, 6, 4, 3, 2, 1):
        name, layout = "lut_to_dense", {"bits": bits, "shape": shape}
        codes, lut, label = (count * bits // 8,), (2, 3, 1, 1 << bits, 1), f"{bits}_bits"
        limit = 256
        yield Case(name, (lut, codes), layout, {1: u8}, label, limit)
        yield Case(name, (lut, codes, (2, 1, 5)), layout, {1: u8}, f"{label}_scale", limit)
        for axis in (0, 1, -1):
            vectors = layout | {"axis": axis}
            yield Case(name, ((*lut[:-1], 3), codes), vectors, {1: u8}, f"{label}_{axis}", limit)
        name, scale = "blockwise_shift_scale", (2, 3, 1)
        layout = layout | {"minimum": -(1 << (bits - 1))}
        yield Case(name, (scale, codes), layout, {1: u8}, label, limit)
        for dtype in (u8, torch.int8, torch.float32):
            dtypes, kind = {1: u8, 2: dtype}, str(dtype).removeprefix("torch.")
            yield Case(name, (scale, codes, scale), layout, dtypes, f"{label}_{kind}", 9)
        yield Case(name, (scale, codes, None, scale), layout, {1: u8}, f"{label}_minval", limit)
    padded = {"bits": 3, "shape": (7,)}
    yield Case("lut_to_dense", ((1, 8, 2), (3,), (2,)), padded, {1: u8}, "padded", 256)
    yield Case("blockwise_shift_scale", ((7,), (3,)), padded, {1: u8}, "padded", 256)
    name = "sparse_to_dense"
    yield Case(name, ((count,), (15,)), {"shape": shape}, {1: u8}, "rank_3", 256)
    yield Case(name, ((16,), (2,)), {"shape": (13,)}, {1: u8}, "padded", 256)
    yield Case(name, ((0,), (1,)), {"shape": (2, 3)}, {1: u8}, "only_zeros", 1)


def delta_cases() -> Iterator[Case]:
    """Gated delta rule: heads × state × norm × lengths × dtypes of gates and state."""
    name, f32 = "gated_delta_update", torch.float32

    def shapes(heads: int, groups: int, length: int, *, state: bool) -> tuple[Shape | None, ...]:
        values = heads * groups
        lanes, gate = (2, heads, length, 4), (2, values, length)
        last = (2, values, 4, 3) if state else None
        return (lanes, lanes, (2, values, length, 3), gate, gate, last)

    for (heads, groups), state in itertools.product(((3, 1), (2, 2), (1, 3)), (False, True)):
        label = f"heads{heads}x{groups}{'_state' if state else ''}"
        yield Case(name, shapes(heads, groups, 5, state=state), label=label)
    yield Case(name, shapes(2, 2, 1, state=True), label="decode")
    yield Case(name, shapes(2, 2, 4, state=True), {"use_qk_l2_norm": 0}, label="no_norm")
    wide = {3: f32, 4: f32, 5: f32}
    yield Case(name, shapes(2, 2, 4, state=True), {}, wide, label="wide_gates_and_state")
    yield Case(name, shapes(2, 1, 4, state=False), {}, {3: f32}, label="wide_decay")


def fused_cases() -> Iterator[Case]:
    """What passes make: activations, residual norms, caches."""
    f32, i64, i32 = torch.float32, torch.int64, torch.int32
    yield Case("swiglu", ((2, 5, 8), (2, 5, 8)), label="plain")
    for approximate in ("none", "tanh"):
        attributes = {"approximate": approximate}
        yield Case("geglu", ((2, 5, 8), (2, 5, 8)), attributes, label=approximate)
    for activation in ("none", "silu", "gelu", "gelu_tanh", "sigmoid", "tanh", "exp"):
        attributes = {"activation": activation}
        yield Case("add_bias", ((2, 5, 8), (8,)), attributes, label=activation)
    for shape in ((7,), (2, 5, 8), (3, 70), (2, 3, 0), (0, 3)):
        yield Case("softmax", (shape,), label=f"rank{len(shape)}_{shape[-1]}")
    x = (2, 5, 8)
    for name in ("skip_rms_norm", "skip_layer_norm"):
        yield Case(name, (x, x, (8,)), {"eps": 1e-6}, label="scaled")
        yield Case(name, (x, x), label="unscaled")
        yield Case(name, (x, x, (8,)), dtypes={2: f32}, label="wide_scale")
        yield Case(name, (x, x, (5, 8)), {"axes": (-2, -1)}, label="two_axes")
    yield Case("skip_layer_norm", (x, x, (8,), (8,)), label="scale_bias")
    name, cache = "kv_cache_update", (2, 3, 9, 4)
    yield Case(name, (cache, (2, 3, 2, 4), ()), {}, {2: i64}, "one_position", limit=8)
    yield Case(name, (cache, (2, 3, 2, 4), (2,)), {}, {2: i64}, "positions", limit=8)
    yield Case(name, (cache, (2, 3, 1, 4), (2,)), {}, {2: i32}, "decode", limit=9)
    yield Case(name, (cache, cache, ()), {}, {2: i64}, "whole", limit=1)


CASES = [
    *norm_cases(),
    *ATTENTION_CASES,
    *rope_cases(),
    *expert_cases(),
    *convolution_cases(),
    *low_rank_cases(),
    *collective_cases(),
    *few_bit_cases(),
    *with_likes([*few_bit_tables(), *few_bit_levels(), *few_bit_blocks()]),
    *compressed_cases(),
    *delta_cases(),
    *fused_cases(),
]
"""Every case."""
