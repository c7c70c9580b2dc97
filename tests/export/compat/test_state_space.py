"""Mamba 2 layers as one op: the numbers of the chunks, for every length."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
import transformers.models.mamba2.modeling_mamba2 as mamba2

import coreai_onnx
from coreai_onnx.export.compat.state_space import CHUNKED, scan, state_space_layers_as_ops
from tests.models.mixtures import STATEFUL
from tests.tolerances import assert_close

CHUNKS = getattr(mamba2, CHUNKED)


class Layer(torch.nn.Module):
    """Calls the chunks by their global name, as transformers' layers do."""

    def forward(self, *given: torch.Tensor, **options: Any) -> Any:
        return mamba2_chunk_scan(*given, chunk_size=8, return_final_states=True, **options)


mamba2_chunk_scan = CHUNKS


def tensors(batch: int, length: int) -> tuple[torch.Tensor, ...]:
    heads, groups, state = 4, 2, 5
    return (
        torch.randn(batch, length, heads, 6) / 4,
        torch.rand(batch, length, heads),
        -torch.rand(heads),
        torch.randn(batch, length, groups, state) / 4,
        torch.randn(batch, length, groups, state) / 4,
    )


@pytest.mark.parametrize("length", [1, 5, 8, 21])
@pytest.mark.parametrize("given_state", [False, True])
def test_the_numbers_are_those_of_the_chunks(length: int, given_state: bool) -> None:
    torch.manual_seed(0)
    given, layer = tensors(2, length), Layer()
    options = {
        "D": torch.randn(4),
        "dt_bias": torch.randn(4),
        "dt_softplus": True,
        "dt_limit": (0.2, 0.9),
        "initial_states": torch.randn(2, 4, 6, 5) if given_state else None,
        "z": None,
    }
    expected = layer(*given, **options)
    with state_space_layers_as_ops(layer):
        actual = layer(*given, **options)
    assert_close(actual, expected)


def test_a_given_state_goes_on_where_it_stopped() -> None:
    x, decay, _, key, query = tensors(1, 12)
    whole, last = scan(x, -decay, key, query, None, 8)
    parts = [y[:, :7] for y in (x, -decay, key, query)]
    _, middle = scan(*parts, None, 8)
    rest, end = scan(*(y[:, 7:] for y in (x, -decay, key, query)), middle, 8)
    assert_close(rest, whole[:, 7:])
    assert_close(end, last)


def test_several_layers_have_a_dynamic_length() -> None:
    """torch.export of the chunks themselves fixes the length of a model with two layers."""
    (settings,) = (one for one in STATEFUL if one.name == "mamba2")
    config: Any = settings.module().config
    config.num_hidden_layers = 2
    torch.manual_seed(0)
    model = transformers.Mamba2ForCausalLM(config).eval()
    ids = torch.randint(4, 100, (2, 9))
    program = coreai_onnx.convert(
        model, (ids,), dynamic_shapes={"input_ids": {0: "batch", 1: "length"}}
    )
    for batch, length in ((1, 1), (3, 8), (2, 30)):
        ids = torch.randint(4, 100, (batch, length))
        with torch.no_grad():
            assert_close(program.run(ids)["logits"], model(ids).logits)


def test_packed_sequences_are_left_to_transformers() -> None:
    layer = Layer()
    with state_space_layers_as_ops(layer), pytest.raises(ValueError, match="packed sequences"):
        layer(*tensors(1, 4), seq_idx=torch.zeros(1, 4))


def test_a_function_of_the_same_name_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def own(*_: Any, **__: Any) -> str:
        return "own"

    monkeypatch.setitem(globals(), CHUNKED, own)
    layer = Layer()
    with state_space_layers_as_ops(layer):
        assert layer(*tensors(1, 4)) == "own"


def test_the_functions_are_back_after_an_error() -> None:
    def fail() -> None:
        with state_space_layers_as_ops(Layer()):
            assert mamba2_chunk_scan is not CHUNKS
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert mamba2_chunk_scan is CHUNKS
