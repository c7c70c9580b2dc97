"""Weights that are tensor subclasses, in a small copy of what torchao's ``quantize_`` does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import return_and_correct_aliasing

from coreai_onnx import TorchConverter, compare, convert
from coreai_onnx.export.functionalize.decompositions import functional, unwrapped

aten = torch.ops.aten
pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")


class Int8Weight(torch.Tensor):
    """int8 values and a scale per row."""

    @staticmethod
    def __new__(cls, values: torch.Tensor, scale: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            cls, values.shape, dtype=scale.dtype, device=values.device
        )

    def __init__(self, values: torch.Tensor, scale: torch.Tensor) -> None:
        self.values_, self.scale = values, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["values_", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, _: Any, size: Any, stride: Any) -> Any:
        return cls(inner["values_"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (aten.detach.default, aten.clone.default):
            made = cls(func(args[0].values_), func(args[0].scale))
            return return_and_correct_aliasing(func, args, kwargs or {}, made)
        plain = [a.plain() if isinstance(a, cls) else a for a in args]
        return func(*plain, **(kwargs or {}))

    def plain(self) -> torch.Tensor:
        return self.values_.to(self.scale.dtype) * self.scale


class Desugared(Int8Weight):
    """Says itself what linear does, as most classes of torchao do."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.linear:
            x, weight, bias = args
            return torch.nn.functional.linear(x, weight.plain(), bias)
        return super().__torch_function__(func, types, args, kwargs or {})


def quantized(kind: type[Int8Weight], *, requires_grad: bool = False) -> torch.nn.Module:
    module = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.ReLU(), torch.nn.Linear(6, 4))
    for layer in (module[0], module[2]):
        weight = layer.weight.detach()
        scale = weight.abs().amax(1, keepdim=True) / 127
        values = (weight / scale).round().to(torch.int8)
        layer.weight = torch.nn.Parameter(kind(values, scale), requires_grad=requires_grad)
    return module


X = torch.randn(3, 8)


@pytest.mark.parametrize("kind", [Int8Weight, Desugared])
def test_a_program_as_torch_exports_it(kind: type[Int8Weight]) -> None:
    module = quantized(kind)
    exported = torch.export.export(module, (X,), dynamic_shapes=({0: torch.export.Dim("n")},))
    program = TorchConverter().add_exported_program(exported).to_onnx()
    dtypes = [str(w.dtype) for w in program.model.graph.initializers.values()]
    assert dtypes.count("INT8") == 2
    inputs = (torch.randn(5, 8),)
    compare(program, Plain(module), inputs).assert_close()
    compare(convert(module, X), Plain(module), (X,)).assert_close()
    assert isinstance(module[0].weight, kind)


def test_weights_that_require_gradients() -> None:
    """As transformers loads them."""
    module = quantized(Desugared, requires_grad=True)
    compare(convert(module, X), Plain(module), (X,)).assert_close()
    assert module[0].weight.requires_grad
    exported = torch.export.export(module, (X,))
    compare(convert(exported), Plain(module), (X,)).assert_close()
    assert all(weight.requires_grad for weight in exported.state_dict.values())


class Plain(torch.nn.Module):
    """The same numbers without subclasses; they cannot be copied as modules are."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.layers = [(m.weight.plain(), m.bias.detach()) for m in (module[0], module[2])]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.layers
        hidden = torch.nn.functional.linear(x, *first).relu()
        return torch.nn.functional.linear(hidden, *second)


def test_only_programs_with_subclasses_change() -> None:
    exported = torch.export.export(torch.nn.Linear(8, 4), (X,))
    assert unwrapped(exported) is exported
    assert functional(exported) is exported
    given = torch.export.export(quantized(Desugared), (X,))
    made = functional(given)
    assert made is not given
    assert unwrapped(made) is made
    assert not any("subclass" in str(node.target) for node in made.graph.nodes)
