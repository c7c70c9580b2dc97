"""References traced over symbolic sizes."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx.bodies.trace import Example, trace_reference
from coreai_onnx.composites import COMPOSITES
from coreai_onnx.composites.declaration import Composite, Input
from coreai_onnx.errors import ConversionError


def test_sizes_stay_symbolic_and_attributes_are_scalars() -> None:
    examples = (Example(torch.float16, ("A1", "D")), Example(torch.float16, ("D",)))
    traced = trace_reference(COMPOSITES["rms_norm"], examples, {"axes": (-1,)}, ("eps",))
    assert (traced.inputs, traced.scalars) == (("input", "scale"), ("eps",))
    x, scale, eps = (
        n.meta["val"] for n in traced.graph_module.graph.nodes if n.op == "placeholder"
    )
    assert all(isinstance(d, torch.SymInt) for d in (*x.shape, *scale.shape))
    assert x.shape[1].node.expr == scale.shape[0].node.expr
    assert (eps.shape, eps.dtype) == (torch.Size([]), torch.float32)


def test_absent_inputs_are_no_placeholders() -> None:
    examples = (Example(torch.float32, ("D",)), None)
    traced = trace_reference(COMPOSITES["rms_norm"], examples, {"axes": (-1,), "eps": 1e-5}, ())
    assert traced.inputs == ("input",)


def test_a_trace_computes_the_reference() -> None:
    examples = (Example(torch.float32, ("A1", "D")), Example(torch.float32, ("D",)))
    traced = trace_reference(COMPOSITES["rms_norm"], examples, {"axes": (-1,)}, ("eps",))
    x, scale = torch.randn(3, 9), torch.randn(9)
    expected = COMPOSITES["rms_norm"].reference(x, scale, eps=torch.tensor(1e-3))
    torch.testing.assert_close(traced.graph_module(x, scale, torch.tensor(1e-3)), expected)


def test_a_reference_that_fixes_a_size_is_refused() -> None:
    fixing = Composite(
        name="fixing",
        inputs=(Input("x", dims="T"),),
        outputs=("y",),
        reference=lambda x: x * 2 if x.shape[0] == 7 else x,
        formula="",
    )
    with pytest.raises(ConversionError, match="the reference of fixing fixes the sizes"):
        trace_reference(fixing, (Example(torch.float32, ("T",)),), {}, ())
