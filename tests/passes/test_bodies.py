"""The bodies that passes write: held to the torch references, and found again."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import onnx_graphsurgeon as gs
import onnx_ir as ir
import pytest
import torch

from coreai_onnx.composite_ops import COMPOSITES
from coreai_onnx.passes import (
    fuse_gated_activations,
    fuse_rms_norm,
    fuse_rope,
    run_passes,
)
from coreai_onnx.passes.attention_bodies import attention_without_mask
from coreai_onnx.passes.bodies import Bodies, outline
from coreai_onnx.passes.scope import scope_of
from coreai_onnx.passes.surgeon import open_model
from coreai_onnx.passes.why import Why
from tests.passes.rewriting import parse, run
from tests.tolerances import assert_close

Case = tuple[str, Callable[[Bodies], "str | None"], list[tuple[int, ...]], dict[str, float]]
CASES: list[Case] = [
    ("rms_norm", fuse_rms_norm.provided, [(2, 3, 8), (8,)], {"eps": 1e-3}),
    ("rope", fuse_rope.provided, [(2, 4, 3, 8), (1, 1, 3, 4), (1, 1, 3, 4)], {}),
    ("rope", fuse_rope.provided, [(2, 4, 3, 8), (2, 1, 3, 4), (2, 1, 3, 4)], {}),
    (
        "scaled_dot_product_attention",
        lambda b: attention_without_mask(b, "mask") if b.opset >= 23 else None,
        [(2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 8)],
        {"scale": 0.25},
    ),
    (
        "scaled_dot_product_attention",
        lambda b: attention_without_mask(b, "mask", causal=True) if b.opset >= 23 else None,
        [(2, 4, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8)],
        {"scale": 0.25, "is_causal": 1},
    ),
    ("swiglu", lambda b: fuse_gated_activations.provided(b, "swiglu"), [(3, 8), (3, 8)], {}),
    ("geglu", lambda b: fuse_gated_activations.provided(b, "geglu"), [(3, 8), (3, 8)], {}),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "float16"])
@pytest.mark.parametrize("opset", [18, 23])
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}_{c[2][-1][0]}")
def test_a_body_is_the_reference(case: Case, opset: int, dtype: torch.dtype) -> None:
    name, provided, shapes, attributes = case
    if name.startswith("scaled") and opset < 23:
        return  # the pass leaves masks alone there
    torch.manual_seed(0)
    inputs = [torch.randn(shape).to(dtype) for shape in shapes]
    wanted = COMPOSITES[name].reference(*inputs, **attributes)
    wanted = [wanted] if isinstance(wanted, torch.Tensor) else list(wanted)
    model = calling(name, provided, inputs, len(wanted), attributes, opset)
    actual = run(model, {f"i{k}": x.numpy() for k, x in enumerate(inputs)})
    assert_close(list(actual), wanted)


def test_the_tanh_of_gelu_is_the_reference() -> None:
    """Its name has a dot, which ONNX's text form does not allow: the function is renamed."""
    torch.manual_seed(0)
    gate, up = torch.randn(3, 8), torch.randn(3, 8)
    wanted = COMPOSITES["geglu"].reference(gate, up, approximate="tanh")
    provided = functools.partial(fuse_gated_activations.provided, name="geglu.tanh")
    model = calling("geglu.tanh", provided, [gate, up], 1, {}, 23)
    assert_close(run(model, {"i0": gate.numpy(), "i1": up.numpy()}), [wanted])


def calling(name, provided, inputs, outputs, attributes, opset) -> ir.Model:
    """Return a model that is one call of a body that a pass writes."""
    onnx_dtype = "float" if inputs[0].dtype == torch.float32 else "float16"
    arguments = ", ".join(
        f"{onnx_dtype}[{', '.join(map(str, x.shape))}] i{k}" for k, x in enumerate(inputs)
    )
    results = ", ".join(
        f"{onnx_dtype}[{', '.join('abcd'[: inputs[0].ndim])}] o{k}" for k in range(outputs)
    )
    feed, fetch = (
        ", ".join(f"{c}{k}" for k in range(n)) for c, n in (("i", len(inputs)), ("o", outputs))
    )
    axes = "axes: ints = [-1], " if "eps" in attributes else ""
    written = axes + ", ".join(f"{key} = {value}" for key, value in attributes.items())
    call = f"ai.coreai.{name.replace('.', '_')} {f'<{written}>' if written else ''} ({feed})"
    model = parse(f"main ({arguments}) => ({results}) {{ {fetch} = {call} }}", opset)

    model.graph[0].op_type = name

    def provide(graph: gs.Graph, why: Why) -> int:
        bodies = scope_of(graph).bodies
        assert bodies is not None
        missing = bodies.function(graph.nodes[0]) is None and not isinstance(graph, gs.Function)
        return int(missing and provided(bodies) is not None)

    assert run_passes(model, [provide]).total == 1
    assert name in {function.name for function in model.functions.values()}
    return model


SAME = """<ir_version: 10, opset_import: ["": 23, "ai.coreai": 1]>
main (float[n] x) => (float[n] y) {{ y = ai.coreai.f <k = 2.0> (x) }}
<domain: "ai.coreai", opset_import: ["": 23]>
f <k: float = 1.0> (x) => (y) {{ c = Constant <value_float: float = @k> ()  m = {op} (x, c)  y = Neg (m) }}
"""
TEXT = "<k: float = 1.0> (a) => (b) { d = Constant <value_float: float = @k> ()  e = Mul (a, d)  b = Neg (e) }"


def opened(op: str) -> tuple[gs.Graph, Bodies]:
    main = open_model(parse(SAME.format(op=op)))
    return main, Bodies(main)


def test_a_body_that_is_there_is_not_added_again() -> None:
    main, bodies = opened("Mul")
    assert bodies.provide("f", TEXT) == "f"
    assert len(main.functions) == 1


def test_another_body_of_that_name_is_not_touched() -> None:
    main, bodies = opened("Add")
    before = outline(main.functions[0])
    assert bodies.provide("f", TEXT) is None
    assert bodies.provide("g", TEXT, "k x") == "g"
    first, second = main.functions
    assert outline(first) == before != outline(second)
    assert (second.name, second.doc_string) == ("g", "k x")


def test_arguments_are_those_of_every_call() -> None:
    main, bodies = opened("Mul")
    (tensors,) = bodies.arguments(main.functions[0])
    assert [tensor.name for tensor in tensors] == ["x"]
    assert bodies.function(main.nodes[0]) is main.functions[0]
    assert bodies.opset == 23


def test_doc_strings_and_names_are_written() -> None:
    x = torch.ones(2, 8)
    model = calling("rms_norm", fuse_rms_norm.provided, [x, x[0]], 1, {"eps": 1e-5}, 18)
    (function,) = model.functions.values()
    assert function.graph.doc_string == COMPOSITES["rms_norm"].formula
    assert all(node.name for node in function)
    assert np.all([a.name for a in function.attributes.values()])
