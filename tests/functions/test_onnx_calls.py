"""Calls of ONNX models in converted models."""

from __future__ import annotations

import torch

import coreai_onnx
from coreai_onnx.delegation import OnnxModule
from tests.delegation.foreign_models import RELU, example, parsed, with_functions
from tests.tolerances import assert_close


def test_equal_files_share_a_function_and_others_have_their_own() -> None:
    first, second = with_functions(), with_functions()
    weight = second.graph.initializer[0]
    weight.raw_data = b"".join(reversed([weight.raw_data[i : i + 4] for i in range(0, 2048, 4)]))
    other = parsed(*RELU)

    class Three(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = OnnxModule(first), OnnxModule(second)
            self.third = OnnxModule(other)

        def forward(self, x, scale):
            (a, _), (b, _) = self.first(x, scale), self.second(x, scale)
            return a, b, self.third(a[:, :4])

    module, args = Three(), example(3)
    converted = coreai_onnx.convert(module, args)
    assert [f.name for f in converted.model.functions.values()] == [
        "model.0.scaled",
        "model",
        "model.2",
    ]
    for found, expected in zip(converted.run(*args), module(*args), strict=True):
        assert_close(found, expected)


def test_a_model_inside_of_a_branch() -> None:
    class Branch(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = OnnxModule(with_functions())

        def forward(self, x, scale):
            def run(x, scale):
                return self.inner(x, scale)[0].clone()

            def other(x, scale):
                return x.repeat(1, 2)

            return torch.cond(x.sum() > 0, run, other, (x, scale))

    module = Branch()
    x, scale = torch.ones(2, 16), torch.ones(2)
    converted = coreai_onnx.convert(module, (x, scale))
    for given in (x, -x):
        assert_close(converted.run(given, scale)[0], module(given, scale))
