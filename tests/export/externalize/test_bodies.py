"""The body of an externalized module, exported by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.export import Dim

import coreai_onnx
from coreai_onnx.errors import ExportRetryWarning, ExternalizationError
from coreai_onnx.export.externalize.bodies import ModuleBody, example_inputs
from coreai_onnx.export.externalize.modules import Externalization, ModuleCall


class Inner(torch.nn.Module):
    """x W + y[0], and the number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, x: torch.Tensor, y: list[torch.Tensor], rows: int) -> dict[str, Any]:
        return {"sum": self.linear(x) + y[0] * rows, "rows": rows, "nothing": None}


class Outer(torch.nn.Module):
    """Calls Inner with its own number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.inner(x, [y], x.shape[0])["sum"]


def exported() -> tuple[ModuleCall, torch.fx.Node, torch.export.ExportedProgram]:
    model = Outer()
    externalization = Externalization(model, [Inner])
    args = (torch.randn(4, 3), torch.randn(4, 2).to(torch.float64))
    batch = Dim("batch")
    with externalization.patched(), torch.no_grad():
        program = torch.export.export(model, args, dynamic_shapes=({0: batch}, {0: batch}))
        externalization.export_bodies(
            program, lambda m, a, d: torch.export.export(m, a, dynamic_shapes=d)
        )
    (call,) = externalization.calls.values()
    (node,) = [n for n in program.graph.nodes if "module_call" in str(n.target)]
    assert call.body is not None
    return call, node, call.body


def test_examples_have_the_shapes_of_the_call() -> None:
    _, node, _ = exported()
    (tensors, numbers), (shapes, number_shapes) = example_inputs(node)
    assert [(tuple(t.shape), t.dtype) for t in tensors] == [
        ((4, 3), torch.float32),
        ((4, 2), torch.float64),
    ]
    assert numbers == [4]
    assert [list(s) for s in shapes] == [[0], [0]]
    assert len(number_shapes) == 1


def test_weights_are_under_the_module_and_only_tensors_come_out() -> None:
    call, _, body = exported()
    assert list(body.graph_signature.parameters) == ["module.linear.weight", "module.linear.bias"]
    assert call.out_leaves == ("tensor", "number", (None,))
    assert len(body.graph_signature.user_outputs) == 1


def test_a_body_is_the_modules_own_forward() -> None:
    module = Inner()
    module.register_forward_hook(lambda *_: pytest.fail("hooks belong to the caller"))
    call, _, _ = exported()
    tensors = [torch.randn(4, 3), torch.randn(4, 2)]
    call.module, call.original = module, module.forward
    outputs = ModuleBody(call)(tensors, [2])
    expected = module.forward(tensors[0], [tensors[1]], 2)["sum"]
    torch.testing.assert_close(outputs, [expected])


def test_a_body_that_does_not_export_says_which() -> None:
    class Once(torch.nn.Module):
        """Exports as a part, but not by itself: it reads what the caller left behind."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.compiler.is_exporting() and type(self).fails:
                raise RuntimeError("not twice")
            type(self).fails = True
            return x + 1

    Once.fails = False  # type: ignore[attr-defined]  # counted on the class
    model = torch.nn.Sequential(Once())
    with pytest.raises(ExternalizationError, match=r"module 0 \(Once\) failed to export by itself"):
        coreai_onnx.convert(model, (torch.ones(2),), externalize_modules=[Once])


def test_a_body_is_not_made_for_the_sizes_of_the_example() -> None:
    class Chunks(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            count = (x.shape[0] + 7) // 8  # 1 for the example
            column = torch.arange(count).view(count, 1).float()
            return torch.einsum("ab,cb->ac", column, column + 1)

    model = torch.nn.Sequential(torch.nn.ReLU(), Chunks())
    with pytest.warns(ExportRetryWarning):
        program = coreai_onnx.convert(
            model,
            torch.randn(5),
            dynamic_shapes=({0: "n"},),
            externalize_modules=[Chunks],
        )
    for size in (5, 20):
        coreai_onnx.compare(program, model, torch.randn(size)).assert_close()
