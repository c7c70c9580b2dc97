"""Dtypes and shapes of ONNX models that modules call."""

from __future__ import annotations

import pytest
import torch
from torch.export import export

import coreai_onnx
from coreai_onnx.delegation import OnnxModule
from coreai_onnx.errors import InputError
from tests.delegation.foreign_models import RELU, example, parsed, with_functions


def test_sizes_that_only_shape_inference_finds() -> None:
    source = parsed(
        "(float[n, 4] x) => (float[unknown] y)", "s = Constant<value_ints=[-1]>() y = Reshape(x, s)"
    )
    program = export(OnnxModule(source), (torch.randn(3, 4),))
    (call,) = (n for n in program.graph.nodes if "onnx_call" in str(n.target))
    assert call.meta["val"][0].shape == (12,)


def test_sizes_that_depend_on_the_data() -> None:
    class Found(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = OnnxModule(parsed("(float[n] x) => (int64[1, found] y)", "y = NonZero(x)"))

        def forward(self, x):
            return self.inner(x) + 1

    x = torch.tensor([0.0, 1.0, 2.0, 0.0])
    module = Found()
    assert module(x).tolist() == [[2, 3]]
    assert coreai_onnx.convert(module, (x,)).run(x)[0].tolist() == [[2, 3]]


@pytest.mark.parametrize(
    ("args", "fault"),
    [
        ((torch.ones(2, 4, dtype=torch.float64),), r"x is float32\[n, 4\], not float64\[2, 4\]"),
        ((torch.ones(4),), r"not float32\[4\]"),
        ((torch.ones(2, 5),), r"not float32\[2, 5\]"),
        ((), "the inputs are x: 0 given by position"),
    ],
)
def test_wrong_inputs_are_errors(args, fault) -> None:
    module = OnnxModule(parsed(*RELU))
    with pytest.raises(InputError, match=fault):
        module(*args)
    if args:
        with pytest.raises(InputError, match=fault):
            export(module, args)


def test_sizes_of_one_name_must_agree() -> None:
    with pytest.raises(InputError, match=r"scale is .*batch.*, not .*3.*batch is 2"):
        OnnxModule(with_functions())(torch.ones(2, 16), torch.ones(3))


def test_other_dtypes_of_weights_are_errors() -> None:
    with pytest.raises(InputError, match=r"weight is float32.*, not float16"):
        OnnxModule(with_functions()).half()(*example(2))
