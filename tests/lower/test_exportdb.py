"""torch's own gallery of exportable models, and models that keep state."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch._export.db.case import SupportLevel
from torch._export.db.examples import all_examples
from torch.export import Dim
from torch.utils import _pytree as pytree

from coreai_onnx.errors import ConversionError
from coreai_onnx.export.functionalize.decompositions import functional
from coreai_onnx.lower import Context, IONames, LoweredProgram, ProgramLowering
from tests.lower.checking import run_model
from tests.support.tolerances import assert_close

EXAMPLES = {n: e for n, e in all_examples().items() if e.support_level is SupportLevel.SUPPORTED}


def lowered(
    module: torch.nn.Module,
    args: Any,
    kwargs: Any = None,
    *,
    names: IONames | None = None,
    **how: Any,
) -> LoweredProgram:
    """Return a module as an ONNX graph."""
    program = functional(torch.export.export(module, args, kwargs or {}, **how))
    return ProgramLowering(program, Context(opset=23), names or IONames()).run()


@pytest.mark.filterwarnings("ignore:Pred is a Python constant")
@pytest.mark.filterwarnings("ignore:The tensor attributes .* were assigned during export")
@pytest.mark.parametrize("name", list(EXAMPLES))
def test_example(name: str) -> None:
    example = EXAMPLES[name]
    module, kwargs = example.model.eval(), example.example_kwargs or {}
    program = lowered(
        copy.deepcopy(module),
        copy.deepcopy(example.example_args),
        copy.deepcopy(kwargs),
        dynamic_shapes=example.dynamic_shapes,
        strict=name == "unsupported_operator",
    )
    model = program.model([], "main")
    samples = [(example.example_args, kwargs)]
    if example.extra_args:
        samples.append((example.extra_args, {}))
    for args, keywords in samples:
        expected = _tensors(copy.deepcopy(module)(*copy.deepcopy(args), **copy.deepcopy(keywords)))
        actual = run_model(model, _tensors((args, keywords)))
        for got, want in zip(actual[: len(expected)], expected, strict=True):
            assert_close(got, want)


def _tensors(tree: Any) -> list[torch.Tensor]:
    leaves = [x for x in pytree.tree_leaves(tree) if x is not None and not isinstance(x, str)]
    return [x if isinstance(x, torch.Tensor) else torch.tensor(x) for x in leaves]


# ------------------------------------------------------------------ state
class Steps:
    """A session that feeds new states back, by hand."""

    def __init__(self, program: LoweredProgram) -> None:
        proto = ir.to_proto(program.model([], "main"))
        onnx.checker.check_model(proto, full_check=True)
        self.session = onnxruntime.InferenceSession(
            proto.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        self.pairs, self.state = program.states, {}

    def run(self, **inputs: torch.Tensor) -> dict[str, np.ndarray]:
        """Run once; states have their defaults in the first run."""
        feeds = {k: v.numpy() for k, v in inputs.items()} | self.state
        names = [o.name for o in self.session.get_outputs()]
        outputs = dict(zip(names, self.session.run(None, feeds), strict=True))
        self.state = {i: outputs[o] for i, o in self.pairs}
        return outputs


class Cache(torch.nn.Module):
    """A cache written at a position, and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.full((2, 4), 0.5))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache.index_copy_(0, (self.steps % 2)[None], x[None])
        self.steps.add_(1)
        return self.cache.sum(0) * self.steps


def test_buffers_are_states_with_defaults() -> None:
    module = Cache()
    program = lowered(copy.deepcopy(module), (torch.ones(4),))
    assert program.states == [("cache", "cache_out"), ("steps", "steps_out")]
    assert [v.name for v in program.graph.outputs] == ["output", "cache_out", "steps_out"]
    steps = Steps(program)
    for _ in range(3):
        x = torch.randn(4)
        outputs = steps.run(x=x)
        assert_close(outputs["output"], module(x))
        assert_close(outputs["cache_out"], module.cache)
        assert_close(outputs["steps_out"], module.steps)


def test_names_of_states() -> None:
    program = lowered(Cache(), (torch.ones(4),), names=IONames(states=["kv", "count"]))
    assert program.states == [("kv", "kv_out"), ("count", "count_out")]
    with pytest.raises(ConversionError, match="2 stateful inputs, but 1 names"):
        lowered(Cache(), (torch.ones(4),), names=IONames(states=["kv"]))


def test_a_mutated_input_with_the_name_of_a_state() -> None:
    class Accumulates(torch.nn.Module):
        def forward(self, total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            total.add_(x)
            return total * 2

    shapes = {"total": {0: Dim("n")}, "x": {0: Dim("n")}}
    arguments, names = (torch.zeros(3), torch.ones(3)), IONames(states=["total"])
    program = lowered(Accumulates(), arguments, dynamic_shapes=shapes, names=names)
    assert program.states == [("total", "total_out")]
    steps, total = Steps(program), torch.zeros(5)
    steps.state = {"total": total.numpy().copy()}
    for _ in range(2):
        x = torch.randn(5)
        want = Accumulates()(total, x)
        outputs = steps.run(x=x)
        assert_close(outputs["output"], want)
        assert_close(outputs["total_out"], total)


def test_a_state_set_to_another_state_and_to_an_input() -> None:
    """Outputs that are inputs must be values of their own."""

    class Shifts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("newer", torch.zeros(2))
            self.register_buffer("older", torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.older.copy_(self.newer)
            self.newer.copy_(x)
            return self.older + 1

    module = Shifts()
    steps = Steps(lowered(copy.deepcopy(module), (torch.ones(2),)))
    for _ in range(3):
        x = torch.randn(2)
        outputs = steps.run(x=x)
        assert_close(outputs["output"], module(x))
        assert_close(outputs["older_out"], module.older)
        assert_close(outputs["newer_out"], module.newer)


def test_state_in_a_branch() -> None:
    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("hits", torch.tensor(0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hit = torch.cond(x.sum() > 0, lambda y: y[0] / y[0], lambda y: y[0] * 0, (x,))
            self.hits.add_(hit.long())
            return x + self.hits

    module = Counts()
    steps = Steps(lowered(copy.deepcopy(module), (torch.ones(2),)))
    for x in (torch.ones(2), -torch.ones(2), torch.ones(2)):
        outputs = steps.run(x=x)
        assert_close(outputs["output"], module(x))
        assert_close(outputs["hits_out"], module.hits)
