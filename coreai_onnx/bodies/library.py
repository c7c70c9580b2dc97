"""The composite functions of a model: one per distinct body, named by its variant."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from coreai_onnx.bodies.body import lower_body
from coreai_onnx.bodies.trace import Example, trace_reference
from coreai_onnx.bodies.writers import body_text, variant_words, write_body
from coreai_onnx.composites.declaration import DTYPE_WORDS, Composite
from coreai_onnx.lower.nodes.composite_calls import CompositeCall
from coreai_onnx.lower.nodes.values import Dim, Value, dims_of, dtype_of
from coreai_onnx.model.checks.fixed_attributes import write_fixed

KEPT_BODIES = 256
"""Bodies that are kept for further calls. A model has a few dozen; thousands of them, of a process
that converts many models, are millions of objects that each garbage collection visits."""


def composite_functions(calls: Sequence[CompositeCall], opset: int) -> list[ir.Function]:
    """Create the bodies of the calls and set each call to its body.

    A composite with one body in the model has its plain name. If calls need different bodies, each
    is named by its variant (``scaled_dot_product_attention.causal``), and by its dtype if the
    bodies differ by dtype; the body of the default variant keeps the plain name. If two bodies have
    the same variant, the second one is numbered. No kernel is registered for a numbered name, so
    its body always runs.

    Returns:
        The functions, in the order of their first call.
    """
    functions: dict[str, ir.Function] = {}
    bodies: dict[str, dict[str, list[CompositeCall]]] = {}
    texts: dict[str, ir.Function] = {}
    for call in calls:
        function, text = _body_of(call, opset)
        texts[text] = function
        bodies.setdefault(call.composite.name, {}).setdefault(text, []).append(call)
    for by_text in bodies.values():
        for op_type, text, same in _named_groups(by_text):
            name = _free(op_type, same[0].composite, functions)
            functions[name] = _named(texts[text], name)
            for call in same:
                call.node.op_type = name
    return list(functions.values())


def _named_groups(
    by_text: Mapping[str, Sequence[CompositeCall]],
) -> Iterator[tuple[str, str, Sequence[CompositeCall]]]:
    """Yield op type, body text and calls, for the calls of one composite grouped by their body."""
    by_words: dict[str, list[str]] = {}
    for text, same in by_text.items():
        words = variant_words(same[0].composite, examples_of(same[0]), same[0].attributes)
        # A single body keeps the plain name, whatever its variant.
        by_words.setdefault("_".join(words) if len(by_text) > 1 else "", []).append(text)
    for joined, texts in by_words.items():
        for text in texts:
            by_dtype: dict[str, list[CompositeCall]] = {}
            for call in by_text[text]:
                dtype = _dtype_word(call) if len(texts) > 1 else ""
                by_dtype.setdefault(dtype, []).append(call)
            for dtype, calls in by_dtype.items():
                suffix = "_".join(word for word in (joined, dtype) if word)
                name = calls[0].composite.name
                yield (f"{name}.{suffix}" if suffix else name), text, calls


def _free(op_type: str, composite: Composite, taken: Mapping[str, ir.Function]) -> str:
    """Return the op type if it is declared and unused, otherwise a numbered one."""
    if op_type in composite.op_types() and op_type not in taken:
        return op_type
    # The first body has the plain name, so the second one is number 2.
    return next(n for i in range(2, len(taken) + 3) if (n := f"{op_type}.{i}") not in taken)


def body_of(call: CompositeCall, opset: int) -> ir.Function:
    """Return the body of a call. It is cached and must be cloned before it is changed."""
    return _body_of(call, opset)[0]


def _body_of(call: CompositeCall, opset: int) -> tuple[ir.Function, str]:
    """Return a body for a call, and its text, which identifies equal bodies."""
    composite = call.composite
    structural = {a.name: call.attributes.get(a.name) for a in composite.attributes if a.structural}
    scalars = tuple(
        a.name for a in composite.attributes if not a.structural and a.name in call.attributes
    )
    return _make_body(composite, examples_of(call), _frozen(structural), scalars, opset)


@functools.lru_cache(KEPT_BODIES)
def _make_body(
    composite: Composite,
    examples: tuple[Example | None, ...],
    structural: tuple[tuple[str, Any], ...],
    scalars: tuple[str, ...],
    opset: int,
) -> tuple[ir.Function, str]:
    attributes = dict(structural)
    body = write_body(composite, examples, attributes, opset)
    if body is None:
        body = _trace(composite, examples, attributes, scalars, opset)
        write_fixed(body, attributes)
    return body, body_text(body)


def _trace(
    composite: Composite,
    examples: tuple[Example | None, ...],
    attributes: dict[str, Any],
    scalars: tuple[str, ...],
    opset: int,
) -> ir.Function:
    """Return a body for all dtypes up to float32 if the reference has one, else for this one."""

    def lowered(dtypes: tuple[Example | None, ...]) -> ir.Function:
        traced = trace_reference(composite, dtypes, attributes, scalars)
        return lower_body(composite, dtypes, traced, opset)

    general = _for_all_dtypes(examples)
    body = lowered(general)
    return lowered(examples) if general != examples and _names_float16(body) else body


def _for_all_dtypes(examples: Sequence[Example | None]) -> tuple[Example | None, ...]:
    """Return examples with dtypes up to float32 set to float16: one body holds for all of them."""
    first = examples[0]
    assert first is not None
    others = {e.dtype for e in examples if e is not None} - {first.dtype}
    # In the trace float16 stands for the dtype of the first input; an input that really is float16
    # could not be distinguished from it.
    if first.dtype == torch.float64 or torch.float16 in others:
        return tuple(examples)
    return tuple(
        Example(torch.float16, e.dims) if e is not None and e.dtype == first.dtype else e
        for e in examples
    )


def _names_float16(body: ir.Function) -> bool:
    """Return whether a node has the dtype of the trace: a constant, which is also rounded to it."""
    return any(
        getattr(attribute.value, "dtype", None) == ir.DataType.FLOAT16
        or (attribute.name == "dtype" and attribute.value == ir.DataType.FLOAT16)
        for node in body.all_nodes()
        for attribute in node.attributes.values()
    )


def examples_of(call: CompositeCall) -> tuple[Example | None, ...]:
    """Return the properties of a call's inputs on which the body depends."""
    composite, inputs = call.composite, call.node.inputs
    values = [*inputs, *[None] * (len(composite.inputs) - len(inputs))]
    first = values[0]
    assert first is not None
    examples: list[Example | None] = []
    sizes: dict[str, Dim] = {}
    for declared, value in zip(composite.inputs, values, strict=True):
        if value is None:
            examples.append(None)
            continue
        dims = _letters(declared.dims, value, len(dims_of(first)), sizes)
        examples.append(Example(dtype_of(value), dims))
    return tuple(examples)


def _letters(
    pattern: str, value: Value, first_rank: int, sizes: dict[str, Dim]
) -> tuple[str | int, ...]:
    """Return the letters of a value's dims; a broadcast dim of size 1 stays 1.

    ``V|K`` is ``K`` if the size equals that of ``K``, which is recorded in ``sizes``.
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
    if tokens and tokens[-1] == "1" and len(dims) < len(tokens):
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


def _dtype_word(call: CompositeCall) -> str:
    first = call.node.inputs[0]
    name = str(dtype_of(first)).removeprefix("torch.") if first is not None else ""
    return name if name in DTYPE_WORDS else ""


def _frozen(attributes: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    # functools.lru_cache needs hashable arguments.
    return tuple((k, tuple(v) if isinstance(v, list | tuple) else v) for k, v in attributes.items())


def _named(function: ir.Function, op_type: str) -> ir.Function:
    """Return a copy of a (cached) function under another name."""
    # A graph has one owner, and the cached function may be copied into many models.
    copied = function.clone()
    copied.name = op_type
    return copied
