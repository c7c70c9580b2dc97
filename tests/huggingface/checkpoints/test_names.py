"""WeightNames of weights in a checkpoint, as transformers renames and merges them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file

from coreai_onnx.huggingface.checkpoints.names import WeightNames
from coreai_onnx.huggingface.checkpoints.settings import Checkpoint
from tests.support.huggingface_folders import llama

MLP, EXPERTS = "model.layers.0.mlp", "model.layers.0.block_sparse_moe.experts"


def names_of(folder: Path, model: torch.nn.Module, *written: str) -> WeightNames:
    save_file({name: torch.ones(1) for name in written}, folder / "model.safetensors")
    return WeightNames(model, Checkpoint.of(folder))


@pytest.mark.parametrize(
    "part", ["qweight", "weight", "weight_packed", "weight.quant_state.bitsandbytes__nf4", "W_q"]
)
def test_the_path_of_a_layer(part: str, tmp_path: Path) -> None:
    names = names_of(tmp_path, llama(), f"{MLP}.up_proj.{part}", f"{MLP}.up_proj.scales")
    assert names.layers == {f"{MLP}.up_proj": f"{MLP}.up_proj"}
    assert names.tensors[f"{MLP}.up_proj.scales"] == f"{MLP}.up_proj.scales"


def test_the_model_inside_of_another(tmp_path: Path) -> None:
    inner = MLP.removeprefix("model.")
    names = names_of(tmp_path, llama().model, f"{MLP}.up_proj.qweight", "model.norm.weight")
    assert names.layers[f"{inner}.up_proj"] == f"{MLP}.up_proj"
    assert names.tensors == {
        f"{MLP}.up_proj.qweight": f"{MLP}.up_proj.qweight",
        "norm.weight": "model.norm.weight",
    }


def test_experts_are_merged(tmp_path: Path) -> None:
    config = transformers.MixtralConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_local_experts=2
    )
    with torch.device("meta"):
        model = transformers.MixtralForCausalLM(config)
    paths = [f"{EXPERTS}.{expert}.{part}" for expert in (1, 0) for part in ("w3", "w1", "w2")]
    names = names_of(tmp_path, model, *(f"{path}.qweight" for path in paths))
    assert names.experts == {
        f"{MLP}.experts.gate_up_proj": [
            [f"{EXPERTS}.{expert}.w1", f"{EXPERTS}.{expert}.w3"] for expert in (0, 1)
        ],
        f"{MLP}.experts.down_proj": [[f"{EXPERTS}.{expert}.w2"] for expert in (0, 1)],
    }
    assert not names.layers


def test_parts_of_all_experts(tmp_path: Path) -> None:
    path = f"{MLP}.experts.gate_up_proj"
    names = names_of(tmp_path, llama(), f"{path}_blocks", f"{path}_scales")
    assert names.layers == {path: path}
