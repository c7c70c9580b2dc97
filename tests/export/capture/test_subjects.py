"""What can be converted, and what is said about the rest."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode

from coreai_onnx import TorchConverter, compare, convert
from coreai_onnx.errors import StagingError
from coreai_onnx.export.capture.subjects import FunctionModule

pytestmark = [  # torch 2.15 changed the category
    pytest.mark.filterwarnings(f"ignore:`torch.jit:{category}")
    for category in ("DeprecationWarning", "FutureWarning")
]
X = torch.randn(2, 4)
LAYER = torch.nn.Linear(4, 4)
NET = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).eval()


class Pipeline:
    """Not a module, and has one."""

    def __init__(self) -> None:
        self.decoder = torch.nn.Linear(4, 2)

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        return self.decoder(latents)

    __call__ = decode


def of_globals(x: torch.Tensor) -> torch.Tensor:
    return LAYER(x).relu()


def over() -> Any:
    layer = torch.nn.Linear(4, 4)
    return lambda a: layer(a) * 3


def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


OWN = torch.nn.Linear(4, 4)
PIPELINE = Pipeline()
MODULES = ["module.weight", "module.bias"]
SUBJECTS: dict[str, tuple[Callable[[], Any], str, list[str]]] = {
    # what makes it, the name of its input, its weights
    "function": (lambda: twice, "x", []),
    "lambda over a module": (over, "a", ["layer.weight", "layer.bias"]),
    "function of a global": (lambda: of_globals, "x", ["LAYER.weight", "LAYER.bias"]),
    "function in C": (lambda: torch.relu, "args_0", []),
    "partial": (lambda: functools.partial(F.leaky_relu, negative_slope=0.3), "input", []),
    "partial of a module": (lambda: functools.partial(OWN), "args_0", MODULES),
    "method of a module": (lambda: OWN.forward, "input", MODULES),
    "method": (lambda: PIPELINE.decode, "latents", ["decoder.weight", "decoder.bias"]),
    "object": (lambda: PIPELINE, "latents", ["decoder.weight", "decoder.bias"]),
    "compiled module": (lambda: torch.compile(OWN), "input", ["weight", "bias"]),
    "compiled function": (lambda: torch.compile(twice), "x", []),
    "graph module": (lambda: torch.fx.symbolic_trace(OWN), "input", ["weight", "bias"]),
    "unlifted": (lambda: torch.export.export(OWN, (X,)).module(), "input", ["weight", "bias"]),
    "traced module": (lambda: torch.jit.trace(NET, X), "input", ["module.1.running_mean"]),
    "traced function": (lambda: torch.jit.trace(twice, X), "x", []),
}


@pytest.mark.parametrize("name", SUBJECTS)
def test_what_can_be_converted(name: str) -> None:
    make, input_name, weights = SUBJECTS[name]
    subject = make()
    program = convert(subject, X, optimize=False)
    assert [value.name for value in program.model.graph.inputs] == [input_name]
    initializers = program.model.graph.initializers
    assert [w for w in weights if w not in initializers] == []
    compare(program, NET if name == "traced module" else subject, torch.randn(2, 4)).assert_close()


def test_a_function_is_exported_by_the_user() -> None:
    converter = TorchConverter()
    converter.add_pytorch_module(twice, export_fn=lambda m: torch.export.export(m, (X,)))
    compare(converter.to_onnx(), FunctionModule(twice), (X,)).assert_close()


def fake_data() -> torch.nn.Module:
    module = torch.nn.Linear(4, 4)
    with FakeTensorMode(allow_non_fake_inputs=True):
        module.weight.data = torch.empty(4, 4)
    return module


def empty(count: int) -> torch.nn.Module:
    layers = (torch.nn.Linear(1, 1, device="meta") for _ in range(count))
    return torch.nn.Sequential(*layers)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "path": (lambda: "m.pt2", r"a str cannot be converted\n  load it first \(torch.export.load"),
    "weights": (LAYER.state_dict, "load weights into a module"),
    "nothing": (lambda: None, "a NoneType cannot be converted\n  give a torch.nn.Module"),
    "class": (lambda: torch.nn.Linear, r"Linear is a class\n  give an instance of it: Linear\("),
    "scripted": (lambda: torch.jit.script(LAYER), "the model is a module of torch.jit.script"),
    "scripted inside": (
        lambda: torch.nn.Sequential(torch.jit.script(LAYER)),
        "0 is a module of torch.jit.script",
    ),
    "meta": (lambda: empty(1), r"without values .*: 0.weight, 0.bias\n"),
    "fake": (fake_data, "without values .*: weight\n"),
    "many": (lambda: empty(3), "0.weight, 0.bias, 1.weight and 3 more"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_converted(name: str) -> None:
    make, text = REFUSED[name]
    with pytest.raises(StagingError, match=text):
        convert(make(), X)


def test_programs_and_modules_are_told_apart() -> None:
    program = torch.export.export(LAYER, (X,))
    with pytest.raises(StagingError, match=r"add_exported_program\(\)"):
        TorchConverter().add_pytorch_module(program, export_fn=lambda _: program)


def test_a_name_that_a_module_has_itself() -> None:
    training = torch.nn.Linear(4, 4)
    module = FunctionModule(lambda x: training(x) * 2)
    assert [name for name, _ in module.named_children()] == ["training_"]
