"""The bodies of the composites that passes make: held to the torch references, and found again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx_graphsurgeon as gs
import onnx_ir as ir
import pytest
import torch

from coreai_onnx.bodies.library import _make_body
from coreai_onnx.bodies.pass_bodies import CALLS, write_pass_body
from coreai_onnx.composites import COMPOSITES
from coreai_onnx.composites.declaration import FLOAT_DTYPES
from coreai_onnx.passes import ORDER, passes_for
from coreai_onnx.passes.engine.bodies import (
    Bodies,
    append_body,
    can_make_functions,
    makes_functions,
    outline,
)
from coreai_onnx.passes.engine.graphs import context_of
from coreai_onnx.passes.engine.surgeon import open_model
from coreai_onnx.passes.engine.why import Why
from coreai_onnx.targets.opsets import DEFAULT_OPSET, OPSETS
from tests.passes.engine.converted_calls import CONVERTED
from tests.passes.rewriting import parse, run, run_passes
from tests.support.tolerances import assert_close

Case = tuple[str, list[tuple[int, ...]], dict[str, Any]]


"""Op type, shapes of the inputs, attributes."""


Provided = Callable[[Bodies], "str | None"]


QUERIES: list[tuple[int, ...]] = [(2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8)]


CASES: list[Case] = [
    ("rms_norm", [(2, 3, 8), (8,)], {"eps": 1e-3}),
    ("rope", [(2, 4, 3, 8), (1, 1, 3, 4), (1, 1, 3, 4)], {}),
    ("rope", [(2, 4, 3, 8), (2, 1, 3, 4), (2, 1, 3, 4)], {}),
    ("swiglu", [(3, 8), (3, 8)], {}),
    ("geglu", [(3, 8), (3, 8)], {}),
    ("geglu.tanh", [(3, 8), (3, 8)], {"approximate": "tanh"}),
    ("add_bias", [(3, 8), (8,)], {}),
    ("add_bias.gelu", [(3, 8), (8,)], {"activation": "gelu"}),
    ("softmax", [(3, 8)], {}),
    ("scaled_dot_product_attention", QUERIES, {"scale": 0.25}),
    (
        "scaled_dot_product_attention.causal_upper_left",
        QUERIES,
        {"scale": 0.25, "is_causal": 1, "causal_alignment": "upper_left"},
    ),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("opset", [18, 23])
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}_{c[1][-1][0]}")
def test_a_body_is_the_reference(case: Case, opset: int, dtype: torch.dtype) -> None:
    numpy = np.dtype(str(dtype).removeprefix("torch."))
    check(case, lambda bodies: bodies.provide_composite(case[0], numpy), opset, dtype)


def check(case: Case, provided: Provided, opset: int, dtype: torch.dtype) -> None:
    """Assert that a call of a body gives what the composite's reference gives."""
    name, shapes, attributes = case
    torch.manual_seed(0)
    inputs = [torch.randn(shape).to(dtype) for shape in shapes]
    wanted = COMPOSITES[name.partition(".")[0]].reference(*inputs, **attributes)
    model = calling(name, provided, inputs, 1, attributes, opset)
    actual = run(model, {f"i{k}": x.numpy() for k, x in enumerate(inputs)})
    assert_close(list(actual), [wanted])


@pytest.mark.parametrize("name", CALLS)
def test_a_pass_may_change_the_body_that_it_gets(name: str) -> None:
    _, bodies = opened("Mul")
    first, second = (bodies.body(name, np.dtype(np.float32)) for _ in range(2))
    assert first is not None
    assert second is not None
    before = outline(second)
    first.nodes.clear()
    context_of(first).source.metadata_props.clear()
    again = bodies.body(name, np.dtype(np.float32))
    assert again is not None
    assert outline(again) == outline(second) == before
    sources = [context_of(one).source for one in (again, second)]
    assert sources[0].metadata_props == sources[1].metadata_props


def test_a_composite_has_bodies_for_some_dtypes() -> None:
    bodies = Bodies(opened("Mul")[0], write_pass_body)
    assert bodies.provide_composite("rope", np.dtype(np.float32)) == "rope"
    assert bodies.provide_composite("rope", np.dtype(np.int64)) is None


def test_every_body_of_a_pass_has_a_call() -> None:
    assert CONVERTED.keys() == {name for name in CALLS if "/" not in name}


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("name", CONVERTED)
def test_a_pass_calls_the_function_of_a_converted_model(name: str, dtype: str, opset: int) -> None:
    """Else a model that calls a composite could not have its other places fused."""
    for call in CONVERTED[name]:
        # Both kinds of dims ask for one body, as the default opset shows, so one is enough.
        for dynamic in (True, False) if opset == DEFAULT_OPSET else (True,):
            written = _make_body.cache_info().misses
            model = call.model(getattr(torch, dtype), dynamic=dynamic, opset=opset)
            assert dynamic or _make_body.cache_info().misses == written
            main = open_model(model)
            assert (
                Bodies(main, write_pass_body).provide_composite(name, numpy_dtype(dtype))
                == call.composite
            )
            assert len(main.functions) == 1


def numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def test_a_second_dtype_has_a_name_of_its_own() -> None:
    main, bodies = opened("Mul")
    for dtype, op_type in (("float32", "rms_norm"), ("float64", "rms_norm.float64")):
        assert bodies.provide_composite("rms_norm", np.dtype(dtype)) == op_type
        assert bodies.provide_composite("rms_norm", np.dtype(dtype)) == op_type
    assert [f.name for f in main.functions] == ["f", "rms_norm", "rms_norm.float64"]
    assert bodies.provide_composite("rms_norm", np.dtype(np.int64)) is None
    assert bodies.provide_composite("rms_norm", None) is None


def calling(name, provided, inputs, outputs, attributes, opset) -> ir.Model:
    """Return a model that is one call of a body that a pass writes."""
    onnx_dtype = {torch.float16: "float16", torch.float64: "double"}.get(inputs[0].dtype, "float")
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
    given = {k: f'"{v}"' if isinstance(v, str) else v for k, v in attributes.items()}
    written = axes + ", ".join(f"{key} = {value}" for key, value in given.items())
    call = f"ai.coreai.{name.replace('.', '_')} {f'<{written}>' if written else ''} ({feed})"
    model = parse(f"main ({arguments}) => ({results}) {{ {fetch} = {call} }}", opset)

    model.graph[0].op_type = name

    def provide(graph: gs.Graph, why: Why) -> int:
        bodies = context_of(graph).bodies
        assert bodies is not None
        missing = bodies.function(graph.nodes[0]) is None and not isinstance(graph, gs.Function)
        found = provided(bodies) if missing else None
        if found is not None:
            graph.nodes[0].op = found
        return int(found is not None)

    assert run_passes(model, [provide]).total == 1
    assert model.graph[0].op_type in {function.name for function in model.functions.values()}
    return model


SAME = """<ir_version: 10, opset_import: ["": 23, "ai.coreai": 1]>
main (float[n] x) => (float[n] y) {{ y = ai.coreai.f <k = 2.0> (x) }}
<domain: "ai.coreai", opset_import: ["": 23]>
f <k: float = 1.0> (x) => (y) {{ c = Constant <value_float: float = @k> ()  m = {op} (x, c)  y = Neg (m) }}
"""


def opened(op: str) -> tuple[gs.Graph, Bodies]:
    main = open_model(parse(SAME.format(op=op)))
    return main, Bodies(main, write_pass_body)


def function(name: str) -> gs.Function:
    main = open_model(parse(SAME.format(op="Mul")))
    main.functions[0].name = name
    return main.functions[0]


def test_a_body_that_is_there_is_not_added_again() -> None:
    main, bodies = opened("Mul")
    assert bodies.provide(function("f"), np.dtype(np.float32)) == "f"
    assert bodies.provide(function("f.word"), np.dtype(np.float32)) == "f"
    assert len(main.functions) == 1


def test_another_body_of_that_name_is_not_touched() -> None:
    main, bodies = opened("Add")
    before = outline(main.functions[0])
    assert bodies.provide(function("f"), np.dtype(np.float32)) is None
    assert bodies.provide(function("g"), np.dtype(np.float32)) == "g"
    assert bodies.provide(function("f"), np.dtype(np.float16)) == "f.float16"
    first, second, third = main.functions
    assert outline(first) == before != outline(second) == outline(third)
    assert second.name == "g"


def test_the_first_name_that_is_free_is_taken() -> None:
    _, bodies = opened("Mul")
    name, float32 = "geglu.tanh", np.dtype(np.float32)
    assert bodies.provide_composite("geglu", float32, "geglu", "geglu.erf") == "geglu"
    assert bodies.provide_composite(name, float32, "geglu", name) == name
    assert bodies.provide_composite(name, float32, "geglu", "other") == name


def test_arguments_are_those_of_every_call() -> None:
    main, bodies = opened("Mul")
    (tensors,) = bodies.arguments(main.functions[0])
    assert [tensor.name for tensor in tensors] == ["x"]
    assert bodies.function(main.nodes[0]) is main.functions[0]
    assert bodies.opset == 23


def test_doc_strings_and_names_are_written() -> None:
    def provided(bodies: Bodies) -> str | None:
        return bodies.provide_composite("rms_norm", np.dtype(np.float32))

    x = torch.ones(2, 8)
    model = calling("rms_norm", provided, [x, x[0]], 1, {"eps": 1e-5}, 18)
    (function,) = model.functions.values()
    assert function.graph.doc_string == COMPOSITES["rms_norm"].formula
    assert all(node.name for node in function)
    assert np.all([a.name for a in function.attributes.values()])


def test_a_pass_that_makes_functions_is_known_and_gets_them() -> None:
    seen: list[Bodies] = []

    @makes_functions
    def made(graph: gs.Graph, why: Why, bodies: Bodies) -> int:
        """Docstring of the pass."""
        seen.append(bodies)
        return 1

    main, bodies = opened("Mul")
    context_of(main).bodies = context_of(main.functions[0]).bodies = bodies
    assert made(main, Why()) == 1
    assert made(main.functions[0], Why()) == 0  # a composite's body calls no other composite
    assert seen == [bodies]
    assert can_make_functions(made)
    assert not can_make_functions(outline)
    assert (made.__name__, made.__doc__) == ("made", "Docstring of the pass.")


def test_passes_that_make_functions_are_not_for_models_without_functions() -> None:
    makers = {one for one in ORDER if can_make_functions(one)}
    assert len(makers) == 10
    assert set(ORDER) - set(passes_for("portable")) == makers


MAIN = "main (float[n] x) => (float[n] y) { y = Neg (x) }"


HEAD = '\n<domain: "ai.coreai", opset_import: ["": 23]>\n'


FIRST = "first <axes: ints = [-1]> (a, b) => (m) { m = Add (a, b) }"


SECOND = """second <axes: ints = [0], eps: float = 1.0> (x, m) => (y) {
  e = Constant <value_float: float = @eps> ()  c = Constant <value = float {3.0}> ()
  p = Mul (x, c)  q = Clip (p, , m)  y = Add (q, e)
}"""


BOTH = """both <axes: ints = [-1], eps: float = 1.0> (a, b, w) => (y, m) {
  m = Add (a, b)  e = Constant <value_float: float = @eps> ()  c = Constant <value = float {3.0}> ()
  p = Mul (m, c)  q = Clip (p, , w)  y = Add (q, e)
}"""


BRANCH = """branch (x, c) => (y) {
  y = If (c) <then_branch = g () => (float[n] t) { t = Neg (x) }, else_branch = h () => (float[n] f) { f = Exp (x) }>
}"""


def functions(*texts: str) -> list[gs.Function]:
    return list(open_model(parse(MAIN + "".join(HEAD + text for text in texts))).functions)


def test_the_second_body_reads_the_result_of_the_first() -> None:
    first, second, both = functions(FIRST, SECOND, BOTH)
    before = outline(second)
    assert append_body(first, second)
    assert outline(first) == outline(both)
    assert outline(second) == before
    assert dict(first.attrs) == {"axes": [-1], "eps": 1.0}
    names = [t.name for t in first.tensors().values()] + [t.name for t in first.inputs]
    assert len({*names}) == len({*map(id, first.tensors().values())})


def test_a_body_with_branches_is_not_appended() -> None:
    first, branch = functions(FIRST, BRANCH)
    before = outline(first)
    assert not append_body(first, branch)
    assert outline(first) == before
