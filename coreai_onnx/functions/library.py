"""The functions of a model: one body per distinct meaning, named after what differs."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from coreai_onnx.composite_ops.declaration import DTYPE_WORDS, Composite
from coreai_onnx.functions import native
from coreai_onnx.functions.body import lower_body
from coreai_onnx.functions.trace import Example, trace_reference
from coreai_onnx.lower.composites import CompositeCall
from coreai_onnx.lower.values import Dim, Value, dims_of, dtype_of


def composite_functions(calls: Sequence[CompositeCall], opset: int) -> list[ir.Function]:
    """Make the bodies of the calls and point each call at its body.

    A composite with one body in the model has its plain name. Where calls need different bodies,
    each is named by what it does (``scaled_dot_product_attention.causal``); the body of a call
    without anything special keeps the plain name.

    Returns:
        The functions, in order of first call.
    """
    functions: dict[str, ir.Function] = {}
    bodies: dict[str, dict[str, list[CompositeCall]]] = {}
    texts: dict[str, ir.Function] = {}
    for call in calls:
        function, text = _body_of(call, opset)
        texts[text] = function
        bodies.setdefault(call.composite.name, {}).setdefault(text, []).append(call)
    for name, by_text in bodies.items():
        for text, same in by_text.items():
            words = "_".join(_words(same[0])) if len(by_text) > 1 else ""
            op_type = f"{name}.{words}" if words else name
            if op_type not in same[0].composite.op_types() or op_type in functions:
                raise RuntimeError(f"{op_type}: not a declared variant, or used for two bodies")
            functions[op_type] = _named(texts[text], op_type)
            for call in same:
                call.node.op_type = op_type
    return list(functions.values())


def _body_of(call: CompositeCall, opset: int) -> tuple[ir.Function, str]:
    """Return a body for a call, and its text, by which equal bodies are found."""
    composite = call.composite
    examples = _examples(composite, call.node.inputs)
    structural = {a.name: call.attributes.get(a.name) for a in composite.attributes if a.structural}
    scalars = tuple(
        a.name for a in composite.attributes if not a.structural and a.name in call.attributes
    )
    return _make_body(composite, examples, _frozen(structural), scalars, opset, _word(call))


@functools.cache
def _make_body(
    composite: Composite,
    examples: tuple[Example | None, ...],
    structural: tuple[tuple[str, Any], ...],
    scalars: tuple[str, ...],
    opset: int,
    dtype_word: str,
) -> tuple[ir.Function, str]:
    attributes = dict(structural)
    body = native.body(composite, examples, attributes, opset, dtype_word)
    if body is None:
        traced = trace_reference(composite, examples, attributes, scalars)
        body = lower_body(composite, examples, traced, opset)
    return body, ir.to_proto(body).SerializeToString().hex()


def _examples(composite: Composite, inputs: Sequence[Value | None]) -> tuple[Example | None, ...]:
    """Return what the body depends on, of the inputs of a call."""
    given = [*inputs, *[None] * (len(composite.inputs) - len(inputs))]
    first = given[0]
    assert first is not None
    width = dtype_of(first)
    traced = width if width == torch.float64 else torch.float16
    examples: list[Example | None] = []
    sizes: dict[str, Dim] = {}
    for declared, value in zip(composite.inputs, given, strict=True):
        if value is None:
            examples.append(None)
            continue
        dtype = dtype_of(value)
        dims = _letters(declared.dims, value, len(dims_of(first)), sizes)
        examples.append(Example(traced if dtype == width else dtype, dims))
    return tuple(examples)


def _letters(
    pattern: str, value: Value, first_rank: int, sizes: dict[str, Dim]
) -> tuple[str | int, ...]:
    """Return the letters of a value's dims; a broadcast dim of size 1 stays 1.

    ``V|K`` is ``K`` where the size is that of ``K``, which ``sizes`` remembers.
    """
    broadcast = pattern.startswith("~")
    tokens = pattern.lstrip("~").split()
    dims = dims_of(value)
    if tokens[0] == "*":
        rank = first_rank if broadcast else len(dims)
        lead = max(rank - len(tokens) + 1, 0)
        tokens = [f"A{lead - i}" for i in range(lead)] + tokens[1:]
    elif tokens[-1] == "*":
        tokens = tokens[:-1] + [f"A{i}" for i in range(len(dims) - len(tokens) + 1)]
    if tokens[-1] == "1" and len(dims) < len(tokens):
        tokens = tokens[:-1]
    letters = tokens[len(tokens) - len(dims) :]
    result: list[str | int] = []
    for letter, dim in zip(letters, dims, strict=True):
        letter, _, other = letter.partition("|")
        letter = other if other and sizes.get(other) == dim else letter
        sizes.setdefault(letter, dim)
        if broadcast and dim == 1:
            result.append(1)
        else:
            result.append(1 if letter == "1" else letter)
    return tuple(result)


def _words(call: CompositeCall) -> list[str]:
    """Return the variant words of a call: what it has, then its dtype."""
    words = native.variant_words(call)
    word = _word(call)
    return [*words, word] if word else words


def _word(call: CompositeCall) -> str:
    first = call.node.inputs[0]
    name = str(dtype_of(first)).removeprefix("torch.") if first is not None else ""
    return name if name in DTYPE_WORDS else ""


def _frozen(attributes: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((k, tuple(v) if isinstance(v, list | tuple) else v) for k, v in attributes.items())


def _named(function: ir.Function, op_type: str) -> ir.Function:
    """Return a copy of a (cached) function under another name."""
    copied = ir.from_proto(ir.to_proto(function))
    assert isinstance(copied, ir.Function)
    copied.name = op_type
    return copied
