"""The matrix of calls on which every composite is tested, alone and in one model."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import onnx_ir as ir
import torch

from coreai_onnx.bodies import composite_functions
from coreai_onnx.composites import COMPOSITES
from coreai_onnx.lower import LoweredProgram
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.composite_calls import CompositeCalls
from coreai_onnx.lower.nodes.scope import Names, Scope
from coreai_onnx.lower.nodes.values import ir_dtype, set_dims
from tests.support.composite_calls import Case, Shape
from tests.support.composite_cases import CASES

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def activation_cases() -> Iterator[Case]:
    """Activations: ranks, and what they approximate."""
    for name in ("silu", "hard_sigmoid", "hard_swish"):
        for label, shape in {"rank3": (2, 5, 16), "rank0": (), "empty": (2, 0)}.items():
            yield Case(name, (shape,), label=label)
    for approximate in ("none", "tanh"):
        yield Case("gelu", ((2, 5, 16),), {"approximate": approximate}, label=approximate)
    for axis in (-1, 0, 1):
        yield Case("log_softmax", ((3, 5, 4),), {"axis": axis}, label=f"axis{axis}")
    yield Case("log_softmax", ((7,),), label="rank1")


def channel_norm_cases() -> Iterator[Case]:
    """Group, instance and batch norms: ranks × scale and bias × dtypes of the parameters."""
    shapes: dict[str, Shape] = {"rank3": (2, 6, 7), "rank4": (3, 6, 4, 5), "rank5": (2, 6, 2, 3, 2)}
    parameters: dict[str, tuple[Shape | None, ...]] = {
        "scale_bias": ((6,), (6,)),
        "scale": ((6,),),
        "bias": (None, (6,)),
        "plain": (),
    }
    for name in ("group_norm", "instance_norm"):
        attributes = {"num_groups": 3, "eps": 1e-3} if name == "group_norm" else {"eps": 1e-3}
        for (rank, x), (given, others) in itertools.product(shapes.items(), parameters.items()):
            yield Case(name, (x, *others), attributes, label=f"{rank}_{given}")
        for wide in (F32, BF16):
            dtypes = {1: wide, 2: wide}
            label = f"own_dtype_{str(wide).removeprefix('torch.')}"
            yield Case(name, (shapes["rank4"], (6,), (6,)), attributes, dtypes, label)
    yield Case("group_norm", ((5, 6), (6,), (6,)), {"num_groups": 2}, label="rank2")
    channels = ((6,), (6,), (6,), (6,))
    for label, x in {"rank2": (5, 6), **shapes}.items():
        yield Case("batch_norm", (x, *channels), {"eps": 1e-3}, label=label)
    for wide in (F32, F16):
        dtypes = dict.fromkeys(range(1, 5), wide)
        label = f"own_dtype_{str(wide).removeprefix('torch.')}"
        yield Case("batch_norm", (shapes["rank4"], *channels), {}, dtypes, label)


def vector_norm_cases() -> Iterator[Case]:
    """Vector norms: orders × axes × kept axes."""
    for order in (2.0, 1.0, 0.0, math.inf, -math.inf, 3.0, 0.5, -1.5):
        for axes, keep in (((-1,), 0), ((-3, -1), 1), ((-3, -2, -1), 0)):
            attributes = {"ord": order, "axes": axes, "keep_dim": keep}
            label = f"ord{order}_{len(axes)}axes{'_kept' if keep else ''}"
            yield Case("linalg_vector_norm", ((3, 4, 5),), attributes, label=label)


def pooling_cases() -> Iterator[Case]:
    """Average pooling: kernels, strides and padding × every option."""
    planes: dict[str, dict[str, Any]] = {
        "plain": {"kernel_size": (2, 3), "stride": (2, 3)},
        "padded": {"kernel_size": (3, 3), "stride": (2, 2), "padding": (1, 1, 1, 1)},
        "uneven": {"kernel_size": (3, 2), "stride": (1, 3), "padding": (1, 0, 1, 0)},
    }
    volumes: dict[str, dict[str, Any]] = {
        "plain": {"kernel_size": (2, 1, 3), "stride": (2, 1, 2)},
        "padded": {
            "kernel_size": (3, 2, 3),
            "stride": (2, 2, 2),
            "padding": (1, 1, 1, 1, 1, 1),
        },
    }
    named = (("avg_pool_2d", planes, (2, 3, 8, 10)), ("avg_pool_3d", volumes, (2, 2, 6, 5, 8)))
    for name, windows, x in named:
        options = itertools.product(windows.items(), (0, 1), (0, 1), (None, 5))
        for (label, attributes), ceil, include, divisor in options:
            modes = {"ceil_mode": ceil, "count_include_pad": include, "divisor_override": divisor}
            told = [label, *(["ceil"] if ceil else []), *(["include"] if include else [])]
            told += ["divisor"] if divisor else []
            yield Case(name, (x,), {**attributes, **modes}, label="_".join(told))


def shuffle_cases() -> Iterator[Case]:
    """Pixel shuffles of all ranks."""
    shapes = {"rank3": (8, 3, 4), "rank4": (2, 8, 3, 4), "rank5": (2, 3, 4, 3, 5)}
    for label, x in shapes.items():
        yield Case("pixel_shuffle", (x,), {"upscale_factor": 2}, label=label)


ATEN_CASES = [
    *activation_cases(),
    *channel_norm_cases(),
    *vector_norm_cases(),
    *pooling_cases(),
    *shuffle_cases(),
]
"""Every case."""


def few_bit_experts() -> Iterator[Case]:
    """Gathered products with few-bit weights: bits × zero points or palette × activations."""
    name, u8, f32, i64 = "gather_mm_nbits", torch.uint8, torch.float32, torch.int64
    for bits, rounding in itertools.product((8, 4, 3, 2), (0, 8)):
        attributes = {"bits": bits, "group_size": 16, "activation_bits": rounding}
        codes, groups = (4, 6, 3, 2 * bits), (4, 6, 3)
        x, dtypes = (5, 1, 1, 48), {1: u8, 2: f32, 3: i64, 4: u8}
        label = f"{bits}_bits{'_rounded' if rounding else ''}"
        yield Case(name, (x, codes, groups, (5, 2)), attributes, dtypes, label, 256)
        unsigned = (x, codes, groups, (5, 2), groups)
        yield Case(name, unsigned, attributes, dtypes, f"{label}_zero_points", 256)
        looked_up = (x, codes, groups, (5, 2), None, (1 << bits,))
        yield Case(name, looked_up, attributes, dtypes, f"{label}_palette", 256)
    weight, own = ((4, 6, 3, 8), (4, 6, 3)), {1: u8, 3: torch.int32}
    lhs_and_indices: dict[str, tuple[Shape, Shape]] = {
        "token": ((7, 1, 48), (7,)),
        "blocks": ((2, 3, 48), (2,)),
        "spread": ((5, 2, 1, 48), (5, 2)),
        "one_expert": ((3, 48), ()),
        "no_tokens": ((0, 1, 48), (0,)),
        "no_rows": ((2, 0, 48), (2,)),
    }
    for label, (x, index) in lhs_and_indices.items():
        yield Case(name, (x, *weight, index), {"group_size": 16}, own, label, 256)
    shapes = ((7, 1, 48), *weight, (7,), (4, 6, 3))
    for label, dtype in (("wide", f32), ("narrow", torch.float16), ("bfloat16", torch.bfloat16)):
        dtypes = {1: u8, 2: dtype, 3: i64, 4: dtype}
        yield Case(name, shapes, {"group_size": 16}, dtypes, f"{label}_zero_points", 256)
    none = ((2, 1, 48), (4, 0, 3, 8), (4, 0, 3), (2,))
    yield Case(name, none, {"group_size": 16}, own, "no_columns", 256)


EXPERT_CASES = tuple(few_bit_experts())
"""Every case."""


I64, F32 = torch.int64, torch.float32


def attention_cases() -> Iterator[Case]:
    """Masks together with sinks, value heads of their own, soft caps and windows."""
    name = "scaled_dot_product_attention"
    q, k, v = (2, 4, 5, 8), (2, 2, 9, 8), (2, 1, 9, 6)
    for kind, mask in {"bool": torch.bool, "bias": None}.items():
        dtypes = {} if mask is None else {3: mask}
        yield Case(name, (q, k, k, (1, 1, 5, 9), (4,)), {}, dtypes, f"{kind}_sinks")
        yield Case(name, (q, k, v, (5, 9)), {}, dtypes, f"{kind}_value_heads")
    yield Case(name, (q, k, k, None, (4,)), {}, {4: F32}, "wide_sinks")
    everything: dict[str, Any] = {"is_causal": 1, "window_size": 3, "softcap": 2.0, "scale": 0.4}
    for alignment in ("lower_right", "upper_left"):
        attributes = {**everything, "causal_alignment": alignment}
        yield Case(name, (q, k, v), attributes, label=f"value_heads_{alignment}")
        yield Case(name, (q, k, v, None, (4,)), attributes, label=f"all_{alignment}")
    overruled = {"is_causal": 1, "window_size": 2}
    yield Case(name, (q, k, k, (5, 9)), overruled, {3: torch.bool}, "mask_alone")


def rope_cases() -> Iterator[Case]:
    """Every subset of what angles can be made from; what is not needed is not used."""
    x = (2, 3, 5, 8)
    offered: dict[int, tuple[Shape, torch.dtype | None]] = {
        1: ((2, 1, 5, 4), None),
        2: ((2, 1, 5, 4), None),
        3: ((2, 5), I64),
        4: ((4,), F32),
        5: ((2, 1), I64),
    }
    letters = {1: "cos", 2: "sin", 3: "positions", 4: "freqs", 5: "offset"}
    for size in range(1, 6):
        for chosen in itertools.combinations(offered, size):
            shapes = (x, *(offered[i][0] if i in chosen else None for i in offered))
            dtypes = {i: d for i in chosen if (d := offered[i][1]) is not None}
            label = "given_" + "_".join(letters[i] for i in chosen)
            yield Case("rope", shapes, {"base": 100.0}, dtypes, label)
    tables: dict[str, tuple[Shape, Shape]] = {
        "per_head": ((2, 3, 5, 4), (2, 3, 5, 4)),
        "heads_of_all_rows": ((3, 5, 4), (3, 5, 4)),
        "one_head": ((1, 5, 4), (2, 1, 5, 4)),
    }
    for (label, (cos, sin)), swap in itertools.product(tables.items(), (0, 1)):
        yield Case("rope", (x, cos, sin), {"interleaved": swap}, label=f"{label}_{swap}")
    narrow = {"dims": 4, "interleaved": 1}
    yield Case("rope", (x, (5, 2), (5, 2)), narrow, label="partial_tables")
    yield Case("rope", (x, None, None, (5,)), narrow, {3: torch.int32}, "partial_shared_positions")
    yield Case("rope", ((3, 5, 8), (5, 4), (5, 4)), {}, label="rank3_tables")
    yield Case("rope", (x,), {"dims": 8}, label="all_lanes_named")


def norm_cases() -> Iterator[Case]:
    """Biases without a scale, parameters of other dtypes and shapes, axes in the middle."""
    x = (2, 5, 8)
    yield Case("skip_layer_norm", (x, x, None, (8,)), label="bias_only")
    for name, first in (("layer_norm", 1), ("rms_norm", 1), ("skip_rms_norm", 2)):
        inputs = (x,) * first
        for dtype in (torch.float16, torch.bfloat16, torch.float64):
            label = f"scale_{str(dtype).removeprefix('torch.')}"
            yield Case(name, (*inputs, (8,)), {}, {first: dtype}, label)
        yield Case(name, (*inputs, (5, 1)), label="scale_per_row")
        yield Case(name, (*inputs, (2, 5, 8)), {"axes": (0, 1, 2)}, label="all_axes")
        many = ((2, 3, 2, 2, 3, 2),) * first
        yield Case(name, (*many, (3, 2, 2, 3, 2)), {"axes": (1, 2, 3, 4, 5)}, label="five_axes")
    yield Case("layer_norm", (x, (8,), (8,)), {}, {1: F32, 2: F32}, "wide_scale_bias")
    yield Case("layer_norm", (x, (8,), (8,)), {}, {2: F32}, "wide_bias")


OPTIONAL_CASES = [*attention_cases(), *rope_cases(), *norm_cases()]
"""Every case."""


ALL_CASES: Sequence[Case] = (*CASES, *OPTIONAL_CASES, *EXPERT_CASES, *ATEN_CASES)
"""Every call that is tried."""
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
OPSET = 23
OTHER_OPSETS = (18, 21, 26)

KERNELS = frozenset(name for name, composite in COMPOSITES.items() if composite.kernel)
"""Composites that the library has kernels of."""


@dataclasses.dataclass(frozen=True)
class Combination:
    """One way to run a case.

    Attributes:
        dtype: Dtype of the composite.
        dynamic: Whether dims are symbolic.
        opset: ``ai.onnx`` opset of the body.
    """

    dtype: torch.dtype
    dynamic: bool
    opset: int

    def __str__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        return f"{name}, {'dynamic' if self.dynamic else 'static'}, opset {self.opset}"


def combinations() -> Iterator[Combination]:
    """Return every dtype with both kinds of dims, and the other opsets in float32."""
    for dtype in DTYPES:
        yield Combination(dtype, dynamic=True, opset=OPSET)
        yield Combination(dtype, dynamic=False, opset=OPSET)
    for opset in OTHER_OPSETS:
        yield Combination(torch.float32, dynamic=True, opset=opset)


def optional_inputs(case: Case) -> frozenset[str]:
    """Return which optional inputs a case passes."""
    declared = COMPOSITES[case.composite].inputs
    pairs = zip(declared, case.shapes, strict=False)
    return frozenset(d.name for d, shape in pairs if d.optional and shape is not None)


@dataclasses.dataclass(frozen=True)
class Row:
    """What is tried of one composite.

    Attributes:
        name: The composite.
        cases: Calls: inputs present, shapes, attributes.
        optional: Combinations of optional inputs among them.
        bodies: Runs of the function body against torch.
        kernels: Runs of the kernel against torch.
    """

    name: str
    cases: int
    optional: int
    bodies: int
    kernels: int


def summary() -> list[Row]:
    """Return one row per composite."""
    runs = len(list(combinations()))
    rows = []
    for name in COMPOSITES:
        cases = [c for c in ALL_CASES if c.composite == name]
        optional = len({optional_inputs(c) for c in cases})
        kernels = len(cases) * len(DTYPES) if name in KERNELS else 0
        rows.append(Row(name, len(cases), optional, len(cases) * runs, kernels))
    return rows


def model_of(calls: Sequence[tuple[Case, torch.dtype]], opset: int) -> tuple[ir.Model, list[Any]]:
    """Return a model that makes these calls one after the other, and its flat inputs."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": opset}, name="main")
    names, made, flat = Names(), CompositeCalls(), []
    op = OpBuilder(Scope(graph, names), opset, made)
    for index, (case, dtype) in enumerate(calls):
        tensors = case.inputs(dtype)
        flat += [t for t in tensors if t is not None]
        values = [None if t is None else _input(graph, names, t) for t in tensors]
        attributes = dict(case.attributes)
        first = tensors[0]
        if "attention" in case.composite and first is not None:
            attributes.setdefault("scale", first.shape[-1] ** -0.5)
        results = op.composite_outputs(case.composite, values, **attributes)
        for output, wanted in zip(results, case.expected_outputs(tensors), strict=True):
            output.name = names.unique(f"result_{index}")
            output.shape = ir.Shape([f"{output.name}_{i}" for i in range(wanted.ndim)])
            graph.outputs.append(output)
    model = LoweredProgram(graph, names).model(composite_functions(made.calls, opset), "main")
    return model, flat


def expected(calls: Sequence[tuple[Case, torch.dtype]]) -> list[torch.Tensor]:
    """Return every output of the references, in the order of the model's outputs."""
    return [x for case, dtype in calls for x in case.expected_outputs(case.inputs(dtype))]


def _input(graph: ir.Graph, names: Names, tensor: torch.Tensor) -> ir.Value:
    value = ir.Value(name=names.unique("input"))
    value.dtype = ir_dtype(tensor.dtype)
    set_dims(value, tuple(tensor.shape))
    graph.inputs.append(value)
    return value


def declared(name: str) -> frozenset[str]:
    """Return every op type of a composite."""
    return frozenset(COMPOSITES[name].op_types())
