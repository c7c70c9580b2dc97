"""Files of earlier versions keep their meaning, in the kernels and in their own bodies."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
import torch

from tests.lower.checking import open_model, run_session
from tests.support.composite_calls import Case, call_model

OLD = """
    <ir_version: 10, opset_import: ["" : 23, "ai.coreai" : 1]>
    main (float[1,16] x, uint8[2,2,4] codes, float[2,2] scales, float[2] bias)
    => (float[1,2] output) {
        output = ai.coreai.linear_nbits
            <bits: int = 4, group_size: int = 8, activation_bits: int = 0, version: int = 1>
            (x, codes, scales, "", "", bias)
    }
    <domain: "ai.coreai", opset_import: ["" : 23]>
    linear_nbits (input, codes, scales, zero_points, palette, bias) => (output) {
        last = Constant <value: tensor = int64[1] {-1}> ()
        bytes = Unsqueeze (codes, last)
        wide = Cast <to: int = 6> (bytes)
        shifts = Constant <value: tensor = int32[2] {1,16}> ()
        shifted = Div (wide, shifts)
        limit = Constant <value: tensor = int32 {16}> ()
        steps = Mod (shifted, limit)
        groups = Constant <value: tensor = int64[3] {2,2,8}> ()
        by_group = Reshape (steps, groups)
        numbers = Cast <to: int = 1> (by_group)
        middle = Constant <value: tensor = float {8}> ()
        centered = Sub (numbers, middle)
        factors = Unsqueeze (scales, last)
        values = Mul (centered, factors)
        rows = Constant <value: tensor = int64[2] {2,-1}> ()
        matrix = Reshape (values, rows)
        turned = Transpose <perm: ints = [1, 0]> (matrix)
        product = MatMul (input, turned)
        output = Add (product, bias)
    }
"""
"""A file of version 0.1.0, before `linear_nbits` had minimums; its body is shortened."""


@pytest.mark.parametrize("runs_kernels", [False, True])
def test_a_call_without_the_later_inputs(kernels: Path, *, runs_kernels: bool) -> None:
    codes = torch.randint(0, 256, (2, 2, 4), dtype=torch.uint8)
    inputs = [torch.randn(1, 16), codes, torch.rand(2, 2), None, None, torch.randn(2)]
    case = Case("linear_nbits", (), {"bits": 4, "group_size": 8})
    new = call_model(case, inputs, dynamic=False, opset=23)
    old = ir.from_proto(onnx.parser.parse_model(OLD))
    given, library = [x for x in inputs if x is not None], kernels if runs_kernels else None
    (expected,) = run_session(open_model(new, library=library), given)
    (actual,) = run_session(open_model(old, library=library), given)
    assert actual.tobytes() == expected.tobytes()
