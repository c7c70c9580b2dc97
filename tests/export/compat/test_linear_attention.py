"""Gated delta layers as a scan: the numbers of the chunks, for every length."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers.models.qwen3_next.modeling_qwen3_next as qwen3_next
from torch.export import Dim
from transformers import KimiLinearConfig, KimiLinearModel

from coreai_onnx import TorchConverter
from coreai_onnx.export.compat import linear_attention
from coreai_onnx.export.compat.linear_attention import (
    LOOPING,
    gated_delta_layers_as_ops,
    gated_delta_rule,
    replacement_of,
)
from tests.support.tolerances import assert_close

CHUNKS, LOOP = (getattr(qwen3_next, name) for name in LOOPING)


def tensors(batch: int, length: int, *, key_heads: int = 2) -> tuple[torch.Tensor, ...]:
    heads = 4
    return (
        torch.randn(batch, length, key_heads, 8),
        torch.randn(batch, length, key_heads, 8),
        torch.randn(batch, length, heads, 6),
        -torch.rand(batch, length, heads),
        torch.rand(batch, length, heads),
    )


@pytest.mark.parametrize("length", [1, 5, 64, 70])
@pytest.mark.parametrize("key_heads", [2, 4])
@pytest.mark.parametrize("loop", [CHUNKS, LOOP], ids=["chunks", "tokens"])
def test_the_numbers_are_those_of_the_loops(loop: Any, length: int, key_heads: int) -> None:
    given = tensors(2, length, key_heads=key_heads)
    expected, last = loop(*given, output_final_state=True, use_qk_l2norm_in_kernel=True)
    actual, state = gated_delta_rule(*given, use_qk_l2norm_in_kernel=True)
    assert_close(actual, expected)
    assert_close(state, last)


def test_a_given_state_goes_on_where_it_stopped() -> None:
    given = tensors(1, 12)
    whole, last = gated_delta_rule(*given, use_qk_l2norm_in_kernel=True)
    _, middle = gated_delta_rule(*(x[:, :7] for x in given), use_qk_l2norm_in_kernel=True)
    rest, end = gated_delta_rule(*(x[:, 7:] for x in given), middle, use_qk_l2norm_in_kernel=True)
    assert_close(rest, whole[:, 7:])
    assert_close(end, last)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_state_stays_wide(dtype: torch.dtype) -> None:
    given = [x.to(dtype) for x in tensors(1, 6)]
    expected, last = LOOP(*given, output_final_state=True, use_qk_l2norm_in_kernel=True)
    actual, state = gated_delta_rule(*given, use_qk_l2norm_in_kernel=True)
    assert_close(actual, expected)
    assert_close(state, last)


def test_packed_sequences_are_left_to_transformers() -> None:
    layer, given = Layer(), tensors(1, 4)
    asked: list[Any] = []

    def packed(*args: torch.Tensor, cu_seqlens: Any = None, **_: Any) -> tuple[torch.Tensor, None]:
        asked.append(cu_seqlens)
        return args[2], None

    replaced = replacement_of(packed)
    assert replaced(*given, cu_seqlens=[0, 4]) == (given[2], None)
    assert asked == [[0, 4]]
    assert layer(*given).shape == given[2].shape


class Layer(torch.nn.Module):
    """Calls the chunks by their global name, as transformers' layers do."""

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        outputs, _ = torch_chunk_gated_delta_rule(*given, use_qk_l2norm_in_kernel=True)
        return outputs


torch_chunk_gated_delta_rule = CHUNKS


def test_replacements_may_be_nested() -> None:
    layer, given = Layer(), tensors(1, 6)
    expected = layer(*given)
    with gated_delta_layers_as_ops(layer), gated_delta_layers_as_ops(layer):
        exported = torch.export.export(layer, given)
        assert_close(layer(*given), expected)
    targets = [str(node.target) for node in exported.graph.nodes]
    assert targets.count("coreai.gated_delta_update.default") == 1


def test_one_export_serves_every_length() -> None:
    layer = Layer()
    batch, seq = Dim("batch"), Dim("seq", max=4096)
    with gated_delta_layers_as_ops(layer):
        exported = torch.export.export(
            layer, tensors(2, 9), dynamic_shapes=(({0: batch, 1: seq},) * 5,)
        )
    assert torch_chunk_gated_delta_rule is CHUNKS
    program = TorchConverter().add_exported_program(exported).to_onnx()
    assert program.composites() == {"ai.coreai::gated_delta_update": 1}
    for size in ((2, 9), (1, 1), (3, 130)):
        given = tensors(*size)
        (actual,) = program.run(*given)
        assert_close(actual, layer(*given))


def test_a_decay_per_channel_is_left_to_the_model() -> None:
    asked = []

    def rule(query: Any, key: Any, value: Any, g: Any, beta: Any, **_: Any) -> Any:
        asked.append(g.shape)
        return value, None

    *others, g, beta = tensors(2, 3)
    g = g[..., None].expand(-1, -1, -1, 8)
    outputs, state = replacement_of(rule)(*others, g, beta)
    assert outputs is others[2]
    assert state is None
    assert asked == [g.shape]


@pytest.mark.slow
def test_kimis_delta_attention_stays_a_loop() -> None:
    config = KimiLinearConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        linear_head_dim=8,
        linear_num_heads=2,
        layer_types=["linear_attention"],
        mlp_layer_types=["dense"],
        pad_token_id=0,
    )
    torch.manual_seed(0)
    model, ids = KimiLinearModel(config).eval(), torch.tensor([[5, 3, 9, 1], [2, 2, 8, 7]])
    converter = TorchConverter()
    converter.add_pytorch_module(
        model,
        export_fn=lambda m: torch.export.export(m, (ids,), {"use_cache": False}),
        externalize_modules="auto",
    )
    program = converter.to_onnx().optimize()
    assert "ai.coreai::gated_delta_update" not in program.composites()
    (actual,) = program.run(ids, kernels=False)
    with torch.no_grad():
        assert_close(actual, model(ids, use_cache=False).last_hidden_state)


def test_other_models_are_left_alone() -> None:
    with gated_delta_layers_as_ops(torch.nn.Linear(2, 2)):
        assert torch_chunk_gated_delta_rule is CHUNKS


def test_the_function_is_back_after_an_error() -> None:
    def fail() -> None:
        with gated_delta_layers_as_ops(Layer()):
            assert torch_chunk_gated_delta_rule is not CHUNKS
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert torch_chunk_gated_delta_rule is CHUNKS


def test_the_former_name_is_deprecated() -> None:
    with (
        pytest.deprecated_call(match="gated_delta_layers_as_ops"),
        linear_attention.scanned(torch.nn.Linear(1, 1)),
    ):
        pass
