"""Declarations of composites as C++ headers, with which their kernels are compiled."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence

from coreai_onnx.composites.declaration import Attribute, Composite

_DTYPES = ("float32", "float16", "bfloat16", "float64")
_INPUT_KINDS = {"T": "kT", "any": "kAny", "index": "kIndex"}
_PROLOGUE = """\
#pragma once

#include <cstddef>
#include <cstdint>

#include "ort/composite.h"

namespace coreai::schema {

inline constexpr char kDomain[] = "%s";
"""


def prologue(domain: str) -> str:
    """Return the beginning of a header with declarations, inside ``namespace coreai::schema``."""
    return _PROLOGUE % domain


def composite_lines(composite: Composite) -> Iterable[str]:
    """Yield the namespace of one composite."""
    yield f"namespace {composite.name} {{"
    names = "".join(f"k{_camel(declared.name)}Input, " for declared in composite.inputs)
    yield "enum InputIndex : std::size_t {"
    yield f"  {names}kInputCount"
    yield "};"
    for attribute in composite.attributes:
        yield from _attribute_lines(attribute)
    yield f"inline constexpr std::size_t kAttributeCount = {len(composite.attributes)};"
    yield "inline constexpr Input kInputs[] = {"
    for declared_input in composite.inputs:
        optional = "true" if declared_input.optional else "false"
        kind = _INPUT_KINDS.get(declared_input.dtype, "kAny")
        yield f'    {{"{declared_input.name}", {optional}, InputKind::{kind}}},'
    yield "};"
    yield "inline constexpr const char* kVariants[] = {"
    for words in composite.variant_axes:
        yield f'    "{" ".join(words)}",'
    yield "    nullptr};"
    yield f"inline constexpr unsigned kDTypes = {_dtype_bits(composite)};"
    yield "inline constexpr Composite kComposite = {"
    sizes = f"kInputs, kInputCount, {len(composite.outputs)}, kVariants, kDTypes"
    yield f'    "{composite.name}", {composite.version}, {sizes}}};'
    yield f"}}  // namespace {composite.name}"


def _dtype_bits(composite: Composite) -> int:
    """Return the dtypes of a composite as a bit set, in the order of ``coreai::DType``."""
    return sum(1 << _DTYPES.index(dtype) for dtype in composite.dtypes)


def _literal(value: object) -> str:
    """Return the C++ literal of an attribute's default."""
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, float) and math.isfinite(value):
        return f"{value!r}f"
    if isinstance(value, int):
        return str(value)
    raise TypeError(f"no C++ literal for {value!r}")


def _attribute_lines(attribute: Attribute) -> Iterable[str]:
    """Yield the declarations of an attribute's name and of its default, if it has one."""
    constant = f"k{_camel(attribute.name)}"
    yield f'inline constexpr char {constant}[] = "{attribute.name}";'
    default = attribute.default
    if default is None:
        return
    cpp_types = {"int": "std::int64_t", "ints": "std::int64_t", "float": "float", "floats": "float"}
    cpp_type = cpp_types.get(attribute.type, "const char*")
    if isinstance(default, Sequence) and not isinstance(default, str):
        values = ", ".join(_literal(value) for value in default)
        yield f"inline constexpr {cpp_type} {constant}Default[] = {{{values}}};"
    elif cpp_type == "const char*":
        yield f"inline constexpr char {constant}Default[] = {_literal(default)};"
    else:
        # A float attribute may have an integer as its default in Python, but not in C++.
        value = float(default) if attribute.type == "float" else default
        yield f"inline constexpr {cpp_type} {constant}Default = {_literal(value)};"


def _camel(name: str) -> str:
    """Return ``attn_mask`` as ``AttnMask``."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))
