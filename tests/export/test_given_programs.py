"""A conversion changes nothing in the exported program that a user gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.export import Dim, ExportedProgram

from coreai_onnx import TorchConverter

X = torch.rand(2, 4, 8)


class Call(nn.Module):
    """A function as a module, with a buffer."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("state", torch.zeros(8))
        self.plain = torch.ones(8)

    def forward(self, input: torch.Tensor) -> Any:
        return self.function(self, input)


def counts(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.state.add_(1)
    model.plain.mul_(2)
    x[:, 0] += model.state
    return x + model.plain


def branches(_model: Any, x: torch.Tensor) -> torch.Tensor:
    def twice(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[0] += 1
        return y

    return torch.cond(x.sum() > 0, twice, lambda x: x - 1, (x,))


def packets(_model: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.round(decimals=1), torch.sin, (x,)) + x.pow(2)


def mapped(_model: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.vmap(lambda row: row.cumsum(0).add_(1))(x)


def exported(model: nn.Module) -> ExportedProgram:
    return torch.export.export(model, (X.clone(),), dynamic_shapes=({0: Dim("n", min=2)},))


def with_packets() -> ExportedProgram:
    program = exported(Call(packets))
    for graph in graphs(program):
        for node in graph.nodes:
            if isinstance(node.target, torch._ops.OpOverload):
                node.target = node.target.overloadpacket
    return program


CASES: dict[str, Callable[[], ExportedProgram]] = {
    "attention": lambda: exported(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()),
    "mutations": lambda: exported(Call(counts)),
    "branches": lambda: exported(Call(branches)),
    "packets": with_packets,
    "training": lambda: exported(nn.Sequential(nn.BatchNorm1d(4), nn.InstanceNorm1d(4))),
    "decomposed": lambda: exported(Call(lambda _, x: F.gelu(x))).run_decompositions(),
    "vmap": lambda: torch.export.export(Call(mapped), (X,)),
    "complex": lambda: exported(Call(lambda _, x: torch.fft.rfft(x).abs())),
    "lstm": lambda: exported(nn.LSTM(8, 4, batch_first=True)),
}


def graphs(program: ExportedProgram) -> list[fx.Graph]:
    modules = program.graph_module.modules()
    return [module.graph for module in modules if isinstance(module, fx.GraphModule)]


def contents(program: ExportedProgram) -> list[Any]:
    """Return everything that a program holds, as text and bytes."""
    nodes = [
        (n.name, n.op, str(n.target), id(n.target), str(n.args), str(n.kwargs), meta(n))
        for graph in graphs(program)
        for n in graph.nodes
    ]
    tensors = {**program.state_dict, **program.constants}
    return [
        nodes,
        str(program.graph_signature),
        str(program.range_constraints),
        str(program.module_call_graph),
        [(name, id(x), x.detach().numpy().tobytes()) for name, x in tensors.items()],
        [(x.shape, x.numpy().tobytes()) for x in program.example_inputs[0]],
        [graph_module.code for graph_module in [program.graph_module]],
    ]


def meta(node: fx.Node) -> dict[str, str]:
    return {key: str(value) for key, value in node.meta.items()}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_conversion_leaves_the_program_as_it_was(name: str) -> None:
    program = CASES[name]()
    before = contents(program)
    converted = TorchConverter().add_exported_program(program).to_onnx().optimize()
    converted.run(X.clone(), kernels=False)
    assert contents(program) == before
