"""Whole programs that a backend has processed, alone and inside larger modules."""

from __future__ import annotations

import copy
import gc
import io
import pickle

import pytest
import torch
from torch.export import Dim, export

from coreai_onnx import OnnxProgram
from coreai_onnx.delegation import (
    CompileSpec,
    LoweredBackendModule,
    LoweredModule,
    OnnxModule,
    delegates_of,
    to_backend,
    to_edge,
)
from coreai_onnx.errors import DelegationError, InputError
from tests.delegation.demo_backend import DEMO
from tests.delegation.foreign_models import example, with_functions
from tests.support.tolerances import assert_close

X = torch.randn(2, 3)


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


def test_a_part_for_other_sizes_is_an_error() -> None:
    part = lowered(torch.nn.Linear(3, 4), torch.randn(2, 3))
    outer = torch.nn.Sequential(part, torch.nn.ReLU())
    with pytest.raises(InputError, match=r"for input: float32\[2, 3\], not float32\[5, 3\]"):
        part(torch.randn(5, 3))
    with pytest.raises(InputError, match=r"for input: float32\[2, 3\], not float32\[5, 3\]"):
        export(outer, (torch.randn(5, 3),))
    exported = export(outer, (torch.randn(2, 3),), dynamic_shapes=({0: Dim.AUTO},))
    assert exported.graph_module.graph.find_nodes(op="placeholder")[-1].meta["val"].shape == (2, 3)
    part.to(torch.float64)
    with pytest.raises(InputError, match=r"float32\[4, 3\], not float64\[4, 3\]"):
        part(torch.randn(2, 3).double())


@pytest.mark.parametrize("count", [0, 2])
def test_another_number_of_inputs_is_an_error(count: int) -> None:
    part = lowered(torch.nn.Linear(3, 4), torch.randn(2, 3))
    with pytest.raises(
        InputError, match=rf"takes the inputs \(input\); number of inputs given: {count}"
    ):
        part(*[torch.randn(2, 3)] * count)


@pytest.mark.parametrize("value", [X.numpy(), None, 3])
def test_inputs_are_tensors(value) -> None:
    with pytest.raises(InputError, match=f"takes a tensor as x, got {type(value).__name__}$"):
        lowered(LowerableModule(), X)(value)


@pytest.mark.parametrize("strict", [True, False])
def test_inputs_by_name(strict: bool) -> None:
    class Difference(torch.nn.Module):
        def forward(self, a, b):
            return a - b

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.part = part

        def forward(self, x, y):
            return self.part(x, b=y) + self.part(b=x, a=y.exp())

    part, y = lowered(Difference(), X, X.clone()), torch.randn(2, 3)
    assert_close(part(b=y, a=X), X - y)
    finished = to_edge(export(Outer(), (X, y), strict=strict)).finish()
    assert_close(finished.run(X, y)[0], X - y + y.exp() - X)
    with pytest.raises(InputError, match="takes b by name, not c"):
        part(X, c=y)


@pytest.mark.parametrize("strict", [True, False])
def test_a_program_owns_its_lowered_modules(strict: bool) -> None:
    def exported():
        part = lowered(torch.nn.Linear(3, 4), torch.randn(2, 3))
        outer = torch.nn.Sequential(part, torch.nn.ReLU())
        return export(outer, (X,), strict=strict), outer(X).detach()

    program, expected = exported()
    gc.collect()
    assert_close(program.module()(X).detach(), expected)
    edge = to_edge(program)
    del program
    gc.collect()
    assert_close(edge.finish().run(X)[0], expected)
    part = edge.exported_program().graph_module.lowered_module_0
    assert isinstance(part, LoweredBackendModule)
    assert part.backend_id == DEMO
    assert part.processed_bytes == b"aten.linear.default"
    assert [n.op for n in part.original_module.graph.nodes].count("call_function") == 1


def test_the_file_of_a_lowered_module(tmp_path) -> None:
    rows = Dim("rows", max=8)
    part = lowered(torch.nn.Linear(3, 4), X, dynamic_shapes=({0: rows},))
    path = tmp_path / "part.onnx"
    path.write_bytes(part.buffer())
    loaded = OnnxProgram.load(path)
    (call,) = loaded.model.graph
    assert (call.domain, call.op_type) == (DEMO, "part_0")
    assert call.inputs[-1].const_value.tobytes() == b"aten.linear.default"
    for count in (2, 7):
        x = torch.randn(count, 3)
        assert_close(loaded.run(x)[0], part(x).detach())
    with pytest.raises(InputError, match="expected at most 8"):
        loaded.run(torch.randn(9, 3))


def test_a_lowered_module_is_copied_and_pickled() -> None:
    part = lowered(torch.nn.Linear(3, 4), X, dynamic_shapes=({0: Dim("rows")},))
    copied = copy.deepcopy(part)
    pickled = pickle.loads(pickle.dumps(part))
    file = io.BytesIO()
    torch.save(torch.nn.Sequential(part, torch.nn.ReLU()), file)
    file.seek(0)
    restored = torch.load(file, weights_only=False)[0]
    for other in (copied, pickled, restored):
        assert other.backend_id == DEMO
        assert other.processed_bytes == part.processed_bytes
        x = torch.randn(5, 3)
        assert_close(other(x).detach(), part(x).detach())
        assert_close(to_edge(export(other, (x,))).finish().run(x)[0], part(x).detach())
        other.weight_0.zero_()
        assert part.weight_0.any(), "the weights are copies"


@pytest.mark.parametrize(
    ("failing", "fault"),
    [
        (
            lambda edge: CompileSpec("k", "text"),
            r"a string and bytes, got 'k' and 'text'\n  encode",
        ),
        (lambda edge: CompileSpec(1, b""), "a string and bytes, got 1"),
        (lambda edge: to_backend(DEMO, edge, ["level"]), "a list of CompileSpec, got .'level'"),
        (lambda edge: to_backend(DEMO, edge, None), "a list of CompileSpec, got None"),
        (
            lambda edge: LoweredModule.from_bytes(DEMO, b"", torch.nn.ReLU()),
            r"takes an exported program, got ReLU\n  pass to_edge",
        ),
        (
            lambda edge: LoweredModule.from_bytes(DEMO, b"", edge, [("k", b"v")]),
            "a list of CompileSpec",
        ),
    ],
)
def test_wrong_arguments_are_errors(failing, fault) -> None:
    edge = to_edge(export(LowerableModule(), (torch.ones(1),))).exported_program()
    with pytest.raises(DelegationError, match=fault):
        failing(edge)


class Constants(torch.nn.Module):
    def forward(self, x, scale, flag=None):
        return (x * scale, 3) if flag else x * scale


def test_inputs_and_results_that_are_not_tensors_are_errors() -> None:
    with pytest.raises(DelegationError, match=r"the input scale is 2.5; a part takes"):
        lowered(Constants(), X, 2.5)
    with pytest.raises(DelegationError, match=r"the result .* is not a tensor"):
        lowered(Constants(), X, 2, True)
