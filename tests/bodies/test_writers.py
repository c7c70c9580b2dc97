"""Written bodies: where ONNX has the op, at which opset and dtype; and the words of variants."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from coreai_onnx.bodies.body import Variant
from coreai_onnx.bodies.trace import Example
from coreai_onnx.bodies.writers import _WRITERS, variant_words, writes
from coreai_onnx.composites import COMPOSITES
from tests.support.composite_cases import CASES

NATIVE = {
    "rms_norm-scaled": ("RMSNormalization", 23),
    "rms_norm-two_axes": ("RMSNormalization", 23),
    "layer_norm-scale_bias": ("LayerNormalization", 17),
}
BY_NAME = {str(c): c for c in CASES}


def body_ops(name: str, opset: int, dtype: torch.dtype = torch.float32) -> list[str]:
    model = BY_NAME[name].model(dtype, dynamic=False, opset=opset)
    (function,) = model.functions.values()
    return [n.op_type for n in function]


@pytest.mark.parametrize(("name", "expected"), NATIVE.items())
def test_bodies_use_onnxs_own_op(name: str, expected: tuple[str, int]) -> None:
    op_type, since = expected
    assert op_type in body_ops(name, max(since, 18))
    assert since <= 18 or op_type not in body_ops(name, since - 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", NATIVE)
def test_dtypes_without_kernels_are_spelled_out(name: str, dtype: torch.dtype) -> None:
    assert NATIVE[name][0] not in body_ops(name, 23, dtype)


@pytest.mark.parametrize(
    "name",
    [
        "rms_norm-wide_scale",
        "layer_norm-bias_only",
    ],
)
def test_other_meanings_are_spelled_out(name: str) -> None:
    ops = body_ops(name, 23, torch.float16)
    assert not {"LayerNormalization", "RMSNormalization"} & set(ops)


F32, F16 = torch.float32, torch.float16


def words(name: str, *examples: Example | None, **attributes: Any) -> list[str]:
    composite = COMPOSITES[name]
    given = {a.name: a.default for a in composite.attributes} | attributes
    found = variant_words(composite, examples, given)
    groups = [set(g) for g in composite.variant_axes]
    assert all(len(group & set(found)) <= 1 for group in groups)
    assert set(found) <= set().union(*groups)
    return found


def one(*dims: str | int, dtype: torch.dtype = F32) -> Example:
    return Example(dtype, dims)


X, W = one("A1", "A0"), one("A0")
WIDE = one("A0", dtype=torch.float64)


def test_what_a_norm_has() -> None:
    assert words("layer_norm", X, W, W) == []
    assert words("layer_norm", X, W) == ["no_bias"]
    assert words("layer_norm", X, None, W) == ["bias_only"]
    assert words("layer_norm", X) == ["unscaled"]
    assert words("layer_norm", X, W, WIDE) == ["wide_scale"]
    assert words("layer_norm", X, one(1)) == ["no_bias", "wide_scale"]
    assert words("rms_norm", one("A0", dtype=F16), W) == ["wide_scale"]
    assert words("rms_norm", X, one("A0", dtype=F16)) == ["narrow_scale"]


def test_over_how_many_axes() -> None:
    assert words("rms_norm", X, one("A1", "A0"), axes=(-2, -1)) == ["axes2"]
    assert words("rms_norm", X, axes=tuple(range(-5, 0))) == ["axes", "unscaled"]
    assert words("rms_norm", X, axes=(-2,)) == ["axes", "unscaled"]


def test_attention() -> None:
    name, q, k = "scaled_dot_product_attention", one(*"BHTD"), one(*"BKSD")
    v, own_v = one(*"BKSE"), one(*"BVSE")
    assert words(name, q, k, v) == []
    assert words(name, q, k, v, is_causal=1, window_size=4) == ["causal_window"]
    assert words(name, q, k, v, is_causal=1, causal_alignment="upper_left") == ["causal_upper_left"]
    assert words(name, q, k, own_v, softcap=2.0) == ["value_heads", "softcap"]
    assert words(name, q, k, own_v, one("T", "S", dtype=torch.bool), one("H")) == ["mask", "sinks"]
    assert words(name, q, k, v, one("T", "S"), is_causal=0) == ["bias"]


def test_rotations() -> None:
    x, table = one(*"BHTD"), one(*"BHTF")
    assert words("rope", x) == ["sequence"]
    assert words("rope", x, table, table, None, one("F")) == ["per_head"]
    assert words("rope", x, one(*"HTF"), one(*"HTF")) == ["per_head"]
    assert words("rope", x, one("B", 1, "T", "F"), one("B", 1, "T", "F")) == []
    shared = one("T", "F")
    assert words("rope", x, shared, shared, interleaved=1, dims=4) == ["interleaved", "partial"]
    assert words("rope", one(*"HTD"), None, None, one("B", "T")) == ["positions", "rank3"]


def test_indices_of_rows_or_of_matrices() -> None:
    x, index = one("T", "M", "K"), Example(torch.int64, ("I",))
    assert words("gather_mm", x, one(*"ABC"), None, index) == ["rhs_indices"]
    assert words("gather_mm", x, one(*"ABC"), None, index, num_batch_axes=1)[1:] == ["rows"]
    assert words("gather_mm", x, one(*"AB"), None, index)[1:] == ["rows"]


@pytest.mark.parametrize(
    ("order", "word"),
    [
        (2.0, []),
        (1.0, ["absolute"]),
        (0.0, ["count"]),
        (math.inf, ["greatest"]),
        (-math.inf, ["least"]),
        (3.0, ["power"]),
    ],
)
def test_orders_of_norms(order: float, word: list[str]) -> None:
    assert words("linalg_vector_norm", X, ord=order) == word


def test_others() -> None:
    assert words("gelu", X, approximate="tanh") == ["tanh"]
    assert words("avg_pool_2d", one(*"NCHW"), divisor_override=3) == ["divisor"]
    assert words("pixel_shuffle", one(*"CHW")) == ["any_rank"]
    assert words("silu", X) == []


def test_inputs_by_name() -> None:
    composite = COMPOSITES["layer_norm"]
    assert Variant(composite, (X, None, W), {}).inputs == {"input": X, "bias": W}


def test_every_composite_has_one_writer() -> None:
    with pytest.raises(AssertionError, match="rope has a writer already"):
        writes("rope")(lambda *_: [])


def test_a_body_is_in_the_family_of_its_declaration() -> None:
    for name, composite in COMPOSITES.items():
        family = composite.reference.__module__.rpartition(".")[2]
        assert _WRITERS[name].write.__module__ == f"coreai_onnx.bodies.{family}", name
