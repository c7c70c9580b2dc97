"""What a model is compared with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import coreai_onnx
from coreai_onnx.debugging.reference.references import (
    SessionReference,
    TorchReference,
    calls_of,
    record_of,
    reference_for,
)
from coreai_onnx.errors import ComparisonError, LoadError
from coreai_onnx.export.record import ExportRecord
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.sessions.sources import model_of
from tests.debugging.small_reference import Small, converted
from tests.support.small_models import linear_model, parse


def test_the_kinds_of_references(tmp_path: Path) -> None:
    program = converted()
    program.save(tmp_path / "m.onnx", record=tmp_path / "m.pt2")
    record = program.record()
    for torch_side in (None, Small(), record, record.program, tmp_path / "m.pt2", torch.sin):
        assert isinstance(reference_for(program, torch_side), TorchReference)
    for other in (program, program.model, tmp_path / "m.onnx", (tmp_path / "m.onnx").read_bytes()):
        assert isinstance(reference_for(program, other), SessionReference)
    with pytest.raises(ComparisonError, match="no record"):
        reference_for(linear_model(), None)


def test_records() -> None:
    program = converted()
    assert record_of(program, None) is program.record()
    given = ExportRecord(program.record().program)
    assert record_of(program, given) is given
    assert record_of(linear_model(), given.program).program is given.program


def test_models_of_sources(tmp_path: Path) -> None:
    program = converted()
    program.save(tmp_path / "m.onnx")
    path = tmp_path / "m.onnx"
    for source in (program, program.model, path, str(path), path.read_bytes(), program.to_proto()):
        assert len(model_of(source).graph) == len(program.model.graph)
    with pytest.raises(LoadError, match="is not an ONNX model"):
        model_of(b"no model")


def test_calls_are_those_given_or_the_example_or_random() -> None:
    program, x = converted(), torch.ones(2)
    assert calls_of(program, None, x) == [((x,), {})]
    assert len(calls_of(program, None, [(x,), {"x": x}])) == 2
    (((example,), _),) = calls_of(program, None, None)
    assert torch.equal(example, program.record().example[0][0])  # type: ignore[index]
    (((made,), _),) = calls_of(linear_model(), torch.nn.Identity(), None)
    assert (made.dtype, made.shape) == (torch.float32, (2, 8))
    (((made,), _),) = calls_of(linear_model(), linear_model(), None)
    assert isinstance(made, np.ndarray)


def test_random_inputs_in_bfloat16() -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
    agraph (bfloat16[n] x) => (bfloat16[n] y) { y = Identity(x) }""")
    (((made,), _),) = calls_of(model, torch.nn.Identity(), None)
    assert made.dtype == torch.bfloat16
    assert made.float().abs().max() < 10


class Noisy(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(x)


def test_notes_name_random_operators_and_training_mode() -> None:
    reference = TorchReference(Noisy())
    reference.call((torch.ones(3),), {})
    notes = list(reference.notes)
    assert "random numbers (aten." in notes[0]
    assert notes[1].startswith("drop is in training mode")
    quiet = TorchReference(Noisy().eval())
    quiet.call((torch.ones(3),), {})
    assert not list(quiet.notes)


def test_outputs_of_another_model_are_matched_by_name_or_in_order() -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
    agraph (float[n] x) => (float[n] a, float[n] b) { a = Neg(x)  b = Abs(x) }""")
    other = parse("""<ir_version: 10, opset_import: ["": 21]>
    agraph (float[n] x) => (float[n] b, float[n] a) { a = Neg(x)  b = Abs(x) }""")
    renamed = parse("""<ir_version: 10, opset_import: ["": 21]>
    agraph (float[n] x) => (float[n] c, float[n] d) { c = Neg(x)  d = Abs(x) }""")
    x = torch.tensor([1.0, -2.0])
    for reference in (other, renamed):
        assert coreai_onnx.compare(model, reference, x).ok
    three = parse("""<ir_version: 10, opset_import: ["": 21]>
    agraph (float[n] x) => (float[n] c) { c = Neg(x) }""")
    with pytest.raises(ComparisonError, match="the reference has 1 outputs, the model has 2"):
        coreai_onnx.compare(model, three, x)


def test_states_of_another_model_are_carried() -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return x * self.count

    x = torch.ones(2)
    program = coreai_onnx.convert(Counter(), (x,))
    found = coreai_onnx.compare(program, OnnxProgram({"main": program.model.clone()}), [x, x])
    assert found.ok
    assert {row.output for row in found.rows} == {"output", "state count"}
    assert Session(program, kernels=False).states == ("count",)


def test_the_users_module_and_tensors_are_not_changed() -> None:
    class Mutating(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total += x
            return x.mul_(2)

    module, x = Mutating(), torch.ones(2)
    eager = TorchReference(module)
    first, second = eager.call((x,), {}), eager.call((x,), {})
    assert module.total.tolist() == [0, 0]
    assert x.tolist() == [1, 1]
    assert first.states["total"].tolist() == [1, 1]
    assert second.states["total"].tolist() == [2, 2]
    assert second.states["x"].tolist() == [2, 2]


class Running(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.total.add_(x).view(2)


def test_outputs_of_a_call_are_not_those_of_the_next() -> None:
    eager = TorchReference(Running())
    first, second = (eager.call((torch.ones(2),), {}) for _ in range(2))
    assert (first.outputs[0].tolist(), second.outputs[0].tolist()) == ([1, 1], [2, 2])
