"""Programs made functional."""

from __future__ import annotations

import pytest
import torch

import coreai_onnx
from coreai_onnx import TorchConverter, get_decomp_table
from coreai_onnx.errors import ExportError
from coreai_onnx.export.functionalize.decompositions import functional
from tests.support.tolerances import assert_close

aten = torch.ops.aten


def test_a_pure_program_is_returned_as_it_is() -> None:
    program = torch.export.export(torch.nn.Linear(3, 2), (torch.randn(1, 3),))
    assert functional(program) is program


def test_mutations_become_outputs() -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total.add_(x)
            return self.total * 2

    program = functional(torch.export.export(Counter(), (torch.ones(2),)))
    assert list(program.graph_signature.buffers_to_mutate.values()) == ["total"]
    assert not any(n.target is aten.add_.Tensor for n in program.graph.nodes)


def test_batch_norm_in_training_is_a_mutation() -> None:
    norm = torch.nn.BatchNorm1d(3)
    x = torch.randn(4, 3)
    training = functional(torch.export.export(norm, (x,)))
    assert set(training.graph_signature.buffers_to_mutate.values()) == {
        "running_mean",
        "running_var",
        "num_batches_tracked",
    }
    inference = torch.export.export(norm.eval(), (x,))
    assert functional(inference) is inference
    assert_close(inference.module()(x).detach(), norm(x).detach())


def test_packets_become_the_overloads_that_their_arguments_choose() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.round(x, decimals=1) + torch.pow(x, 2) * x.round()

    x = torch.rand(3)
    program = torch.export.export(Model(), (x,))
    calls = [n for n in program.graph.nodes if n.op == "call_function"]
    overloads = [n.target for n in calls]
    for node in calls:
        node.target = node.target.overloadpacket
    converted = TorchConverter().add_exported_program(program).to_onnx()
    assert_close(converted.run(x)[0], Model()(x))
    settled = [n.target for n in functional(program).graph.nodes if n.op == "call_function"]
    assert settled == overloads


def test_an_element_taken_by_an_index_without_axes() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
            return torch.take(x, index)

    x, index = torch.rand(3, 4), torch.tensor(5)
    program = torch.export.export(Model(), (x, index)).run_decompositions(get_decomp_table())
    converted = TorchConverter().add_exported_program(program).to_onnx()
    assert_close(converted.run(x, index)[0], x[1, 1])


class CountsInBranch(torch.nn.Module):
    """Changes a buffer in a branch of cond."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def counted(x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return x + self.count

        result: torch.Tensor = torch.cond(x.sum() > 0, counted, lambda x: x - 1, (x,))
        return result


@pytest.mark.filterwarnings("ignore:While compiling, we found certain side effects:UserWarning")
@pytest.mark.parametrize("strict", [False, True])
def test_a_mutation_in_a_branch_is_a_limit_of_torch(strict: bool) -> None:
    with pytest.raises(ExportError, match=r"a branch of torch\.cond or the body") as caught:
        coreai_onnx.convert(CountsInBranch(), (torch.ones(3),), strict=strict)
    assert "self.buffer.copy_(new)" in str(caught.value)
    assert type(caught.value) is ExportError
