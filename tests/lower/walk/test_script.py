"""onnxscript functions as lowerings: kept as functions, or inlined."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx_ir as ir
import onnxscript
import pytest
import torch
from onnxscript import FLOAT
from onnxscript import opset13 as op13
from onnxscript import opset18 as op18

from coreai_onnx import TorchConverter
from coreai_onnx.errors import LoweringError
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.scope import Names, Scope
from coreai_onnx.lower.walk.script import ScriptLowering, Tensor, as_lowering, unwrap, wrap
from tests.lower.checking import run_model
from tests.support.tolerances import assert_close

OPSET = onnxscript.values.Opset("coreai.test", 1)
X = torch.randn(3, 4)


@onnxscript.script(OPSET)
def doubled(x: FLOAT) -> FLOAT:
    """Return 2x."""
    return op18.Add(x, x)


@onnxscript.script(OPSET)
def scaled_sum(x: FLOAT, y: FLOAT, scale: float = 1.0) -> FLOAT:
    """Return 2x + scale·y."""
    factor = op18.Constant(value_float=scale)
    return op18.Add(doubled(x), op18.Mul(y, factor))


@pytest.fixture
def mix() -> Iterator[Any]:
    """An op without a decomposition: mix(x, y, *, scale) = 2x + scale·y."""
    with torch.library._scoped_library("coreai_script", "FRAGMENT") as library:
        library.define("mix(Tensor x, Tensor y, *, float scale=1.0) -> Tensor")
        library.impl("mix", lambda x, y, scale=1.0: 2 * x + scale * y, "CPU")
        library.impl("mix", lambda x, y, scale=1.0: torch.empty_like(x), "Meta")
        yield torch.ops.coreai_script.mix


def converted(mix: Any, lowering: Any) -> ir.Model:
    class Mixes(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return mix(mix(x, x + 1, scale=3.0), x)

    converter = TorchConverter()
    converter.register_torch_lowering("coreai_script::mix.default")(lowering)
    program = converter.add_exported_program(torch.export.export(Mixes(), (X,))).to_onnx()
    model = program.model
    expected = 2 * (2 * X + 3 * (X + 1)) + X
    assert_close(run_model(model, (X,))[0], expected)
    return model


def test_a_compiled_function_stays_a_function(mix: Any) -> None:
    model = converted(mix, scaled_sum)
    calls = [n for n in model.graph if n.domain == "coreai.test"]
    assert [n.op_type for n in calls] == ["scaled_sum", "scaled_sum"]
    assert calls[0].attributes["scale"].value == 3.0
    assert {f.name for f in model.functions.values()} == {"scaled_sum", "doubled"}
    assert model.graph.opset_imports["coreai.test"] == 1


def test_a_function_of_an_older_operator_is_refused() -> None:
    @onnxscript.script(OPSET)
    def mean(x: FLOAT) -> FLOAT:
        return op13.ReduceMean(x, axes=[1], keepdims=0)

    with pytest.raises(LoweringError, match="ReduceMean of opset 13"):
        ScriptLowering(mean).functions_at(23)


def test_a_traced_function_is_inlined(mix: Any) -> None:
    traced = onnxscript.values.TracedOnnxFunction(OPSET, lambda x, y, scale=1.0: x + x + y * scale)
    model = converted(mix, traced)
    assert not model.functions
    assert {n.op_type for n in model.graph} == {"Add", "Mul"}


def builder() -> tuple[OpBuilder, ir.Value]:
    """Return a builder in an empty graph, and a float input of two axes."""
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["n", 4]))
    graph = ir.Graph([x], [], nodes=[], opset_imports={"": 23}, name="main")
    return OpBuilder(Scope(graph, Names()), 23), x


def test_a_wrapped_value_tells_shape_dtype_and_rank() -> None:
    op, x = builder()
    wrapped = wrap(op, x)
    assert (wrapped.rank, wrapped.dtype, wrapped.shape[1]) == (2, ir.DataType.FLOAT, 4)
    assert unwrap([wrapped, 3]) == [x, 3]
    with pytest.raises(TypeError, match="not known before the model runs"):
        bool(wrapped)
    assert bool(Tensor(op, op.const(value=True)))


def test_operators_make_nodes() -> None:
    op, x = builder()
    wrapped = wrap(op, x)
    results = [wrapped + 1, 1 - wrapped, -wrapped, wrapped % 2, wrapped != 0, wrapped[0]]
    assert all(isinstance(r, Tensor) for r in results)
    kinds = [n.op_type for n in op.scope.graph]
    assert kinds == ["Add", "Sub", "Neg", "Mod", "Equal", "Not", "Gather"]


def test_what_has_no_form_is_said() -> None:
    def split(v: FLOAT) -> Any:
        return op18.SplitToSequence(v)

    op, x = builder()
    with pytest.raises(LoweringError, match="SplitToSequence"):
        as_lowering(onnxscript.values.TracedOnnxFunction(OPSET, split))(op, x)
