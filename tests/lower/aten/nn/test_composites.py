"""Ops that become calls of composites, with all their arguments, in every form of a program."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

import coreai_onnx
from tests.lower.checking import Wrapped
from tests.support.tolerances import assert_close

# torch's table takes composites apart, which is what these tests compare.
pytestmark = pytest.mark.filterwarnings("ignore::coreai_onnx.errors.LostCompositesWarning")
FORMS = ("training", "own_table", "torchs_table")
"""As exported; decomposed with our table; decomposed with torch's."""


def check(
    function: Callable[..., Any],
    *args: torch.Tensor,
    form: str = "training",
    opset: int = 23,
    dynamic_shapes: Any = None,
    others: tuple[torch.Tensor, ...] = (),
) -> dict[str, int]:
    """Assert that a function gives through bodies what it gives in torch.

    Args:
        function: What to convert.
        *args: Its arguments.
        form: One of ``FORMS``.
        opset: Opset of the model.
        dynamic_shapes: As for ``torch.export.export``, one entry per argument.
        others: Arguments of other sizes, for the same model.

    Returns:
        Calls by composite.
    """
    shapes = None if dynamic_shapes is None else (tuple(dynamic_shapes),)
    program = torch.export.export(Wrapped(function), args, dynamic_shapes=shapes)
    if form != "training":
        table = coreai_onnx.get_decomp_table() if form == "own_table" else None
        program = program.run_decompositions(table)
    converter = coreai_onnx.TorchConverter().add_exported_program(program)
    converted = converter.to_onnx(opset_version=opset)
    for given in (args, *([others] if others else [])):
        (actual,) = converted.run(*given, kernels=False)
        assert_close(actual, function(*given))
    return {k.removeprefix("ai.coreai::"): v for k, v in converted.composites().items()}


def tensors(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape) for shape in shapes]


@pytest.mark.parametrize("form", ["training", "torchs_table"])
def test_layer_norm_keeps_axes_weight_and_bias(form: str) -> None:
    x, w, b = tensors((2, 3, 4, 5), (4, 5), (4, 5))
    assert check(lambda x, w, b: F.layer_norm(x, (4, 5), w, b, 1e-3), x, w, b, form=form) == {
        "layer_norm": 1
    }
    assert check(lambda x: F.layer_norm(x, (5,)), x, form=form) == {"layer_norm": 1}


def test_layer_norm_statistics_that_are_used_are_spelled_out() -> None:
    x, w, b = tensors((2, 5), (5,), (5,))
    found = check(lambda x, w, b: torch.native_layer_norm(x, (5,), w, b, 1e-5)[2], x, w, b)
    assert found == {}


def test_rms_norm_has_torchs_epsilon_by_default() -> None:
    x, w = tensors((2, 3, 5), (5,))
    assert check(lambda x, w: F.rms_norm(x * 1e-4, (5,), w), x, w) == {"rms_norm": 1}
    assert check(lambda x, w: F.rms_norm(x, (3, 5), eps=0.1) * w, x, w) == {"rms_norm": 1}


@pytest.mark.parametrize(
    ("query", "key"),
    [((5, 8), (7, 8)), ((2, 5, 8), (2, 7, 8)), ((2, 3, 2, 5, 8), (2, 3, 2, 7, 8))],
    ids=["rank2", "rank3", "rank5"],
)
def test_attention_of_other_ranks_is_reshaped(query: tuple[int, ...], key: tuple[int, ...]) -> None:
    q, k, v = tensors(query, key, (*key[:-1], 6))
    assert check(F.scaled_dot_product_attention, q, k, v) == {"scaled_dot_product_attention": 1}


def test_attention_with_masks_scale_and_groups() -> None:
    q, k, v, bias = tensors((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6), (5, 7))
    name = "scaled_dot_product_attention"
    grouped = check(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3, enable_gqa=True), q, k, v
    )
    assert grouped == {name: 1}
    masked = check(
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m > 0, enable_gqa=True)
        + F.scaled_dot_product_attention(q, k, v, m, enable_gqa=True),
        q, k, v, bias,
    )  # fmt: skip
    assert masked == {f"{name}.bias": 1, f"{name}.mask": 1}


@pytest.mark.parametrize("form", ["training", "torchs_table"])
def test_causal_attention_begins_in_the_upper_left_corner(form: str) -> None:
    q, k, v = tensors((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8))
    check(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        q,
        k,
        v,
        form=form,
    )


def test_integers_are_left_to_the_plain_lowering() -> None:
    x = torch.ones(2, 4)
    assert check(lambda x: F.layer_norm(x.double(), (4,)).float(), x) == {"layer_norm": 1}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_modules_of_torch_become_composites(dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 8).to(dtype)
    norms = torch.nn.Sequential(torch.nn.RMSNorm(8), torch.nn.LayerNorm(8, bias=False)).to(dtype)
    with torch.no_grad():
        assert check(norms, x) == {"rms_norm": 1, "layer_norm": 1}


@pytest.mark.parametrize("dims", [(2, 4, 5, 7), (1, 1, 5, 7), (2, 1, 1, 7), (5, 7)], ids=str)
def test_attention_with_masks_of_every_shape(dims: tuple[int, ...]) -> None:
    q, k, v, mask = tensors((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6), dims)
    found = check(
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, 0.0, False, scale=0.4)
        + F.scaled_dot_product_attention(q, k, v, attn_mask=m > 0, enable_gqa=True),
        q, k, v, mask,
    )  # fmt: skip
    name = "scaled_dot_product_attention"
    assert found == {f"{name}.bias": 1, f"{name}.mask": 1}


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


@pytest.mark.parametrize("form", FORMS)
def test_gelu_keeps_its_form(form: str) -> None:
    found = check(lambda x: F.gelu(x) + F.gelu(x, approximate="tanh"), random(2, 5), form=form)
    assert found == {"gelu": 1, "gelu.tanh": 1}


@pytest.mark.parametrize("form", ["training", "own_table"])
@pytest.mark.parametrize(
    ("function", "name"),
    [(F.silu, "silu"), (F.hardsigmoid, "hard_sigmoid"), (F.hardswish, "hard_swish")],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_what_only_our_table_keeps(
    function: Callable[[torch.Tensor], torch.Tensor], name: str, form: str
) -> None:
    assert check(function, random(2, 5), form=form) == {name: 1}
    assert check(function, random(2, 5, dtype=torch.float16), form=form) == {name: 1}


@pytest.mark.parametrize("form", FORMS)
def test_log_softmax_of_two_axes_has_one_body(form: str) -> None:
    x = random(3, 4, 5)
    found = check(lambda x: F.log_softmax(x, 1) + F.log_softmax(x, -1), x, form=form)
    assert found == {"log_softmax": 2}


@pytest.mark.parametrize("form", FORMS)
def test_log_softmax_casts_to_its_dtype_first(form: str) -> None:
    x = random(3, 4, dtype=torch.float16)
    found = check(lambda x: F.log_softmax(x, 0, dtype=torch.float32), x, form=form)
    assert found == {"log_softmax": 1}


def test_empty_and_0d_activations_are_spelled_out() -> None:
    assert check(lambda x: torch.special.log_softmax(x, 0), torch.randn(())) == {}
    assert check(F.silu, torch.randn(0, 3)) == {}
    assert check(lambda x: torch.special.log_softmax(x, 0), random(4)) == {"log_softmax": 1}


@pytest.mark.parametrize("form", FORMS)
def test_group_norm_with_everything_and_with_nothing(form: str) -> None:
    x, w, b = random(2, 6, 4, 5), random(6), random(6)
    found = check(lambda x, w, b: F.group_norm(x, 3, w, b, 1e-3), x, w, b, form=form)
    assert found == {"group_norm": 1}
    found = check(lambda x, w: F.group_norm(x, 2) + F.group_norm(x, 3, w), x, w, form=form)
    assert found == {"group_norm.unscaled": 1, "group_norm.no_bias": 1}


def test_group_norm_of_any_number_of_groups_has_one_body() -> None:
    x, w, b = random(2, 6, 4), random(6), random(6)
    found = check(lambda x, w, b: F.group_norm(F.group_norm(x, 2, w, b), 3, w, b), x, w, b)
    assert found == {"group_norm": 2}


def test_sizes_may_change() -> None:
    x, other, w = random(2, 6, 4, 5), random(3, 6, 7, 1), random(6)
    sizes = ({0: Dim("batch"), 2: Dim("height"), 3: Dim.DYNAMIC}, None)
    found = check(
        lambda x, w: F.group_norm(x, 3, w) + F.instance_norm(x),
        x, w, dynamic_shapes=sizes, others=(other.repeat(1, 1, 1, 2), w),
    )  # fmt: skip
    assert found == {"group_norm": 1, "instance_norm": 1}


@pytest.mark.parametrize("form", ["training", "own_table"])
def test_instance_norm(form: str) -> None:
    x, w, b = random(2, 6, 4, 5), random(6), random(6)
    found = check(lambda x, w, b: F.instance_norm(x, weight=w, bias=b), x, w, b, form=form)
    assert found == {"instance_norm": 1}


@pytest.mark.parametrize("form", FORMS)
def test_running_statistics_make_a_batch_norm(form: str) -> None:
    x, mean, variance = random(2, 6, 4, 5), random(6), torch.rand(6) + 0.5
    w, b = random(6), random(6)

    def normalize(x, mean, variance, w, b):
        first = F.batch_norm(x, mean, variance, w, b, eps=1e-3)
        return F.instance_norm(first, mean, variance, use_input_stats=False)

    assert check(normalize, x, mean, variance, w, b, form=form) == {"batch_norm": 2}


def test_float16_with_float32_parameters() -> None:
    x = random(2, 6, 4).half()
    mean, variance, w, b = random(6), torch.rand(6) + 0.5, random(6), random(6)
    found = check(F.batch_norm, x, mean, variance, w, b)
    assert found == {"batch_norm": 1}


@pytest.mark.parametrize("form", FORMS)
def test_statistics_of_the_batch_are_no_composite(form: str) -> None:
    x, mean, variance = random(4, 6, 3), random(6), torch.rand(6)
    assert check(lambda x: F.batch_norm(x, None, None, training=True), x, form=form) == {}
    found = check(
        lambda x, m, v: F.batch_norm(x, m.clone(), v.clone(), training=True), x, mean, variance,
        form=form,
    )  # fmt: skip
    assert found == {}


def test_statistics_that_are_used_are_spelled_out() -> None:
    x, w, b = random(2, 6, 4), random(6), random(6)
    found = check(lambda x, w, b: torch.native_group_norm(x, w, b, 2, 6, 4, 3, 1e-5)[1], x, w, b)
    assert found == {}
    found = check(lambda x, w, b: torch.native_group_norm(x, w, b, 2, 6, 4, 3, 1e-5)[0], x, w, b)
    assert found == {"group_norm": 1}


def test_nothing_to_normalize_is_spelled_out() -> None:
    assert check(lambda x: F.group_norm(x, 3), random(0, 6, 4)) == {}


@pytest.mark.parametrize("form", FORMS)
def test_pooling_of_different_windows_has_one_body(form: str) -> None:
    def pool(x):
        windows = itertools.product((False, True), (False, True))
        parts = [F.avg_pool2d(x, (3, 2), 2, (1, 1), *w).flatten() for w in windows]
        return torch.cat([*parts, F.avg_pool2d(x, 2).flatten()])

    assert check(pool, torch.randn(2, 3, 7, 8), form=form) == {"avg_pool_2d": 5}


def test_a_divisor_of_ones_own() -> None:
    def pool(x):
        counted = F.avg_pool2d(x, 3, 2, 1, ceil_mode=True)
        return counted + F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, divisor_override=7)

    x = torch.randn(2, 3, 8, 8)
    assert check(pool, x) == {"avg_pool_2d": 1, "avg_pool_2d.divisor": 1}
    assert check(pool, x.double()) == {"avg_pool_2d": 1, "avg_pool_2d.divisor": 1}


@pytest.mark.parametrize("form", FORMS)
def test_volumes(form: str) -> None:
    x = torch.randn(2, 2, 5, 6, 7)
    found = check(lambda x: F.avg_pool3d(x, 3, 2, 1, count_include_pad=False), x, form=form)
    assert found == {"avg_pool_3d": 1}


def test_one_image_by_itself_and_other_sizes() -> None:
    x, other = torch.randn(3, 8, 9), torch.randn(3, 12, 5)
    sizes = ({1: Dim("height"), 2: Dim("width")},)
    found = check(lambda x: F.avg_pool2d(x, 3, 1, 1), x, dynamic_shapes=sizes, others=(other,))
    assert found == {"avg_pool_2d": 1}


@pytest.mark.parametrize("form", ["training", "own_table"])
def test_pixel_shuffles_of_any_rank(form: str) -> None:
    x = torch.randn(2, 3, 8, 2, 3)

    def shuffle(x):
        return F.pixel_shuffle(x, 2).flatten() + F.pixel_shuffle(x[0], 2).flatten().repeat(2)

    assert check(shuffle, x, form=form) == {"pixel_shuffle": 1, "pixel_shuffle.any_rank": 1}


@pytest.mark.parametrize("form", FORMS)
def test_vector_norms_keep_order_axes_and_dims(form: str) -> None:
    def norms(x):
        lengths = torch.linalg.vector_norm(x, 2, (0, -1), keepdim=True).flatten()
        all_of_it = torch.linalg.vector_norm(x).reshape(1)
        other = torch.linalg.vector_norm(x, 3.5, 1).flatten()
        third = torch.linalg.vector_norm(x, 4.5, 1).flatten()
        return torch.cat([lengths, all_of_it, other, third])

    found = check(norms, torch.randn(3, 4, 5), form=form)
    assert found == {"linalg_vector_norm": 2, "linalg_vector_norm.power": 2}


@pytest.mark.parametrize("order", [float("inf"), float("-inf"), 0, 1])
def test_other_orders_and_nan(order: float) -> None:
    x = torch.tensor([[1.0, -2.0, 0.0], [float("nan"), 3.0, 0.0]])
    assert check(lambda x: torch.linalg.vector_norm(x, order, 1), x) == {"linalg_vector_norm": 1}


@pytest.mark.parametrize("form", FORMS)
def test_vector_norm_casts_to_its_dtype_first(form: str) -> None:
    x = torch.randn(3, 4).half() * 300
    found = check(lambda x: torch.linalg.vector_norm(x, dtype=torch.float32), x, form=form)
    assert found == {"linalg_vector_norm": 1}


def test_empty_and_0d_norms_are_spelled_out() -> None:
    assert check(torch.linalg.vector_norm, torch.tensor(-3.0)) == {}
    assert check(lambda x: torch.linalg.vector_norm(x, dim=0), torch.randn(0, 3)) == {}
    assert check(lambda x: F.pixel_shuffle(x, 2), torch.arange(32).reshape(1, 8, 2, 2)) == {}


def test_a_vector_norm_of_a_batch_that_turns_out_empty() -> None:
    x, none = torch.randn(2, 3), torch.zeros(0, 3)
    sizes = ({0: Dim.DYNAMIC},)
    found = check(
        lambda x: torch.linalg.vector_norm(x, dim=-1), x, dynamic_shapes=sizes, others=(none,)
    )
    assert found == {"linalg_vector_norm": 1}
