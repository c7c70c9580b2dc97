"""Edits of a written model: they build and run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import coreai_onnx
from coreai_onnx import OnnxProgram, from_python
from coreai_onnx.runtime import kernels_built
from tests.support.tolerances import assert_close


class Net(torch.nn.Module):
    """Three equal layers with a composite each."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))
        self.scale = torch.nn.Parameter(torch.rand(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return torch.nn.functional.rms_norm(x, (8,), self.scale, 1e-6)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    x = torch.ones(2, 8)
    program = coreai_onnx.convert(Net().eval(), (x,), dynamic_shapes={"x": {0: "batch"}})
    return lambda folder: program.to_python(folder / "net")


def edited(folder: Path, before: str, after: str) -> OnnxProgram:
    path = folder / "model.py"
    text = path.read_text()
    assert before in text, text
    path.write_text(text.replace(before, after))
    return from_python(folder)


def relu_net(x: torch.Tensor, steps: list[int], act=torch.relu) -> torch.Tensor:
    net = Net()
    for step in steps:
        x = act(net.layers[step](x))
    return torch.nn.functional.rms_norm(x, (8,), net.scale, 1e-6).detach()


def check(program: OnnxProgram, expected: torch.Tensor, name: str = "x") -> None:
    for kernels in {False, kernels_built()}:
        (y,) = program.run(kernels=kernels, **{name: torch.ones(2, 8)})
        assert_close(torch.from_numpy(np.asarray(y)), expected)


def test_it_runs_unedited(written, tmp_path: Path) -> None:
    check(from_python(written(tmp_path)), relu_net(torch.ones(2, 8), [0, 1, 2]))


def test_another_activation(written, tmp_path: Path) -> None:
    program = edited(written(tmp_path), "op.Relu(", "op.Tanh(")
    check(program, relu_net(torch.ones(2, 8), [0, 1, 2], torch.tanh))


def test_another_body_of_a_composite(written, tmp_path: Path) -> None:
    program = edited(
        written(tmp_path),
        "    return op.RMSNormalization(input, scale, epsilon=eps)",
        "    return op.Mul(input, scale)",
    )
    net = Net()
    x = torch.ones(2, 8)
    for layer in net.layers:
        x = torch.relu(layer(x))
    (y,) = program.run(torch.ones(2, 8), kernels=False)
    assert_close(torch.from_numpy(np.asarray(y)), (x * net.scale).detach())


def test_a_renamed_input(written, tmp_path: Path) -> None:
    folder = written(tmp_path)
    path = folder / "model.py"
    head, main = path.read_text().split("@model.graph")
    path.write_text(
        head + "@model.graph" + main.replace("(x", "(features").replace(" x,", " features,")
    )
    program = from_python(folder)
    check(program, relu_net(torch.ones(2, 8), [0, 1, 2]), "features")


def test_an_added_layer(written, tmp_path: Path) -> None:
    program = edited(
        written(tmp_path),
        "    return rms_norm(op.Relu(layer),",
        """    layer = op.Gemm(
        op.Relu(layer), weights["layers.0.weight"], weights["layers.0.bias"], transB=1
    )
    return rms_norm(op.Relu(layer),""",
    )
    check(program, relu_net(torch.ones(2, 8), [0, 1, 2, 0]))
