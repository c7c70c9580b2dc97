from __future__ import annotations

import pytest
import torch

import coreai_onnx
from coreai_onnx.model.inventory import STANDARD_DOMAIN
from coreai_onnx.passes.fuse.fuse_attention import fuse_attention
from tests.passes.rewriting import leaves
from tests.support.tolerances import assert_close

NAME = "scaled_dot_product_attention"


class Written(torch.nn.Module):
    """Attention in products and a softmax, as models without torch's own write it."""

    def __init__(self, kind: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.kind, self.lowest = kind, torch.finfo(dtype).min

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        bias = torch.where(mask, 0.0, self.lowest).to(q.dtype)
        scores = torch.matmul(q, k.transpose(-1, -2))
        match self.kind:
            case "plain":
                scores = scores * 0.3125
            case "quotient":
                scores = scores / 8.0 + bias
            case "biases":
                scores = bias + (scores + 0.25 * bias.clamp(min=-1.0))
            case "softcap":
                scores = torch.tanh(scores * 0.3125 / 5.0) * 5.0 + bias
            case "filled":
                scores = (scores * 0.5).masked_fill(~mask, self.lowest)
            case "kept":
                scores = torch.where(
                    mask | (mask.sum(-1, keepdim=True) == 0), scores, float("-inf")
                )
        wide = torch.promote_types(torch.float32, q.dtype)
        return torch.softmax(scores, dim=-1, dtype=wide).to(q.dtype) @ v


def arguments(dtype: torch.dtype, *heads: int) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, *heads, rows, 8).to(dtype) for rows in (5, 7, 7))
    mask = torch.rand(2, *[1] * len(heads), 5, 7) < 0.7
    mask[..., 0] = True
    # A row of padding, whose keys are all hidden: its weights are equal, if the lowest number is so
    # low that scores are lost in the sum.
    mask[0, ..., 1, :] = dtype == torch.float16
    return q, k, v, mask


DTYPES = (torch.float32, torch.float16, torch.bfloat16)
KINDS = ("plain", "quotient", "biases", "softcap", "filled", "kept")


@pytest.mark.parametrize("heads", [(), (3,)], ids=["matrices", "heads"])
@pytest.mark.parametrize(
    ("kind", "dtype"),
    # The lowest number of float32 is none of float16.
    [(kind, d) for kind in KINDS for d in DTYPES if (kind, d) != ("filled", torch.float16)],
)
def test_written_attention_is_one_call(
    kind: str, heads: tuple[int, ...], dtype: torch.dtype
) -> None:
    module, given = Written(kind, dtype), arguments(dtype, *heads)
    queries, keys = torch.export.Dim("queries", min=2), torch.export.Dim("keys", min=2)
    axis = 1 + len(heads)
    shapes = ({axis: queries}, {axis: keys}, {axis: keys}, {axis: queries, axis + 1: keys})
    program = coreai_onnx.convert(module, given, dynamic_shapes=shapes)
    program.optimize(target="kernels")
    calls = [node for node in program.model.graph if node.domain == STANDARD_DOMAIN]
    assert [node.op_type.partition(".")[0] for node in calls] == [NAME]
    wide = module(*(x.double() if x.is_floating_point() else x for x in given))
    for kernels in (False, True):
        (result,) = coreai_onnx.session(program, kernels=kernels).run(*given).values()
        assert_close(result, wide.to(dtype))


TEXT = """main (float[b, 2, t, 4] q, float[b, 2, s, 4] k, float[{v}, s, 4] v, float[{m}] m) => (float[b, 2, t, 4] y{more}) <float scale = {{0.5}}> {{
  float[b, 2, 4, s] turned = Transpose <perm = [0, 1, 3, 2]> (k)
  float[b, 2, t, s] scores = MatMul (q, turned)
  {middle}
  float[b, 2, t, s] weights = Softmax <axis = {axis}> (masked)
  y = MatMul (weights, v)
}}"""
PLAIN = {
    "v": "b, 2",
    "m": "b, 1, t, s",
    "more": "",
    "middle": "float[b, 2, t, s] masked = Add (scores, m)",
    "axis": -1,
}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"axis": 2}, "the softmax is not over the keys"),
        ({"more": ", float[b, 2, t, s] weights"}, "something else reads the weights"),
        (
            {"v": "1, 2"},
            "queries, keys and values are not known to have the same batch and heads",
        ),
        ({"m": "b, 1, t, n"}, "a bias has another dtype, or is not known to fit the scores"),
        ({"m": "1, b, 2, t, s"}, "a bias has another dtype, or is not known to fit the scores"),
        # The bias would have to be scaled as well.
        ({"middle": "sum = Add (scores, m)  masked = Mul (sum, scale)"}, None),
        ({"middle": "masked = Relu (scores)"}, None),
    ],
)
def test_others_stay(change: dict[str, object], reason: str | None) -> None:
    leaves(TEXT.format(**{**PLAIN, **change}), fuse_attention, reason)


def test_keys_that_are_not_transposed_stay() -> None:
    text = TEXT.format(**PLAIN).replace("Transpose <perm = [0, 1, 3, 2]> (k)", "Relu (k)")
    leaves(text.replace("2, s, 4] k", "2, 4, s] k"), fuse_attention, "the keys are not transposed")
