"""Delegated parts of a model, and when their bytes are stale."""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch.export import export

from coreai_onnx import OnnxProgram
from coreai_onnx.delegation import PreprocessResult, backend, to_edge
from coreai_onnx.model.delegated_parts import PROCESSED, delegated_parts
from tests.delegation.demo_backend import DEMO, Demo, Tagging

aten = torch.ops.aten
X = torch.randn(2, 3)


@backend("parts.without_weights")
class WithoutWeights(Demo):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        made = Demo.preprocess(edge_program, compile_specs)
        return PreprocessResult(made.processed_bytes, holds_weights=False)


def model_of(module: torch.nn.Module, *operators, backend_id: str = DEMO) -> ir.Model:
    edge = to_edge(export(module, (X,))).to_backend(Tagging(*operators, backend_id=backend_id))
    return edge.finish().onnx_program.model


def two_layers() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 3))


def set_initializer(model: ir.Model, name: str, array: np.ndarray) -> None:
    model.graph.initializers[name].const_value = ir.tensor(array, name=name)


def test_parts_with_their_calls_and_bytes() -> None:
    (part,) = delegated_parts(model_of(two_layers(), aten.linear.default))
    assert part.name == f"{DEMO}::part_0"
    assert len(part.calls) == 2
    assert part.processed() == b"aten.linear.default"
    assert not part.stale
    assert not delegated_parts(model_of(two_layers()))


def test_parts_inside_branches_are_found() -> None:
    class Branches(torch.nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    parts = delegated_parts(model_of(Branches(), aten.sin.default, aten.cos.default))
    assert [(p.processed(), p.stale) for p in parts] == [
        (b"aten.sin.default", ""),
        (b"aten.cos.default", ""),
    ]


def test_changed_weights() -> None:
    for backend_id, fault in ((DEMO, "weights have changed"), (WithoutWeights, "")):
        name = backend_id if backend_id == DEMO else "parts.without_weights"
        model = model_of(two_layers(), aten.linear.default, backend_id=name)
        set_initializer(model, "2.weight", np.ones((3, 3), np.float32))
        (part,) = delegated_parts(model)
        assert fault in part.stale
        assert bool(part.stale) == bool(fault)


def test_changed_bytes() -> None:
    model = model_of(two_layers(), aten.linear.default)
    (part,) = delegated_parts(model)
    set_initializer(model, part.calls[0].inputs[-1].name, np.zeros(4, np.uint8))
    assert "SHA-256 differs" in part.stale
    part.calls[0].replace_input_with(len(part.calls[0].inputs) - 1, model.graph.inputs[0])
    assert "not a constant" in part.stale
    assert part.processed() is None


def test_other_bytes_than_the_functions() -> None:
    model = model_of(two_layers(), aten.linear.default)
    (part,) = delegated_parts(model)
    part.function.metadata_props[PROCESSED] = "0" * 64
    assert "SHA-256 differs" in part.stale


def test_a_state_is_not_a_weight() -> None:
    class Counts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(3))
            self.register_buffer("scale", torch.full((3,), 2.0))

        def forward(self, x):
            self.total.add_(x.sum(0))
            return self.total * self.scale

    (part,) = delegated_parts(
        model_of(Counts(), aten.sum.dim_IntList, aten.add.Tensor, aten.mul.Tensor)
    )
    assert part.calls[0].attributes["weights"].as_int() == 1
    assert [value.name for value in part.calls[0].inputs[:1]] == ["scale"]
    assert not part.stale


@pytest.mark.parametrize("backend_id", [DEMO, "parts.without_weights"])
def test_the_bytes_stay_the_last_input_and_quantized_parts_are_stale(backend_id) -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    x = torch.randn(2, 64)
    edge = to_edge(export(layers, (x,)))
    program = edge.to_backend(Tagging(aten.linear.default, backend_id=backend_id)).finish()
    expected = layers(x).detach().numpy()
    for change in (
        lambda program: program.quantize(8, 32),
        lambda program: program.convert_dtype("float16", keep_io=True),
    ):
        changed = change(OnnxProgram({"forward": program.onnx_program.model.clone()}))
        (part,) = delegated_parts(changed.model)
        assert part.function.inputs[-1].name == "processed"
        assert all(call.inputs[-1].name.startswith(backend_id) for call in part.calls)
        assert part.processed() == b"aten.linear.default"
        assert re.match("its (weights|inputs) have changed since the backend", part.stale)
        assert np.abs(changed.run(x)[0] - expected).max() < 0.02, "the body is right"
    assert not delegated_parts(program.onnx_program.model)[0].stale
