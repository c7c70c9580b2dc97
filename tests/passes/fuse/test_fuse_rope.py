from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

import coreai_onnx
from coreai_onnx.composites.torch_ops import call
from coreai_onnx.passes.cleanup.remove_unused import remove_dead_code
from coreai_onnx.passes.fuse.fuse_rope import fuse_rope
from coreai_onnx.targets.opsets import OPSETS
from tests.passes.rewriting import fuses, leaves, parse, run, run_passes
from tests.support.composite_calls import Case
from tests.support.tolerances import assert_close

HEAD = "main (float[b, 2, s, 4] x, float[1, 1, s, 2] f) => (float[b, 2, s, 4] y) <int64[1] zero = {0}, int64[1] h = {2}, int64[1] end = {9223372036854775807}, int64[1] ax = {3}>"
ANGLES = "float[1, 1, s, 4] g = Concat <axis = 3> (f, f)  float[1, 1, s, 4] c = Cos (g)  float[1, 1, s, 4] n = Sin (g)"
HALVES = "float[b, 2, s, 2] l = Slice (x, zero, h, ax)  float[b, 2, s, 2] r = Slice (x, h, end, ax)"
TURN = "m = Neg (r)  float[b, 2, s, 4] k = Concat <axis = -1> (m, l)  u = Mul (x, c)  v = Mul (k, n)  y = Add (u, v)"
FUSED = """main (float[b, 2, s, 4] x, float[1, 1, s, 2] f) => (float[b, 2, s, 4] y) <int64[3] c_cos_ones = {1, 1, 1}, int64[3] n_sin_ones = {1, 1, 1}> {
  c_cos = Cos (f)  n_sin = Sin (f)
  y_shape = Shape <start = 0, end = 1> (x)  y_concat = Concat <axis = 0> (y_shape, c_cos_ones)  y_expand = Expand (c_cos, y_concat)
  y_shape_1 = Shape <start = 0, end = 1> (x)  y_concat_1 = Concat <axis = 0> (y_shape_1, n_sin_ones)  y_expand_1 = Expand (n_sin, y_concat_1)
  y = ai.coreai.rope <scale = 1.0, base = 10000.0, dims = 0, interleaved = 0, version = 1> (x, y_expand, y_expand_1)
}"""
EXPANDS = {"Shape": 2, "Concat": 2, "Expand": 2}
"""Nodes that repeat both tables for each batch item."""
FEEDS = {
    "x": np.random.default_rng(0).standard_normal((2, 2, 3, 4)).astype(np.float32),
    "f": np.random.default_rng(1).standard_normal((1, 1, 3, 2)).astype(np.float32),
}


@pytest.mark.parametrize(("opset", "op"), [(23, "RotaryEmbedding"), (18, "Split")])
@pytest.mark.parametrize(
    "halves",
    [HALVES, "float[b, 2, s, 2] l, float[b, 2, s, 2] r = Split <axis = -1, num_outputs = 2> (x)"],
)
def test_a_rotation_is_one_node(halves: str, opset: int, op: str) -> None:
    text = f"{HEAD} {{ {ANGLES} {halves} {TURN} }}"
    model = fuses(text, fuse_rope, 1, FUSED, FEEDS, opset=opset)
    (function,) = model.functions.values()
    assert op in [node.op_type for node in function]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("g = Concat <axis = 3> (f, f)", "g = Concat <axis = 3> (f, o)", "the cosines of both halves may differ"),
        ("Concat <axis = -1> (m, l)", "Concat <axis = -1> (l, m)", None),
        ("int64[1] h = {2}", "int64[1] h = {1}", None),
        ("u = Mul (x, c)", "u = Mul (k, c)", None),
    ],
)  # fmt: skip
def test_what_is_no_rotation_stays(old: str, new: str, reason: str | None) -> None:
    text = f"{HEAD} {{ float[1, 1, s, 2] o = Neg (f)  {ANGLES} {HALVES} {TURN} }}"
    leaves(text.replace(old, new), fuse_rope, reason)


class TwoRotations(torch.nn.Module):
    """Rotates queries by the composite, and keys by formulas."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
        cos, sin = (torch.cat([x, x], dim=-1) for x in (angle.cos(), angle.sin()))
        turned = torch.cat([-k[..., 4:], k[..., :4]], dim=-1)
        return call("rope", q, angle.cos(), angle.sin()) + (k * cos + turned * sin)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("opset", OPSETS)
def test_a_composite_and_a_rotation_in_formulas_share_a_body(
    opset: int, dtype: torch.dtype
) -> None:
    shapes = (2, 3, 5, 8), (2, 3, 5, 8), (2, 1, 5, 4)
    inputs = tuple(torch.rand(shape).to(dtype) for shape in shapes)
    program = coreai_onnx.convert(TwoRotations(), inputs, opset_version=opset)
    assert program.composites() == {"ai.coreai::rope": 2}
    assert [f.name for f in program.model.functions.values()] == ["rope"]
    (actual,) = program.run(*inputs, kernels=False)
    if dtype == torch.float32:  # the composite rounds less often than the formulas
        assert_close(actual, TwoRotations()(*inputs))


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("dtype", ["bfloat16", "double"])
def test_formulas_in_other_dtypes_share_the_body_of_a_converted_model(
    dtype: str, opset: int
) -> None:
    text = f"{HEAD} {{ {ANGLES} {HALVES} {TURN} }}".replace("float", dtype)
    torch_dtype = {"bfloat16": torch.bfloat16}.get(dtype, torch.float64)
    model = parse(text, opset)
    shapes = (2, 3, 5, 8), (2, 1, 5, 4), (2, 1, 5, 4)
    known = Case("rope", shapes).model(torch_dtype, dynamic=True, opset=opset)
    model.functions.update(known.functions)
    assert run_passes(model, [fuse_rope]).total == 1
    assert model.graph[-1].op_type == "rope"
    assert len(model.functions) == 1


def test_tables_are_halved_through_scaling_and_new_axes() -> None:
    angles = """float[s, 4] g = Concat <axis = 1> (f, f)  float[s, 4] a = Cos (g)  float[s, 4] d = Sin (g)
      float[s, 4] p = Mul (a, two)  float[s, 4] q = Mul (d, two)
      float[1, 1, s, 4] c = Unsqueeze (p, lead)  float[1, 1, s, 4] n = Unsqueeze (q, lead)"""
    head = HEAD.replace("float[1, 1, s, 2] f", "float[s, 2] f")
    head = head.replace("<int64[1] zero", "<float two = {2}, int64[2] lead = {0, 1}, int64[1] zero")
    text = f"{head} {{ {angles} {HALVES} {TURN} }}"
    before, after = parse(text), parse(text)
    run_passes(after, [fuse_rope, remove_dead_code])
    ops = Counter(node.op_type for node in after.graph)
    assert ops == Counter({"Mul": 2, "Unsqueeze": 2, "Cos": 1, "Sin": 1, "rope": 1} | EXPANDS)
    feeds = {"x": FEEDS["x"], "f": FEEDS["f"][0, 0]}
    for wanted, actual in zip(run(before, feeds), run(after, feeds), strict=True):
        assert_close(actual, wanted)


class Rotation(torch.nn.Module):
    """A rotation by angles of the module, or by those that are given."""

    def __init__(self, angles: torch.Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.angles, self.dtype = angles, dtype

    def forward(self, x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        angles = given if self.angles is None else self.angles
        both = torch.cat((angles, angles), -1)[:, None]
        first, second = x.chunk(2, -1)
        turned = torch.cat((-second, first), -1)
        return x * both.cos().to(self.dtype) + turned * both.sin().to(self.dtype)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_every_dtype_is_one_node(dtype: torch.dtype, constant: bool) -> None:
    """Casts around the ops of bfloat16 hide no pattern; constant tables are halved."""
    angles = -torch.rand(1, 3, 64) / 2
    # no difference cancels: torch rounds both products
    x = torch.cat((torch.rand(2, 4, 3, 64) / 64, 1 + torch.rand(2, 4, 3, 64)), -1).to(dtype)
    module = Rotation(angles if constant else None, dtype)
    program = coreai_onnx.convert(module, (x, angles))
    assert Counter(n.op_type for n in program.model.graph)["rope"] == 1
    assert not {"Mul", "Add", "Neg"} & {node.op_type for node in program.model.graph}
    assert_close(list(program.run(x, angles, kernels=False)), [module(x, angles)])


def test_constant_tables_with_different_halves_stay() -> None:
    class Unequal(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first, second = x.chunk(2, -1)
            table = torch.arange(24.0).cos().reshape(1, 1, 3, 8)
            return x * table + torch.cat((-second, first), -1) * table

    program = coreai_onnx.convert(Unequal(), (torch.rand(1, 2, 3, 8),))
    assert "rope" not in [node.op_type for node in program.model.graph]
    misses = [m.miss.reason for m in program.pass_report.near_misses if m.pass_name == "fuse_rope"]
    assert misses == ["the cosines of both halves may differ"]


class Neighbors(torch.nn.Module):
    """Rotates pairs of neighbors, as Flux (heads on the third axis) and GPT-J do."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
        parts = angle.split([1, 3], dim=-1)
        cos, sin = (
            torch.cat([f(part).repeat_interleave(2, dim=-1) for part in parts], dim=-1)
            for f in (torch.cos, torch.sin)
        )
        if self.heads == 1:
            turned = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
        else:
            first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
            turned = torch.stack([-second, first], dim=-1).flatten(3)
        return x * cos.unsqueeze(self.heads) + turned * sin.unsqueeze(self.heads)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("heads", [1, 2])
def test_pairs_of_neighbors_are_one_node(heads: int, batch: int) -> None:
    shape = (2, 3, 5, 8) if heads == 1 else (2, 5, 3, 8)
    inputs = torch.randn(shape), torch.randn(batch, 5, 4)
    length = torch.export.Dim("length")
    program = coreai_onnx.convert(
        Neighbors(heads), inputs, dynamic_shapes=({3 - heads: length}, {1: length})
    )
    ops = Counter(node.op_type for node in program.model.graph)
    assert (ops["rope.interleaved"], ops["Mul"], ops["Neg"]) == (1, 0, 0)
    others = inputs[0].repeat(1, heads, 3 - heads, 1), inputs[1].repeat(1, 2, 1)
    for x, angle in (inputs, others):
        for kernels in (False, True):
            assert_close(program.run(x, angle, kernels=kernels)[0], Neighbors(heads)(x, angle))


@pytest.mark.parametrize("lane", [0, 1])
def test_neighbors_with_angles_of_their_own_stay(lane: int) -> None:
    class Unequal(torch.nn.Module):
        def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
            second, first = x[..., 1 - lane :: 2], x[..., lane::2]
            turned = torch.stack([-second, first], dim=-1).flatten(-2)
            return x * table.cos() + turned * table.sin()

    inputs = torch.rand(1, 2, 3, 8), torch.rand(1, 1, 3, 8)
    program = coreai_onnx.convert(Unequal(), inputs)
    assert "rope" not in "".join(node.op_type for node in program.model.graph)
    misses = [m.miss.reason for m in program.pass_report.near_misses if m.pass_name == "fuse_rope"]
    assert misses == ["the cosines of both halves may differ"] * (1 - lane)
