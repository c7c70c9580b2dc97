"""The optional input with the number of logits to compute."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
import transformers

import coreai_onnx
from coreai_onnx.huggingface.last_logits import COUNT
from coreai_onnx.runtime.sessions.session import Session
from tests.support.tolerances import assert_close

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
