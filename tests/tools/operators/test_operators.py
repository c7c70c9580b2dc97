"""A fixed part of the sweep: first samples of common operators, static and with dynamic dims.

The whole is measured by hand, with tools/sweep_operators.py.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import pytest
import torch

from tools.operators.entries import calls, entries
from tools.operators.measuring import PASS, Outcome, measure

STATIC = {
    "float32": """
        addmm amax argmax as_strided_scatter atan2 baddbmm bucketize cat cdist clamp copysign
        cummax cumprod diff einsum erfinv fft.rfft fmod gather grid_sampler_3d histc
        index_put index_reduce.amax isin linalg.cholesky linalg.inv linalg.qr linalg.svdvals
        logsumexp masked_select median nanquantile nn.functional.avg_pool2d
        nn.functional.conv_transpose2d nn.functional.ctc_loss nn.functional.embedding_bag
        nn.functional.max_pool2d nn.functional.pad.circular nn.functional.pixel_unshuffle
        polygamma.polygamma_n_1 prod scatter_reduce.mean searchsorted sort std.unbiased stft
        take_along_dim topk tril unique var
    """,
    "int64": "add amin argsort bitwise_left_shift cumsum floor_divide kthvalue nn.functional.conv1d"
    " nonzero remainder scatter_add sum topk unfold",
    "bool": "add all any cumsum index_select max.reduction_with_dim msort nonzero sort where",
    "float16": "add mean softmax sort",
    "bfloat16": "add addbmm nn.functional.linear topk",
}
DYNAMIC = {
    "float32": """
        add amax bmm cat constant_pad_nd cumsum diagonal flip gather
        index_select linalg.solve matmul mean narrow nn.functional.conv1d nn.functional.gelu
        nn.functional.pad.reflect
        nn.functional.pad.replicate_negative repeat roll scatter softmax split stack sum
        topk transpose tril where
    """,
    "int64": "argsort fft.fft nonzero sort sum",
    "bool": "any cat logical_or sort",
}


def cases(table: dict[str, str]) -> list[tuple[str, str]]:
    return [(dtype, name) for dtype, names in table.items() for name in names.split()]


@functools.cache
def infos() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return entries()


def outcome(dtype: str, name: str, *, dynamic: bool) -> Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own operators warn about their own samples
        found = calls(infos()[name], getattr(torch, dtype), limit=8 if dynamic else 1)
        call = next((c for c in found if c.tensors[0].numel() > 1), found[0])
        return measure(call, name, dynamic=dynamic)


@pytest.mark.parametrize(("dtype", "name"), cases(STATIC))
def test_operators(dtype: str, name: str) -> None:
    found = outcome(dtype, name, dynamic=False)
    assert found.status in (PASS, "not exported"), found


@pytest.mark.parametrize(("dtype", "name"), cases(DYNAMIC))
def test_operators_of_any_size(dtype: str, name: str) -> None:
    found = outcome(dtype, name, dynamic=True)
    assert found.status == PASS, found
    assert PASS in found.resized.values(), "run at no other size"
