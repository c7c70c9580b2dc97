"""Models that consist of one composite call, and the cases to try each composite with."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
import torch

from coreai_onnx.composite_ops import COMPOSITES
from coreai_onnx.functions import composite_functions
from coreai_onnx.lower import LoweredProgram
from coreai_onnx.lower.builder import OpBuilder
from coreai_onnx.lower.composites import CompositeCalls
from coreai_onnx.lower.scope import Names, Scope
from coreai_onnx.lower.values import ir_dtype, set_dims

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """One call of a composite.

    Attributes:
        composite: Its name.
        shapes: Shape of each input; None for an absent one.
        attributes: Attributes that are not the default.
        dtypes: Dtype of inputs that is not the composite's own, by position.
    """

    composite: str
    shapes: tuple[Shape | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    dtypes: Mapping[int, torch.dtype] = field(default_factory=dict)
    label: str = ""

    def __str__(self) -> str:
        return f"{self.composite}-{self.label}"

    def inputs(self, dtype: torch.dtype) -> list[torch.Tensor | None]:
        """Return random inputs, the same for the same case."""
        generator = torch.Generator().manual_seed(len(str(self)))
        return [
            None if shape is None else _random(shape, self.dtypes.get(i, dtype), generator)
            for i, shape in enumerate(self.shapes)
        ]

    def expected(self, inputs: Sequence[torch.Tensor | None]) -> torch.Tensor:
        """Return what the reference gives."""
        result: torch.Tensor = COMPOSITES[self.composite].reference(*inputs, **self.attributes)
        return result

    def model(self, dtype: torch.dtype, *, dynamic: bool, opset: int = 23) -> ir.Model:
        """Return a model whose graph is the call; dims are symbolic if ``dynamic``."""
        return call_model(self, self.inputs(dtype), dynamic=dynamic, opset=opset)


def call_model(
    case: Case, inputs: Sequence[torch.Tensor | None], *, dynamic: bool, opset: int
) -> ir.Model:
    """Return a model of one composite call on inputs like these."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": opset}, name="main")
    names = Names()
    calls = CompositeCalls()
    op = OpBuilder(Scope(graph, names), opset, calls)
    values: list[ir.Value | None] = []
    for declared, tensor in zip(COMPOSITES[case.composite].inputs, inputs, strict=False):
        if tensor is None:
            values.append(None)
            continue
        value = ir.Value(name=names.unique(declared.name))
        value.dtype = ir_dtype(tensor.dtype)
        set_dims(value, tuple(tensor.shape))
        if dynamic:
            value.shape = ir.Shape(
                [f"{declared.name}_{i}" if d > 1 else d for i, d in enumerate(tensor.shape)]
            )
        graph.inputs.append(value)
        values.append(value)
    attributes = dict(case.attributes)
    if case.composite == "scaled_dot_product_attention" and not attributes.get("scale"):
        attributes["scale"] = inputs[0].shape[-1] ** -0.5  # type: ignore[union-attr]  # never absent
    result = op.composite(case.composite, values, **attributes)
    result.name = "result"
    rank = inputs[0].ndim  # type: ignore[union-attr]  # the first input is never absent
    result.shape = ir.Shape([f"result_{i}" for i in range(rank)])
    graph.outputs.append(result)
    return LoweredProgram(graph, names).model(composite_functions(calls.calls, opset), "main")


def _random(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) > 0.4
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 9, shape, generator=generator, dtype=dtype)


def norm_cases() -> Iterator[Case]:
    """Normalisations: ranks, scales, several axes."""
    f32 = torch.float32
    for name in ("rms_norm", "layer_norm"):
        yield Case(name, ((2, 5, 16), (16,)), {"eps": 1e-6}, label="scaled")
        yield Case(name, ((3, 16),), {"eps": 1e-3}, label="unscaled")
        yield Case(name, ((2, 4, 8), (4, 8)), {"axes": (-2, -1)}, label="two_axes")
        yield Case(name, ((16,), (16,)), label="one_row")
        yield Case(name, ((2, 5, 16), (16,)), dtypes={1: f32}, label="wide_scale")
        yield Case(name, ((0, 16), (16,)), label="empty")
    yield Case("rms_norm", ((2, 3, 5, 16), (3, 1, 16)), label="per_head")
    yield Case("layer_norm", ((2, 5, 16), (16,), (16,)), label="scale_bias")
    yield Case("layer_norm", ((2, 5, 16), None, (16,)), label="bias_only")


def attention_cases() -> Iterator[Case]:
    """Attention: positions × masks × heads × sinks × soft cap."""
    name, shape = "scaled_dot_product_attention", {"q": (2, 4, 5, 8)}
    grouped = {"k": (2, 2, 9, 8), "v": (2, 2, 9, 6)}
    plain = {"k": (2, 4, 9, 8), "v": (2, 4, 9, 8)}
    positions: dict[str, dict[str, Any]] = {
        "full": {},
        "causal": {"is_causal": 1},
        "causal_upper_left": {"is_causal": 1, "causal_alignment": "upper_left"},
        "window": {"window_size": 3},
        "causal_window": {"is_causal": 1, "window_size": 3},
    }
    for (label, attributes), sinks in itertools.product(positions.items(), (False, True)):
        for heads, kv in (("mha", plain), ("gqa", grouped)):
            shapes = (
                (shape["q"], kv["k"], kv["v"], None, (4,))
                if sinks
                else (shape["q"], kv["k"], kv["v"])
            )
            tail = "_sinks" if sinks else ""
            yield Case(name, shapes, attributes, label=f"{label}_{heads}{tail}")
    masks = {
        "full": (2, 4, 5, 9),
        "broadcast": (1, 1, 5, 9),
        "rank2": (5, 9),
        "padding": (2, 1, 1, 9),
    }
    for (label, mask), dtype in itertools.product(masks.items(), (torch.bool, None, torch.float32)):
        dtypes = {} if dtype is None else {3: dtype}
        kind = {torch.bool: "bool", None: "bias", torch.float32: "wide_bias"}[dtype]
        shapes = (shape["q"], grouped["k"], grouped["v"], mask)
        yield Case(name, shapes, {}, dtypes, label=f"{kind}_{label}")
    yield Case(name, (shape["q"], plain["k"], plain["v"]), {"softcap": 2.0}, label="softcap")
    yield Case(
        name,
        (shape["q"], plain["k"], plain["v"]),
        {"softcap": 2.0, "is_causal": 1},
        label="softcap_causal",
    )
    yield Case(name, (shape["q"], plain["k"], plain["v"]), {"scale": 0.3}, label="scale")
    yield Case(name, ((2, 4, 1, 8), (2, 2, 9, 8), (2, 2, 9, 8)), {"is_causal": 1}, label="decode")


def rope_cases() -> Iterator[Case]:
    """Rotary embedding: where the angles come from × lane order × partial."""
    i64, f32 = torch.int64, torch.float32
    x = (2, 3, 5, 8)
    sources: dict[str, tuple[tuple[Shape | None, ...], dict[int, torch.dtype]]] = {
        "sequence": ((x,), {}),
        "positions": ((x, None, None, (2, 5)), {3: i64}),
        "shared_positions": ((x, None, None, (1, 5)), {3: i64}),
        "offset0": ((x, None, None, None, None, ()), {5: i64}),
        "offset": ((x, None, None, None, None, (2,)), {5: i64}),
        "offset_column": ((x, None, None, None, None, (2, 1)), {5: i64}),
    }
    orders: dict[str, dict[str, Any]] = {"halves": {}, "interleaved": {"interleaved": 1}}
    for (source, (shapes, dtypes)), (order, attributes) in itertools.product(
        sources.items(), orders.items()
    ):
        yield Case("rope", shapes, attributes, dtypes, label=f"{source}_{order}")
    for order, attributes in orders.items():
        yield Case("rope", (x, (5, 4), (5, 4)), attributes, label=f"cos_sin_{order}")
        yield Case(
            "rope",
            (x, (2, 1, 5, 4), (2, 1, 5, 4)),
            attributes,
            {1: f32, 2: f32},
            label=f"wide_cos_sin_{order}",
        )
        yield Case("rope", (x,), {"dims": 4, **attributes}, label=f"partial_{order}")
        yield Case("rope", ((3, 5, 8),), attributes, label=f"rank3_{order}")
        yield Case(
            "rope",
            (x, None, None, (2, 5), (4,)),
            {**attributes, "scale": 0.5},
            {3: i64, 4: f32},
            label=f"freqs_{order}",
        )
    yield Case("rope", (x,), {"base": 500.0, "scale": 0.25}, label="base_scale")


CASES = [*norm_cases(), *attention_cases(), *rope_cases()]
"""Every case."""
