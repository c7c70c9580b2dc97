"""The calls of converted models whose bodies passes ask for."""

from __future__ import annotations

from typing import Any

import torch

from coreai_onnx.bodies.pass_bodies import CALLS
from tests.support.composite_calls import Case as Call


def few_bits(call: Any) -> list[Call]:
    """Return converted calls for one that ``fuse_few_bits`` makes."""
    bits, zeros = call.attributes["bits"], len(call.dims) > 3
    shapes = ((5, 32), (6, 2, 2 * bits), (6, 2), *[(6, 2)] * zeros)
    dtypes = {1: torch.uint8, 3: torch.uint8}
    return [Call("linear_nbits", shapes, {"bits": bits, "group_size": 16}, dtypes, limit=256)]


def paged(name: str, call: Any) -> list[Call]:
    """Return converted calls for one that ``fuse_paged_attention`` makes."""
    words = name.partition(".")[2]
    values = (5, 4, 1, 8) if "value_heads" in words else (5, 4, 2, 8)
    mask = (2, 1, 3, 12) if call.dims[4] else None
    shapes = ((2, 4, 3, 8), (5, 4, 2, 8), values, (2, 3), mask, *[(4,)] * ("sinks" in words))
    dtypes = {3: torch.int64, **({4: torch.bool} if "mask" in words else {})}
    return [Call(call.composite, shapes, {"softcap": 2.0} if "softcap" in words else {}, dtypes)]


def paged_coded(name: str, call: Any) -> list[Call]:
    """Return converted calls for one of attention to codes that ``fuse_paged_attention`` makes."""
    words, bits = name.partition(".")[2], call.attributes["bits"]
    heads, mask = 1 if "value_heads" in words else 2, (2, 1, 3, 12) if call.dims[6] else None
    pools = ((5, 4, 2, bits), (5, 4, 2, 1), (5, 4, heads, bits), (5, 4, heads, 1))
    dtypes = {1: torch.uint8, 3: torch.uint8, 5: torch.int64}
    dtypes |= {6: torch.bool} if "mask" in words else {}
    shapes = ((2, 4, 3, 8), *pools, (2, 3), mask, *[(4,)] * ("sinks" in words))
    attributes = {"bits": bits, "softcap": 2.0 * ("softcap" in words)}
    return [Call(call.composite, shapes, attributes, dtypes)]


def convolved(call: Any) -> list[Call]:
    """Return converted calls for one that passes make of convolutions."""
    shapes = ((2, 4, 5, 6), (4, 2, 2, 2), (4,), (2, 4, 2, 5))
    given = tuple(shape if dims else None for shape, dims in zip(shapes, call.dims, strict=True))
    attributes = call.attributes | {"groups": 2, "stride": (2, 1)}
    return [Call("convolution", given, attributes)]


def bshd(name: str, call: Any) -> list[Call]:
    """Return converted calls for one that ``attention_without_transposes`` makes."""
    words = name.partition(".")[2]
    mask = ((2, 1, 5, 7),) if words in ("mask", "bias") else ()
    alignment = "upper_left" if words.endswith("upper_left") else "lower_right"
    attributes = {"is_causal": int(words.startswith("causal")), "causal_alignment": alignment}
    dtypes = {3: torch.bool} if words == "mask" else {}
    shapes = ((2, 5, 4, 8), (2, 7, 2, 8), (2, 7, 2, 6), *mask)
    return [Call(call.composite, shapes, attributes, dtypes)]


def coded(name: str, call: Any) -> list[Call]:
    """Return converted calls for one that ``fuse_attention_nbits`` makes."""
    words = name.partition(".")[2].split("_")
    heads, width = 1 if "value" in words else 2, 8 * call.attributes["bits"] // 8
    mask = (2, 1, 3, 7) if call.dims[5] else None
    shapes = ((2, 4, 3, 8), (2, 2, 7, width), (2, 2, 7, 1), (2, heads, 7, width), (2, heads, 7, 1))
    sinks = ((4,),) if "sinks" in words else ()
    dtypes = {1: torch.uint8, 3: torch.uint8, **({5: torch.bool} if "mask" in words else {})}
    attributes = {
        "is_causal": int("causal" in words),
        "window_size": 3 * ("window" in words),
        "softcap": 2.0 * ("softcap" in words),
        "bits": call.attributes["bits"],
    }
    return [Call(call.composite, (*shapes, mask, *sinks), attributes, dtypes)]


def attended(name: str) -> list[Call]:
    """Return converted calls for one that ``fuse_attention`` makes."""
    words = name.partition(".")[2].split("_")
    further = ((2, 1, 5, 7) if "bias" in words else None, *[(4,)] * ("sinks" in words))
    shapes = ((2, 4, 5, 8), (2, 2, 7, 8))
    attributes = {"softcap": 2.0} if "softcap" in words else {}
    return [
        Call("scaled_dot_product_attention", (*shapes, (2, 2, 7, size), *further), attributes)
        for size in (6, 8)
    ]


ROPE = (2, 1, 5, 4)


CONVERTED: dict[str, list[Call]] = {
    "rms_norm": [Call("rms_norm", ((2, 5, 8), (8,))), Call("rms_norm", ((8,), (8,)))],
    "rms_norm.wide_scale": [Call("rms_norm", ((2, 5, 8), (8,)), {}, {1: torch.float32})],
    "rope": [
        Call("rope", ((2, 3, 5, 8), ROPE, ROPE)),
        Call("rope", ((2, 3, 5, 8), (5, 4), (5, 4))),
    ],
    "rope.interleaved": [Call("rope", ((2, 3, 5, 8), ROPE, ROPE), {"interleaved": 1})],
    "swiglu": [Call("swiglu", ((5, 8), (5, 8)))],
    "geglu": [Call("geglu", ((5, 8), (5, 8)))],
    "geglu.tanh": [Call("geglu", ((5, 8), (5, 8)), {"approximate": "tanh"})],
    "add_bias": [Call("add_bias", shapes) for shapes in (((5, 8), (8,)), ((2, 5, 8), (8,)))],
    **{
        f"add_bias.{kind}": [Call("add_bias", ((5, 8), (8,)), {"activation": kind})]
        for kind in ("silu", "gelu", "gelu_tanh", "sigmoid", "tanh", "exp")
    },
    **{name: convolved(call) for name, call in CALLS.items() if call.composite == "convolution"},
    "softmax": [Call("softmax", (shape,)) for shape in ((8,), (2, 5, 8))],
    "kv_cache_update": [
        Call("kv_cache_update", ((2, 3, 9, 4), (2, 3, 2, 4), at), {}, {2: torch.int64}, limit=8)
        for at in ((), (2,))
    ],
    **{
        name: attended(name)
        for name, call in CALLS.items()
        if call.composite == "scaled_dot_product_attention" and "causal" not in name
    },
    "scaled_dot_product_attention.causal_upper_left": [
        Call(
            "scaled_dot_product_attention",
            ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8)),
            {"is_causal": 1, "causal_alignment": "upper_left"},
        ),
    ],
    "gather_mm": [Call("gather_mm", (left, (8, 6))) for left in ((5, 8), (2, 5, 8), (2, 3, 5, 8))],
    "gather_mm.transposed": [
        Call("gather_mm", (left, (6, 8)), {"transpose_rhs": 1}) for left in ((5, 8), (2, 5, 8))
    ],
    "add_low_rank": [
        Call("add_low_rank", ((5, 8), (5, 6), (6, 2), (2, 8))),
        Call("add_low_rank", ((2, 5, 8), (2, 5, 6), (2, 6, 2), (2, 2, 8))),
    ],
    **{
        name: bshd(name, call)
        for name, call in CALLS.items()
        if call.composite == "scaled_dot_product_attention_bshd"
    },
    **{name: few_bits(call) for name, call in CALLS.items() if call.composite == "linear_nbits"},
    **{
        name: coded(name, call)
        for name, call in CALLS.items()
        if call.composite == "attention_nbits"
    },
    **{
        name: paged(name, call)
        for name, call in CALLS.items()
        if call.composite == "paged_attention"
    },
    **{
        name: paged_coded(name, call)
        for name, call in CALLS.items()
        if call.composite == "paged_attention_nbits"
    },
}


"""Calls of a converted model, by the op type that passes ask for."""
