"""Inputs, weights, states and outputs of a program."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch.export import Dim

from coreai_onnx import convert
from coreai_onnx.errors import ConversionError
from coreai_onnx.lower import Context, IONames, LoweredProgram, ProgramLowering
from coreai_onnx.lower.walk.program import storage_key
from coreai_onnx.model.metadata import COMPLEX, ENTRYPOINT, RANGES
from tests.lower.checking import run_model
from tests.support.tolerances import assert_close

X = torch.randn(3, 4)


def lowered(
    module: torch.nn.Module, *args: Any, names: IONames | None = None, **how: Any
) -> LoweredProgram:
    program = torch.export.export(module, args, **how)
    return ProgramLowering(program, Context(opset=23), names or IONames()).run()


class Tied(torch.nn.Module):
    """An embedding and a head that share their weight, and a layer that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(6, 4)
        self.head = torch.nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight
        self.unused = torch.nn.Linear(50, 50)

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.embed(ids)
        return {"logits": self.head(hidden), "hidden": hidden}


def test_tied_weights_are_stored_once_under_the_users_name() -> None:
    program = lowered(Tied(), torch.tensor([0, 5]))
    weights = [n for n in program.graph.initializers if "weight" in n]
    assert weights in (["embed.weight"], ["head.weight"])


def test_outputs_are_named_after_the_keys() -> None:
    program = lowered(Tied(), torch.tensor([0, 5]))
    assert [v.name for v in program.graph.outputs] == ["logits", "hidden"]
    assert [v.name for v in program.graph.inputs] == ["ids"]


def test_names_the_user_gives() -> None:
    names = IONames(inputs=["tokens"], outputs=["a", "b"])
    program = lowered(Tied(), torch.tensor([0, 5]), names=names)
    assert [v.name for v in (*program.graph.inputs, *program.graph.outputs)] == ["tokens", "a", "b"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (IONames(inputs=["a", "b"]), "1 live inputs, but 2 names"),
        (IONames(outputs=["a"]), "2 live outputs, but 1 names"),
        (IONames(states=["a"]), "0 stateful inputs, but 1 names"),
    ],
)
def test_a_wrong_number_of_names(names: IONames, message: str) -> None:
    with pytest.raises(ConversionError, match=message):
        lowered(Tied(), torch.tensor([0, 5]), names=names)


def test_ranges_of_dims_are_written() -> None:
    class Double(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    program = lowered(Double(), X, dynamic_shapes=({0: Dim("batch", min=2, max=16)},))
    assert program.ranges == {"batch": {"min": 2, "max": 16}}
    props = program.model([], "decode").metadata_props
    assert json.loads(props[RANGES]) == program.ranges
    assert props[ENTRYPOINT] == "decode"


def test_an_input_a_weight_and_a_constant_as_outputs() -> None:
    class Passes(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))

        def forward(self, x: torch.Tensor) -> Any:
            y = x + 1
            return x, self.weight, y, y, 3, None

    module = Passes()
    program = lowered(module, X)
    got = run_model(program.model([], "main"), (X,))
    for actual, want in zip(got, (X, torch.ones(2), X + 1, X + 1, torch.tensor(3)), strict=True):
        assert_close(actual, want)


def test_numbers_as_inputs() -> None:
    class Scales(torch.nn.Module):
        def forward(self, x: torch.Tensor, n: int, flag: bool, nothing: None) -> torch.Tensor:
            return x * n if flag else x

    program = lowered(Scales(), X, 3, True, None, dynamic_shapes=(None, Dim.DYNAMIC, None, None))
    assert [v.name for v in program.graph.inputs] == ["x", "n"]
    got = run_model(program.model([], "main"), (X, torch.tensor(5)))
    assert_close(got[0], X * 5)


class Returns(torch.nn.Module):
    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result

    def forward(self, x: torch.Tensor) -> Any:
        return self.result


@pytest.mark.parametrize("result", [None, "text", (), {}, [None, "text"]])
def test_a_module_that_returns_nothing(result: Any) -> None:
    with pytest.raises(ConversionError, match="the module returns no tensor and no number"):
        lowered(Returns(result), X)


@pytest.mark.parametrize(
    ("result", "dtypes"),
    [
        (3, ["INT64"]),
        (True, ["BOOL"]),
        (1.5, ["FLOAT"]),
        ((2, None, "text", 0.5), ["INT64", "FLOAT"]),
    ],
)
def test_numbers_are_outputs_and_text_is_left_out(result: Any, dtypes: list[str]) -> None:
    program = lowered(Returns(result), X)
    assert [value.dtype.name for value in program.graph.outputs] == dtypes


def test_complex_inputs_and_weights_are_pairs() -> None:
    class Same(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("phase", torch.tensor([1 + 2j]))

        def forward(self, z: torch.Tensor) -> Any:
            return z, self.phase

    z = torch.randn(3, dtype=torch.complex64)
    program = lowered(Same(), z)
    got = run_model(program.model([], "main"), (z,))
    assert_close(got[0], torch.view_as_real(z))
    assert got[1].tolist() == [[1.0, 2.0]]


SMALL = ("int4", "uint4", "int2", "uint2", "int1", "uint7", "float4_e2m1fn_x2")
"""Dtypes that torch keeps in bytes."""


@pytest.mark.parametrize("name", [*SMALL, "float8_e8m0fnu"])
def test_weights_of_dtypes_that_onnxruntime_lacks(name: str) -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            stored = torch.arange(120, 132, dtype=torch.uint8).view(3, 4)
            self.register_buffer("codes", stored.view(getattr(torch, name)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            codes = self.codes.view(torch.uint8) if name in SMALL else self.codes
            return x * codes[1:].to(x.dtype)

    module, x = Scaled(), torch.randn(2, 4)
    program = convert(module, (x,))
    assert_close(program.run(x)[0], module(x))


def test_which_inputs_outputs_and_states_are_complex() -> None:
    class Turns(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("phase", torch.ones(3, dtype=torch.complex64))

        def forward(self, z: torch.Tensor, x: torch.Tensor) -> Any:
            self.phase.mul_(z)
            return z, torch.view_as_real(z), torch.view_as_complex(x), z.real, self.phase.conj()

    given = torch.randn(3, dtype=torch.complex64), torch.randn(3, 2)
    program = torch.export.export(Turns(), given).run_decompositions({})
    found = ProgramLowering(program, Context(opset=23), IONames()).run().model([], "main")
    names = json.loads(found.metadata_props[COMPLEX])
    assert sorted(names) == ["output_0", "output_2", "output_4", "phase", "phase_out", "z"]
    assert COMPLEX not in lowered(Tied(), torch.tensor([0])).model([], "main").metadata_props


def test_storage_keys() -> None:
    x = torch.randn(4, 4)
    assert storage_key(x) == storage_key(x.view(4, 4))
    assert storage_key(x) != storage_key(x.T)
    assert storage_key(x) != storage_key(x.clone())
    assert storage_key(torch.empty(0)) is None
    assert storage_key(torch.empty(2, device="meta")) is None
