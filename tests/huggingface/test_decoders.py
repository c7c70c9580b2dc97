"""Tests of decoders as modules: their caches, and the logits that they return."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import transformers

import coreai_onnx
from coreai_onnx.errors import ConversionError, ModelSourceError
from coreai_onnx.huggingface.caches import slots_of
from coreai_onnx.huggingface.decoders import COUNT, CodedDecoder, Decoder, cache_dims
from coreai_onnx.huggingface.generation import LanguageModel
from coreai_onnx.runtime.sessions.session import Session
from tests.models.generators import GENERATORS
from tests.support.externalized import kernels_built
from tests.support.huggingface_folders import llama
from tests.support.tolerances import assert_close

FIRST = ["input_ids", "attention_mask", "position_ids"]
CACHE = ["0.key", "0.value", "1.key", "1.value"]


def test_dims_of_a_cache() -> None:
    key = slots_of(llama())[0]
    assert cache_dims(key) == {0: "batch_size", 2: "past_sequence_length"}
    assert cache_dims(key, None) == {0: "batch_size"}


def test_names_and_results() -> None:
    model = llama()
    decoder = Decoder(model)
    pasts = [f"past_key_values.{name}" for name in CACHE]
    assert decoder.input_names == [*FIRST, "logits_to_keep", *pasts]
    assert decoder.output_names == ["logits", *(f"present.{name}" for name in CACHE)]
    ids = torch.tensor([[5, 9, 17]])
    empty = [torch.zeros(1, 2, 0, 16)] * 4
    with torch.no_grad():
        first = ids, torch.ones_like(ids), torch.arange(3)[None]
        logits, *cache = decoder(*first, torch.tensor([2]), empty)
        assert_close(logits, model(ids).logits[:, 2:])
    assert [tuple(x.shape) for x in cache] == [(1, 2, 3, 16)] * 4


def test_examples_have_the_structure_of_their_dims() -> None:
    decoder = Decoder(llama().half())
    example, dims = decoder.example(torch.float16), decoder.dynamic_shapes()
    assert [type(x) for x in example] == [torch.Tensor] * 4 + [list]
    assert [len(x) for x in dims] == [2, 2, 2, 1, 4]
    assert example[4][0].dtype == torch.float16


IDS = [[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    return coreai_onnx.export_model(model, tmp_path_factory.mktemp("folder") / "llama")


def feeds():
    return {
        "input_ids": np.array(IDS),
        "attention_mask": np.ones((2, 5), np.int64),
        "position_ids": np.arange(5)[None].repeat(2, 0),
        "past_key_values.0.key": np.zeros((2, 2, 0, 8), np.float32),
        "past_key_values.0.value": np.zeros((2, 2, 0, 8), np.float32),
    }


@pytest.mark.parametrize(("count", "length"), [(None, 5), (0, 5), (1, 1), (3, 3), (5, 5)])
def test_a_stock_onnxruntime_computes_the_last_logits(model, exported, count, length):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns of the default value
    session = onnxruntime.InferenceSession(exported.path / "model.onnx", options)
    given = {} if count is None else {COUNT: np.array(count)}
    logits = session.run(["logits"], {**feeds(), **given})[0]
    assert logits.shape == (2, length, 64)
    with torch.no_grad():
        wanted = model(input_ids=torch.tensor(IDS)).logits[:, -length:]
    assert_close(torch.from_numpy(logits), wanted)


def test_a_session_takes_it_by_name_only(exported):
    session = exported.program.session()
    assert [info.name for info in session.optional_inputs] == [COUNT]
    assert COUNT not in [info.name for info in session.inputs]
    whole = session.stream().run(**feeds())["logits"]
    last = session.stream().run(**feeds(), **{COUNT: 2})["logits"]
    assert_close(last, whole[:, -2:])


def test_generation_computes_the_logits_of_one_token(exported, monkeypatch):
    shapes = []
    run = Session.run

    def recorded(self, *args, **named):
        outputs = run(self, *args, **named)
        shapes.append(outputs["logits"].shape)
        return outputs

    monkeypatch.setattr(Session, "run", recorded)
    coreai_onnx.generate(exported.path, IDS, max_new_tokens=3)
    assert shapes == [(2, 1, 64)] * 3


@pytest.mark.parametrize("cache", ["growing", "static"])
@pytest.mark.parametrize("bits", [8, 4])
def test_a_cache_of_few_bits(tmp_path: Path, bits: int, cache: Any) -> None:
    """Texts of several lengths, in chunks, in beams, with and without kernels, as in torch."""
    model = llama()
    folder = coreai_onnx.export_model(
        model, tmp_path / "folder", cache=cache, cache_bits=bits, task="text-generation"
    ).path
    assert not (folder / "genai_config.json").exists()
    opened = {
        kernels: LanguageModel.open(folder, kernels=kernels)
        for kernels in ([False, True] if kernels_built() else [False])
    }
    expected = _greedy(CodedDecoder(model, bits, is_static=cache == "static"), PADDED, MASK, 8)
    for one in opened.values():
        states = {info.name: info for info in one.session.state_inputs}
        assert [info.dtype for info in states.values()] == ["uint8", "float32"] * 4
        assert states["past_key_values.0.key"].dims[3] == 16 * bits // 8
        assert states["past_key_values.0.key_scale"].dims[3] == 1
        ids = one.generate(PADDED, attention_mask=MASK, max_new_tokens=8, stop_ids=())
        assert ids[:, 3:].tolist() == expected
        one.generate(PADDED, attention_mask=MASK, max_new_tokens=6, num_beams=3, stop_ids=())
    if cache == "static":  # nothing copies the cache
        session = opened[False].session
        assert session._model.undo is not None
        assert session._model.undo.states == set(session.states)


PADDED, MASK = torch.tensor([[0, 5, 9], [17, 5, 3]]), torch.tensor([[0, 1, 1], [1, 1, 1]])


@torch.no_grad()
def _greedy(decoder: CodedDecoder, ids: Any, mask: Any, count: int) -> list[list[int]]:
    """Return the tokens that a decoder chooses, computed by torch."""
    _, *_, cache = decoder.arguments(len(ids), ids.shape[1], 0)
    if decoder.slots[0].is_static:
        cache = [slot.example(len(ids), 16) for slot in decoder.slots]
    tokens, new = ids, []
    for _ in range(count):
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        logits, *cache = decoder(tokens, mask, positions, None, cache)
        tokens = logits[:, -1].argmax(-1, keepdim=True)
        mask = torch.cat([mask, torch.ones_like(tokens)], dim=1)
        new.append(tokens)
    return torch.cat(new, dim=1).tolist()  # type: ignore[no-any-return]


def test_caches_of_few_bits_that_are_refused(tmp_path: Path) -> None:
    def refused(model: Any, match: str, **how: Any) -> None:
        with pytest.raises((ModelSourceError, ConversionError), match=match):
            coreai_onnx.export_model(model, tmp_path / "folder", task="text-generation", **how)

    for bits in (5, True, "8", 4.0, 0):
        refused(llama(), "cache_bits .* must be 8 or 4", cache_bits=bits)
    mamba, states = GENERATORS["mamba2"].module(), "to store in 8 bits: its recurrent states"
    for cache in ("growing", "paged"):
        refused(mamba, states, cache=cache, cache_bits=8)
    odd = transformers.GPT2Config(vocab_size=64, n_embd=18, n_layer=1, n_head=2, n_positions=32)
    refused(transformers.GPT2LMHeadModel(odd), "two codes of 4 bits are in a byte", cache_bits=4)
    assert not list(tmp_path.iterdir())


def test_recurrent_states_stay_beside_keys_and_values_of_few_bits() -> None:
    decoder = CodedDecoder(GENERATORS["falcon_h1"].module(), 8)
    kinds = {slot.kind: slot.dtype for slot in decoder.slots}
    assert kinds["key"] == kinds["value"] == torch.uint8
    assert kinds["conv"] == kinds["ssm"] == torch.float32
    with torch.no_grad():
        first = decoder(*decoder.example(torch.float32))
    assert [tuple(x.shape[:1]) for x in first] == [(2,)] * (1 + len(decoder.slots))
