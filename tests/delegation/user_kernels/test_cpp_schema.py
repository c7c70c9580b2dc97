"""Declarations as C++."""

from __future__ import annotations

import dataclasses

import pytest

from coreai_onnx.composites import COMPOSITES, Attribute
from coreai_onnx.delegation.user_kernels.cpp_schema import composite_lines, prologue
from tests.delegation.user_kernels.declared import CLIPPED_SWIGLU


def test_a_header_names_inputs_attributes_and_variants() -> None:
    text = "\n".join(composite_lines(COMPOSITES["geglu"]))
    assert "  kGateInput, kUpInput, kInputCount\n" in text
    assert 'inline constexpr char kApproximateDefault[] = "none";' in text
    assert 'kVariants[] = {\n    "tanh",\n    nullptr};' in text
    assert 'kDomain[] = "my.domain";' in prologue("my.domain")


def test_the_words_of_a_group_are_one_string() -> None:
    assert '"bits8 bits6 bits5 bits3 bits2",\n    "rounded",\n' in "\n".join(
        composite_lines(COMPOSITES["gather_mm_nbits"])
    )


def test_dtypes_are_bits_in_the_order_of_the_kernels() -> None:
    narrow = dataclasses.replace(CLIPPED_SWIGLU, dtypes=("float64", "float16"))
    assert "kDTypes = 10;" in "\n".join(composite_lines(narrow))
    assert "kDTypes = 15;" in "\n".join(composite_lines(CLIPPED_SWIGLU))


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
