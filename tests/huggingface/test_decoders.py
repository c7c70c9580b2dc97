"""Tests of decoders as modules: their caches, and the logits that they return."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
import transformers

import coreai_onnx
from coreai_onnx.huggingface.caches import slots_of
from coreai_onnx.huggingface.decoders import COUNT, Decoder, cache_dims
from coreai_onnx.runtime.sessions.session import Session
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
