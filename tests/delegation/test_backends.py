"""Whole programs that a backend has processed, alone and inside larger modules."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim, export

from coreai_onnx.delegation import (
    BackendDetails,
    CompileSpec,
    LoweredModule,
    OnnxModule,
    PreprocessResult,
    backend,
    delegates_of,
    to_backend,
    to_edge,
)
from coreai_onnx.errors import DelegationError
from tests.delegation.demo_backend import DEMO
from tests.delegation.foreign_models import example, with_functions
from tests.tolerances import assert_close


class LowerableModule(torch.nn.Module):
    def forward(self, x):
        return torch.sin(x)


def lowered(module: torch.nn.Module, *args, **options) -> LoweredModule:
    return to_backend(DEMO, to_edge(export(module, args, **options)).exported_program())


def test_a_whole_module() -> None:
    edge = to_edge(export(LowerableModule(), (torch.ones(1),), strict=True)).exported_program()
    made = to_backend(DEMO, edge, [CompileSpec("level", b"2")])
    assert made.backend_id == DEMO
    assert made.processed_bytes == b"level=2#aten.sin.default"
    assert made.compile_specs == (CompileSpec("level", b"2"),)
    assert made.original_module is edge
    x = torch.randn(1)
    assert_close(made(x), x.sin())


@pytest.mark.parametrize("strict", [True, False])
def test_a_lowered_module_in_a_larger_one(strict: bool) -> None:
    class NotLowerableModule(torch.nn.Module):
        def __init__(self, bias):
            super().__init__()
            self.bias = bias

        def forward(self, a, b):
            return torch.add(torch.add(a, b), self.bias)

    class ComposedModule(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.non_lowerable = NotLowerableModule(torch.ones(1) * 0.3)
            self.lowerable = lowered(LowerableModule(), torch.ones(1))

        def forward(self, x):
            a = self.lowerable(x)
            b = self.lowerable(a)
            ret = self.non_lowerable(a, b)
            return a, b, ret

    composed, x = ComposedModule(), torch.randn(1)
    finished = to_edge(export(composed, (torch.ones(1),), strict=strict)).finish()
    model = finished.onnx_program.model
    calls = [node for node in model.graph if node.domain == DEMO]
    assert [node.op_type for node in calls] == ["part_0", "part_0"]
    assert calls[0].inputs[-1] is calls[1].inputs[-1], "the bytes are stored once"
    assert calls[0].inputs[-1].const_value.tobytes() == b"aten.sin.default"
    for found, expected in zip(finished.run(x), composed(x), strict=True):
        assert_close(found, expected)


def test_weights_and_dynamic_sizes() -> None:
    module, rows = torch.nn.Linear(3, 4), Dim("rows")
    part = lowered(module, torch.randn(2, 3), dynamic_shapes=({0: rows},))
    outer = torch.nn.Sequential(part, torch.nn.ReLU())
    finished = to_edge(export(outer, (torch.randn(2, 3),), dynamic_shapes=({0: rows},))).finish()
    for count in (1, 5):
        x = torch.randn(count, 3)
        assert_close(finished.run(x)[0], module(x).relu().detach())


def test_an_unknown_backend_is_an_error_that_lists_the_known_ones() -> None:
    edge = to_edge(export(LowerableModule(), (torch.ones(1),))).exported_program()
    with pytest.raises(DelegationError, match=rf"no backend 'other'.*{DEMO}"):
        to_backend("other", edge)


def test_a_program_with_states_is_an_error() -> None:
    class Counts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x):
            self.count.add_(x)
            return self.count + 1

    with pytest.raises(DelegationError, match="a program with states"):
        lowered(Counts(), torch.ones(1))


@pytest.mark.parametrize(
    ("result", "fault"),
    [
        (
            ValueError("no rule"),
            r"raised ValueError: no rule\n  sin = aten.sin.default   .*sin\(x\)",
        ),
        (None, "returned no processed_bytes, but None"),
        (PreprocessResult("text"), "returned no processed_bytes, but .*text"),
    ],
)
def test_a_backend_that_fails_is_an_error(monkeypatch, result, fault) -> None:
    @backend("delegation.failing")
    class Failing(BackendDetails):
        @staticmethod
        def preprocess(edge_program, compile_specs):
            if isinstance(result, Exception):
                raise result
            return result

    edge = to_edge(export(LowerableModule(), (torch.ones(1),))).exported_program()
    with pytest.raises(DelegationError, match=fault):
        to_backend("delegation.failing", edge)


def test_bytes_that_a_backend_made_elsewhere() -> None:
    args = example(3)
    reference = to_edge(export(OnnxModule(with_functions()), args)).exported_program()
    blob = LoweredModule.from_bytes("delegation.blob", b"compiled", reference, version="7")

    class Larger(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blob = blob

        def forward(self, x, scale):
            return self.blob(x, scale)[0] + 1

    edge = to_edge(export(Larger(), args))
    assert [p.processed_bytes for p in delegates_of(edge.exported_program())] == [b"compiled"]
    finished = edge.finish()
    assert_close(finished.run(*args)[0], OnnxModule(with_functions())(*args)[0] + 1)
    (node,) = (n for n in finished.onnx_program.model.graph if n.domain == "delegation.blob")
    assert node.attributes["backend_version"].value == "7"
    assert node.inputs[-1].const_value.tobytes() == b"compiled"
    assert node.attributes["weights"].value == 1, "the weight of the file is an input of the part"


def test_no_bytes_are_an_error() -> None:
    edge = to_edge(export(LowerableModule(), (torch.ones(1),))).exported_program()
    with pytest.raises(DelegationError, match="processed_bytes is not bytes, but 'text'"):
        LoweredModule.from_bytes("delegation.blob", "text", edge)
