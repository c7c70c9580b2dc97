"""Calls of gathered products with few-bit weights, for the matrix of all composites."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from tests.support.composite_calls import Case, Shape


def few_bit_experts() -> Iterator[Case]:
    """Gathered products with few-bit weights: bits × zero points or palette × activations."""
    name, u8, f32, i64 = "gather_mm_nbits", torch.uint8, torch.float32, torch.int64
    for bits, rounding in itertools.product((8, 4, 3, 2), (0, 8)):
        attributes = {"bits": bits, "group_size": 16, "activation_bits": rounding}
        codes, groups = (4, 6, 3, 2 * bits), (4, 6, 3)
        x, dtypes = (5, 1, 1, 48), {1: u8, 2: f32, 3: i64, 4: u8}
        label = f"{bits}_bits{'_rounded' if rounding else ''}"
        yield Case(name, (x, codes, groups, (5, 2)), attributes, dtypes, label, 256)
        unsigned = (x, codes, groups, (5, 2), groups)
        yield Case(name, unsigned, attributes, dtypes, f"{label}_zero_points", 256)
        looked_up = (x, codes, groups, (5, 2), None, (1 << bits,))
        yield Case(name, looked_up, attributes, dtypes, f"{label}_palette", 256)
    weight, own = ((4, 6, 3, 8), (4, 6, 3)), {1: u8, 3: torch.int32}
    lhs_and_indices: dict[str, tuple[Shape, Shape]] = {
        "token": ((7, 1, 48), (7,)),
        "blocks": ((2, 3, 48), (2,)),
        "spread": ((5, 2, 1, 48), (5, 2)),
        "one_expert": ((3, 48), ()),
        "no_tokens": ((0, 1, 48), (0,)),
        "no_rows": ((2, 0, 48), (2,)),
    }
    for label, (x, index) in lhs_and_indices.items():
        yield Case(name, (x, *weight, index), {"group_size": 16}, own, label, 256)
    shapes = ((7, 1, 48), *weight, (7,), (4, 6, 3))
    for label, dtype in (("wide", f32), ("narrow", torch.float16), ("bfloat16", torch.bfloat16)):
        dtypes = {1: u8, 2: dtype, 3: i64, 4: dtype}
        yield Case(name, shapes, {"group_size": 16}, dtypes, f"{label}_zero_points", 256)
    none = ((2, 1, 48), (4, 0, 3, 8), (4, 0, 3), (2,))
    yield Case(name, none, {"group_size": 16}, own, "no_columns", 256)


EXPERT_CASES = tuple(few_bit_experts())
"""Every case."""
