"""Pairs taken apart, put together, and real lowerings reused on them."""

from __future__ import annotations

import onnx_ir as ir
import pytest
import torch

from coreai_onnx.lower.aten.complex.parts import along_axes, join, parts_of, split
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.scope import Names, Scope
from coreai_onnx.lower.nodes.values import dims_of, set_dims
from tests.lower.checking import check, run_model
from tests.support.tolerances import assert_close

Z = torch.randn(2, 3, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))


def _start() -> tuple[OpBuilder, ir.Value, ir.Graph]:
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 23}, name="main")
    op = OpBuilder(Scope(graph, Names()), 23)
    x = set_dims(ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT)), (2, 3, 2))
    x.meta["complex"] = True
    graph.inputs.append(x)
    return op, x, graph


def test_swapped_parts() -> None:
    op, x, graph = _start()
    re, im = split(op, x)
    assert dims_of(re) == dims_of(im) == (2, 3)
    graph.outputs.append(join(op, im, re))
    (got,) = run_model(ir.Model(graph, ir_version=10), [Z])
    assert_close(got, torch.view_as_real(Z).flip(-1))


def test_parts_of_numbers() -> None:
    op, _, graph = _start()
    graph.outputs.extend(parts_of(op, 2 - 3j, torch.float32))
    graph.outputs.extend(parts_of(op, op.const(4.0), torch.float32))
    numbers = run_model(ir.Model(graph, ir_version=10), [Z])
    assert [float(n) for n in numbers] == [2.0, -3.0, 4.0, 0.0]


INFINITE = torch.tensor([float("inf"), -1.0, float("nan")])


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_infinite_reals_get_an_imaginary_part_of_zero(dtype: torch.dtype) -> None:
    x, z = INFINITE.to(dtype), torch.randn(3, dtype=torch.complex128).to(dtype.to_complex())
    check(lambda x, z: x + z, x, z)
    check(lambda x, z: torch.stack([x.to(z.dtype), z]), x, z)
    rows = ({0: torch.export.Dim("n")}, {})
    check(lambda x, z: x[:, None] - z, x, z, dynamic_shapes=rows)


def test_infinite_parts_of_several_shapes() -> None:
    check(lambda x: torch.complex(x[:, None], x[None]), INFINITE)


def test_only_known_lowerings_are_reused() -> None:
    with pytest.raises(LookupError, match="no real lowering"):
        along_axes({"aten.nothing.default": (1,)})
