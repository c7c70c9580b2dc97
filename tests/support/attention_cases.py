"""The calls to try the composites of attention with."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch

from tests.support.composite_calls import Case


def attention_cases() -> Iterator[Case]:
    """Attention: positions × masks × heads × sinks × soft cap."""
    name, shape = "scaled_dot_product_attention", {"q": (2, 4, 5, 8)}
    grouped = {"k": (2, 2, 9, 8), "v": (2, 2, 9, 6)}
    plain = {"k": (2, 4, 9, 8), "v": (2, 4, 9, 8)}
    positions: dict[str, dict[str, Any]] = {
        "full": {},
        "causal": {"is_causal": 1},
        "causal_upper_left": {"is_causal": 1, "causal_alignment": "upper_left"},
        "window": {"window_size": 3},
        "causal_window": {"is_causal": 1, "window_size": 3},
    }
    for (label, attributes), sinks in itertools.product(positions.items(), (False, True)):
        for heads, kv in (("mha", plain), ("gqa", grouped)):
            shapes = (
                (shape["q"], kv["k"], kv["v"], None, (4,))
                if sinks
                else (shape["q"], kv["k"], kv["v"])
            )
            tail = "_sinks" if sinks else ""
            yield Case(name, shapes, attributes, label=f"{label}_{heads}{tail}")
    masks = {
        "full": (2, 4, 5, 9),
        "broadcast": (1, 1, 5, 9),
        "rank2": (5, 9),
        "padding": (2, 1, 1, 9),
    }
    for (label, mask), dtype in itertools.product(masks.items(), (torch.bool, None, torch.float32)):
        dtypes = {} if dtype is None else {3: dtype}
        kind = {torch.bool: "bool", None: "bias", torch.float32: "wide_bias"}[dtype]
        shapes = (shape["q"], grouped["k"], grouped["v"], mask)
        yield Case(name, shapes, {}, dtypes, label=f"{kind}_{label}")
    yield Case(name, (shape["q"], plain["k"], plain["v"]), {"softcap": 2.0}, label="softcap")
    yield Case(
        name,
        (shape["q"], plain["k"], plain["v"]),
        {"softcap": 2.0, "is_causal": 1},
        label="softcap_causal",
    )
    yield Case(name, (shape["q"], plain["k"], plain["v"]), {"scale": 0.3}, label="scale")
    yield Case(name, ((2, 4, 1, 8), (2, 2, 9, 8), (2, 2, 9, 8)), {"is_causal": 1}, label="decode")


def bshd_cases() -> Iterator[Case]:
    """Attention with heads behind tokens: positions × masks × heads."""
    name, q = "scaled_dot_product_attention_bshd", (2, 5, 4, 8)
    for heads in (4, 2):
        kv = (2, 9, heads, 8), (2, 9, heads, 6)
        for label, attributes in {
            "full": {},
            "scale": {"scale": 0.3},
            "causal": {"is_causal": 1},
            "causal_upper_left": {"is_causal": 1, "causal_alignment": "upper_left"},
        }.items():
            yield Case(name, (q, *kv), attributes, label=f"{label}_{heads}")
        for dtype in (torch.bool, None, torch.float32):
            dtypes = {} if dtype is None else {3: dtype}
            yield Case(name, (q, *kv, (2, 1, 5, 9)), {}, dtypes, f"mask_{dtype}_{heads}")
    yield Case(name, ((2, 1, 4, 8), (2, 9, 2, 8), (2, 9, 2, 8)), {"is_causal": 1}, label="decode")


def paged_cases() -> Iterator[Case]:
    """Attention to blocks: masks × heads × sinks × soft cap, five blocks of four tokens."""
    name, q = "paged_attention", (2, 4, 3, 8)
    pools = {"mha": ((5, 4, 4, 8), (5, 4, 4, 8)), "gqa": ((5, 4, 2, 8), (5, 4, 2, 6))}
    for (heads, (k, v)), kind in itertools.product(pools.items(), ("", "bool", "bias")):
        mask = (2, 1, 3, 12) if kind else None
        dtypes = {3: torch.int64} | ({4: torch.bool} if kind == "bool" else {})
        yield Case(name, (q, k, v, (2, 3), mask), {}, dtypes, f"{heads}_{kind}")
        yield Case(name, (q, k, v, (2, 3), mask, (4,)), {}, dtypes, f"{heads}_{kind}_sinks")
    k, v = pools["gqa"]
    values = (5, 4, 1, 6)
    everything = {"softcap": 2.0, "scale": 0.4}
    dtypes = {3: torch.int32, 4: torch.bool}
    yield Case(name, (q, k, values, (2, 3), (3, 12)), everything, dtypes, "value_heads_softcap")


def paged_coded_cases() -> Iterator[Case]:
    """Attention to codes in blocks: bits × masks × sinks × soft cap, five blocks of four tokens."""
    name, q = "paged_attention_nbits", (2, 4, 3, 8)
    for bits, kind in itertools.product((8, 4), ("", "bool", "bias")):
        k, v = (5, 4, 2, bits), (5, 4, 2, bits - 2)
        pools = (k, (5, 4, 2, 1), v, (5, 4, 2, 1))
        mask = (2, 1, 3, 12) if kind else None
        dtypes = {1: torch.uint8, 3: torch.uint8, 5: torch.int64}
        dtypes |= {6: torch.bool} if kind == "bool" else {}
        how, label = {"bits": bits}, f"{kind}_{bits}"
        yield Case(name, (q, *pools, (2, 3), mask), how, dtypes, label)
        yield Case(name, (q, *pools, (2, 3), mask, (4,)), how, dtypes, f"{label}_sinks")
        values = (5, 4, 1, bits), (5, 4, 1, 1)
        capped = {**how, "softcap": 2.0, "scale": 0.4}
        shapes = (q, *pools[:2], *values, (2, 3), mask)
        yield Case(name, shapes, capped, dtypes | {5: torch.int32}, f"{label}_value_heads_softcap")


def coded_cases() -> Iterator[Case]:
    """Attention to codes of 8 and 4 bits: positions and masks × heads × sinks × soft cap."""
    name, q, byte = "attention_nbits", (2, 4, 5, 8), {1: torch.uint8, 3: torch.uint8}
    kinds: dict[str, tuple[Any, dict[str, Any], dict[int, Any]]] = {
        "full": (None, {}, {}),
        "causal": (None, {"is_causal": 1}, {}),
        "upper_left": (None, {"is_causal": 1, "causal_alignment": "upper_left"}, {}),
        "window": (None, {"is_causal": 1, "window_size": 3}, {}),
        "mask": ((2, 1, 5, 9), {}, {5: torch.bool}),
        "bias": ((5, 9), {}, {}),
    }
    for bits, (label, (mask, attributes, dtypes)) in itertools.product((8, 4), kinds.items()):
        codes = 8 * bits // 8
        k, v = (2, 2, 9, codes), (2, 2, 9, codes)
        rows = (2, 2, 9, 1)
        how = {**attributes, "bits": bits}
        for extra, sinks in (("", ()), ("_sinks", ((4,),))):
            shapes = (q, k, rows, v, rows, mask, *sinks)
            yield Case(name, shapes, how, {**byte, **dtypes}, f"{label}{extra}_{bits}")
        values = ((2, 1, 9, codes), (2, 1, 9, 1))
        capped = {**how, "softcap": 2.0}
        shapes = (q, k, rows, *values, mask)
        yield Case(name, shapes, capped, {**byte, **dtypes}, f"{label}_value_heads_softcap_{bits}")


ATTENTION_CASES = [
    *attention_cases(),
    *bshd_cases(),
    *paged_cases(),
    *paged_coded_cases(),
    *coded_cases(),
]
