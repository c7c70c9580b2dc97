"""The configuration for onnxruntime-genai, and a run of it where it is installed."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from coreai_onnx.huggingface.decoders import Decoder
from coreai_onnx.huggingface.exporting import export_model
from coreai_onnx.huggingface.genai import genai_config
from tests.models.generators import GENERATORS, tokens_of_transformers
from tests.support.huggingface_folders import llama, llama_folder

PYTHON = "COREAI_GENAI_PYTHON"
"""The interpreter of an environment with onnxruntime-genai, which is not installed beside torch."""
RUN = """
import json, sys
import onnxruntime_genai as og
model = og.Model(sys.argv[1])
parameters = og.GeneratorParams(model)
parameters.set_search_options(max_length=69, min_length=69, do_sample=False)
generator = og.Generator(model, parameters)
generator.append_tokens([json.loads(sys.argv[2])])
while not generator.is_done():
    generator.generate_next_token()
print(json.dumps(generator.get_sequence(0).tolist()))
"""


def test_the_configuration() -> None:
    config = genai_config(Decoder(llama()), "model.onnx")
    model = config["model"]
    assert (model["type"], model["vocab_size"], model["context_length"]) == ("llama", 260, 256)
    assert [model[f"{name}_token_id"] for name in ("bos", "eos", "pad")] == [1, 2, 0]
    decoder = model["decoder"]
    sizes = ("head_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers")
    assert [decoder[name] for name in sizes] == [16, 4, 2, 2]
    assert decoder["inputs"]["past_key_names"] == "past_key_values.%d.key"
    assert decoder["inputs"]["position_ids"] == "position_ids"
    assert config["search"]["past_present_share_buffer"] is False
    json.dumps(config)


def test_other_architectures_are_run_like_llama() -> None:
    config = genai_config(Decoder(GENERATORS["gpt2"].module()), "model.onnx")
    assert config["model"]["type"] == "llama"


@pytest.mark.skipif(PYTHON not in os.environ, reason=f"{PYTHON} names no interpreter")
@pytest.mark.parametrize("with_kernels", [False, True])
@pytest.mark.parametrize("cache", ["growing", "static"])
@pytest.mark.parametrize("target", ["onnxruntime", "contrib"])
def test_tokens_of_genai(
    target: Any, cache: Any, with_kernels: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if with_kernels:
        request.getfixturevalue("kernels")
    model, ids = llama_folder(tmp_path / "source"), torch.tensor([[5, 9, 17, 33, 8]])
    options = {"target": target, "cache": cache, "include_kernels": with_kernels}
    export_model(tmp_path / "source", tmp_path / "folder", **options)
    wanted = tokens_of_transformers(model, ids, torch.ones_like(ids), max_new_tokens=64)
    command = [os.environ[PYTHON], "-c", RUN, str(tmp_path / "folder"), json.dumps(ids[0].tolist())]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(result.stdout) == wanted[0].tolist()
