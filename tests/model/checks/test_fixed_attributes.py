"""A call has the attributes that its body was written for, or it is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

import coreai_onnx
from coreai_onnx.composites import COMPOSITES
from coreai_onnx.composites.declaration import Attribute
from coreai_onnx.debugging import inspect_model
from coreai_onnx.errors import LoadError, SessionError
from coreai_onnx.model.checks.fixed_attributes import FIXED, fixed_attributes_fault, sign
from coreai_onnx.model.files.loading import load_model
from coreai_onnx.runtime.libraries.library import kernels_built
from tests.support.composite_calls import Case
from tests.support.composite_cases import CASES
from tests.support.tolerances import assert_close

WORDS = {
    "causal_alignment": ("lower_right", "upper_left"),
    "approximate": ("none", "tanh"),
    "activation": ("none", "silu", "gelu", "gelu_tanh", "sigmoid", "tanh", "exp"),
}
"""The values of the attributes that are words."""
IGNORED = {"group_size", "shape", "axis", "minimum"}
"""Attributes that must agree with the shapes of inputs: runtimes refuse other values."""
SMALL = [case for case in CASES if 0 not in (n for s in case.shapes for n in s or ())]


def others(attribute: Attribute, value: Any) -> Iterator[Any]:
    """Yield other values of an attribute."""
    if attribute.type == "string":
        yield from (word for word in WORDS[attribute.name] if word != value)
    elif attribute.type == "ints":
        yield from ([n] for n in (-2, -1) if [n] != list(value or ()))
    elif attribute.type == "float":
        yield from ((value or 0.0) + 0.5, (value or 1.0) * 3.0)
    else:
        yield from (n for n in (0, 1, 2, 4) if n != value)


def changes(case: Case) -> Iterator[tuple[str, Any]]:
    """Yield every attribute of a case with another value."""
    for attribute in COMPOSITES[case.composite].attributes:
        if attribute.name not in IGNORED:
            value = case.attributes.get(attribute.name, attribute.default)
            yield from ((attribute.name, other) for other in others(attribute, value))


def expected(case: Case, inputs: list[torch.Tensor | None]) -> torch.Tensor | None:
    """Return what the reference computes; None if the composite refuses the attributes."""
    composite = COMPOSITES[case.composite]
    defaults = {a.name: a.default for a in composite.attributes}
    dims = {d.name: s for d, s in zip(composite.inputs, case.shapes, strict=False) if s is not None}
    try:
        if composite.check(dims, {**defaults, **case.attributes}):
            return None
        return case.expected(inputs)
    except (RuntimeError, IndexError, ValueError, TypeError, AssertionError, ZeroDivisionError):
        return None


def results(model: ir.Model, inputs: list[torch.Tensor | None]) -> Iterator[np.ndarray]:
    """Yield the first result of the body and, if it is built, of the kernel."""
    for kernels in (False, True) if kernels_built() else (False,):
        given = [x for x in inputs if x is not None]
        with suppress(SessionError):  # a runtime may refuse a value, too
            yield next(iter(coreai_onnx.session(model, kernels=kernels).run(*given).values()))


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_a_call_with_another_attribute_is_computed_alike_or_refused(case: Case) -> None:
    inputs = case.inputs(torch.float32)
    for name, value in changes(case):
        model = case.model(torch.float32, dynamic=False)
        assert fixed_attributes_fault(model) == ""
        (node,) = model.graph
        node.attributes[name] = ir.convenience.convert_attribute(name, value)
        if fixed_attributes_fault(model):
            continue
        changed = Case(case.composite, case.shapes, {**case.attributes, name: value}, case.dtypes)
        wanted = expected(changed, inputs)
        if wanted is None:
            continue
        for result in results(model, inputs):
            assert_close(torch.from_numpy(result), wanted, message=f"{name}={value}")


def causal() -> ir.Model:
    """Return a model of a causal attention."""
    case = next(c for c in CASES if c.label == "causal_mha")
    model = case.model(torch.float32, dynamic=False)
    node = model.graph[0]
    node.name = "layer.attention"
    node.metadata_props.update({"coreai.scope": "layer", "coreai.source": "model.py:41"})
    return model


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("is_causal", 0, "has is_causal = 0, its body is for 1"),
        ("window_size", 4, "has window_size = 4, its body is for 0"),
        ("softcap", 2.0, "has softcap = 2.0, its body is for 0.0"),
        ("causal_alignment", "upper_left", "upper_left, its body is for lower_right"),
    ],
)
def test_files_and_sessions_refuse_it(
    tmp_path: Path, name: str, value: object, message: str
) -> None:
    model = causal()
    model.graph[0].attributes[name] = ir.convenience.convert_attribute(name, value)
    path = tmp_path / "model.onnx"
    ir.save(model, path)
    where = r"node 'layer.attention' \(layer, model.py:41\) "
    for source in (model, path, path.read_bytes()):
        with pytest.raises(SessionError, match=where + ".*" + message):
            coreai_onnx.session(source)
    for read in (load_model, inspect_model):
        with pytest.raises(LoadError, match=where + ".*" + message):
            read(path)


def test_an_absent_attribute_has_its_default() -> None:
    model = causal()
    del model.graph[0].attributes["window_size"]
    assert fixed_attributes_fault(model) == ""
    del model.graph[0].attributes["is_causal"]
    assert "has is_causal = 0, its body is for 1" in fixed_attributes_fault(model)


def test_a_number_that_the_body_reads_keeps_its_sign() -> None:
    case = next(c for c in CASES if c.label == "causal_window_mha")
    model = case.model(torch.float32, dynamic=False)
    (function,) = model.functions.values()
    assert '"window_size": ">0"' in function.metadata_props[FIXED]
    for value in (1, 7):
        model.graph[0].attributes["window_size"] = ir.AttrInt64("window_size", value)
        assert fixed_attributes_fault(model) == ""
    model.graph[0].attributes["window_size"] = ir.AttrInt64("window_size", 0)
    assert "has window_size = 0, its body is for >0" in fixed_attributes_fault(model)


def test_an_attribute_of_the_caller_is_refused() -> None:
    model = causal()
    reference = ir.RefAttr("is_causal", "outer", ir.AttributeType.INT)
    model.graph[0].attributes["is_causal"] = reference
    assert "has is_causal of its caller, its body is for 1" in fixed_attributes_fault(model)


@pytest.mark.parametrize("text", ["", "no JSON", "[" * 100_000, "[1]"])
def test_unreadable_metadata_fix_nothing(text: str) -> None:
    model = causal()
    (function,) = model.functions.values()
    function.metadata_props[FIXED] = text
    model.graph[0].attributes["is_causal"] = ir.AttrInt64("is_causal", 0)
    assert fixed_attributes_fault(model) == ""


def test_signs() -> None:
    assert [sign(n) for n in (-1.5, 0, 3)] == ["<=0", "<=0", ">0"]
