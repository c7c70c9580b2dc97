"""Exported folders in optimum and in transformers.js, where these are installed.

They are not installed beside torch, because optimum needs an older transformers, and
transformers.js needs Node. ``docs/language_models.md`` has the results of the last run.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from coreai_onnx.huggingface import export_model
from tests.models.generators import tokens_of_transformers
from tests.models.sequence_to_sequence import SEQUENCE_TO_SEQUENCE
from tests.support.huggingface_folders import llama

OPTIMUM = "COREAI_OPTIMUM_PYTHON"
"""The interpreter of an environment with optimum-onnx."""
NODE = "COREAI_TRANSFORMERS_JS"
"""A folder with ``node_modules/@huggingface/transformers``."""
IDS = [5, 9, 17, 33, 8]
LENGTH = 64
IN_PYTHON = """
import json, sys
import torch
import optimum.onnxruntime
cls = getattr(optimum.onnxruntime, sys.argv[1])
model = cls.from_pretrained(sys.argv[2], local_files_only=True)
ids = torch.tensor([json.loads(sys.argv[3])])
tokens = model.generate(
    input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=int(sys.argv[4]),
    do_sample=False, eos_token_id=None, pad_token_id=0,
)
print(json.dumps(tokens[0].tolist()))
"""
IN_JAVASCRIPT = """
import * as transformers from '@huggingface/transformers';
const [cls, folder, text, length] = process.argv.slice(-4);
transformers.env.allowRemoteModels = false;
transformers.env.localModelPath = folder.slice(0, folder.lastIndexOf('/') + 1);
const name = folder.slice(folder.lastIndexOf('/') + 1);
const model = await transformers[cls].from_pretrained(name, { dtype: 'fp32', subfolder: '' });
const ids = JSON.parse(text);
const tensor = (x) => new transformers.Tensor(
  'int64', BigInt64Array.from(x.map(BigInt)), [1, x.length]
);
const tokens = await model.generate({
  inputs: tensor(ids), attention_mask: tensor(ids.map(() => 1)),
  max_new_tokens: Number(length), min_new_tokens: Number(length), do_sample: false,
});
console.log(JSON.stringify(tokens.tolist()[0].map(Number)));
"""


@pytest.fixture(params=["llama", "t5", "bart"])
def exported(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path, list[int]]:
    """The kind of class of a model, its folder, and the tokens of transformers."""
    is_decoder = request.param == "llama"
    by_name = {one.name: one.module for one in SEQUENCE_TO_SEQUENCE}
    model: Any = llama() if is_decoder else by_name[request.param]()
    model.generation_config.forced_eos_token_id = model.config.forced_eos_token_id = None
    ids = torch.tensor([IDS])
    wanted = tokens_of_transformers(model, ids, torch.ones_like(ids), max_new_tokens=LENGTH)
    folder = export_model(model, tmp_path / "folder").path
    return "CausalLM" if is_decoder else "Seq2SeqLM", folder, wanted[0].tolist()


def last_line(command: list[str], **options: Any) -> Any:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment, **options
    )
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.skipif(OPTIMUM not in os.environ, reason=f"{OPTIMUM} names no interpreter")
def test_tokens_of_optimum(exported: tuple[str, Path, list[int]]) -> None:
    kind, folder, wanted = exported
    arguments = [f"ORTModelFor{kind}", str(folder), json.dumps(IDS), str(LENGTH)]
    assert last_line([os.environ[OPTIMUM], "-c", IN_PYTHON, *arguments]) == wanted


@pytest.mark.skipif(NODE not in os.environ, reason=f"{NODE} names no folder")
def test_tokens_of_transformers_js(exported: tuple[str, Path, list[int]]) -> None:
    kind, folder, wanted = exported
    arguments = [f"AutoModelFor{kind}", str(folder), json.dumps(IDS), str(LENGTH)]
    command = ["node", "--input-type=module", "-e", IN_JAVASCRIPT, "--", *arguments]
    assert last_line(command, cwd=os.environ[NODE]) == wanted
