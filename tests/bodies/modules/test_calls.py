"""Externalized modules as functions: arguments of every kind, weights, nesting, merging."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.export import Dim

import coreai_onnx
from coreai_onnx import ExternalizeSpec
from coreai_onnx.composites import SDPA, RMSNorm, RMSNormImpl, RoPE
from coreai_onnx.errors import ConversionError
from tests.support.externalized import agrees, calls, converted, functions

Tensor = torch.Tensor


class Block(torch.nn.Module):
    """x + tanh(x W + b)."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(x))


class Stack(torch.nn.Module):
    """Three blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Block() for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Calls(torch.nn.Module):
    """Calls an inner module in a way given by a function."""

    def __init__(self, inner: torch.nn.Module, how: Any) -> None:
        super().__init__()
        self.inner, self.how = inner, how

    def forward(self, *args: Tensor) -> Any:
        return self.how(self.inner, *args)


def test_identical_bodies_are_one_function_with_weights_as_inputs() -> None:
    program = converted(Stack(), (torch.randn(2, 4),), [Block])
    assert functions(program) == ["ai.coreai.module::Block"]
    nodes = calls(program, "Block")
    assert [[v.name for v in n.inputs[1:]] for n in nodes] == [
        [f"layers.{i}.linear.weight", f"layers.{i}.linear.bias"] for i in range(3)
    ]
    assert sorted(program.model.graph.initializers) == sorted(
        v.name for n in nodes for v in n.inputs[1:]
    )


def test_dynamic_shapes_reach_the_body() -> None:
    model, x = Stack(), torch.randn(2, 3, 4)
    dims = {"x": {0: Dim("batch"), 1: Dim("seq")}}
    program = converted(model, (x,), [Block], dynamic_shapes=dims)
    agrees(program, model, (torch.randn(5, 7, 4),))
    agrees(program, model, (torch.randn(1, 1, 4),))


def test_differing_bodies_are_numbered() -> None:
    class Power(torch.nn.Module):
        def __init__(self, exponent: int) -> None:
            super().__init__()
            self.exponent = exponent

        def forward(self, x: Tensor) -> Tensor:
            return x**self.exponent

    model = torch.nn.Sequential(Power(2), Power(3), Power(2))
    program = converted(model, (torch.rand(3),), [Power])
    assert functions(program) == ["ai.coreai.module::Power", "ai.coreai.module::Power.2"]
    assert [len(calls(program, name)) for name in ("Power", "Power.2")] == [2, 1]


def test_one_call_for_each_shape_and_dtype() -> None:
    class Flat(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.reshape(x.shape[0] * x.shape[1]) * 2

    model = Calls(Flat(), lambda f, x, y: (f(x), f(y), f(x.double())))
    converted(model, (torch.randn(2, 3), torch.randn(4, 5)), [Flat])


def test_a_shared_instance_is_stored_once() -> None:
    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = Block()
            self.b = self.a

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x))

    program = converted(Twice(), (torch.randn(2, 4),), [Block])
    assert len(program.model.graph.initializers) == 2
    assert len(calls(program, "Block")) == 2


class Outer(torch.nn.Module):
    """A norm and a block of blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.block = RMSNorm(4), Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.norm(x)) + x


def test_nested_functions_keep_their_composites() -> None:
    model = torch.nn.Sequential(Outer(), Outer())
    torch.nn.init.normal_(model[1].norm.weight)
    specs = [Outer, Block, ExternalizeSpec(RMSNormImpl, "rms_norm", ["eps"])]
    program = converted(
        model, (torch.randn(2, 4),), specs, dynamic_shapes={"input": {0: Dim("batch")}}
    )
    assert sorted(functions(program)) == [
        "ai.coreai.module::Block",
        "ai.coreai.module::Outer",
        "ai.coreai::rms_norm",
    ]
    assert [n.op_type for n in program.model.graph] == ["Outer", "Outer"]


def test_a_module_shared_between_two_outer_ones() -> None:
    model = torch.nn.Sequential(Outer(), Outer())
    model[1].block = model[0].block
    torch.nn.init.normal_(model[1].norm.weight)
    program = converted(model, (torch.randn(2, 4),), [Outer, Block])
    assert sorted(functions(program)) == [
        "ai.coreai.module::Block",
        "ai.coreai.module::Outer",
        "ai.coreai::rms_norm",  # made by a pass
    ]
    assert len(program.model.graph.initializers) == 4


class Scaled(torch.nn.Module):
    """Arguments of every kind; no annotations."""

    def forward(self, x, y=None, *more, scale=2.0, parts=(), named=None, flip=False):  # type: ignore[no-untyped-def]
        x = -x if flip else x
        for z in (y, *more, *parts, *(named or {}).values()):
            x = x if z is None else x + z * scale
        return x


@pytest.mark.parametrize(
    "how",
    [
        lambda f, x, y: f(x),
        lambda f, x, y: f(x, y),
        lambda f, x, y: f(x, None),
        lambda f, x, y: f(y=y, x=x),
        lambda f, x, y: f(x, scale=3.0),
        lambda f, x, y: f(x, y, scale=4, flip=True),
        lambda f, x, y: f(x, parts=[y, x]),
        lambda f, x, y: f(x, parts=(y, None)),
        lambda f, x, y: f(x, named={"left": y, "right": x}),
        lambda f, x, y: f(x, y, x, y),
        lambda f, x, y: f(x, scale=y),
        lambda f, x, y: f(x) + f(y) + f(x, y) + f(x, scale=3.0) + f(x, scale=5.0),
        lambda f, x, y: f(x, torch.ones(3)),
    ],
)
def test_arguments_of_every_kind(how: Any) -> None:
    model = Calls(Scaled(), how)
    program = converted(model, (torch.randn(2, 3), torch.randn(2, 3)), [Scaled])
    assert functions(program)[0] == "ai.coreai.module::Scaled"


class Returns(torch.nn.Module):
    """Returns what a function makes of its input."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: Tensor) -> Any:
        return self.make(x)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: (x + 1, x * 2),
        lambda x: {"plus": x + 1, "twice": [x * 2, x - 1]},
        lambda x: (x + 1, None, 3),
        lambda x: x,
        lambda x: (x, x),
        lambda x: x[:, 1:],
        lambda x: x.t(),
        lambda x: torch.ones(2, 2),
        lambda x: (x + 1, x.shape[0]),
    ],
)
def test_results_of_every_kind(make: Any) -> None:
    def how(inner: Any, x: Tensor) -> Any:
        result = inner(x)
        return (
            result
            if isinstance(result, Tensor)
            else torch.utils._pytree.tree_map(lambda v: v, result)
        )

    model = Calls(Returns(make), how)
    dims = {"args": ({0: Dim("batch")},)}
    program = converted(model, (torch.randn(3, 4),), [Returns], dynamic_shapes=dims)
    assert functions(program) == ["ai.coreai.module::Returns"]


def test_output_names_are_the_keys() -> None:
    model = Calls(Returns(lambda x: {"plus": x + 1, "twice": x * 2}), lambda f, x: f(x)["twice"])
    program = converted(model, (torch.randn(3),), [Returns])
    (function,) = program.model.functions.values()
    assert [v.name for v in function.outputs] == ["plus", "twice"]
    assert [v.name for v in function.inputs] == ["x"]


def test_sizes_as_numbers_are_inputs() -> None:
    class Repeat(torch.nn.Module):
        def forward(self, x: Tensor, count: int) -> Tensor:
            return x * count + torch.arange(count).sum()

    model = Calls(Repeat(), lambda f, x, y: f(x, y.shape[0]))
    dims = {"args": ({}, {0: Dim("count")})}
    program = converted(model, (torch.randn(3), torch.randn(4)), [Repeat], dynamic_shapes=dims)
    agrees(program, model, (torch.randn(3), torch.randn(9)))


def test_hooks_run_once() -> None:
    model = Stack()
    model.layers[0].register_forward_hook(lambda m, a, y: y + 1)
    model.layers[1].register_forward_pre_hook(lambda m, a: (a[0] * 2,))
    program = converted(model, (torch.randn(2, 4),), [Block])
    assert functions(program) == ["ai.coreai.module::Block"]


def test_paths_that_differ_by_a_dot() -> None:
    class Paths(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.ModuleDict({"b": Block()})
            self.a_b = Block()

        def forward(self, x: Tensor) -> Tensor:
            return self.a_b(x) - self.a["b"](x)

    program = converted(Paths(), (torch.randn(2, 4),), [Block])
    assert len(program.model.graph.initializers) == 4


def test_buffers_and_constants() -> None:
    class Table(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", torch.randn(4))
            self.register_buffer("derived", torch.randn(4), persistent=False)
            self.plain = torch.randn(4)

        def forward(self, x: Tensor) -> Tensor:
            return x * self.kept + self.derived - self.plain + torch.tensor([1.0, 2.0, 3.0, 4.0])

    converted(torch.nn.Sequential(Table(), Table()), (torch.randn(2, 4),), [Table])


def test_one_name_for_classes_with_other_arguments_is_refused() -> None:
    class Neg(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return -x

    class Minus(torch.nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a - b

    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.neg, self.minus = Neg(), Minus()

        def forward(self, x: Tensor) -> Tensor:
            return self.minus(x, self.neg(x))

    specs = [ExternalizeSpec(Neg, "minus"), ExternalizeSpec(Minus, "minus")]
    with pytest.raises(
        ConversionError, match=r"composite minus is Minus\(a, b\) here and Neg\(x\)"
    ):
        coreai_onnx.convert(Both(), (torch.ones(3),), externalize_modules=specs)


class Attention(torch.nn.Module):
    """Rotary attention made of this package's modules."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.rope = RMSNorm(8, n_heads=4), RoPE(dims=4)
        self.full, self.causal = SDPA(), SDPA(is_causal=True)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q = self.rope(self.norm(x), offset=x.shape[2])
        a = self.causal(q, x, x)
        return a + self.full(q, x, x, attn_mask=mask) + self.causal(q, x, x, attn_mask=mask)


def test_this_packages_modules_are_the_standard_composites() -> None:
    model, x = Attention(), torch.randn(2, 4, 5, 8)
    mask = torch.rand(5, 5) > 0.4
    specs = [
        ExternalizeSpec(RMSNormImpl, "rms_norm", ["axes", "eps", "version"]),
        ExternalizeSpec(RoPE, "rope", ["scale", "base", "dims", "interleaved"]),
        ExternalizeSpec(
            SDPA, "scaled_dot_product_attention", ["scale", "is_causal", "window_size"]
        ),
    ]
    seq = Dim("seq")
    dims = {"x": {0: Dim("batch"), 2: seq}, "mask": {0: seq, 1: seq}}
    program = converted(model, (x, mask), specs, dynamic_shapes=dims)
    assert sorted(functions(program)) == [
        "ai.coreai::rms_norm",
        "ai.coreai::rope",
        "ai.coreai::scaled_dot_product_attention.causal",
        "ai.coreai::scaled_dot_product_attention.mask",
    ]
    masked = calls(program, "scaled_dot_product_attention.mask")
    assert [n.attributes["is_causal"].value for n in masked] == [0]  # the two are one
    agrees(program, model, (torch.randn(1, 4, 9, 8), torch.rand(9, 9) > 0.4))


class Cache:
    """A container that wants tensors and, as transformers' caches, looks at them."""

    def __init__(self, kept: Tensor) -> None:
        self.dtype, self.kept = kept.dtype, kept


def test_an_object_that_a_module_may_change_is_refused() -> None:
    """What it changes there would be lost: a function returns what its forward returns."""

    class Appends(torch.nn.Module):
        def forward(self, x: Tensor, cache: Cache) -> Tensor:
            cache.kept = torch.cat([cache.kept, x])
            return cache.kept * 2

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Appends()

        def forward(self, x: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
            cache = Cache(kept)
            return self.layer(x, cache), cache.kept

    pytree = torch.utils._pytree
    pytree.register_pytree_node(Cache, lambda c: ([c.kept], None), lambda kept, _: Cache(kept[0]))
    try:
        with pytest.raises(
            ConversionError, match=r"layer takes an object that is not a plain container"
        ):
            coreai_onnx.convert(
                Model(), (torch.ones(2, 3), torch.ones(1, 3)), externalize_modules=[Appends]
            )
    finally:
        pytree._deregister_pytree_node(Cache)
