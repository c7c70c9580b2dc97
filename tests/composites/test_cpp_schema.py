"""Declarations as C++."""

from __future__ import annotations

import dataclasses

import pytest

from coreai_onnx.composites import COMPOSITES, Attribute
from coreai_onnx.composites.cpp_schema import composite_lines, dtype_bits, prologue
from tests.delegation.user_kernels.declared import CLIPPED_SWIGLU


def test_a_header_names_inputs_attributes_and_op_types() -> None:
    text = "\n".join(composite_lines(COMPOSITES["geglu"]))
    assert "  kGateInput,\n  kUpInput,\n  kInputCount\n" in text
    assert 'inline constexpr char kApproximateDefault[] = "none";' in text
    assert '{"geglu.tanh_float16", 2},' in text
    assert 'kDomain[] = "my.domain";' in prologue("my.domain")


def test_undeclared_dtypes_have_no_op_types() -> None:
    narrow = dataclasses.replace(CLIPPED_SWIGLU, dtypes=("float32", "float16"))
    assert dtype_bits(narrow, "clipped_swiglu") == 3
    assert dtype_bits(narrow, "clipped_swiglu.float16") == 2
    assert dtype_bits(narrow, "clipped_swiglu.float64") == 0


def test_literals() -> None:
    attributes = (
        Attribute("mode", "string", 'a"b', structural=True),
        Attribute("sizes", "ints", (1, 2), structural=True),
        Attribute("scale", "float", 2),
    )
    text = "\n".join(composite_lines(dataclasses.replace(CLIPPED_SWIGLU, attributes=attributes)))
    assert r'kModeDefault[] = "a\"b";' in text
    assert "inline constexpr std::int64_t kSizesDefault[] = {1, 2};" in text
    assert "inline constexpr float kScaleDefault = 2.0f;" in text
    odd = dataclasses.replace(CLIPPED_SWIGLU, attributes=(Attribute("x", "float", float("nan")),))
    with pytest.raises(TypeError, match="no C"):
        list(composite_lines(odd))
