"""State space layers: the numbers of chunks and of loops over tokens, for every length."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
import transformers.models.mamba2.modeling_mamba2 as mamba2
import transformers.models.rwkv.modeling_rwkv as rwkv
from transformers.models.mamba.modeling_mamba import MambaMixer
from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRglru

import coreai_onnx
from coreai_onnx.export.compat.state_space import CHUNKED, scan, state_space_layers_as_ops
from coreai_onnx.targets.coverage import gaps
from coreai_onnx.targets.providers import WEBGPU
from tests.models.mixtures import STATEFUL
from tests.support.tolerances import assert_close

CHUNKS = getattr(mamba2, CHUNKED)


class Layer(torch.nn.Module):
    """Calls the chunks by their global name, as transformers' layers do."""

    def forward(self, *given: torch.Tensor, **options: Any) -> Any:
        return mamba2_chunk_scan(*given, chunk_size=8, return_final_states=True, **options)


mamba2_chunk_scan = CHUNKS


class Attention(torch.nn.Module):
    """RWKV's attention with a state."""

    def __init__(self) -> None:
        super().__init__()
        self.decay, self.first = (torch.nn.Parameter(torch.randn(4)) for _ in range(2))

    def forward(self, key: torch.Tensor, value: torch.Tensor, *state: torch.Tensor) -> Any:
        outputs, last = rwkv_linear_attention(
            self.decay, self.first, key, value, list(state), return_state=True
        )
        return outputs, *last


rwkv_linear_attention = rwkv.rwkv_linear_attention


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
    # transformers has another function for a token that continues a text, without limits.
    limits = {"dt_limit": (0.0, torch.inf)} if given_state and length == 1 else {}
    expected = layer(*given, **(options | limits))
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


# ---------------------------------------------------------------------- loops over tokens
def continued(layer: Any, length: int, state: Any, run: Any) -> Any:
    """Run a layer token by token, each from the state of the one before."""
    outputs = []
    for token in range(length):
        output, state = run(layer, slice(token, token + 1), state)
        outputs.append(output)
    return torch.cat(outputs, dim=1), state


def test_a_mamba_continues_from_its_state() -> None:
    torch.manual_seed(0)
    config = transformers.MambaConfig(
        hidden_size=8, state_size=4, time_step_rank=2, num_hidden_layers=1
    )
    layer, x = MambaMixer(config, 0).eval(), torch.randn(2, 7, 8)

    def run(layer: Any, tokens: slice, cache: Any) -> tuple[torch.Tensor, Any]:
        return layer(x[:, tokens], cache_params=cache), cache

    with torch.no_grad():
        wanted, _ = continued(layer, 7, transformers.DynamicCache(config=config), run)
        with state_space_layers_as_ops(layer):
            whole, cache = run(layer, slice(0, 4), transformers.DynamicCache(config=config))
            rest, _ = run(layer, slice(4, 7), cache)
    assert_close(torch.cat([whole, rest], dim=1), wanted)


def test_the_numbers_of_a_linear_recurrence() -> None:
    torch.manual_seed(0)
    layer: Any = RecurrentGemmaRglru(transformers.RecurrentGemmaConfig(lru_width=8))
    x, gate, state = torch.randn(2, 5, 8), torch.rand(2, 5, 8), torch.randn(2, 8)
    reset = torch.zeros(2, 5, 1, dtype=torch.bool)
    reset[1, 2] = True
    for before in (None, state):
        wanted = layer._rnn_scan(x, gate, reset, before)
        with state_space_layers_as_ops(layer):
            assert_close(layer._rnn_scan(x, gate, reset, before), wanted)


def test_the_numbers_of_rwkv() -> None:
    torch.manual_seed(0)
    given = [torch.randn(*dims) for dims in ((4,), (4,), (2, 5, 4), (2, 5, 4))]
    given[2][0, 1] = 200.0  # an exponent beyond float32
    for state in (None, [torch.rand(2, 4), torch.rand(2, 4), torch.randn(2, 4)]):
        outputs, last = rwkv.rwkv_linear_attention(*given, state, return_state=True)
        layer = rwkv.RwkvSelfAttention(transformers.RwkvConfig(hidden_size=4))
        with state_space_layers_as_ops(layer):
            found = rwkv.rwkv_linear_attention(*given, state, return_state=True)
        assert_close(found, (outputs, last))


def test_files_for_webgpu_have_no_loop() -> None:
    torch.manual_seed(0)
    layer = Attention().eval()

    def arguments(batch: int, length: int) -> list[torch.Tensor]:
        tokens = torch.randn(batch, length, 4), torch.randn(batch, length, 4)
        return [*tokens, torch.rand(batch, 4), torch.rand(batch, 4), torch.randn(batch, 4)]

    dims: Any = [{0: "batch", 1: "length"}] * 2 + [{0: "batch"}] * 3
    given = arguments(2, 5)
    dynamic_shapes = {"key": dims[0], "value": dims[1], "state": tuple(dims[2:])}
    program = coreai_onnx.convert(layer, tuple(given), dynamic_shapes=dynamic_shapes)
    program.optimize(target="webgpu")
    assert all(gap.declared for gap in gaps(program.model, WEBGPU))
    for batch, length in ((1, 1), (2, 5), (3, 40)):
        given = arguments(batch, length)
        given[0][0, length // 2] = 200.0  # an exponent beyond float32
        with torch.no_grad():
            assert_close(list(program.run(*given).values()), list(layer(*given)))
