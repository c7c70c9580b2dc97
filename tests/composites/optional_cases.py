"""Cases for every combination of optional inputs that the other tables leave out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch

from tests.support.composite_calls import Case, Shape

I64, F32 = torch.int64, torch.float32


def attention_cases() -> Iterator[Case]:
    """Masks together with sinks, value heads of their own, soft caps and windows."""
    name = "scaled_dot_product_attention"
    q, k, v = (2, 4, 5, 8), (2, 2, 9, 8), (2, 1, 9, 6)
    for kind, mask in {"bool": torch.bool, "bias": None}.items():
        dtypes = {} if mask is None else {3: mask}
        yield Case(name, (q, k, k, (1, 1, 5, 9), (4,)), {}, dtypes, f"{kind}_sinks")
        yield Case(name, (q, k, v, (5, 9)), {}, dtypes, f"{kind}_value_heads")
    yield Case(name, (q, k, k, None, (4,)), {}, {4: F32}, "wide_sinks")
    everything: dict[str, Any] = {"is_causal": 1, "window_size": 3, "softcap": 2.0, "scale": 0.4}
    for alignment in ("lower_right", "upper_left"):
        attributes = {**everything, "causal_alignment": alignment}
        yield Case(name, (q, k, v), attributes, label=f"value_heads_{alignment}")
        yield Case(name, (q, k, v, None, (4,)), attributes, label=f"all_{alignment}")
    overruled = {"is_causal": 1, "window_size": 2}
    yield Case(name, (q, k, k, (5, 9)), overruled, {3: torch.bool}, "mask_alone")


def rope_cases() -> Iterator[Case]:
    """Every subset of what angles can be made from; what is not needed is not used."""
    x = (2, 3, 5, 8)
    offered: dict[int, tuple[Shape, torch.dtype | None]] = {
        1: ((2, 1, 5, 4), None),
        2: ((2, 1, 5, 4), None),
        3: ((2, 5), I64),
        4: ((4,), F32),
        5: ((2, 1), I64),
    }
    letters = {1: "cos", 2: "sin", 3: "positions", 4: "freqs", 5: "offset"}
    for size in range(1, 6):
        for chosen in itertools.combinations(offered, size):
            shapes = (x, *(offered[i][0] if i in chosen else None for i in offered))
            dtypes = {i: d for i in chosen if (d := offered[i][1]) is not None}
            label = "given_" + "_".join(letters[i] for i in chosen)
            yield Case("rope", shapes, {"base": 100.0}, dtypes, label)
    tables: dict[str, tuple[Shape, Shape]] = {
        "per_head": ((2, 3, 5, 4), (2, 3, 5, 4)),
        "heads_of_all_rows": ((3, 5, 4), (3, 5, 4)),
        "one_head": ((1, 5, 4), (2, 1, 5, 4)),
    }
    for (label, (cos, sin)), swap in itertools.product(tables.items(), (0, 1)):
        yield Case("rope", (x, cos, sin), {"interleaved": swap}, label=f"{label}_{swap}")
    narrow = {"dims": 4, "interleaved": 1}
    yield Case("rope", (x, (5, 2), (5, 2)), narrow, label="partial_tables")
    yield Case("rope", (x, None, None, (5,)), narrow, {3: torch.int32}, "partial_shared_positions")
    yield Case("rope", ((3, 5, 8), (5, 4), (5, 4)), {}, label="rank3_tables")
    yield Case("rope", (x,), {"dims": 8}, label="all_lanes_named")


def norm_cases() -> Iterator[Case]:
    """Biases without a scale, parameters of other dtypes and shapes, axes in the middle."""
    x = (2, 5, 8)
    yield Case("skip_layer_norm", (x, x, None, (8,)), label="bias_only")
    for name, first in (("layer_norm", 1), ("rms_norm", 1), ("skip_rms_norm", 2)):
        inputs = (x,) * first
        for dtype in (torch.float16, torch.bfloat16, torch.float64):
            label = f"scale_{str(dtype).removeprefix('torch.')}"
            yield Case(name, (*inputs, (8,)), {}, {first: dtype}, label)
        yield Case(name, (*inputs, (5, 1)), label="scale_per_row")
        yield Case(name, (*inputs, (2, 5, 8)), {"axes": (0, 1, 2)}, label="all_axes")
        many = ((2, 3, 2, 2, 3, 2),) * first
        yield Case(name, (*many, (3, 2, 2, 3, 2)), {"axes": (1, 2, 3, 4, 5)}, label="five_axes")
    yield Case("layer_norm", (x, (8,), (8,)), {}, {1: F32, 2: F32}, "wide_scale_bias")
    yield Case("layer_norm", (x, (8,), (8,)), {}, {2: F32}, "wide_bias")


OPTIONAL_CASES = [*attention_cases(), *rope_cases(), *norm_cases()]
"""Every case."""
